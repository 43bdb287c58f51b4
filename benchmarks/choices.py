"""Choices: one that this interpreter has met, one that it meets, and one that it makes."""

from __future__ import annotations

import mdispatch as md

from .job import Job
from .peers import of_one

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PROFILE, _TILES = (128, 64, 32), [16, 32, 64, 128]
#: A statement, and how many seconds it may take.
_WORKS = {
    "plain call": ("f(profile)", None),
    "choose, from the second time on": ("choose('shop::gemm', profile, tiles, f)", 0.3e-6),
    "choose, met for the first time": ("forget(); choose('shop::gemm', profile, tiles, f)", 1e-6),
    "choose and withdraw, decided here": ("decide()", None),
}


def _prepare() -> tuple[Callable[..., object], ...]:
    dispatcher = md.default_registry().dispatcher
    md.choose("shop::gemm", _PROFILE, _TILES, lambda: 64)

    def decide() -> None:
        md.choose("shop::gemm", (), _TILES, lambda: 64)
        md.choices.withdraw(md.choices.made("shop::gemm")[-1])

    return of_one, md.choose, dispatcher.chosen.clear, decide


def main() -> None:
    job = Job()
    for what, (statement, aim) in _WORKS.items():
        job.statement(
            what,
            statement,
            "(f, choose, forget, decide), profile, tiles",
            lambda: (_prepare(), _PROFILE, _TILES),
            aim=aim,
        )
    job.end()


if __name__ == "__main__":
    main()
