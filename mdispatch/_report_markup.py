"""The parts that the page of ``mdispatch report`` is made of.

Everything that comes from a registry passes through ``text_of``: names and places may hold
anything.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from ._columns import plain
from ._explain_subject import by
from ._kernels import FALLTHROUGH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ._registry import Registration

__all__ = ["anchor", "code", "kernel", "pairs", "place", "rule_anchor", "table", "text_of"]


def text_of(value: object) -> str:
    """Text without markup, without what is not printed, and all in one direction."""
    return escape(plain(str(value)))


def code(value: object) -> str:
    """The same, as it stands in code."""
    return f"<code>{text_of(value)}</code>"


def anchor(name: str, what: str = "op") -> str:
    """What the place of an operator, or of a namespace, is called: as an id, and behind a #."""
    return f"{what}-{quote(name, safe=':', errors='backslashreplace')}"


def rule_anchor(reason: str) -> str:
    """What the explanation of a rule is called."""
    return "rule-" + reason.replace(" ", "-")


def table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0
) -> str:
    """The first cell of each row is its heading; the last ``numbers`` columns are figures."""
    last = len(headings) - numbers

    def figure(column: int) -> str:
        return f' class="number" data-of="{headings[column]}"' if column >= last else ""

    head = "".join(
        f'<th scope="col"{figure(column)}>{text}</th>' for column, text in enumerate(headings)
    )
    body = "".join(
        f'<tr><th scope="row">{first}</th>'
        + "".join(f"<td{figure(column)}>{cell}</td>" for column, cell in enumerate(others, 1))
        + "</tr>\n"
        for first, *others in rows
    )
    return (
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead>\n"
        f"<tbody>{body}</tbody></table>\n"
    )


def pairs(given: Iterable[tuple[str, str]]) -> str:
    """Names and what belongs to each."""
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in given) + "</dl>\n"


def place(fact: Registration | None) -> str:
    """Where something was registered, and by whom."""
    return "-" if fact is None else f"{code(fact.where)}<small>{text_of(by(fact))}</small>"


def kernel(label: str) -> str:
    """A kernel's label; a fallthrough is none."""
    return "falls through" if label == FALLTHROUGH else code(label)
