import torch

import mdispatch as md

library = md.Library("shop", "DEF")
library.define("double(Tensor x) -> Tensor")
library.impl("double", lambda x: x * 2, "CPU")
double = md.ops.shop.double.default
print(double(torch.ones(1)))
library.close()
print(double(torch.ones(1)))
