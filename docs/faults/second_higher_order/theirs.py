import torch
from torch._ops import HigherOrderOperator


class Map(HigherOrderOperator):
    def __call__(self, *args):
        return super().__call__(*args)


first, second = Map("each_price"), Map("each_price")
print(torch.ops.higher_order.each_price is first)
