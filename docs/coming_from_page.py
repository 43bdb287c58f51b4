"""Writes the tables of docs/coming-from-pytorch.md: ``python docs/coming_from_page.py``.

Their rows are in tests/data/coming_from_pytorch.toml.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["PAGE", "ROWS", "TABLES", "main", "page"]

PAGE = Path(__file__).parent / "coming-from-pytorch.md"
ROWS = Path(__file__).parents[1] / "tests" / "data" / "coming_from_pytorch.toml"

#: By heading, the rows below it.
TABLES: dict[str, list[dict[str, Any]]] = tomllib.loads(ROWS.read_text())

_TABLE = re.compile(
    r"^## ([^\n]+)\n\n(\| PyTorch \| here \| remarks \|\n\|---\|---\|---\|\n)(?:\|.*\n)*",
    re.MULTILINE,
)


def page(text: str) -> str:
    """The page with the tables as they are in the file.

    Raises KeyError for a table that is not in the file, ValueError if one of the file has no place.
    """
    places = [found[1] for found in _TABLE.finditer(text)]
    if missing := [heading for heading in TABLES if heading not in places]:
        raise ValueError(f"write these headings and heads of tables into the page: {missing}")

    def table(found: re.Match[str]) -> str:
        rows = []
        for row in TABLES[found[1]]:
            cells = [row["there"], row["here"], row.get("remark", "")]
            rows.append("".join(f"| {each} " if each else "| " for each in cells) + "|\n")
        return f"## {found[1]}\n\n{found[2]}{''.join(rows)}"

    return _TABLE.sub(table, text)


def main() -> None:
    PAGE.write_text(page(PAGE.read_text()))


if __name__ == "__main__":
    main()
