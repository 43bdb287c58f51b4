"""Agreements on a dict of 50 fields, and on the steps of a running job."""

from __future__ import annotations

from itertools import count

import mdispatch as md

from .job import Job
from .peers import of_one

_CONFIG = {f"field{n}": (n, "text", 2.5, None, True)[n % 5] for n in range(50)}
_WINDOW = 1000
#: A statement, and how many seconds it may take.
_WORKS = {
    "plain call": ("f(config)", None),
    "agree, the same value again": ("agree('again', config)", 1e-6),
    "agree and leave, the first time": ("first()", 60e-6),
    "a step that is there": ("there.agree(1 << 30, 'digest')", 3e-6),
    "a step that this member writes": ("steps.agree(next(numbers), 'digest')", 10e-6),
}


def _prepare() -> tuple[object, ...]:
    steps = md.agreeing("steps", window=_WINDOW)
    there = md.agreeing("there", window=_WINDOW)
    there.agree(1 << 30, "digest")
    md.agree("again", _CONFIG)

    def first() -> None:
        md.agree("first", _CONFIG)
        md.choices.leave("first")

    return of_one, md.agree, first, steps, there, count()


def main() -> None:
    job = Job()
    for what, (statement, aim) in _WORKS.items():
        names = "(f, agree, first, steps, there, numbers), config"
        job.statement(what, statement, names, lambda: (_prepare(), _CONFIG), aim=aim)
    job.end()


if __name__ == "__main__":
    main()
