"""The kinds of registrations. A kind holds the properties and the words that all its registrations
share.

A feature has a kind of its own: it derives a class from :class:`Kind`, and makes one object of it.
The package's face names the module, so a process loads the kind when it first meets a registration
of it. The packages ask a kind, or iterate over all kinds; they never compare a feature's number.
"""

from __future__ import annotations

from .native.constants import (
    MD_CLAIM,
    MD_DEF,
    MD_FALLBACK,
    MD_IMPL,
    MD_LIBRARY,
    MD_NAME,
    MD_NOTE,
    MD_PYSTUB,
    MD_RAISE_ALL,
    MD_STACK,
    MD_STANDING,
    MD_TYPE,
    MD_UNIQUE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol, TypeAlias

    # Registrations, registries and the error of a wait: their modules import this one.
    Registration: TypeAlias = Any
    Facts: TypeAlias = Any
    Error: TypeAlias = Any

    class Comparison(Protocol):
        """A warm-up's knowledge of this interpreter: see workers/warm_up.py."""

        dispatcher: Any

        def is_mine(self, fact: Registration) -> bool: ...
        def is_from_here(self, fact: Registration) -> bool: ...
        def is_in_spaces(self, fact: Registration) -> bool: ...


# The fate of a registration on its way to another member, into a pickle or a file, or to another
# host of a cluster.
#: It is there, and a member that registers the same compares.
COMPARED = "compared"
#: It is there, and all use it.
AGREED = "agreed"
#: It is there for all to see, and nobody compares.
SEEN = "seen"
#: It is not there, and an error says so.
REFUSED = "refused"
#: It is not there: it is about members of one host, and means nothing elsewhere.
STAYS = "stays"


class Kind:
    """One kind of registrations.

    ``number`` is one of md_kind in native/mdispatch.h, ``name`` the word in JSON and reports.
    ``rule`` has the flags for a second registration of the same name and key; the core in C knows
    these flags, and no kinds. ``by_any``: any member registers it, and not the registrar only, so
    that no member verifies it. ``at_keys``: each stands at a dispatch key. ``members``,
    ``pickles``, ``files`` and ``hosts`` have the fate of a registration on its way to another
    member of the registry, into a pickle, into a file of choices, and to the other hosts of a
    cluster.

    Then come words, with {0} for the name of the thing and {1} for its key or part. ``what`` is the
    thing as a member waits for it, ``does`` the act of a member that registers one. ``there`` says
    that there is one, ``twice`` that there is one already, and ``instead`` gives the remedy.
    ``title`` is the heading in ``mdispatch ls``, "" for kinds that it leaves out, and ``listed_as``
    the word for the kind there and in ``mdispatch diff`` where that is another one's.

    docs/cluster.md and the tests of each way to travel (tests/cluster/test_kinds.py) are made from
    these.
    """

    number = 0
    name = ""
    rule = 0
    by_any = False
    at_keys = False
    members = COMPARED
    pickles = REFUSED
    files = REFUSED
    hosts = COMPARED
    #: For a kind that a warm-up does not compare like the others: True if this interpreter has
    #: verified the registration, None if nobody expects it here.
    is_here: Callable[[Registration, Comparison], bool | None] | None = None
    #: How many operators and how many kernels a registration is, where those are counted. A kind
    #: with ``adds_to(name)`` tells it from the name.
    adds = (0, 0)
    adds_to: Callable[[str], tuple[int, int]] | None = None

    what = "the {kind} {0}"
    does = "register {what}"
    there = "there is {what}"
    twice = "{there} already"
    instead = "Register it once."
    title = listed_as = ""
    #: How else than by name, text and location it can be sent.
    or_by = ""

    def __init__(self, **fields: Any) -> None:
        unknown = [name for name in fields if not hasattr(type(self), name)]
        if unknown:
            raise TypeError(f"a kind has no {', '.join(unknown)}")
        self.__dict__.update(fields)

    def called(self, name: str) -> tuple[str, str]:
        """The thing of this name as people call it, and the part of it that is registered; "" for
        the whole.
        """
        return name, ""

    def say(self, words: str, name: str, key: str = "") -> str:
        """A text of this kind, as ``what`` or ``does``, of a registration's name and key."""
        its, part = self.called(name)
        while "{" in words:
            before, words = words, words.replace("{what}", self.what).replace("{there}", self.there)
            if words == before:
                return words.format(its, key or part, kind=self.name)
        return words

    def missed(self, registry: Facts, name: str, here: str, waited: float) -> Error | None:
        """The error of a wait that found none, where this kind has one of its own. ``here`` is the
        location of the registration here.
        """
        return None

    def body(self, text: str) -> str:
        """The part of the text that people read first."""
        return text

    def content(self, text: str) -> list[str]:
        """The lines of the text that count in a comparison: without locations and generations."""
        return [text]

    def is_listed(self, fact: Registration) -> bool:
        """Whether ``mdispatch ls`` and ``mdispatch diff`` have it."""
        return bool(self.title)

    def is_covered(self, fact: Registration, dispatcher: Any) -> bool:
        """Whether it is expected here, although no module of this interpreter registers it."""
        return False

    def hint(self, fact: Registration) -> str:
        """The words for a member that lacks the thing and looks for it; "" for none."""
        return ""

    def registers_by(self, fact: Registration) -> str:
        """The verb for the module that registers it: "register"."""
        return "register"


class _Def(Kind):
    def content(self, text: str) -> list[str]:
        lines = text.split("\n", 3)
        if len(lines) == 4:
            lines[2] = ""  # the generation
            if not any(lines[1:]):
                del lines[1:]
        return lines


CORE = (
    Kind(
        number=MD_LIBRARY,
        name="library",
        rule=MD_UNIQUE,
        what="the library of {0}",
        does="open library {0!r}",
        there="namespace {0!r} has a DEF library",
        instead="Put all definitions in one library, or open the others as 'FRAGMENT'.",
    ),
    _Def(
        number=MD_DEF,
        name="def",
        rule=MD_UNIQUE,
        pickles=COMPARED,
        adds=(1, 0),
        what="the definition of {0}",
        does="define {0}",
        there="{0} is defined",
        instead="Give this one an overload name (name.overload), or close the first library.",
        or_by=", or the operator itself, which is compared where it is loaded",
    ),
    Kind(
        number=MD_IMPL,
        name="impl",
        rule=MD_STACK,
        at_keys=True,
        adds=(0, 1),
        what="a kernel of {0} at {1}",
        does="register a kernel for {0} at {1}",
        there="{0} has a kernel at {1}",
    ),
    Kind(
        number=MD_FALLBACK,
        name="fallback",
        rule=MD_UNIQUE | MD_RAISE_ALL,
        at_keys=True,
        what="a fallback at {1}",
        twice="{1} has a fallback already",
        instead="Close the first library, or combine the two in one function.",
    ),
    Kind(
        number=MD_PYSTUB,
        name="pystub",
        rule=MD_STACK,
        what="the Python module of {0}",
        does="name {what}",
        there="{0} names its Python module",
    ),
    Kind(number=MD_NAME, name="name", rule=MD_STACK, there="{0} is registered by its name"),
    # On a namespace, where each namespace has a registrar of its own, or on a thing that one member
    # makes for all. md_claim makes it a queue.
    Kind(
        number=MD_CLAIM,
        name="claim",
        by_any=True,
        members=SEEN,
        hosts=STAYS,
        what="somebody to register {0}",
    ),
    # The keys of a type, of the member that has registered it: registry/type_facts.py.
    Kind(number=MD_TYPE, name="type", rule=MD_UNIQUE, by_any=True, title="Types"),
    # The word of a member about itself.
    Kind(number=MD_NOTE, name="note", rule=MD_STACK, by_any=True, members=SEEN, hosts=STAYS),
    # How the registrar of a registry that is a part of something larger stands: waits ask it.
    Kind(number=MD_STANDING, name="standing", rule=MD_STACK, members=SEEN, hosts=STAYS),
)


class Unknown(Kind):
    """A kind that this process does not know: of another version, or of a feature that was left
    out.
    """

    hosts = REFUSED
    what = "{0} ({kind})"
