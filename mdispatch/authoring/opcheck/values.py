"""Tells of values of any kind whether one was changed, and whether two share memory.

How it finds out depends on what a value offers. A change shows in its memory if that can be read,
else in its ``==`` if its class has one, else in its attributes. If nothing shows, the answer says
so. This is slow, and for checks on demand. Sharing shows in addresses if both values give them, in
the owner of the memory if they lend it, and in identity.

No array library is imported for either. Every custom operator asks about sharing, so ``copy`` and
``pickle``, which only the first question needs, are imported where they are used.
"""

from __future__ import annotations

import sys
import types

from ...dispatch.context.values import is_torch_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

# --- whether a value was changed ------------------------------------------------------------------


_NO_EQUALITY: object = object.__eq__  # compares by identity


class Snapshot:
    """Remembers a value as it was when this was made."""

    __slots__ = ("_look",)

    def __init__(self, look: Callable[[], bool | None]) -> None:
        self._look = look

    def changed(self) -> bool | None:
        """Whether the value was changed since; None where that cannot be told."""
        return self._look()


def snapshot(value: object) -> Snapshot:
    """Remembers ``value`` as it is now, to compare it with what it will be.

    Memory is compared byte for byte: that of tensors of PyTorch, and of values with the buffer
    protocol or ``__array_interface__``. A list, tuple, dict or set is compared by its elements; a
    new element that is equal to the old one is a change, too. Other values are compared with a deep
    copy by ``==``, if their class has one that answers with a bool; else by their attributes; else
    by their pickle.
    """
    return _snapshot(value, {})


def _snapshot(value: Any, seen: dict[int, object]) -> Snapshot:
    if is_immutable(value) or id(value) in seen:
        return Snapshot(lambda: False)  # a value met before is compared where it was met
    seen[id(value)] = value
    for way in (_by_torch, _by_buffer, _by_bytes, _by_elements, _by_equality):
        found = way(value, seen)
        if found is not None:
            return found
    return _by_attributes(value, seen) or _by_pickle(value)


def _first(parts: Iterable[Snapshot]) -> bool | None:
    """Whether any was changed; None if none is known to be, and some cannot be told."""
    answers = [part.changed() for part in parts]
    return True if True in answers else None if None in answers else False


def _by_torch(value: Any, seen: dict[int, object]) -> Snapshot | None:
    """A write raises the version, even if it writes the same value. Some writes do not raise it:
    those through ``data``, or through an array that shares the memory.
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
            return False  # without data there is no write that keeps the version
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
    if not isinstance(interface, dict) or isinstance(value, type) or "O" in interface["typestr"]:
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
    if before[-1] is None:  # pointers to objects: their bytes tell nothing
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
    import copy

    try:
        kept = copy.deepcopy(value)
        if kept is value:
            return Snapshot(lambda: False)
        # An == that records itself, or that compares elements, does not answer the question.
        if (value == kept) is not True:
            return None
    except Exception:
        return None

    def look() -> bool | None:
        same = value == kept
        return not same if isinstance(same, bool) else None

    return Snapshot(look)


def _unless_atomic(value: Any) -> Snapshot | None:
    """For a value that is its own deep copy, like a dtype: by its class nobody changes it."""
    import copy

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
    """Whether a class was made by a class statement. Objects of other classes hold more than they
    show.

    (copyreg._reduce_ex asks nearly so)
    """
    if cls is object:
        return True
    no_class_statement = 1 << 7 | 1 << 8  # DISALLOW_INSTANTIATION, IMMUTABLETYPE
    made_in_c = isinstance(cls.__new__, types.BuiltinFunctionType) and cls.__new__.__self__ is cls
    return not (made_in_c or cls.__flags__ & no_class_statement)


def _held(value: Any, seen: dict[int, object]) -> Snapshot:
    """Compares the attributes, and the values of the attributes."""
    before = attributes_of(value)
    parts = [_snapshot(each, seen) for each in before.values()]

    def look() -> bool | None:
        now = attributes_of(value)
        if now.keys() != before.keys() or any(now[n] is not before[n] for n in before):
            return True
        return _first(parts)

    return Snapshot(look)


def _by_pickle(value: Any) -> Snapshot:
    import pickle

    try:
        before = pickle.dumps(value)
    except Exception:
        return Snapshot(lambda: None)
    return Snapshot(lambda: pickle.dumps(value) != before)


# --- whether two values share memory --------------------------------------------------------------


_ATOMS = (int, float, complex, bool, str, bytes, type(None), type(...), range, slice, type)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


def is_immutable(value: object) -> bool:
    """Whether a value is one of Python's that nobody can change: a number, text, bytes, None, or a
    tuple or frozenset of these. Classes, functions and members of an Enum count, too: what they
    hold is not part of an argument.
    """
    if type(value) in (tuple, frozenset):
        return all(map(is_immutable, value))  # type: ignore[call-overload]
    if type(value) in _ATOMS or isinstance(value, (type, *_CODE)):
        return True
    enum = sys.modules.get("enum")  # a member exists only if enum is imported
    return enum is not None and isinstance(value, enum.Enum)


def attributes_of(value: object) -> dict[str, Any]:
    """The attributes that a value holds: its ``__dict__`` and its slots."""
    found = dict(getattr(value, "__dict__", ()))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            if name.startswith("__") and not name.endswith("__"):
                name = f"_{cls.__name__.lstrip('_')}{name}"
            try:
                found[name] = object.__getattribute__(value, name)
            except AttributeError:
                continue
    return found


def aliases(first: object, second: object) -> bool:
    """Whether a change of one may be a change of the other.

    It may if both are one object, or if their memory overlaps. Overlap shows in the addresses of
    tensors of PyTorch, of ``__array_interface__`` and of ``__cuda_array_interface__``, and in the
    owner that memoryviews name. The same goes for what they hold: elements of lists and dicts, and
    attributes that are memory or lists. A value that nobody can change, such as a number or a text,
    is no alias of anything.
    """
    if is_immutable(first) or is_immutable(second):
        return False
    if first is second:
        return True
    ours, theirs = list(_memory(first)), list(_memory(second))
    return any(_overlap(one, other) for one in ours for other in theirs)


def _memory(value: object) -> Iterator[object]:
    """The value, and the parts of it that others may hold, too.

    Attributes are followed one step: a wrapper's array counts. What the array itself refers to does
    not, such as the graph of an autograd engine.
    """
    stack = [value]
    seen = set()
    while stack:
        each: Any = stack.pop()
        if id(each) in seen or is_immutable(each):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, (list, tuple, set, frozenset)):
            stack += each
        elif isinstance(each, dict):
            stack += each.values()
        elif _span(each) is None:
            for held in attributes_of(each).values():
                if isinstance(held, list) or _span(held) is not None or _owner(held) is not None:
                    yield held


def _overlap(first: object, second: object) -> bool:
    if first is second:
        return not isinstance(first, (tuple, frozenset))  # their elements are compared, too
    one, other = _span(first), _span(second)
    if one is not None and other is not None:
        return one[0] == other[0] and max(one[1], other[1]) < min(one[2], other[2])
    owner = _owner(first)
    return owner is not None and owner is _owner(second)


def _span(value: Any) -> tuple[str, int, int] | None:
    """A kind of device, and the addresses on it from the first byte to behind the last."""
    if is_torch_tensor(value):
        try:
            storage = value.untyped_storage()
            # A tensor without data has no address either, but its storage tells who would own the
            # data.
            if value.device.type == "meta":
                return "meta", storage._cdata, storage._cdata + 1
            start = storage.data_ptr()
        except (RuntimeError, NotImplementedError):
            return None
        return value.device.type, start, start + storage.nbytes()
    device = "cpu"
    interface = getattr(value, "__array_interface__", None)
    if interface is None:
        device = "cuda"
        interface = getattr(value, "__cuda_array_interface__", None)
    # Not for a single number, which has no memory of its own.
    if not isinstance(interface, dict) or isinstance(value, type) or not _lends(value):
        return None
    pointer = interface.get("data")
    if not isinstance(pointer, tuple):
        return None
    low = high = pointer[0]
    shape = interface["shape"]
    size = int(interface["typestr"].lstrip("<>|=")[1:] or 0)
    if 0 in shape:
        return device, low, low
    strides = interface.get("strides")
    if strides is None:
        for length in shape:
            size *= length
    else:
        for length, stride in zip(shape, strides, strict=True):
            reach = (length - 1) * stride
            low, high = (low + reach, high) if reach < 0 else (low, high + reach)
    return device, low, high + size


def _lends(value: Any) -> bool:
    """Whether the value is an array, and not a number that makes one when it is asked."""
    generic = getattr(sys.modules.get("numpy"), "generic", ())
    return not isinstance(value, generic)


def _owner(value: Any) -> object:
    """The owner of the memory that a value lends; None for a value that lends none."""
    owner = None
    for _ in range(8):
        try:
            with memoryview(value) as view:
                owner = value = view.obj
        except (TypeError, ValueError, BufferError):
            return owner
        base = getattr(owner, "base", None)
        if base is None:
            break
        value = base
    return None if isinstance(owner, bytes) else owner
