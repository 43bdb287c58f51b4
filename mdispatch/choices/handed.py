"""The text of a value that one member hands to the others: it says more than the canonical one
(values.py), since who reads it makes the value from it, with its tuples, floats and bools.

It is JSON, with an object with one key that begins with "#" for each type that JSON lacks.
"""

from __future__ import annotations

import json

from ..errors import InvalidArgumentError
from .values import Damaged, in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["read", "write"]

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_AS_IN_JSON = frozenset((str, int, bool, type(None)))
_DEEPEST = 64


def write(value: object) -> str:
    """The text of a value. InvalidArgumentError, with the path of the part, for any but None,
    bools, numbers, texts, bytes, lists, tuples, dicts and sets.
    """
    return _dumps(_written(value, []))


def _written(value: Any, path: list[object]) -> Any:
    kind = type(value)
    if kind in _AS_IN_JSON:
        return value
    if kind is float:
        return value if value - value == 0 else {"#float": repr(value)}
    if kind is bytes:
        return {"#bytes": value.hex()}
    if kind in _MADE_OF and len(path) < _DEEPEST:
        if kind is not dict:
            items = [_written(each, [*path, at]) for at, each in enumerate(value)]
            return items if kind is list else {_MADE_OF[kind]: items}
        if all(type(key) is str and key[:1] != "#" for key in value):
            return {key: _written(each, [*path, key]) for key, each in value.items()}
        pairs = [(key, [*path, key], each) for key, each in value.items()]
        return {"#dict": [[_written(key, its), _written(each, its)] for key, its, each in pairs]}
    raise InvalidArgumentError(
        f"follow=: {in_words(path) or 'the value'} is a {kind.__qualname__}, and members take a "
        "value of None, numbers, texts, bytes, lists, tuples, dicts and sets only\n"
        "Make it of these, and each member makes the rest from them."
    )


_MADE_OF: dict[type, str] = {
    list: "",
    tuple: "#tuple",
    set: "#set",
    frozenset: "#frozenset",
    dict: "",
}


def read(text: str) -> Any:
    """The value. Damaged for a text that :func:`write` has not written."""
    try:
        return _read(json.loads(text), 0)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Damaged from None


def _read(node: Any, depth: int) -> Any:
    if depth > 2 * _DEEPEST:
        raise Damaged
    if isinstance(node, list):
        return [_read(each, depth + 1) for each in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        ((key, its),) = node.items()
        if key[:1] == "#":
            return _READERS[key](_read(its, depth + 1))
    return {key: _read(each, depth + 1) for key, each in node.items()}


_READERS: dict[str, Callable[[Any], Any]] = {
    "#float": float,
    "#bytes": bytes.fromhex,
    "#tuple": tuple,
    "#set": set,
    "#frozenset": frozenset,
    "#dict": dict,
}
