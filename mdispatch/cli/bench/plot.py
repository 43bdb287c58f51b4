"""``mdispatch bench --plot FILE``: the figures as a picture or as a page.

matplotlib makes one drawing. A file .png is that drawing; a file .html is a page that holds it as
SVG, with a table of the numbers for each chart, so that the page can be read aloud. A page is one
file with everything in it: nothing is loaded, and no script runs.

The stress suite draws its own figures and saves them as this module does.
"""

from __future__ import annotations

import math
import textwrap
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from .show import aim_text, listed, number, peers_of, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from markupsafe import Markup

    from .figures import Figure
    from .running import Run

    #: A title, and what is drawn below it on one axis: labels and figures.
    Chart = tuple[str, list[tuple[str, Figure]]]

BAR, MARK, INK, SOFT = "#2a78d6", "#eb6834", "#0b0b0b", "#52514e"
LINE, BAD = "#dddcd6", "#c22f2f"
#: In a page a drawing has the page's colours, which are others in the dark.
_IN_PAGE = {BAR: "bar", MARK: "mark", INK: "ink", SOFT: "soft", LINE: "line", BAD: "bad"}

_FOLDER = Path(__file__).parent
#: The packages that --plot needs, each with the extra that brings it.
_NEEDED = {"matplotlib": "plot", "jinja2": "cli"}

#: Texts stay texts in SVG, and a dollar sign is one; equal drawings have equal names inside.
_SETTINGS = {
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "mdispatch",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": INK,
}
#: Facts about the file that matplotlib would add to the drawing.
_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


# --- for everything that is drawn -----------------------------------------------------------------


def refusal(file: str) -> str | None:
    """Why nothing can be drawn into that file; None when it can. A caller asks before it measures,
    which takes long.
    """
    path = Path(file)
    if path.suffix not in (".html", ".png"):
        return f"--plot {file}: the name has to end in .html or .png"
    if not path.resolve().parent.is_dir():
        return f"--plot {file}: there is no folder {path.resolve().parent}"
    for package, extra in _NEEDED.items():
        if find_spec(package) is None:
            return (
                f"--plot {file}: it is drawn with {package}, which is not installed: "
                f"pip install 'mdispatch[{extra}]'"
            )
    return None


def save(file: str, drawing: Callable[[bool], Any], page: Callable[[Markup], str]) -> None:
    """Writes a picture or a page. ``drawing`` makes matplotlib's Figure, with a heading of its own
    or without; ``page`` makes the page around one without. Raises OSError.
    """
    with import_module("matplotlib").rc_context(_SETTINGS):
        if file.endswith(".html"):
            Path(file).write_text(page(_svg(drawing(False))), encoding="utf-8")
        else:
            drawing(True).savefig(file)


def _svg(drawn: Any) -> Markup:
    """A drawing as it stands in a page. matplotlib has escaped the texts in it."""
    from markupsafe import Markup

    written = StringIO()
    drawn.savefig(written, format="svg", facecolor="none", metadata=_METADATA)
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    for address in ("http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"):
        svg = svg.replace(f'="{address}"', '=""')
    svg = svg.replace(' xmlns:xlink=""', "").replace(' xmlns=""', "")
    for color, name in _IN_PAGE.items():
        svg = svg.replace(color, f"var(--{name})")
    return Markup(svg)


def rendered(template: str, folder: Path, drawing: Markup, **values: object) -> str:
    """A page of figures, from a template of that folder or of this one."""
    from markupsafe import Markup

    from ..pages import templates

    environment = templates(folder, _FOLDER)
    environment.filters |= {"aim_text": aim_text, "number": number, "verdict": verdict}
    environment.globals["style"] = Markup((_FOLDER / "page.css").read_text(encoding="utf-8"))
    return environment.get_template(template).render(drawing=drawing, **values)


# --- what the bench draws -------------------------------------------------------------------------


def draw(run: Run, file: str) -> None:
    """Draws a run into that file. Raises OSError."""
    charts = [(title, rows) for title, rows in _charts(run) if rows]
    save(file, partial(_drawing, run, charts), partial(_page, run, charts))


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


def _page(run: Run, charts: Sequence[Chart], drawing: Markup) -> str:
    circumstances = [f"load {run.load[0]:.1f} before and {run.load[1]:.1f} after"]
    circumstances += ["the machine was busy"] * run.busy
    circumstances += ["rough: --quick"] * run.settings.quick
    return rendered(
        "bench.html",
        _FOLDER,
        drawing,
        about=", ".join(f"{name} {value}" for name, value in run.about.items()),
        circumstances=circumstances,
        charts=charts,
        left_out=list(_left_out(run)),
    )


def _left_out(run: Run) -> Iterator[tuple[str, str]]:
    for outcome in run.outcomes:
        yield from outcome.answer.left_out
        if outcome.missing:
            yield outcome.job.name, outcome.missing
        if outcome.failure:
            yield outcome.job.name, outcome.failure.said


class _Axis:
    """A logarithmic one, over all figures and aims of a chart."""

    def __init__(self, figures: Sequence[Figure]) -> None:
        values = [each.median for each in figures] + [each.aim for each in figures if each.aim]
        values = [value for value in values if value > 0] or [1.0]
        self.first = math.floor(math.log10(min(values) / 1.05))
        self.decades = max(1, math.ceil(math.log10(max(values) * 1.05)) - self.first)

    def place(self, value: float) -> float:
        """From 0 to 1; a difference may be below zero, and is then at the beginning."""
        if value <= 0:
            return 0.0
        return min(max((math.log10(value) - self.first) / self.decades, 0.0), 1.0)

    def ticks(self) -> list[float]:
        return [10.0 ** (self.first + i) for i in range(self.decades + 1)]


def _drawing(run: Run, charts: Sequence[Chart], heading: bool) -> Any:
    about = [f"{name} {value}" for name, value in run.about.items()]
    about.append(f"load {run.load[0]:.1f}; bars: medians; line: the aim")
    words = textwrap.fill(", ".join(about), 150)
    above = 0.6 + 0.15 * (words.count("\n") + 1) if heading else 0.0
    heights = [0.62 + 0.24 * len(rows) for _, rows in charts]
    height = max(above + sum(heights), 0.5)
    drawn = import_module("matplotlib.figure").Figure(
        figsize=(11, height), dpi=110, facecolor="white"
    )
    if heading:
        drawn.text(0.02, 1 - 0.32 / height, "mdispatch bench", fontsize=14)
        drawn.text(0.02, 1 - 0.45 / height, words, fontsize=7.5, color=SOFT, va="top")
    top = above
    for (title, rows), inches in zip(charts, heights, strict=True):
        drawn.text(0.02, 1 - (top + 0.2) / height, title, fontsize=10)
        below = 0.24 * len(rows)
        axes = drawn.add_axes((0.42, 1 - (top + 0.25 + below) / height, 0.5, below / height))
        _bars(axes, rows)
        top += inches
    return drawn


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
