"""Listeners for everywhere: a thread sleeps until something in the registry changes, and tells the
difference.

Each look takes the registry's sequence first and lists the registrations afterwards. It leaves out
registrations with a later number: the list may have some of them and lack others. The next look
follows at once then, and has them all. So definitions are told in the order of their numbers,
within a look and from one look to the next.

The thread is no daemon: interpreters with a GIL of their own allow none. The end of its interpreter
ends its wait like all others (facts/waits.py).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from _thread import get_ident

from ..errors import RegistryError, WaitCancelledError
from ..forking import new_lock
from .registration import DEF

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .abc import Facts, Told
    from .registration import Registration

# Far from those of registry/waiting_async.py: the two kinds of waits do not know of each other.
_tickets = itertools.count(1 << 62)


class Watch:
    """Looks at the registry for one handle, in a thread of its own."""

    def __init__(self, registry: Facts, handle: Told) -> None:
        self._registry = registry
        self._handle = handle
        self._told: dict[int, Registration] = {}  # by number, in their order
        self._seq = 0  # the next wait ends when the sequence differs from it
        self._seen = 0  # registrations with this number and later ones were not told yet
        self._ticket = next(_tickets)
        self._ended = False
        self._waiting = False  # the thread is in a wait, or just before it
        self._calling = False  # the thread is in a call of the listener
        # Guards these three. Reentrant: garbage collection may close the handle while it is held.
        self._lock = new_lock()
        self._thread = threading.Thread(
            target=self._run, name="mdispatch listener for everywhere", daemon=False
        )

    def begin(self) -> None:
        """Takes the first look in the caller's thread, then starts the thread."""
        self._seq, _ = self._registry.await_change(0, 0)
        self._look(self._seq)
        if not self._handle.closed:
            self._thread.start()

    def end(self) -> None:
        """Ends the thread, before this returns or after the call of the listener under way."""
        with self._lock:
            self._ended = True
            calling = self._calling
        if self._thread.ident in (None, get_ident()):
            return  # the thread sees it when it waits next
        while self._waiting:
            self._registry.cancel(self._ticket)  # again, until it caught the sleep
            time.sleep(0.001)
        # Python 3.11 ends no interpreter whose threads have not ended, so join the thread. But do
        # not wait for a listener, nor for anything that a finalizer in that thread may wait for.
        if not calling and not self._handle.is_locked:
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            while True:
                if not self._wait():
                    break
                self._look(self._seq)
        except WaitCancelledError:
            pass
        except RegistryError as error:
            self._tell_gone(error)
        finally:
            self._handle.close()

    def _wait(self) -> bool:
        """Waits for the next change; False when the watch has ended."""
        with self._lock:
            if self._ended:
                return False
            self._waiting = True
        try:
            self._seq, _ = self._registry.await_change(self._seq, None, self._ticket)
        finally:
            self._waiting = False
        return True

    def _look(self, seq: int) -> None:
        """Tells the difference to the last look, up to the sequence ``seq``."""
        live, there = self._registry.registrations_since(DEF, self._seen)
        ended: list[Registration] = []
        if live != len(self._told) + len(there):
            _, there = self._registry.registrations_since(DEF, 0)
            now = {fact.seq for fact in there}
            ended = [fact for fact in self._told.values() if fact.seq not in now]
        begun = [fact for fact in there if self._seen <= fact.seq < seq]
        begun.sort(key=lambda fact: fact.seq)
        self._seen = seq
        for fact in ended:
            del self._told[fact.seq]
        self._told.update((fact.seq, fact) for fact in begun)
        for fact in ended:
            self._call(self._handle.tell, False, fact)
        for fact in begun:
            self._call(self._handle.tell, True, fact)

    def _tell_gone(self, error: RegistryError) -> None:
        """Takes a last look, since a main interpreter that died may have committed registrations
        after the one before. Then tells the listener that the registry is gone.
        """
        with contextlib.suppress(RegistryError):  # the registry cannot be read any more
            self._look(1 << 64)
        self._call(self._handle.tell_gone, error)

    def _call(self, tell: Callable[..., None], *told: object) -> None:
        with self._lock:
            if self._ended:
                return
            self._calling = True
        try:
            tell(*told)
        finally:
            self._calling = False
