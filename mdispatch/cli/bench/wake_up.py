"""From a commit in one process to the waiting worker's return in another, against a byte through a
pipe: at the level of the registry, and as users see it, with a schema to parse in the main process.

Each with both processes on one processor, where only the work counts; on two, where waking the
other processor outweighs it; and as the scheduler likes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count, islice
from random import Random
from statistics import median
from time import monotonic_ns, sleep

from ... import facts
from ...registry import default_registry
from ...registry.library import Library
from ...registry.waiting import wait_for_def
from .figures import Figure, figure, ratio
from .measure import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCKS = 15
PINGS, QUICK_PINGS = 120, 30
#: Seconds that the worker gets to fall asleep.
PAUSE = 300e-6
_AIM, _USERS_AIM = 1.5, 2.5
#: The ways in which one Python process wakes the other.
WAYS = ("pipe", "facts", "users")


def placements() -> dict[str, tuple[int, int]]:
    """Where the two processes run: processors' numbers, -1 for anywhere."""
    first, *others = sorted(os.sched_getaffinity(0))
    places = {"one processor": (first, first), "as scheduled": (-1, -1)}
    if others:
        places["two processors"] = (first, others[0])
    return places


class _Worker:
    """Another Python process: it waits in the way that each order names, and answers with the time
    at which it woke.
    """

    def __init__(self, cpu: int) -> None:
        self.pipe_here, self.pipe_there = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mdispatch.cli.bench.wake_up", str(self.pipe_here), str(cpu)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[self.pipe_here],
            bufsize=0,
        )

    def woken_after(self, way: str, ping: int, tell: Callable[[str, int], None]) -> float:
        """ns from before ``tell`` until after the wait that it ends."""
        orders, answers = self.process.stdin, self.process.stdout
        assert orders is not None
        assert answers is not None
        orders.write(f"{way} {ping}\n".encode())
        if answers.readline() != b"ready\n":
            raise RuntimeError("the worker has gone")
        sleep(PAUSE)
        began = monotonic_ns()
        tell(way, ping)
        return int(answers.readline()) - began

    def close(self) -> None:
        self.process.communicate()
        os.close(self.pipe_here)
        os.close(self.pipe_there)


def _run_on(cpu: int) -> None:
    if cpu >= 0:
        os.sched_setaffinity(0, [cpu])


def _work(pipe: int, cpu: int) -> None:
    """The worker: one wait for each line that comes in."""
    _run_on(cpu)
    registry = default_registry()
    for line in sys.stdin:
        way, ping = line.split()
        os.write(1, b"ready\n")
        if way == "pipe":
            os.read(pipe, 1)
        elif way == "facts":
            registry.dispatcher.facts.await_fact(facts.DEF, 0, f"facts::op_{ping}", 1, None)
        else:
            wait_for_def(f"users::op_{ping}", None)
        woken = monotonic_ns()
        os.write(1, f"{woken}\n".encode())


def _measured(
    where: str, cpus: tuple[int, int], pings: Iterator[int], asked: Settings
) -> Iterator[Figure]:
    allowed = os.sched_getaffinity(0)
    registry = default_registry()
    library = Library("users", "FRAGMENT")
    worker = _Worker(cpus[1])
    coin = Random(1)
    _run_on(cpus[0])

    def tell(way: str, ping: int) -> None:
        if way == "pipe":
            os.write(worker.pipe_there, b".")
        elif way == "facts":
            registry.dispatcher.facts.register(facts.DEF, 0, f"facts::op_{ping}", "", "")
        else:
            library.define(f"op_{ping}(Tensor x) -> Tensor")

    def block() -> dict[str, float]:
        took: dict[str, list[float]] = {way: [] for way in WAYS}
        for ping in islice(pings, QUICK_PINGS if asked.quick else PINGS):
            way = coin.choice(WAYS)
            took[way].append(worker.woken_after(way, ping, tell))
        return {way: median(times) for way, times in took.items()}

    try:
        found = [block() for _ in range(asked.rounds_of(BLOCKS))]
    finally:
        worker.close()
        library.close()
        os.sched_setaffinity(0, allowed)
    pipe, by_facts, by_users = ([b[way] for b in found] for way in WAYS)
    yield figure(f"{where}, os.pipe", pipe, "us", scale=1e-3)
    yield figure(f"{where}, register to await_fact", by_facts, "us", scale=1e-3)
    yield ratio(f"{where}, register to await_fact / os.pipe", by_facts, pipe, aim=_AIM)
    told = f"{where}, define to wait_for_def / os.pipe"
    yield ratio(told, by_users, pipe, aim=_USERS_AIM)


def figures(asked: Settings) -> Iterator[Figure]:
    pings = count()  # every name is waited for once
    for where, cpus in placements().items():
        yield from _measured(where, cpus, pings, asked)


if __name__ == "__main__":
    _work(int(sys.argv[1]), int(sys.argv[2]))
