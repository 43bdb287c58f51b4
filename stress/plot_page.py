"""The page: one file with everything in it. Tables that can be read aloud, with drawings in their
cells; nothing is loaded, and no script runs.
"""

from __future__ import annotations

import math
from html import escape

from measure import ALLOWED_NS, Histogram
from report import Result, columns_of, in_words, summary_of

from mdispatch import _pictures

#: Of the time axis: 1 us to 10 s, eight columns to a tenfold.
FIRST_NS, DECADES, PER_DECADE = 1_000, 7, 8
WIDTH, HEIGHT, BAR = 448, 34, 8


def x_of(ns: float) -> float:
    return min(max(math.log10(max(ns, 1) / FIRST_NS) / DECADES, 0.0), 1.0) * WIDTH


def lines_up() -> str:
    """The grid at each tenfold, and the limit of a wait."""
    grid = "".join(
        f'<line class="grid" x1="{x:g}" x2="{x:g}" y1="0" y2="{HEIGHT}"/>'
        for x in (WIDTH * i / DECADES for i in range(DECADES + 1))
    )
    limit = f"{x_of(ALLOWED_NS):.1f}"
    return f'{grid}<line class="limit" x1="{limit}" x2="{limit}" y1="0" y2="{HEIGHT}"/>'


def axis() -> str:
    texts = ("1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s")
    labels = "".join(
        f'<text class="tick" x="{WIDTH * i / DECADES:g}" y="13" text-anchor="'
        f'{"start" if i == 0 else "end" if i == DECADES else "middle"}">{text}</text>'
        for i, text in enumerate(texts)
    )
    return f'<svg width="{WIDTH}" height="18" aria-hidden="true">{labels}</svg>'


def drawing(title: str, histogram: Histogram) -> str:
    counts = columns_of(histogram, FIRST_NS, DECADES, PER_DECADE)
    most, bars = math.log1p(max(counts)), []
    for i, count in enumerate(counts):
        if count:
            high = max(2.0, (HEIGHT - 4) * math.log1p(count) / most)
            bars.append(
                f'<rect class="bar" x="{i * BAR + 0.75:g}" y="{HEIGHT - high:.1f}" '
                f'width="{BAR - 1.5:g}" height="{high:.1f}" rx="1"/>'
            )
    half = f"{x_of(histogram.quantile(0.5)):.1f}"
    words = (
        f"{title}: {histogram.count} times, half of them within "
        f"{in_words(histogram.quantile(0.5))}, 99 of 100 within "
        f"{in_words(histogram.quantile(0.99))}, the longest {in_words(histogram.worst)}"
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{escape(words)}">'
        f"<title>{escape(words)}</title>{lines_up()}{''.join(bars)}"
        f'<line class="mark" x1="{half}" x2="{half}" y1="0" y2="{HEIGHT}"/></svg>'
    )


def verdict_of(result: Result) -> str:
    kind = {"ok": "ok", "FAILED": "bad"}.get(result.verdict, "none")
    sign = {"ok": "✓ ", "FAILED": "✗ "}.get(result.verdict, "")
    return f'<span class="{kind}">{sign}{result.verdict}</span>'


def number(value: float) -> str:
    return f"{value:,.0f}" if value else '<span class="none">-</span>'


def scenarios(results: list[Result]) -> str:
    most = max((result.per_second for result in results), default=0) or 1
    rows = []
    for result in results:
        wide = max(2.0, 120 * math.log1p(result.per_second) / math.log1p(most))
        bar = (
            f'<rect class="bar" width="{wide if result.per_second else 0:.1f}" height="10" rx="2"/>'
        )
        rows.append(
            f'<tr><th scope="row">{escape(result.title)}</th><td>{verdict_of(result)}</td>'
            f"<td>{number(result['rounds'])}</td><td>{number(result['operations'])}</td>"
            f"<td>{number(result.per_second)}</td>"
            f'<td><svg width="120" height="10" aria-hidden="true">{bar}</svg></td>'
            f"<td>{number(result['kills'])}</td><td>{number(result['forks'])}</td>"
            f"<td>{number(result['interpreters'])}</td></tr>"
        )
    names = ("scenario", "result", "rounds", "operations", "per second", "", "kills", "forks")
    return _pictures.table((*names, "interpreters"), rows)


def latencies(results: list[Result]) -> str:
    rows = []
    for result in results:
        for title, histogram in result.figures.latencies.items():
            times = (*(histogram.quantile(part) for part in (0.5, 0.9, 0.99)), histogram.worst)
            cells = "".join(f"<td>{in_words(each)}</td>" for each in times)
            rows.append(
                f'<tr><th scope="row">{escape(result.title)}<small>{escape(title)}</small></th>'
                f'<td class="draw">{drawing(f"{result.title}, {title}", histogram)}</td>'
                f"<td>{histogram.count:,}</td>{cells}</tr>"
            )
    head = '<th scope="col">scenario</th><th scope="col" class="draw">' + axis() + "</th>"
    head += "".join(f'<th scope="col">{n}</th>' for n in ("number", "p50", "p90", "p99", "max"))
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def notes(results: list[Result]) -> str:
    failed = [(result.title, *each) for result in results for each in result.failures]
    skipped = [(result.title, reason) for result in results for reason in sorted({*result.skipped})]
    text = ""
    if failed:
        text += "<h2>What failed, and the command that plays it again</h2><ul>"
        for title, worker, again in failed:
            text += (
                f'<li><span class="bad">{escape(title)}</span>, on worker {escape(worker)}: '
                f"<code>{escape(again)}</code></li>"
            )
        text += "</ul>"
    if skipped:
        text += "<h2>What was skipped</h2><ul>"
        text += "".join(f"<li>{escape(title)}: {escape(why)}</li>" for title, why in skipped)
        text += "</ul>"
    return text


def page(results: list[Result], about: dict[str, str]) -> str:
    summary = summary_of(results)
    failed = sum(bool(result.failures) for result in results)
    verdict = f"{failed} of {len(results)} scenarios failed" if failed else "All scenarios passed"
    tiles = "".join(f"<li><b>{value}</b><span>{name}</span></li>" for name, value in summary)
    run = ", ".join(f"{name} {escape(value)}" for name, value in about.items())
    kind = "bad" if failed else "ok"
    return _pictures.page(
        f"mdispatch stress run {about['seed']}",
        f"""<h1>mdispatch stress run: <span class="{kind}">{verdict}</span></h1>
<p>{run}</p>
<ul class="tiles">{tiles}</ul>
<h2>Scenarios</h2>
<p>Operations per second are those of one process that plays; the bars have a logarithmic scale.</p>
{scenarios(results)}
<h2>Latencies</h2>
<p>How long each took, on a logarithmic axis of time; the height of a column is the logarithm of the
number. The strong line is the median; the broken one stands at {ALLOWED_NS / 1e6:.0f} ms, within
which a wait has to return unless its process has no processor.</p>
{latencies(results)}
{notes(results)}""",
    )
