"""Whether two values of any kind share memory.

Told by addresses where a value gives them, by the owner of the memory where it lends that, and by
identity. No library is imported for it.
"""

from __future__ import annotations

import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["aliases", "attributes_of", "is_immutable", "is_torch_tensor"]

_ATOMS = (int, float, complex, bool, str, bytes, type(None), type(...), range, slice, type)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType)


def is_immutable(value: object) -> bool:
    """Whether a value is one of Python's that nobody can change: a number, text, bytes, None, or a
    tuple or frozenset of such. What a class, a function or a member of an Enum holds is nobody's
    argument.
    """
    if type(value) in (tuple, frozenset):
        return all(map(is_immutable, value))  # type: ignore[call-overload]
    if type(value) in _ATOMS or isinstance(value, (type, *_CODE)):
        return True
    enum = sys.modules.get("enum")  # who has a member has imported it
    return enum is not None and isinstance(value, enum.Enum)


def is_torch_tensor(value: object) -> bool:
    """Without importing torch: whoever has a tensor has done so."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Tensor", ()))


def attributes_of(value: object) -> dict[str, Any]:
    """What a value's class lets it hold: its ``__dict__`` and its slots."""
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

    So it is when both are one object, when their memory overlaps (by the addresses of tensors of
    PyTorch, of ``__array_interface__`` and of ``__cuda_array_interface__``, by the owner that
    memoryviews name), and when this is so of what they hold: elements of lists and dicts, or
    attributes that are memory or lists. What nobody can change, as a number or a text, is no alias
    of anything.
    """
    if is_immutable(first) or is_immutable(second):
        return False
    if first is second:
        return True
    ours, theirs = list(_memory(first)), list(_memory(second))
    return any(_overlap(one, other) for one in ours for other in theirs)


def _memory(value: object) -> Iterator[object]:
    """The value, and what is in it that others may hold too.

    Attributes are followed one step: a wrapper's array counts, what its array knows does not, as
    the graph of an autograd engine.
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
        return not isinstance(first, (tuple, frozenset))  # whose elements are asked, too
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
            # What has no data has no address either, but it is known who would own them.
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
    # Not of a single number, which has no memory of its own to tell of.
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
    """Whether there is an array, and not a number that makes one when it is asked."""
    numpy = sys.modules.get("numpy")
    return numpy is None or not isinstance(value, numpy.generic)


def _owner(value: Any) -> object:
    """Who owns the memory that a value lends; None for a value that lends none."""
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
