"""The objects that an interpreter keeps because a SafeObject that holds them was pickled.

Home cannot see where pickles go. So it keeps an object from the first pickle on, until one of its
holders is closed. If a hermetic guard is open when it is pickled, the guard keeps the object, until
the guard ends.

Locking: ``_lock`` is held while the tables change. It is reentrant, because a finalizer or a signal
handler may change them in between. So the code that adds an object checks afterwards whether the
object may stay. No reference to an object is dropped under the lock: its finalizer may do anything.
Looking something up takes no lock.

After a fork the child's tables are copies of the parent's. The child has a home of its own, which
no pickle from before names. Its tables keep their objects all the same: dropped, they would run
finalizers in the child for what belongs to the parent.
"""

from __future__ import annotations

from itertools import count

from ...facts.native import calls
from ...forking import new_lock


class Gone:
    """Takes the place of an object that was given up. ``why`` completes "it is gone: "."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


CLOSED = Gone("a holder of it was closed")
FORGOTTEN = Gone(
    "it was pickled inside hermetic(), which keeps pickled objects only until it ends; pickle it "
    "outside, and close() it when nobody needs it any longer"
)


class Cell:
    """An object at home. All its holders here share the cell, so that one of them can close all.

    ``number`` is the object's number in this interpreter. ``content`` is the object or a Gone; it
    may change at any time, so read it once.
    """

    __slots__ = ("content", "number")

    def __init__(self, content: object, number: int) -> None:
        self.content = content
        self.number = number


class Hermetic:
    """One opening of a hermetic guard, and the objects that it keeps."""

    __slots__ = ("cells", "has_ended", "number")

    def __init__(self) -> None:
        self.number = new_number()
        self.cells: dict[int, Cell] = {}
        self.has_ended = False

    def end(self) -> None:
        """Drops what it keeps. Idempotent."""
        with _lock:
            self.has_ended = True
            _keeping.pop(self.number, None)
            cells, self.cells = self.cells, {}
        del cells  # outside the lock: finalizers may run


# The objects that this interpreter keeps, and the open guards that keep any, by their numbers.
_kept: dict[int, Cell] = {}
_keeping: dict[int, Hermetic] = {}
_numbers = count(1)
_lock = new_lock()


def new_number() -> int:
    with _lock:
        return next(_numbers)


def open_guards() -> tuple[Hermetic, ...]:
    """The open hermetic guards of this thread."""
    return tuple(each for each in calls.tags() if not each.has_ended)


def keep(cell: Cell) -> tuple[int, ...]:
    """Keeps an object that is about to be pickled. Returns the numbers of the guards that keep it;
    () if the interpreter does.
    """
    with _lock:
        guards = open_guards()
        for guard in guards:
            guard.cells[cell.number] = cell
            _keeping[guard.number] = guard
            if not guard.has_ended:
                continue
            guard.end()
        if not guards:
            _kept[cell.number] = cell
            if isinstance(cell.content, Gone):
                _kept.pop(cell.number, None)
    return tuple(guard.number for guard in guards)


def give_up(cell: Cell) -> None:
    """Drops what a cell holds. Idempotent: a cell that is empty already keeps its reason."""
    content = cell.content
    with _lock:
        if not isinstance(cell.content, Gone):
            cell.content = CLOSED
        if _kept.get(cell.number) is cell:  # not the cell that find() made for a late pickle
            _kept.pop(cell.number, None)
    del content  # outside the lock: finalizers may run


def find(number: int, guards: tuple[int, ...]) -> Cell:
    """The cell for a pickle that is unpickled at home."""
    if not guards:
        return _kept.get(number) or Cell(CLOSED, number)
    found = None
    for each in guards:
        guard = _keeping.get(each)
        found = guard.cells.get(number) if guard is not None else None
        if found is None:
            break
    return found or Cell(FORGOTTEN, number)
