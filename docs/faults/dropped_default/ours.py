import torch

import mdispatch as md

library = md.Library("shop", "DEF")
library.define("price(Tensor x, float tax=0.25) -> Tensor")


@md.impl("shop::price", "CPU")
def price(x, tax=0.5):
    return x * (1 + tax)


print(md.ops.shop.price(torch.ones(1), 0.25))
