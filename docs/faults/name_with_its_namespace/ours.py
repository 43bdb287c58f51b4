import mdispatch as md

library = md.Library("shop", "DEF")
library.define("shop::double(Tensor x) -> Tensor")
print(md.ops.shop.double)
library.close()
