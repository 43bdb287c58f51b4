"""What an interpreter keeps for travellers: the objects whose holders were pickled.

Nobody at home sees where pickles go, so an object is kept from the first one on, until one of its
holders is closed. What is pickled while a hermetic guard is open is kept by the guard, until it
ends.

Locking: ``_lock`` is held while the tables change. A finalizer or a signal handler may change them
in between, so the lock can be taken again, and whoever puts something in looks afterwards whether
it may stay. No object is let go of under the lock: its finalizer may do anything. To look something
up takes no lock.

After a fork the child's tables are copies of the parent's, under a home of its own: no pickle from
before names it. What they hold stays held, because its finalizers would run in the child for what
is the parent's.
"""

from __future__ import annotations

import os
from _thread import RLock
from itertools import count

from ._keys import DispatchKey
from .guards import _Step, _switch, local

__all__ = ["CLOSED", "Cell", "Gone", "HermeticStep", "find", "forget", "give_up", "keep"]
__all__ += ["new_number", "open_guards"]


class Gone:
    """Stands where an object was. ``why`` completes "it is gone: "."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


CLOSED = Gone("a holder of it was closed")
FORGOTTEN = Gone(
    "it was pickled while hermetic() was open, and what is pickled then is kept only until the"
    " guard ends; pickle it outside, and close() it when nobody needs it any more"
)


class Cell:
    """An object at home. All its holders here share the cell, so that one of them can close all.

    ``number`` is the object's in this interpreter. ``content`` is the object or a Gone: whoever
    reads it reads it once.
    """

    __slots__ = ("content", "number")

    def __init__(self, content: object, number: int) -> None:
        self.content = content
        self.number = number


class HermeticStep(_Step):
    """The mark of one open hermetic guard among the steps of its thread, and what is kept until it
    ends.
    """

    __slots__ = ("cells", "has_ended", "number")

    def __init__(self, number: int) -> None:
        super().__init__(*_switch(DispatchKey.Python, False), DispatchKey.Python)
        self.number = number
        self.cells: dict[int, Cell] = {}
        self.has_ended = False


# Objects of this interpreter, by their numbers; and of the open guards those that keep any.
_kept: dict[int, Cell] = {}
_keeping: dict[int, HermeticStep] = {}
_numbers = count(1)
_lock = RLock()


def _after_fork() -> None:
    """Another thread, which the child does not have, may have held the lock."""
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_after_fork)


def new_number() -> int:
    with _lock:
        return next(_numbers)


def open_guards() -> tuple[HermeticStep, ...]:
    """This thread's."""
    steps = tuple(local.sets.included.steps)
    return tuple(s for s in steps if isinstance(s, HermeticStep) and not s.has_ended)


def keep(cell: Cell) -> tuple[int, ...]:
    """For a pickle that is about to be made. Returns the numbers of the guards that it is bound
    to.
    """
    with _lock:
        guards = open_guards()
        for guard in guards:
            guard.cells[cell.number] = cell
            _keeping[guard.number] = guard
            if guard.has_ended:
                forget(guard)
        if not guards:
            _kept[cell.number] = cell
            if isinstance(cell.content, Gone):
                _kept.pop(cell.number, None)
    return tuple(guard.number for guard in guards)


def forget(guard: HermeticStep) -> None:
    """What is kept until the guard ends. Idempotent."""
    with _lock:
        guard.has_ended = True
        _keeping.pop(guard.number, None)
        cells, guard.cells = guard.cells, {}
    del cells  # only now that the lock is free


def give_up(cell: Cell) -> None:
    """What a cell holds. Idempotent: what is gone already keeps its reason."""
    content = cell.content
    with _lock:
        if not isinstance(cell.content, Gone):
            cell.content = CLOSED
        if _kept.get(cell.number) is cell:  # not of one that came home too late
            _kept.pop(cell.number, None)
    del content  # only now that the lock is free


def find(number: int, guards: tuple[int, ...]) -> Cell:
    """What a pickle stands for that came home."""
    if not guards:
        return _kept.get(number) or Cell(CLOSED, number)
    found = None
    for each in guards:
        guard = _keeping.get(each)
        found = guard.cells.get(number) if guard is not None else None
        if found is None:
            break
    return found or Cell(FORGOTTEN, number)
