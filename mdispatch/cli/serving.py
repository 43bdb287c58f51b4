"""Who serves kernels, and who calls there, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from .. import facts
from .columns import number_of, plain, styled
from .subject import key_name, place_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from ..facts.offers import Offer
    from ..facts.outside import Seen
    from ..facts.serving import CallNow, Serving
    from . import answers

__all__ = ["offer_json", "serving_json", "serving_lines"]

_MOST_KERNELS = 5


def _limit(one: Serving) -> int | None:
    """How many calls of other processes it takes at once; None where there are none, or where only
    another package's carrier knows.
    """
    if not any(offer.carrier == "host" for offer in one.offers):
        return None
    from ..carriers.host import CALLS

    return CALLS


def _who(pid: int, interpreter: int) -> str:
    return facts.who(pid, interpreter) if pid else "somebody"


# --- for people -----------------------------------------------------------------------------------


def serving_lines(seen: Seen, most: int) -> list[tuple[str, Text]]:
    """The lines under a registry: a word and the text behind it."""
    told = [("serves", styled(plain(_serves(one)), style="dim")) for one in seen.serving]
    calls = [(one, call) for one in seen.serving for call in one.calls]
    calls.sort(key=lambda each: -each[1].seconds)
    told += [("calls", styled(plain(_calls(*each)))) for each in calls[:most]]
    if len(calls) > most:
        told.append(("", styled(f"and {len(calls) - most} more calls (--json has all)")))
    return told


def _serves(one: Serving) -> str:
    kernels = Counter(
        offer.fact.name + f" ({offer.carrier})" * bool(offer.carrier) for offer in one.offers
    )
    names = list(kernels)
    if len(names) > _MOST_KERNELS:
        names[_MOST_KERNELS:] = [f"{len(names) - _MOST_KERNELS} more"]
    return f"{_who(one.pid, one.interpreter)}: {', '.join(names)}; {', '.join(_load(one))}"


def _load(one: Serving) -> Iterator[str]:
    if one.is_stopped:
        yield "stopped"
    if not one.is_seen:
        yield "its calls cannot be seen"
        return
    limit = _limit(one)
    most = f" (of other processes at most {limit})" if limit else ""
    yield f"{number_of(one.running, 'call')} running{most}"
    yield f"{one.waiting} waiting for its GIL"
    yield f"{one.ended:,} ended"
    if one.longest:
        yield f"the longest wait {one.longest:.3g} s"


def _calls(one: Serving, call: CallNow) -> str:
    what = call.operator or "a method of an object"
    thread = f", thread {call.thread}," * bool(call.thread)
    caller, owner = _who(call.pid, call.interpreter), _who(one.pid, one.interpreter)
    does = f"waits for the GIL of {owner} to call" if call.waits else f"is in {owner} and runs"
    return f"{caller}{thread} {does} {what}, {call.seconds:.1f} s"


# --- for machines ---------------------------------------------------------------------------------


def offer_json(offer: Offer) -> answers.Offer:
    return {
        "operator": offer.fact.name,
        "key": key_name(offer.fact.key),
        "kernel": offer.label,
        "carrier": offer.carrier or None,
        "since": offer.since,
        "place": place_json(offer.fact),
    }


def serving_json(one: Serving) -> answers.Serving:
    return {
        "pid": one.pid,
        "interpreter": one.interpreter,
        "stopped": one.is_stopped,
        "offers": [offer_json(offer) for offer in one.offers],
        "limit": _limit(one),
        "running": one.running if one.is_seen else None,
        "waiting": one.waiting if one.is_seen else None,
        "ended": one.ended if one.is_seen else None,
        "longest_wait": round(one.longest, 6) if one.is_seen else None,
        "calls": [
            {
                "operator": call.operator or None,
                "pid": call.pid or None,
                "interpreter": call.interpreter if call.pid else None,
                "thread": call.thread or None,
                "waits": call.waits,
                "seconds": round(call.seconds, 3),
            }
            for call in one.calls
        ]
        if one.is_seen
        else None,
    }
