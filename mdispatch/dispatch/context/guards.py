"""The dispatch keys that each thread adds to its calls, and those that it takes away.

Every thread of every interpreter has an included and an excluded set; the excluded one wins. A new
thread starts from the defaults and inherits nothing. Guards change the sets while they are open::

    with ExcludeDispatchKeyGuard("AutogradCPU"):
        ...  # no kernel of AutogradCPU runs, for any backend: see below

A guard undoes exactly what it did, in whatever order guards end: the sets are not saved and
restored, but computed from the guards that are open. A change that a setter (:func:`set_included`,
:func:`set_excluded`) makes while a guard of the same set is open ends with that guard. A guard to
which no reference is left has ended.

Excluding a key that exists per backend excludes its functionality for all backends: a key set loses
functionalities, never backends (see DispatchKeySet).

Locking: a thread's sets are changed under their ``lock``, because a guard may end in another thread
than the one it began in. The lock is reentrant, because a finalizer or a signal handler may begin
or end guards in the middle of a change. So the code that computes ``now`` checks afterwards that
nothing has changed meanwhile. Calls take no lock; they see the old pair or the new one.

(c10: LocalDispatchKeySet.h. In PyTorch 2.13 guards save and restore whole sets. There two guards
that end out of order leave a key switched on for good. And a backend's key that was included and
removed again leaves its backend in the set, which then draws all calls to that backend.)
"""

from __future__ import annotations

from _thread import RLock, _local
from _weakref import ref

from ...errors import InvalidArgumentError, InvalidKeyError
from ...facts.native import calls
from ...keys import DispatchKeySet
from ...keys.numbers import BACKEND_BITS, FULL, RUNTIME_KEYS, DispatchKey, parse_key

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


#: A backend in a set belongs to one of these. Without any of them it is no key, and must not draw
#: calls to itself.
_PER_BACKEND = sum({key.raw & ~BACKEND_BITS for key in RUNTIME_KEYS if key.backend})


class _Step:
    """What one open guard does to one of the sets: it keeps some bits, then adds some.

    ``own`` is the key of a guard that is about a single key. Such a guard does not undo what
    setters do to other keys while it is open.
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
        """Whether removing the key must change nothing, since only other backends' keys are in the
        set: a set without AutogradHIP does not lose AutogradCPU.
        """
        return key.backend is not None and self.value() & key.raw != key.raw

    def change(self, key: DispatchKey, keep: int, add: int) -> None:
        """What a setter does. It lasts until the innermost guard that undoes it ends; without such
        a guard, for good.
        """
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
    """The bits of a key set that remain: excluding removes functionalities only."""
    return ~(excluded & ~BACKEND_BITS) & FULL


calls.start(DEFAULT_INCLUDED.raw, _kept(DEFAULT_EXCLUDED.raw))


# To the sets of all threads of this interpreter: the child of a fork replaces their locks, since it
# may end guards that other threads have begun.
_references: set[ref[ThreadSets]] = set()


class ThreadSets(calls.Sets):
    """The sets of one thread. ``now`` is what its calls read: the bits to add and the bits to keep.
    Calls in C read the same two from the base class, where ``put`` has stored them.
    """

    __slots__ = ("__weakref__", "changes", "excluded", "included", "lock", "now")

    def __init__(self) -> None:
        self.included = _Set(DEFAULT_INCLUDED)
        self.excluded = _Set(DEFAULT_EXCLUDED)
        self.lock = RLock()
        self.changes = 0
        self.now = (DEFAULT_INCLUDED.raw, _kept(DEFAULT_EXCLUDED.raw))
        _references.add(ref(self, _references.discard))

    def begin(self, opened: _Opened) -> None:
        with self.lock:
            for each, step in opened.steps:
                each.steps.append(step)
            self.renew()

    def end(self, opened: _Opened) -> None:
        """Idempotent."""
        with self.lock:
            for each, step in opened.steps:
                if step in each.steps:
                    each.steps.remove(step)
            self.renew()

    def change(self, which: _Set, key: DispatchKey, on: bool) -> None:
        with self.lock:
            try:
                which.change(key, *_switch(key, on))
                self.renew()
            except BaseException:  # from a signal handler, perhaps between the two lines above
                self.renew()
                raise

    def renew(self) -> None:
        self.changes += 1
        seen = 0
        while seen != self.changes:
            seen = self.changes
            self.now = (self.included.value(), _kept(self.excluded.value()))
            self.put(*self.now)


class _Opened:
    """One ``__enter__`` of a guard: its steps, and the thread's sets in which it takes them."""

    __slots__ = ("sets", "steps")

    def __init__(self, sets: ThreadSets, steps: tuple[tuple[_Set, _Step], ...]) -> None:
        self.sets = sets
        self.steps = steps


class _Local(_local):
    # Shared by all threads that have changed nothing. It is never written to.
    sets = ThreadSets()


#: ``local.sets.now`` has the bits that a call adds, and those that it keeps.
local = _Local()


def _own() -> ThreadSets:
    """This thread's own sets, which it may change."""
    sets = local.__dict__.get("sets")
    if sets is None:
        sets = local.sets = ThreadSets()
    assert isinstance(sets, ThreadSets)
    return sets


def forked() -> None:
    """See Note [Locks across a fork] in facts/forking.py. Another thread may have been ending a
    guard of this one, and have stopped before it computed the sets again.
    """
    for sets in [each() for each in _references]:
        if sets is not None:
            sets.lock = RLock()
    own = local.__dict__.get("sets")
    if own is not None:
        own.renew()


def _key_set(keys: Keys) -> DispatchKeySet:
    if isinstance(keys, (str, DispatchKey)) and parse_key(keys).is_alias:
        raise InvalidKeyError(
            f"{keys} stands for other keys and is in no set: name those keys, which "
            "mdispatch.keys.runtime_keys gives; AutoDispatchBelowAutograd excludes all autograd "
            "keys",
            keys,
        )
    try:
        return keys if isinstance(keys, DispatchKeySet) else DispatchKeySet(keys)
    except TypeError:
        from ...errors.words import shown

        what = "a guard takes a key, a key's name, several of them, or a DispatchKeySet"
        raise InvalidKeyError(f"{what}, not {shown(keys)}", keys) from None


class _Guard:
    """A context manager. It can be used again, nested in itself, and by several threads."""

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
        """Whether the guard is in effect: entered and not yet left."""
        return bool(self._opened)

    def _taken(self, sets: ThreadSets) -> tuple[tuple[_Set, _Step], ...]:
        """The steps of one ``__enter__``. A guard that is about several keys overrides this."""
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
        except BaseException:  # from a signal handler: Python then does not call __exit__
            self._end(opened)
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Undoes the newest ``__enter__`` of this thread; if there is none, the newest of any
        thread.
        """
        if not self._opened:
            raise InvalidArgumentError(
                f"this {type(self).__name__} was not entered: use it in a with block"
            )
        here = local.sets
        for opened in self._opened[::-1]:
            if opened.sets is here:
                break
        else:
            opened = self._opened[-1]
        self._end(opened)

    def _end(self, opened: _Opened) -> None:
        # In this order: if a signal handler interrupts it, __del__ does the rest.
        self._undo(opened)
        if opened in self._opened:
            self._opened.remove(opened)

    def _undo(self, opened: _Opened) -> None:
        """Idempotent."""
        opened.sets.end(opened)

    def __del__(self) -> None:
        for opened in getattr(self, "_opened", ()):  # not there if __init__ raised
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

    For a key that exists per backend the whole functionality is excluded: AutogradCPU excludes
    AutogradCUDA too. ``keys`` is what :class:`IncludeDispatchKeyGuard` takes. (c10:
    ExcludeDispatchKeyGuard)
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
    """Changes nothing itself. Changes that setters make while it is open end with it.

    (c10: PreserveDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((FULL, 0), (FULL, 0))


class SetExcludeDispatchKeyGuard(_Guard):
    """While open, ``key`` is excluded, or is not excluded, whatever it was before.

    Changes that setters make to other keys meanwhile outlast it. InvalidKeyError for an unknown
    key, an alias key and Undefined. (PyTorch: SetExcludeDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self, key: DispatchKey | str, excluded: bool) -> None:
        key = parse_key(key)
        super().__init__(excluded=_switch(key, excluded), own=key)


class AutoDispatchBelowAutograd(_Guard):
    """While open, no autograd kernel runs. An autograd kernel opens it around its inner calls.

    (c10: AutoDispatchBelowAutograd)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(excluded=(FULL, AUTOGRAD.raw))


class AutoDispatchBelowADInplaceOrView(_Guard):
    """Like :class:`AutoDispatchBelowAutograd`; kernels of ADInplaceOrView do not run either.

    (c10: AutoDispatchBelowADInplaceOrView)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(excluded=(FULL, AUTOGRAD.add("ADInplaceOrView").raw))


def enable_python_dispatcher() -> IncludeDispatchKeyGuard:
    """Returns a guard. While it is open, this thread's calls also find the Python kernels that
    ``OpOverload.py_impl`` registered.

    (PyTorch: enable_python_dispatcher)
    """
    return IncludeDispatchKeyGuard(DispatchKey.PythonDispatcher)


def _switch(key: DispatchKey, on: bool) -> tuple[int, int]:
    """The bits to keep and the bits to add, to switch one key on or off in a set."""
    if not key.raw:
        raise InvalidKeyError(f"{key} has no bits, so a set can neither hold it nor lack it", key)
    return (FULL, key.raw) if on else (FULL & ~(key.raw & ~BACKEND_BITS), 0)


def set_included(key: DispatchKey | str, included: bool) -> None:
    """Puts a key into this thread's included set, or removes it, until the innermost guard of that
    set ends; if none is open, for good.

    InvalidKeyError for an unknown key, an alias key and Undefined. (c10:
    tls_set_dispatch_key_included)
    """
    sets = _own()
    sets.change(sets.included, parse_key(key), included)


def set_excluded(key: DispatchKey | str, excluded: bool) -> None:
    """As :func:`set_included`, for the excluded set. (c10: tls_set_dispatch_key_excluded)"""
    sets = _own()
    sets.change(sets.excluded, parse_key(key), excluded)


def included_keys() -> DispatchKeySet:
    """The keys that this thread adds to its calls' key sets. (c10: tls_local_dispatch_key_set)"""
    return DispatchKeySet.from_raw(local.sets.included.value())


def excluded_keys() -> DispatchKeySet:
    """The keys that this thread removes from its calls' key sets. (c10:
    tls_local_dispatch_key_set)
    """
    return DispatchKeySet.from_raw(local.sets.excluded.value())
