"""The waits under way in this interpreter, so that its end finds none of them asleep.

Threads are joined before ``atexit`` runs, which would come too late to wake them. Where there
are threads ``threading`` is loaded, and it alone offers a hook that runs before that join
(private, but the one that concurrent.futures uses).

No wait slips through: it is counted under the lock, or refused because the end has begun; and
the end goes on telling those that are counted, some of whom may not sleep yet, until all went.
Where the end has begun before the first wait, nobody will call the hook: so it is that wait, still
under the lock, that notes the end for all others. (The lock can be taken again by its thread: a
signal's handler may come to wait.)
"""

from __future__ import annotations

import sys
from _thread import RLock
from time import sleep

from ..errors import WaitCancelledError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Waits"]

_SHUTTING_DOWN = "this interpreter is shutting down: no wait can begin"


class Waits:
    """Counts them; ``cancel_all`` is how those that sleep are told."""

    def __init__(self, cancel_all: Callable[[], None]) -> None:
        self._cancel_all = cancel_all
        self._lock = RLock()
        self._count = 0
        self._hooked = False
        self._ending = False

    def begin(self) -> None:
        with self._lock:
            if not self._hooked:
                self._hook()
            if self._ending:
                raise WaitCancelledError(_SHUTTING_DOWN)
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count -= 1

    def _hook(self) -> None:
        threading = sys.modules.get("threading")
        if threading is None:
            return
        try:
            threading._register_atexit(self._end_all)
            self._hooked = True
        except RuntimeError:
            self._ending = True
        # It may have begun while the hook was added, and not have found it.
        self._ending = self._ending or threading._SHUTTING_DOWN

    def _end_all(self) -> None:
        with self._lock:
            self._ending = True
        while self._count:
            self._cancel_all()
            sleep(0.001)

    def forked(self) -> None:
        """In the child of a fork: the other threads' waits did not come along."""
        self._lock = RLock()
        self._count = 0
