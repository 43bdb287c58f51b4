"""How figures are taken, on machines where seconds mean little.

What is compared is measured in turns, in one process, many times; the figure is the median of the
ratios of neighbours, since whatever else the machine does disturbs both. Beside it stands the ratio
of the smallest values of each: on a calm machine the two are close.
"""

from __future__ import annotations

import gc
import json
from dataclasses import asdict, dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Figure", "figure", "ratio", "report", "time_of"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a benchmark's table. ``aim`` is the largest value wanted; None: just to know."""

    what: str
    median: float
    best: float
    unit: str
    rounds: int
    aim: float | None = None


def figure(
    what: str,
    values: Iterable[float],
    unit: str,
    *,
    scale: float = 1.0,
    aim: float | None = None,
) -> Figure:
    """The figure of several measurements of one thing, each multiplied by ``scale``."""
    scaled = [value * scale for value in values]
    return Figure(what, median(scaled), min(scaled), unit, len(scaled), aim)


def ratio(
    what: str, these: Iterable[float], those: Iterable[float], *, aim: float | None = None
) -> Figure:
    """How many times longer than those these took: by the median of the rounds, and at best."""
    these, those = list(these), list(those)
    typical = median(a / b for a, b in zip(these, those, strict=True))
    return Figure(what, typical, min(these) / min(those), "x", len(these), aim)


def time_of(work: Callable[[], object]) -> float:
    """Seconds that one call takes, without the garbage collector's."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        began = perf_counter()
        work()
        return perf_counter() - began
    finally:
        if collecting:
            gc.enable()


def report(figures: Iterable[Figure]) -> None:
    """What a job prints: run.py reads it."""
    print(json.dumps([asdict(f) for f in figures]), flush=True)
