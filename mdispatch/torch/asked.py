"""Asking the member that registers to look again.

What a library in C++ registers with PyTorch is known to nobody in Python until somebody looks at
PyTorch's tables. So a member that begins to wait for such a registration asks for a look: while it
waits, it has a note that names the registration. A member that registers has a thread that sleeps
until there is a note, then looks. While nobody waits, the thread sleeps, and uses no CPU.

Note [Asking loses no wait]
The waiter 1. registers its note, 2. waits for the registration, 3. removes its note. The thread 1.
waits until there is a note, 2. lists the notes, 3. looks, and registers what it finds, 4. sleeps
until there are more notes than it has listed, at most for a pause; then it lists again. It sleeps
without an end only after a list without any note.

- A waiter whose note is on a list gets a look that begins after its note was there. What the look
  registers wakes the waiter, or is there when its wait begins: Note [Event words].
- A waiter whose note came after a list of n notes ends the sleep at once, for there are n + 1 now.
  Or a note of the list was removed meanwhile: then the sleep ends after its pause. So the waiter
  waits longer by a pause, and not for ever.
- A waiter that waits for what does not exist yet gets a look after every pause, so that it hears of
  a library that was loaded without anybody being told (dlopen). The pauses grow up to _LONGEST.
- The thread's wait without an end begins with a look of its own (native/core/contract/await.c), so
  it ends at once where a note has come since the empty list.

A note stays on its host. In a cluster the leader hears of the waiters of its own host only, and the
error of another one's wait says so (registry/missed.py): the log leads from the leader to the
hosts, and a way back for so short a question would be asked by every host for every name.

The note of a member that was killed, or that a signal interrupted between its steps, may stay for a
while. Then the thread lists once in a pause, and looks no more: it looks for new notes, and for
those of members that are alive and wait.
"""

from __future__ import annotations

import itertools
import threading
import time
from _thread import get_ident
from contextlib import contextmanager, suppress

from ..errors import MdispatchError, RegistryError, WaitCancelledError
from ..facts.registration import NOTE
from ..forking import new_lock
from .kind import TORCH_SPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..facts.abc import Facts

#: The name of the notes. No namespace has such a one.
_ASKS = f"{TORCH_SPACE}.asks"
#: Seconds of a sleep after a look: of the first, and of the longest.
_SHORTEST, _LONGEST = 0.05, 1.0

# Far from those of registry/waiting_async.py and of watch.py.
_tickets = itertools.count(3 << 61)


@contextmanager
def asking(facts: Facts, name: str, where: str) -> Iterator[None]:
    """While it is open, the member that registers looks for the registration of this name. Where
    the registry takes no note (it is full), the wait goes on without one.
    """
    note = None
    try:
        with suppress(MdispatchError):  # the wait itself says what is wrong
            note = facts.register(NOTE, 0, _ASKS, name, where)
        yield
    finally:
        if note is not None:
            facts.remove(note)


class Asked:
    """A thread of a member that registers. It calls ``look`` with the names of the registrations
    for which others wait. See Note [Asking loses no wait].
    """

    def __init__(self, facts: Facts, look: Callable[[set[str]], None]) -> None:
        self._facts = facts
        self._look = look
        self._ticket = next(_tickets)
        self._ended = False
        self._waiting = False  # the thread is in a wait, or just before it
        # Guards these two. Reentrant: garbage collection may end it while it is held.
        self._lock = new_lock()
        # No daemon: see facts/watch.py.
        self._thread = threading.Thread(
            target=self._run, name="mdispatch.torch.watch, asked by others", daemon=False
        )
        self._thread.start()

    def end(self) -> None:
        """Ends the thread, before this returns or after the look under way."""
        with self._lock:
            self._ended = True
        if self._thread.ident == get_ident():
            return  # the thread sees it when it waits next
        while self._waiting:
            self._facts.cancel(self._ticket)  # again, until it caught the sleep
            time.sleep(0.001)

    def _run(self) -> None:
        # The registry is closed, or gone: nobody can ask any more.
        with suppress(WaitCancelledError, RegistryError):
            while True:
                if not self._wait(1, None):
                    break
                self._serve()

    def _serve(self) -> None:
        """Looks until nobody asks any more."""
        known: set[int] = set()
        pause = _SHORTEST
        while there := [f for f in self._facts.registrations(_ASKS)[2] if f.kind == NOTE]:
            new = {fact.seq for fact in there} - known
            waiting = {(m[1], m[0]) for m in self._facts.members() if m[3] and m[4]}
            asked = {
                fact.text
                for fact in there
                if fact.seq in new or (fact.pid, fact.interpreter) in waiting
            }
            if asked:
                self._look(asked)
            pause = _SHORTEST if new else min(2 * pause, _LONGEST)
            known = {fact.seq for fact in there}
            if not self._wait(len(there) + 1, pause):
                return

    def _wait(self, notes: int, timeout: float | None) -> bool:
        """Waits until there are so many notes, or the time is up; False when this has ended."""
        with self._lock:
            if self._ended:
                return False
            self._waiting = True
        try:
            self._facts.await_fact(NOTE, 0, _ASKS, notes, timeout, self._ticket)
        finally:
            self._waiting = False
        return True
