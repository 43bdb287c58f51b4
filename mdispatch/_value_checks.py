"""Whether a value of any kind was changed.

What is asked depends on what the value offers: its memory where that can be read, its ``==`` where
its class has one, its attributes otherwise. No library is imported for it. Where nothing can be
told, the answer says so. It is slow, and for checks on demand.
"""

from __future__ import annotations

import copy
import pickle
import sys
from types import BuiltinFunctionType

from ._aliases import aliases, attributes_of, is_immutable, is_torch_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["Snapshot", "aliases", "is_immutable", "snapshot"]

_NO_EQUALITY: object = object.__eq__  # compares by identity


class Snapshot:
    """What a value was when this was made."""

    __slots__ = ("_look",)

    def __init__(self, look: Callable[[], bool | None]) -> None:
        self._look = look

    def changed(self) -> bool | None:
        """Whether the value was changed since; None where that cannot be told."""
        return self._look()


def snapshot(value: object) -> Snapshot:
    """What ``value`` is now, to be compared with what it will be.

    Memory is compared byte for byte: of tensors of PyTorch, and of what has the buffer protocol or
    ``__array_interface__``. A list, tuple, dict or set is compared by its elements, a new element
    that is equal to the old one being a change too. Of other values ``==`` with a deep copy is
    asked, where their class has one that answers with a bool, else their attributes, else their
    pickle.
    """
    return _snapshot(value, {})


def _snapshot(value: Any, seen: dict[int, object]) -> Snapshot:
    if is_immutable(value) or id(value) in seen:
        return Snapshot(lambda: False)  # what was seen is compared where it was seen
    seen[id(value)] = value
    for way in (_by_torch, _by_buffer, _by_bytes, _by_elements, _by_equality):
        found = way(value, seen)
        if found is not None:
            return found
    return _by_attributes(value, seen) or _by_pickle(value)


def _first(parts: Iterable[Snapshot]) -> bool | None:
    """Whether any was changed; None where none is known to be, and some are not known."""
    answers = [part.changed() for part in parts]
    return True if True in answers else None if None in answers else False


def _by_torch(value: Any, seen: dict[int, object]) -> Snapshot | None:
    """A write raises the version, also one that writes what was there. Some writes do not raise it:
    those through ``data`` or an array that shares the memory.
    """
    if not is_torch_tensor(value):
        return None
    torch = sys.modules["torch"]

    def facts() -> object:
        version = None if value.is_inference() else value._version
        strides = value.stride() if value.layout == torch.strided else None
        return version, value.shape, strides, value.dtype, value.device

    before, kept = facts(), value.detach().clone()

    def look() -> bool | None:
        if facts() != before:
            return True
        if value.is_meta and not value.is_inference():
            return False  # there is no data, which could be written to without a new version
        try:
            now = value.detach()
            same = (now == kept) | ((now != now) & (kept != kept))  # a NaN is as it was
            return not bool(same.all())
        except (RuntimeError, TypeError, NotImplementedError):
            return None

    return Snapshot(look)


def _by_buffer(value: Any, seen: dict[int, object]) -> Snapshot | None:
    def content() -> object:
        # Closed at once: while a view is open, a bytearray cannot grow.
        with memoryview(value) as view:
            return view.format, view.shape, None if "O" in view.format else view.tobytes()

    return _by_content(value, content)


def _by_bytes(value: Any, seen: dict[int, object]) -> Snapshot | None:
    """Arrays that do not lend their memory: of dates, or on a device."""
    interface = getattr(value, "__array_interface__", None)
    if interface is None or isinstance(value, type) or "O" in interface["typestr"]:
        return None

    def content() -> object:
        now = value.__array_interface__
        return now["typestr"], now["shape"], value.tobytes()

    return _by_content(value, content)


def _by_content(value: Any, content: Callable[[], Any]) -> Snapshot | None:
    try:
        before = content()
    except (TypeError, ValueError, BufferError, AttributeError):
        return None
    if before[-1] is None:  # pointers to objects, of which the bytes tell nothing
        return None
    return Snapshot(lambda: bool(content() != before))


def _by_elements(value: Any, seen: dict[int, object]) -> Snapshot | None:
    if not isinstance(value, (list, tuple, dict, set, frozenset)):
        return None

    def elements() -> list[Any]:
        if isinstance(value, dict):
            return [each for item in value.items() for each in item]
        return list(value)

    before = elements()
    parts = [*(_snapshot(each, seen) for each in before), _held(value, seen)]

    def look() -> bool | None:
        now = elements()
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            return True
        return _first(parts)

    return Snapshot(look)


def _by_equality(value: Any, seen: dict[int, object]) -> Snapshot | None:
    if type(value).__eq__ is _NO_EQUALITY:
        return None if hasattr(value, "__dict__") else _unless_atomic(value)
    try:
        kept = copy.deepcopy(value)
        if kept is value:
            return Snapshot(lambda: False)
        # An == that records itself, or compares elements, is none that could be asked.
        if (value == kept) is not True:
            return None
    except Exception:
        return None

    def look() -> bool | None:
        same = value == kept
        return not same if isinstance(same, bool) else None

    return Snapshot(look)


def _unless_atomic(value: Any) -> Snapshot | None:
    """For what is its own deep copy, as a dtype is: its class says that nobody changes it."""
    try:
        return Snapshot(lambda: False) if copy.deepcopy(value) is value else None
    except Exception:
        return None


def _by_attributes(value: Any, seen: dict[int, object]) -> Snapshot | None:
    if type(value) is object or not all(map(_is_python, type(value).__mro__)):
        return None
    try:
        return _held(value, seen)
    except RecursionError:
        return None


def _is_python(cls: type) -> bool:
    """Whether a class was made by a class statement; others hold more than they show.

    (copyreg._reduce_ex asks nearly so)
    """
    if cls is object:
        return True
    no_class_statement = 1 << 7 | 1 << 8  # DISALLOW_INSTANTIATION, IMMUTABLETYPE
    made_in_c = isinstance(cls.__new__, BuiltinFunctionType) and cls.__new__.__self__ is cls
    return not (made_in_c or cls.__flags__ & no_class_statement)


def _held(value: Any, seen: dict[int, object]) -> Snapshot:
    """Its attributes, and what they are."""
    before = attributes_of(value)
    parts = [_snapshot(each, seen) for each in before.values()]

    def look() -> bool | None:
        now = attributes_of(value)
        if now.keys() != before.keys() or any(now[n] is not before[n] for n in before):
            return True
        return _first(parts)

    return Snapshot(look)


def _by_pickle(value: Any) -> Snapshot:
    try:
        before = pickle.dumps(value)
    except Exception:
        return Snapshot(lambda: None)
    return Snapshot(lambda: pickle.dumps(value) != before)
