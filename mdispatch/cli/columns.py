"""Text for people: paragraphs, pairs and tables, as wide as a terminal is; elsewhere a line stays a
line, however long.

No word is cut off. Text is wrapped between words; where the words of a table's row do not fit into
one line, each row becomes a list.

The functions import rich when they need it: a command that prints JSON does without.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, JustifyMethod
    from rich.table import Table
    from rich.text import Text

    Row = tuple[Text, ...]
    #: What stands under a row of a table, each text behind a word.
    Below = Sequence[tuple[str, Text]]

_GAP = 2
_LEAST = 20  # A column is not made narrower than this.
PAGE = 100  # A width that reads well where there is no screen.
_ENDLESS = 1_000_000


def styled(words: str = "", style: str = "") -> Text:
    """A text of rich, in this style."""
    from rich.text import Text

    return Text(words, style=style)


def fit(console: Console, width: int = _ENDLESS) -> None:
    """Makes a console as wide as its text, or as a page, unless it is a terminal."""
    if not console.is_terminal:
        console.width = width


def plain(text: str) -> str:
    """The text without what would steer a terminal: a registration's texts may hold anything."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def number_of(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number:,} {what}{'s' * (number != 1)}"


def size(number: int) -> str:
    """A number of bytes in words, with about three digits."""
    figure, unit = float(number), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if figure < 1000:
            break
        figure, unit = figure / 1024, larger
    return f"{figure:.1f}".removesuffix(".0") + f" {unit}"


def location_text(where: str) -> str:
    """A location as it is found from the current directory."""
    try:
        here = os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # it was removed
        return plain(where)
    return plain(where if here == os.sep else where.removeprefix(here))


def say(console: Console, text: Text | str = "", indent: int = 0) -> None:
    """Prints one paragraph; an empty one is an empty line."""
    text = styled(text) if isinstance(text, str) else text
    for line in text.wrap(console, max(_LEAST, console.width - indent)):
        _print(console, styled(" " * indent).append_text(line))


def say_pairs(console: Console, pairs: Sequence[tuple[str, str]], indent: int = 0) -> None:
    """Prints a line for each pair, the second parts under each other. Where a word of these is too
    long, each begins a line of its own.
    """
    width = indent + max((len(name) for name, _ in pairs), default=0) + _GAP
    longest = max((len(word) for _, value in pairs for word in value.split()), default=0)
    for name, value in pairs:
        if width + longest > console.width:
            say(console, name, indent)
            say(console, value, indent + 2)
        else:
            _say_behind(console, " " * indent + name, styled(value), width)


def say_columns(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Row],
    right: range = range(0),
    gap: int = _GAP,
) -> None:
    """Prints a table of texts, wrapped between words; the columns ``right`` are aligned to the
    right. Where a row has words that do not fit side by side, each row becomes a list.
    """
    least, most = _measured(console, headings, rows)
    spare = console.width - sum(least) - gap * (len(headings) - 1)
    if spare < 0:
        _say_lists(console, headings, [(row, ()) for row in rows])
        return
    table = _table(headings, rows, right, gap)
    wanted = sum(most) - sum(least)
    for column, low, high in zip(table.columns, least, most, strict=True):
        column.width = high if wanted <= spare else low + (high - low) * spare // wanted
    console.print(table)


def say_figures(
    console: Console, headings: Sequence[str], rows: Sequence[tuple[Row, Below]], left: int
) -> None:
    """Prints a table in which all columns but the first ``left`` are aligned to the right, and
    under each row what more there is to say. A first cell that makes the table too wide has its
    own line above; where there is no room for all others, each row becomes a list.
    """
    from rich.segment import Segments

    _, (_, *others) = _measured(console, headings, [row for row, _ in rows])
    taken = sum(max(1, width) for width in others)  # rich gives an empty column a place, too
    room = console.width - taken - _GAP * len(others)
    cells = [row if row[0].cell_len <= room else (styled(), *row[1:]) for row, _ in rows]
    if len(headings[0]) > room:
        _say_lists(console, headings, rows)
        return
    table = _table(headings, cells, range(left, len(headings)), _GAP)
    # Nothing is wrapped, so each row is one line.
    heading, rule, *lines = console.render_lines(table, pad=False, new_lines=True)
    console.print(Segments(heading), Segments(rule), sep="", end="")
    for (row, below), line in zip(rows, lines, strict=True):
        if row[0].cell_len > room:
            _print(console, row[0])
        console.print(Segments(line), end="")
        _say_below(console, below)


def _measured(
    console: Console, headings: Sequence[str], rows: Sequence[Row]
) -> tuple[list[int], list[int]]:
    """How wide each column is with a line for each word, and with one for each row."""
    from rich.measure import measure_renderables

    endless = console.options.update(max_width=_ENDLESS)
    columns = zip(map(styled, headings), *rows, strict=True)
    widths = [measure_renderables(console, endless, column) for column in columns]
    return [each.minimum for each in widths], [each.maximum for each in widths]


def _table(headings: Sequence[str], rows: Sequence[Row], right: range, gap: int) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD,
        header_style="",
        padding=(0, gap - 1, 0, 0),  # the box has one more between two columns
        pad_edge=False,
        show_edge=False,
    )
    for number, heading in enumerate(headings):
        justify: JustifyMethod = "right" if number in right else "left"
        table.add_column(heading, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _print(console: Console, line: Text) -> None:
    console.print(line, soft_wrap=True)


def _say_below(console: Console, below: Below) -> None:
    width = _GAP + max((len(word) for word, _ in below), default=0) + _GAP
    for word, text in below:
        _say_behind(console, f"  {word}", text, width)


def _say_behind(console: Console, word: str, text: Text, width: int) -> None:
    """Prints a text that begins in the column ``width``, behind a word."""
    for line in text.wrap(console, max(_LEAST, console.width - width)):
        _print(console, styled(f"{word:{width}}").append_text(line))
        word = ""


def _say_lists(
    console: Console, headings: Sequence[str], rows: Sequence[tuple[Row, Below]]
) -> None:
    for row, below in rows:
        say(console, row[0])
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            words = heading.replace("-\n", "").replace("\n", " ")
            say(console, styled(f"{words} ").append_text(cell), indent=2)
        for word, text in below:
            say(console, styled(f"{word} " if word else "").append_text(text), indent=2)
