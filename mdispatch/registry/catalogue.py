"""Everything in a registry, by operator, to be listed, reported and compared.

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
from ..dispatch.keys_in_words import key_in_words, takes_tensors
from ..facts.registration import is_namespace
from ..keys.numbers import TABLE_INDEX, DispatchKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..dispatch.explain import TableRow
    from ..facts import Registration
    from .registry import Registry

_KNOWN = {int(key): key for key in DispatchKey.__members__.values()}
_ORDER = {int(key): index for key, index in TABLE_INDEX.items()}
_LAST = 10_000


def known_key(number: int) -> str:
    """The name of a dispatch key, or the number itself when no key has it."""
    key = _KNOWN.get(number)
    return str(number) if key is None else key.name


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's registration, and whether it is the newest at its key for its types. The newest is
    in effect.
    """

    fact: Registration
    active: bool

    @property
    def key(self) -> str:
        return known_key(self.fact.key)

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
    module. ``position`` is that of its definition among the overloads, in the order in which calls
    try them; None without a definition.
    """

    name: str
    there: Sequence[Registration]
    stub: Registration | None = None
    position: int | None = None

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
    def takes_tensors(self) -> bool:
        return takes_tensors(self.definition)

    def key_in_words(self, kernel: Kernel) -> str:
        """The key of one of its kernels."""
        return key_in_words(kernel.key, self.takes_tensors)

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
    #: Registrations of kinds with a title, by kind and name.
    others: Sequence[Registration] = ()

    @property
    def namespaces(self) -> list[str]:
        return sorted({each.namespace for each in self.operators})


def catalogue(registry: Registry) -> Catalogue:
    """The catalogue of a registry as it is now."""
    return catalogue_of(registry.dispatcher.facts.registrations()[2], registry.address)


def catalogue_of(there: Sequence[Registration], registry: str) -> Catalogue:
    """The catalogue of all registrations of a registry, which has this address."""
    by_name: dict[str, list[Registration]] = {}
    stubs: dict[str, Registration] = {}
    fallbacks, libraries, others = [], [], []
    for fact in there:
        if fact.kind in (facts.DEF, facts.IMPL, facts.NAME):
            by_name.setdefault(fact.name, []).append(fact)
        elif fact.kind == facts.PYSTUB:
            stubs[fact.name] = fact  # the newest is in effect
        elif fact.kind == facts.FALLBACK:
            fallbacks.append(fact)
        elif fact.kind in (facts.LIBRARY, facts.CLAIM) and is_namespace(fact.name):
            libraries.append(fact)
        elif facts.kind_of(fact.kind).is_listed(fact):
            others.append(fact)
    positions = _positions(there)
    operators = [
        Operator(name, by_name[name], stubs.get(name), positions.get(name))
        for name in sorted(by_name)
    ]
    fallbacks.sort(key=lambda fact: (_ORDER.get(fact.key, _LAST), fact.key))
    libraries.sort(key=lambda fact: (fact.name, fact.seq))
    others.sort(key=lambda fact: (fact.kind, fact.name, fact.seq))
    return Catalogue(registry, operators, fallbacks, libraries, others)


def _positions(there: Iterable[Registration]) -> dict[str, int]:
    """By operator, its position among the overloads of its name."""
    found: dict[str, int] = {}
    overloads: dict[str, int] = {}
    for fact in sorted(there, key=lambda fact: fact.seq):
        if fact.kind == facts.DEF:
            base = fact.name.partition(".")[0]
            found[fact.name] = overloads.get(base, 0)
            overloads[base] = found[fact.name] + 1
    return found
