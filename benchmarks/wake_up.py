"""From a commit in one process to the waiting worker's return in another, against a byte through a
pipe: at the level of the registry, and as users see it, with a schema to parse in the main process.

Each with both processes on one processor, where only the work counts; on two, where waking the
other processor outweighs it; and as the scheduler likes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from itertools import count
from statistics import median
from time import monotonic_ns, sleep

from mdispatch import Library, default_registry, facts, wait_for_def

from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .job import Work

__all__ = ["placements", "work"]

#: A value is the median of so many pings.
_PINGS = 30
#: Seconds that the worker gets to fall asleep.
_PAUSE = 300e-6
_AIM, _USERS_AIM = 1.5, 2.5
#: The ways in which one Python process wakes the other.
_WAYS = {
    "pipe": "os.pipe",
    "facts": "register to await_fact",
    "users": "define to wait_for_def",
}
_WORKER = "import sys; from benchmarks.wake_up import work; work(*map(int, sys.argv[1:]))"


def placements() -> dict[str, tuple[int, int]]:
    """Where the two processes run: processors' numbers, -1 for anywhere."""
    first, *others = sorted(os.sched_getaffinity(0))
    places = {"one processor": (first, first), "as scheduled": (-1, -1)}
    if others:
        places["two processors"] = (first, others[0])
    return places


class _Worker:
    """Another Python process: it waits in the way that each order names, and answers with the time
    at which it woke. It ends with this process, whose pipe it reads.
    """

    def __init__(self, cpu: int) -> None:
        self.pipe_here, self.pipe_there = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(self.pipe_here), str(cpu)],
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
        sleep(_PAUSE)
        began = monotonic_ns()
        tell(way, ping)
        return int(answers.readline()) - began


def _run_on(cpu: int) -> None:
    if cpu >= 0:
        os.sched_setaffinity(0, [cpu])


def work(pipe: int, cpu: int) -> None:
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


def _waking(way: str, cpus: tuple[int, int]) -> Work:
    registry = default_registry()
    library = Library("users", "FRAGMENT")
    worker = _Worker(cpus[1])
    _run_on(cpus[0])
    pings = count()  # every name is waited for once

    def tell(way: str, ping: int) -> None:
        if way == "pipe":
            os.write(worker.pipe_there, b".")
        elif way == "facts":
            registry.dispatcher.facts.register(facts.DEF, 0, f"facts::op_{ping}", "", "")
        else:
            library.define(f"op_{ping}(Tensor x) -> Tensor")

    def block(repeats: int) -> float:
        """As if each of the repetitions took what half of the pings take."""
        took = [worker.woken_after(way, next(pings), tell) for _ in range(_PINGS)]
        return repeats * median(took) * 1e-9

    return block


def main() -> None:
    job = Job()
    for where, cpus in placements().items():
        pipe, by_facts, by_users = (
            job.seconds(f"{where}, {told}", partial(_waking, way, cpus))
            for way, told in _WAYS.items()
        )
        job.ratio(f"{where}, {_WAYS['facts']} / os.pipe", by_facts, pipe, aim=_AIM)
        job.ratio(f"{where}, {_WAYS['users']} / os.pipe", by_users, pipe, aim=_USERS_AIM)
    job.end()


if __name__ == "__main__":
    main()
