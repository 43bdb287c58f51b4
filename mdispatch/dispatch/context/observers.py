"""Observers are told of each kernel that runs. The trace is one of them.

The call path looks at ``observing.now`` and does nothing more if that is empty: without observers
they cost nothing.

Calls of operators that an observer makes itself are not observed. If an observer raises an
exception, the call goes on. The first failure of each kind goes to ``sys.unraisablehook``; the
others are only counted, for there are as many of them as calls. An observer that does nothing but
fail is left out.

Calls in C tell observers themselves (native/bind/call/observers.c), as :func:`observe` does it, and
leave to this file what happens when an observer or a kernel raises. The number of a call comes from
C, and so do the thread's depth and whether it runs an observer: calls of both ways share them.

Locking: ``_lock`` is held while observers are added and removed, and while a failure is counted. It
is reentrant, because a signal handler may do the same in between. A call uses the observers that
are there when it begins. Each of them that heard of its beginning hears of its end. A call that
goes well reads ``is_failing`` without the lock. If it misses the failure of another thread, then
the two calls were at the same time, and either may count as the later one.

(PyTorch: RecordFunction, Dispatcher::runRecordFunction; TORCH_SHOW_DISPATCH_TRACE)
"""

from __future__ import annotations

import os
import sys
from time import perf_counter_ns

from ...errors import InvalidArgumentError
from ...errors.unraisable import report
from ...facts import Handle
from ...facts.native import calls
from ...facts.native.calls import local
from ...forking import in_child, new_lock
from ...keys import DispatchKeySet
from ...keys.numbers import RUNTIME_KEYS, DispatchKey, highest_index

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

    from ..table import TableEntry

__all__ = [
    "FELL_BACK",
    "ObservedCall",
    "ObserverHandle",
    "failed",
    "label_of",
    "observe",
    "observe_calls",
]
__all__ += ["observing", "provider_of", "raise_told", "succeeded"]

#: If it is set to anything but "" and "0", every dispatch of the process prints a line.
TRACE_VARIABLE = "MDISPATCH_SHOW_DISPATCH_TRACE"

#: The reason of a provider that runs since the predicates of those before it have refused.
FELL_BACK = "provider: those before it refused"

#: After so many failures in a row an observer is left out.
_IN_A_ROW = 100
#: Of so many kinds the first failure of an observer is reported. A class or a line that is new in
#: each call makes each failure another kind.
_KINDS = 16


class ObservedCall:
    """One run of a kernel, as observers see it. (PyTorch: RecordFunction)

    ``operator`` is the operator's name. ``how`` says how it was called: "call", "redispatch",
    "call_boxed", "redispatch_boxed" or "call_for_dispatch_key"; and "provider" where a call asked
    the predicates of providers, and this one runs, within the call. ``provider`` is the name of the
    kernel's provider, "" if it has none or it is not decided yet. ``key_set`` is the set that the
    call dispatched on, ``key`` its highest key, ``kernel`` the kernel's label and ``reason`` the
    rule that chose the kernel; where ``how`` is "provider" it says whether others have refused
    before. ``sequence_number`` counts the observed calls of this interpreter. ``depth`` is how many
    observed calls of this thread this one is inside of. ``arguments`` and ``keywords`` are those of
    the kernel, for observers that asked for them, else None.

    After the call there are ``duration_ns``, and ``error``, the exception that ended the call, or
    None.
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
        "provider",
        "reason",
        "sequence_number",
    )

    def __init__(
        self, operator: str, how: str, key: DispatchKey, raw: int, slot: TableEntry, number: int
    ) -> None:
        self.operator = operator
        self.how = how
        self.key = key
        self.key_set = DispatchKeySet.from_raw(raw)
        self.kernel = label_of(slot)
        self.provider = provider_of(slot)
        self.reason = slot.reason
        self.sequence_number = number
        self.depth = 0
        self.arguments: tuple[Any, ...] | None = None
        self.keywords: dict[str, Any] | None = None
        self.duration_ns = 0
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<{self.how} of {self.operator} at {self.key.name}, number {self.sequence_number}>"


def label_of(slot: TableEntry) -> str:
    """The label of the kernel in an entry of a table."""
    return getattr(slot.kernel, "label", "") or "(none here)"


def provider_of(slot: TableEntry) -> str:
    """The name of the provider of the kernel in an entry of a table, "" without one."""
    return getattr(slot.kernel, "provider_name", "")


class _Failures:
    """Those of one function of an observer, under ``_lock``: how many since it last went well, and
    the kinds that were reported, each a class and the location that raised.
    """

    __slots__ = ("in_a_row", "kinds")

    def __init__(self) -> None:
        self.in_a_row = 0
        self.kinds: set[tuple[type, str]] = set()


class ObserverHandle(Handle):
    """An observer that is told of calls, until ``close()`` or the end of a ``with`` block.

    ``failures`` counts how often it has raised an exception. Of each kind (class, and line that
    raised) only the first was reported.
    """

    __slots__ = ("_of_function", "after", "before", "failures", "is_failing", "with_arguments")

    def __init__(
        self,
        before: Callable[[ObservedCall], object] | None,
        after: Callable[[ObservedCall], object] | None,
        with_arguments: bool,
    ) -> None:
        self.before = before
        self.after = after
        self.with_arguments = with_arguments
        self.failures = 0
        #: Whether the last run of one of its functions has failed.
        self.is_failing = False
        self._of_function = (_Failures(), _Failures())  # of before, of after

    def close(self) -> None:
        """The observer is not told of calls that begin from now on. Idempotent."""
        while True:
            if self._left():
                break

    def _left(self) -> bool:
        """Leaves the observer out, unless a signal handler of this thread comes in between."""
        with _lock:
            before = observing.now
            left = tuple(other for other in before if other is not self)
            if observing.now is not before:
                return False
            observing.now = left
            observing.when_changed()
            return True

    def _went_well(self, is_after: bool) -> None:
        with _lock:
            self._of_function[is_after].in_a_row = 0
            self.is_failing = any(each.in_a_row for each in self._of_function)

    def _has_failed(self, is_after: bool, kind: tuple[type, str]) -> str | None:
        """Counts a failure, and leaves the observer out if it was one too many. Returns the words
        with which to report it; None where it is only counted.
        """
        with _lock:
            self.failures += 1
            self.is_failing = True
            its = self._of_function[is_after]
            its.in_a_row += 1
            if its.in_a_row == _IN_A_ROW and self in observing.now:
                self.close()
                return (
                    f"An observer of operators is left out, for it has raised {_IN_A_ROW} times in "
                    f"a row ({self.failures} in all): mend it, and observe again (observe_calls, "
                    "or what has called that)"
                )
            if kind in its.kinds or len(its.kinds) == _KINDS:
                return None
            its.kinds.add(kind)
        return "Exception ignored in what observes operators (from now on this one is only counted)"


class _Observing:
    __slots__ = ("now", "when_changed")

    def __init__(self) -> None:
        #: Called after ``now`` has changed, so that calls in C take notice.
        self.when_changed: Callable[[], object] = int
        self.now: tuple[ObserverHandle, ...] = ()


_lock = new_lock()
observing = _Observing()


@in_child
def _renew() -> None:
    observing.when_changed()  # another thread may have changed ``now`` and not called this


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

    Both get an :class:`ObservedCall`, the same object before and after. If there are several
    observers, the first is told first before the kernel, and last after it. With ``with_arguments``
    the ObservedCall has the kernel's arguments. Without observers calls cost nothing more.

    An exception that an observer raises ends no call. The first of each kind (its class, and the
    line that raised it) goes to ``sys.unraisablehook``, for the first 16 kinds; all are counted in
    the handle's ``failures``. After 100 calls in a row in which ``before``, or ``after``, has
    raised, the observer is left out, as if its handle were closed. The hook is told that once.
    Mend the observer, and call this function again.

    InvalidArgumentError if neither function is given, or one cannot be called. (PyTorch:
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
    slot: TableEntry,
    positional: tuple[Any, ...],
    keywords: dict[str, Any],
    run: Callable[[], Any],
) -> Any:
    """Runs a kernel, and tells the observers before and after."""
    thread = local.stack
    if thread.is_observer:
        return run()
    key = RUNTIME_KEYS[highest_index(raw)]
    call = ObservedCall(operator, how, key, raw, slot, calls.number())
    call.depth = thread.depth
    if any(observer.with_arguments for observer in observers):
        call.arguments, call.keywords = positional, dict(keywords)
    told: list[ObserverHandle] = []
    try:
        for observer in observers:
            told.append(observer)
            _tell(observer, False, call)
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
        # Otherwise the cycle of call, error, traceback and this frame would keep the arguments
        # alive until the collector finds it.
        del call


def _tell_end(told: list[ObserverHandle], call: ObservedCall) -> None:
    """Tells the last one first. A KeyboardInterrupt and the like go on when all were told."""
    if told:
        try:
            _tell(told.pop(), True, call)
        finally:
            _tell_end(told, call)


def _tell(observer: ObserverHandle, is_after: bool, call: ObservedCall) -> None:
    function = observer.after if is_after else observer.before
    if function is None:
        return
    thread = local.stack
    thread.is_observer = True
    try:
        function(call)
        if observer.is_failing:
            succeeded(observer, is_after)
    except Exception as error:
        _report(observer, is_after, error)
    finally:
        thread.is_observer = False


def _report(observer: ObserverHandle, is_after: bool, error: Exception) -> None:
    """Counts a failure, and reports it where that is due."""
    words = observer._has_failed(is_after, (type(error), _location(error)))
    if words is not None:
        report(error, words, observer.after if is_after else observer.before)


def _location(error: Exception) -> str:
    """The line that raised it; "" for code without lines."""
    # The first frame is that of this file, which called the observer or raises the error again.
    traceback = error.__traceback__ and error.__traceback__.tb_next
    location = ""
    while traceback is not None:
        location = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return location


# --- for calls in C -------------------------------------------------------------------------------


def failed(observer: ObserverHandle, is_after: bool, error: BaseException) -> None:
    """What ``_tell`` does when an observer has raised."""
    try:
        raise error
    except Exception as caught:
        _report(observer, is_after, caught)


def succeeded(observer: ObserverHandle, is_after: bool) -> None:
    """What ``_tell`` does when an observer that is failing has not raised."""
    observer._went_well(is_after)


def raise_told(
    told: Sequence[ObserverHandle], call: ObservedCall, error: BaseException
) -> NoReturn:
    """Raises what ended the call, as it is, when those who are to hear of the end have heard."""
    traceback = error.__traceback__
    try:
        raise error
    finally:
        _tell_end(list(told), call)
        error.__traceback__ = traceback  # without this frame, which would be a cycle, too


def print_trace(call: ObservedCall) -> None:
    """One line to standard error, indented by how deep the call is nested."""
    indent = " " * call.depth
    line = f"{indent}[{call.how}] op=[{call.operator}], key=[{call.key}], kernel=[{call.kernel}]\n"
    sys.stderr.write(line)


if os.environ.get(TRACE_VARIABLE, "") not in ("", "0"):
    observe_calls(before=print_trace)
