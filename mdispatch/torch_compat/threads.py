"""PyTorch's names for the state of a thread: the keys that it includes and excludes, the guards of
these, and the stacks of modes, at the key Python and before dispatch.
"""

from __future__ import annotations

from enum import Enum
from operator import index as as_index

from .. import keys as _keys
from ..dispatch.context import guards, modes
from ..dispatch.context.modes import DispatchMode
from ..errors import InvalidArgumentError
from ..errors.words import shown
from ..keys import DispatchKey
from .common import _key, _theirs
from .keys import DispatchKeySet, _compat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import TypeAlias

    from ..dispatch.context.hermetic import SafeObject

    Mode = DispatchMode | SafeObject
    Kind: TypeAlias = "_TorchDispatchModeKey | str"

__all__ = [
    "_AutoDispatchBelowADInplaceOrView",
    "_AutoDispatchBelowAutograd",
    "_DisableTorchDispatch",
    "_dispatch_tls_is_dispatch_key_excluded",
    "_dispatch_tls_is_dispatch_key_included",
    "_dispatch_tls_local_exclude_set",
    "_dispatch_tls_local_include_set",
    "_dispatch_tls_set_dispatch_key_excluded",
    "_dispatch_tls_set_dispatch_key_included",
    "_EnablePythonDispatcher",
    "_ExcludeDispatchKeyGuard",
    "_ForceDispatchKeyGuard",
    "_get_current_dispatch_mode",
    "_get_current_dispatch_mode_pre_dispatch",
    "_get_current_dispatch_mode_stack",
    "_get_dispatch_mode",
    "_get_dispatch_mode_pre_dispatch",
    "_get_dispatch_stack_at",
    "_IncludeDispatchKeyGuard",
    "_len_torch_dispatch_stack",
    "_len_torch_dispatch_stack_pre_dispatch",
    "_ModeStackStateForPreDispatch",
    "_pop_mode_from_pre_dispatch",
    "_pop_torch_dispatch_stack",
    "_PreserveDispatchKeyGuard",
    "_push_on_torch_dispatch_stack",
    "_set_dispatch_mode",
    "_set_mode_pre_dispatch",
    "_SetExcludeDispatchKeyGuard",
    "_TorchDispatchModeKey",
    "_unset_dispatch_mode",
    "mode_stack_state_for_pre_dispatch",
    "unset_mode_pre_dispatch",
]

# --- keys that a thread includes and excludes -----------------------------------------------------


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
    """The keys that this thread excludes."""
    return _compat(guards.excluded_keys())


def _dispatch_tls_local_include_set() -> DispatchKeySet:
    """The keys that this thread includes."""
    return _compat(guards.included_keys())


# PyTorch's guards start anew when they are entered again, may be left without having been entered,
# and give None to ``with ... as``.


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
    """See mdispatch.context.ExcludeDispatchKeyGuard."""

    __slots__ = ()

    def __init__(self, keys: _keys.DispatchKeySet | DispatchKey | str) -> None:
        # An alias key has no bits: to name one changes nothing there.
        given = keys if isinstance(keys, _keys.DispatchKeySet) else _keys.DispatchKeySet(keys)
        super().__init__(given)


class _IncludeDispatchKeyGuard(_Theirs, guards.IncludeDispatchKeyGuard):
    """See mdispatch.context.IncludeDispatchKeyGuard."""

    __slots__ = ()

    def __init__(self, keys: _keys.DispatchKeySet | DispatchKey | str) -> None:
        # An alias key has no bits: to name one changes nothing there.
        given = keys if isinstance(keys, _keys.DispatchKeySet) else _keys.DispatchKeySet(keys)
        super().__init__(given)


class _ForceDispatchKeyGuard(_Theirs, guards.ForceDispatchKeyGuard):
    """See mdispatch.context.ForceDispatchKeyGuard."""

    __slots__ = ()


class _PreserveDispatchKeyGuard(_Theirs, guards.PreserveDispatchKeyGuard):
    """See mdispatch.context.PreserveDispatchKeyGuard."""

    __slots__ = ()


class _SetExcludeDispatchKeyGuard(_Theirs, guards.SetExcludeDispatchKeyGuard):
    """See mdispatch.context.SetExcludeDispatchKeyGuard."""

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
    """See mdispatch.context.AutoDispatchBelowAutograd."""

    __slots__ = ()


class _AutoDispatchBelowADInplaceOrView(_Theirs, guards.AutoDispatchBelowADInplaceOrView):
    """See mdispatch.context.AutoDispatchBelowADInplaceOrView."""

    __slots__ = ()


# --- modes ----------------------------------------------------------------------------------------


class _TorchDispatchModeKey(Enum):
    """The kinds of infrastructure modes. A function that takes one also takes its name, a
    mdispatch.context.DispatchModeKey.
    """

    FAKE = 0
    PROXY = 1
    FUNCTIONAL = 2

    def __int__(self) -> int:
        return int(self.value)


def _kind(kind: Kind) -> str:
    name = kind.name if isinstance(kind, _TorchDispatchModeKey) else kind
    if name not in modes._SLOTS:
        raise InvalidArgumentError(f"this takes a _TorchDispatchModeKey, not {shown(kind)}")
    return name


# --- the stack at the key Python ------------------------------------------------------------------


def _len_torch_dispatch_stack() -> int:
    """How many modes this thread has."""
    return len(modes.mode_stack())


@_theirs
def _get_dispatch_stack_at(index: int) -> Mode:
    """The mode at a location; 0 is the lowest. RuntimeError if there is none, also below 0."""
    stack = modes.mode_stack()
    if not 0 <= as_index(index) < len(stack):
        raise InvalidArgumentError(
            f"there is no mode at {index}: this thread has {len(stack)}, the lowest is 0"
        )
    return stack[index]


def _get_current_dispatch_mode_stack() -> list[Mode]:
    """This thread's modes, the lowest first."""
    return list(modes.mode_stack())


def _get_current_dispatch_mode() -> Mode | None:
    """The mode that is asked first."""
    return modes.current_mode()


@_theirs
def _push_on_torch_dispatch_stack(mode: Mode | None) -> None:
    """Puts a mode on the stack, below all others if it is infrastructure; None changes nothing.
    RuntimeError for a value that is no mode, and for a second one of a kind.
    """
    if mode is not None:
        modes.push_mode(mode)


@_theirs
def _pop_torch_dispatch_stack(mode_key: Kind | None = None) -> Mode:
    """Takes off the innermost mode, or the infrastructure mode of a kind. RuntimeError when there
    is none.
    """
    return modes.pop_mode(None if mode_key is None else _kind(mode_key))


@_theirs
def _get_dispatch_mode(mode_key: Kind) -> Mode | None:
    """The infrastructure mode of a kind, None when there is none."""
    kind = _kind(mode_key)
    return next((each.mode for each in modes.local.stack.entries if each.slot == kind), None)


@_theirs
def _set_dispatch_mode(mode: DispatchMode) -> None:
    """Puts an infrastructure mode in its place. RuntimeError for another mode, and for a second one
    of a kind.
    """
    if getattr(mode, "mode_key", None) is None:
        raise InvalidArgumentError(
            f"{shown(mode)} has no mode_key: push a mode that is not infrastructure"
        )
    modes.push_mode(mode)


@_theirs
def _unset_dispatch_mode(mode_key: Kind) -> Mode | None:
    """Takes off the infrastructure mode of a kind; None when there is none."""
    kind = _kind(mode_key)
    return None if _get_dispatch_mode(kind) is None else modes.pop_mode(kind)


class _DisableTorchDispatch(_AtOnce, modes.DisabledGuard):
    """See mdispatch.context.disable_md_dispatch. In effect from its construction on, as in
    PyTorch.
    """

    __slots__ = ()


class _EnablePythonDispatcher(_AtOnce, guards.IncludeDispatchKeyGuard):
    """See mdispatch.context.enable_python_dispatcher. In effect from its construction on, as in
    PyTorch.
    """

    __slots__ = ()

    def __init__(self) -> None:
        guards.IncludeDispatchKeyGuard.__init__(self, DispatchKey.PythonDispatcher)
        guards.IncludeDispatchKeyGuard.__enter__(self)


# --- the stack before dispatch --------------------------------------------------------------------
# Where PyTorch's functions assert, these raise RuntimeError.


class _ModeStackStateForPreDispatch:
    """This thread's modes before dispatch by slot: 0 is PROXY, 1 is FUNCTIONAL."""

    @_theirs
    def get(self, index: int) -> Mode | None:
        """The mode of a slot, or None. RuntimeError for another number than 0 and 1."""
        return _before(self._slot(index))

    @_theirs
    def set(self, index: int, mode: DispatchMode | None) -> None:
        """Puts a mode of the slot's kind in place of the present one; None takes that one off.
        RuntimeError for a mode of another kind, and for another number than 0 and 1.
        """
        slot = self._slot(index)
        if mode is not None and modes._checked(mode, "set")[1] != slot:
            raise InvalidArgumentError(f"slot {index} takes a mode of kind {slot}: {shown(mode)}")
        _take_off(slot)
        if mode is not None:
            modes.push_pre_dispatch_mode(mode)

    def count(self) -> int:
        """How many modes there are, including one without a kind."""
        return len(modes.pre_dispatch_modes())

    def _slot(self, index: int) -> str:
        slots = modes._PRE_DISPATCH_SLOTS
        if not 0 <= as_index(index) < len(slots):
            raise InvalidArgumentError(f"there is no slot {index} before dispatch, only 0 and 1")
        return slots[index]


def _before(slot: str | None) -> Mode | None:
    return next((each.mode for each in modes.local.stack.pre_dispatch if each.slot == slot), None)


def _take_off(slot: str | None) -> Mode | None:
    stack: list[modes.ModeEntry] = modes.local.stack.pre_dispatch
    for entry in stack:
        if entry.slot == slot:
            stack.remove(entry)
            entry.guard.__exit__()
            return entry.mode
    return None


_state = _ModeStackStateForPreDispatch()


def mode_stack_state_for_pre_dispatch() -> _ModeStackStateForPreDispatch:
    """The state of the thread that calls its methods."""
    return _state


@_theirs
def unset_mode_pre_dispatch(mode_key: Kind | None, schema_check: bool = False) -> Mode | None:
    """Takes off the mode of a kind, PROXY or FUNCTIONAL, or with None the one without a kind.
    Returns it, or None when there was none. RuntimeError for another kind.
    """
    slot = None if mode_key is None else _kind(mode_key)
    if slot is not None and (schema_check or slot not in modes._PRE_DISPATCH_SLOTS):
        raise InvalidArgumentError(
            f"pre-dispatch modes are of kind PROXY or FUNCTIONAL, not {slot}; with schema_check, "
            "the mode has no kind"
        )
    return _take_off(slot)


@_theirs
def _set_mode_pre_dispatch(mode: DispatchMode) -> None:
    """Puts a mode on the stack before dispatch: one of a kind, or one without a kind alone.
    RuntimeError for any other.
    """
    modes.push_pre_dispatch_mode(mode)


@_theirs
def _pop_mode_from_pre_dispatch() -> Mode:
    """Takes off the mode that is asked first. RuntimeError when there is none."""
    return modes.pop_pre_dispatch_mode()


def _len_torch_dispatch_stack_pre_dispatch() -> int:
    """How many modes there are before dispatch."""
    return _state.count()


@_theirs
def _get_dispatch_mode_pre_dispatch(mode_key: Kind) -> Mode | None:
    """The mode of a kind before dispatch, or None. RuntimeError for a kind that cannot be there."""
    slot = _kind(mode_key)
    if slot not in modes._PRE_DISPATCH_SLOTS:
        raise InvalidArgumentError(f"a mode of kind {slot} cannot be a pre-dispatch mode")
    return _before(slot)


def _get_current_dispatch_mode_pre_dispatch() -> Mode | None:
    """The mode before dispatch that is asked first."""
    before = modes.pre_dispatch_modes()
    return before[-1] if before else None
