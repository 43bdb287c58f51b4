"""What runs for an operator of ``custom_op``: the user's function of one device, and what finds the
device of an operator without tensors.
"""

from __future__ import annotations

from _thread import RLock

from ._devices import device_key
from ._keys import DispatchKey
from ._nearest import shown
from ._place import label_of
from .errors import ArgumentError
from .keys import DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._alias_check import AliasCheck
    from .operators import OpOverload
    from .schema import Argument

__all__ = ["DeviceKernel", "DeviceSwitch", "select_backend"]


class DeviceSwitch:
    """Which devices' kernels are disabled. The newest guard that is open decides for its device,
    in whatever order guards end.

    ``_lock`` is held while guards come and go; calls read the tuple, which is replaced and never
    changed, without it.
    """

    __slots__ = ("_guards", "_lock")

    def __init__(self) -> None:
        self._lock = RLock()
        self._guards: tuple[tuple[object, DispatchKey, bool], ...] = ()

    def is_enabled(self, key: DispatchKey) -> bool:
        for _, of, enabled in reversed(self._guards):
            if of is key:
                return enabled
        return True

    def begin(self, token: object, key: DispatchKey, enabled: bool) -> None:
        with self._lock:
            self._guards = (*self._guards, (token, key, enabled))

    def end(self, token: object) -> None:
        with self._lock:
            self._guards = tuple(each for each in self._guards if each[0] is not token)


class DeviceKernel:
    """The function of one device, or of all of them. While its device is disabled the operator's
    own function runs in place of it.
    """

    __slots__ = ("_check", "_default", "_key", "_switch", "function")

    def __init__(
        self,
        function: Callable[..., Any],
        key: DispatchKey,
        default: Callable[..., Any],
        switch: DeviceSwitch,
        check: AliasCheck,
    ) -> None:
        self.function = function
        self._key = key
        self._default = default
        self._switch = switch
        self._check = check

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        function = self.function if self._switch.is_enabled(self._key) else self._default
        result = function(*args, **kwargs)
        self._check(function, args, kwargs, result)
        return result

    def __repr__(self) -> str:
        return f"<kernel {label_of(self.function)}>"


def select_backend(operator: Callable[[], OpOverload], device: Argument) -> Callable[..., Any]:
    """The kernel at BackendSelect of an operator without tensors: goes on at the key of its
    argument ``device``; without a device, as a call without keys does.
    """
    name = device.name

    def select(*args: Any, **kwargs: Any) -> Any:
        op = operator()
        value = kwargs.get(name)
        if name not in kwargs:
            positional = [each.name for each in op.schema.arguments if not each.kwarg_only]
            value = args[positional.index(name)]
        # By its text, "cuda:1": what the device of an array library has in common with a str.
        keys = DispatchKeySet()
        if value is not None:
            text = str(value)
            try:
                keys = DispatchKeySet(device_key(text))
            except ValueError as error:
                raise ArgumentError(
                    f"{op.name}() takes a device for {name!r}, not {shown(text)}: {error}",
                    op.name,
                    op.schema,
                ) from None
        return op.redispatch(keys, *args, **kwargs)

    return select
