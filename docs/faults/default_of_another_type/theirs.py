import torch

library = torch.library.Library("shop", "DEF")
library.define("a(int n=1.5) -> int")
library.define("b(int n='two') -> int")
library.define("c(int n=0x10) -> int")
for name in ("a", "b", "c"):
    print(getattr(torch.ops.shop, name).default._schema)
