import torch

IMPLICIT, EXPLICIT = "CompositeImplicitAutograd", "CompositeExplicitAutograd"
library = torch.library.Library("shop", "DEF")
for name, keys in {"a": (IMPLICIT, EXPLICIT), "b": (EXPLICIT, IMPLICIT)}.items():
    library.define(f"{name}(Tensor x) -> str")
    for key in keys:
        library.impl(name, lambda x, key=key: key, key)
    print(getattr(torch.ops.shop, name)(torch.ones(1)))
