import torch

library = torch.library.Library("shop", "DEF")
library.define("double(Tensor x) -> Tensor")
library.impl("double", lambda x: x * 2, torch._C.DispatchKey.AutogradMTIA.name)
print("registered")
