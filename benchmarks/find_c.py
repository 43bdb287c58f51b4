"""Finding a registration that is there, in C: in one process, and in two at once (find.c)."""

from __future__ import annotations

import tempfile

from .compiled import build, lines
from .job import Job

ROUNDS = 31
FINDS = 200_000
NAMES = (10, 4_000, 100_000)
#: Seconds, and how many times as much two processes find as one.
AIM, TWICE_AIM = 50e-9, 1.9
_TWICE = "work of two processes / of one"


def main() -> None:
    job = Job()
    finds = FINDS // 10 if job.quick else FINDS
    with tempfile.TemporaryDirectory() as folder:
        program = build("find", folder)
        for names in NAMES:
            rounds = lines(program, job.rounds(ROUNDS), finds, names)
            one, both, spin, spin_both = ([each[i] * 1e-9 for each in rounds] for i in range(4))
            among = f"md_find among {names:,}"
            found = job.values(among, one, aim=AIM)
            at_once = job.values(f"{among}, two processes at once", both)
            job.ratio(f"{among}: {_TWICE}", found, at_once, aim=TWICE_AIM, at_least=True, factor=2)
            without = f"without md_find, among {names:,}"
            bare = job.values(without, spin)
            at_once = job.values(f"{without}, two processes at once", spin_both)
            job.ratio(f"{without}: {_TWICE}", bare, at_once, factor=2)
    job.end()


if __name__ == "__main__":
    main()
