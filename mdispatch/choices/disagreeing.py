"""The registrations of agreements as others have written them, and the errors of
:func:`mdispatch.agree`. Slow paths only.
"""

from __future__ import annotations

import json
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import (
    AgreementScopeError,
    AgreementTimeoutError,
    DisagreementError,
    InvalidArgumentError,
    MdispatchError,
    NotSharedWarning,
    RegistryDamagedError,
)
from ..errors.locations import printable, registrants_location
from ..errors.words import shown
from ..facts import who
from .fields import Field, differences, in_python
from .handed import read as read_handed
from .profiles import HOST, REGISTRY
from .ranks import rank
from .values import Damaged, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..facts import Registration
    from ..facts.abc import Facts
    from .values import Node

__all__ = ["Told", "disagreement", "not_all", "out_of_scope"]

_SHOWN = 8  # fields in an error's text
_REMEDY = (
    "Give all members the same value; leave out what may differ (ignore=); or take the first one's "
    "(follow=True)."
)
#: Where the parts of both have the same words.
_ALIKE = Field("", "one value", "another one that looks alike")
_MOST_RANK = 10**9
_MOST_TIME = 1 << 36  # the year 4147


class Told:
    """The registration of a member, read. RegistryDamagedError for a text that no member of this
    mdispatch has written.
    """

    __slots__ = ("against", "among", "at", "fact", "follows", "handed", "node", "patterns", "rank")

    def __init__(self, fact: Registration) -> None:
        self.fact = fact
        #: The value for those that follow.
        self.handed: Any = None
        self.rank: int | None = None
        self.among: int | None = None
        try:
            first, patterns, value = fact.text.split("\n")
            head = json.loads(first)
            self.patterns: dict[str, Any] = read(patterns)
            self.at: float = head["at"]
            #: The digest of the other value, in the mark of a refusal.
            self.against = head.get("against")
            for name in ("rank", "among"):
                number = head[name]
                if number is not None and (type(number) is not int or not 0 <= number < _MOST_RANK):
                    raise Damaged
                setattr(self, name, number)
            self.follows = bool(self.patterns.get("follow"))
            if not 0 <= self.at < _MOST_TIME or not isinstance(self.patterns, dict):
                raise Damaged
            if self.follows:
                self.handed = read_handed(value)
            self.node: Node = None if self.follows else read(value)
        except (Damaged, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise _damaged(fact) from None

    def value(self) -> str:
        """The value in words."""
        return shown(self.handed) if self.follows else in_python(self.node)

    def member(self) -> str:
        """The member that has registered it."""
        by = who(self.fact.pid, self.fact.interpreter)
        return by if self.rank is None else f"{by}, rank {self.rank}"


def _damaged(fact: Registration) -> MdispatchError:
    return RegistryDamagedError(
        f"the agreement {shown(fact.name)} is none that mdispatch has written: "
        f"{shown(fact.text[:60])}    (at {printable(fact.where)}, by "
        f"{who(fact.pid, fact.interpreter)})\n"
        "Whatever writes into this registry beside mdispatch: end it, and start the main "
        "process anew.",
        report=f"an agreement at {fact.where} that is none",
    )


# --- errors ---------------------------------------------------------------------------------------


def disagreement(
    name: str, node: Node, patterns: dict[str, Any], other: Registration, here: str
) -> DisagreementError:
    """Another member has another value. ``node`` and ``patterns`` are those of this one."""
    there = Told(other)
    fields = told_differently = _patterns_that_differ(patterns, there.patterns)
    if not fields and there.follows:
        fields = [Field("", in_python(node), there.value())]
    fields = fields or differences(node, there.node) or [_ALIKE]
    its = rank()
    differs, remedy = "has another value", _REMEDY
    if told_differently:
        differs, remedy = "is asked for in another way", "Give all members the same of these."
    lines = [f"{name!r} {differs} in another member that has asked for it before:"]
    lines += [f"  {field}" for field in fields[:_SHOWN]]
    if len(fields) > _SHOWN:
        lines.append(f"  ... ({len(fields)} in all)")
    lines += [
        f"  here:  {here}" + (f" (rank {its})" if its is not None else ""),
        f"  there: {other.where} ({there.member()})",
        remedy,
    ]
    return DisagreementError(
        "\n".join(lines),
        name=name,
        fields=tuple(fields),
        here=here,
        there=other.where,
        pid=other.pid,
        interpreter=other.interpreter,
        rank=there.rank,
    )


@cache
def warn_alone(why: str) -> None:
    """Warns of an agreement where registries cannot be shared, at the first line that asks."""
    here = registrants_location()
    file, _, line = here.rpartition(":")
    warnings.warn_explicit(
        f"this value is compared with no other process: {why}. See docs/other-systems.md",
        NotSharedWarning,
        file or here,
        int(line) if line.isdigit() else 1,
    )


def _patterns_that_differ(here: dict[str, Any], there: dict[str, Any]) -> list[Field]:
    found = []
    for name in ("follow", "ignore", "only", "secret"):
        mine, its = here.get(name, 0), there.get(name, 0)
        if mine != its:
            words = [in_python(each) if each != 0 else "not given" for each in (mine, its)]
            found.append(Field(f"{name}=", *words))
    return found


def step_differs(
    name: str, step: int, text: str, other: Registration, here: str
) -> DisagreementError:
    """Another member has come to a step with another value."""
    try:
        fields = differences(read(text), read(other.text)) or [_ALIKE]
    except Damaged:
        raise _damaged(other) from None
    told = "; ".join(str(field) for field in fields[:_SHOWN])
    return DisagreementError(
        f"step {step} of {name!r} has another value in another member: {told}\n"
        f"  here:  {here}\n"
        f"  there: {other.where} ({who(other.pid, other.interpreter)})\n"
        "From an earlier step on the members have done different things. Compare more often to "
        "find the first.",
        name=name,
        fields=tuple(fields),
        here=here,
        there=other.where,
        pid=other.pid,
        interpreter=other.interpreter,
        step=step,
    )


def not_all(
    name: str, among: int, came: Sequence[Registration], waited: float, here: str
) -> AgreementTimeoutError:
    """Too few have asked within the timeout."""
    told = [Told(fact) for fact in came]
    ranks = {each.rank for each in told}
    absent: tuple[int, ...] = ()
    if None not in ranks:
        absent = tuple(each for each in range(among) if each not in ranks)
    lines = [
        f"{len(came)} of {among} members have asked for {name!r} within {round(waited, 3):g} s"
    ]
    if absent:
        lines.append(f"  absent: {_listed('rank', absent)}")
    lines.append(f"  here:   {here}")
    lines += [f"  there:  {each.fact.where} ({each.member()})" for each in told[:_SHOWN]]
    if len(told) > _SHOWN:
        lines.append(f"  ... ({len(told)} in all)")
    lines.append("Look for an error in the log of those that are absent, or give them more time.")
    return AgreementTimeoutError(
        "\n".join(lines),
        name=name,
        among=among,
        came=tuple((each.fact.pid, each.fact.interpreter) for each in told),
        absent=absent,
        waited=waited,
    )


def _listed(what: str, numbers: Iterable[int]) -> str:
    its = [*numbers]
    told = ", ".join(map(str, its[:_SHOWN]))
    more = f", ... ({len(its)} in all)" * (len(its) > _SHOWN)
    return f"{what}{'s' * (len(its) > 1)} {told}{more}"


def out_of_scope(facts: Facts, name: str, scope: object, here: str) -> MdispatchError:
    """An agreement has a scope that it cannot have here."""
    if scope not in (REGISTRY, HOST):
        return InvalidArgumentError(
            f"scope={shown(scope)}: an agreement is of all members of the registry ({REGISTRY!r}), "
            f"or of those of this host ({HOST!r})"
        )
    return AgreementScopeError(
        f"{name!r} would be compared on this host only, and registry {facts.label} is one of a "
        f"cluster, whose other hosts may have another value\n  here: {here}\n"
        'Nothing was compared. Say scope="host" where each host may have its own value.',
        name=name,
        registry=facts.label,
        here=here,
    )
