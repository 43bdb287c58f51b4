"""What a host tells of itself, in the engine: how far it is, what it runs, who differs."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import NamedTuple

from ..errors.locations import host
from ..facts import TYPE
from ..facts.differing import told
from ..facts.native.constants import MD_MAX_NAME, MD_MAX_WHERE
from .hosts import living_workers, workers
from .log import Garbled, json_bytes, read_json
from .state import as_chain, as_host, as_number, as_versions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..facts.abc import Facts
    from .following import Position

#: Bytes of a record at most, characters of one difference, and how many of these.
_MOST, _LONGEST, _COUNT = 1 << 16, 2000, 16
#: Bytes of all types in a record.
_OF_TYPES = 20_000


class OtherType(NamedTuple):
    """A type that a worker of the host has registered: process, name, keys and location."""

    pid: int
    name: str
    keys: str
    where: str


@dataclass(frozen=True, slots=True)
class Record:
    """One host. ``versions`` are the distributions of which this host has another version than the
    leader; "" is none. ``types`` are those of its workers, the oldest first.
    """

    role: str
    registry: str
    host: str
    pid: int
    phase: str
    epoch: int
    root: bytes
    seq: int
    chain: bytes
    registrations: int
    workers: int
    python: str
    mdispatch: str
    versions: dict[str, str]
    differences: list[tuple[int, str]]
    types: list[OtherType]
    why: str = ""

    @classmethod
    def of(
        cls, role: str, registry: str, at: Position, registrations: int, phase: str, why: str = ""
    ) -> Record:
        return cls(
            role=role,
            registry=registry,
            host=host(),
            pid=os.getpid(),
            phase=phase,
            epoch=at.epoch,
            root=at.root,
            seq=at.seq,
            chain=at.chain,
            registrations=registrations,
            workers=0,
            python=platform.python_version(),
            mdispatch=_own_version(),
            versions={},
            differences=[],
            types=[],
            why=why[:500],
        )

    def of_workers(self, facts: Facts, versions: dict[str, str]) -> Record:
        differences = [(each.pid, each.text[:_LONGEST]) for each in told(facts)[:_COUNT]]
        return replace(
            self,
            workers=workers(facts),
            versions=versions,
            differences=differences,
            types=_types(facts),
        )

    def packed(self) -> bytes:
        told = asdict(self) | {"root": self.root.hex(), "chain": self.chain.hex()}
        return json_bytes(told)


def _types(facts: Facts) -> list[OtherType]:
    """The types of this host's living members, but those of a bridge, and of the leader."""
    living = living_workers(facts)
    found, left = [], _OF_TYPES
    for fact in facts.registrations_since(TYPE, 0)[1]:
        if (fact.pid, fact.interpreter) not in living:
            continue
        one = OtherType(fact.pid, fact.name, fact.body, fact.where)
        if not _is_told(one.name, one.keys, one.where):
            continue
        left -= len(json_bytes(one))
        if left < 0:
            break
        found.append(one)
    return found


@cache
def _own_version() -> str:
    """It is read from files, and a record is made every few seconds."""
    from importlib.metadata import version

    return version("mdispatch")


def read_record(data: bytes) -> Record:
    """A record of whoever writes into the engine. Garbled."""
    told = read_json(data, _MOST)
    fields: dict[str, Any] = {}
    for key in ("role", "registry", "phase", "python", "mdispatch", "why"):
        value = told.get(key)
        if not isinstance(value, str) or len(value) > 500:
            raise Garbled("a text is none, or too long")
        fields[key] = value
    there = told.get("differences")
    if not isinstance(there, list) or len(there) > _COUNT:
        raise Garbled("the differences are none")
    found = []
    for each in there:
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[1], str)):
            raise Garbled("a difference is none")
        found.append((as_number(each[0]), each[1][:_LONGEST]))
    types = told.get("types")
    if not isinstance(types, list) or len(types) > _OF_TYPES // 20:
        raise Garbled("the types are none")
    for key in ("pid", "epoch", "seq", "registrations", "workers"):
        fields[key] = as_number(told.get(key))
    if fields["epoch"] >= 1 << 48:  # no leader could have a higher one
        raise Garbled("an epoch is none")
    return Record(
        **fields,
        host=as_host(told.get("host")),
        root=as_chain(told.get("root")),
        chain=as_chain(told.get("chain")),
        versions=as_versions(told.get("versions")),
        differences=found,
        types=[_as_type(each) for each in types],
    )


def _as_type(value: object) -> OtherType:
    if not (isinstance(value, list) and len(value) == 4):
        raise Garbled("a type is none")
    pid, name, keys, where = value
    if not _is_told(name, keys, where):
        raise Garbled("the text of a type is none")
    return OtherType(as_number(pid), name, keys, where)


def _is_told(name: object, keys: object, where: object) -> bool:
    """Whether these can be a type of a record."""
    return all(
        isinstance(text, str) and 0 < len(text) <= most and text.isprintable()
        for text, most in ((name, MD_MAX_NAME), (keys, _LONGEST), (where, MD_MAX_WHERE))
    )


def accepted_bytes(leader: int) -> bytes:
    """What a person accepts: a leader process, by its number."""
    return json_bytes({"leader": leader})


def read_accepted(data: bytes) -> int:
    """The leader process that was accepted last; 0 for none."""
    try:
        return as_number(read_json(data, 1 << 12).get("leader")) if data else 0
    except Garbled:
        return 0


def time_in_words() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
