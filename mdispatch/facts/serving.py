"""Who serves kernels to other interpreters and processes, and who calls there now, as everybody can
see it: from the offers of the members, and from their boards.
"""

from __future__ import annotations

from dataclasses import dataclass

from .board import load_of
from .offers import offer_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from .offers import Offer
    from .registration import Registration

__all__ = ["CallNow", "Serving", "serving"]


@dataclass(frozen=True, slots=True)
class CallNow:
    """A call in an interpreter that serves: of which operator ("" for a method of an object, or
    the kernel of another registry), by which process, interpreter and thread (0: not known), since
    how many seconds, and whether it waits for the interpreter's GIL, else it runs.
    """

    operator: str
    pid: int
    interpreter: int
    thread: int
    seconds: float
    waits: bool


@dataclass(frozen=True, slots=True)
class Serving:
    """An interpreter that serves: the offers, oldest first; whether its process ``is_stopped``;
    whether its calls ``is_seen``. If so, how many ``calls`` have ``ended``, those that are there,
    the longest first, and how many seconds one has waited for its GIL at most.
    """

    pid: int
    interpreter: int
    offers: tuple[Offer, ...]
    is_stopped: bool = False
    is_seen: bool = False
    ended: int = 0
    longest: float = 0.0
    calls: tuple[CallNow, ...] = ()

    @property
    def waiting(self) -> int:
        return sum(call.waits for call in self.calls)

    @property
    def running(self) -> int:
        return len(self.calls) - self.waiting


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
        _of(*who, tuple(offers), is_stopped(who[0])) for who, offers in sorted(found.items())
    )


def _of(pid: int, interpreter: int, offers: tuple[Offer, ...], is_stopped: bool) -> Serving:
    load = load_of(pid, interpreter, offers[-1].board)
    if load is None:
        return Serving(pid, interpreter, offers, is_stopped)
    operators = {offer.ticket: offer.fact.name for offer in offers}
    calls = tuple(CallNow(operators.get(call.ticket, ""), *call[1:]) for call in load.calls)
    return Serving(pid, interpreter, offers, is_stopped, True, load.done, load.longest, calls)
