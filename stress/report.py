"""What a run has come to, as text: a table of the scenarios, a histogram of each latency, and what
failed with the command that plays it again.
"""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from measure import ALLOWED_NS, Figures, Histogram, end_of

import mdispatch as md

BLOCKS = "▁▂▃▄▅▆▇█"
#: Columns of a histogram: from 1 us to 10 s, four to a tenfold.
FIRST_NS, DECADES, PER_DECADE = 1_000, 7, 4


@dataclass
class Result:
    """All parts of one scenario together."""

    title: str
    place: str
    workers: set[str] = field(default_factory=set)
    figures: Figures = field(default_factory=Figures)
    took: float = 0.0
    passed: int = 0
    skipped: list[str] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def __getitem__(self, what: str) -> int:
        return self.figures.counts.get(what, 0)

    @property
    def verdict(self) -> str:
        if self.failures:
            return "FAILED"
        return "ok" if self.passed else "skipped"

    @property
    def per_second(self) -> float:
        """Of one process that plays."""
        return self["operations"] / self.took if self.took else 0.0

    @property
    def first_latency(self) -> Histogram | None:
        return next(iter(self.figures.latencies.values()), None)


def about_run(config: pytest.Config) -> dict[str, str]:
    option = config.option
    workers = getattr(option, "numprocesses", None)
    gil = "" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", without a GIL"
    return {
        "seed": str(option.seed),
        "seconds": f"{option.seconds:g}",
        "workers": str(workers or "none"),
        "Python": f"{platform.python_version()}{gil}",
        "mdispatch": md.__version__,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def in_words(ns: int) -> str:
    """A time in three figures."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            value = ns / size
            return f"{value:.{max(0, 2 - int(math.log10(value)))}f} {unit}"
    return f"{ns} ns" if ns else "-"


def columns_of(
    histogram: Histogram, first_ns: int = FIRST_NS, decades: int = DECADES, per: int = PER_DECADE
) -> list[int]:
    """How many in each column of a logarithmic axis; the last one has what lies beyond, too."""
    columns = [0] * (decades * per)
    for bucket, count in histogram.buckets.items():
        middle = (end_of(bucket) + end_of(bucket - 1)) / 2
        column = int(math.log10(max(middle / first_ns, 1)) * per)
        columns[min(column, len(columns) - 1)] += count
    return columns


def bars(histogram: Histogram) -> str:
    columns = columns_of(histogram)
    most = math.log1p(max(columns))
    return "".join(
        BLOCKS[round((len(BLOCKS) - 1) * math.log1p(count) / most)] if count else " "
        for count in columns
    )


HEAD = ("scenario", "rounds", "operations", "/s", "p50", "p90", "p99", "max")
HEAD += ("kills", "forks", "interp", "result")
WIDTHS = (22, 7, 11, 8, 9, 9, 9, 9, 6, 6, 7, 9)


def row(cells: tuple[str, ...]) -> str:
    first, *others = (f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True))
    return f"{first.strip():<{WIDTHS[0]}}" + "".join(others)


def cells_of(result: Result) -> tuple[str, ...]:
    times = ["-"] * 4
    histogram = result.first_latency
    if histogram is not None:
        times = [in_words(histogram.quantile(part)) for part in (0.5, 0.9, 0.99)]
        times.append(in_words(histogram.worst))
    kept = (f"{result[what]:,}" for what in ("kills", "forks", "interpreters"))
    counts = (each if each != "0" else "-" for each in kept)
    return (
        result.title,
        f"{result['rounds']:,}",
        f"{result['operations']:,}",
        f"{result.per_second:,.0f}",
        *times,
        *counts,
        result.verdict,
    )


def lines(results: list[Result], about: dict[str, str]) -> Iterator[str]:
    line = "─" * sum(WIDTHS)
    yield ""
    yield row(HEAD)
    yield line
    for result in results:
        yield row(cells_of(result))
    yield line
    yield row(total_of(results))
    yield ""
    scale = "1 us    1 ms        1 s     "
    yield f"{'latencies':<44}{scale}  (height: logarithm of the number)"
    for result in results:
        for title, histogram in result.figures.latencies.items():
            what = f"{result.title}: {title}"
            yield f"{what[:43]:<44}{bars(histogram)}  {histogram.count:,}"
    yield ""
    late = sum(result["late by the clock"] for result in results)
    yield (
        f"later than {ALLOWED_NS / 1e6:.0f} ms by the clock: {late} waits"
        + (", each for want of a processor here or where it was brought about" if late else "")
    )
    for result in results:
        for reason, number in sorted({r: result.skipped.count(r) for r in result.skipped}.items()):
            yield f"skipped: {result.title}, {number} times: {reason}"
        for what in result.figures.counts:
            if what.startswith("left out: "):
                yield f"{result.title}: {what}"
    for result in results:
        for worker, again in result.failures:
            yield f"FAILED: {result.title}, on worker {worker}, seed {about['seed']}; again:"
            yield f"    {again}"


def figures(results: list[Result], about: dict[str, str]) -> dict[str, object]:
    """The same for machines; its keys are told in mdispatch/cli/answers.py."""
    kept = ("rounds", "operations", "definitions", "kills", "forks", "interpreters")
    return {
        "about": about,
        "scenarios": [
            {
                "scenario": result.title,
                "location": result.place,
                "result": result.verdict.lower(),
                **{what: result[what] for what in kept},
                "per_second": result.per_second,
                "latencies": [
                    {
                        "what": title,
                        "count": histogram.count,
                        "p50_ns": histogram.quantile(0.5),
                        "p90_ns": histogram.quantile(0.9),
                        "p99_ns": histogram.quantile(0.99),
                        "max_ns": histogram.worst,
                    }
                    for title, histogram in result.figures.latencies.items()
                ],
                "skipped": sorted(set(result.skipped)),
                "failures": [
                    {"worker": worker, "again": again} for worker, again in result.failures
                ],
            }
            for result in results
        ],
        "text": list(lines(results, about)),
    }


def summary_of(results: list[Result]) -> list[tuple[str, str]]:
    """What stands out: names and values."""

    def total(what: str) -> str:
        return f"{sum(result[what] for result in results):,}"

    worst = max((h.worst for r in results for h in r.figures.latencies.values()), default=0)
    return [
        ("operations", total("operations")),
        ("definitions", total("definitions")),
        ("kills", total("kills")),
        ("forks", total("forks")),
        ("interpreters", total("interpreters")),
        ("the longest of all", in_words(worst)),
    ]


def total_of(results: list[Result]) -> tuple[str, ...]:
    def total(what: str) -> str:
        return f"{sum(result[what] for result in results):,}"

    failed = sum(bool(result.failures) for result in results)
    return (
        "all",
        total("rounds"),
        total("operations"),
        *["-"] * 5,
        total("kills"),
        total("forks"),
        total("interpreters"),
        f"{failed} FAILED" if failed else "ok",
    )
