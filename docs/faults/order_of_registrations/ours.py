import torch

import mdispatch as md

IMPLICIT, EXPLICIT = "CompositeImplicitAutograd", "CompositeExplicitAutograd"
library = md.Library("shop", "DEF")
for name, keys in {"a": (IMPLICIT, EXPLICIT), "b": (EXPLICIT, IMPLICIT)}.items():
    library.define(f"{name}(Tensor x) -> str")
    for key in keys:
        library.impl(name, lambda x, key=key: key, key)
    print(getattr(md.ops.shop, name)(torch.ones(1)))
