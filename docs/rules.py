"""Writes the rules of ``mdispatch diff`` into docs/diff.md: ``python docs/rules.py``.

They are RULES in mdispatch/schema/compatible.py and in mdispatch/editions/comparing.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mdispatch.editions.comparing import RULES
from mdispatch.schema.compatible import RULES as OF_SCHEMAS
from mdispatch.schema.compatible import Rule

__all__ = ["PAGE", "main", "page"]

PAGE = Path(__file__).parent / "diff.md"
BEGIN, END = "<!-- from here on: docs/rules.py -->\n", "<!-- to here: docs/rules.py -->\n"


def _table(title: str, rules: Mapping[str, Rule]) -> Iterator[str]:
    yield from (f"### {title}", "", "| rule | change | verdict | reason |", "|---|---|---|---|")
    # The compatible ones first: they are the list that is closed.
    for name, rule in sorted(rules.items(), key=lambda each: each[1].verdict == "breaking"):
        yield f"| `{name}` | {rule.change} | {rule.verdict} | {rule.why} |"
    yield ""


def _lines() -> Iterator[str]:
    yield from _table("Definitions", OF_SCHEMAS)
    yield from _table("All else", RULES)


def page(text: str) -> str:
    """The page with the rules as they are."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return "".join([before, BEGIN, "\n", *(f"{line}\n" for line in _lines()), END, after])


def main() -> None:
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
