"""From a commit in one process to the waiting worker's return in another, in C: against a bare
futex between two processes (wake_up.c).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

from mdispatch.cli.bench.figures import Figure, figure, ratio
from mdispatch.cli.bench.measure import Settings
from mdispatch.cli.bench.wake_up import placements

from .compiled import build, lines

BLOCKS = 15
PINGS = 400
AIM = 2.0


def figures(asked: Settings) -> Iterator[Figure]:
    blocks = asked.rounds_of(BLOCKS)
    with tempfile.TemporaryDirectory() as folder:
        program = build("wake_up", folder)
        for where, cpus in placements().items():
            rounds = lines(program, blocks, PINGS, *cpus)
            bare, registry = ([each[i] for each in rounds] for i in (0, 1))
            yield figure(f"C to C, {where}, bare futex", bare, "us", scale=1e-3)
            yield figure(f"C to C, {where}, md_register to md_await", registry, "us", scale=1e-3)
            yield ratio(f"C to C, {where}, registry / bare futex", registry, bare, aim=AIM)
