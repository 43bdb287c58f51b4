"""Who serves kernels to other interpreters and processes, as everybody can see it: from the offers
of the members.
"""

from __future__ import annotations

from dataclasses import dataclass

from .offers import offer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from .offers import Offer
    from .registration import Registration


@dataclass(frozen=True, slots=True)
class Serving:
    """An interpreter that serves: the offers, oldest first, and whether its process
    ``is_stopped``.
    """

    pid: int
    interpreter: int
    offers: tuple[Offer, ...]
    is_stopped: bool


def serving(
    there: Iterable[Registration],
    alive: Collection[tuple[int, int]],
    is_stopped: Callable[[int], bool],
) -> tuple[Serving, ...]:
    """Those of the members that are alive (process and interpreter) that serve something, by
    process and interpreter.
    """
    found: dict[tuple[int, int], list[Offer]] = {}
    for offer in filter(None, map(offer_of, there)):
        who = offer.fact.pid, offer.fact.interpreter
        if who in alive:
            found.setdefault(who, []).append(offer)
    return tuple(
        Serving(*who, tuple(offers), is_stopped(who[0])) for who, offers in sorted(found.items())
    )
