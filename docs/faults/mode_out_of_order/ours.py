import mdispatch as md


class First(md.context.DispatchMode): ...


class Second(md.context.DispatchMode): ...


first, second = First(), Second()
first.__enter__()
second.__enter__()
first.__exit__(None, None, None)
print([type(mode).__name__ for mode in md.context.mode_stack()])
