"""What each thread adds to the dispatch keys of its calls, and what it takes away.

Every thread of every interpreter has an included and an excluded set; the excluded one wins. A new
thread starts from the defaults and inherits nothing. Guards change the sets while they are open::

    with ExcludeDispatchKeyGuard("AutogradCPU"):
        ...  # no kernel of AutogradCPU runs, for any backend: see below

A guard undoes what it did and no more, in whatever order guards end: the sets are not saved and
written back, but computed from the guards that are open. What the setters (:func:`set_included`,
:func:`set_excluded`) change while a guard of the same set is open ends with that guard. A guard
that nobody holds any more has ended.

To exclude a key that exists per backend excludes its functionality for all backends: a key set
loses functionalities, never backends (see DispatchKeySet).

Locking: a thread's sets are changed under their ``lock``, because a guard may end in another
thread than it began in. A finalizer or a signal handler may end or begin guards in the middle of a
change, so the lock can be taken again, and whoever computes ``now`` looks afterwards whether it is
still right. Calls take no lock; they see the old pair or the new one.

(c10: LocalDispatchKeySet.h. In PyTorch 2.13 guards save and restore whole sets, so that two that
end out of order leave a key switched on for good; and a backend's key that was included and taken
out again leaves its backend behind, to which then all calls go.)
"""

from __future__ import annotations

import os
from _thread import RLock, _local

from ._keys import BACKEND_BITS, FULL, RUNTIME_KEYS, DispatchKey, parse_key
from ._native import _call
from .errors import InvalidArgumentError, InvalidKeyError
from .keys import DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import TypeVar

    Guard = TypeVar("Guard", bound="_Guard")
    Keys = DispatchKey | str | DispatchKeySet | Iterable[DispatchKey | str]

__all__ = [
    "DEFAULT_EXCLUDED",
    "DEFAULT_INCLUDED",
    "AutoDispatchBelowADInplaceOrView",
    "AutoDispatchBelowAutograd",
    "ExcludeDispatchKeyGuard",
    "ForceDispatchKeyGuard",
    "IncludeDispatchKeyGuard",
    "PreserveDispatchKeyGuard",
    "SetExcludeDispatchKeyGuard",
    "enable_python_dispatcher",
    "excluded_keys",
    "included_keys",
    "set_excluded",
    "set_included",
]

#: What a thread starts with. (c10: default_included_set, default_excluded_set)
DEFAULT_INCLUDED = DispatchKeySet("BackendSelect", "ADInplaceOrView")
DEFAULT_EXCLUDED = DispatchKeySet(
    name for name in DispatchKey.__members__ if name.startswith("Autocast")
)

#: Every functionality that differentiates. (c10: autograd_dispatch_keyset)
AUTOGRAD = DispatchKeySet("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor")


#: A backend in a set is part of one of these, or of no key: then it must not draw calls to itself.
_PER_BACKEND = sum({key.raw & ~BACKEND_BITS for key in RUNTIME_KEYS if key.backend})


class _Step:
    """What one open guard does to one of the sets: keep some bits of it, then add some.

    ``own`` is the key of a guard that cares for just this one: what setters do to other keys while
    it is open is not its to undo.
    """

    __slots__ = ("add", "keep", "own")

    def __init__(self, keep: int, add: int, own: DispatchKey | None = None) -> None:
        self.keep = keep
        self.add = add
        self.own = own

    def then(self, keep: int, add: int) -> None:
        self.keep &= keep
        self.add = self.add & keep | add


class _Set:
    """One of the two sets of a thread: what it starts from, and the steps of the open guards."""

    __slots__ = ("base", "steps")

    def __init__(self, default: DispatchKeySet) -> None:
        self.base = default.raw
        self.steps: list[_Step] = []

    def value(self) -> int:
        raw = self.base
        for step in tuple(self.steps):
            raw = raw & step.keep | step.add
        return raw if raw & _PER_BACKEND else raw & ~BACKEND_BITS

    def spares(self, key: DispatchKey) -> bool:
        """Whether to take the key out would only take keys of other backends, and so takes nothing:
        to lack AutogradHIP is no reason to lose AutogradCPU.
        """
        return key.backend is not None and self.value() & key.raw != key.raw

    def change(self, key: DispatchKey, keep: int, add: int) -> None:
        """A setter's: lasts as long as the innermost guard that undoes it, else for good."""
        if not add and self.spares(key):
            return
        for step in self.steps[::-1]:
            step.then(keep, add)
            if step.own is None or step.own is key:
                return
        self.base = self.base & keep | add
        if not self.base & _PER_BACKEND:
            self.base &= ~BACKEND_BITS


def _kept(excluded: int) -> int:
    """The bits that are left of a key set: excluding takes functionalities away."""
    return ~(excluded & ~BACKEND_BITS) & FULL


_call.start(DEFAULT_INCLUDED.raw, _kept(DEFAULT_EXCLUDED.raw))


class ThreadSets(_call.Sets):
    """The sets of one thread. ``now`` is what its calls read: the bits to add, the bits to keep.
    Calls in C read the same from what it is derived from.
    """

    __slots__ = ("changes", "excluded", "included", "lock", "now")

    def __init__(self) -> None:
        self.included = _Set(DEFAULT_INCLUDED)
        self.excluded = _Set(DEFAULT_EXCLUDED)
        self.lock = RLock()
        self.changes = 0
        self.now = (DEFAULT_INCLUDED.raw, _kept(DEFAULT_EXCLUDED.raw))

    def begin(self, opened: _Opened) -> None:
        with self.lock:
            for each, step in opened.steps:
                each.steps.append(step)
            self._renew()

    def end(self, opened: _Opened) -> None:
        """Idempotent."""
        with self.lock:
            for each, step in opened.steps:
                if step in each.steps:
                    each.steps.remove(step)
            self._renew()

    def change(self, which: _Set, key: DispatchKey, on: bool) -> None:
        with self.lock:
            try:
                which.change(key, *_switch(key, on))
                self._renew()
            except BaseException:  # of a signal handler, perhaps between these two
                self._renew()
                raise

    def _renew(self) -> None:
        self.changes += 1
        seen = 0
        while seen != self.changes:
            seen = self.changes
            self.now = (self.included.value(), _kept(self.excluded.value()))
            self.put(*self.now)


class _Opened:
    """One ``__enter__`` of a guard: the steps that it takes, and in which thread's sets."""

    __slots__ = ("sets", "steps")

    def __init__(self, sets: ThreadSets, steps: tuple[tuple[_Set, _Step], ...]) -> None:
        self.sets = sets
        self.steps = steps


class _Local(_local):
    # Of all threads that have changed nothing: never written to.
    sets = ThreadSets()


#: ``local.sets.now`` is what a call adds and keeps.
local = _Local()


def _own() -> ThreadSets:
    """This thread's sets, to be changed."""
    sets = local.__dict__.get("sets")
    if sets is None:
        sets = local.sets = ThreadSets()
    assert isinstance(sets, ThreadSets)
    return sets


def _after_fork() -> None:
    """Another thread, which the child does not have, may have held the lock."""
    sets = local.__dict__.get("sets")
    if sets is not None:
        sets.lock = RLock()


os.register_at_fork(after_in_child=_after_fork)


def _key_set(keys: Keys) -> DispatchKeySet:
    if isinstance(keys, (str, DispatchKey)) and parse_key(keys).is_alias:
        raise InvalidKeyError(
            f"{keys} stands for other keys and is in no set: name those, as runtime_keys of "
            "mdispatch.keys gives them; AutoDispatchBelowAutograd excludes all autograd keys",
            keys,
        )
    try:
        return keys if isinstance(keys, DispatchKeySet) else DispatchKeySet(keys)
    except TypeError:
        from ._nearest import shown

        what = "a guard takes a key, a key's name, several of them, or a DispatchKeySet"
        raise InvalidKeyError(f"{what}, not {shown(keys)}", keys) from None


class _Guard:
    """A context manager, which can be used again, inside itself, and by several threads."""

    __slots__ = ("_opened", "_steps")

    def __init__(
        self,
        included: tuple[int, int] | None = None,
        excluded: tuple[int, int] | None = None,
        own: DispatchKey | None = None,
    ) -> None:
        self._steps = (included, excluded, own)
        self._opened: list[_Opened] = []

    @property
    def is_open(self) -> bool:
        """Whether it is in effect: entered, and not left."""
        return bool(self._opened)

    def _taken(self, sets: ThreadSets) -> tuple[tuple[_Set, _Step], ...]:
        """The steps of one ``__enter__``. A guard that cares for several keys overrides this."""
        included, excluded, own = self._steps
        steps: tuple[tuple[_Set, _Step], ...] = ()
        if included is not None:
            steps = ((sets.included, _Step(*included, own)),)
        if excluded is not None:
            if own is not None and not excluded[1] and sets.excluded.spares(own):
                excluded = (FULL, 0)
            steps = (*steps, (sets.excluded, _Step(*excluded, own)))
        return steps

    def __enter__(self: Guard) -> Guard:
        sets = _own()
        opened = _Opened(sets, self._taken(sets))
        try:
            self._opened.append(opened)
            sets.begin(opened)
            return self
        except BaseException:  # of a signal handler: then the block is not entered, nor left
            self._end(opened)
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Undoes what the newest ``__enter__`` in this thread did; without one, what the newest in
        any thread did.
        """
        if not self._opened:
            raise InvalidArgumentError(
                f"this {type(self).__name__} has not begun: use it in a with block"
            )
        here = local.sets
        for opened in self._opened[::-1]:
            if opened.sets is here:
                break
        else:
            opened = self._opened[-1]
        self._end(opened)

    def _end(self, opened: _Opened) -> None:
        # In this order: what a signal handler interrupts is done when the guard goes.
        self._undo(opened)
        if opened in self._opened:
            self._opened.remove(opened)

    def _undo(self, opened: _Opened) -> None:
        """Idempotent."""
        opened.sets.end(opened)

    def __del__(self) -> None:
        for opened in getattr(self, "_opened", ()):  # none when its keys were refused
            self._undo(opened)


class IncludeDispatchKeyGuard(_Guard):
    """While open, this thread's calls dispatch as if an argument carried ``keys`` too.

    ``keys`` is a key, a key's name, several of them, or a DispatchKeySet. InvalidKeyError for
    anything else. (c10: IncludeDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self, keys: Keys) -> None:
        super().__init__(included=(FULL, _key_set(keys).raw))


class ExcludeDispatchKeyGuard(_Guard):
    """While open, this thread's calls dispatch as if no argument carried ``keys``.

    Of a key that exists per backend the whole functionality is excluded: with AutogradCPU also
    AutogradCUDA. ``keys`` as in :class:`IncludeDispatchKeyGuard`. (c10: ExcludeDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self, keys: Keys) -> None:
        super().__init__(excluded=(FULL, _key_set(keys).raw))


class ForceDispatchKeyGuard(_Guard):
    """While open, this thread's sets are exactly these two. (c10: ForceDispatchKeyGuard)"""

    __slots__ = ()

    def __init__(self, included: Keys, excluded: Keys) -> None:
        super().__init__((0, _key_set(included).raw), (0, _key_set(excluded).raw))


class PreserveDispatchKeyGuard(_Guard):
    """Changes nothing itself; what setters change while it is open ends with it.

    (c10: PreserveDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((FULL, 0), (FULL, 0))


class SetExcludeDispatchKeyGuard(_Guard):
    """While open, ``key`` is excluded, or is not, whatever it was before.

    What setters do to other keys meanwhile outlasts it. InvalidKeyError for an unknown key, an
    alias key and Undefined. (PyTorch: SetExcludeDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self, key: DispatchKey | str, excluded: bool) -> None:
        key = parse_key(key)
        super().__init__(excluded=_switch(key, excluded), own=key)


class AutoDispatchBelowAutograd(_Guard):
    """While open, no autograd kernel runs: what such a kernel opens around its inner calls.

    (c10: AutoDispatchBelowAutograd)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(excluded=(FULL, AUTOGRAD.raw))


class AutoDispatchBelowADInplaceOrView(_Guard):
    """As :class:`AutoDispatchBelowAutograd`, and no kernel of ADInplaceOrView runs either.

    (c10: AutoDispatchBelowADInplaceOrView)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(excluded=(FULL, AUTOGRAD.add("ADInplaceOrView").raw))


def enable_python_dispatcher() -> IncludeDispatchKeyGuard:
    """A guard: while it is open, this thread's calls also find the Python kernels of operators, as
    ``OpOverload.py_impl`` registers them.

    (PyTorch: enable_python_dispatcher)
    """
    return IncludeDispatchKeyGuard(DispatchKey.PythonDispatcher)


def _switch(key: DispatchKey, on: bool) -> tuple[int, int]:
    """What switches one key on or off in a set."""
    if not key.raw:
        raise InvalidKeyError(f"{key} has no bits: no set has it or lacks it", key)
    return (FULL, key.raw) if on else (FULL & ~(key.raw & ~BACKEND_BITS), 0)


def set_included(key: DispatchKey | str, included: bool) -> None:
    """Puts a key into this thread's included set, or takes it out, until the innermost guard of
    that set ends; without one for good.

    InvalidKeyError for an unknown key, an alias key and Undefined. (c10:
    tls_set_dispatch_key_included)
    """
    sets = _own()
    sets.change(sets.included, parse_key(key), included)


def set_excluded(key: DispatchKey | str, excluded: bool) -> None:
    """As :func:`set_included`, with the excluded set. (c10: tls_set_dispatch_key_excluded)"""
    sets = _own()
    sets.change(sets.excluded, parse_key(key), excluded)


def included_keys() -> DispatchKeySet:
    """What this thread adds to its calls' key sets. (c10: tls_local_dispatch_key_set)"""
    return DispatchKeySet.from_raw(local.sets.included.value())


def excluded_keys() -> DispatchKeySet:
    """What this thread takes from its calls' key sets. (c10: tls_local_dispatch_key_set)"""
    return DispatchKeySet.from_raw(local.sets.excluded.value())
