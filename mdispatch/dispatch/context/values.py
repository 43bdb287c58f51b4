"""Finds the dispatch keys that an object carries: by the registration of its type, by an attribute,
by DLPack, or by PyTorch. An object whose type has ``__md_dispatch__`` carries the keys of Python
too (see modes.py).

Types are objects of one interpreter, so a registration here holds for this interpreter. A module
that registers its types does so in every interpreter that imports it; registry/type_facts.py finds
those that do so otherwise. Looking for keys imports nothing.
"""

from __future__ import annotations

import sys
import weakref

from ... import seam
from ...errors import (
    DuplicateRegistrationError,
    InvalidArgumentError,
    InvalidKeyError,
    TypeKeysMismatchError,
)
from ...errors.locations import caller, location_of
from ...forking import new_lock
from ...keys import DispatchKey, DispatchKeySet
from ..own_types import own_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType, TracebackType
    from typing import Any, Self


__all__ = [
    "DEVICES",
    "WRAPPED",
    "NoValue",
    "TypeHandle",
    "TypeKeys",
    "is_tensor",
    "is_torch_tensor",
]
__all__ += ["key_set_of", "register_type", "torch_keys"]

# DLPack's device types (dlpack.h, DLDeviceType), each with the key of the backend whose kernels can
# use its memory.
DEVICES = {
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


# The keys of values whose type has __md_dispatch__.
_PYTHON = DispatchKeySet("Python", "PythonTLSSnapshot").raw


# The keys of PyTorch's tensors that it has wrapped: FakeTensor and other subclasses, and the values
# of its transforms; and of those whose memory is not their value, which PyTorch computes first.
WRAPPED = DispatchKeySet("Python", "FuncTorchBatched", "FuncTorchGradWrapper", "Functionalize").raw
WRAPPED |= DispatchKeySet("Conjugate", "Negative", "ZeroTensor").raw


class NoValue:
    """Base of classes that have ``__md_dispatch__`` and whose objects are no arguments: modes."""

    __slots__ = ()


# Held while a type is registered, or the registration of one ends; look-ups take no lock.
_lock = new_lock()


class TypeHandle:
    """One registration of a type, until ``close()`` or the end of a ``with`` block. A handle to
    which no reference is left changes nothing: the type stays registered.

    ``where`` is its location.
    """

    __slots__ = ("_code", "_module", "_types", "cls", "raw", "where")

    def __init__(self, types: TypeKeys, cls: type, raw: int, frame: FrameType | None) -> None:
        self._types = types
        #: The class, weakly: its registration does not keep it alive.
        self.cls = weakref.ref(cls)
        self.raw = raw
        self.where = location_of(frame)
        # The module whose own top-level code registers, and its code in this run of it.
        is_module = frame is not None and frame.f_code.co_name == "<module>"
        self._module = str(frame.f_globals.get("__name__")) if frame and is_module else ""
        self._code: CodeType | None = frame.f_code if frame and is_module else None

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of its keys."""
        return tuple(key.name for key in DispatchKeySet.from_raw(self.raw))

    def close(self) -> None:
        """Ends it. Idempotent. When the last registration of the type has ended, its values carry
        what they carry without one.
        """
        self._types.end(self)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            "a TypeHandle ends something of this interpreter and cannot be pickled: register the "
            "type where it is needed"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def is_replaced_by(self, later: TypeHandle) -> bool:
        """Whether the other one is that of another run of the same module: an import again, or a
        cell of a notebook that was changed.
        """
        is_again = self._code is not later._code or self.where == later.where
        return bool(self._module) and self._module == later._module and is_again

    def __repr__(self) -> str:
        return f"<mdispatch.TypeHandle {self.cls()!r}: {', '.join(self.keys)}>"


class TypeKeys:
    """The key sets of registered types. Look-ups follow the method resolution order; the nearest
    registration wins.
    """

    def __init__(self) -> None:
        # By class, the oldest first; all of a class have the same keys. Under _lock.
        self._handles: weakref.WeakKeyDictionary[type, tuple[TypeHandle, ...]] = (
            weakref.WeakKeyDictionary()
        )
        self._registered: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
        #: Called after a registration: what calls in C have kept of types is out of date.
        self.when_changed: Callable[[], object] = int
        #: Called before the oldest registration of a class becomes another one, or None. What it
        #: raises refuses the change.
        self.before_change: Callable[[type, TypeHandle | None], object] = lambda cls, oldest: None

    def register(self, cls: type, raw: int, frame: FrameType | None = None) -> TypeHandle:
        """Registers a type, from this frame. DuplicateRegistrationError, with both locations, if it
        is registered with other keys, and TypeKeysMismatchError. The same line registers it once.
        """
        made = TypeHandle(self, cls, raw, frame)
        with _lock:
            there = tuple(
                each for each in self._handles.get(cls, ()) if not each.is_replaced_by(made)
            )
            if there and there[0].raw != raw:
                raise _registered_otherwise(cls, there[0], made)
            # A line that runs often registers once.
            same = next((each for each in there if each.where == made.where), None)
            if same is not None:
                return same
            handles = (*there, made)
            self.before_change(cls, handles[0])
            self._handles[cls] = handles
            self._set(cls, raw)
        return made

    def end(self, handle: TypeHandle) -> None:
        cls = handle.cls()
        with _lock:
            there = self._handles.get(cls, ()) if cls is not None else ()
            if cls is None or handle not in there:
                return
            rest = tuple(each for each in there if each is not handle)
            self.before_change(cls, rest[0] if rest else None)
            if rest:
                self._handles[cls] = rest
            else:
                del self._handles[cls]
                self._set(cls, None)

    def _set(self, cls: type, raw: int | None) -> None:
        if raw is None:
            self._registered.pop(cls, None)
        else:
            self._registered[cls] = raw
        self.when_changed()

    def each(self, tell: Callable[[type, TypeHandle], object]) -> None:
        """Calls ``tell`` with each class and its oldest registration. None changes meanwhile."""
        with _lock:
            for cls, handles in list(self._handles.items()):
                tell(cls, handles[0])

    def knows(self, cls: type) -> bool:
        """Whether the class, or a base of it, is registered."""
        return any(base in self._registered for base in cls.__mro__)

    def raw_of(self, value: object) -> int | None:
        """The bits of the value's key set; None for a value that carries none."""
        cls = type(value)
        handled = _handled(cls)
        raw = self._registered_as(cls)
        if raw is None:
            raw = DispatchKey.CPU.raw if _is_array(cls) else _raw_by_protocol(value)
        return raw | handled if raw is not None else handled or None

    def _registered_as(self, cls: type) -> int | None:
        for base in cls.__mro__:
            raw = self._registered.get(base)
            if raw is not None:
                return raw
        return None

    def are_tensors(self, cls: type) -> bool:
        """Whether all objects of the class are tensors, whatever their keys are."""
        if self._registered_as(cls) is not None or _is_array(cls):
            return True
        if _handled(cls):
            return False
        return _is_torch_class(cls) or _has_arrays_device(cls) or _has_device(cls)

    def how_of_type(self, cls: type) -> tuple[int, int, *tuple[object, ...]]:
        """How calls in C find the keys of the type's values: a number of
        native/bind/call/state.h, and bits; for PyTorch's tensors what native/bind/call/torch.c
        needs, too.
        """
        handled = _handled(cls)
        raw = self._registered_as(cls)
        if raw is None and _is_array(cls):
            raw = DispatchKey.CPU.raw
        if raw is not None:
            return _REGISTERED, raw | handled
        if handled and not (_is_torch_class(cls) or _has_arrays_device(cls)):
            return _HANDLED, handled
        if handled:
            return _BY_PYTHON, 0
        if _is_torch_class(cls):
            torch = torch_keys()
            if not torch.has_numbers:
                return _BY_PYTHON, 0
            return (
                _BY_TORCH,
                _WITH_FUNCTION if torch.has_function(cls) else 0,
                torch.ask,
                torch.known,
                torch.other,
                torch.is_watched,
                torch.library,
                torch.operators,
                torch.writing,
                torch.record,
                torch.are_aliases,
            )
        if _has_arrays_device(cls):
            return _BY_ATTRIBUTE, DispatchKey.CPU.raw
        if _is_proxy(cls):
            return _BY_PYTHON, 0
        if _has_device(cls):
            return _BY_SHARDING if _has_sharding(cls) else _BY_DEVICE, 0
        own = any(_PROTOCOLS & base.__dict__.keys() for base in cls.__mro__)
        return (_BY_ATTRIBUTE if own or cls.__dictoffset__ else _NEVER), 0


# The ways of native/bind/call/state.h to find the keys of a value.
_REGISTERED, _BY_ATTRIBUTE, _BY_TORCH, _BY_PYTHON, _NEVER, _HANDLED, _BY_DEVICE, _BY_SHARDING = (
    range(1, 9)
)

#: Beside the bits of keys: see native/bind/call/state.h.
_WITH_FUNCTION = 1 << 62

_PROTOCOLS = {"__dispatch_keys__", "__dlpack_device__"}


def _array_class() -> type | None:
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    return array if isinstance(array, type) else None


def _is_array(cls: type) -> bool:
    """Whether it is NumPy's array itself. Its memory is the host's, and it can have no attributes;
    no array needs to be asked.
    """
    return cls is _array_class()


def _has_arrays_device(cls: type) -> bool:
    """Whether it is a subclass of NumPy's array that says nothing else of its device."""
    array = _array_class()
    return (
        array is not None
        and issubclass(cls, array)
        and cls.__dlpack_device__ is array.__dlpack_device__  # type: ignore[attr-defined]
    )


def _has_device(cls: type) -> bool:
    """Whether its objects speak DLPack, by their class. A class does not, whatever it has for its
    objects.
    """
    says = (base.__dict__ for base in cls.__mro__ if "__dlpack_device__" in base.__dict__)
    there = next(says, None)
    return (
        there is not None and there["__dlpack_device__"] is not None and not issubclass(cls, type)
    )


def _is_proxy(cls: type) -> bool:
    """Whether its objects stand for values in a graph of torch.fx: each attribute of one is another
    node of the graph.
    """
    return cls.__module__ == "torch.fx.proxy"


def _has_sharding(cls: type) -> bool:
    """Whether it is jax's class of arrays, whose objects say by an attribute on which devices they
    are.
    """
    is_jax = cls.__module__.partition(".")[0] in ("jax", "jaxlib")
    return is_jax and hasattr(cls, "sharding")


#: jax has these backends. DLPack knows those of arrays on one device, and no TPU.
_PLATFORMS = {
    "cpu": DispatchKey.CPU,
    "gpu": DispatchKey.CUDA,
    "cuda": DispatchKey.CUDA,
    "rocm": DispatchKey.HIP,
    "tpu": DispatchKey.XLA,
}


def _platform(value: Any) -> str:
    return str(value.platform()) if _has_sharding(type(value)) else ""


def _registered_otherwise(
    cls: type, there: TypeHandle, made: TypeHandle
) -> DuplicateRegistrationError:
    name = f"{cls.__module__}.{cls.__qualname__}"
    first, second = ", ".join(there.keys), ", ".join(made.keys)
    return DuplicateRegistrationError(
        f"type {name} is registered for {first} already, and now for {second}\n"
        f"  first:  {there.where} ({first})\n  second: {made.where} ({second})\n"
        "Values of one type dispatch alike for all libraries: register it for the same in both, "
        "register a subclass of your own, or close the first registration (register_type returns "
        "it).",
        "type",
        name,
        first,
        there.where,
        made.where,
    )


def _handled(cls: type) -> int:
    handler = getattr(cls, "__md_dispatch__", None)
    return _PYTHON if handler is not None and not issubclass(cls, NoValue) else 0


def _raw_by_protocol(value: object) -> int | None:
    if _is_proxy(type(value)):
        return None
    carried = getattr(value, "__dispatch_keys__", None)
    if carried is not None and not isinstance(value, type):
        return _as_raw(carried, value)
    if is_torch_tensor(value):
        raw: int = torch_keys().raw_of(value)
        return raw
    if _has_arrays_device(type(value)):
        return DispatchKey.CPU.raw
    device = getattr(value, "__dlpack_device__", None)
    if device is None or isinstance(value, type):
        return None
    try:
        pair = device()
    except BufferError:  # for an array on several devices
        key = _PLATFORMS.get(_platform(value))
        if key is None:
            raise
        return key.raw
    try:
        kind = pair[0].__index__()
    except (TypeError, AttributeError, LookupError):
        from ...errors.words import shown

        raise InvalidKeyError(
            f"{type(value).__qualname__}.__dlpack_device__() returned {shown(pair)}: DLPack wants "
            f"(device type, device id), two ints",
            pair,
        ) from None
    key = DEVICES.get(kind)
    if key is None:
        raise InvalidKeyError(
            f"a {type(value).__qualname__} is on DLPack device type {kind}, for which there is "
            "no dispatch key; "
            f"register its type with mdispatch.register_type",
            kind,
        )
    return key.raw


def is_torch_tensor(value: object) -> bool:
    """Whether the value is a tensor of PyTorch, by its real type. There is none unless torch is
    imported already.

    An object may claim another class than it has (``unittest.mock.Mock(spec=torch.Tensor)``).
    isinstance() believes it, and so do PyTorch's functions in C, which then read other memory than
    a tensor's: none of them may see a value before this has said yes.
    """
    return _is_torch_class(type(value))


def _is_torch_class(cls: type) -> bool:
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return isinstance(tensor, type) and tensor in cls.__mro__


def torch_keys() -> Any:
    """For PyTorch's sets of keys; it must be imported."""
    found = _of_torch.get("torch")
    if found is None:
        made = seam.at("keys of a tensor")(sys.modules["torch"])
        # One for the interpreter, although two threads may meet the first tensor at once.
        found = _of_torch.setdefault("torch", made)
    return found


# Made with the first tensor.
_of_torch: dict[str, Any] = {}


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
    from ...errors.words import shown

    return InvalidKeyError(
        f"{what} {shown(keys)}: give a key, its name, several of them, or a DispatchKeySet", keys
    )


# The types of this interpreter, for all registries: a value has the same keys in each of them.
_types = TypeKeys()
_types.before_change = own_types.change
own_types.each = _types.each

raw_of = _types.raw_of
how_of_type = _types.how_of_type
knows_type = _types.knows


def when_types_change(tell: Callable[[], object]) -> None:
    """Calls ``tell`` after each registration of a type."""
    _types.when_changed = tell


def register_type(
    cls: type, keys: DispatchKey | str | DispatchKeySet | Iterable[DispatchKey | str]
) -> TypeHandle:
    """Makes instances of ``cls`` and of its subclasses dispatch on ``keys``, in this interpreter.
    Returns a handle, whose ``close`` ends that.

    ``keys`` is a key, a key's name, several of them, or a DispatchKeySet. A type has one set of
    keys, for all libraries: it may be registered any number of times with the same one, and with no
    other. Only the top-level code of a module replaces its own registration when it runs again (a
    module imported again, a cell of a notebook run again).

    A registry in which this interpreter has opened a library, or opens one later, has the keys of
    its types, too. Where another living member of it has a type of that name (``module.qualname``)
    with other keys, and was first, that is told like a definition that differs: by an error, which
    an import for a pool's worker keeps, and by :func:`warm_up`. A type that its module does not
    have under its name is not compared: one that a function makes, or a notebook.

    Raises DuplicateRegistrationError (registered with other keys, with both locations),
    TypeKeysMismatchError (by another member, with both locations), InvalidKeyError for an unknown
    key and for no key at all, InvalidArgumentError if ``cls`` is not a class. Nothing is changed
    then.
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
    try:
        return _types.register(cls, key_set.raw, caller())
    except TypeKeysMismatchError as error:
        own_types.refused(error)
        raise


def key_set_of(value: object) -> DispatchKeySet:
    """The key set that a value carries; the empty set if it carries none, and so is no Tensor in
    any schema. InvalidKeyError if its ``__dispatch_keys__`` has something that is not a key. (c10:
    TensorImpl::key_set)
    """
    return DispatchKeySet.from_raw(_types.raw_of(value) or 0)


def is_tensor(value: object) -> bool:
    """Whether a value carries dispatch keys; schemas call such a value a Tensor. It is not asked
    for them if its type tells; else InvalidKeyError like :func:`key_set_of`.
    """
    return _types.are_tensors(type(value)) or _types.raw_of(value) is not None
