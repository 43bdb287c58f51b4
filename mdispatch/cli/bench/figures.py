"""The figures that a job of ``mdispatch bench`` answers with.

Seconds mean little on another machine. So most figures are ratios of two times that one process
measured in turns. Nothing outside the bench imports this module.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from statistics import median, quantiles
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TextIO

#: A figure is unsteady unless half of its rounds lie within this part of the median.
_STEADY = 0.1


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a job's table.

    ``aim`` is the largest value wanted (or, with ``at_least``, the smallest); None: just to know.
    ``peer`` says whose it is where several do the same. ``best`` is the smallest value; of a ratio
    it is the smallest of these over the smallest of those: on a calm machine close to the median.
    ``low`` and ``high`` are the quartiles of the rounds. The unit of a ratio is "x", that of the
    difference between two "+x".
    """

    what: str
    median: float
    best: float
    unit: str
    rounds: int
    aim: float | None = None
    at_least: bool = False
    peer: str = ""
    low: float = 0.0
    high: float = 0.0
    processes: int = 1
    #: One for each round, until the processes that took them are merged.
    values: tuple[float, ...] = ()

    @property
    def missed(self) -> bool:
        """Whether there is an aim and the median is on its wrong side."""
        if self.aim is None:
            return False
        return self.median < self.aim if self.at_least else self.median > self.aim

    @property
    def unsteady(self) -> bool:
        """Whether the rounds lie so far apart that the median is not to be relied upon: half of
        them not within a tenth of it, or of a plain call where it is the difference of two ratios.
        """
        scale = 1.0 if self.unit == "+x" else abs(self.median)
        return self.high - self.low > 2 * _STEADY * scale


class LeftOut(NamedTuple):
    """Something that a job could not measure here, and the reason."""

    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The figures of one process of a job, and what the process could not measure."""

    figures: tuple[Figure, ...]
    left_out: tuple[LeftOut, ...] = ()


def figure(
    what: str,
    values: Iterable[float],
    unit: str,
    *,
    scale: float = 1.0,
    aim: float | None = None,
    at_least: bool = False,
    peer: str = "",
    best: float | None = None,
) -> Figure:
    """The figure of several measurements of one thing, each multiplied by ``scale``."""
    scaled = tuple(value * scale for value in values)
    if best is None:
        best = max(scaled) if at_least else min(scaled)
    low, _, high = quantiles(scaled, n=4, method="inclusive") if scaled[1:] else scaled * 3
    typical, rounds = median(scaled), len(scaled)
    return Figure(what, typical, best, unit, rounds, aim, at_least, peer, low, high, 1, scaled)


def ratio(
    what: str,
    these: Iterable[float],
    those: Iterable[float],
    *,
    aim: float | None = None,
    at_least: bool = False,
    peer: str = "",
) -> Figure:
    """How many times longer than those these took: by the median of the rounds, and at best."""
    these, those = list(these), list(those)
    rounds = [a / b for a, b in zip(these, those, strict=True)]
    best = min(these) / min(those)
    return figure(what, rounds, "x", aim=aim, at_least=at_least, peer=peer, best=best)


def merged(answers: Sequence[Answer]) -> Answer:
    """One answer of several processes that did the same: over all rounds of all, the best as it was
    in the middle one.
    """
    first = answers[0]
    figures = []
    for row in zip(*(answer.figures for answer in answers), strict=True):
        one = row[0]
        values = [value for each in row for value in each.values]
        best = median(each.best for each in row)
        if values:
            one = figure(
                one.what,
                values,
                one.unit,
                aim=one.aim,
                at_least=one.at_least,
                peer=one.peer,
                best=best,
            )
        figures.append(replace(one, processes=len(row), values=()))
    return Answer(tuple(figures), first.left_out)


# --- from the process that measures to the command ------------------------------------------------


def report(found: Iterable[Figure | LeftOut], file: TextIO | None = None) -> None:
    """Prints what a job has found, for :func:`reported` to read."""
    figures, left_out = [], []
    for each in found:
        if isinstance(each, Figure):
            figures.append(asdict(each))
        else:
            left_out.append(each)
    print(json.dumps({"figures": figures, "left_out": left_out}), file=file, flush=True)


def reported(text: str) -> Answer:
    """Reads the text that :func:`report` printed. ValueError or TypeError for any other text."""
    answer = json.loads(text)
    names = {each.name for each in fields(Figure)}
    found = []
    for each in answer["figures"]:
        kept = {name: value for name, value in each.items() if name in names}
        found.append(Figure(**kept | {"values": tuple(kept.get("values", ()))}))
    return Answer(tuple(found), tuple(LeftOut(who, why) for who, why in answer["left_out"]))
