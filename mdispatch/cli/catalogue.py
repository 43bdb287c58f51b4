"""Everything in a registry, by operator, as ``mdispatch ls`` and ``mdispatch report`` print it.

A catalogue is made from one listing of the registrations. A process can write anything into a
registry, also malformed names and keys that do not exist. Both are listed; only tables leave them
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import facts
from ..dispatch.explain import are_active, computed, rows_of
from ..dispatch.kernels import FALLTHROUGH
from ..facts.registration import is_of_choice
from ..keys.numbers import TABLE_INDEX, DispatchKey
from .subject import kernel_json, key_name, location_json, location_of_fact

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..dispatch.explain import TableRow
    from ..facts import Registration
    from ..registry import Registry
    from . import answers

_KNOWN = {int(key): key for key in DispatchKey.__members__.values()}
_ORDER = {int(key): index for key, index in TABLE_INDEX.items()}
_LAST = 10_000


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's registration, and whether it is the newest at its key for its types. The newest is
    in effect.
    """

    fact: Registration
    active: bool

    @property
    def key(self) -> str:
        return key_name(self.fact.key)

    @property
    def alias(self) -> bool:
        known = _KNOWN.get(self.fact.key)
        return known is not None and known.is_alias

    @property
    def falls_through(self) -> bool:
        return self.fact.body == FALLTHROUGH


@dataclass(frozen=True, slots=True)
class Operator:
    """The registrations under one name, oldest first; ``stub`` is the one that names a Python
    module.
    """

    name: str
    there: Sequence[Registration]
    stub: Registration | None = None

    @property
    def namespace(self) -> str:
        return self.name.partition("::")[0]

    @property
    def base(self) -> str:
        """The name without the overload."""
        return self.name.partition(".")[0]

    @property
    def overload(self) -> str:
        return self.name.partition(".")[2]

    @property
    def definition(self) -> Registration | None:
        return next((fact for fact in self.there if fact.kind == facts.DEF), None)

    @property
    def holds(self) -> list[Registration]:
        """The registrations that only hold the name."""
        return [fact for fact in self.there if fact.kind == facts.NAME]

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels in table order, alias keys last, the newest of each key first."""
        by_key: dict[int, list[Registration]] = {}
        for fact in self.there:
            if fact.kind == facts.IMPL:
                by_key.setdefault(fact.key, []).insert(0, fact)
        order = sorted(by_key, key=lambda key: (_ORDER.get(key, _LAST), key))
        return [
            Kernel(fact, active)
            for key in order
            for fact, active in zip(by_key[key], are_active(by_key[key]), strict=True)
        ]

    @property
    def dangling(self) -> bool:
        """Whether there are kernels and no definition."""
        kinds = {fact.kind for fact in self.there}
        return facts.IMPL in kinds and facts.DEF not in kinds

    def table(self, fallbacks: Sequence[Registration]) -> list[TableRow]:
        """One row for each runtime key, computed from the registrations whose keys exist."""
        return rows_of(computed(_usable(self.there), _usable(fallbacks)))


def _usable(there: Iterable[Registration]) -> list[Registration]:
    keyed = (facts.IMPL, facts.FALLBACK)
    return [fact for fact in there if fact.kind not in keyed or fact.key in _KNOWN]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The registrations of a registry: operators by name, and the registrations that belong to no
    operator."""

    registry: str
    operators: Sequence[Operator]
    fallbacks: Sequence[Registration]
    libraries: Sequence[Registration]

    @property
    def namespaces(self) -> list[str]:
        return sorted({each.namespace for each in self.operators})


def catalogue(registry: Registry) -> Catalogue:
    """Reads what is registered now."""
    _, _, there = registry.dispatcher.facts.registrations()
    by_name: dict[str, list[Registration]] = {}
    stubs: dict[str, Registration] = {}
    fallbacks, libraries = [], []
    for fact in there:
        if fact.kind in (facts.DEF, facts.IMPL, facts.NAME):
            by_name.setdefault(fact.name, []).append(fact)
        elif fact.kind == facts.PYSTUB:
            stubs[fact.name] = fact  # the newest is in effect
        elif fact.kind == facts.FALLBACK:
            fallbacks.append(fact)
        elif fact.kind in (facts.LIBRARY, facts.CLAIM) and not is_of_choice(fact.name):
            libraries.append(fact)
    operators = [Operator(name, by_name[name], stubs.get(name)) for name in sorted(by_name)]
    fallbacks.sort(key=lambda fact: (_ORDER.get(fact.key, _LAST), fact.key))
    libraries.sort(key=lambda fact: (fact.name, fact.seq))
    return Catalogue(registry.address, operators, fallbacks, libraries)


# --- for machines ---------------------------------------------------------------------------------


def operator_json(operator: Operator) -> answers.Operator:
    """An operator as ``mdispatch ls --json`` has it."""
    there, stub = operator.definition, operator.stub
    return {
        "operator": operator.name,
        "namespace": operator.namespace,
        "overload": operator.overload,
        "schema": None if there is None else there.body,
        "defined": location_of_fact(there),
        "alias_analysis": None if there is None else there.alias_analysis,
        "tags": [] if there is None else list(there.tags),
        "python_module": None if stub is None else stub.body.partition("\n")[0],
        "dangling": operator.dangling,
        "kernels": [
            kernel_json(kernel.key, kernel.alias, kernel.active, kernel.fact)
            for kernel in operator.kernels
        ],
        "names": [location_json(fact) for fact in operator.holds],
    }


def fallback_json(fact: Registration) -> answers.Fallback:
    """A fallback as ``mdispatch ls --json`` has it."""
    return {
        "key": key_name(fact.key),
        "kernel": fact.body,
        "falls_through": fact.body == FALLTHROUGH,
        "location": location_json(fact),
    }
