"""Many processes that wait for one thing: from the telling until the first of them has returned,
and until the last one has, by ``wait_for_def`` and by a condition of multiprocessing, in turns.

The processes are children of a fork, which wait in the registry of their parent.
"""

from __future__ import annotations

import mmap
import os
from multiprocessing import get_context
from time import monotonic_ns, sleep

from mdispatch import Library, default_registry, wait_for_def

from .job import Job

WAITERS, QUICK_WAITERS = 256, 32
ROUNDS = 21
#: Seconds that the waiters get to fall asleep.
PAUSE = 0.05
_AIM = 1.0
WAYS = ("condition", "users")


class _Waiters:
    """Processes that wait in each round, in both ways, and note when they woke."""

    def __init__(self, count: int, rounds: int) -> None:
        forks = get_context("fork")
        self.condition = forks.Condition()
        self.count = count
        self._woken = memoryview(mmap.mmap(-1, 8 * count)).cast("q")
        self._ready, self._done = os.pipe(), os.pipe()
        work = [(number, rounds) for number in range(count)]
        self._processes = [forks.Process(target=self._work, args=each) for each in work]
        for process in self._processes:
            process.start()

    def _work(self, number: int, rounds: int) -> None:
        for round_ in range(rounds):
            for way in WAYS:
                if way == "condition":
                    with self.condition:
                        os.write(self._ready[1], b".")
                        self.condition.wait()
                else:
                    os.write(self._ready[1], b".")
                    wait_for_def(f"waiters::op_{round_}", None)
                self._woken[number] = monotonic_ns()
                os.write(self._done[1], b".")

    def fall_asleep(self) -> None:
        self._all(self._ready[0])
        sleep(PAUSE)

    def woken(self) -> list[int]:
        self._all(self._done[0])
        return sorted(self._woken)

    def _all(self, pipe: int) -> None:
        left = self.count
        while left:
            left -= len(os.read(pipe, left))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for end in (*self._ready, *self._done):
            os.close(end)


def main() -> None:
    job = Job()
    count = QUICK_WAITERS if job.quick else WAITERS
    rounds = job.rounds(ROUNDS) + 1
    default_registry()
    library = Library("waiters", "DEF")
    waiters = _Waiters(count, rounds)
    first: dict[str, list[float]] = {way: [] for way in WAYS}
    last: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        for round_ in range(rounds):
            for way in WAYS:
                waiters.fall_asleep()
                began = monotonic_ns()
                if way == "condition":
                    with waiters.condition:
                        waiters.condition.notify_all()
                else:
                    library.define(f"op_{round_}(Tensor x) -> Tensor")
                woken = waiters.woken()
                if round_:  # the children join in the first one
                    first[way].append((woken[0] - began) * 1e-9)
                    last[way].append((woken[-1] - began) * 1e-9)
    finally:
        waiters.close()
        library.close()
    for what, took in (("first", first), ("last", last)):
        each = f"{what} of {count} waiters"
        condition = job.values(f"{each}, multiprocessing.Condition", took["condition"])
        users = job.values(f"{each}, define to wait_for_def", took["users"])
        aim = _AIM if what == "last" else None
        job.ratio(f"{each}, wait_for_def / Condition", users, condition, aim=aim)
    job.end()


if __name__ == "__main__":
    main()
