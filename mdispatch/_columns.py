"""Text in columns, as wide as a terminal is; elsewhere a line stays a line, however long.

Lines end where their last word ends, and no word is cut off: what does not fit is broken, or left
to the terminal.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    Row = tuple[Text, ...]

__all__ = ["PAGE", "fit", "number_of", "place_text", "plain", "say", "say_columns", "say_figures"]
__all__ += ["say_pairs"]

_GAP = 2
_LEAST = 20  # A column is not made narrower than this.
PAGE = 100  # What reads well without a screen to fit.
_ENDLESS = 1_000_000


def fit(console: Console, width: int = _ENDLESS) -> None:
    """Makes a console as wide as it takes, or as a page, where nobody's screen is the limit."""
    if not console.is_terminal:
        console.width = width


def plain(text: str) -> str:
    """Without what would steer a terminal: a registration's texts may hold anything."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def number_of(number: int, what: str) -> str:
    """So many of something, in words."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def place_text(where: str) -> str:
    """A place as it is found from the current directory."""
    try:
        here = os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # it was removed
        return plain(where)
    return plain(where if here == os.sep else where.removeprefix(here))


def say(console: Console, text: Text | str = "", indent: int = 0) -> None:
    """One paragraph; an empty one is an empty line."""
    text = Text(text) if isinstance(text, str) else text
    for line in text.wrap(console, max(_LEAST, console.width - indent)):
        line.rstrip()
        _print(console, Text(" " * indent).append_text(line))


def say_pairs(console: Console, pairs: Sequence[tuple[str, str]], indent: int = 0) -> None:
    """A line for each pair, the second parts under each other. Where a word of these is too long,
    each begins a line of its own.
    """
    width = indent + max((len(name) for name, _ in pairs), default=0) + _GAP
    longest = max((len(word) for _, value in pairs for word in value.split()), default=0)
    for name, value in pairs:
        if width + longest > console.width:
            say(console, name, indent)
            say(console, value, indent + 2)
        else:
            row = Text(" " * indent + name), Text(value)
            _print_row(console, row, [width, console.width - width + _GAP])


def say_columns(console: Console, headings: Sequence[str], rows: Sequence[Row]) -> None:
    """A table with a line under its headings. Where it is too wide, the last column goes under the
    one before it, once for rows that have the same in both; where that is too wide still, every
    column goes under the first.
    """
    head: Row = tuple(map(Text, headings))
    if sum(_widths([head, *rows])) > console.width + _GAP:
        head, *rows = _stacked([head, *rows])
    widths = _widths([head, *rows])
    left = console.width - sum(widths[:-1])
    if left < min(_LEAST, widths[-1] - _GAP):
        for first, *others in rows:
            say(console, first)
            for cell in others:
                say(console, cell, indent=2)
        return
    widths[-1] = min(widths[-1], left + _GAP)
    _print_row(console, head, widths)
    utf = console.encoding.startswith("utf")
    _print(console, Text(("─" if utf else "-") * (sum(widths) - _GAP)))
    for row in rows:
        _print_row(console, row, widths)


def _stacked(rows: Sequence[Row]) -> list[Row]:
    stacked: list[Row] = []
    before: Row = ()
    for row in rows:
        if row[-2:] == before[-2:]:
            stacked.append(row[:-1])
        else:
            below = Text("  ").append_text(row[-1])
            stacked.append((*row[:-2], Text("\n").join([row[-2], below])))
        before = row
    return stacked


def _widths(rows: Sequence[Row]) -> list[int]:
    """What each column takes, with the gap behind it."""
    return [
        max(line.cell_len for text in column for line in text.split(allow_blank=True)) + _GAP
        for column in zip(*rows, strict=True)
    ]


def _print_row(console: Console, row: Row, widths: Sequence[int]) -> None:
    cells = [text.wrap(console, width - _GAP) for text, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, cells))):
        line = Text()
        for lines, width in zip(cells, widths, strict=True):
            if number < len(lines):
                part = lines[number]
                part.rstrip()
                line.append_text(part).append(" " * (width - part.cell_len))
            else:
                line.append(" " * width)
        line.rstrip()
        _print(console, line)


def _print(console: Console, line: Text) -> None:
    console.print(line, soft_wrap=True)


def say_figures(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[tuple[Row, Sequence[tuple[str, Text]]]],
    left: int,
) -> None:
    """A table of figures: all columns but the first ``left`` end under each other, and under each
    row stands what more there is to say, behind a word. A first cell that would make the table
    too wide has its own line; where there is no room for all others, each row becomes a list.
    """
    head = tuple(map(Text, headings))
    widths = _widths([head, *(row for row, _ in rows)])
    others = sum(widths[1:]) - _GAP
    short = [row[0].cell_len for row, _ in rows if row[0].cell_len + _GAP + others <= console.width]
    widths[0] = max([*short, head[0].cell_len]) + _GAP
    if widths[0] + others > console.width:
        _say_lists(console, headings, rows)
        return
    _print(console, _aligned(head, widths, left))
    utf = console.encoding.startswith("utf")
    _print(console, Text(("─" if utf else "-") * (widths[0] + others)))
    for row, below in rows:
        if row[0].cell_len + _GAP > widths[0]:
            _print(console, row[0])
            row = (Text(), *row[1:])
        _print(console, _aligned(row, widths, left))
        _say_below(console, below)


def _aligned(row: Row, widths: Sequence[int], left: int) -> Text:
    line = Text()
    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        room = " " * (width - _GAP - cell.cell_len)
        between = " " * (_GAP if number + 1 < len(row) else 0)
        line.append_text(cell if number < left else Text(room).append_text(cell))
        line.append((room if number < left else "") + between)
    line.rstrip()
    return line


def _say_below(console: Console, below: Sequence[tuple[str, Text]]) -> None:
    width = _GAP + max((len(word) for word, _ in below), default=0) + _GAP
    for word, text in below:
        room = max(_LEAST, console.width - width)
        lines = text.wrap(console, room)
        for number, line in enumerate(lines):
            line.rstrip()
            before = word if number == 0 else ""
            _print(console, Text(f"{'  ' + before:{width}}").append_text(line))


def _say_lists(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[tuple[Row, Sequence[tuple[str, Text]]]],
) -> None:
    for row, below in rows:
        _print(console, row[0])
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            say(console, Text(f"{heading} ").append_text(cell), indent=2)
        for word, text in below:
            say(console, Text(f"{word} " if word else "").append_text(text), indent=2)
