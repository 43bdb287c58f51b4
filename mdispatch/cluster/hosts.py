"""What the members of one host tell each other of their cluster (docs/cluster.md), as registrations
of their own: the leader or the host's bridge, how the host stands. That stays when its bridge dies:
the next one goes on from there (cluster/bridge.py).

Only where there is such a registration is anything else done than in a registry of one host.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import NamedTuple

from ..errors import EngineUnreachableError, RegistrarGoneError
from ..facts.registration import BRIDGE, MAIN, STANDING, STANDS, WORKER, number_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts.abc import Facts
    from ..facts.outside import Seen
    from ..facts.registration import Registration
    from ..facts.waits import Waited

#: How a host stands: it goes on; all that the warm-up registers is there; the engine does not
#: answer; nobody leads; what the engine has does not go on from what is here; the leader has other
#: code than the one before, and nobody has accepted that.
OPEN, SEALED, CUT, GONE, ASTRAY = "open", "sealed", "cut off", "without a leader", "astray"
HELD = "held"

#: Seconds that a wait sleeps before it looks how its host stands. Each sleep in C ends after as
#: long (native/core/contract/await.c), so this wakes nobody more often.
_LOOK_AGAIN = 0.1
#: Seconds for which a wait goes on while the host has no bridge: somebody may start one.
_WITHOUT_BRIDGE = 5.0


class Told(NamedTuple):
    """How a host stands. ``leader`` is "host[pid]" or "", ``since`` a time in words; ``epoch``,
    ``seq``, ``root`` and ``chain`` are how far the log was applied (cluster/following.py).
    """

    phase: str
    engine: str
    leader: str
    epoch: int
    seq: int
    since: str
    root: str
    chain: str
    why: str

    @property
    def is_sealed(self) -> bool:
        """Whether all that the leader's warm-up registers is there."""
        return self.phase == SEALED

    def __str__(self) -> str:
        by = f"led by {self.leader}" if self.leader else "that nobody has led yet"
        why = f": {self.why}" if self.why else ""
        at = f"epoch {self.epoch}, sequence {self.seq}"
        return f"{self.engine}, {by}, is {self.phase} since {self.since} at {at}{why}"


def tell(facts: Facts, now: Told) -> None:
    """The leader or the bridge tells how the host stands now. There is always one such registration
    at least; who is killed between its two steps leaves two, and the newer one counts.
    """
    fact = facts.register(STANDING, 0, STANDS, "\n".join(map(str, now)), "")
    for each in facts.registrations(STANDS)[2]:
        if each.kind == STANDING and each.seq < fact.seq:
            facts.remove(each)


def told(facts: Facts) -> Told | None:
    """How the host stands; None where it is in no cluster."""
    fact = facts.find(STANDING, 0, STANDS)
    return None if fact is None else read(fact.text)


def read(text: str) -> Told:
    """What such a registration says. Any member can write it: a number that is none counts as 0."""
    phase, engine, leader, epoch, seq, *rest = [*text.split("\n", 8), *9 * [""]]
    at = [number_in(each) or 0 for each in (epoch, seq)]
    return Told(phase, engine, leader, at[0], at[1], *rest[:4])


class Standing(NamedTuple):
    """How a host of a cluster stands. ``pid`` has said so: the leader, or the bridge that serves
    the host, unless that ``is_gone``; ``waiting`` are the bridges that wait to take over.
    """

    told: Told
    pid: int
    is_gone: bool
    waiting: tuple[int, ...]


def standing(seen: Seen) -> Standing | None:
    """The same of a registry that is seen from outside; None where it is in no cluster."""
    fact = seen.standing
    if fact is None:
        return None
    alive = {each.pid for each in seen.members if each.alive and each.role in ("main", "bridge")}
    bridges = {each.pid for each in seen.members if each.alive and each.role == "bridge"}
    waiting = tuple(sorted(bridges - {fact.pid}))
    return Standing(read(fact.text), fact.pid, fact.pid not in alive, waiting)


def bridges(facts: Facts) -> int | None:
    """How many bridges this host has; None where it has the leader."""
    roles = [role for _, _, role, is_alive, *_ in facts.members() if is_alive]
    return None if MAIN in roles else roles.count(BRIDGE)


def leads(facts: Facts) -> bool:
    """Whether this host has the leader."""
    return bridges(facts) is None


def has_bridge(facts: Facts) -> bool:
    """Whether this host has a bridge, or has none because it has the leader."""
    return bridges(facts) != 0


def living_workers(facts: Facts) -> set[tuple[int, int]]:
    """The workers here that are alive: process and interpreter."""
    return {(each[1], each[0]) for each in facts.members() if each[2] == WORKER and each[3]}


def workers(facts: Facts) -> int:
    """How many processes are workers here."""
    found = {member[1] for member in facts.members() if member[2] == WORKER}
    return len(found - {os.getpid()} if facts.role == MAIN else found)


def await_fact(
    facts: Facts,
    kind: int,
    key: int,
    name: str,
    at_least: int,
    timeout: float | None,
    ticket: int = 0,
    or_elect: bool = False,
) -> tuple[Registration | None, Waited]:
    """As Facts.await_fact. In a cluster the wait also ends when nothing can come: with None where
    the run is sealed, else with an error that says what ended it. Raises EngineUnreachableError,
    RegistrarGoneError.
    """
    if told(facts) is None:
        return facts.await_fact(kind, key, name, at_least, timeout, ticket, or_elect)
    end = None if timeout is None else monotonic() + timeout
    alone: float | None = None  # since when the host has no bridge
    while True:
        # How the host stands first, then the registration: what was there before the seal is seen.
        now = told(facts)
        is_last = now is not None and now.phase in (SEALED, GONE)
        left = _LOOK_AGAIN if end is None else min(_LOOK_AGAIN, max(0.0, end - monotonic()))
        fact, waited = facts.await_fact(
            kind, key, name, at_least, 0.0 if is_last else left, ticket, or_elect
        )
        if fact is not None or now is None or now.phase == SEALED:
            return fact, waited
        if now.phase == GONE:
            raise RegistrarGoneError(
                f"nobody leads any more, and {name} is not there: {now}\nStart the leader again; "
                "calls of what is registered go on.",
                facts.label,
            )
        if has_bridge(facts):
            alone = None
        elif alone is None:
            alone = monotonic()
        is_over = end is not None and monotonic() >= end
        if alone is not None and (is_over or monotonic() - alone >= _WITHOUT_BRIDGE):
            raise RegistrarGoneError(
                f"the bridge of this host has ended, none waits to take over, and {name} is not "
                f"there: before, it said {now}\nStart it again: `mdispatch bridge`. Calls of what "
                "is registered go on, and so does this process then.",
                facts.label,
            )
        if is_over:
            now = told(facts) or now  # the wait slept since
            if now.phase == CUT:
                raise EngineUnreachableError(
                    f"{name} did not come, and the engine does not answer: {now}\nCalls of what is "
                    "registered go on. See that the engine runs and can be reached from here.",
                    facts.label,
                    engine=now.engine,
                    since=now.since,
                    seq=now.seq,
                )
            return None, waited
