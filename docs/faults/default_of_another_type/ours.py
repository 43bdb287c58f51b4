import mdispatch as md

library = md.Library("shop", "DEF")
for name, default in {"a": "1.5", "b": "'two'", "c": "0x10"}.items():
    try:
        library.define(f"{name}(int n={default}) -> int")
    except md.errors.SchemaSyntaxError as error:
        print(str(error).splitlines()[0])
