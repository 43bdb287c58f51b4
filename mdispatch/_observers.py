"""Who looks on while operators run: observers, and the trace, which is one of them.

The call path asks ``observing.now``, and goes on by itself when that is empty: nobody pays for
observers that are not there.

An observer's own calls of operators are not observed. One that raises harms nobody: what it raised
goes to ``sys.unraisablehook``, and the call goes on.

Locking: ``_lock`` is held while observers come and go, and while a number is drawn; a signal
handler may do the same in between. A call takes the observers that are there when it begins, and
tells all that heard of its beginning of its end.

(PyTorch: RecordFunction, Dispatcher::runRecordFunction; TORCH_SHOW_DISPATCH_TRACE)
"""

from __future__ import annotations

import os
import sys
from _thread import RLock, _local
from time import perf_counter_ns

from ._keys import RUNTIME_KEYS, DispatchKey, highest_index
from ._unraisable import report
from .errors import InvalidArgumentError
from .keys import DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from ._table import Entry

__all__ = ["ObservedCall", "ObserverHandle", "observe", "observe_calls", "observing"]

#: Set to anything but "" and "0", it makes every dispatch of the process print a line.
TRACE_VARIABLE = "MDISPATCH_SHOW_DISPATCH_TRACE"


class ObservedCall:
    """One run of a kernel, as observers see it. (PyTorch: RecordFunction)

    ``operator`` is the name, ``how`` the way it was reached ("call", "redispatch", "call_boxed",
    "redispatch_boxed", "call_for_dispatch_key"), ``key_set`` what was dispatched on and ``key`` its
    highest key, ``kernel`` the kernel's label and ``reason`` the rule that chose it.
    ``sequence_number`` counts the observed calls of this interpreter, ``depth`` those that this one
    runs inside of, in this thread. ``arguments`` and ``keywords`` are what the kernel gets, for
    observers that asked for them, else None.

    Afterwards: ``duration_ns``, and ``error``, the exception that ended it, or None.
    """

    __slots__ = (
        "arguments",
        "depth",
        "duration_ns",
        "error",
        "how",
        "kernel",
        "key",
        "key_set",
        "keywords",
        "operator",
        "reason",
        "sequence_number",
    )

    def __init__(
        self, operator: str, how: str, key: DispatchKey, raw: int, slot: Entry, number: int
    ) -> None:
        self.operator = operator
        self.how = how
        self.key = key
        self.key_set = DispatchKeySet.from_raw(raw)
        self.kernel: str = getattr(slot.kernel, "label", "") or "(none here)"
        self.reason = slot.reason
        self.sequence_number = number
        self.depth = 0
        self.arguments: tuple[Any, ...] | None = None
        self.keywords: dict[str, Any] | None = None
        self.duration_ns = 0
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<{self.how} of {self.operator} at {self.key.name}, number {self.sequence_number}>"


class ObserverHandle:
    """An observer that is looking on. ``close`` ends that; so does the end of a ``with`` block."""

    __slots__ = ("after", "before", "with_arguments")

    def __init__(
        self,
        before: Callable[[ObservedCall], object] | None,
        after: Callable[[ObservedCall], object] | None,
        with_arguments: bool,
    ) -> None:
        self.before = before
        self.after = after
        self.with_arguments = with_arguments

    def close(self) -> None:
        """The calls that begin from now on go unseen. Idempotent."""
        with _lock:
            observing.now = tuple(other for other in observing.now if other is not self)
            observing.when_changed()

    def __enter__(self) -> ObserverHandle:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Observing:
    __slots__ = ("next_number", "now", "when_changed")

    def __init__(self) -> None:
        #: Whoever keeps what calls need looks at ``now`` again.
        self.when_changed: Callable[[], object] = int
        self.now: tuple[ObserverHandle, ...] = ()
        self.next_number = 1


class _Thread(_local):
    """Where a thread is: how deep in observed calls, and whether in an observer."""

    depth = 0
    is_observer = False


_lock = RLock()
_thread = _Thread()
observing = _Observing()


def _after_fork() -> None:
    """Another thread, which the child does not have, may have held the lock."""
    global _lock
    _lock = RLock()


os.register_at_fork(after_in_child=_after_fork)


def observe_calls(
    before: Callable[[ObservedCall], object] | None = None,
    after: Callable[[ObservedCall], object] | None = None,
    *,
    with_arguments: bool = False,
) -> ObserverHandle:
    """Calls ``before`` and ``after`` around every kernel that operators run in this interpreter,
    until the handle is closed::

        with mdispatch.observe_calls(after=lambda call: print(call.operator, call.duration_ns)):
            ...

    Each gets an :class:`ObservedCall`, the same object before and after. Of several observers the
    first one is told first before, and last after. ``with_arguments`` keeps the kernel's arguments
    in it. What an observer raises goes to ``sys.unraisablehook``. Without observers calls cost what
    they cost.

    InvalidArgumentError when neither function is given, or one cannot be called. (PyTorch:
    RecordFunction)
    """
    given = [each for each in (before, after) if each is not None]
    if not given or not all(map(callable, given)):
        raise InvalidArgumentError("give a function to call before, or one to call after, or both")
    handle = ObserverHandle(before, after, with_arguments)
    with _lock:
        observing.now = (*observing.now, handle)
        observing.when_changed()
    return handle


def observe(
    observers: tuple[ObserverHandle, ...],
    operator: str,
    how: str,
    raw: int,
    slot: Entry,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
    run: Callable[[], Any],
) -> Any:
    """Runs a kernel under the eyes of the observers."""
    thread = _thread
    if thread.is_observer:
        return run()
    with _lock:
        number = observing.next_number
        observing.next_number += 1
    call = ObservedCall(operator, how, RUNTIME_KEYS[highest_index(raw)], raw, slot, number)
    call.depth = thread.depth
    if any(observer.with_arguments for observer in observers):
        call.arguments, call.keywords = positional, keywords
    told: list[ObserverHandle] = []
    try:
        for observer in observers:
            told.append(observer)
            _tell(observer.before, call)
        thread.depth += 1
        began = perf_counter_ns()
        try:
            return run()
        finally:
            call.duration_ns = perf_counter_ns() - began
            thread.depth -= 1
    except BaseException as error:
        call.error = error
        raise
    finally:
        _tell_end(told, call)
        # The error's traceback has this frame: no cycle, or arguments would live on until it is
        # found.
        del call


def _tell_end(told: list[ObserverHandle], call: ObservedCall) -> None:
    """The last one first; what is no Exception goes on when all have heard."""
    if told:
        try:
            _tell(told.pop().after, call)
        finally:
            _tell_end(told, call)


def _tell(function: Callable[[ObservedCall], object] | None, call: ObservedCall) -> None:
    if function is None:
        return
    _thread.is_observer = True
    try:
        function(call)
    except Exception as error:
        report(error, "Exception ignored in what observes operators", function)
    finally:
        _thread.is_observer = False


def print_trace(call: ObservedCall) -> None:
    """One line to standard error, indented by how deep the call is nested."""
    indent = " " * call.depth
    line = f"{indent}[{call.how}] op=[{call.operator}], key=[{call.key}], kernel=[{call.kernel}]\n"
    sys.stderr.write(line)


if os.environ.get(TRACE_VARIABLE, "") not in ("", "0"):
    observe_calls(before=print_trace)
