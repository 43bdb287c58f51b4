"""The sets of keys of each thread, the guards that change them, the modes and the observed calls,
in plain Python: the twin of native/bind/call/guards.c, and of what handlers.c and observers.c keep.

A set is computed from what it starts from and the steps of the guards that are open. So guards may
end in any order, and in another thread than the one that they began in. A guard that is
``of_thread`` ends in the thread that it began in, or where the generator goes on that entered it.

Locking: a thread's sets are changed under their ``lock``, because a guard may end in another thread
than the one it began in. The lock is reentrant, because a finalizer or a signal handler may begin
or end guards in the middle of a change. So the code that computes ``now`` checks afterwards that
nothing has changed meanwhile. Calls take no lock; they see the old pair or the new one. An observed
call takes its number under ``_numbering``, which is reentrant for the same reason.
"""

from __future__ import annotations

import sys
from _thread import _local

from ...forking import in_child, new_lock
from ...keys.numbers import BACKEND_BITS, FULL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any, TypeVar

    G = TypeVar("G", bound="Guard")

#: The bits of the functionalities that exist per backend. A backend in a set belongs to one of
#: these. Without any of them it is no key, and must not draw calls to itself.
_functionalities = 0
#: What a thread starts with: its included and its excluded set.
_defaults = (0, 0)


class _Step:
    """What one open guard does to one of the sets: it keeps some bits, then adds some.

    ``own`` are the bits of the key of a guard that is about a single key, else 0. Such a guard does
    not undo what setters do to other keys while it is open.
    """

    __slots__ = ("add", "keep", "own", "tag")

    def __init__(self, keep: int, add: int, own: int, tag: object) -> None:
        self.keep = keep
        self.add = add
        self.own = own
        self.tag = tag

    def then(self, keep: int, add: int) -> None:
        self.keep &= keep
        self.add = self.add & keep | add


class _Set:
    """One of the two sets of a thread: what it starts from, and the steps of the open guards."""

    __slots__ = ("base", "steps")

    def __init__(self, base: int) -> None:
        self.base = base
        self.steps: list[_Step] = []

    def value(self) -> int:
        raw = self.base
        for step in tuple(self.steps):
            raw = raw & step.keep | step.add
        return raw if raw & _functionalities else raw & ~BACKEND_BITS

    def spares(self, key: int) -> bool:
        """Whether removing the key must change nothing, since only other backends' keys are in the
        set: a set without AutogradHIP does not lose AutogradCPU.
        """
        return bool(key & BACKEND_BITS) and self.value() & key != key

    def change(self, key: int, keep: int, add: int) -> None:
        """What a setter does. It lasts until the innermost guard that undoes it ends; without such
        a guard, for good.
        """
        if not add and self.spares(key):
            return
        for step in self.steps[::-1]:
            step.then(keep, add)
            if not step.own or step.own == key:
                return
        self.base = self.base & keep | add
        if not self.base & _functionalities:
            self.base &= ~BACKEND_BITS


def _kept(excluded: int) -> int:
    """The bits of a key set that remain: excluding removes functionalities only."""
    return ~(excluded & ~BACKEND_BITS) & FULL


class _Sets:
    """The sets of one thread. ``now`` is what its calls read."""

    __slots__ = ("both", "changes", "lock", "now")

    def __init__(self) -> None:
        self.both = (_Set(_defaults[0]), _Set(_defaults[1]))
        self.lock = new_lock()
        self.changes = 0
        self.now = (_defaults[0], _kept(_defaults[1]))

    def begin(self, opened: _Opened) -> None:
        with self.lock:
            for each, step in opened.steps:
                each.steps.append(step)
            self.renew()

    def end(self, opened: _Opened) -> None:
        """Idempotent."""
        with self.lock:
            for each, step in opened.steps:
                if step not in each.steps:
                    continue
                each.steps.remove(step)
            self.renew()

    def change(self, which: _Set, key: int, keep: int, add: int) -> None:
        with self.lock:
            try:
                which.change(key, keep, add)
                self.renew()
            except BaseException:  # from a signal handler, perhaps between the two lines above
                self.renew()
                raise

    def renew(self) -> None:
        self.changes += 1
        seen = 0
        while seen != self.changes:
            seen = self.changes
            self.now = (self.both[0].value(), _kept(self.both[1].value()))


class _Opened:
    """One ``__enter__`` of a guard: its steps, the thread's sets in which it takes them, and the
    generator that entered it, 0 for none.
    """

    __slots__ = ("generator", "sets", "steps", "tag")

    def __init__(
        self, sets: _Sets, steps: tuple[tuple[_Set, _Step], ...], tag: Any, generator: int
    ) -> None:
        self.sets = sets
        self.steps = steps
        self.tag = tag
        self.generator = generator


_GOES_ON = 0x20 | 0x80 | 0x200  # inspect.CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR


def _calling_generator() -> int:
    """The address of the frame that calls a method of a guard, if that is of a generator or a
    coroutine, else 0. Such a frame may go on in another thread. As long as it lives, and has a
    guard to end, no other frame has its address.
    """
    frame = sys._getframe(2)
    return id(frame) if frame.f_code.co_flags & _GOES_ON else 0


class _Local(_local):
    #: None for a thread that has changed nothing.
    sets: _Sets | None = None


_thread = _Local()


def _own() -> _Sets:
    """This thread's own sets, which it may change."""
    found = _thread.sets
    if found is None:
        found = _thread.sets = _Sets()
    return found


@in_child
def _renew() -> None:
    """Another thread may have been ending a guard of this one, and have stopped before it computed
    the sets again.
    """
    own = _thread.sets
    if own is not None:
        own.renew()


def start(included: int, excluded: int, functionalities: int, *classes: object) -> None:
    """Says what threads start with, and which functionalities exist per backend."""
    global _defaults, _functionalities
    _defaults = (included, excluded)
    _functionalities = functionalities


def now() -> tuple[int, int]:
    """The bits that this thread's calls add, and those that they keep."""
    found = _thread.sets
    return (_defaults[0], _kept(_defaults[1])) if found is None else found.now


def sets() -> tuple[int, int]:
    """The bits that this thread includes, and those that it excludes."""
    found = _thread.sets
    return _defaults if found is None else (found.both[0].value(), found.both[1].value())


def changed_sets() -> tuple[int, int] | None:
    """The same, or None for those that threads start with."""
    found = sets()
    return None if found == _defaults else found


def tags() -> tuple[Any, ...]:
    """The tags of this thread's open guards."""
    found = _thread.sets
    steps = () if found is None else tuple(found.both[0].steps)
    return tuple(step.tag for step in steps if step.tag is not None)


def change(side: int, key: int, keep: int, add: int) -> None:
    """What a setter does to a key of this thread's included (0) or excluded (1) set."""
    found = _own()
    found.change(found.both[side], key, keep, add)


def quick(cls: type, side: int, bits: int | None, of_thread: bool = False) -> None:
    """Here all guards are made by their ``__init__``."""


_numbering = new_lock()
_number = 0


def number() -> int:
    """That of an observed call. They count the calls of this interpreter."""
    global _number
    with _numbering:
        _number += 1
        return _number


class Stack:
    """The modes of one thread, and the observed calls that it is in. Only that thread uses it.

    ``entries`` and ``pre_dispatch`` are in the order of the stack, lowest first. ``on_entry`` has
    the included and the excluded set with which the outermost call under way was made; it is set
    while a call goes on below the key PythonTLSSnapshot. ``handled`` has those of the call that the
    innermost handler serves. ``depth`` is that of the observed calls; ``is_observer`` says whether
    the thread runs an observer. ``priority`` is the number of the open guards of priorities, for C.
    """

    __slots__ = (
        "depth",
        "entries",
        "handled",
        "is_observer",
        "on_entry",
        "pre_dispatch",
        "priority",
    )

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.pre_dispatch: list[Any] = []
        self.on_entry: tuple[Any, Any] | None = None
        self.handled: tuple[Any, Any] | None = None
        self.depth = 0
        self.is_observer = False
        self.priority = 0


class Local(_local):
    def __init__(self) -> None:
        self.stack = Stack()  # runs once in each thread


#: ``local.stack`` is this thread's. It is an attribute, since a signal handler may run where Python
#: calls a function.
local = Local()


class Guard:
    """The base of guards. Each of ``steps`` is (0 for the included set or 1 for the excluded one,
    bits to keep, bits to add, bits of the key that the guard is about or 0). ``tag`` makes an
    object for each opening, whose ``end()`` is called when the opening has ended. ``of_thread``
    says that nothing but its generator ends an opening in another thread.
    """

    __slots__ = ("_of_thread", "_opened", "_steps", "_tag")

    def __init__(
        self,
        *steps: tuple[int, int, int, int],
        tag: Callable[[], Any] | None = None,
        of_thread: bool = False,
    ) -> None:
        self._steps = steps
        self._tag = tag
        self._of_thread = of_thread
        self._opened: list[_Opened] = []

    @property
    def is_open(self) -> bool:
        """Whether the guard is in effect: entered and not yet left."""
        return bool(self._opened)

    def _not_entered(self) -> None:
        raise NotImplementedError

    def _taken(self, sets: _Sets, tag: object) -> tuple[tuple[_Set, _Step], ...]:
        taken: list[tuple[_Set, _Step]] = []
        for side, keep, add, own in self._steps:
            which = sets.both[side]
            if own and not add and which.spares(own):
                keep = FULL
            taken.append((which, _Step(keep, add, own, None if taken else tag)))
        return tuple(taken)

    def __enter__(self: G) -> G:
        sets = _own()
        tag = None if self._tag is None else self._tag()
        generator = _calling_generator() if self._of_thread else 0
        opened = _Opened(sets, self._taken(sets, tag), tag, generator)
        try:
            self._opened.append(opened)
            sets.begin(opened)
            return self
        except BaseException:  # from a signal handler: Python then does not call __exit__
            self._end(opened)
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
        /,
    ) -> None:
        """Undoes the newest ``__enter__`` of this thread; if there is none, the newest of any
        thread. A guard that isolates undoes what this thread or this generator has entered.
        """
        found = self._opened
        here, generator = _thread.sets, _calling_generator() if self._of_thread else 0
        its = [each for each in found if generator and each.generator == generator]
        its = its or [each for each in found if each.sets is here]
        if not (its or self._of_thread):
            its = found
        if not its:
            self._not_entered()
        self._end(its[-1])

    def _end(self, opened: _Opened) -> None:
        # In this order: if a signal handler interrupts it, __del__ does the rest.
        self._undo(opened)
        if opened in self._opened:
            self._opened.remove(opened)

    def _undo(self, opened: _Opened) -> None:
        """Idempotent."""
        opened.sets.end(opened)
        if opened.tag is not None:
            opened.tag.end()

    def __del__(self) -> None:
        for opened in getattr(self, "_opened", ()):  # not there if __init__ raised
            self._undo(opened)
