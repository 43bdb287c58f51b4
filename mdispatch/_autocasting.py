"""The kernel that ``register_autocast`` registers: casts, and calls the operator again below."""

from __future__ import annotations

from ._keys import DispatchKey
from .guards import ExcludeDispatchKeyGuard
from .keys import DispatchKeySet
from .operators import OpOverload
from .registry import Registry
from .values import raw_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["AutocastKernel"]

#: How the names of element types begin that are cast, and those among them that are not: numbers
#: of 64 bits were asked for on purpose.
_FLOATING = ("float", "bfloat", "half")
_KEPT = ("float64", "double")


class AutocastKernel:
    """Casts the tensors of one device to one element type."""

    def __init__(
        self,
        registry: Registry,
        name: str,
        device: DispatchKey,
        key: DispatchKey,
        dtype: Any,
        cast: Callable[[Any, Any], Any] | None,
    ) -> None:
        self.__module__ = "mdispatch"
        self.__qualname__ = f"autocast to {_name_of(dtype)}"
        self._registry = registry
        self._name = name
        self._device = device
        self._key = key
        self._dtype = dtype
        self._cast = _cast if cast is None else cast
        self._operator: OpOverload | None = None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        operator = self._operator
        if operator is None or operator.is_gone:  # a kernel outlives definitions
            operator = self._operator = OpOverload(self._registry, self._name)
        args = tuple(map(self._lowered, args))
        kwargs = {name: self._lowered(value) for name, value in kwargs.items()}
        with ExcludeDispatchKeyGuard(self._key):
            return operator(*args, **kwargs)

    def _lowered(self, value: Any) -> Any:
        raw = raw_of(value)
        if raw is not None:
            on_device = DispatchKeySet.from_raw(raw).has(self._device)
            return self._cast(value, self._dtype) if on_device else value
        if type(value) is list:
            return [self._lowered(each) for each in value]
        return value

    def __repr__(self) -> str:
        return f"<{self.__qualname__} of {self._name}>"


def _name_of(dtype: Any) -> str:
    """The name of an element type: "float32" of numpy's, of PyTorch's, of "<f4"."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return name if isinstance(name, str) else str(dtype).rpartition(".")[2]


def _cast(value: Any, dtype: Any) -> Any:
    name = _name_of(getattr(value, "dtype", ""))
    if not name.startswith(_FLOATING) or name in _KEPT:
        return value
    for method in ("astype", "to"):
        convert = getattr(value, method, None)
        if convert is not None:
            return convert(dtype)
    return value
