"""Modes: what sees every call of a thread, whatever its arguments are.

A mode is pushed onto the stack of a thread, usually by a with block. While it is there, calls come
to its ``__md_dispatch__`` at the key Python, after what stands above that key (autograd, autocast)
and before the kernels of backends::

    class Count(DispatchMode):
        calls = 0

        def __md_dispatch__(self, op, types, args, kwargs):
            self.calls += 1
            return op(*args, **kwargs)

While its handler runs a mode is not on the stack: what it calls goes to the next one. The same mode
may be there twice. Modes with a :class:`DispatchModeKey` are infrastructure: one of a kind, below
all others.

Types take part too: one with a class method ``__md_dispatch__(cls, op, types, args, kwargs)``
carries the key Python, and is asked after the innermost mode, subclasses before their bases, else
in the order of the arguments. It has that method from the start: which keys a class carries is
looked up once. Whoever does not know what to do returns NotImplemented.

Stacks belong to threads, and so to interpreters: nothing is inherited. See _python_key.py for what
happens at the keys. (PyTorch: TorchDispatchMode, torch/utils/_python_dispatch.py)
"""

from __future__ import annotations

from _operator import attrgetter
from _thread import _local

from .errors import InvalidArgumentError, ModeStackError
from .guards import ExcludeDispatchKeyGuard, IncludeDispatchKeyGuard, _Guard, excluded_keys
from .keys import DispatchKey, DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Protocol, TypeVar

    from ._hermetic import SafeObject
    from .operators import OpOverload

    M = TypeVar("M", bound="DispatchMode")
    Sets = tuple[DispatchKeySet, DispatchKeySet]
    Slot = str | None

    class Placed(Protocol):
        """What stands on a stack, of modes or of transforms."""

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

#: The order of a stack, lowest first; those of one rank stay as they were pushed.
by_rank = attrgetter("rank")


class DispatchMode:
    """Base of modes. As a context manager it is on this thread's stack while the block runs.

    (PyTorch: TorchDispatchMode)
    """

    #: The kind of an infrastructure mode, one of DispatchModeKey; None for all others.
    mode_key: str | None = None
    #: What tells a mode from a value that answers calls by its type.
    is_mode = True
    #: Whether calls of higher-order operators that have no rule for it come to its handler too.
    supports_higher_order_operators: bool = False

    def __md_dispatch__(
        self, op: OpOverload, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Called in place of the kernel, with every argument of the schema; its result is the
        call's. NotImplemented leaves the call to the arguments' types.

        ``types`` are those of the arguments that have ``__md_dispatch__`` themselves.
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
        """Takes the mode off, wherever it is in the stack by now: its newest place, if there are
        several.
        """
        entries = local.stack.entries
        for entry in entries[::-1]:
            if entry.mode is self:
                # Not by a function of its own: a signal handler may raise where that begins.
                try:
                    take_off(entries, entry)
                except BaseException:  # of a signal handler, perhaps before anything was done
                    take_off(entries, entry)
                    raise
                return
        raise ModeStackError(
            f"{type(self).__qualname__} is not on this thread's stack of modes: a with block ends "
            "in the thread it began in, and pop_mode() must not have taken the mode off before"
        )


class Entry:
    """One place on the stack: a mode, and the guard that turns calls to it."""

    __slots__ = ("guard", "mode", "rank", "slot")

    def __init__(self, mode: DispatchMode | SafeObject, slot: Slot, guard: _Guard) -> None:
        self.mode = mode
        self.slot = slot
        self.rank = len(_SLOTS) if slot is None else _SLOTS.index(slot)
        self.guard = guard


def put_on(entries: list[P], entry: P) -> None:
    """In its place by rank. What interrupts that (a signal handler, the end of Python's own stack)
    leaves nothing behind: the block is not entered then, nor left.
    """
    try:
        entry.guard.__enter__()
        entries.append(entry)
        entries.sort(key=by_rank)
    except BaseException:
        take_off(entries, entry)
        raise


def take_off(entries: list[P], entry: P) -> None:
    """Idempotent. The entry goes first: a guard ends at the latest when nobody holds it."""
    if entry in entries:
        entries.remove(entry)
    if entry.guard.is_open:
        entry.guard.__exit__()


class ModeStack:
    """The modes of one thread. Only that thread uses it.

    ``entries`` are in the order of the stack, lowest first. ``on_entry`` are the included and
    excluded sets with which the outermost call that is under way was made, while calls go on below
    the key PythonTLSSnapshot; ``handled`` are those of the call that the innermost handler serves.
    """

    __slots__ = ("entries", "handled", "on_entry", "pre_dispatch")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.pre_dispatch: list[Entry] = []
        self.on_entry: Sets | None = None
        self.handled: Sets | None = None

    def push(self, mode: DispatchMode | SafeObject, slot: Slot) -> None:
        if slot is not None and any(entry.slot == slot for entry in self.entries):
            raise ModeStackError(
                f"a mode of kind {slot} is on the stack already, and there is one of a kind: "
                "take it off first"
            )
        put_on(self.entries, Entry(mode, slot, IncludeDispatchKeyGuard(PYTHON)))


class _Local(_local):
    def __init__(self) -> None:
        self.stack = ModeStack()  # once for each thread


#: ``local.stack`` is this thread's.
local = _Local()


def _checked(mode: Any, what: str) -> tuple[Any, Slot]:
    """The mode, and its kind."""
    if isinstance(mode, DispatchMode):
        slot = mode.mode_key
        if slot is not None and slot not in _SLOTS:
            from ._nearest import shown

            raise InvalidArgumentError(
                f"{type(mode).__qualname__}.mode_key is {shown(slot)}: it is one of "
                f"{', '.join(_SLOTS)}, or None"
            )
        return mode, slot
    from ._hermetic import SafeObject

    if isinstance(mode, SafeObject):
        return _checked(mode.open(), what) if mode.is_home else (mode, None)
    raise InvalidArgumentError(f"{what} takes a DispatchMode, not a {type(mode).__qualname__}")


def push_mode(mode: DispatchMode | SafeObject) -> None:
    """Puts a mode on this thread's stack; infrastructure modes below all others, in their order.

    A SafeObject stands for the mode in it. If that is not at home here, every call that would come
    to it is refused with ForeignObjectError.

    Raises InvalidArgumentError, ModeStackError for a second infrastructure mode of a kind.
    (PyTorch: _push_mode)
    """
    local.stack.push(*_checked(mode, "push_mode"))


def pop_mode(kind: str | None = None) -> DispatchMode | SafeObject:
    """Takes the innermost mode off this thread's stack, or the infrastructure mode of a ``kind``.

    Raises ModeStackError when there is none. (PyTorch: _pop_mode)
    """
    entries = local.stack.entries
    found = [entry for entry in entries if kind is None or entry.slot == kind]
    if not found:
        from ._nearest import shown

        which = "" if kind is None else f" of kind {shown(kind)}"
        raise ModeStackError(f"this thread has no mode{which} on its stack")
    take_off(entries, found[-1])
    return found[-1].mode


def mode_stack() -> tuple[DispatchMode | SafeObject, ...]:
    """This thread's modes, the lowest first. (PyTorch: _get_current_dispatch_mode_stack)"""
    return tuple(entry.mode for entry in local.stack.entries)


def current_mode() -> DispatchMode | SafeObject | None:
    """The innermost mode of this thread, the one that is asked first; None without one.

    (PyTorch: _get_current_dispatch_mode)
    """
    entries = local.stack.entries
    return entries[-1].mode if entries else None


def disable_md_dispatch() -> ExcludeDispatchKeyGuard:
    """A guard: while it is open, neither modes nor types are asked in this thread.

    (PyTorch: _DisableTorchDispatch)
    """
    return ExcludeDispatchKeyGuard(PYTHON)


def is_md_dispatch_enabled() -> bool:
    """Whether a call of this thread would come to a mode: there is one, and the key Python is not
    excluded.

    (PyTorch: dispatch_mode_enabled)
    """
    return bool(local.stack.entries) and not excluded_keys().has("Python")


# --- the snapshot ---------------------------------------------------------------------------------


def keys_on_entry() -> tuple[DispatchKeySet, DispatchKeySet] | None:
    """In a handler: the included and excluded sets with which the call was made that it serves,
    before kernels on the way opened guards of their own. If a kernel made that call: those of the
    outermost one, which led to the kernel. None elsewhere.

    (PyTorch: PythonTLSSnapshot, tls_on_entry)
    """
    return local.stack.handled


def restore_keys_on_entry() -> _Guard:
    """A guard for handlers: while it is open, this thread's sets are :func:`keys_on_entry`, so that
    a call goes through everything again, from the top. Whether modes are asked stays as it is: the
    mode whose handler runs is not.

    Raises ModeStackError outside of a handler. (PyTorch: RestorePythonTLSSnapshot)
    """
    sets = local.stack.handled
    if sets is None:
        raise ModeStackError(
            "there are no keys to restore: no handler of a mode or a type runs in this thread"
        )
    included, excluded = sets
    return _Guard((PYTHON.raw, included.raw & ~PYTHON.raw), (0, excluded.raw))


# --- the stack before dispatch --------------------------------------------------------------------


def push_pre_dispatch_mode(mode: DispatchMode) -> None:
    """Puts a mode where it sees calls before everything else, at the key PreDispatch: one of kind
    PROXY, one of kind FUNCTIONAL, or a single one without a kind, alone.

    Raises InvalidArgumentError, ModeStackError. (PyTorch: _set_mode_pre_dispatch)
    """
    mode, slot = _checked(mode, "push_pre_dispatch_mode")
    entries = local.stack.pre_dispatch
    if slot not in (*_PRE_DISPATCH_SLOTS, None):
        raise InvalidArgumentError(
            f"a mode of kind {slot} cannot come before dispatch: it is PROXY, FUNCTIONAL, or one "
            "without a kind"
        )
    if any(entry.slot == slot or None in (entry.slot, slot) for entry in entries):
        raise ModeStackError(
            f"there is {'a mode' if slot is None else 'such a mode, or one without a kind,'} "
            "before dispatch already: take it off first, with pop_pre_dispatch_mode()"
        )
    put_on(entries, Entry(mode, slot, IncludeDispatchKeyGuard(DispatchKey.PreDispatch)))


def pop_pre_dispatch_mode() -> DispatchMode | SafeObject:
    """Takes off the mode before dispatch that is asked first. ModeStackError when there is none.

    (PyTorch: _pop_mode_from_pre_dispatch)
    """
    entries = local.stack.pre_dispatch
    if not entries:
        raise ModeStackError("this thread has no mode before dispatch")
    entry = entries[-1]
    take_off(entries, entry)
    return entry.mode


def pre_dispatch_modes() -> tuple[DispatchMode | SafeObject, ...]:
    """The modes before dispatch of this thread; the last one is asked first.

    (PyTorch: ModeStackStateForPreDispatch)
    """
    return tuple(entry.mode for entry in local.stack.pre_dispatch)
