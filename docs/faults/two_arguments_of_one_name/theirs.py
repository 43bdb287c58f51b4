import torch

library = torch.library.Library("shop", "DEF")
library.define("add(int n, int n) -> int")
library.impl("add", lambda n, m: n + m, "CompositeExplicitAutograd")
print(torch.ops.shop.add(1, n=2))
