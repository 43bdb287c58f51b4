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

from os import getpid

from ..errors import MdispatchError
from ..forking import new_lock
from .native import unlock
from .registration import NOTE, interpreter_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Any, TypeAlias

    from .abc import Facts
    from .registration import Registration

    #: Kind, key and name of what differs, and the variant of a kernel (Registration.variant).
    What: TypeAlias = tuple[int, int, str, str]

#: The name of the notes.
DIFFERS = "mdispatch.differs"

#: The keys of the notes: of what was refused here, and of what is not here or serves no more,
#: though nothing was refused.
_REFUSED, _LACKS = 0, 1

_MOST = 20  # notes of a member
_LONGEST = 4000  # characters of a note


class Differs:
    """A difference, as its member tells it to others: process, interpreter, words, and location,
    and whether a registration was refused.
    """

    __slots__ = ("interpreter", "is_refused", "pid", "text", "where")

    def __init__(
        self, pid: int, interpreter: int, text: str, where: str, is_refused: bool = True
    ) -> None:
        self.pid = pid
        self.interpreter = interpreter
        self.is_refused = is_refused
        self.text = text
        self.where = where


class _Kept:
    """A difference, and its note, if it has one."""

    __slots__ = ("error", "is_refused", "note")

    def __init__(self, error: MdispatchError, is_refused: bool) -> None:
        self.error = error
        self.is_refused = is_refused
        self.note: Registration | None = None

    def says(self, other: _Kept) -> bool:
        """Whether it says the same as another."""
        mine, its = (self.is_refused, str(self.error)), (other.is_refused, str(other.error))
        return mine == its


class Differing:
    """The differences of one interpreter in one registry, in the order in which they were found.

    There is one for each registration, by what it is and its location. ``kept`` is empty where
    nothing differs; whoever registers looks at that first.
    """

    __slots__ = ("_facts", "_lock", "_noted", "kept")

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._lock = new_lock()
        #: By what it is, and then by its location. Whoever registers drops all of one.
        self.kept: dict[What, dict[str, _Kept]] = {}
        self._noted: set[_Kept] = set()  # those that have a note

    def __iter__(self) -> Iterator[MdispatchError]:
        return iter([error for _, error in self.with_what()])

    def with_what(self) -> list[tuple[What, MdispatchError]]:
        """The differences, each with what it is about."""
        with self._lock:
            return [(what, each.error) for what, its in self.kept.items() for each in its.values()]

    def add(self, what: What, error: MdispatchError, is_refused: bool) -> None:
        """Keeps a difference, in place of an earlier one of the same registration. ``is_refused``:
        a registration was refused.
        """
        kept, where = _Kept(error, is_refused), getattr(error, "here", "")
        with self._lock:
            its = self.kept.setdefault(what, {})
            before = its.pop(where, None)
            if before is not None and before.note is not None and before.says(kept):
                its[where] = before  # each call of an operator may raise it
                return
            its[where] = kept
        self._end([before] if before else [])
        is_told = len(self._noted) < _MOST
        if not is_told:
            return
        key = _REFUSED if is_refused else _LACKS
        try:
            note = self._facts.register(NOTE, key, DIFFERS, str(error)[:_LONGEST], where)
        except MdispatchError:
            return  # the registry is full, or gone: then only this interpreter knows
        self._facts.forget_published()  # it does not end with the library that was refused
        with self._lock:
            is_kept = self.kept.get(what, {}).get(where) is kept
            if is_kept:
                kept.note = note
                self._noted.add(kept)
        if not is_kept:  # another thread has just registered it well
            self._remove(note)

    def forget(self, what: What) -> bool:
        """It is registered well now, wherever that was done. Returns whether nothing differs any
        more, and did before.
        """
        with self._lock:
            ended = self.kept.pop(what, None)
            is_last = ended is not None and not self.kept
        self._end(ended.values() if ended else ())
        return is_last

    def drop(self, error: MdispatchError) -> None:
        """Takes out a difference that is of no account any more."""
        for what, each in self.with_what():
            if each is error:
                self._drop(what, getattr(error, "here", ""), error)

    def _drop(self, what: What, where: str, error: MdispatchError) -> None:
        with self._lock:
            its = self.kept.get(what, {})
            kept = its.get(where)
            if kept is None or kept.error is not error:
                return
            del its[where]
            if not its:
                del self.kept[what]
        self._end([kept])

    def forked(self) -> None:
        """In the child of a fork: the notes are of its parent, which lacks the same."""
        unlock(self.kept, *self.kept.values(), self._noted)
        self._noted = set()
        for its in self.kept.values():
            unlock(*its.values())
            for each in its.values():
                each.note = None

    def _end(self, ended: Iterable[_Kept]) -> None:
        for each in ended:
            if each.note is not None:
                self._noted.discard(each)
                self._remove(each.note)

    def _remove(self, note: Registration) -> None:
        try:
            self._facts.remove(note)
        except MdispatchError:
            return  # the registry is gone, and the note with it


def keep(facts: Facts, what: What, error: MdispatchError, is_refused: bool) -> None:
    """Keeps a difference of this interpreter until it is registered well. ``is_refused``: a
    registration was refused.
    """
    # One step, for threads may come here at once.
    differing: Differing = vars(facts).setdefault("differing", Differing(facts))
    # As if it was pickled: without the traceback, which would keep all that the failed import has
    # made. (The module copy does the same, and loads others.)
    pickled: Any = error.__reduce__()
    rebuilt, parts = pickled
    differing.add(what, rebuilt(*parts), is_refused)


# --- for others -----------------------------------------------------------------------------------


def told(facts: Facts) -> tuple[Differs, ...]:
    """What the living members of a registry have told."""
    alive = {(pid, interpreter) for interpreter, pid, _, alive, *_ in facts.members() if alive}
    return told_by(facts.registrations(DIFFERS)[2], alive)


def refused_here(facts: Facts, fact: Registration) -> Differs | None:
    """The difference for which this interpreter lacks what a registration says: of the same name,
    or from the same file. The newest, if there are several.
    """
    from ..errors.locations import file_of

    me, file = (getpid(), interpreter_id), file_of(fact.where)
    mine = [e for e in told(facts) if (e.pid, e.interpreter) == me and e.is_refused]
    near = [e for e in mine if fact.name in e.text.partition("\n")[0] or file_of(e.where) == file]
    return near[-1] if near else None


def told_by(
    there: Iterable[Registration], alive: Collection[tuple[int, int]]
) -> tuple[Differs, ...]:
    """What notes say, oldest first, of the members that are alive: process and interpreter."""
    return tuple(
        Differs(fact.pid, fact.interpreter, fact.text, fact.where, fact.key != _LACKS)
        for fact in there
        if fact.kind == NOTE and (fact.pid, fact.interpreter) in alive
    )
