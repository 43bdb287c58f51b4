"""The registry of a host, as its bridges write it.

Bridges queue up for the right to write (BRIDGES in native/mdispatch.h). When the first one dies,
the next goes on with what is there. The registration that says how the host stands (hosts.py)
says how far the log was applied; the next bridge reads the state that belongs to that, and makes
the registry agree with it, also where the one before it was killed in the midst of a batch.
"""

from __future__ import annotations

import os

from ..errors import RegistryClosedError
from ..errors.locations import origin
from ..facts import AS_BRIDGE, CLAIM, DEF, LIBRARY, Elected, kind_of, living
from ..facts.kinds import COMPARED
from ..facts.native import native
from ..facts.opening import create_or_elect
from ..facts.shared import SharedRegistry
from .following import Position
from .log import Fact, Garbled, Leader, place_on
from .state import State, as_chain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts import Registration
    from .following import Follower
    from .hosts import Told
    from .state import Changes

_QUEUE = "mdispatch.bridge"
#: The number of a leader that is known by its host and process only: no leader draws it.
_FORMER = 1
#: Added to the number of a registration here that the log does not have (any more).
_HERE = 1 << 62


class HostRegistry(SharedRegistry):
    """A bridge's membership in the registry of its host, beside that of its interpreter."""

    interpreter = AS_BRIDGE

    @classmethod
    def opened(cls, name: str, capacity: int) -> HostRegistry:
        """The registry of this name, made where there is none. RegistryExistsError where one of
        another kind has the name, a leader's for example; else as :meth:`create`.
        """
        while True:
            try:
                registry = cls._of(create_or_elect(native.bridge, name, capacity))
            except RegistryClosedError:
                continue  # the last one of the host has left in between
            assert isinstance(registry, cls)
            return registry

    def is_next(self) -> bool:
        """Whether this bridge is the host's. Queues up for it."""
        return self.claim(_QUEUE, "")

    def place(self) -> int:
        """How many bridges of this host are before this one. Queues up."""
        if self.is_next():
            return 0
        queue = [fact for fact in self.registrations(_QUEUE)[2] if fact.kind == CLAIM]
        queue.sort(key=lambda fact: fact.seq)
        return [fact.pid for fact in queue].index(os.getpid())

    def await_turn(self, timeout: float) -> bool:
        """Waits in the queue; whether this bridge is the host's now."""
        try:
            self.await_fact(LIBRARY, 0, f"{_QUEUE}::turn", 1, timeout, or_elect=True)
        except Elected:
            return True
        return False

    def forked(self, at_once: bool) -> bool:
        """The child of a fork is no bridge: its thread is the parent's."""
        self._closed = True
        living.end(self)
        native.close(self._handle)
        return True


def position(told: Told) -> Position | None:
    """How far a bridge had applied the log; None where that cannot be read."""
    try:
        return Position(told.epoch, as_chain(told.root), told.seq, as_chain(told.chain))
    except Garbled:
        return None


class Region:
    """Writes changes into the registry of this host."""

    def __init__(self, registry: SharedRegistry, follower: Follower) -> None:
        self._registry = registry
        self._follower = follower
        self._there: dict[tuple[int, int], Registration] = {}
        #: The generation here of one there, by leader and number.
        self._generations: dict[tuple[int, int], int] = {}

    def apply(self, changes: Changes) -> None:
        for each in changes.remove:
            self._registry.remove(self._there.pop(each))
        for old, fact in changes.rename:
            self._note(fact, self._there.pop(old))
        for fact in changes.add:
            self._note(fact, self._register(fact))

    def has_facts(self) -> bool:
        """Whether a bridge has registered something here."""
        return any(self._is_of_log(fact) for fact in self._registry.registrations()[2])

    def _is_of_log(self, there: Registration) -> bool:
        """Whether a registration of this host is one that bridges have made. Those that end with
        their member are this bridge's own: those of the one before have ended, or are about to.
        """
        if kind_of(there.kind).by_any and there[7:] != (self._registry.pid, AS_BRIDGE):
            return False
        return kind_of(there.kind).hosts == COMPARED

    def compare(self) -> Changes:
        """What makes the registry agree with the follower's state. What says the same stays,
        whoever has registered it; what the state does not have stays as long as it would with a
        bridge that had lived (State.replaced_by).
        """
        state, before = self._follower.state, State()
        self._there, self._generations = {}, {}
        here: dict[object, list[Registration]] = {}
        found: list[tuple[int, Fact]] = []  # with the number here: what is newer stands above
        for there in self._registry.registrations()[2]:
            if self._is_of_log(there):
                here.setdefault(_as_fact(there, _FORMER).content, []).append(there)
        for fact in state.facts.values():
            same = here.get(fact.content)
            if same:
                found.append((same[0].seq, fact))
                self._note(fact, same.pop(0))
        leader = state.leaders.get(state.leader)
        label = f"{leader.host}[{leader.pid}]:" if leader else None
        before.leaders = state.leaders | {_FORMER: Leader(_FORMER, "before", 0)}
        for there in [each for some in here.values() for each in some]:
            is_theirs = label is not None and there.where.startswith(label)
            left = _as_fact(there, state.leader if is_theirs else _FORMER)
            found.append((there.seq, left))
            self._there[left.id] = there
        before.facts = {fact.id: fact for _, fact in sorted(found)}
        return before.replaced_by(state)

    def __len__(self) -> int:
        return len(self._there)

    def ended_of_others(self, changes: Changes) -> list[Registration]:
        """What changes would end here that another than the leader of now has registered."""
        leader = self._follower.state.leader
        others = [self._there[each] for each in changes.remove if each[0] != leader]
        return [fact for fact in others if not self._is_of_worker(fact)]

    def _is_of_worker(self, there: Registration) -> bool:
        """Whether a leader has registered it for a worker of some host, with whom it ends."""
        if not kind_of(there.kind).by_any:
            return False
        leaders = self._follower.state.leaders.values()
        return origin(there.where) not in [(each.host, each.pid) for each in leaders]

    def leave_out_others(self, changes: Changes) -> None:
        """Takes from the changes, and from the follower's state, what they would register of others
        than the leader of now. One of them may have been held here, by this bridge or by one before
        it, and what a leader before registered the leader of now registers again or ends.
        """
        leader = self._follower.state.leader
        for fact in changes.add:
            if fact.leader != leader:
                del self._follower.state.facts[fact.id]
        changes.add = [fact for fact in changes.add if fact.leader == leader]

    def _note(self, fact: Fact, there: Registration) -> None:
        self._there[fact.id] = there
        if fact.kind == DEF:
            self._generations[fact.leader, fact.generation] = there.generation

    def _register(self, fact: Fact) -> Registration:
        text = fact.text
        if fact.kind == DEF:
            known = self._generations.get((fact.leader, fact.generation), 0)
            lines = text.split("\n", 3)
            if known or len(lines) == 4:
                lines += [""] * (4 - len(lines))
                lines[2] = str(known or "")
                text = "\n".join(lines)
        return self._registry.register(fact.kind, fact.key, fact.name, text, self._origin(fact))

    def _origin(self, fact: Fact) -> str:
        if kind_of(fact.kind).by_any and origin(fact.origin) is not None:
            return fact.origin  # of a worker, whose host the leader has named
        leader = self._follower.state.leaders[fact.leader]
        return place_on(leader.host, fact.pid, fact.origin)


def _as_fact(there: Registration, leader: int) -> Fact:
    """A registration of this host as a registration of that leader."""
    return Fact(
        *(leader, _HERE + there.seq, there.kind, int(there.key), 0, 0),
        *(there.name, there.text, there.origin),
    )
