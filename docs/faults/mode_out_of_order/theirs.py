from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack


class First(TorchDispatchMode): ...


class Second(TorchDispatchMode): ...


first, second = First(), Second()
first.__enter__()
second.__enter__()
first.__exit__(None, None, None)
print([type(mode).__name__ for mode in _get_current_dispatch_mode_stack()])
