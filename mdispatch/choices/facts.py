"""The form that choices have in the registry, and the words of the errors of
:func:`mdispatch.choose`. Slow paths only.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from .. import errors
from ..errors import InvalidArgumentError, MdispatchError
from ..errors.locations import printable
from ..errors.words import shown
from ..facts import CLAIM, who
from ..facts.native.constants import MD_MAX_BODY
from .profiles import HOST, REGISTRY
from .values import Damaged, checked, dumps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..facts import Registration
    from ..facts.abc import Facts
    from .profiles import Asked

_SHOWN = 8  # candidates in an error's text
_FIGURES = 192  # characters that the figures of a choice may take
_MOST = 1 << 36  # seconds: the year 4147; and more than any count


class Body:
    """The text of the registration for each candidate that can be chosen. All values are given by
    their texts; that of no environment is None. InvalidArgumentError for a text that is too long.
    """

    __slots__ = ("_told", "texts")

    def __init__(
        self, operator: str, profile: str, environment: str | None, candidates: Sequence[str]
    ) -> None:
        self.texts = candidates
        self._told = (
            f'{{"operator": {dumps(operator)}, "profile": {profile}, '
            f'"environment": {environment or "null"}, "candidates": [{", ".join(candidates)}]'
        )
        longest = len(self._told) + max(map(len, self.texts))
        if longest > MD_MAX_BODY - _FIGURES:
            raise InvalidArgumentError(
                f"the choice for {operator}, with all {len(candidates)} candidates, takes "
                f"{longest // 1024} KiB, and a registration has at most {MD_MAX_BODY // 1024}\n"
                "Let the candidates be short names of what they stand for."
            )

    def of(self, chosen: int, seconds: float = 0.0, waited: int = 0) -> str:
        """The number and the text of the candidate on the first line, then the other fields."""
        figures = f'"seconds": {seconds!r}, "waited": {waited}, "at": {time.time()!r}'
        return f"{chosen} {self.texts[chosen]}\n{self._told}, {figures}}}"


def told_of(fact: Registration) -> dict[str, Any]:
    """What is told of a choice; ``chosen`` is which candidate it is. RegistryDamagedError for what
    no member of this mdispatch has written.
    """
    try:
        chosen, _, rest = fact.text.partition(" ")
        told: dict[str, Any] = json.loads(rest.partition("\n")[2])
        at, candidates = int(chosen), told["candidates"]
        is_one = isinstance(told["operator"], str) and isinstance(candidates, list)
        is_one = is_one and 0 <= at < len(candidates) and type(told["waited"]) is int
        is_one = is_one and 0 <= told["waited"] < _MOST and 0 <= told["seconds"] < _MOST
        is_one = is_one and 0 <= told["at"] < _MOST
        for each in (told["profile"], told["environment"], candidates):
            checked(each)
    except (Damaged, ValueError, TypeError, KeyError, RecursionError):
        is_one = False
    if not is_one:
        raise errors.RegistryDamagedError(
            f"the choice {shown(fact.name)} is none that mdispatch has written: "
            f"{shown(fact.text[:60])}    (at {printable(fact.where)}, by "
            f"{who(fact.pid, fact.interpreter)})\n"
            "Whatever writes into this registry beside mdispatch: end it, and start the main "
            "process anew.",
            report=f"a choice at {fact.where} that is none",
        )
    told["chosen"] = at
    return told


# --- errors ---------------------------------------------------------------------------------------


def listed(values: Sequence[object]) -> str:
    """Candidates for an error's text."""
    told = ", ".join(shown(each) for each in values[:_SHOWN])
    return told + f", ... ({len(values)} altogether)" * (len(values) > _SHOWN)


def _of(asked: Asked) -> str:
    return f"{asked.operator}, profile {shown(asked.profile)}"


def out_of_scope(
    facts: Facts, operator: str, profile: object, scope: object, here: str, file: str = ""
) -> MdispatchError:
    """A choice has a scope that it cannot have here. It is to be loaded from ``file``, or made."""
    if scope not in (REGISTRY, HOST):
        return InvalidArgumentError(
            f"scope={shown(scope)}: a choice is for all members of the registry ({REGISTRY!r}), or "
            f"for those of this host ({HOST!r})"
        )
    what = f"a choice for {operator}, profile {shown(profile)}"
    remedy = (
        'Nothing was chosen. Where each host may choose for itself, say scope="host". Where all '
        "hosts have to use the same, decide before the job begins, and have each host load that "
        'from one file (mdispatch.choices.load(..., scope="host")).'
    )
    if file:
        what = f"what {file} has for {operator}"
        remedy = 'Nothing was loaded. Load the same file on every host, with scope="host".'
    return errors.ChoiceScopeError(
        f"{what} would hold on this host only, and registry {facts.label} is one of a cluster, "
        f"whose other hosts may choose something else\n  here: {here}\n{remedy}",
        operator=operator,
        profile=profile,
        registry=facts.label,
        here=here,
    )


def chosen_elsewhere(asked: Asked, fact: Registration, here: str) -> MdispatchError:
    """A choice that is no candidate here."""
    told = told_of(fact)
    there, chosen = told["candidates"], told["candidates"][told["chosen"]]
    return errors.NotACandidateError(
        f"for {_of(asked)} the members have chosen {shown(chosen)}, which is no candidate "
        f"here\n  here:  {listed(asked.candidates)} ({here})\n"
        f"  there: {listed(there)} ({fact.where}, by "
        f"{who(fact.pid, fact.interpreter)})\n"
        "Give all members the same candidates, or withdraw the choice (mdispatch choices).",
        operator=asked.operator,
        profile=asked.profile,
        choice=chosen,
        candidates=tuple(asked.candidates),
        candidates_there=tuple(there),
        here=here,
        there=fact.where,
    )


def returned_no_candidate(asked: Asked, value: object, here: str) -> MdispatchError:
    """``decide()`` returned something else. Nothing was chosen."""
    return errors.NotACandidateError(
        f"decide() for {_of(asked)} returned {shown(value)}, which is no candidate\n"
        f"  here:  {listed(asked.candidates)} ({here})\n"
        "Nothing was chosen: let it return one of them.",
        operator=asked.operator,
        profile=asked.profile,
        choice=value,
        candidates=tuple(asked.candidates),
        here=here,
    )


def nested(asked: Asked, here: str) -> MdispatchError:
    """``decide()`` asks for what it is to decide."""
    return errors.NestedChoiceError(
        f"decide() for {_of(asked)} asks for this very choice ({here}): it would wait for "
        "itself\nLet it work with a candidate that it picks itself.",
        operator=asked.operator,
        profile=asked.profile,
    )


def not_chosen(facts: Facts, asked: Asked, waited: float, here: str) -> TimeoutError:
    """The time was up."""
    _, _, there = facts.registrations(asked.name)
    decider = next((fact for fact in there if fact.kind == CLAIM), None)
    lines = [f"nobody has chosen for {_of(asked)} within {round(waited, 3):g} s", f"  here: {here}"]
    if decider is None:
        lines.append("Call it again: whoever was to decide has given up.")
    else:
        state = " and is stopped" if _is_stopped(decider.pid) else ""
        by = who(decider.pid, decider.interpreter)
        lines.append(f"  {by}, is deciding{state}, for {decider.where}")
        lines.append(
            f"Let it go on (kill -CONT {decider.pid}), or end it: then the next one decides."
            if state
            else "Give it more time (timeout=), or end that process: then the next one decides."
        )
    return errors.ChoiceTimeoutError(
        "\n".join(lines),
        operator=asked.operator,
        profile=asked.profile,
        waited=waited,
        pid=0 if decider is None else decider.pid,
        interpreter=0 if decider is None else decider.interpreter,
    )


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b") ")[2][:1] in b"Tt"
    except OSError:
        return False
