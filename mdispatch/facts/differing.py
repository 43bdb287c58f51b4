"""In what an interpreter was found to differ from the member that registers, and has not mended
since. It keeps that for its own warm-ups, and tells the other members of it: in a note of each
difference, which ends with the difference or with the member. ``mdispatch doctor`` and the bridge
of a host (cluster/bridge.py) read these notes.

A difference is kept although it was raised: a loader of plug-ins that catches every exception goes
on as if the plug-in did not exist. What happens to an error after it was raised, nobody can tell.

The notes have a name of their own: no operator's table is computed anew for one. Any member can
write anything into a note, so whoever reads takes what is text, and no more.

Locking: ``_lock`` is held while the differences change. It is reentrant, because a signal handler
may register something at any point. Nothing is written into the registry under it.
"""

from __future__ import annotations

from _thread import RLock
from os import getpid

from ..errors import MdispatchError
from .native import unlock
from .registration import NOTE, interpreter_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import TypeAlias

    from .abc import Facts
    from .registration import Registration

    #: Kind, key and name of what differs, and the variant of a kernel (Registration.variant).
    What: TypeAlias = tuple[int, int, str, str]

__all__ = ["DIFFERS", "Differing", "Differs", "refused_here", "told", "told_by"]

#: The name of the notes.
DIFFERS = "mdispatch.differs"

_MOST = 20  # notes of a member
_LONGEST = 4000  # characters of a note


class Differs:
    """A difference, as its member tells it to others: process, interpreter, words, and place."""

    __slots__ = ("interpreter", "pid", "text", "where")

    def __init__(self, pid: int, interpreter: int, text: str, where: str) -> None:
        self.pid = pid
        self.interpreter = interpreter
        self.text = text
        self.where = where


class _Kept:
    """A difference, and its note, if it has one."""

    __slots__ = ("error", "note")

    def __init__(self, error: MdispatchError) -> None:
        self.error = error
        self.note: Registration | None = None


class Differing:
    """The differences of one interpreter in one registry, in the order in which they were found.

    There is one for each registration, by what it is and its place. ``kept`` is empty where nothing
    differs; whoever registers looks at that first.
    """

    __slots__ = ("_facts", "_lock", "kept")

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._lock = RLock()
        self.kept: dict[tuple[What, str], _Kept] = {}

    def __iter__(self) -> Iterator[MdispatchError]:
        with self._lock:
            return iter([each.error for each in self.kept.values()])

    def add(self, what: What, error: MdispatchError) -> None:
        """Keeps a difference, in place of an earlier one of the same registration."""
        kept, at = _Kept(error), (what, getattr(error, "here", ""))
        with self._lock:
            before = self.kept.pop(at, None)
            self.kept[at] = kept
            is_told = sum(each.note is not None for each in self.kept.values()) < _MOST
        self._end([before] if before else [])
        if not is_told:
            return
        try:
            note = self._facts.register(NOTE, 0, DIFFERS, str(error)[:_LONGEST], at[1])
        except MdispatchError:
            return  # the registry is full, or gone: then only this interpreter knows
        self._facts.forget_published()  # it does not end with the library that was refused
        with self._lock:
            is_kept = self.kept.get(at) is kept
            if is_kept:
                kept.note = note
        if not is_kept:  # another thread has just registered it well
            self._strike(note)

    def forget(self, what: What) -> bool:
        """It is registered well now, wherever that was done. Returns whether nothing differs any
        more.
        """
        return self._drop(lambda at, error: at == what)

    def drop(self, error: MdispatchError) -> None:
        """Takes out a difference that is of no account any more."""
        self._drop(lambda at, each: each is error)

    def forked(self) -> None:
        """In the child of a fork: the notes are of its parent, which lacks the same."""
        unlock(self.kept, *self.kept.values())
        self._lock = RLock()
        for each in self.kept.values():
            each.note = None

    def _drop(self, is_one: Callable[[What, MdispatchError], bool]) -> bool:
        with self._lock:
            gone = [*(at for at, kept in self.kept.items() if is_one(at[0], kept.error))]
            ended = [self.kept.pop(at) for at in gone]
            is_empty = not self.kept
        self._end(ended)
        return is_empty

    def _end(self, ended: Iterable[_Kept]) -> None:
        for each in ended:
            if each.note is not None:
                self._strike(each.note)

    def _strike(self, note: Registration) -> None:
        try:
            self._facts.strike(note)
        except MdispatchError:
            return  # the registry is gone, and the note with it


# --- for others -----------------------------------------------------------------------------------


def told(facts: Facts) -> tuple[Differs, ...]:
    """What the living members of a registry have told."""
    alive = {(pid, interpreter) for interpreter, pid, _, alive, *_ in facts.members() if alive}
    return told_by(facts.registrations(DIFFERS)[2], alive)


def refused_here(facts: Facts, fact: Registration) -> Differs | None:
    """The difference for which this interpreter lacks what a fact says: of the same name, or from
    the same file. The newest, if there are several.
    """
    from ..errors.places import file_of

    me, file = (getpid(), interpreter_id), file_of(fact.where)
    mine = [each for each in told(facts) if (each.pid, each.interpreter) == me]
    near = [e for e in mine if fact.name in e.text.partition("\n")[0] or file_of(e.where) == file]
    return near[-1] if near else None


def told_by(
    there: Iterable[Registration], alive: Collection[tuple[int, int]]
) -> tuple[Differs, ...]:
    """What notes say, oldest first, of the members that are alive: process and interpreter."""
    return tuple(
        Differs(fact.pid, fact.interpreter, fact.text, fact.where)
        for fact in there
        if fact.kind == NOTE and (fact.pid, fact.interpreter) in alive
    )
