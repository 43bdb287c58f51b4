"""The classes of this interpreter that schemas name: ``shop.Tokenizer`` is a type like ``str``.

across/classes.py registers some of them, with their methods. An operator that is made from a
function brings in those of its annotations. One name stands for one class, the newest; a class that
is registered has one name. A class with a codec is a constant: its objects travel by value
(across/by_value.py). Some classes of Python itself have names without a dot, and are always known.

Locking: none. Each change is one step of a dict, and what is found here is looked at once.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    #: What makes plain values of an object, and an object of these.
    Codec: TypeAlias = tuple[Callable[[Any], Any], Callable[[Any], Any]]

#: The classes that are always known, by their names, each with its module.
STANDARD = {
    **dict.fromkeys(("bytes", "bytearray", "memoryview", "set", "frozenset"), "builtins"),
    **dict.fromkeys(("tuple", "range", "slice", "type"), "builtins"),
    **dict.fromkeys(
        ("Sequence", "MutableSequence", "Mapping", "MutableMapping"), "collections.abc"
    ),
    **dict.fromkeys(("Set", "MutableSet", "Collection", "Container"), "collections.abc"),
    **dict.fromkeys(("Iterable", "Iterator", "Reversible", "Sized"), "collections.abc"),
    **dict.fromkeys(("Hashable", "Callable", "Awaitable", "Coroutine"), "collections.abc"),
    **dict.fromkeys(("AsyncIterable", "AsyncIterator"), "collections.abc"),
}

_by_name: dict[str, tuple[type, ...]] = {}
#: The classes around methods that name them: where each will be, once for each operator that
#: expects it.
_expected: dict[str, tuple[tuple[str, str], ...]] = {}
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
    if found:
        return found[-1]
    module = STANDARD.get(name)
    if module is None:
        expected = _expected.get(name)
        return _come(*expected[-1]) if expected else None
    cls: type = getattr(__import__(module, fromlist=[name]), name)
    _by_name[name] = (cls,)
    return cls


def take_class(name: str, cls: type) -> Callable[[], None]:
    """From now on schemas mean this class by a name that no class is registered under, until the
    function is called that this returns. The class gets no methods and no handles by that.
    """
    _by_name[name] = (*_by_name.get(name, ()), cls)
    return lambda: drop_class(name, cls)


def expect_class(name: str, module: str, path: str) -> Callable[[], None]:
    """Schemas mean the class that this module will have at this path (``Outer.Inner``), unless
    another one takes the name, until the function is called that this returns.
    """
    place = module, path
    _expected[name] = (*_expected.get(name, ()), place)

    def end() -> None:
        left = list(_expected.get(name, ()))
        if place in left:
            left.remove(place)
        if left:
            _expected[name] = tuple(left)
        else:
            _expected.pop(name, None)

    return end


def _come(module: str, path: str) -> type | None:
    found: object = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) else None


def known_names() -> list[str]:
    """The names of all classes that are not standard ones."""
    return [name for name in [*_by_name] if name not in STANDARD]


def is_registered(name: str) -> bool:
    """Whether the class that a schema means here was registered with its methods."""
    cls = class_of(name)
    return cls is not None and _names.get(cls) == name


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
