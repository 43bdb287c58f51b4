"""Listeners for everywhere: a thread that sleeps until something in the registry changes, and tells
the difference.

Each look takes the registry's sequence first and the facts after it, and leaves out the facts that
have a later number: of these the list may have some and not others, and the next look, which
follows at once then, has them all. So definitions are told in the order of their numbers, within
a look and from one look to the next.

The thread is no daemon: interpreters with a GIL of their own allow none. The end of its interpreter
ends its wait like all others (_registry/waits.py).
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from _thread import RLock, get_ident

from . import _registry as facts
from .errors import RegistryError, WaitCancelledError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._listeners import ListenerHandle
    from ._registry import Registration, RegistryProtocol

__all__ = ["Watch"]

# Far from those of aio.py: the two kinds of waits do not know of each other.
_tickets = itertools.count(1 << 62)


class Watch:
    """The looks of one handle, and the thread that takes them."""

    def __init__(self, registry: RegistryProtocol, handle: ListenerHandle) -> None:
        self._registry = registry
        self._handle = handle
        self._told: dict[int, Registration] = {}  # by number, in their order
        self._seq = 0  # to be waited beyond
        self._seen = 0  # from here on nothing was told
        self._ticket = next(_tickets)
        self._ended = False
        self._waiting = False  # in a wait, or just before it
        self._calling = False  # the listener, in the thread
        # Over these three. Garbage collection may come to close the handle while it is held.
        self._lock = RLock()
        self._thread = threading.Thread(
            target=self._run, name="mdispatch listener for everywhere", daemon=False
        )

    def begin(self) -> None:
        """The first look, in this thread, and the start of the other one."""
        self._seq, _ = self._registry.await_change(0, 0)
        self._look(self._seq)
        if not self._handle.closed:
            self._thread.start()

    def end(self) -> None:
        """The thread ends: before this returns, or after the call of the listener that is under
        way.
        """
        with self._lock:
            self._ended = True
            calling = self._calling
        if self._thread.ident in (None, get_ident()):
            return  # it will see for itself
        while self._waiting:
            self._registry.cancel(self._ticket)  # again, until it has got as far as to sleep
            time.sleep(0.001)
        # Python 3.11 ends no interpreter whose threads have not ended; but nobody waits for a
        # listener, nor for what a finalizer that runs in that thread may wait for.
        if not calling and not self._handle.is_locked:
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            while self._wait():
                self._look(self._seq)
        except WaitCancelledError:
            pass
        except RegistryError as error:
            self._tell_gone(error)
        finally:
            self._handle.close()

    def _wait(self) -> bool:
        """Waits for the next change; False when there is nothing to wait for any more."""
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
        """Tells the difference to the last look, as far as ``seq`` reaches."""
        live, there = self._registry.registrations_since(facts.DEF, self._seen)
        ended: list[Registration] = []
        if live != len(self._told) + len(there):
            _, there = self._registry.registrations_since(facts.DEF, 0)
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
        """What the dead one committed last, it may not have come to tell."""
        with contextlib.suppress(RegistryError):  # it cannot be read any more
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
