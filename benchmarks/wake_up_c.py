"""From a commit in one process to the waiting worker's return in another, in C: against a bare
futex between two processes (wake_up.c).
"""

from __future__ import annotations

import tempfile

from .compiled import build, lines
from .job import Job
from .wake_up import placements

BLOCKS = 15
PINGS = 400
AIM = 2.0


def main() -> None:
    job = Job()
    blocks = job.rounds(BLOCKS)
    with tempfile.TemporaryDirectory() as folder:
        program = build("wake_up", folder)
        for where, cpus in placements().items():
            rounds = lines(program, blocks, PINGS, *cpus)
            taken = ([each[i] * 1e-9 for each in rounds] for i in (0, 1))
            bare = job.values(f"{where}, bare futex", next(taken))
            ours = job.values(f"{where}, md_register to md_await", next(taken))
            job.ratio(f"{where}, registry / bare futex", ours, bare, aim=AIM)
    job.end()


if __name__ == "__main__":
    main()
