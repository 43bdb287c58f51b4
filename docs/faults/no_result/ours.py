import torch

import mdispatch as md

library = md.Library("shop", "DEF")
library.define("double(Tensor x) -> Tensor")
library.impl("double", lambda x: print("no return"), "CPU")
print(md.ops.shop.double(torch.ones(1)))
