"""Who serves kernels to other interpreters and processes, as everybody can see it: from the offers
of the members.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..facts.outside import alive_among, is_stopped
from .offers import offer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts.outside import Seen
    from .offers import Offer


@dataclass(frozen=True, slots=True)
class Serving:
    """An interpreter that serves: the offers, oldest first, and whether its process
    ``is_stopped``.
    """

    pid: int
    interpreter: int
    offers: tuple[Offer, ...]
    is_stopped: bool


def serving(seen: Seen) -> tuple[Serving, ...]:
    """Those of a registry's living members that serve something, by process and interpreter."""
    alive = alive_among(seen.members)
    found: dict[tuple[int, int], list[Offer]] = {}
    for offer in filter(None, map(offer_of, seen.notes)):
        who = offer.fact.pid, offer.fact.interpreter
        if who in alive:
            found.setdefault(who, []).append(offer)
    return tuple(
        Serving(*who, tuple(offers), is_stopped(who[0])) for who, offers in sorted(found.items())
    )
