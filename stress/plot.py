"""--plot FILE: what came out of a run for people who would rather look.

matplotlib makes one drawing: the throughput of each scenario, and a histogram of each latency. A
file .png is that drawing; a file .html is a page that holds it as SVG, with tables that can be read
aloud. A page is one file with everything in it: nothing is loaded, and no script runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest
from measure import ALLOWED_NS
from report import Result, columns_of, in_words, summary_of

BAR, MARK, INK, SOFT = "#2a78d6", "#eb6834", "#0b0b0b", "#52514e"
LINE, BAD = "#dddcd6", "#c22f2f"
#: In a page a drawing has the page's colours, which are others in the dark.
IN_PAGE = {BAR: "bar", MARK: "mark", INK: "ink", SOFT: "soft", LINE: "line", BAD: "bad"}

#: Texts stay texts in SVG, and a dollar sign is one; equal drawings have equal names inside.
SETTINGS = {
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "mdispatch",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": INK,
}
#: Registrations about the file that matplotlib would add to the drawing.
METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))

#: Of the time axis: 1 us to 10 s, eight columns to a tenfold.
FIRST_NS, DECADES, PER_DECADE = 1_000, 7, 8
TICKS = ("1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s")


def check(file: str) -> None:
    """Asks before the run whether that file can be drawn. UsageError says what to do."""
    path = Path(file)
    if path.suffix not in (".html", ".png"):
        raise pytest.UsageError(f"--plot {file}: the name has to end in .html or .png")
    if not path.resolve().parent.is_dir():
        raise pytest.UsageError(f"--plot {file}: there is no folder {path.resolve().parent}")
    for package in ("matplotlib", "jinja2"):
        if find_spec(package) is None:
            raise pytest.UsageError(
                f"--plot {file}: it is drawn with {package}, which is not installed: "
                f"python -m pip install {package}"
            )


def draw(results: list[Result], about: dict[str, str], file: str) -> None:
    """Writes the picture or the page. Raises OSError."""
    from matplotlib import rc_context  # only a run that is drawn needs it

    with rc_context(SETTINGS):
        if file.endswith(".html"):
            text = page(results, about, drawing(results, about, heading=False))
            Path(file).write_text(text, encoding="utf-8")
        else:
            drawing(results, about, heading=True).savefig(file)


# --- the page -------------------------------------------------------------------------------------


def page(results: list[Result], about: dict[str, str], drawn) -> str:
    from markupsafe import Markup

    from mdispatch.cli.pages import templates

    folder = Path(__file__).parent
    skipped = [(result.title, why) for result in results for why in sorted({*result.skipped})]
    return (
        templates(folder)
        .get_template("plot.html")
        .render(
            about=about,
            allowed=in_words(ALLOWED_NS),
            drawing=Markup(svg(drawn)),
            failed=sum(bool(result.failures) for result in results),
            failures=[(result.title, *each) for result in results for each in result.failures],
            latencies=latencies,
            results=results,
            skipped=skipped,
            style=Markup((folder / "plot.css").read_text(encoding="utf-8")),
            summary=summary_of(results),
        )
    )


def svg(drawn) -> str:
    """A drawing as it stands in a page. matplotlib has escaped the texts in it."""
    written = StringIO()
    drawn.savefig(written, format="svg", facecolor="none", metadata=METADATA)
    text = written.getvalue()
    text = text[text.index("<svg") :]
    for address in ("http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"):
        text = text.replace(f'="{address}"', '=""')
    text = text.replace(' xmlns:xlink=""', "").replace(' xmlns=""', "")
    for color, name in IN_PAGE.items():
        text = text.replace(color, f"var(--{name})")
    return text


def latencies(result: Result) -> Iterator[tuple[str, list[str]]]:
    """Each latency of a scenario: how many there were, three quantiles, and the longest."""
    for title, histogram in result.figures.latencies.items():
        times = [histogram.quantile(part) for part in (0.5, 0.9, 0.99)] + [histogram.worst]
        yield title, [f"{histogram.count:,}", *map(in_words, times)]


# --- the drawing ----------------------------------------------------------------------------------


def drawing(results: list[Result], about: dict[str, str], heading: bool):
    from matplotlib.figure import Figure

    timed = [(r.title, t, h) for r in results for t, h in r.figures.latencies.items()]
    first = 1.15 if heading else 0.3
    above = 0.26 * len(results)
    height = first + 0.85 + above + 0.42 * len(timed)
    figure = Figure(figsize=(11, height), dpi=120, facecolor="white")

    def place(top_inches: float, inches: float, left: float, right: float):
        return figure.add_axes(
            (left, 1 - (top_inches + inches) / height, right - left, inches / height)
        )

    if heading:
        write_heading(figure, results, about, height)
    axes = place(first, above, 0.24, 0.86)
    figure.text(
        0.02, 1 - (first - 0.1) / height, "operations per second (of one process)", fontsize=9.5
    )
    throughput(axes, results)
    begins = first + above + 0.45
    figure.text(
        0.02,
        1 - (begins - 0.08) / height,
        "latencies (height: logarithm of the number; line: median; "
        f"broken: {ALLOWED_NS / 1e6:.0f} ms)",
        fontsize=9.5,
    )
    for row, (title, what, histogram) in enumerate(timed):
        axes = place(begins + 0.05 + 0.42 * row, 0.34, 0.24, 0.72)
        counts = columns_of(histogram, FIRST_NS, DECADES, PER_DECADE)
        heights = [math.log1p(count) / math.log1p(max(counts)) for count in counts]
        axes.bar([i + 0.5 for i in range(len(counts))], heights, width=0.8, color=BAR)
        bare(axes, last=row == len(timed) - 1)
        half = math.log10(max(histogram.quantile(0.5), FIRST_NS) / FIRST_NS) * PER_DECADE
        axes.axvline(half, color=MARK, linewidth=1.6)
        limit = math.log10(ALLOWED_NS / FIRST_NS) * PER_DECADE
        axes.axvline(limit, color=SOFT, linewidth=0.8, linestyle=(0, (3, 3)))
        y = 1 - (begins + 0.05 + 0.42 * row + 0.16) / height
        figure.text(0.02, y, f"{title}", fontsize=8.5)
        figure.text(0.02, y - 0.14 / height, what, fontsize=7.5, color=SOFT)
        times = [in_words(histogram.quantile(part)) for part in (0.5, 0.99)]
        words = (
            f"{histogram.count:,}; p50 {times[0]}, p99 {times[1]}, max {in_words(histogram.worst)}"
        )
        figure.text(0.735, y - 0.05 / height, words, fontsize=7.5)
    return figure


def write_heading(figure, results: list[Result], about: dict[str, str], height: float) -> None:
    failed = sum(bool(result.failures) for result in results)
    verdict = f"{failed} of {len(results)} scenarios FAILED" if failed else "all scenarios passed"
    top = 1 - 0.3 / height
    color = BAD if failed else INK
    figure.text(0.02, top, f"mdispatch stress run: {verdict}", fontsize=14, color=color)
    words = ", ".join(f"{name} {value}" for name, value in about.items())
    figure.text(0.02, 1 - 0.52 / height, words, fontsize=8.5, color=SOFT)
    words = "   ".join(f"{value} {name}" for name, value in summary_of(results))
    figure.text(0.02, 1 - 0.74 / height, words, fontsize=9)


def throughput(axes, results: list[Result]) -> None:
    rows = range(len(results))
    values = [result.per_second for result in results]
    axes.barh(rows, values, color=[BAD if r.failures else BAR for r in results], height=0.66)
    axes.set_xscale("log")
    axes.set_xlim(1, max([*values, 10]) * 2)
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.set_yticks(rows, [result.title for result in results], fontsize=8.5)
    axes.xaxis.set_major_formatter("{x:,.0f}")  # the usual one writes formulas
    axes.minorticks_off()
    axes.tick_params(length=0, labelsize=8.5)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    for row, result in zip(rows, results, strict=True):
        more = "" if result.verdict == "ok" else f" ({result.verdict})"
        text = f" {result.per_second:,.0f}{more}"
        axes.text(max(result.per_second, 1), row, text, va="center", fontsize=8, color=SOFT)


def bare(axes, last: bool) -> None:
    """Only the grid of tenfolds, and their names under the last one."""
    axes.set_xlim(0, DECADES * PER_DECADE)
    axes.set_ylim(0, 1.05)
    axes.set_yticks([])
    places = [PER_DECADE * i for i in range(DECADES + 1)]
    axes.set_xticks(places, TICKS if last else [""] * len(places), fontsize=8, color=SOFT)
    axes.tick_params(length=0)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    for name, side in axes.spines.items():
        side.set_visible(name == "bottom")
        side.set_color(LINE)
