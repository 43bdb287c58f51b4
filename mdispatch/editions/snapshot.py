"""All that is registered at one moment, as values that can be compared (comparing.py). This makes
them from registrations, and reading.py from a saved answer of ``mdispatch ls --json``.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from .. import facts
from ..dispatch.by_type import split_types
from ..dispatch.kernels import FALLTHROUGH, Provider
from ..facts import kernel_name
from ..registry.catalogue import catalogue_of, known_key
from ..schema.canonical import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from ..facts import Registration
    from ..registry import catalogue
    from ..schema import FunctionSchema


class Kernel(NamedTuple):
    """The kernel that is in effect at a key for its types, or a provider. ``order`` is that of a
    provider, and 0 without one.
    """

    key: str
    types: tuple[str, ...]
    provider: str
    order: int
    label: str
    falls_through: bool
    where: str

    @property
    def variant(self) -> tuple[str, tuple[str, ...], str]:
        """The part that tells it from the operator's other kernels. A provider is
        known by its name alone.
        """
        return self.key, () if self.provider else self.types, self.provider

    def __str__(self) -> str:
        what = f"the provider {self.provider!r}" if self.provider else "the kernel"
        return kernel_name(f"{what} at {self.key}", ", ".join(self.types))


class Operator(NamedTuple):
    """An operator, or a name with kernels and no definition. ``position`` is that among the
    overloads, None without a definition.
    """

    name: str
    schema: FunctionSchema | None
    position: int | None
    alias_analysis: str
    tags: tuple[str, ...]
    python_module: str
    kernels: tuple[Kernel, ...]
    where: str
    is_held: bool

    @property
    def base(self) -> str:
        """The name without the overload."""
        return self.name.partition(".")[0]

    @property
    def namespace(self) -> str:
        return self.name.partition("::")[0]


class Fallback(NamedTuple):
    """A backend fallback, which serves all operators."""

    key: str
    label: str
    falls_through: bool
    where: str


class Other(NamedTuple):
    """A registration that is about no operator, as a class or a priority."""

    kind: str
    name: str
    text: str
    where: str

    @property
    def space(self) -> str:
        """The namespace that it is about; "" for all."""
        between = {"class": ".", "priority": "::"}.get(self.kind)
        return self.name.rpartition(between)[0] if between else ""


class Snapshot(NamedTuple):
    """All that is registered, by name. ``others`` has one for each kind and name: the newest."""

    operators: tuple[Operator, ...]
    fallbacks: tuple[Fallback, ...] = ()
    others: tuple[Other, ...] = ()

    def only(self, patterns: Sequence[str]) -> Snapshot:
        """The part that is about these: a namespace, a name with or without its overload, or with
        * ? [...]. Fallbacks and types are about all operators, and are in no part.
        """

        def fits(*names: str) -> bool:
            return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)

        return Snapshot(
            tuple(each for each in self.operators if fits(each.name, each.base, each.namespace)),
            (),
            tuple(each for each in self.others if each.space and fits(each.name, each.space)),
        )

    def within(self, spaces: AbstractSet[str]) -> Snapshot:
        """The part that is about these namespaces, and fallbacks, which serve all. Everything
        else that belongs to no namespace is left out.
        """
        return Snapshot(
            tuple(each for each in self.operators if each.namespace in spaces),
            self.fallbacks,
            tuple(each for each in self.others if each.space.partition("::")[0] in spaces),
        )


def snapshot_of(there: Sequence[Registration]) -> Snapshot:
    """The snapshot of all registrations of a registry.

    SchemaSyntaxError for a definition that something else than mdispatch has written.
    """
    found = catalogue_of(there, "")
    return Snapshot(
        tuple(map(_operator, found.operators)),
        tuple({one.key: one for one in map(_fallback, found.fallbacks)}.values()),
        newest_of_each(map(_other, found.others)),
    )


def newest_of_each(others: Iterable[Other]) -> tuple[Other, ...]:
    """The last one of each kind and name, sorted."""
    newest = {(one.kind, one.name): one for one in others}
    return tuple(newest[each] for each in sorted(newest))


def newest_of_variants(kernels: Iterable[Kernel]) -> tuple[Kernel, ...]:
    """The first one of each key, types and provider: the newest comes first."""
    found: dict[object, Kernel] = {}
    for kernel in kernels:
        found.setdefault(kernel.variant, kernel)
    return tuple(found.values())


def _operator(its: catalogue.Operator) -> Operator:
    there = its.definition
    return Operator(
        its.name,
        None if there is None else schema_of(there.body),
        None if there is None else its.position,
        "" if there is None else there.alias_analysis,
        () if there is None else tuple(there.tags),
        "" if its.stub is None else its.stub.body.partition("\n")[0],
        newest_of_variants(_kernel(each.fact) for each in its.kernels),
        "" if there is None else there.where,
        bool(its.holds),
    )


def _kernel(fact: Registration) -> Kernel:
    provider = Provider.of(fact.provider_text)
    return Kernel(
        known_key(fact.key),
        tuple(split_types(fact.types)),
        fact.provider or "",
        0 if provider is None else provider.order,
        fact.body,
        fact.body == FALLTHROUGH,
        fact.where,
    )


def _fallback(fact: Registration) -> Fallback:
    return Fallback(known_key(fact.key), fact.body, fact.body == FALLTHROUGH, fact.where)


def _other(fact: Registration) -> Other:
    kind = facts.kind_of(fact.kind)
    return Other(
        kind.listed_as or kind.name, kind.called(fact.name)[0], kind.body(fact.text), fact.where
    )
