import torch

import mdispatch as md


def register():
    library = md.Library("shop", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")


register()
print(md.ops.shop.double(torch.ones(1)))
