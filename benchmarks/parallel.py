"""Two workers that run a kernel at once, against one alone: 1.0 is two cores, 2.0 is one GIL.

Two processes, which share no GIL, do the same in turns with the interpreters: their ratio is what
the machine had to give, and while that is not near 1.0 itself, the others say nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING

import mdispatch as md
from mdispatch.host import OWN_GIL, create_interpreter

from . import fresh
from .measure import Figure, ratio, report

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdispatch.host import Interpreter

    Work = Callable[[], object]

#: Short and many: on a busy machine some of them find it calm, and the column of the best shows it.
ROUNDS = 101
#: Of two own-GIL interpreters. Also missed when others keep a core busy: see the two processes.
AIM = 1.2

MODULE = """
import mdispatch as md

class Array:
    __dispatch_keys__ = "CPU"

lib = md.Library("busy", "DEF")
lib.define("spin(Tensor x, int n) -> int")

@lib.impl("spin", dispatch_key="CPU")
def spin(x, n):
    total = 0
    for i in range(n):
        total += i & 7
    return total
"""

BEFORE = """
import mdispatch as md
md.warm_up("busy_ops")
from busy_ops import Array
x = Array()
md.ops.busy.spin(x, 10)
"""
BUSY = "for _ in range(8): md.ops.busy.spin(x, 50_000)"
SERVE = f"""
import sys
sys.path[:] = {{path!r}}
{BEFORE}
for line in sys.stdin:
    {BUSY}
    print(flush=True)
"""


def process() -> subprocess.Popen[str]:
    """A process that works once for every line it is sent, and answers with one."""
    return subprocess.Popen(
        [sys.executable, "-c", SERVE.format(path=sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def work_of_process(worker: subprocess.Popen[str]) -> Work:
    def work() -> None:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write("\n")
        worker.stdout.readline()

    return work


def interpreter(own_gil: bool) -> Interpreter:
    made = create_interpreter(own_gil=own_gil)
    fresh.answer_of(made, f"{BEFORE}tell(None)\n")
    return made


def work_of_interpreter(worker: Interpreter) -> Work:
    return lambda: worker.exec(BUSY)


def wall(works: list[Work]) -> float:
    """Seconds until all are through, each in a thread of its own."""
    threads = [Thread(target=work) for work in works]
    began = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return perf_counter() - began


def measure(kinds: dict[str, list[Work]]) -> dict[str, tuple[list[float], list[float]]]:
    """Of each kind of workers, the seconds of one alone and of two at once, round by round."""
    for pair in kinds.values():
        wall(pair)
    found: dict[str, tuple[list[float], list[float]]] = {kind: ([], []) for kind in kinds}
    for round_ in range(ROUNDS):
        for kind, pair in kinds.items():
            found[kind][0].append(wall([pair[round_ % 2]]))
            found[kind][1].append(wall(pair))
    return found


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "busy_ops.py").write_text(MODULE, encoding="utf-8")
        sys.path.insert(0, folder)
        md.warm_up("busy_ops")
        processes = [process(), process()]
        interpreters = {"shared-GIL interpreters": [interpreter(False), interpreter(False)]}
        if OWN_GIL:
            interpreters["own-GIL interpreters"] = [interpreter(True), interpreter(True)]
        kinds = {"processes": [work_of_process(p) for p in processes]}
        for kind, pair in interpreters.items():
            kinds[kind] = [work_of_interpreter(i) for i in pair]
        times = measure(kinds)
        for p in processes:
            p.communicate()
        for pair in interpreters.values():
            for i in pair:
                i.close()
    found = []
    for kind, (one, both) in times.items():
        aim = AIM if kind.startswith("own-GIL") else None
        found.append(ratio(f"two {kind} at once / one alone", both, one, aim=aim))
    return found


if __name__ == "__main__":
    report(figures())
