import mdispatch as md


class First(md.DispatchMode): ...


class Second(md.DispatchMode): ...


first, second = First(), Second()
first.__enter__()
second.__enter__()
first.__exit__(None, None, None)
print([type(mode).__name__ for mode in md.mode_stack()])
