"""Writes the keys of the commands' JSON into docs/command-line.md: ``python docs/keys.py``.

They are the classes of mdispatch/cli/answers.py, their fields, and the comments above these.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

from mdispatch.cli import answers

__all__ = ["Field", "fields_of", "main", "page", "used_by"]

PAGE = Path(__file__).parent / "command-line.md"
BEGIN, END = "<!-- from here on: docs/keys.py -->\n", "<!-- to here: docs/keys.py -->\n"

Field = tuple[str, Any, str]

_WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}
_WORDS[object] = "any JSON"


def _comments() -> dict[str, dict[str, str]]:
    """By class and field, the comment above the field; inherited fields come first."""
    source = Path(answers.__file__).read_text()
    lines = source.splitlines()
    found: dict[str, dict[str, str]] = {}
    for statement in ast.parse(source).body:
        name = getattr(statement, "name", "")
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            name = statement.targets[0].id
        for base in getattr(statement, "bases", ()):
            found.setdefault(name, {}).update(found.get(ast.unparse(base), {}))
        words: list[str] = []
        for line in lines[statement.lineno : statement.end_lineno]:
            if comment := re.match(r"\s+#: (.*)", line):
                words.append(comment[1])
            elif field := re.match(r'\s+"?(\w+)"?: ', line):
                found.setdefault(name, {})[field[1]] = " ".join(words)
                words = []
    return found


_COMMENTS = _comments()


def fields_of(answer: type) -> list[Field]:
    """The name, the type and the comment of each key, in the order of the JSON."""
    types = typing.get_type_hints(answer)
    return [(name, types[name], _COMMENTS[answer.__name__][name]) for name in types]


def _inner(kind: Any) -> Iterator[type]:
    """The classes of JSON objects that a type is made of."""
    if typing.is_typeddict(kind):
        yield kind
    for part in typing.get_args(kind):
        yield from _inner(part)


def used_by(answer: type) -> list[type]:
    """The classes of the objects in an answer, each after one that holds it."""
    found: dict[type, None] = {}
    for _, kind, _ in fields_of(answer):
        for inner in _inner(kind):
            found |= dict.fromkeys([inner, *used_by(inner)])
    return list(found)


def _title(answer: type) -> str:
    """Its name in words, and in the words of this page."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", answer.__name__).lower()


def _words(kind: Any) -> str:
    if typing.is_typeddict(kind):
        title = _title(kind)
        return f"[{title}](#json-{title.replace(' ', '-')})"
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"list of {_words(args[0])}"
    if origin is dict:
        return "object of texts"
    if origin in (typing.Union, UnionType):
        return " or ".join(map(_words, args))
    return _WORDS[kind]


def _table(answer: type) -> Iterator[str]:
    yield inspect.cleandoc(answer.__doc__ or "")
    yield ""
    yield "| key | value | |"
    yield "|---|---|---|"
    for name, kind, comment in fields_of(answer):
        yield f"| `{name}` | {_words(kind)} | {comment} |"
    yield ""


def _lines() -> Iterator[str]:
    for command, of_command in answers.ANSWERS.items():
        yield f"### JSON of {command}"
        yield ""
        for answer in of_command:
            yield from _table(answer)
    inner = [each for many in answers.ANSWERS.values() for one in many for each in used_by(one)]
    for answer in dict.fromkeys(inner):
        yield f"### JSON: {_title(answer)}"
        yield ""
        yield from _table(answer)


def page(text: str) -> str:
    """The page with the keys as they are."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return "".join([before, BEGIN, "\n", *(f"{line}\n" for line in _lines()), END, after])


def main() -> None:
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
