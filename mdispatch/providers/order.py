"""Priorities: which providers come first, as guards, the environment, ``set_priority`` and the main
interpreter say. What becomes of them is in providers/chain.py.
"""

from __future__ import annotations

import os
from _thread import _local

from ..errors import InvalidArgumentError
from ..facts.native.calls import Stack, local
from .kind import PRIORITY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..dispatch.fallbacks import Fallbacks
    from ..facts.abc import Facts

#: The environment's priorities: ``shop::norm=reference; shop::*=triton, not flash``; a ``!`` at the
#: end where no other provider may serve.
VARIABLE = "MDISPATCH_PRIORITY"

LONGEST_NAME = 255
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def is_name(name: object) -> bool:
    """Whether it can be the name of a provider."""
    return (
        isinstance(name, str)
        and 0 < len(name) <= LONGEST_NAME
        and (_PLAIN.issuperset(name) or all(each.isalnum() or each in "_.-" for each in name))
    )


_NOT = "not "


def checked_names(
    names: object, disable: object, strict: object
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a priority, and those that it disables. InvalidArgumentError for what cannot be
    some.
    """
    from ..errors.words import shown

    off = (disable,) if isinstance(disable, str) else disable
    given = [tuple(each) if isinstance(each, (tuple, list)) else None for each in (names, off)]
    for what, some in zip((names, disable), given, strict=True):
        if some is None or not all(map(is_name, some)) or len(set(some)) < len(some):
            raise InvalidArgumentError(
                "a priority is a list of the names of providers, each once, the first one first; "
                f"not {shown(what)}"
            )
    wanted, disabled = (each or () for each in given)
    if not wanted and (strict or not disabled):
        raise InvalidArgumentError(
            "a priority names the providers that come first, or disables some"
            + ", and with strict=True only those that it names may serve" * bool(strict)
        )
    both = [each for each in wanted if each in disabled]
    if both:
        raise InvalidArgumentError(f"{both[0]} is to come first and to be disabled: it cannot be")
    return wanted, disabled


class Asked:
    """The names that one level asks for, and those that it disables; ``strict``: no others than
    the first. ``text`` is all, ``by`` says who asks, or finds it. ``verified``: it counts only
    while the main interpreter asks for the same.
    """

    __slots__ = ("_by", "disabled", "names", "strict", "text", "verified")

    def __init__(
        self,
        names: tuple[str, ...],
        disabled: tuple[str, ...],
        strict: bool,
        by: str | Callable[[], str],
        verified: bool = False,
    ) -> None:
        self.names = names
        self.disabled = disabled
        self.verified = verified
        self.strict = strict
        self.text = priority_text(names, disabled, strict)
        self._by = by

    @property
    def by(self) -> str:
        return self._by if isinstance(self._by, str) else self._by()


def patterns_of(operator: str) -> tuple[str, ...]:
    """What asks for this operator, the nearest first: its name, its name without overload, its
    namespace (``ns::*``), and ``*``.
    """
    base = operator.partition(".")[0]
    namespace = operator.partition("::")[0]
    return tuple(dict.fromkeys((operator, base, f"{namespace}::*", "*")))


def priority_text(names: Sequence[str], disabled: Sequence[str], strict: bool) -> str:
    """A priority as the registry and the environment have it."""
    return ", ".join([*names, *(f"{_NOT}{each}" for each in disabled)]) + "!" * strict


def read_priority(text: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """The names, those that are disabled, and whether it is strict."""
    parts = [each.strip() for each in text.rstrip("!").split(",")]
    disabled = [each for each in parts if each.startswith(_NOT)]
    names = [each for each in parts if each not in disabled]
    return tuple(names), tuple(each[len(_NOT) :].strip() for each in disabled), text.endswith("!")


class Guard:
    """One that is open: of which priorities, for which pattern, and what it asks for. ``keeper`` is
    the reference that ends it when nobody has its handle any more.
    """

    __slots__ = ("asked", "keeper", "pattern", "priorities")

    def __init__(self, priorities: Priorities, pattern: str, asked: Asked) -> None:
        self.priorities = priorities
        self.pattern = pattern
        self.asked = asked
        self.keeper: object = None


#: What ``number_of`` has met: guards, each by its priorities' mark, its pattern and its text.
_numbered: dict[tuple[tuple[object, str, str], ...], object] = {}
_MOST_NUMBERED = 1024
#: The number of guards that got none, since there were too many: NOT_NUMBERED in state.h.
_NOT_NUMBERED = 1


def number_of(guards: tuple[Guard, ...]) -> int:
    """The number of guards that are open at once: 0 for none, and one number for all that ask for
    the same. What calls in C keep of guards they keep by this number, so it never means others.
    """
    if not guards:
        return 0
    wanted = tuple([(each.priorities.mark, each.pattern, each.asked.text) for each in guards])
    if wanted not in _numbered and len(_numbered) >= _MOST_NUMBERED:
        return _NOT_NUMBERED
    return id(_numbered.setdefault(wanted, wanted))  # which stays, so that its id is its own


class Guards(_local):
    """The guards that are open in a thread, the outermost first: ``guards.open``."""

    def __init__(self) -> None:  # runs once in each thread
        self.open: list[Guard] = []
        self.stack = local.stack

    def ending(self, guard: Guard) -> Callable[..., None]:
        """What ends a guard of this thread, in any thread; idempotent. A reference may call it."""
        opened, stack = self.open, self.stack

        def end(reference: object = None) -> None:
            guard.keeper = None  # which has this function
            try:
                opened.remove(guard)
            except ValueError:
                _note(opened, stack)  # one that was interrupted may not have come to it
                return
            _note(opened, stack)

        return end

    def begin(self, guard: Guard) -> None:
        """Opens it in this thread."""
        self.open.append(guard)
        _note(self.open, self.stack)


def _note(opened: list[Guard], stack: Stack) -> None:
    """Gives calls in C the number of the guards that a thread has open.

    Another thread, or a signal handler, may end a guard meanwhile. Each changes the list first, and
    then notes; each looks at the list again after it has noted. So whoever notes last has seen the
    list as it stays.
    """
    while True:
        seen = tuple(opened)
        stack.priority = number_of(seen)
        if tuple(opened) == seen:
            return


guards = Guards()


def priorities_of(fallbacks: Fallbacks) -> Priorities:
    """The priorities of this interpreter and its threads in the registry of these fallbacks."""
    with fallbacks.lock:
        if fallbacks.preferences is None:
            fallbacks.preferences = Priorities()
        found: Priorities = fallbacks.preferences
    return found


class Priorities:
    """What this interpreter asks for, in one registry, and what its threads do.

    Locking: none. What is here is replaced as a whole. A list of guards belongs to its thread; who
    ends a guard in another one takes it out in one step.
    """

    __slots__ = ("_of_environment", "guarded", "mark", "own")

    def __init__(self) -> None:
        #: By pattern what ``set_priority`` has set, oldest first: the newest is in effect.
        self.own: dict[str, tuple[Asked, ...]] = {}
        #: The patterns for which a guard was opened at any time, in any thread.
        self.guarded: frozenset[str] = frozenset()
        #: Tells it from all others, also from those that are gone.
        self.mark = object()
        self._of_environment: tuple[str, dict[str, Asked]] = ("", {})

    def of_guards(self, operator: str, guards: Sequence[Guard]) -> list[Asked]:
        """What these guards ask for of an operator, the innermost first."""
        patterns = patterns_of(operator)
        return [
            each.asked
            for each in reversed(guards)
            if each.priorities is self and each.pattern in patterns
        ]

    def of_environment(self) -> dict[str, Asked]:
        """InvalidArgumentError for a variable that cannot be read."""
        text = os.environ.get(VARIABLE, "")
        if text != self._of_environment[0]:
            self._of_environment = (text, _read_environment(text))
        return self._of_environment[1]


def _read_environment(text: str) -> dict[str, Asked]:
    found = {}
    for each in filter(None, map(str.strip, text.split(";"))):
        pattern, equals, given = (part.strip() for part in each.partition("="))
        names, disabled, strict = read_priority(given)
        is_well = pattern and equals and all(map(is_name, (*names, *disabled)))
        if not is_well or (strict and not names):
            raise InvalidArgumentError(
                f"{VARIABLE} has {each!r}: write 'ns::name=first, second', or 'ns::*=...', with "
                "';' between several, 'not name' for a provider that may not serve, and '!' after "
                "the last name where no other may"
            )
        found[pattern] = Asked(names, disabled, strict, f"{VARIABLE}={pattern}")
    return found


def _in_effect(facts: Facts, pattern: str, own: Sequence[Asked]) -> Asked | None:
    """What this interpreter has set for a pattern. What was verified belongs to the text that it
    was verified against, as kernels do: see Note [Kernels and definitions] in dispatch/pairing.py.
    """
    for asked in reversed(own):
        fact = facts.find(PRIORITY, 0, pattern) if asked.verified else None
        if not asked.verified or (fact and fact.text.partition("\n")[0] == asked.text):
            return asked
    return None


def asked_for(facts: Facts, operator: str, priorities: Priorities | None) -> list[Asked]:
    """What is asked for besides guards, the strongest first. Without ``priorities`` only what the
    main interpreter has set.
    """
    patterns = patterns_of(operator)
    found: list[Asked] = []
    if priorities is not None:
        environment = priorities.of_environment()
        found += [environment[each] for each in patterns if each in environment]
        for each in patterns if priorities.own else ():
            own = _in_effect(facts, each, priorities.own.get(each, ()))
            if own is not None:
                found.append(own)
    for each in patterns:
        fact = facts.find(PRIORITY, 0, each)
        if fact is not None:
            priority = read_priority(fact.text.partition("\n")[0])
            found.append(Asked(*priority, f"the main interpreter's priority for {each}"))
    return found
