"""The choices that members have agreed on: to list them, to withdraw them, to export them into a
file and to load them from one. Also the form that they have in the registry, and the words of the
errors of :func:`mdispatch.choose`.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .. import errors
from ..errors import InvalidArgumentError, MdispatchError
from ..errors.places import printable
from ..errors.words import shown
from ..facts import CHOICE, CLAIM, who
from ..facts.native.constants import MD_MAX_BODY
from .profiles import choice_name, plain, text_of
from .registry import given_or_default

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ..facts import Registration
    from ..facts.abc import Facts
    from .profiles import Asked
    from .registry import Registry

__all__ = ["Choice", "body_of", "chosen_elsewhere", "export", "load", "made", "nested"]
__all__ += ["not_chosen", "returned_no_candidate", "withdraw"]

_FORMAT = 1
_SHOWN = 8  # candidates in an error's text


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for an operator, a profile and an environment, and how that came about.

    Tuples are lists here, as in JSON. ``seconds`` is how long ``decide()`` took, ``waited`` how
    many other members waited for it in the end, ``at`` the time (``time.time()``). ``where`` is
    the place that asked, or the file that it was loaded from; ``pid`` and ``interpreter`` are of
    the member that decided, or loaded it.
    """

    operator: str
    profile: Any
    environment: Any
    value: Any
    candidates: list[Any]
    seconds: float
    waited: int
    at: float
    pid: int
    interpreter: int
    where: str
    fact: Registration = field(repr=False, compare=False)


def body_of(
    operator: str,
    profile: object,
    environment: object,
    candidates: Sequence[object],
    chosen: int,
    seconds: float = 0.0,
    waited: int = 0,
) -> str:
    """The text of the fact: which candidate it is, on a line of its own, and all that is told of
    the choice. InvalidArgumentError when that is too long.
    """
    told = {
        "operator": operator,
        "profile": plain(profile),
        "environment": plain(environment, "environment"),
        "candidates": [plain(each, "candidates") for each in candidates],
        "seconds": seconds,
        "waited": waited,
        "at": time.time(),
    }
    body = f"{chosen} {text_of(candidates[chosen], 'candidates')}\n{json.dumps(told)}"
    if len(body) > MD_MAX_BODY - 64:  # the figures of the choice itself may be longer than these
        raise InvalidArgumentError(
            f"the choice for {operator}, with its {len(candidates)} candidates, takes {len(body)} "
            f"bytes, and a fact has at most {MD_MAX_BODY}\nLet the candidates be short names of "
            "what they stand for."
        )
    return body


def _told(fact: Registration) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(fact.text.partition("\n")[2])
    told["chosen"] = int(fact.text.partition(" ")[0])
    return told


def _choice(fact: Registration) -> Choice:
    told = _told(fact)
    return Choice(
        told["operator"],
        told["profile"],
        told["environment"],
        told["candidates"][told["chosen"]],
        told["candidates"],
        told["seconds"],
        told["waited"],
        told["at"],
        fact.pid,
        fact.interpreter,
        fact.where,
        fact,
    )


def made(operator: str | None = None, *, registry: Registry | None = None) -> list[Choice]:
    """The choices of a registry, oldest first; with a name those for that operator.

    Raises InvalidArgumentError, RegistryClosedError.
    """
    facts = given_or_default(registry).dispatcher.facts
    _, there = facts.registrations_since(CHOICE, 0)
    found = [_choice(fact) for fact in sorted(there, key=lambda fact: fact.seq)]
    return [each for each in found if operator in (None, each.operator)]


def withdraw(choice: Choice, *, registry: Registry | None = None) -> bool:
    """Ends a choice, whoever made it: the next member that asks decides anew. Members that have
    it go on with it until they ask again.

    False when it was withdrawn already. Raises RegistryClosedError, InvalidArgumentError.
    """
    return given_or_default(registry).dispatcher.facts.strike(choice.fact)


# --- files ----------------------------------------------------------------------------------------


def _digest(operator: str, environment: object, candidates: Iterable[object]) -> str:
    texts = [text_of(each, "candidates") for each in candidates]
    what = f"{operator!a} {text_of(environment, 'environment')} {texts!a}"
    return sha256(what.encode()).hexdigest()


def export(
    path: str | Path,
    choices: Iterable[Choice] | None = None,
    *,
    registry: Registry | None = None,
) -> int:
    """Writes all choices of a registry, or these, into a JSON file, and returns how many they are.

    The file has a set for each operator, environment and list of candidates, with a digest of
    these. It is replaced as a whole. Raises OSError, InvalidArgumentError, RegistryClosedError.
    """
    sets: dict[str, dict[str, Any]] = {}
    found = made(registry=registry) if choices is None else list(choices)
    for each in found:
        digest = _digest(each.operator, each.environment, each.candidates)
        its = sets.setdefault(
            digest,
            {
                "operator": each.operator,
                "environment": each.environment,
                "candidates": each.candidates,
                "digest": digest,
                "choices": [],
            },
        )
        its["choices"].append({"profile": each.profile, "choice": each.value})
    _replace(
        path, json.dumps({"mdispatch choices": _FORMAT, "sets": list(sets.values())}, indent=1)
    )
    return len(found)


def _replace(path: str | Path, text: str) -> None:
    """Writes a file beside it, and puts that in its place by one step."""
    folder, name = os.path.split(os.path.abspath(path))
    handle, beside = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def load(
    path: str | Path,
    operator: str,
    candidates: Iterable[object],
    *,
    environment: object = None,
    registry: Registry | None = None,
) -> int:
    """Makes the choices of a file that :func:`export` has written: those for ``operator`` that were
    made among just these candidates in this environment. Returns how many are new: a choice that
    is there already stays.

    Raises ChoicesFileError, with what differs, when the file has none such or is none of ours;
    nothing was changed then. OSError, InvalidArgumentError, RegistryClosedError, RegistryFullError.
    """
    facts = given_or_default(registry).dispatcher.facts
    among = list(candidates)
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read()
    chosen = _matching(str(path), text, operator, among, environment)
    texts = [text_of(each, "candidates") for each in among]
    place, new = f"{printable(str(path))}:1", 0
    bodies = []
    for each in chosen:
        at = texts.index(text_of(each["choice"], "choice"))
        name = choice_name(operator, each["profile"], environment)
        bodies.append((name, body_of(operator, each["profile"], environment, among, at)))
    for name, body in bodies:
        with suppress(errors.DuplicateRegistrationError):
            facts.register(CHOICE, 0, name, body, place)
            new += 1
    return new


def _matching(
    path: str, text: str, operator: str, among: list[object], environment: object
) -> list[dict[str, Any]]:
    """The choices of the file that fit."""

    def refused(why: str, here: object = None, there: object = None) -> errors.ChoicesFileError:
        return errors.ChoicesFileError(
            f"the choices in {path} are not loaded: {why}", path, operator=operator, here=here,
            there=there,
        )  # fmt: skip

    try:
        read = json.loads(text)
        if read["mdispatch choices"] != _FORMAT:
            raise refused(f"it has format {read['mdispatch choices']!r}, this mdispatch reads 1")
        sets = [dict(each) for each in read["sets"]]
        for each in sets:
            if each["digest"] != _digest(
                each["operator"], each["environment"], each["candidates"]
            ) or any({"profile", "choice"} - set(one) for one in each["choices"]):
                raise refused("it was changed by hand, since its digest is another\nExport anew.")
            texts = {text_of(one) for one in each["candidates"]}
            if any(text_of(one["choice"]) not in texts for one in each["choices"]):
                raise refused("it was changed by hand: a choice is none of its candidates")
    except (ValueError, KeyError, TypeError, MdispatchError) as error:
        if isinstance(error, errors.ChoicesFileError):
            raise
        raise refused("it is no file of mdispatch.choices.export()") from None
    wanted = _digest(operator, environment, among)
    for each in sets:
        if each["digest"] == wanted:
            return list(each["choices"])
    same = [each for each in sets if each["operator"] == operator]
    if not same:
        there = sorted({each["operator"] for each in sets})
        raise refused(
            f"it has none for {operator}, but for {', '.join(there) or 'nothing'}", operator, there
        )
    around = text_of(environment, "environment")
    near = [each for each in same if text_of(each["environment"]) == around]
    if not near:
        there = [each["environment"] for each in same]
        raise refused(
            "they were made in another environment"
            f"\n  here:     {shown(environment)}\n  the file: {_listed(there)}"
            "\nLet the members decide anew here, and export that.",
            environment,
            there,
        )
    raise refused(
        "they were made among other candidates"
        f"\n  here:     {_listed(among)}\n  the file: {_listed(near[0]['candidates'])}"
        "\nLet the members decide anew among these, and export that.",
        among,
        near[0]["candidates"],
    )


# --- errors ---------------------------------------------------------------------------------------


def _listed(values: Sequence[object]) -> str:
    told = ", ".join(shown(each) for each in values[:_SHOWN])
    return told + f", ... ({len(values)} altogether)" * (len(values) > _SHOWN)


def _of(asked: Asked) -> str:
    return f"{asked.operator}, profile {shown(asked.profile)}"


def chosen_elsewhere(asked: Asked, fact: Registration, here: str) -> MdispatchError:
    """A choice that is no candidate here."""
    choice = _choice(fact)
    return errors.NotACandidateError(
        f"for {_of(asked)} the members have chosen {shown(choice.value)}, which is no candidate "
        f"here\n  here:  {_listed(asked.candidates)} ({here})\n"
        f"  there: {_listed(choice.candidates)} ({choice.where}, by "
        f"{who(choice.pid, choice.interpreter)})\n"
        "Give all members the same candidates, or withdraw the choice (mdispatch choices).",
        operator=asked.operator,
        profile=asked.profile,
        choice=choice.value,
        candidates=tuple(asked.candidates),
        candidates_there=tuple(choice.candidates),
        here=here,
        there=choice.where,
    )


def returned_no_candidate(asked: Asked, value: object, here: str) -> MdispatchError:
    """``decide()`` returned something else. Nothing was chosen."""
    return errors.NotACandidateError(
        f"decide() for {_of(asked)} returned {shown(value)}, which is no candidate\n"
        f"  here:  {_listed(asked.candidates)} ({here})\n"
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
