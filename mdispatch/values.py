"""Which dispatch keys an object carries: by its type's registration, by attribute, by DLPack, by
PyTorch. An object whose type has ``__md_dispatch__`` carries the keys of Python too (see modes.py).

Types are local objects, so what is registered here holds for this interpreter; a module that
registers its types does so in every interpreter that imports it. Nothing is imported to find out
what an object is.
"""

from __future__ import annotations

import sys
import weakref

from .errors import InvalidArgumentError, InvalidKeyError
from .keys import DispatchKey, DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["TypeKeys", "is_tensor", "key_set_of", "register_type"]

# DLPack's device types (dlpack.h, DLDeviceType) and the key of the backend whose kernels can work
# there.
_DLPACK = {
    1: DispatchKey.CPU,
    2: DispatchKey.CUDA,
    3: DispatchKey.CPU,  # CUDA's pinned host memory
    7: DispatchKey.Vulkan,
    8: DispatchKey.MPS,  # Metal
    10: DispatchKey.HIP,  # ROCm
    11: DispatchKey.CPU,  # ROCm's pinned host memory
    12: DispatchKey.PrivateUse1,  # an extension's device
    13: DispatchKey.CUDA,  # managed memory
    14: DispatchKey.XPU,  # oneAPI
    17: DispatchKey.MAIA,
}


# What values carry whose type answers calls itself.
_PYTHON = DispatchKeySet("Python", "PythonTLSSnapshot").raw


class TypeKeys:
    """The key sets of registered types. Look-ups follow the method resolution order; the nearest
    registration wins.
    """

    def __init__(self) -> None:
        self._registered: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
        self._found: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
        #: What else is kept of types, by calls, is out of date.
        self.when_changed: Callable[[], object] = int

    def register(self, cls: type, raw: int) -> None:
        self._registered[cls] = raw
        # A new one, not an empty one: a look-up under way in another thread puts its answer into
        # the old one.
        self._found = weakref.WeakKeyDictionary()
        self.when_changed()

    def knows(self, cls: type) -> bool:
        """Whether the class, or a base of it, is registered."""
        return any(base in self._registered for base in cls.__mro__)

    def raw_of(self, value: object) -> int | None:
        """The bits of the value's key set; None for a value that carries none."""
        cls = type(value)
        found = self._found
        raw = found.get(cls)
        if raw is not None:
            return raw
        handled = _handled(cls)
        raw = self._registered_as(cls)
        if raw is not None:
            found[cls] = raw | handled
            return raw | handled
        raw = _raw_by_protocol(value)
        return raw | handled if raw is not None else handled or None

    def _registered_as(self, cls: type) -> int | None:
        for base in cls.__mro__:
            raw = self._registered.get(base)
            if raw is not None:
                return raw
        return None

    def raw_of_type(self, cls: type) -> int | bool | None:
        """The bits that all its values carry; None when each is to be asked, and False when Python
        has to ask them.
        """
        handled = _handled(cls)
        raw = self._registered_as(cls)
        if raw is not None:
            return raw | handled
        return False if handled else None


def _handled(cls: type) -> int:
    handler = getattr(cls, "__md_dispatch__", None)
    # A mode has such a method too, and is no value that calls could be about.
    return _PYTHON if handler is not None and not getattr(cls, "is_mode", False) else 0


def _raw_by_protocol(value: object) -> int | None:
    carried = getattr(value, "__dispatch_keys__", None)
    if carried is not None and not isinstance(value, type):
        return _as_raw(carried, value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return int(torch._C._dispatch_keys(value).raw_repr())
    device = getattr(value, "__dlpack_device__", None)
    if device is None or isinstance(value, type):
        return None
    pair = device()
    try:
        kind = pair[0].__index__()
    except (TypeError, AttributeError, LookupError):
        from ._nearest import shown

        raise InvalidKeyError(
            f"{type(value).__qualname__}.__dlpack_device__() returned {shown(pair)}: DLPack wants "
            f"(device type, device id), two ints",
            pair,
        ) from None
    key = _DLPACK.get(kind)
    if key is None:
        raise InvalidKeyError(
            f"a {type(value).__qualname__} is on DLPack device type {kind}, for which there is "
            "no dispatch key; "
            f"register its type with mdispatch.register_type",
            kind,
        )
    return key.raw


def _as_raw(keys: object, value: object) -> int:
    if callable(keys):
        keys = keys()
    if isinstance(keys, (str, DispatchKey, DispatchKeySet, tuple, list, set, frozenset)):
        return _key_set(keys, f"{type(value).__qualname__}.__dispatch_keys__ is").raw
    raise _no_keys(keys, f"{type(value).__qualname__}.__dispatch_keys__ is")


def _key_set(keys: Any, what: str) -> DispatchKeySet:
    try:
        return keys if isinstance(keys, DispatchKeySet) else DispatchKeySet(keys)
    except TypeError:
        raise _no_keys(keys, what) from None


def _no_keys(keys: object, what: str) -> InvalidKeyError:
    from ._nearest import shown

    return InvalidKeyError(
        f"{what} {shown(keys)}: give a key, its name, several of them, or a DispatchKeySet", keys
    )


# The types of this interpreter: what a value is does not depend on the registry it is used with.
_types = TypeKeys()

raw_of = _types.raw_of
raw_of_type = _types.raw_of_type
knows_type = _types.knows


def when_types_change(tell: Callable[[], object]) -> None:
    """Calls ``tell`` whenever a type was registered."""
    _types.when_changed = tell


def register_type(
    cls: type, keys: DispatchKey | str | DispatchKeySet | Iterable[DispatchKey | str]
) -> None:
    """Makes instances of ``cls`` and of its subclasses dispatch on ``keys``, in this interpreter.

    ``keys`` is a key, a key's name, several of them, or a DispatchKeySet. Registered again, the
    type gets the new ones. Raises InvalidKeyError for an unknown key or none, InvalidArgumentError
    when ``cls`` is no class.
    """
    if not isinstance(cls, type):
        raise InvalidArgumentError(
            f"register_type needs a class, not an object of {type(cls).__qualname__}"
        )
    key_set = _key_set(keys, f"the keys of {cls.__qualname__} are")
    if not key_set:
        raise InvalidKeyError(
            f"{cls.__qualname__} needs at least one runtime key; {key_set!r} has none", keys
        )
    _types.register(cls, key_set.raw)


def key_set_of(value: object) -> DispatchKeySet:
    """The key set a value carries; the empty set when it carries none and so is no Tensor of any
    schema. InvalidKeyError for a ``__dispatch_keys__`` with what is no key. (c10:
    TensorImpl::key_set)
    """
    return DispatchKeySet.from_raw(_types.raw_of(value) or 0)


def is_tensor(value: object) -> bool:
    """Whether a value carries dispatch keys: what schemas call a Tensor. InvalidKeyError as
    :func:`key_set_of`.
    """
    return _types.raw_of(value) is not None
