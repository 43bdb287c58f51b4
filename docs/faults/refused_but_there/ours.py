import mdispatch as md
from mdispatch import torch_compat

library = md.Library("shop", "DEF")
numbers = ", ".join(f"int n{i}" for i in range(65))
try:
    library.define(f"sum({numbers}) -> int")
except md.errors.SchemaSyntaxError as error:
    print(str(error).splitlines()[0])
print(torch_compat._dispatch_find_dangling_impls())
