"""A wait of 10 ms for an operator that does not come, in registries of several sizes: how long it
and its error take, and how long another thread of the interpreter could not run meanwhile.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from time import perf_counter, sleep

import mdispatch as md

from .job import Job

ROUNDS = 20
COUNTS, QUICK_COUNT = (1_000, 10_000, 200_000), 300
CAPACITY = 256 << 20
_NAMES = {"alike": "bench::operator_x00150", "elsewhere": "other::f"}


class _Other:
    """A thread that notes the longest time that it could not run."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._ends = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        last = perf_counter()
        while not self._ends:
            sleep(0.0005)
            now = perf_counter()
            self.longest, last = max(self.longest, now - last), now

    def end(self) -> float:
        self._ends = True
        self._thread.join()
        return self.longest


def main() -> None:
    job = Job()
    for count in (QUICK_COUNT,) if job.quick else COUNTS:
        with md.Registry.create(capacity=CAPACITY) as registry:
            library = md.Library("bench", "DEF", registry=registry)
            for i in range(count):
                library.define(f"operator_{i:06}(Tensor x) -> Tensor")
            for what, name in _NAMES.items():
                waits, stood = [], []
                for _ in range(job.rounds(ROUNDS)):
                    other, begun = _Other(), perf_counter()
                    with suppress(md.errors.NotRegisteredError):
                        md.wait_for_def(name, timeout=0.01, registry=registry)
                    waits.append(perf_counter() - begun)
                    stood.append(other.end())
                told = f"{what}, {count:,}"
                job.values(f"wait, {told}", waits)
                job.values(f"another thread, {told}", stood)
    job.end()


if __name__ == "__main__":
    main()
