"""Who serves kernels, for people and as JSON: a section, see sections.py."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .. import facts
from ..across.served import serving
from ..registry.catalogue import known_key
from .columns import plain, styled
from .subject import location_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from ..across.offers import Offer
    from ..across.served import Serving
    from ..facts.outside import Seen
    from . import answers

_MOST_KERNELS = 5


def lines(seen: Seen) -> list[tuple[str, Text]]:
    return [("serves", styled(plain(_serves(one)), style="dim")) for one in serving(seen)]


def problems(seen: Seen) -> Iterator[str]:
    for one in serving(seen):
        if one.is_stopped and not (one.pid == seen.registrar_pid and seen.registrar_stopped):
            yield (
                f"pid {one.pid}, which serves {one.offers[0].fact.name}"
                + f" and {len(one.offers) - 1} more" * (len(one.offers) > 1)
                + f", is stopped, and those who call it wait: kill -CONT {one.pid}"
            )


def words(seen: Seen) -> list[str]:
    return [offer.fact.name for one in serving(seen) for offer in one.offers]


def json(seen: Seen) -> dict[str, list[answers.Serving]]:
    return {
        "serving": [
            {
                "pid": one.pid,
                "interpreter": one.interpreter,
                "stopped": one.is_stopped,
                "offers": [offer_json(offer) for offer in one.offers],
            }
            for one in serving(seen)
        ]
    }


def _serves(one: Serving) -> str:
    kernels = Counter(
        offer.fact.name + f" ({offer.transport})" * bool(offer.transport) for offer in one.offers
    )
    names = list(kernels)
    if len(names) > _MOST_KERNELS:
        names[_MOST_KERNELS:] = [f"{len(names) - _MOST_KERNELS} more"]
    stopped = "; stopped" * one.is_stopped
    return f"{facts.who(one.pid, one.interpreter)}: {', '.join(names)}{stopped}"


def offer_json(offer: Offer) -> answers.Offer:
    return {
        "operator": offer.fact.name,
        "key": known_key(offer.fact.key),
        "kernel": offer.label,
        "transport": offer.transport or None,
        "since": offer.since,
        "location": location_json(offer.fact),
    }
