"""Finding a fact that is there, in C: in one process, and in two at once (find.c)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from mdispatch.cli.bench.figures import Figure, figure
from mdispatch.cli.bench.measure import Settings

from .compiled import build, lines

ROUNDS = 31
FINDS = 200_000
NAMES = (10, 4_000, 100_000)
#: Nanoseconds, and how many times as much two processes find as one.
AIM, TWICE_AIM = 50.0, 1.9


def figures(asked: Settings) -> Iterator[Figure]:
    finds = FINDS // 10 if asked.quick else FINDS
    with tempfile.TemporaryDirectory() as folder:
        program = build("find", folder)
        for names in NAMES:
            rounds = lines(program, asked.rounds_of(ROUNDS), finds, names)
            one, both, spin, spin_both = ([each[i] for each in rounds] for i in range(4))
            yield figure(f"md_find among {names:,}", one, "ns", aim=AIM)
            yield twice(f"md_find among {names:,}", one, both, TWICE_AIM)
            yield twice("the same loop without md_find", spin, spin_both)


def twice(what: str, one: list[float], both: list[float], aim: float | None = None) -> Figure:
    rounds = [2 * a / b for a, b in zip(one, both, strict=True)]
    name = f"{what}: work of two processes / of one"
    best = 2 * min(one) / min(both)
    return figure(name, rounds, "x", aim=aim, at_least=True, best=best)
