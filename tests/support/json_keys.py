"""Compares the JSON that a command has printed with the classes of mdispatch/cli/answers.py."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from types import UnionType
from typing import Any

from mdispatch.cli.answers import ANSWERS

__all__ = ["strangers"]


def strangers(command: str, answer: Any) -> list[str]:
    """The keys that an answer has and its class lacks, or the reverse. For a command with several
    kinds of answer, the nearest class counts.
    """
    return min((list(_compared(answer, each, command)) for each in ANSWERS[command]), key=len)


def _compared(value: Any, kind: Any, where: str) -> Iterator[str]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if typing.is_typeddict(kind):
        types = typing.get_type_hints(kind)
        optional = getattr(kind, "__optional_keys__", frozenset())
        if not isinstance(value, dict):
            yield f"{where}: {value!r} is no object"
            return
        yield from (f"{where}: {key} is missing" for key in {*types} - {*value} - optional)
        yield from (f"{where}: {key} is not documented" for key in {*value} - {*types})
        for key in types.keys() & value.keys():
            yield from _compared(value[key], types[key], f"{where}.{key}")
    elif origin is list:
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
            return
        for number, each in enumerate(value):
            yield from _compared(each, args[0], f"{where}[{number}]")
    elif origin is dict:
        for key, each in value.items():
            yield from _compared(each, args[1], f"{where}.{key}")
    elif origin in (typing.Union, UnionType):
        yield from min((list(_compared(value, each, where)) for each in args), key=len)
    elif kind is float:
        if type(value) not in (int, float):
            yield f"{where}: {value!r} is no number"
    elif kind is not object and type(value) is not kind:
        yield f"{where}: {value!r} is no {kind.__name__}"
