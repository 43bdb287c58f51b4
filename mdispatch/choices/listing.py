"""The choices that members have agreed on: to list them, to withdraw them, to export them into a
file and to load them from one.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .. import errors
from ..errors import MdispatchError
from ..errors.locations import caller, location_of, printable
from ..errors.words import shown
from ..registry.registry import given_or_default
from .choosing import scopes_in
from .facts import Body, listed, out_of_scope, told_of
from .kind import CHOICE
from .profiles import REGISTRY, choice_name
from .values import Damaged, checked, dumps, plain

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from ..facts import Registration
    from ..registry.registry import Registry
    from .values import Node

__all__ = ["Choice", "export", "load", "made", "withdraw"]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for an operator, a profile and an environment, and how that came about.

    The values are in their plain form (values.py): tuples are lists, as in JSON, and a value that
    JSON lacks is a dict with one key, which begins with "#". ``seconds`` is how long ``decide()``
    took, ``waited`` how many other members waited for it in the end, ``at`` the time
    (``time.time()``). ``where`` is the location that asked, or the file that it was loaded from;
    ``pid`` and ``interpreter`` are of the member that decided, or loaded it.
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


def _choice(fact: Registration) -> Choice:
    told = told_of(fact)
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
    """The choices of a registry, oldest first; with a name those for that operator. What something
    else than mdispatch has written in their place is none: ``choose`` raises RegistryDamagedError
    for it.

    Raises InvalidArgumentError, RegistryClosedError.
    """
    facts = given_or_default(registry).dispatcher.facts
    _, there = facts.registrations_since(CHOICE, 0)
    found = []
    for fact in sorted(there, key=lambda fact: fact.seq):
        with suppress(errors.RegistryDamagedError):
            found.append(_choice(fact))
    return [each for each in found if operator in (None, each.operator)]


def withdraw(choice: Choice, *, registry: Registry | None = None) -> bool:
    """Ends a choice, whoever made it: the next member that asks decides anew. Members that have
    it go on with it until they ask again.

    False when it was withdrawn already. Raises RegistryClosedError, InvalidArgumentError.
    """
    return given_or_default(registry).dispatcher.facts.remove(choice.fact)


# --- files ----------------------------------------------------------------------------------------


def _digest(operator: str, environment: Node, candidates: Iterable[Node]) -> str:
    texts = [*map(dumps, candidates)]
    what = f"{operator!a} {dumps(environment)} {texts!a}"
    return sha256(what.encode()).hexdigest()


def export(
    path: str | Path,
    choices: Iterable[Choice] | None = None,
    *,
    registry: Registry | None = None,
) -> int:
    """Writes all choices of a registry, or these, into a JSON file, and returns how many they are.
    Registrations of other kinds are in no file.

    The file has a set for each operator, environment and list of candidates, with a digest of
    these. It is replaced as a whole. Raises OSError, InvalidArgumentError, RegistryClosedError.
    """
    sets: dict[str, dict[str, Any]] = {}
    found = made(registry=registry) if choices is None else list(choices)
    for each in found:
        if not isinstance(each, Choice):
            raise errors.InvalidArgumentError(
                "a file has choices, as mdispatch.choices.made() returns them, and nothing like "
                f"{shown(each)}"
            )
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
    scope: str = REGISTRY,
    registry: Registry | None = None,
) -> int:
    """Makes the choices of a file that :func:`export` has written: those for ``operator`` that were
    made among just these candidates in this environment. Returns how many are new: a choice that
    is there already stays. ``scope`` is as for :func:`mdispatch.choose`: on a host of a cluster
    "host" has to be said, and the other hosts have to load the same file.

    Raises ChoiceScopeError; ChoicesFileError, with what differs, when the file has none such or is
    none of ours. Nothing was changed then. OSError, InvalidArgumentError, RegistryClosedError,
    RegistryFullError.
    """
    facts = given_or_default(registry).dispatcher.facts
    if scope not in scopes_in(facts):
        here = location_of(caller())
        raise out_of_scope(facts, operator, None, scope, here, printable(str(path)))
    among = [plain(each, None, "a candidate") for each in candidates]
    around = plain(environment, None, "environment")
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read()
    chosen = _matching(str(path), text, operator, among, around)
    texts = [*map(dumps, among)]
    location, new = f"{printable(str(path))}:1", 0
    bodies = []
    for each in chosen:
        at = texts.index(dumps(each["choice"]))
        asked = dumps(each["profile"]), None if environment is None else dumps(around)
        name = choice_name(operator, *asked)
        bodies.append((name, Body(operator, *asked, texts).of(at)))
    for name, body in bodies:
        with suppress(errors.DuplicateRegistrationError):
            facts.register(CHOICE, 0, name, body, location)
            new += 1
    return new


def _matching(
    path: str, text: str, operator: str, among: list[Node], environment: Node
) -> list[dict[str, Any]]:
    """The choices of the file that fit."""

    def refused(why: str, here: object = None, there: object = None) -> errors.ChoicesFileError:
        return errors.ChoicesFileError(
            f"the choices in {path} are not loaded: {why}", path=path, operator=operator, here=here,
            there=there,
        )  # fmt: skip

    try:
        read = json.loads(text)
        if read["mdispatch choices"] != _FORMAT:
            raise refused(
                f"it has format {shown(read['mdispatch choices'])}, and this mdispatch reads "
                f"{_FORMAT}\nExport them with this version."
            )
        sets = [dict(each) for each in read["sets"]]
        for each in sets:
            if not isinstance(each["operator"], str) or not isinstance(each["candidates"], list):
                raise TypeError
            if each["digest"] != _digest(
                each["operator"], each["environment"], each["candidates"]
            ) or any({"profile", "choice"} - set(one) for one in each["choices"]):
                raise refused(
                    "it was changed by hand, since its digest is another\nExport them anew."
                )
            texts = {dumps(one) for one in each["candidates"]}
            if any(dumps(one["choice"]) not in texts for one in each["choices"]):
                raise refused(
                    "it was changed by hand: a choice is none of its candidates\nExport them anew."
                )
            for one in each["choices"]:
                checked(one["profile"])
            checked([each["environment"], each["candidates"]])
    except (Damaged, ValueError, KeyError, TypeError, RecursionError, MdispatchError) as error:
        if isinstance(error, errors.ChoicesFileError):
            raise
        raise refused("it is no file of mdispatch.choices.export()\nGive its path.") from None
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
    near = [each for each in same if each["environment"] == environment]
    if not near:
        there = [each["environment"] for each in same]
        raise refused(
            "they were made in another environment"
            f"\n  here:     {shown(environment)}\n  the file: {listed(there)}"
            "\nLet the members decide anew here, and export that.",
            environment,
            there,
        )
    raise refused(
        "they were made among other candidates"
        f"\n  here:     {listed(among)}\n  the file: {listed(near[0]['candidates'])}"
        "\nLet the members decide anew among these, and export that.",
        among,
        near[0]["candidates"],
    )
