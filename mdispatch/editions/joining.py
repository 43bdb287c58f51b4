"""The start of a member of an edition: braces in the address, and the other editions of the name.
Each such start loads this module, so it imports little.

Note [Braces]
~~~~~~~~~~~~~
Braces in a registry's name or address say the edition in words of the deployment:

    elect:shop@{env:RELEASE}    the variable RELEASE of this process's environment
    elect:shop@{dist:shop}      the version of the installed distribution shop

Python replaces them before the name comes to C. For the default registry that happens once in a
process: the first interpreter to open it writes the address that came of it into the process's
environment, so that children join their parent's edition and never ask again. An interpreter with
an older copy of the environment does not ask either: a process has one default registry, and C
gives it before it looks at the address (md_open_default).

Note [Two living editions]
~~~~~~~~~~~~~~~~~~~~~~~~~~
Members of different editions are not compared, do not wait for each other and do not choose
together: during a deploy that is meant, and when it lasts it is a finding.

The member that makes an edition while another one is alive leaves one warning in the log, and a
second one, with the differences, when it has warmed up (living.py). Nobody keeps a state for that:
the registry knows which process made it, and that process's first member has the first slot. Few
processes have a second edition: without one, only the names of files are read.
"""

from __future__ import annotations

import os

from .. import seam
from ..errors import EditionError, MdispatchError
from ..errors.words import nearest, shown
from ..facts import interpreter_id
from ..facts.logs import registry_log
from ..facts.opening import named_registries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts.abc import Facts
    from ..registry import Registry

__all__ = ["compare", "edition_of", "name_of", "names_beside", "notice", "replaced"]

# --- braces ---------------------------------------------------------------------------------------

_ALLOWED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.+-")


def replaced(address: str) -> str:
    """The name or address, with values in place of its braces.

    Raises EditionError: for braces that mean nothing, a variable that is missing or empty, a
    distribution that is not installed, and a value that cannot be an edition.
    """
    done, left = "", address
    while left:
        text, begins, more = left.partition("{")
        words, ends, left = more.partition("}")
        if "}" in text or "{" in words or bool(begins) != bool(ends):
            raise EditionError(f"{shown(address)} has a brace without its other one", address)
        done += text
        if begins:
            done += _value(words, address)
    return done


def _value(words: str, address: str) -> str:
    kind, _, name = words.partition(":")
    look_up = {"env": _variable, "dist": _version}.get(kind)
    if look_up is None or not name:
        raise _refusal(
            "means nothing: write {env:NAME} for a variable of the environment, or {dist:NAME} "
            "for the version of an installed distribution",
            words,
            address,
        )
    value = look_up(name, words, address)
    if not value or not _ALLOWED.issuperset(value):
        raise _refusal(
            f"is {shown(value)}: an edition has A-Z a-z 0-9 _ - . + and nothing else",
            words,
            address,
            value,
        )
    return value


def _variable(name: str, words: str, address: str) -> str:
    value = os.environ.get(name)
    if not value:
        what = "is not in" if value is None else "is empty in"
        raise _refusal(
            f"asks for a variable that {what} the environment of process {os.getpid()}: set it "
            f"where this program is started, as in {name}=1.4.2",
            words,
            address,
            value,
        )
    return value


def _version(name: str, words: str, address: str) -> str:
    from importlib.metadata import PackageNotFoundError, distributions, version

    try:
        return version(name)
    except (PackageNotFoundError, ValueError):  # also a name that no distribution can have
        there = {each.name for each in distributions() if each.name}
    near = nearest(name, there)
    meant = f" Did you mean {', '.join(near)}?" if near else ""
    raise _refusal(
        "asks for a distribution that is not installed here: install it, or say the edition in "
        f"another way, as {{env:NAME}}.{meant}",
        words,
        address,
    )


def _refusal(text: str, words: str, address: str, value: str | None = None) -> EditionError:
    braces = f"{{{words}}}"
    return EditionError(
        f"{shown(braces)} in {shown(address)} {text}", address, braces=braces, value=value
    )


# --- other editions -------------------------------------------------------------------------------


def name_of(label: str) -> str:
    """The name that all editions have: "shop" for elect:shop@1.4.2. "" for an address without a
    name.
    """
    whole = label.removeprefix("elect:").removeprefix("shm:")
    return "" if ":" in whole else whole.partition("@")[0]


def edition_of(label: str) -> str:
    """The edition alone; "" where there is none."""
    return label.partition("@")[2] if name_of(label) else ""


def names_beside(label: str) -> list[str]:
    """The names of the other registries that may be editions of this one's name. A registry that
    has the name alone counts as one.
    """
    name = name_of(label)
    mine = label.removeprefix("elect:").removeprefix("shm:")
    if not name:
        return []
    return [each for each in named_registries() if each != mine and name_of(each) == name]


def _has_made(facts: Facts) -> bool:
    """Whether this member was the first of the process that made the registry."""
    interpreter, pid, *_ = facts.members()[0]
    return pid == facts.stat()[7] == os.getpid() and interpreter == interpreter_id


def notice(registry: Registry) -> None:
    """Warns where a registry was made while another edition of its name is alive. Called when a
    registry with an edition was joined, without any lock.
    """
    facts = registry.dispatcher.facts
    if names_beside(facts.label):
        try:
            if _has_made(facts):
                seam.at("an edition beside another one")(facts.label)
        except MdispatchError:
            return  # another thread has closed the registry


def compare(registry: Registry) -> None:
    """Warns of the differences from another edition that is alive, after the member that made this
    one has warmed up.
    """
    facts = registry.dispatcher.facts
    if names_beside(facts.label):
        try:
            if _has_made(facts):
                seam.at("the differences of two editions")(facts)
        except MdispatchError as error:
            registry_log.warn("the other edition could not be compared: %s", str(error))
