"""What a log adds up to: the registrations of a run, by whose they are.

A leader's registrations are known by the leader process and their number in its registry. When
another leader process begins, what its predecessors registered is *left over*: a registration that
says the same takes the left one's place and is no change; one that contradicts it ends it; the seal
ends the rest. Nothing is removed before.

Note [The newest counts]
Of several registrations of one name that stand one on another (MD_STACK), the newest counts: of
priorities, of modules with fakes, of providers. One that takes a left one's place stays where that
stood. So it may do so only where nothing of its own leader stands above it. Else the left one is
removed, and the registration is registered anew, above all. That is a change: of a leader that
registers in another order, something else is in effect. A leader that registers as the one before
it changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from math import inf

from ..facts.native.constants import MD_UNIQUE
from ..facts.registration import POLICY
from .log import (
    BATCH,
    SEAL,
    START,
    Entry,
    Fact,
    Garbled,
    Leader,
    json_bytes,
    pack_bytes,
    pack_facts,
    read_batch,
    read_facts,
    read_json,
    unpack_bytes,
    whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    Id: TypeAlias = tuple[int, int]

_HOST = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DISTRIBUTION = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_VERSION = re.compile(r"[A-Za-z0-9_.+!-]{0,100}")  # "": there is none
_MOST_VERSIONS, _MOST_LEADERS, _MOST_CHUNKS, _MOST_FACTS = 512, 64, 4096, 1 << 21


def _stacks(kind: int) -> bool:
    """Whether there may be several of one name and key."""
    return not POLICY[kind] & MD_UNIQUE


@dataclass(slots=True)
class Changes:
    """What a registry has to do, in this order."""

    remove: list[Id] = field(default_factory=list)
    rename: list[tuple[Id, Fact]] = field(default_factory=list)
    add: list[Fact] = field(default_factory=list)


class Highest:
    """How high the highest registration stands that a leader has, among those of its kind, key and
    name that a registry has had: see Note [The newest counts].
    """

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: dict[object, float] = {}

    def taken(self, fact: Fact, same: list[Id], there: list[Id]) -> Id | None:
        """Takes out of ``same`` what the registration may take the place of; None where that is
        nothing. ``there`` has all that stand one on another, the lowest first.
        """
        if not _stacks(fact.kind):
            return same.pop(0)
        least = self._at.get(fact.what, -1)
        for number, each in enumerate(same):
            at = there.index(each)
            if at > least:
                self._at[fact.what] = at
                return same.pop(number)
        self.above_all(fact)
        return None

    def above_all(self, fact: Fact) -> None:
        """The registration is registered anew."""
        if _stacks(fact.kind):
            self._at[fact.what] = inf


class State:
    """The registrations of a run at one position of its log."""

    def __init__(self) -> None:
        self.facts: dict[Id, Fact] = {}
        self.leaders: dict[int, Leader] = {}
        self.leader = 0  # the leader process whose registrations are registered now
        self.is_sealed = False
        self.versions: dict[str, str] = {}  # distributions, as the seal names them
        self._left: dict[object, list[Id]] | None = None
        self._highest = Highest()

    def apply(self, entry: Entry) -> Changes:
        """Goes on by one entry. Garbled, and then nothing was changed."""
        if entry.what == BATCH:
            return self.change(*read_batch(entry.said))
        changes = Changes()
        if entry.what == START:
            self._start(_leader_of(read_json(entry.said, 1 << 16)))
        elif entry.what == SEAL:
            self.versions = as_versions(read_json(entry.said).get("versions"))
            self.is_sealed = True
            changes.remove += [each for each in self.facts if each[0] != self.leader]
            for each in changes.remove:
                del self.facts[each]
            self._left = None
        return changes

    def change(self, removed: Sequence[int], facts: list[Fact]) -> Changes:
        """Goes on by a batch. Garbled, and then nothing was changed."""
        changes, leader = Changes(), self.leader
        if len(self.facts) + len(facts) > _MOST_FACTS:
            raise Garbled(f"there are more than {_MOST_FACTS} registrations")
        if any(fact.leader != leader for fact in facts):
            raise Garbled("a registration is of another leader than its entry")
        for number in removed:
            if self.facts.pop((leader, number), None) is not None:
                changes.remove.append((leader, number))
        left = self._left_over()
        for fact in facts:
            if left:
                self._take_place(fact, left, changes)
            else:
                changes.add.append(fact)
            self.facts[fact[:2]] = fact
        return changes

    def _start(self, leader: Leader) -> None:
        used = {each[0] for each in self.facts}
        leaders = {k: v for k, v in self.leaders.items() if k in used}
        if len(leaders) >= _MOST_LEADERS:
            raise Garbled(f"registrations of {len(leaders)} leaders, {_MOST_LEADERS} are the limit")
        if leader.number != self.leader:
            self.is_sealed, self._left = False, None
            self.leader = leader.number
        self.leaders = leaders | {leader.number: leader}

    def _take_place(self, fact: Fact, left: dict[object, list[Id]], changes: Changes) -> None:
        """Adds a registration where there may be one of a former leader that says the same, or
        contradicts it.
        """
        same = left.get(fact.content, [])
        while same and same[0] not in self.facts:
            del same[0]  # another definition has ended it since
        if same:
            old = self._highest.taken(fact, same, left[fact.what])
            if old is not None:
                changes.rename.append((old, fact))
            else:
                old = same.pop(0)
                changes.remove.append(old)
                changes.add.append(fact)
            del self.facts[old]
        else:
            self._highest.above_all(fact)
            if POLICY[fact.kind] & MD_UNIQUE:
                for each in left.pop(fact.what, ()):
                    if self.facts.pop(each, None) is not None:
                        changes.remove.append(each)
            changes.add.append(fact)

    def _left_over(self) -> dict[object, list[Id]]:
        """The registrations of former leaders, by what they say, and by kind, key and name."""
        if self._left is None:
            self._left, self._highest = {}, Highest()
            for each in self.facts.values():
                if each.leader != self.leader:
                    self._left.setdefault(each.content, []).append(each.id)
                    self._left.setdefault(each.what, []).append(each.id)
        return self._left

    def replaced_by(self, later: State) -> Changes:
        """The way to a state that was read as a whole. What former leaders left stays, in
        ``later`` too, as long as that is not sealed.
        """
        if not self.facts:  # a host that has just come: all there is, at once
            return Changes(add=list(later.facts.values()))
        changes = Changes()
        by_content: dict[object, list[Id]] = {}
        stacks: dict[object, list[Id]] = {}
        for each in self.facts.values():
            if _stacks(each.kind):
                stacks.setdefault(each.what, []).append(each.id)
            if each.id not in later.facts:
                by_content.setdefault(each.content, []).append(each.id)
        highest = Highest()
        for fact in later.facts.values():
            if fact.id in self.facts:
                if highest.taken(fact, [fact.id], stacks.get(fact.what, [])) is None:
                    changes.remove.append(fact.id)
                    changes.add.append(fact)
                continue
            same = by_content.get(fact.content)
            old = highest.taken(fact, same, stacks.get(fact.what, [])) if same else None
            if old is not None:
                changes.rename.append((old, fact))
                continue
            if same:
                changes.remove.append(same.pop(0))
            highest.above_all(fact)
            changes.add.append(fact)
        unique = {fact.what for fact in later.facts.values() if POLICY[fact.kind] & MD_UNIQUE}
        for each in [self.facts[key] for some in by_content.values() for key in some]:
            if each.leader == later.leader or later.is_sealed or each.what in unique:
                changes.remove.append(each.id)
            else:
                later.facts[each.id] = each
                later.leaders.setdefault(each.leader, self.leaders[each.leader])
        later._left = None
        return changes

    # --- snapshots

    def chunks(self) -> dict[str, bytes]:
        """The registrations as chunks, by the name under which an engine keeps them: the hash of
        the bytes.
        """
        packed = [pack_bytes(pack_facts(some)) for some in whole(list(self.facts.values()))]
        return {f"chunk:{hashlib.sha256(each).hexdigest()}": each for each in packed}

    def read_chunk(self, name: str, data: bytes) -> None:
        """Adds the registrations of a chunk. Garbled."""
        if name != f"chunk:{hashlib.sha256(data).hexdigest()}":
            raise Garbled("a chunk is not the one that its snapshot names")
        for fact in read_facts(unpack_bytes(data)):
            if fact.leader not in self.leaders:
                raise Garbled("a registration is of a leader that its snapshot does not name")
            self.facts[fact[:2]] = fact
        if len(self.facts) > _MOST_FACTS:
            raise Garbled(f"a snapshot has more than {_MOST_FACTS} registrations")


@dataclass(frozen=True, slots=True)
class Manifest:
    """Of a snapshot: its position, and all but the registrations. ``before`` are the chunks of the
    snapshot before it.
    """

    epoch: int
    root: bytes
    seq: int
    chain: bytes
    chunks: tuple[str, ...]
    before: tuple[str, ...]

    def packed(self, state: State) -> bytes:
        return json_bytes(
            {
                "epoch": self.epoch,
                "root": self.root.hex(),
                "seq": self.seq,
                "chain": self.chain.hex(),
                "chunks": self.chunks,
                "before": self.before,
                "leader": state.leader,
                "leaders": [_told(each) for each in state.leaders.values()],
                "sealed": state.is_sealed,
                "versions": state.versions,
            }
        )

    @classmethod
    def read(cls, data: bytes) -> tuple[Manifest, State]:
        """The manifest, and its state without registrations. Garbled."""
        told = read_json(data)
        leaders = _list(told.get("leaders"), _MOST_LEADERS + 1)
        state = State()
        for each in leaders:
            if not isinstance(each, dict):
                raise Garbled("a leader is no object of JSON")
            leader = _leader_of(each)
            state.leaders[leader.number] = leader
        state.leader = as_number(told.get("leader"))
        state.is_sealed = told.get("sealed") is True
        state.versions = as_versions(told.get("versions"))
        chunks, before = (_list(told.get(key), _MOST_CHUNKS) for key in ("chunks", "before"))
        if not all(isinstance(name, str) and len(name) == 70 for name in (*chunks, *before)):
            raise Garbled("a chunk has no name")
        return cls(
            as_number(told.get("epoch")),
            as_chain(told.get("root")),
            as_number(told.get("seq")),
            as_chain(told.get("chain")),
            tuple(map(str, chunks)),
            tuple(map(str, before)),
        ), state


def start_bytes(leader: Leader) -> bytes:
    """What the first entry of an epoch says."""
    return json_bytes(_told(leader))


def _told(leader: Leader) -> dict[str, object]:
    return {"number": leader.number, "host": leader.host, "pid": leader.pid}


def _leader_of(told: dict[str, object]) -> Leader:
    return Leader(
        as_number(told.get("number")), as_host(told.get("host")), as_number(told.get("pid"))
    )


# --- values of JSON -------------------------------------------------------------------------------


def as_number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise Garbled("a number is none")
    return value


def as_host(value: object) -> str:
    if not isinstance(value, str) or not _HOST.fullmatch(value):
        raise Garbled("the name of a host has other characters than such names have")
    return value


def as_chain(value: object) -> bytes:
    try:
        chain = bytes.fromhex(value) if isinstance(value, str) and len(value) == 32 else b""
    except ValueError:
        chain = b""
    if len(chain) != 16:
        raise Garbled("a chain is none")
    return chain


def as_versions(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or len(value) > _MOST_VERSIONS:
        raise Garbled("the versions are none")
    for name, version in value.items():
        if not (isinstance(version, str) and _DISTRIBUTION.fullmatch(name)):
            raise Garbled("a distribution has no name")
        if not _VERSION.fullmatch(version):
            raise Garbled("a distribution has no version")
    return value


def _list(value: object, most: int) -> list[object]:
    if not isinstance(value, list) or len(value) > most:
        raise Garbled("a list is none, or too long")
    return value
