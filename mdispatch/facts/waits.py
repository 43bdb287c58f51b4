"""Waits: their deadlines, their course, and those under way in this interpreter, so that its end
finds none of them asleep.

The end of an interpreter joins its threads before it runs ``atexit``, which would come too late to
wake them. If there are threads, ``threading`` is loaded, and it alone offers a hook that runs
before that join (private, but concurrent.futures uses it too).

No wait slips through. It is counted under the lock, or refused because the end has begun. The end
cancels the waits that are counted again and again, since some may not sleep yet, until all have
ended. A wait ends in one step and without the lock: nobody but the end looks for that, and the end
looks again and again. If the end has begun before the first wait, the hook will not be called; so
that wait, still under the lock, notes the end for all others. (The lock is reentrant: a signal
handler may wait.)

Nor does one stay behind. Who waits makes the wait's token before the ``try`` in which it begins,
and its ``finally`` ends it in one step, also if a signal handler has raised before it was counted:
see Note [Handlers that raise] in native/bind/call/surely.c. The end looks so often and no more; a
thread that is still asleep after that is one that nothing wakes.
"""

from __future__ import annotations

import sys
from time import sleep

from .. import errors
from ..forking import new_lock
from .native import fact, native
from .native.constants import MD_FOREVER
from .registration import field_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SHUTTING_DOWN = "this interpreter is shutting down: no wait can begin"


#: How often the end looks for waits, a millisecond or more between two looks.
_LOOKS = 10_000

#: A longer timeout (about 31 years) counts as none: the wait has no end.
_LONGEST = 1e9


def check_timeout(timeout: float | None) -> float | None:
    """Returns the timeout: seconds, 0 or more, or None to wait without end. Raises
    InvalidArgumentError for anything else.
    """
    if timeout is None:
        return None
    if type(timeout) is float and 0.0 <= timeout <= _LONGEST:
        return timeout
    if (
        isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout >= 0
    ):  # NaN is not
        return timeout if timeout <= _LONGEST else None
    from ..errors.words import shown

    raise errors.InvalidArgumentError(
        f"timeout={shown(timeout)}: give a number of seconds, 0 or more, or None to wait "
        "without end"
    )


def deadline_after(timeout: float | None) -> int:
    """The absolute deadline, in ns, of a wait for ``timeout`` seconds from now; with None the wait
    has no end. Raises as :func:`check_timeout`.
    """
    timeout = check_timeout(timeout)
    return MD_FOREVER if timeout is None else native.now() + int(timeout * 1e9)


class Waited(tuple[int, ...]):
    """The course of a wait: ns asleep, times asleep, and what ended the sleeps. A value."""

    # A tuple, as the bindings have it: a waiter that wakes has to make it before it goes on.
    __slots__ = ()

    def __new__(
        cls, slept_ns: int = 0, sleeps: int = 0, wakes: int = 0, slices: int = 0, by_lease: int = 0
    ) -> Waited:
        made: Waited = fact(cls, (slept_ns, sleeps, wakes, slices, by_lease))
        return made

    sleeps: int = field_of(1)
    wakes: int = field_of(2)
    slices: int = field_of(3)
    by_lease: int = field_of(4)

    @property
    def seconds(self) -> float:
        """Seconds asleep."""
        return self[0] / 1e9

    def __repr__(self) -> str:
        return (
            f"Waited(seconds={self.seconds:.6f}, sleeps={self.sleeps}, wakes={self.wakes}, "
            f"slices={self.slices}, by_lease={self.by_lease})"
        )


class Waits:
    """Counts the waits; ``cancel_all`` wakes those that sleep."""

    def __init__(self, cancel_all: Callable[[], None]) -> None:
        self._cancel_all = cancel_all
        self._lock = new_lock()
        #: The tokens of the waits under way. ``discard`` ends a wait; a wait in which a signal
        #: handler forks ends in the parent's set.
        self.under_way: set[object] = set()
        self._hooked = False
        self._ending = False

    def begin(self, token: object) -> None:
        """Counts a wait, until its token is discarded from ``under_way``. WaitCancelledError."""
        with self._lock:
            if not self._hooked:
                self._hook()
            if self._ending:
                raise errors.WaitCancelledError(_SHUTTING_DOWN)
            self.under_way.add(token)

    def _hook(self) -> None:
        threading: Any = sys.modules.get("threading")
        register = getattr(threading, "_register_atexit", None)
        if register is None:  # nobody has loaded it, or another thread is at it
            return
        try:
            register(self._end_all)
            self._hooked = True
        except RuntimeError:
            self._ending = True
        # The end may have begun while the hook was added, and not have seen it.
        self._ending = self._ending or threading._SHUTTING_DOWN

    def _end_all(self) -> None:
        with self._lock:
            self._ending = True
        for _ in range(_LOOKS):
            if not self.under_way:
                break
            self._cancel_all()
            sleep(0.001)

    def forked(self) -> None:
        """In the child of a fork, which lacks the other threads and their waits."""
        self.under_way = set()
