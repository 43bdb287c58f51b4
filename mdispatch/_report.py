"""What ``mdispatch report`` tells of a registry: its catalogue, the table of each operator with the
reason of each entry, its members, and who registered what.

The JSON is one object; its keys are stable (new ones may come). It has what ``mdispatch ls --json``
has (pydoc mdispatch._ls_show), of all operators, and

    made            when it was made, UTC
    modules         names, as given to --import
    page            file that was written, or null
    keys            how many keys have a slot in a table
    state           "open", "closed", "main died", ...; null where it could not be looked at
    policy          "main" or "elect", or null
    members         objects: pid, interpreter (its id; -1: the program that embeds interpreters),
                    role ("main", "worker", "peer"), alive, waits (null, or threads, kind, name,
                    key, seconds: see mdispatch._doctor_show)
    capacity, used, free
                    bytes, or null
    libraries       objects: namespace, kind ("library" or "claim"), place
    registrars      who registered what, objects: pid, interpreter, file, definitions, kernels,
                    fallbacks

and in each operator

    table           one object for each group of keys that have the same, in table order: keys
                    (names), reason (the rule that decides), kernel (label; null where none runs),
                    falls_through, place. A place is null where there is none: of a fallback that is
                    built in, and of "missing".
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import __version__
from . import _registry as facts
from ._catalogue import Operator, fallback_json, operator_json
from ._doctor_show import member_json
from ._explain_subject import place_of_fact
from ._keys import RUNTIME_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ._catalogue import Catalogue
    from ._explanation import TableRow
    from ._inspecting import Member, Seen
    from ._registry import Registration

__all__ = ["Registrar", "Report", "Slots"]


@dataclass(frozen=True, slots=True)
class Slots:
    """Keys of an operator's table at which the same runs, for the same reason."""

    keys: Sequence[str]
    row: TableRow


@dataclass(slots=True)
class Registrar:
    """What one interpreter has registered from one file."""

    pid: int
    interpreter: int
    file: str
    definitions: int = 0
    kernels: int = 0
    fallbacks: int = 0


def _grouped(rows: Iterable[TableRow]) -> list[Slots]:
    groups: dict[object, tuple[list[str], TableRow]] = {}
    for row in rows:
        fact = row.registration
        what = (row.reason, row.kernel, row.is_fallthrough, row.where, fact and fact.seq)
        groups.setdefault(what, ([], row))[0].append(row.key.name)
    return [Slots(keys, row) for keys, row in groups.values()]


@dataclass(frozen=True, slots=True)
class Report:
    """A registry at one moment. ``seen`` is how it looks from outside, None where that cannot be
    had; ``stranger`` is the process that only came to look, 0 for none.
    """

    catalogue: Catalogue
    seen: Seen | None
    made: str
    modules: Sequence[str] = ()
    stranger: int = 0

    @property
    def label(self) -> str:
        return self.catalogue.registry if self.seen is None else self.seen.label

    @property
    def members(self) -> list[Member]:
        members = () if self.seen is None else self.seen.members
        return [member for member in members if member.pid != self.stranger]

    def table(self, operator: Operator) -> list[Slots]:
        """Its table in groups, in the order of the first key of each."""
        return _grouped(operator.table(self.catalogue.fallbacks))

    def fallbacks(self) -> list[Slots]:
        """The fallbacks in groups, also those that are built in."""
        groups = self.table(Operator("", ()))
        return [slots for slots in groups if slots.row.reason != "missing"]

    def registrars(self) -> list[Registrar]:
        found: dict[tuple[int, int, str], Registrar] = {}
        for fact in self._facts():
            who = fact.pid, fact.interpreter, fact.where.rpartition(":")[0] or fact.where
            registrar = found.setdefault(who, Registrar(*who))
            registrar.definitions += fact.kind == facts.DEF
            registrar.kernels += fact.kind == facts.IMPL
            registrar.fallbacks += fact.kind == facts.FALLBACK
        return [found[who] for who in sorted(found)]

    def _facts(self) -> Iterator[Registration]:
        for operator in self.catalogue.operators:
            yield from operator.there
        yield from self.catalogue.fallbacks
        yield from self.catalogue.libraries

    def json(self, page: str | None) -> str:
        seen = self.seen
        answer = {
            "format": 1,
            "mdispatch": __version__,
            "registry": self.catalogue.registry,
            "made": self.made,
            "modules": list(self.modules),
            "page": page,
            "keys": len(RUNTIME_KEYS),
            "state": None if seen is None else seen.state,
            "policy": None if seen is None else "elect" if seen.elects else "main",
            "members": [member_json(member) for member in self.members],
            "capacity": None if seen is None else seen.capacity,
            "used": None if seen is None else seen.used,
            "free": None if seen is None else seen.free,
            "operators": [
                operator_json(each) | {"table": self._table_json(each)}
                for each in self.catalogue.operators
            ],
            "fallbacks": [fallback_json(fact) for fact in self.catalogue.fallbacks],
            "libraries": [
                {
                    "namespace": fact.name,
                    "kind": facts.KIND_NAMES[fact.kind],
                    "place": place_of_fact(fact),
                }
                for fact in self.catalogue.libraries
            ],
            "registrars": [
                {
                    "pid": each.pid,
                    "interpreter": each.interpreter,
                    "file": each.file,
                    "definitions": each.definitions,
                    "kernels": each.kernels,
                    "fallbacks": each.fallbacks,
                }
                for each in self.registrars()
            ],
        }
        return json.dumps(answer, indent=2)

    def _table_json(self, operator: Operator) -> list[dict[str, object]]:
        return [
            {
                "keys": list(slots.keys),
                "reason": slots.row.reason,
                "kernel": None if slots.row.is_fallthrough else slots.row.kernel or None,
                "falls_through": slots.row.is_fallthrough,
                "place": place_of_fact(slots.row.registration),
            }
            for slots in self.table(operator)
        ]
