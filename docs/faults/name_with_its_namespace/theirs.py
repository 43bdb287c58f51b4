import torch

library = torch.library.Library("shop", "DEF")
library.define("shop::double(Tensor x) -> Tensor")
print(torch.ops.shop.double)
