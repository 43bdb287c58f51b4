"""Taking time on machines where seconds mean little.

    code           each work has code of its own, as the interpreter learns what a call does where
                   it stands; bytecode is there, whatever the caller's habits
    before         warmed up; inner loops as long as a reading of the clock is worth
    rounds         works take turns, each right after the one that it is compared with: whatever
                   else the machine does disturbs both; taken again when another process got the
                   processor meanwhile
    collector      does not run in what is timed
    processes      several, each on a processor of its own choice where that is possible: addresses
                   and hashes differ from one to the next

The loop around the calls is in the figures, on both sides.
"""

from __future__ import annotations

import gc
import json
import os
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat
from resource import RUSAGE_THREAD, getrusage
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, TypeVar

    T = TypeVar("T")
    #: Seconds that so many repetitions took.
    Work = Callable[[int], float]

#: The environment variable that carries the settings to a measuring process.
ENVIRONMENT = "MDISPATCH_BENCH"
#: What one measurement takes: 5,000 times what reading the clock does, and much less than a time
#: slice.
_SECONDS, _QUICK_SECONDS = 250e-6, 100e-6
#: How often a disturbed measurement is repeated before it counts as it is.
_TRIES = 10
#: How often a work runs before its first round.
_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Settings:
    """The command's settings, and the number of this process among those of its job."""

    rounds: int | None = None
    quick: bool = False
    peers: tuple[str, ...] | None = None
    process: int = 0

    def rounds_of(self, usual: int) -> int:
        """The rounds of a job that makes ``usual`` rounds unless the command says otherwise."""
        return self.rounds or (max(3, usual // 10) if self.quick else usual)

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Settings:
        values = json.loads(text)
        peers = values.pop("peers")
        return cls(**values, peers=None if peers is None else tuple(peers))


def settings() -> Settings:
    """The settings of this process; the defaults where the environment names none."""
    text = os.environ.get(ENVIRONMENT)
    return Settings.from_text(text) if text else Settings()


def pin(number: int) -> int | None:
    """Keeps this process on one of the processors that it may use. None where that cannot be."""
    try:
        allowed = sorted(os.sched_getaffinity(0))
        chosen = allowed[-1 - number % len(allowed)]  # interrupts like the first
        os.sched_setaffinity(0, [chosen])
    except (AttributeError, OSError):
        return None
    return chosen


class without_collector:
    """A context in which the garbage collector does not run."""

    def __enter__(self) -> None:
        self._collecting = gc.isenabled()
        gc.disable()

    def __exit__(self, *error: object) -> None:
        if self._collecting:
            gc.enable()


def undisturbed(take: Callable[[], T]) -> T:
    """Calls ``take`` until it ran without losing its processor to another process or thread, and
    returns that result. Gives up after some tries and returns the last result.
    """
    for _ in range(_TRIES):
        before = _switches()
        taken = take()
        if _switches() == before:
            break
    return taken


def _switches() -> int:
    """How often another thread or process took the processor from this thread."""
    return getrusage(RUSAGE_THREAD).ru_nivcsw


_TEMPLATE = """
def work(count, clock=clock, repeat=repeat, {names}):
    began = clock()
    for _ in repeat(None, count):
        {statement}
    return clock() - began
"""


def compiled(statement: str, names: Mapping[str, Any]) -> Work:
    """A function that runs a statement ``count`` times in code of its own, with these local names
    bound, and returns the seconds.
    """
    keywords = ", ".join(f"{name}={name}" for name in names)
    scope: dict[str, Any] = {"clock": perf_counter, "repeat": repeat, **names}
    exec(_TEMPLATE.format(names=keywords, statement=statement), scope)
    work: Work = scope["work"]
    return work


def loops_for(work: Work, seconds: float) -> int:
    """How many repetitions take about so long: a power of two."""
    count = 1
    while work(count) < seconds and count < 1 << 30:
        count *= 2
    return count


def in_turns(
    works: Mapping[str, Work], against: Mapping[str, str], asked: Settings, usual: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Of each work that is named in ``against``, round by round: the seconds of one repetition, and
    those of the work that it is compared with, which ran right before it.
    """
    seconds = _QUICK_SECONDS if asked.quick else _SECONDS
    with without_collector():
        counts = {}
        for name, work in works.items():
            counts[name] = loops_for(work, seconds)
            for _ in range(2 if asked.quick else _WARM_UP):
                work(counts[name])
            counts[name] = loops_for(work, seconds)  # by now it may be much faster

        def seconds_of(name: str) -> float:
            return works[name](counts[name]) / counts[name]

        def pair(name: str) -> tuple[float, float]:
            # Warms the caches, so that the work which ran before does not matter.
            works[name](counts[name] // 4 + 1)
            those = seconds_of(against[name])
            return those, seconds_of(name)

        found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in against}
        for round_ in range(asked.rounds_of(usual)):
            for name in _turned(list(against), round_):
                those, these = undisturbed(partial(pair, name))
                found[name][0].append(these)
                found[name][1].append(those)
        gc.collect()
    return found


def _turned(names: Sequence[str], by: int) -> Iterable[str]:
    """Rotates the names, so that no work always runs after the same other work."""
    by %= len(names) or 1
    return (*names[by:], *names[:by])
