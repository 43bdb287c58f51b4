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

The sets and the steps of open guards are in native/bind/call/guards.c, where calls in C find them.
facts/native/guards_py.py has the same in Python.

(c10: LocalDispatchKeySet.h. In PyTorch 2.13 guards save and restore whole sets. There two guards
that end out of order leave a key switched on for good. And a backend's key that was included and
removed again leaves its backend in the set, which then draws all calls to that backend.)
"""

from __future__ import annotations

from ...errors import InvalidArgumentError, InvalidKeyError, ModeStackError
from ...facts.native import calls
from ...keys import DispatchKeySet
from ...keys.numbers import BACKEND_BITS, FULL, PER_BACKEND_BITS, DispatchKey, parse_key

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

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
_NO_VIEWS = AUTOGRAD.add("ADInplaceOrView")


calls.start(
    DEFAULT_INCLUDED.raw,
    DEFAULT_EXCLUDED.raw,
    PER_BACKEND_BITS,
    DispatchKey,
    DispatchKeySet,
)

#: The sets, as Guard's steps name them.
INCLUDED, EXCLUDED = 0, 1


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


class _Guard(calls.Guard):
    """A context manager. It can be used again, nested in itself, and by several threads."""

    __slots__ = ()

    def _not_entered(self) -> NoReturn:
        if self.is_open:
            raise ModeStackError(
                f"this {type(self).__name__} is open in another thread, and not in this one: end "
                "its with block in the thread that began it"
            )
        raise InvalidArgumentError(
            f"this {type(self).__name__} was not entered: use it in a with block"
        )


class IncludeDispatchKeyGuard(_Guard):
    """While open, this thread's calls dispatch as if an argument carried ``keys`` too.

    ``keys`` is a key, a key's name, several of them, or a DispatchKeySet. InvalidKeyError for
    anything else. (c10: IncludeDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self, keys: Keys) -> None:
        super().__init__((INCLUDED, FULL, _key_set(keys).raw, 0))


class ExcludeDispatchKeyGuard(_Guard):
    """While open, this thread's calls dispatch as if no argument carried ``keys``.

    For a key that exists per backend the whole functionality is excluded: AutogradCPU excludes
    AutogradCUDA too. ``keys`` is what :class:`IncludeDispatchKeyGuard` takes. (c10:
    ExcludeDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self, keys: Keys) -> None:
        super().__init__((EXCLUDED, FULL, _key_set(keys).raw, 0))


class ForceDispatchKeyGuard(_Guard):
    """While open, this thread's sets are exactly these two. (c10: ForceDispatchKeyGuard)"""

    __slots__ = ()

    def __init__(self, included: Keys, excluded: Keys) -> None:
        super().__init__(
            (INCLUDED, 0, _key_set(included).raw, 0), (EXCLUDED, 0, _key_set(excluded).raw, 0)
        )


class PreserveDispatchKeyGuard(_Guard):
    """Changes nothing itself. Changes that setters make while it is open end with it.

    (c10: PreserveDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((INCLUDED, FULL, 0, 0), (EXCLUDED, FULL, 0, 0))


class SetExcludeDispatchKeyGuard(_Guard):
    """While open, ``key`` is excluded, or is not excluded, whatever it was before.

    Changes that setters make to other keys meanwhile outlast it. InvalidKeyError for an unknown
    key, an alias key and Undefined. (PyTorch: SetExcludeDispatchKeyGuard)
    """

    __slots__ = ()

    def __init__(self, key: DispatchKey | str, excluded: bool) -> None:
        key = parse_key(key)
        super().__init__((EXCLUDED, *_switch(key, excluded), key.raw))


class AutoDispatchBelowAutograd(_Guard):
    """While open, no autograd kernel runs. An autograd kernel opens it around its inner calls.

    (c10: AutoDispatchBelowAutograd)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((EXCLUDED, FULL, AUTOGRAD.raw, 0))


class AutoDispatchBelowADInplaceOrView(_Guard):
    """Like :class:`AutoDispatchBelowAutograd`; kernels of ADInplaceOrView do not run either.

    (c10: AutoDispatchBelowADInplaceOrView)
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((EXCLUDED, FULL, _NO_VIEWS.raw, 0))


calls.quick(IncludeDispatchKeyGuard, INCLUDED, None)
calls.quick(ExcludeDispatchKeyGuard, EXCLUDED, None)
calls.quick(AutoDispatchBelowAutograd, EXCLUDED, AUTOGRAD.raw)
calls.quick(AutoDispatchBelowADInplaceOrView, EXCLUDED, _NO_VIEWS.raw)


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
    key = parse_key(key)
    calls.change(INCLUDED, key.raw, *_switch(key, included))


def set_excluded(key: DispatchKey | str, excluded: bool) -> None:
    """As :func:`set_included`, for the excluded set. (c10: tls_set_dispatch_key_excluded)"""
    key = parse_key(key)
    calls.change(EXCLUDED, key.raw, *_switch(key, excluded))


def included_keys() -> DispatchKeySet:
    """The keys that this thread adds to its calls' key sets. (c10: tls_local_dispatch_key_set)"""
    return DispatchKeySet.from_raw(calls.sets()[INCLUDED])


def excluded_keys() -> DispatchKeySet:
    """The keys that this thread removes from its calls' key sets. (c10:
    tls_local_dispatch_key_set)
    """
    return DispatchKeySet.from_raw(calls.sets()[EXCLUDED])
