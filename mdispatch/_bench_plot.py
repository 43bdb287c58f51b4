"""``mdispatch bench --plot FILE``: the figures for people who would rather look."""

from __future__ import annotations

import math
import textwrap
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ._bench_show import aim_text, listed, number, peers_of, verdict
from ._pictures import BAD, BAR, LINE, MARK, SOFT, page, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ._bench import Figure
    from ._bench.running import Run

    #: A title, and what is drawn below it on one axis: labels and figures.
    Chart = tuple[str, list[tuple[str, Figure]]]

__all__ = ["draw"]

_WIDTH, _HEIGHT = 420, 18


def draw(run: Run, file: str) -> None:
    """Raises OSError."""
    if file.endswith(".html"):
        Path(file).write_text(_page(run), encoding="utf-8")
    else:
        _picture(run, file)


def _charts(run: Run) -> Iterator[Chart]:
    for outcome in run.outcomes:
        figures = outcome.answer.figures
        for what in dict.fromkeys(each.what for each in figures if each.peer):
            rows = [(peer, done[what]) for peer, done in peers_of(figures) if what in done]
            yield f"{what}, plain calls", [row for row in rows if row[1].unit == "x"]
        rest = listed([each for each in figures if not each.peer])
        for unit in dict.fromkeys(each.unit for each in rest):
            in_words = "ratios" if unit == "x" else unit
            rows = [(each.what, each) for each in rest if each.unit == unit]
            yield f"{outcome.job.name}, {in_words}", rows


class _Axis:
    """A logarithmic one, over all figures and aims of a chart."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        values = [each.median for each in figures] + [each.aim for each in figures if each.aim]
        values = [value for value in values if value > 0] or [1.0]
        self.first = math.floor(math.log10(min(values) / 1.05))
        self.decades = max(1, math.ceil(math.log10(max(values) * 1.05)) - self.first)

    def place(self, value: float) -> float:
        """From 0 to 1; what is not above zero, as a difference may be, is at the beginning."""
        if value <= 0:
            return 0.0
        return min(max((math.log10(value) - self.first) / self.decades, 0.0), 1.0)

    def ticks(self) -> list[float]:
        return [10.0 ** (self.first + i) for i in range(self.decades + 1)]


# --- a page ---------------------------------------------------------------------------------------


def _page(run: Run) -> str:
    about = ", ".join(f"{name} {escape(value)}" for name, value in run.about.items())
    words = [f"load {run.load[0]:.1f} before and {run.load[1]:.1f} after"]
    words += ["the machine was busy"] * run.busy + ["rough: --quick"] * run.settings.quick
    text = "".join(
        f"<h2>{escape(title)}</h2>{_chart(rows)}" for title, rows in _charts(run) if rows
    )
    gone = "".join(
        f"<li>{escape(who)}: {escape(why)}</li>"
        for outcome in run.outcomes
        for who, why in (
            *outcome.answer.left_out,
            *([(outcome.job.name, outcome.missing)] if outcome.missing else ()),
            *([(outcome.job.name, outcome.failure.said)] if outcome.failure else ()),
        )
    )
    return page(
        "mdispatch bench",
        f"""<h1>mdispatch bench</h1>
<p>{about}; {", ".join(words)}</p>
<p>Bars are medians, on a logarithmic axis; the strong line is the aim.</p>
{text}
{f"<h2>Left out</h2><ul>{gone}</ul>" if gone else ""}""",
    )


def _chart(rows: Sequence[tuple[str, Figure]]) -> str:
    axis = _Axis([each for _, each in rows])
    headings = ("", _ticks(axis), "median", "best", "half of the rounds", "aim", "")
    return table(headings, [_row(label, each, axis) for label, each in rows])


def _ticks(axis: _Axis) -> str:
    last = axis.decades
    texts = "".join(
        f'<text class="tick" x="{_WIDTH * i / last:g}" y="13" text-anchor="'
        f'{"start" if i == 0 else "end" if i == last else "middle"}">{tick:g}</text>'
        for i, tick in enumerate(axis.ticks())
    )
    return f'<svg width="{_WIDTH}" height="18" aria-hidden="true">{texts}</svg>'


def _row(label: str, figure: Figure, axis: _Axis) -> str:
    words = f"{number(figure.median)} {figure.unit}"
    wide = max(2.0, _WIDTH * axis.place(figure.median))
    bar = f'<rect class="bar" width="{wide:.1f}" height="{_HEIGHT - 6}" y="3" rx="2"/>'
    mark = ""
    if figure.aim is not None:
        x = f"{_WIDTH * axis.place(figure.aim):.1f}"
        mark = f'<line class="mark" x1="{x}" x2="{x}" y1="0" y2="{_HEIGHT}"/>'
    kind = "bad" if figure.missed else "ok"
    return (
        f'<tr><th scope="row">{escape(label)}</th><td class="draw">'
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{escape(words)}">'
        f"{bar}{mark}</svg></td><td>{words}{'~' * figure.unsteady}</td>"
        f"<td>{number(figure.best)}</td><td>{number(figure.low)} to {number(figure.high)}</td>"
        f"<td>{escape(aim_text(figure))}</td>"
        f'<td><span class="{kind}">{verdict(figure)}</span></td></tr>'
    )


# --- a picture ------------------------------------------------------------------------------------


def _picture(run: Run, file: str) -> None:
    charts = [(title, rows) for title, rows in _charts(run) if rows]
    about = [f"{name} {value}" for name, value in run.about.items()]
    about.append(f"load {run.load[0]:.1f}; bars: medians; line: the aim")
    words = textwrap.fill(", ".join(about), 150)
    above = 0.6 + 0.15 * (words.count("\n") + 1)
    heights = [0.62 + 0.24 * len(rows) for _, rows in charts]
    height = above + sum(heights)
    drawn = import_module("matplotlib.figure").Figure(
        figsize=(11, height), dpi=110, facecolor="white"
    )
    drawn.text(0.02, 1 - 0.32 / height, "mdispatch bench", fontsize=14)
    drawn.text(0.02, 1 - 0.45 / height, words, fontsize=7.5, color=SOFT, va="top")
    top = above
    for (title, rows), inches in zip(charts, heights, strict=True):
        drawn.text(0.02, 1 - (top + 0.2) / height, title, fontsize=10)
        below = 0.24 * len(rows)
        axes = drawn.add_axes((0.42, 1 - (top + 0.25 + below) / height, 0.5, below / height))
        _bars(axes, rows)
        top += inches
    drawn.savefig(file)


def _bars(axes: Any, rows: Sequence[tuple[str, Figure]]) -> None:
    axis = _Axis([each for _, each in rows])
    places = range(len(rows))
    colors = [BAD if each.missed else BAR for _, each in rows]
    axes.barh(places, [axis.place(each.median) for _, each in rows], color=colors, height=0.62)
    for row, (_, each) in enumerate(rows):
        if each.aim is not None:
            x = axis.place(each.aim)
            axes.plot([x, x], [row - 0.42, row + 0.42], color=MARK, linewidth=2)
        text = f"  {number(each.median)} {each.unit}{'~' * each.unsteady}"
        axes.text(1.0, row, text, va="center", fontsize=8, color=SOFT)
    ticks = axis.ticks()
    axes.set_xlim(0, 1)
    axes.set_xticks([axis.place(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(places, [label for label, _ in rows])
    axes.tick_params(length=0, labelsize=8, pad=2)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
