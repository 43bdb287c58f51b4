import torch
from torch import Tensor

import mdispatch as md


@md.custom_op("shop::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x * 2


held = md.ops.shop.double.default
try:
    md.custom_op("shop::double", lambda x: x, mutates_args=(), schema="(Tensor x) -> X")
except md.errors.SchemaSyntaxError:
    print("refused")
print(held(torch.ones(1)))
