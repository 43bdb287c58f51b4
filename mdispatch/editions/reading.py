"""Reads a snapshot from an answer of ``mdispatch ls --json``.

A file may hold anything: each value is looked at, and :class:`Damaged` says which one is wrong.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..errors import MdispatchError
from ..errors.words import shown
from ..schema.canonical import schema_of
from .snapshot import (
    Fallback,
    Kernel,
    Operator,
    Other,
    Snapshot,
    newest_of_each,
    newest_of_variants,
)

if TYPE_CHECKING:
    from typing import Any, TypeVar

    from ..schema import FunctionSchema

    T = TypeVar("T")

FORMAT = 2


class Damaged(ValueError):
    """The text is no answer of ``mdispatch ls --json``, or not a whole one."""


def read(text: str | bytes) -> Snapshot:
    """The snapshot that a text holds. The message of Damaged names the fault."""
    try:
        answer = json.loads(text)
    except RecursionError:
        raise Damaged("it is nested too deep") from None
    except ValueError as error:  # also for bytes that are no text
        raise Damaged(f"it is no JSON: {error}") from None
    return snapshot_in(answer)


def snapshot_in(answer: object) -> Snapshot:
    """The snapshot in an answer of ``mdispatch ls --json``. Damaged."""
    if not isinstance(answer, dict) or "operators" not in answer:
        raise Damaged("it is no answer of mdispatch ls --json")
    found = _get(answer, "format", int, "")
    if found != FORMAT:
        raise Damaged(f"its format is {shown(found)}, and this version reads {FORMAT}")
    if not _get(answer, "complete", bool, ""):
        raise Damaged("it has some of the operators only: save an answer without patterns")
    operators = _each(answer, "operators", "", _operator)
    fallbacks = {one.key: one for one in _each(answer, "fallbacks", "", _fallback)}
    others = newest_of_each(_each(answer, "others", "", _other))
    by_name = {one.name: one for one in operators}
    if len(by_name) < len(operators):
        names = [one.name for one in operators]
        twice = next(name for name in names if names.count(name) > 1)
        raise Damaged(f"{shown(twice)} is in 'operators' twice")
    return Snapshot(
        tuple(by_name[name] for name in sorted(by_name)),
        tuple(fallbacks.values()),
        others,
    )


# --- one value after the other --------------------------------------------------------------------

_WORDS = {str: "a text", int: "a whole number", bool: "true or false", list: "a list"}
_WORDS[dict] = "an object"


def _get(of: dict[str, Any], key: str, kind: type[T], path: str) -> T:
    """The value of a key. ``path`` says where the object is, as ``operators[2].``"""
    if key not in of:
        raise Damaged(f"{path}{key} is missing")
    value = of[key]
    if type(value) is not kind:
        raise Damaged(f"{path}{key} is {shown(value)}, and not {_WORDS[kind]}")
    return value


def _perhaps(of: dict[str, Any], key: str, kind: type[T], path: str) -> T | None:
    """The same, where it may be null."""
    return None if of.get(key, "") is None else _get(of, key, kind, path)


def _each(of: dict[str, Any], key: str, path: str, read: Any) -> list[Any]:
    """The values that ``read`` makes of the objects in a list."""
    found = []
    for number, each in enumerate(_get(of, key, list, path)):
        its = f"{path}{key}[{number}]"
        if not isinstance(each, dict):
            raise Damaged(f"{its} is {shown(each)}, and not an object")
        found.append(read(each, f"{its}."))
    return found


def _texts(of: dict[str, Any], key: str, path: str) -> tuple[str, ...]:
    there = _get(of, key, list, path)
    for each in there:
        if not isinstance(each, str):
            raise Damaged(f"{path}{key} has {shown(each)}, and not texts alone")
    return tuple(there)


def _where(of: dict[str, Any], key: str, path: str) -> str:
    location = _perhaps(of, key, dict, path)
    return "" if location is None else _get(location, "where", str, f"{path}{key}.")


def _operator(of: dict[str, Any], path: str) -> Operator:
    name = _get(of, "operator", str, path)
    schema = _schema(_perhaps(of, "schema", str, path), name, path)
    position = _perhaps(of, "position", int, path)
    if (position is None) != (schema is None) or (position or 0) < 0:
        raise Damaged(f"{path}position is {shown(position)}, which is none of this operator")
    return Operator(
        name,
        schema,
        position,
        _perhaps(of, "alias_analysis", str, path) or "",
        _texts(of, "tags", path),
        _perhaps(of, "python_module", str, path) or "",
        newest_of_variants(_each(of, "kernels", path, _kernel)),
        _where(of, "defined", path),
        bool(_get(of, "names", list, path)),
    )


def _schema(text: str | None, name: str, path: str) -> FunctionSchema | None:
    if text is None:
        return None
    try:
        schema = schema_of(text)
    except MdispatchError as error:
        first = str(error).partition("\n")[0]
        raise Damaged(f"{path}schema is {text!r:.80}, and no schema: {first}") from None
    if str(schema.name) != name:
        raise Damaged(f"{path}schema is of {schema.name}, and not of {shown(name)}")
    return schema


def _kernel(of: dict[str, Any], path: str) -> Kernel:
    return Kernel(
        _get(of, "key", str, path),
        _texts(of, "types", path),
        _perhaps(of, "provider", str, path) or "",
        _perhaps(of, "order", int, path) or 0,
        _get(of, "kernel", str, path),
        _get(of, "falls_through", bool, path),
        _where(of, "location", path),
    )


def _fallback(of: dict[str, Any], path: str) -> Fallback:
    return Fallback(
        _get(of, "key", str, path),
        _get(of, "kernel", str, path),
        _get(of, "falls_through", bool, path),
        _where(of, "location", path),
    )


def _other(of: dict[str, Any], path: str) -> Other:
    kind, name, text = (_get(of, key, str, path) for key in ("kind", "name", "text"))
    return Other(kind, name, text, _where(of, "location", path))
