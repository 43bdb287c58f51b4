"""The agreements and the roll calls of a registry: to look at them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import RegistryDamagedError
from ..errors.words import shown
from ..registry.registry import given_or_default
from . import values
from .agreeing import ASKS, agreement_name
from .disagreeing import Told
from .fields import Field, differences
from .kind import KEPT, VALUE, VALUES
from .roll_call import NAMES, Post
from .values import Damaged
from .verdicts import Member, Verdict, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..facts import Registration
    from ..registry.registry import Registry

__all__ = ["Agreement", "Asked", "RollCall", "agreements", "roll_calls", "verdicts_among"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A member that has asked for an agreement.

    ``agrees`` is False if it has another value than the others, and was refused. ``value`` is its
    value in words, as Python writes it, cut after 80 letters. ``at`` is the time
    (``time.time()``), ``where`` the location; ``rank`` is None where no launcher tells it.
    """

    agrees: bool
    value: str
    at: float
    where: str
    pid: int
    interpreter: int
    rank: int | None
    fact: Registration = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Agreement:
    """An agreement, and the members that have asked for it, oldest first.

    ``value`` is the value on which they agree, in words; "" if none of them is there any more. It
    is ``kept`` as long as the registry is there, or it ends with its last member. ``patterns`` has
    "ignore", "only", "secret" and "follow", as far as they were given. ``among`` is the highest
    number of members for which one of them waits, or has waited.
    """

    name: str
    value: str
    kept: bool
    patterns: dict[str, Any]
    among: int
    members: list[Asked]


def agreements(name: str | None = None, *, registry: Registry | None = None) -> list[Agreement]:
    """The agreements of a registry, in the order of their names; with a name only that one. The
    steps of running jobs are not among them.

    Raises InvalidArgumentError, RegistryClosedError.
    """
    facts = given_or_default(registry).dispatcher.facts
    wanted = None if name is None else agreement_name(name)
    by_name: dict[str, list[Told]] = {}
    for kind in (VALUE, KEPT):
        for fact in facts.registrations_since(kind, 0)[1]:
            if wanted in (None, fact.name) and fact.name.startswith("(agree "):
                for told in _read(fact):
                    by_name.setdefault(fact.name, []).append(told)
    return [_agreement(each, by_name[each]) for each in sorted(by_name)]


def _read(fact: Registration) -> Iterator[Told]:
    """The registration, unless it is a mark of those that have met. Another program's text in its
    place is none.
    """
    if fact.kind == VALUE or fact.key == ASKS:
        with suppress(RegistryDamagedError):
            yield Told(fact)


def _agreement(name: str, told: list[Told]) -> Agreement:
    told = sorted(told, key=lambda each: each.fact.seq)
    agreed = [each for each in told if each.fact.key == ASKS]
    return Agreement(
        VALUES.called(name)[0],
        agreed[0].value() if agreed else "",
        any(each.fact.kind == KEPT for each in told),
        agreed[0].patterns if agreed else {},
        max([each.among or 1 for each in told]),
        [_asked(each) for each in told if each.fact.kind == VALUE],
    )


def _asked(told: Told) -> Asked:
    fact = told.fact
    return Asked(
        fact.key == ASKS,
        told.value(),
        told.at,
        fact.where,
        fact.pid,
        fact.interpreter,
        told.rank,
        fact,
    )


# --- roll calls -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RollCall:
    """A round of a roll call. ``verdict`` is its last one, None as long as there is none; ``posts``
    are the members that have called and live, and ``expected`` is how many have to.
    """

    name: str
    round: str
    verdict: Verdict | None
    posts: list[Member]
    expected: int


def roll_calls(name: str | None = None, *, registry: Registry | None = None) -> list[RollCall]:
    """The roll calls of a registry whose verdict or whose members are there: those with a verdict
    first, by its age. With a name only those.

    Raises RegistryClosedError.
    """
    facts = given_or_default(registry).dispatcher.facts
    verdicts = verdicts_among(facts.registrations_since(KEPT, 0)[1])
    last = {(its.name, its.round): its for its in verdicts}
    posts: dict[tuple[str, str], list[Post]] = {key: [] for key in last}
    alive = {(pid, its) for its, pid, _, alive, *_ in facts.members() if alive}
    for fact in facts.registrations_since(VALUE, 0)[1]:
        if fact.name.startswith(NAMES) and (fact.pid, fact.interpreter) in alive:
            with suppress(Damaged):  # a piece of an inventory, or another program's text
                post = Post(fact)
                posts.setdefault((post.name, post.round), []).append(post)
    return [
        RollCall(
            *key,
            last.get(key),
            [Member(*each.member, each.rank, each.host, each.fact.where, 0, 0) for each in its],
            max([each.expected for each in its], default=0),
        )
        for key, its in posts.items()
        if name in (None, key[0])
    ]


def verdicts_among(there: Iterable[Registration]) -> list[Verdict]:
    """The verdicts among registrations, oldest first."""
    found = []
    for fact in sorted(there, key=lambda each: each.seq):
        if fact.name.startswith(NAMES):
            with suppress(Damaged):
                found.append(read(fact.text))
    return found


# --- for mdispatch diff ---------------------------------------------------------------------------

_MOST = 20  # fields


def value_differences(old: str, new: str, where: tuple[str, str]) -> list[str]:
    """The parts in which the texts of two values differ, in words. ``where`` has the words for the
    places of the two.
    """
    try:
        fields = differences(values.read(old), values.read(new))
    except Damaged:
        fields = []  # values that members hand on
    fields = fields or [Field("", shown(old), shown(new))]
    told = [
        f"{each.path or 'the value'} is {each.here} {where[0]}, {each.there} {where[1]}"
        for each in fields[:_MOST]
    ]
    return told + [f"{len(fields)} parts differ in all"] * (len(fields) > _MOST)
