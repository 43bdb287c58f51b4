"""Choices: one that this interpreter has met, one that it meets, and one that it makes."""

from __future__ import annotations

from functools import partial

import mdispatch as md
from mdispatch.cli.bench.figures import Figure, figure
from mdispatch.cli.bench.measure import (
    Settings,
    compiled,
    loops_for,
    undisturbed,
    without_collector,
)
from mdispatch.cli.bench.peers import of_one

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["figures"]

ROUNDS = 60
_PROFILE, _TILES = (128, 64, 32), [16, 32, 64, 128]
_WORKS = {
    "plain call": ("f(profile)", None),
    "choose, from the second time on": ("choose('shop::gemm', profile, tiles, f)", 0.3),
    "choose, met for the first time": ("forget(); choose('shop::gemm', profile, tiles, f)", 1.0),
    "choose and withdraw, decided here": ("decide()", None),
}


def figures(asked: Settings) -> Iterator[Figure]:
    dispatcher = md.default_registry().dispatcher
    md.choose("shop::gemm", _PROFILE, _TILES, lambda: 64)

    def decide() -> None:
        md.choose("shop::gemm", (), _TILES, lambda: 64)
        md.choices.withdraw(md.choices.made("shop::gemm")[-1])

    names = {
        "f": of_one,
        "choose": md.choose,
        "forget": dispatcher.chosen.clear,
        "decide": decide,
        "profile": _PROFILE,
        "tiles": _TILES,
    }
    works = {what: compiled(statement, names) for what, (statement, _) in _WORKS.items()}
    counts = {what: loops_for(work, 1e-4 if asked.quick else 1e-3) for what, work in works.items()}
    found: dict[str, list[float]] = {what: [] for what in works}
    with without_collector():
        for _ in range(asked.rounds_of(ROUNDS)):
            for what, work in works.items():
                found[what].append(undisturbed(partial(work, counts[what])) / counts[what])
    for what, (_, aim) in _WORKS.items():
        yield figure(what, found[what], "us", scale=1e6, aim=aim)
