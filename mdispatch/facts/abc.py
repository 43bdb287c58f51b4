"""What every registry can do. Imported for types only.

``shared`` is the one in shared memory, over the native contract. ``local`` is plain Python for one
process.
"""

from __future__ import annotations

from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .native._call import View
    from .native.contract import MemberTuple, StatTuple
    from .registration import Registration
    from .waits import Waited


class Removable(Protocol):
    """Identifies a registration that is to be removed."""

    @property
    def ref(self) -> int: ...
    @property
    def seq(self) -> int: ...


class Told(Protocol):
    """A listener for everywhere, as the thread that watches the registry knows it."""

    @property
    def closed(self) -> bool:
        """Whether it is told nothing more."""

    @property
    def is_locked(self) -> bool:
        """Whether this thread holds the lock of the listeners."""

    def tell(self, begins: bool, fact: Registration) -> None:
        """Tells it of a definition, or of the end of one."""

    def tell_gone(self, error: Exception) -> None:
        """Tells it that the registry is closed or its registrar dead."""

    def close(self) -> None:
        """Ends it. Idempotent."""


class Facts(Protocol):
    """The interface on which the packages above rely. It raises :mod:`mdispatch.errors`."""

    #: Called in the child of a fork, to replace the locks that other threads may have held: see
    #: Note [Locks across a fork] in forking.py.
    after_fork: Callable[[], None] | None

    #: Called once, after ``close``, which the end of the interpreter does too.
    after_close: Callable[[], None] | None

    #: Why it is shared with nobody, in words; "" where it is shared.
    alone: str

    #: Whether a difference leaves a warning here, and no refusal: see observing/__init__.py.
    observes: bool
    #: Whether this interpreter may go on with registrations of its own.
    keeps_own: bool

    #: What was found to differ in this interpreter, a Differing; None before anything was. See
    #: facts/differing.py, which rests on this file.
    differing: Any

    @property
    def role(self) -> int:
        """MAIN: this member registers. WORKER: it verifies. PEER: that is decided for each
        namespace.
        """

    @property
    def label(self) -> str:
        """The registry's name or address, for messages."""

    def register(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
        """Adds a registration. Raises DuplicateRegistrationError, RegistryFullError,
        RegistryClosedError.
        """

    def forget_published(self) -> None:
        """Has :attr:`published` begin anew in this thread."""

    @property
    def published(self) -> list[tuple[int, int]]:
        """The ref and the number of each registration that this thread has registered since then,
        the first few: also of one whose registration has raised, since a signal handler did.
        """

    def remove(self, registration: Removable) -> bool:
        """Removes a registration out; False when it is gone, or not this member's to remove."""

    def find(self, kind: int, key: int, name: str) -> Registration | None:
        """The newest live registration of exactly this kind, key and name."""

    def has(self, kind: int, key: int, name: str) -> bool:
        """Whether there is such a registration."""

    def await_fact(
        self,
        kind: int,
        key: int,
        name: str,
        at_least: int,
        timeout: float | None,
        ticket: int = 0,
        or_elect: bool = False,
    ) -> tuple[Registration | None, Waited]:
        """Waits until there are ``at_least`` such registrations. Returns the newest, or None after
        ``timeout`` seconds. With ``or_elect`` it raises Elected when it is this member's turn to
        register them.
        """

    def await_change(self, seq: int, timeout: float | None, ticket: int = 0) -> tuple[int, Waited]:
        """Waits until the registry's sequence differs from ``seq``. Returns the present sequence,
        which is ``seq`` itself after ``timeout`` seconds. It is never 0. Every registration and
        every remove raises it. All registrations with a smaller number can be listed already, so a
        caller that takes the sequence first and lists the registrations afterwards misses no
        change.
        """

    def cancel(self, ticket: int = 0) -> None:
        """Ends the waits of this interpreter that carry the ticket, or all of them."""

    def registrations(self, name: str | None = None) -> tuple[int, int, list[Registration]]:
        """(version, node, live registrations) of one name, oldest first. Without a name: the
        registrations of all names; version and node are 0.
        """

    def registrations_since(self, kind: int, seq: int) -> tuple[int, list[Registration]]:
        """How many registrations of a kind (0: of any) are live, and the live ones whose number is
        ``seq`` or greater. A caller that remembers the other registrations can tell from the count
        whether one of them has gone.
        """

    def claim(self, namespace: str, where: str) -> bool:
        """Queues up for a namespace, or for a choice, unless this member is in the queue already.
        Returns whether this member is the first in it: the registrar, or the decider.
        """

    def release(self, namespace: str) -> None:
        """Leaves the queue. PEER: the last member to leave takes the namespace's registrations with
        it."""

    def is_untold(self) -> bool:
        """Whether this is the child of a fork of which Python was not told: still in the role that
        its parent has.
        """

    @property
    def is_host(self) -> bool:
        """Whether bridges of a cluster write it: see cluster/hosts.py."""

    def is_mine(self, registration: Registration) -> bool:
        """PEER: whether this very member has registered it."""

    def is_apart(self, name: str) -> bool:
        """Whether this interpreter goes on with registrations of its own under a name."""

    def versions(self, name: str) -> str:
        """Under a name apart: this interpreter's definition and that of the registry, in a line
        each, for an error. Else "".
        """

    def for_entry(self, name: str) -> Facts:
        """The registrations for the entry of the operator of this name."""

    def version(self, node: int) -> int:
        """The version word of a name's node."""

    def reader(self, node: int) -> Callable[[], int]:
        """What reads that word by itself, for a caller that asks often. When the registry is gone,
        it returns what is no version, or raises RegistryClosedError.
        """

    def view(self, make: bool = True) -> View | None:
        """The object that keeps the registry's memory mapped for calls in C. None if this registry
        has none, and, without ``make``, if there is none yet.
        """

    def touch(self) -> None:
        """Tells calls in C that what they know of this interpreter's names is out of date."""

    def members(self) -> list[MemberTuple]:
        """The interpreters that have the registry open."""

    def stat(self) -> StatTuple:
        """Figures of the registry. Every change raises ``next_seq``."""

    def check(self) -> str:
        """The broken invariants of the registry itself, one per line; "" when none is."""

    def close(self) -> None:
        """Leaves the registry. Idempotent."""
