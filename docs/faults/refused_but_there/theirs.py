import torch

library = torch.library.Library("shop", "DEF")
numbers = ", ".join(f"int n{i}" for i in range(65))
try:
    library.define(f"sum({numbers}) -> int")
except RuntimeError as error:
    print(str(error).splitlines()[0])
print(torch._C._dispatch_find_dangling_impls())
