"""Who serves kernels, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .. import facts
from .columns import plain, styled
from .subject import key_name, location_json

if TYPE_CHECKING:
    from rich.text import Text

    from ..facts.offers import Offer
    from ..facts.outside import Seen
    from ..facts.serving import Serving
    from . import answers

_MOST_KERNELS = 5


def serving_lines(seen: Seen) -> list[tuple[str, Text]]:
    """The lines under a registry: a word and the text behind it."""
    return [("serves", styled(plain(_serves(one)), style="dim")) for one in seen.serving]


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
        "key": key_name(offer.fact.key),
        "kernel": offer.label,
        "transport": offer.transport or None,
        "since": offer.since,
        "location": location_json(offer.fact),
    }


def serving_json(one: Serving) -> answers.Serving:
    return {
        "pid": one.pid,
        "interpreter": one.interpreter,
        "stopped": one.is_stopped,
        "offers": [offer_json(offer) for offer in one.offers],
    }
