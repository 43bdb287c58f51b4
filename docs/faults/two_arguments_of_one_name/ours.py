import mdispatch as md

library = md.Library("shop", "DEF")
library.define("add(int n, int n) -> int")
library.impl("add", lambda n, m: n + m, "CompositeExplicitAutograd")
print(md.ops.shop.add(1, n=2))
