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

from ...errors import InvalidArgumentError
from ...errors.words import nearest, shown
from ...forking import in_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ...errors import MdispatchError
else:
    Protocol = object  # typing takes as long to load as a tenth of a worker's start

__all__ = ["BUSY", "DAMAGED", "DEEP", "GONE", "KEPT", "LARGE", "LATE", "NO_KERNEL", "RAISED"]
__all__ += ["UNFIT", "UNFIT_RESULT", "Answer", "Caller", "Transport", "transport_named"]

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
        LATE, UNFIT (with the name of the type), LARGE (with what is too much), BUSY or DAMAGED; and
        whether the owner has taken it, None if that cannot be known.

        ``written`` is memory in the call that the owner may write to. ``deadline`` is that of
        the answer, in ns of the monotonic clock, 0 for none.
        """

    def hold(self, address: str, call: list[Any], deadline: int) -> tuple[int, Any, bool | None]:
        """As ``call``, over the one line for this that stays open as long as both processes live:
        what the owner keeps for its :class:`Caller` ends with it. One thread at a time calls it
        for an address.
        """

    def forked(self) -> None:
        """In the child of a fork: lets go of what belongs to the parent, and takes no lock."""


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
