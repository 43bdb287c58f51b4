"""PyTorch's names for what a thread includes and excludes, and its guards."""

from __future__ import annotations

from . import guards
from . import keys as _keys
from ._nearest import shown
from ._torch_common import _key, _theirs
from ._torch_keys import DispatchKeySet, _compat
from .keys import DispatchKey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "_AtOnce",
    "_AutoDispatchBelowADInplaceOrView",
    "_AutoDispatchBelowAutograd",
    "_ExcludeDispatchKeyGuard",
    "_ForceDispatchKeyGuard",
    "_IncludeDispatchKeyGuard",
    "_PreserveDispatchKeyGuard",
    "_SetExcludeDispatchKeyGuard",
    "_Theirs",
    "_bool",
    "_dispatch_tls_is_dispatch_key_excluded",
    "_dispatch_tls_is_dispatch_key_included",
    "_dispatch_tls_local_exclude_set",
    "_dispatch_tls_local_include_set",
    "_dispatch_tls_set_dispatch_key_excluded",
    "_dispatch_tls_set_dispatch_key_included",
]


def _bool(desired: bool) -> bool:
    if isinstance(desired, str):
        raise TypeError(f"this takes True or False, not {shown(desired)}")
    return bool(desired)


@_theirs
def _dispatch_tls_set_dispatch_key_excluded(key: DispatchKey | str, desired: bool) -> None:
    """Puts a key into this thread's excluded set, or takes it out."""
    if _key(key).raw:  # a key without bits changes nothing
        guards.set_excluded(_key(key), _bool(desired))


@_theirs
def _dispatch_tls_set_dispatch_key_included(key: DispatchKey | str, desired: bool) -> None:
    """Puts a key into this thread's included set, or takes it out."""
    if _key(key).raw:
        guards.set_included(_key(key), _bool(desired))


@_theirs
def _dispatch_tls_is_dispatch_key_excluded(key: DispatchKey | str) -> bool:
    """Whether this thread excludes a key."""
    return guards.excluded_keys().has(_key(key))


@_theirs
def _dispatch_tls_is_dispatch_key_included(key: DispatchKey | str) -> bool:
    """Whether this thread includes a key."""
    return guards.included_keys().has(_key(key))


def _dispatch_tls_local_exclude_set() -> DispatchKeySet:
    """What this thread excludes."""
    return _compat(guards.excluded_keys())


def _dispatch_tls_local_include_set() -> DispatchKeySet:
    """What this thread includes."""
    return _compat(guards.included_keys())


# Their guards begin again when they are entered again, may be left without having been entered, and
# are worth nothing in ``with ... as``.


class _Theirs(guards._Guard):
    __slots__ = ()

    def __enter__(self) -> None:  # type: ignore[override]  # as there
        while self.is_open:
            super().__exit__()
        super().__enter__()

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self.is_open:
            super().__exit__()


class _ExcludeDispatchKeyGuard(_Theirs, guards.ExcludeDispatchKeyGuard):
    """See mdispatch.ExcludeDispatchKeyGuard."""

    __slots__ = ()

    def __init__(self, keys: _keys.DispatchKeySet | DispatchKey | str) -> None:
        # An alias key has no bits: to name one changes nothing there.
        given = keys if isinstance(keys, _keys.DispatchKeySet) else _keys.DispatchKeySet(keys)
        super().__init__(given)


class _IncludeDispatchKeyGuard(_Theirs, guards.IncludeDispatchKeyGuard):
    """See mdispatch.IncludeDispatchKeyGuard."""

    __slots__ = ()

    def __init__(self, keys: _keys.DispatchKeySet | DispatchKey | str) -> None:
        # An alias key has no bits: to name one changes nothing there.
        given = keys if isinstance(keys, _keys.DispatchKeySet) else _keys.DispatchKeySet(keys)
        super().__init__(given)


class _ForceDispatchKeyGuard(_Theirs, guards.ForceDispatchKeyGuard):
    """See mdispatch.ForceDispatchKeyGuard."""

    __slots__ = ()


class _PreserveDispatchKeyGuard(_Theirs, guards.PreserveDispatchKeyGuard):
    """See mdispatch.guards.PreserveDispatchKeyGuard."""

    __slots__ = ()


class _SetExcludeDispatchKeyGuard(_Theirs, guards.SetExcludeDispatchKeyGuard):
    """See mdispatch.guards.SetExcludeDispatchKeyGuard."""

    __slots__ = ()


class _AtOnce(_Theirs):
    """In effect from its construction to its death, or the end of a ``with`` block."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        super().__enter__()

    def __enter__(self) -> None:  # type: ignore[override]
        pass


class _AutoDispatchBelowAutograd(_AtOnce, guards.AutoDispatchBelowAutograd):
    """See mdispatch.AutoDispatchBelowAutograd."""

    __slots__ = ()


class _AutoDispatchBelowADInplaceOrView(_Theirs, guards.AutoDispatchBelowADInplaceOrView):
    """See mdispatch.guards.AutoDispatchBelowADInplaceOrView."""

    __slots__ = ()
