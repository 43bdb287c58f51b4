"""What a transport is, and how it is found: as an entry point of the group
``mdispatch.transports``.

An owner serves a kernel by a transport's name, ``impl(..., serve="host")``. The offer has the
name, and the address at which the transport of the owner listens; the caller's transport of that
name takes the call there.

A call is values, as is its answer: None, bool, int of 64 bits, float, str, bytes, memory, arrays,
objects of classes with a codec, and lists of these. A transport makes bytes of them as it likes;
``host`` does it by native/bind/ext/wire.c. It unpickles nothing, and runs nothing but ``answer``,
the codecs (across/by_value.py) and the makers of arrays (across/arrays.py).
"""

from __future__ import annotations

import os
from contextvars import ContextVar

from ...errors import InvalidArgumentError
from ...errors.words import nearest, shown
from ...forking import in_child, new_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ...errors import MdispatchError
else:
    Protocol = object  # typing takes as long to load as a tenth of a worker's start

__all__ = ["BUSY", "DAMAGED", "DEEP", "GONE", "KEPT", "LARGE", "LATE", "NO_KERNEL", "RAISED"]
__all__ += ["UNFIT", "UNFIT_RESULT", "Answer", "Caller", "Interrupt", "Transport", "interrupt"]
__all__ += ["transport_named"]

#: Why a call came to nothing. The first eight are those of a visit, in native/bind/ext/visit.c.
RAISED, GONE, NO_KERNEL, LATE, UNFIT, UNFIT_RESULT, DEEP, KEPT = range(1, 9)
BUSY, DAMAGED, LARGE = 9, 10, 11


class Caller:
    """Another process, as the owner of a line sees it. A transport makes one for each line, and
    calls ``end`` when that has ended. All of it belongs to the thread that answers the line.

    ``has_gone()`` says whether the other process has ended, or waits for no answer. ``kept`` has
    what this process keeps for the other one, by number; ``sent`` the objects of the last answer,
    until the next call says that it has come.
    """

    __slots__ = ("has_gone", "kept", "sent")

    def __init__(self, has_gone: Callable[[], bool]) -> None:
        self.has_gone = has_gone
        self.kept: dict[int, object] = {}
        self.sent: list[object] = []

    def end(self) -> None:
        self.kept, self.sent = {}, []


class Interrupt:
    """The end of a caller's wait, from another thread: a file that can be read from then on, and
    the ``error`` that the call then raises. A transport that waits for an answer polls the file of
    the :data:`interrupt` of its context, if there is one.

    No wake is lost: the file stays as it is once it can be read, and one that is made after
    ``set()`` can be read at once.
    """

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self._lock = new_lock()
        self._file = -1  # under lock: -1 until a wait needs it, and after close()
        self._is_over = False  # under lock
        self._is_closed = False  # under lock

    def set(self) -> None:
        """Ends the wait. Idempotent."""
        with self._lock:
            if self._file >= 0 and not self._is_over:
                os.eventfd_write(self._file, 1)
            self._is_over = True

    def is_set(self) -> bool:
        return self._is_over

    def fileno(self) -> int:
        with self._lock:
            if self._file < 0 and not self._is_closed:
                self._file = os.eventfd(int(self._is_over), os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return self._file

    def close(self) -> None:
        """Nobody waits any more. Idempotent."""
        with self._lock:
            file, self._file, self._is_closed = self._file, -1, True
        if file >= 0:
            os.close(file)


#: What ends the wait of the call that this context makes; None where nothing does.
interrupt: ContextVar[Interrupt | None] = ContextVar("mdispatch.interrupt", default=None)


class Answer(Protocol):
    """What an owner does with a call that it has taken."""

    def __call__(self, call: list[Any] | MdispatchError, caller: Caller, /) -> tuple[int, Any]:
        """Returns 0 and the result, or why not and what is told of it. ``call`` is an error where
        an object in it could not be made.
        """


class Transport(Protocol):
    """The interface of a transport. An interpreter makes one, without arguments, and keeps it. All
    its functions may be called by several threads at once.
    """

    def serve(self, answer: Answer) -> str:
        """Listens from now on, until the interpreter ends. Returns the address. Idempotent."""

    def call(
        self, address: str, call: list[Any], written: tuple[Any, ...], deadline: int
    ) -> tuple[int, Any, bool | None]:
        """Has a call answered, once or not at all. Returns what :class:`Answer` does, or GONE,
        LATE, UNFIT (with the name of the type), LARGE (with what is too much), BUSY (with the
        length of the queue, or None) or DAMAGED; and whether the owner has taken it, None if that
        cannot be known.

        ``written`` is memory in the call that the owner may write to. ``deadline`` is that of
        the answer, in ns of the monotonic clock, 0 for none. Where the :data:`interrupt` ends the
        wait, takes the call back as far as it can, and raises its error.
        """

    def hold(self, address: str, call: list[Any], deadline: int) -> tuple[int, Any, bool | None]:
        """As ``call``, over the one line for this that stays open as long as both processes live:
        what the owner keeps for its :class:`Caller` ends with it. One thread at a time calls it
        for an address.
        """

    def forked(self) -> None:
        """In the child of a fork: lets go of what belongs to the parent, and takes no lock."""


#: How many calls of a ticket may wait while the owner has as many as it takes, if it has said so.
#: Calls of the ticket with a minus are of the same kernel.
queues: dict[int, int] = {}

_transports: dict[str, Transport] = {}


def transport_named(name: str) -> Transport:
    """This interpreter's transport of that name. Raises InvalidArgumentError if none is
    installed.
    """
    found = _transports.get(name)
    if found is not None:
        return found
    from importlib.metadata import entry_points

    installed = {each.name: each for each in entry_points(group="mdispatch.transports")}
    if name not in installed:
        near = nearest(name, sorted(installed))
        raise InvalidArgumentError(
            f"no transport is named {shown(name)}"
            + (f", but {', '.join(near)} is" if near else "")
            + f". Installed are {', '.join(sorted(installed)) or 'none'}; others are entry points "
            "of the group 'mdispatch.transports'."
        )
    return _transports.setdefault(name, installed[name].load()())


@in_child
def _renew() -> None:
    for each in list(_transports.values()):
        each.forked()
