"""Two workers at once, against one of them alone: interpreters, processes, threads.

A worker runs some code once (``before``), and other code on each order (``busy``).
"""

from __future__ import annotations

import subprocess
import sys
from threading import Thread
from time import perf_counter

from mdispatch.pool.interpreters import create_interpreter

from . import fresh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyperf import Benchmark

    from .job import Job

    Work = Callable[[], object]
    #: Seconds of one alone and of two at once, round by round.
    Times = tuple[Sequence[float], Sequence[float]]

__all__ = ["Workers", "in_turns", "kept", "times_the_work"]

_SERVE = """
import sys
sys.path[:] = {path!r}
{before}
busy = compile({busy!r}, "busy", "exec")
for line in sys.stdin:
    exec(busy)
    print(flush=True)
"""


class Workers:
    """Interpreters and processes that are ready to work; a context that ends them."""

    def __init__(self) -> None:
        self._end: list[Callable[[], object]] = []

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for end in self._end:
            end()

    def interpreter(self, before: str, busy: str, *, own_gil: bool) -> Work:
        made = create_interpreter(own_gil=own_gil)
        self._end.append(made.close)
        fresh.answer_of(made, f"{before}\ntell(None)\n")
        return lambda: made.exec(busy)

    def process(self, before: str, busy: str) -> Work:
        code = _SERVE.format(path=sys.path, before=before, busy=busy)
        worker = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._end.append(worker.communicate)
        orders, answers = worker.stdin, worker.stdout
        assert orders is not None
        assert answers is not None

        def work() -> None:
            orders.write("\n")
            if not answers.readline():
                raise RuntimeError("a process that was to work has gone")

        return work


def _wall(works: Sequence[Work]) -> float:
    """Seconds until all are through, each in a thread of its own."""
    threads = [Thread(target=work) for work in works]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return perf_counter() - began


def in_turns(kinds: Mapping[str, Sequence[Work]], rounds: int) -> dict[str, Times]:
    """Of each kind of workers, the seconds of one alone and of two at once."""
    for pair in kinds.values():
        _wall(pair)
    found: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in kinds}
    for round_ in range(rounds):
        for kind, pair in kinds.items():
            found[kind][0].append(_wall([pair[round_ % 2]]))
            found[kind][1].append(_wall(pair))
    return dict(found)


def kept(job: Job, found: Mapping[str, Times]) -> dict[str, tuple[Benchmark | None, ...]]:
    """The seconds of each kind of workers: of one alone, and of two at once."""
    return {
        kind: (job.values(f"{kind}, one", one), job.values(f"{kind}, two at once", both))
        for kind, (one, both) in found.items()
    }


def times_the_work(
    job: Job, found: Mapping[str, Times], what: str, aims: Mapping[str, float]
) -> None:
    """How many times as much two did as one in the same time: 2.0 is two cores, 1.0 is one GIL."""
    named = {f"{kind}, {what}": times for kind, times in found.items()}
    for kind, (one, both) in zip(found, kept(job, named).values(), strict=True):
        name = f"{kind}: work of two {what} / of one"
        job.ratio(name, one, both, aim=aims.get(kind), at_least=True, factor=2)
