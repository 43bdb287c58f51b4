"""From a commit in one process to the waiting worker's return in another.

In C, against a bare futex between two processes (wake_up.c). In Python, against a byte through a
pipe; at the level of the registry, and as users see it, with a schema to parse in the main process.

Each with both processes on one processor, where only the work counts; on two, where waking the
other processor outweighs it; and as the scheduler likes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import count, islice
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING

import mdispatch as md
from mdispatch import _native
from mdispatch import _registry as facts

from .measure import Figure, figure, ratio, report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCKS = 15
PINGS_IN_C = 400
PINGS = 120
#: Seconds that the worker gets to fall asleep.
PAUSE = 300e-6
AIM = 2.0
#: How a Python process tells the other one.
WAYS = ("pipe", "facts", "users")

HERE = Path(__file__).parent
LIBRARY = Path(_native.__file__).parent / "libmdispatch.so.1"


def placements() -> dict[str, tuple[int, int]]:
    """Where the two processes run: processors' numbers, -1 for anywhere."""
    first, *others = sorted(os.sched_getaffinity(0))
    places = {"one processor": (first, first), "as scheduled": (-1, -1)}
    if others:
        places["two processors"] = (first, others[0])
    return places


def in_c() -> list[Figure]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder, "wake_up"))
        flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", f"-I{HERE.parent / 'native'}", "-o", program]
        sources = [str(HERE / "wake_up.c"), str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"]
        subprocess.run([os.environ.get("CC", "cc"), *flags, *sources], check=True)
        for where, cpus in placements().items():
            arguments = [str(number) for number in (BLOCKS, PINGS_IN_C, *cpus)]
            done = subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
            blocks = [line.split() for line in done.stdout.splitlines()]
            bare, registry = ([float(block[i]) for block in blocks] for i in (0, 1))
            found += [
                figure(f"C to C, {where}, bare futex: us", bare, "us", scale=1e-3),
                figure(f"C to C, {where}, md_register to md_await: us", registry, "us", scale=1e-3),
                ratio(f"C to C, {where}, registry / bare futex", registry, bare, aim=AIM),
            ]
    return found


class Worker:
    """Another Python process that waits as it is told, and says when it was woken."""

    def __init__(self, cpu: int) -> None:
        self.pipe_here, self.pipe_there = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.wake_up", "--worker", str(self.pipe_here), str(cpu)],
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


def run_on(cpu: int) -> None:
    if cpu >= 0:
        os.sched_setaffinity(0, [cpu])


def work(pipe: int, cpu: int) -> None:
    """The worker: one wait for each line that comes in."""
    run_on(cpu)
    registry = md.default_registry()
    for line in sys.stdin:
        way, ping = line.split()
        os.write(1, b"ready\n")
        if way == "pipe":
            os.read(pipe, 1)
        elif way == "facts":
            registry._facts.await_fact(facts.DEF, 0, f"facts::op_{ping}", 1, None)
        else:
            md.wait_for_def(f"users::op_{ping}", None)
        woken = monotonic_ns()
        os.write(1, f"{woken}\n".encode())


def in_python(where: str, cpus: tuple[int, int], pings: Iterator[int]) -> list[Figure]:
    allowed = os.sched_getaffinity(0)
    registry = md.default_registry()
    library = md.Library("users", "FRAGMENT")
    worker = Worker(cpus[1])
    coin = Random(1)
    run_on(cpus[0])

    def tell(way: str, ping: int) -> None:
        if way == "pipe":
            os.write(worker.pipe_there, b".")
        elif way == "facts":
            registry._facts.register(facts.DEF, 0, f"facts::op_{ping}", "", "")
        else:
            library.define(f"op_{ping}(Tensor x) -> Tensor")

    def block() -> dict[str, float]:
        took: dict[str, list[float]] = {way: [] for way in WAYS}
        for ping in islice(pings, PINGS):
            way = coin.choice(WAYS)
            took[way].append(worker.woken_after(way, ping, tell))
        return {way: median(times) for way, times in took.items()}

    try:
        blocks = [block() for _ in range(BLOCKS)]
    finally:
        worker.close()
        library.close()
        os.sched_setaffinity(0, allowed)
    pipe, by_facts, by_users = ([b[way] for b in blocks] for way in WAYS)
    what = f"Python to Python, {where}"
    return [
        figure(f"{what}, os.pipe: us", pipe, "us", scale=1e-3),
        figure(f"{what}, register to await_fact: us", by_facts, "us", scale=1e-3),
        ratio(f"{what}, registry / os.pipe", by_facts, pipe),
        ratio(f"{what}, define to wait_for_def / os.pipe", by_users, pipe),
    ]


def figures() -> list[Figure]:
    found = in_c()
    pings = count()  # every name is waited for once
    for where, cpus in placements().items():
        found += in_python(where, cpus, pings)
    return found


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work(int(sys.argv[-2]), int(sys.argv[-1]))
    else:
        report(figures())
