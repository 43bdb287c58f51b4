"""Writes the tables of docs/beside-pytorch.md: ``python docs/twins_page.py``, with PyTorch.

The operators, the calls and the reasons are in tests/support/twins.py and twin_operators.py.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import twins
from twin_operators import OPERATORS

sys.path.pop(0)

__all__ = ["PAGE", "main", "page"]

PAGE = Path(__file__).parent / "beside-pytorch.md"
BEGIN, END = "<!-- from here on: docs/twins_page.py -->\n", "<!-- to here: docs/twins_page.py -->\n"
HOW = {"custom": "`custom_op`"}


def _lines(rows: list[str]) -> Iterator[str]:
    yield f"{len(OPERATORS)} operators in {len(twins.SITUATIONS)} kinds of calls."
    yield ""
    yield "| call with | the same | refused by both | different, and why (see below) |"
    yield "|---|---|---|---|"
    yield from rows
    yield ""
    yield "| why | |"
    yield "|---|---|"
    for title, _, why in twins.REASONS:
        yield f"| *{title}* | {why} |"
    yield ""
    yield "| operator | registered | fake kernel | formula |"
    yield "|---|---|---|---|"
    for twin in OPERATORS.values():
        fake, formula = ("yes" if each else "" for each in (twin.fake, twin.backward))
        how = HOW.get(twin.how, f"a kernel at {twin.how}")
        yield f"| `{twin.schema}` | {how} | {fake} | {formula} |"


def page(text: str, pairs: dict[str, Any] | None) -> str:
    """The page with the tables as they are. Without operators the calls' rows stay."""
    before, rest = text.split(BEGIN)
    middle, after = rest.split(END)
    if pairs is None:
        rows = middle.partition("|---|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    else:
        rows = [twins.line(pairs, each) for each in twins.SITUATIONS.values()]
    return "".join([before, BEGIN, "\n", *(f"{each}\n" for each in _lines(rows)), "\n", END, after])


def main() -> None:
    import torch

    import mdispatch as md

    warnings.simplefilter("ignore")
    torch._C._debug_only_display_vmap_fallback_warnings(False)
    with md.Registry.create() as registry:
        PAGE.write_text(page(PAGE.read_text(), twins.pairs_of(registry)))


if __name__ == "__main__":
    main()
