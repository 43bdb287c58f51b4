"""Modes: objects that see every call of a thread, whatever its arguments are.

A mode is pushed onto the stack of a thread, usually by a with block. While it is there, calls come
to its ``__md_dispatch__`` at the key Python: after the kernels of the keys above (autograd,
autocast), and before those of backends::

    class Count(DispatchMode):
        calls = 0

        def __md_dispatch__(self, op, types, args, kwargs):
            self.calls += 1
            return op(*args, **kwargs)

While its handler runs, a mode is not on the stack: calls that the handler makes go to the next
mode. The same mode may be on the stack twice. Modes with a :class:`DispatchModeKey` are
infrastructure: there is one of each kind, and they lie below all other modes.

Types take part too. A value whose class has a class method ``__md_dispatch__(cls, op, types, args,
kwargs)`` carries the key Python. Such classes are asked after the innermost mode, subclasses before
their bases, and otherwise in the order of the arguments. A class needs the method from the start,
since its keys are looked up only once. A handler that does not know what to do returns
NotImplemented.

Each thread has its own stack, which begins empty. See dispatch/handlers.py for what happens at the
keys. (PyTorch: TorchDispatchMode, torch/utils/_python_dispatch.py)
"""

from __future__ import annotations

from _operator import attrgetter

from ...errors import InvalidArgumentError, ModeStackError
from ...facts.native import calls
from ...facts.native.calls import local as local  # ``local.stack`` is this thread's
from ...keys import DispatchKey, DispatchKeySet
from ...keys.numbers import FULL
from .guards import (
    EXCLUDED,
    INCLUDED,
    IncludeDispatchKeyGuard,
    _Guard,
    excluded_keys,
)
from .values import NoValue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Protocol, TypeVar

    from .hermetic import SafeObject

    M = TypeVar("M", bound="DispatchMode")
    Slot = str | None

    class Placed(Protocol):
        """An entry of a stack, of modes or of transforms."""

        @property
        def guard(self) -> _Guard: ...

        @property
        def rank(self) -> int: ...

    P = TypeVar("P", bound=Placed)

__all__ = [
    "DispatchMode",
    "DispatchModeKey",
    "current_mode",
    "disable_md_dispatch",
    "is_md_dispatch_enabled",
    "keys_on_entry",
    "mode_stack",
    "pop_mode",
    "pop_pre_dispatch_mode",
    "pre_dispatch_modes",
    "push_mode",
    "push_pre_dispatch_mode",
    "restore_keys_on_entry",
]

PYTHON = DispatchKeySet("Python", "PythonTLSSnapshot")


class DispatchModeKey:
    """The kinds of infrastructure modes, the lowest first. (PyTorch: _TorchDispatchModeKey)"""

    FAKE = "FAKE"
    PROXY = "PROXY"
    FUNCTIONAL = "FUNCTIONAL"


_SLOTS = (DispatchModeKey.FAKE, DispatchModeKey.PROXY, DispatchModeKey.FUNCTIONAL)
_PRE_DISPATCH_SLOTS = (DispatchModeKey.PROXY, DispatchModeKey.FUNCTIONAL)

#: The order of a stack, lowest first. Entries of one rank stay in the order of their pushes.
by_rank = attrgetter("rank")


class DispatchMode(NoValue):
    """Base of modes. As a context manager it is on this thread's stack while the block runs.

    (PyTorch: TorchDispatchMode)
    """

    #: The kind of an infrastructure mode, one of DispatchModeKey; None for all others.
    mode_key: str | None = None
    #: Whether its handler is asked about higher-order operators that have no rule for it, too.
    supports_higher_order_operators: bool = False

    def __md_dispatch__(
        self, op: Any, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Called in place of the kernel, with every argument of the schema. Its result is that of
        the call; NotImplemented leaves the call to the arguments' types.

        ``types`` are the types of those arguments that have ``__md_dispatch__`` themselves.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define __md_dispatch__")

    def __enter__(self: M) -> M:
        push_mode(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """Takes the mode off the stack, wherever it is by now. If it is there several times, takes
        the newest off.
        """
        entries = local.stack.entries
        for entry in entries[::-1]:
            if entry.mode is self:
                # Not in a function of its own: a signal handler may raise where that begins.
                try:
                    take_off(entries, entry)
                except BaseException:  # from a signal handler, perhaps before anything was done
                    take_off(entries, entry)
                    raise
                return
        raise ModeStackError(
            f"{type(self).__qualname__} is not on this thread's stack of modes: end its with block "
            "in the thread that began it, and do not take the mode off with pop_mode() inside the "
            "block"
        )


class ModeEntry:
    """One place on the stack: a mode, and the guard that turns calls to it."""

    __slots__ = ("guard", "mode", "rank", "slot")

    def __init__(self, mode: DispatchMode | SafeObject, slot: Slot, guard: _Guard) -> None:
        self.mode = mode
        self.slot = slot
        self.rank = len(_SLOTS) if slot is None else _SLOTS.index(slot)
        self.guard = guard


def put_on(entries: list[P], entry: P) -> None:
    """Puts an entry in its place by rank. If that is interrupted (by a signal handler, or by a
    RecursionError), nothing stays behind: Python then does not call ``__exit__``.
    """
    try:
        entry.guard.__enter__()
        entries.append(entry)
        entries.sort(key=by_rank)
    except BaseException:
        take_off(entries, entry)
        raise


def take_off(entries: list[P], entry: P) -> None:
    """Idempotent. The entry goes first: its guard ends at the latest with its last reference."""
    if entry in entries:
        entries.remove(entry)
    if entry.guard.is_open:
        entry.guard.__exit__()


def _checked(mode: Any, what: str) -> tuple[Any, Slot]:
    """The mode, and its kind."""
    if isinstance(mode, DispatchMode):
        slot = mode.mode_key
        if slot is not None and slot not in _SLOTS:
            from ...errors.words import shown

            raise InvalidArgumentError(
                f"{type(mode).__qualname__}.mode_key is {shown(slot)}: it must be one of "
                f"{', '.join(_SLOTS)}, or None"
            )
        return mode, slot
    from .hermetic import SafeObject

    if isinstance(mode, SafeObject):
        return _checked(mode.open(), what) if mode.is_home else (mode, None)
    raise InvalidArgumentError(f"{what} takes a DispatchMode, not a {type(mode).__qualname__}")


def push_mode(mode: DispatchMode | SafeObject) -> None:
    """Puts a mode on this thread's stack; infrastructure modes go below all others, by their kinds.

    A SafeObject stands for the mode in it. If this interpreter is not its home, every call that
    would come to the mode is refused with ForeignObjectError; a handle (:func:`mdispatch.share`)
    has the mode asked at its home, where the operators that its handler calls run, too.

    Raises InvalidArgumentError, ModeStackError for a second infrastructure mode of a kind.
    (PyTorch: _push_mode)
    """
    mode, slot = _checked(mode, "push_mode")
    entries = local.stack.entries
    if slot is not None and any(entry.slot == slot for entry in entries):
        raise ModeStackError(
            f"a mode of kind {slot} is on the stack already, and the stack takes only one of "
            "each kind: take it off first"
        )
    put_on(entries, ModeEntry(mode, slot, IncludeDispatchKeyGuard(PYTHON)))


def pop_mode(kind: str | None = None) -> DispatchMode | SafeObject:
    """Takes the innermost mode off this thread's stack, or the infrastructure mode of a ``kind``.

    Raises ModeStackError when there is none. (PyTorch: _pop_mode)
    """
    entries = local.stack.entries
    found = [entry for entry in entries if kind is None or entry.slot == kind]
    if not found:
        from ...errors.words import shown

        which = "" if kind is None else f" of kind {shown(kind)}"
        raise ModeStackError(f"this thread has no mode{which} on its stack")
    entry: ModeEntry = found[-1]
    take_off(entries, entry)
    return entry.mode


def mode_stack() -> tuple[DispatchMode | SafeObject, ...]:
    """This thread's modes, the lowest first. (PyTorch: _get_current_dispatch_mode_stack)"""
    return tuple(entry.mode for entry in local.stack.entries)


def current_mode() -> DispatchMode | SafeObject | None:
    """The innermost mode of this thread, which is asked first; None if there is none.

    (PyTorch: _get_current_dispatch_mode)
    """
    entries = local.stack.entries
    return entries[-1].mode if entries else None


class DisabledGuard(_Guard):
    """What :func:`disable_md_dispatch` returns."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__((EXCLUDED, FULL, PYTHON.raw, 0), of_thread=True)


calls.quick(DisabledGuard, EXCLUDED, PYTHON.raw, True)


def disable_md_dispatch() -> DisabledGuard:
    """Returns a guard. While it is open, neither modes nor types are asked in this thread. It ends
    where it began, as that of :func:`hermetic` does.

    (PyTorch: _DisableTorchDispatch)
    """
    return DisabledGuard()


def is_md_dispatch_enabled() -> bool:
    """Whether a call of this thread would come to a mode: whether there is a mode, and the key
    Python is not excluded.

    (PyTorch: dispatch_mode_enabled)
    """
    return bool(local.stack.entries) and not excluded_keys().has("Python")


# --- the snapshot ---------------------------------------------------------------------------------


def keys_on_entry() -> tuple[DispatchKeySet, DispatchKeySet] | None:
    """The included and the excluded set with which the call was made that the running handler
    serves, before kernels on the way opened guards of their own. If a kernel made that call, the
    sets are those of the outermost call, which led to the kernel. None outside of handlers.

    (PyTorch: PythonTLSSnapshot, tls_on_entry)
    """
    return local.stack.handled


def restore_keys_on_entry() -> _Guard:
    """Returns a guard for handlers. While it is open, this thread's sets are :func:`keys_on_entry`,
    so a call goes through everything again, from the top. It does not change which modes are asked:
    the mode whose handler runs is not.

    Raises ModeStackError outside of a handler. (PyTorch: RestorePythonTLSSnapshot)
    """
    sets = local.stack.handled
    if sets is None:
        raise ModeStackError(
            "there are no keys to restore: no handler of a mode or a type is running in this thread"
        )
    included, excluded = sets
    return _Guard(
        (INCLUDED, PYTHON.raw, included.raw & ~PYTHON.raw, 0), (EXCLUDED, 0, excluded.raw, 0)
    )


# --- the stack before dispatch --------------------------------------------------------------------


def push_pre_dispatch_mode(mode: DispatchMode) -> None:
    """Puts a mode where it sees calls before everything else does, at the key PreDispatch. There
    may be one mode of kind PROXY and one of kind FUNCTIONAL, or a single mode without a kind.

    Raises InvalidArgumentError, ModeStackError. (PyTorch: _set_mode_pre_dispatch)
    """
    mode, slot = _checked(mode, "push_pre_dispatch_mode")
    entries = local.stack.pre_dispatch
    if slot not in (*_PRE_DISPATCH_SLOTS, None):
        raise InvalidArgumentError(
            f"a mode of kind {slot} cannot be a pre-dispatch mode: only modes of kind PROXY or "
            "FUNCTIONAL can, and modes without a kind"
        )
    if any(entry.slot == slot or None in (entry.slot, slot) for entry in entries):
        raise ModeStackError(
            "there is already a pre-dispatch "
            f"mode{'' if slot is None else f' of kind {slot} or without a kind'}: take it off "
            "first with pop_pre_dispatch_mode()"
        )
    put_on(entries, ModeEntry(mode, slot, IncludeDispatchKeyGuard(DispatchKey.PreDispatch)))


def pop_pre_dispatch_mode() -> DispatchMode | SafeObject:
    """Takes off the mode at PreDispatch that is asked first. ModeStackError if there is none.

    (PyTorch: _pop_mode_from_pre_dispatch)
    """
    entries = local.stack.pre_dispatch
    if not entries:
        raise ModeStackError("this thread has no pre-dispatch mode")
    entry: ModeEntry = entries[-1]
    take_off(entries, entry)
    return entry.mode


def pre_dispatch_modes() -> tuple[DispatchMode | SafeObject, ...]:
    """The modes at PreDispatch of this thread; the last one is asked first.

    (PyTorch: ModeStackStateForPreDispatch)
    """
    return tuple(entry.mode for entry in local.stack.pre_dispatch)
