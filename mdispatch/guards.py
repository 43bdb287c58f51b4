"""What each thread adds to the dispatch keys of its calls, and what it takes away.

Every thread of every interpreter has an included and an excluded set; the excluded one wins. A new
thread starts from the defaults and inherits nothing. Guards change the sets while they are open::

    with ExcludeDispatchKeyGuard("AutogradCPU"):
        ...  # no kernel of AutogradCPU runs, for any backend: see below

A guard undoes what it did and no more, in whatever order guards end: the sets are not saved and
written back, but computed from the guards that are open. What the setters (:func:`set_included`,
:func:`set_excluded`) change while a guard of the same set is open ends with that guard.

To exclude a key that exists per backend excludes its functionality for all backends: a key set
loses functionalities, never backends (see DispatchKeySet).

Locking: a thread's sets are read and written by that thread, without a lock; a guard that ends in
another thread than it began in writes too, hence ``_lock`` around every change. Readers see the old
pair or the new one.

(c10: LocalDispatchKeySet.h. In PyTorch 2.13 guards save and restore whole sets, so that two that
end out of order leave a key switched on for good.)
"""

from __future__ import annotations

from _thread import _local, allocate_lock

from ._keys import BACKEND_BITS, FULL, DispatchKey, parse_key
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


class _Step:
    """What one open guard does to one of the sets: keep some bits of it, then add some.

    ``alone`` says that the guard cares for its own bits only: what setters change while it is open
    is not its to undo.
    """

    __slots__ = ("add", "alone", "keep")

    def __init__(self, keep: int, add: int, alone: bool = False) -> None:
        self.keep = keep
        self.add = add
        self.alone = alone

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
        for step in self.steps:
            raw = raw & step.keep | step.add
        return raw

    def change(self, keep: int, add: int) -> None:
        """A setter's: lasts as long as the innermost guard of this set, else for good."""
        for step in reversed(self.steps):
            step.then(keep, add)
            if not step.alone:
                return
        self.base = self.base & keep | add


def _kept(excluded: int) -> int:
    """The bits that are left of a key set: excluding takes functionalities away."""
    return ~(excluded & ~BACKEND_BITS) & FULL


class ThreadSets:
    """The sets of one thread. ``now`` is what its calls read: the bits to add, the bits to keep."""

    __slots__ = ("excluded", "included", "lock", "now")

    def __init__(self) -> None:
        self.included = _Set(DEFAULT_INCLUDED)
        self.excluded = _Set(DEFAULT_EXCLUDED)
        self.lock = allocate_lock()
        self.now = (DEFAULT_INCLUDED.raw, _kept(DEFAULT_EXCLUDED.raw))

    def renew(self) -> None:
        self.now = (self.included.value(), _kept(self.excluded.value()))


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


def _key_set(keys: Keys) -> DispatchKeySet:
    return keys if isinstance(keys, DispatchKeySet) else DispatchKeySet(keys)


class _Guard:
    """A context manager, which can be used again, and inside itself."""

    __slots__ = ("_open", "_steps")

    def __init__(
        self,
        included: tuple[int, int] | None = None,
        excluded: tuple[int, int] | None = None,
        alone: bool = False,
    ) -> None:
        self._steps = (included, excluded, alone)
        self._open: list[tuple[ThreadSets, _Step | None, _Step | None]] = []

    def __enter__(self: Guard) -> Guard:
        included, excluded, alone = self._steps
        sets = _own()
        one = _Step(*included, alone) if included else None
        other = _Step(*excluded, alone) if excluded else None
        with sets.lock:
            if one is not None:
                sets.included.steps.append(one)
            if other is not None:
                sets.excluded.steps.append(other)
            sets.renew()
        self._open.append((sets, one, other))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Undoes what the newest ``__enter__`` did, wherever that was."""
        if not self._open:
            raise InvalidArgumentError(f"a {type(self).__name__} ends that was not begun")
        sets, one, other = self._open.pop()
        with sets.lock:
            if one is not None:
                sets.included.steps.remove(one)
            if other is not None:
                sets.excluded.steps.remove(other)
            sets.renew()


class IncludeDispatchKeyGuard(_Guard):
    """While open, this thread's calls dispatch as if an argument carried ``keys`` too.

    ``keys`` is a key, a key's name, several of them, or a DispatchKeySet. InvalidKeyError for an
    unknown one. (c10: IncludeDispatchKeyGuard)
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

    (PyTorch: SetExcludeDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self, key: DispatchKey | str, excluded: bool) -> None:
        super().__init__(excluded=_switch(key, excluded), alone=True)


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


def _switch(key: DispatchKey | str, on: bool) -> tuple[int, int]:
    """What switches one key on or off in a set."""
    key = parse_key(key)
    if not key.raw:
        raise InvalidKeyError(f"{key} has no bits: no set has it or lacks it", key)
    return (FULL, key.raw) if on else (FULL & ~(key.raw & ~BACKEND_BITS), 0)


def set_included(key: DispatchKey | str, included: bool) -> None:
    """Puts a key into this thread's included set, or takes it out, until the innermost guard of
    that set ends; without one for good.

    InvalidKeyError for an unknown key, an alias key and Undefined. (c10:
    tls_set_dispatch_key_included)
    """
    change = _switch(key, included)
    sets = _own()
    with sets.lock:
        sets.included.change(*change)
        sets.renew()


def set_excluded(key: DispatchKey | str, excluded: bool) -> None:
    """As :func:`set_included`, with the excluded set. (c10: tls_set_dispatch_key_excluded)"""
    change = _switch(key, excluded)
    sets = _own()
    with sets.lock:
        sets.excluded.change(*change)
        sets.renew()


def included_keys() -> DispatchKeySet:
    """What this thread adds to its calls' key sets. (c10: tls_local_dispatch_key_set)"""
    return DispatchKeySet.from_raw(local.sets.included.value())


def excluded_keys() -> DispatchKeySet:
    """What this thread takes from its calls' key sets. (c10: tls_local_dispatch_key_set)"""
    return DispatchKeySet.from_raw(local.sets.excluded.value())
