import torch

library = torch.library.Library("shop", "DEF")
library.define("halves(Tensor x) -> (Tensor, Tensor)")
library.impl("halves", lambda x: (x / 2,), "CPU")
print(torch.ops.shop.halves(torch.ones(1)))
