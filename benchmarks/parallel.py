"""Two workers that run a kernel at once, against one alone: 1.0 is two cores, 2.0 is one GIL.

Two processes, which share no GIL, do the same in turns with the interpreters. Their ratio shows how
much the machine had to give: unless it is near 1.0, the other ratios say nothing.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import mdispatch as md
from mdispatch.pool.interpreters import OWN_GIL

from .job import Job
from .pairs import Workers, in_turns, kept

#: Short and many: on a busy machine some of them find it calm, and the column of the best shows it.
ROUNDS = 101
#: Of two own-GIL interpreters. Also missed when others keep a core busy: see the two processes.
_AIM = 1.2

_MODULE = """
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

_BEFORE = """
import mdispatch as md
md.warm_up("busy_ops")
from busy_ops import Array
x = Array()
md.ops.busy.spin(x, 10)
"""
_BUSY = "for _ in range(8): md.ops.busy.spin(x, 50_000)"


def main() -> None:
    job = Job()
    with tempfile.TemporaryDirectory() as folder, Workers() as workers:
        Path(folder, "busy_ops.py").write_text(_MODULE, encoding="utf-8")
        sys.path.insert(0, folder)
        md.warm_up("busy_ops")
        kinds = {"processes": [workers.process(_BEFORE, _BUSY) for _ in range(2)]}
        for name, own_gil in (("shared-GIL", False), ("own-GIL", True)):
            if OWN_GIL or not own_gil:
                kinds[f"{name} interpreters"] = [
                    workers.interpreter(_BEFORE, _BUSY, own_gil=own_gil) for _ in range(2)
                ]
        times = in_turns(kinds, job.rounds(ROUNDS))
    for kind, (one, both) in kept(job, times).items():
        aim = _AIM if kind.startswith("own-GIL") else None
        job.ratio(f"two {kind} at once / one alone", both, one, aim=aim)
    job.end()


if __name__ == "__main__":
    main()
