import torch


def register():
    library = torch.library.Library("shop", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CPU")


register()
print(torch.ops.shop.double(torch.ones(1)))
