"""The classes of this interpreter that schemas name: ``shop.Tokenizer`` is a type like ``str``.

across/classes.py registers them. One name stands for one class, the newest; a class has one name.
A class with a codec is a constant: its objects travel by value (across/by_value.py).

Locking: none. Each change is one step of a dict, and what is found here is looked at once.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    #: What makes plain values of an object, and an object of these.
    Codec: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]

_by_name: dict[str, tuple[type, ...]] = {}
_names: dict[type, str] = {}
_codecs: dict[type, Codec] = {}


def add_class(name: str, cls: type, codec: Codec | None = None) -> None:
    """From now on schemas mean this class."""
    _by_name[name] = (*_by_name.get(name, ()), cls)
    _names[cls] = name
    if codec is None:
        _codecs.pop(cls, None)
    else:
        _codecs[cls] = codec


def drop_class(name: str, cls: type) -> None:
    """Ends the newest ``add_class`` of both. The class before it returns."""
    left = list(_by_name.get(name, ()))
    for at in range(len(left) - 1, -1, -1):
        if left[at] is cls:
            del left[at]
            break
    if left:
        _by_name[name] = tuple(left)
    else:
        _by_name.pop(name, None)
    if cls not in left:
        _names.pop(cls, None)
        _codecs.pop(cls, None)


def class_of(name: str) -> type | None:
    """The class that a schema means here; None where this interpreter has none."""
    found = _by_name.get(name)
    return found[-1] if found else None


def codec_of(name: str) -> Codec | None:
    """The codec of the class that a schema means here; None for one that travels by handles."""
    cls = class_of(name)
    return None if cls is None else _codecs.get(cls)


def is_constant(obj: object) -> bool:
    """Whether its class travels by value, or the nearest registered one that it is derived from."""
    return codec_of(name_of(type(obj))) is not None


def name_of(cls: type) -> str:
    """The name of a class, or of the nearest one that it is derived from; "" without one."""
    if _names:
        for each in cls.__mro__:
            if each in _names:
                return _names[each]
    return ""
