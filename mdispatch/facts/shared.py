"""The shared registry over the native contract. It turns status codes into exceptions and continues
interrupted waits.

There is one object per interpreter and opening. It is this interpreter's membership: ``close`` ends
it, the child of a fork joins anew, and the end of the interpreter closes it, so that no waiter is
left asleep.
"""

from __future__ import annotations

import atexit
import os
import sys
from _functools import partial  # type: ignore[import-not-found]  # functools loads much more
from _thread import RLock

from .. import errors, seam
from ..forking import new_lock
from . import living
from .logs import described, waits_log
from .native import c_kernels, fact, interpreter_id, native, often
from .native.constants import (
    MD_ECANCELED,
    MD_ECLOSED,
    MD_EDAMAGED,
    MD_EDIED,
    MD_EELECTED,
    MD_EEXIST,
    MD_EINTR,
    MD_ELOCK,
    MD_ENOENT,
    MD_EROLE,
    MD_ETIMEDOUT,
    MD_ETOOLONG,
    MD_MATCH,
    MD_MAX_WHERE,
    MD_POLICY_BRIDGE,
    MD_POLICY_MAIN,
)
from .opening import (
    ENVIRONMENT,
    attach,
    create_or_elect,
    handle_signals,
    open_default,
)
from .registration import (
    AS_BRIDGE,
    COMPATIBLE,
    HOST,
    MAIN,
    MATCH,
    PEER,
    POLICY,
    ROLE_NAMES,
    WORKER,
    Elected,
    Registration,
    kind_of,
)
from .waits import Waited, deadline_after

if interpreter_id == 0:
    # What says that something failed, and all classes of errors. A process that has no descriptor
    # left, or another user by now, loads nothing any more, and still has to say so. Interpreters
    # beside the main one come and go: they load this when something fails.
    from . import status  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar, TypeVarTuple

    from .abc import Facts, Removable
    from .native._call import View
    from .native.contract import MemberTuple, RecordTuple, StatTuple, WaitTuple

    Args = TypeVarTuple("Args")
    T = TypeVar("T")

# For lists of thousands. Who makes one calls ``fact``, without this in between.
_registration: Callable[[RecordTuple], Registration] = partial(fact, Registration)


# Texts of the registry are UTF-8. Half a character (a lone surrogate) is escaped, not refused.
def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _whole(text: str) -> str:
    return _bytes(text).decode()


def _utf8(text: str) -> str | bytes:
    return text if text.isascii() else _bytes(text)


_MAIN_PID, _POLICY = 7, 11  # their indices in the figures of stat
_SLEEPS = 1  # its index in the course of a wait

_DAEMON = (
    "This process was forked from process {}, which had the registry open and has ended. A program "
    "that becomes a daemon does so first, and then imports what registers (docs/servers.md)."
)

_UNTOLD = (
    "process {} was forked from process {} without Python being told, so it may only look and "
    "call, not register or wait\nHave the program that embeds Python call PyOS_AfterFork_Child "
    "(uWSGI does with py-call-osafterfork = true), or import in each process after the fork "
    "(uWSGI: lazy-apps = true; docs/servers.md)."
)


class SharedRegistry:
    """This interpreter's membership in a shared registry. Made by :meth:`create`, :meth:`elect`,
    :meth:`attach`, :meth:`default`.
    """

    #: As whom it joins.
    interpreter = interpreter_id
    alone = ""
    observes = keeps_own = False
    differing: Any = None

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.label = native.address(handle)[1].decode()
        self.pid = os.getpid()
        self._closed = False
        self._view: View | None = None
        status, self._member, self.role = native.join(handle, self.interpreter)
        if status:
            from .status import error_for

            raise error_for(status, self.label)
        self._user = os.geteuid()
        #: The process that had joined before a fork, from which this one descends; 0 if none.
        self._forked_from = 0
        self._is_host: bool | None = None
        self.forget_published = often.forget_published
        self._mine: set[int] = (
            set()
        )  # PEER: the numbers of the registrations that it has registered
        # In the child of a fork, until it has joined: why it has not, as a status, and the lock
        # under which a thread joins; no lock while the fork is under way.
        self._unjoined = 0
        self._late: RLock | None = None
        #: Called in the child of a fork, to replace the locks that other threads may have held.
        #: See Note [Locks across a fork] in forking.py.
        self.after_fork: Callable[[], None] | None = None
        self.after_close: Callable[[], None] | None = None
        living.begin(self)

    @classmethod
    def _of(cls, handle: int) -> SharedRegistry:
        """The membership of an opened registry. If it cannot be had, the handle is closed."""
        try:
            if cls is SharedRegistry and often.has(handle, MD_MATCH, 0, MATCH) == 0:
                cls = seam.at("the registrations of a member")(cls, COMPATIBLE)
            return cls(handle)
        except BaseException:
            native.close(handle)
            raise

    @classmethod
    def create(cls, name: str | None, capacity: int) -> SharedRegistry:
        return cls._of(create_or_elect(native.create, name, capacity))

    @classmethod
    def elect(cls, name: str | None, capacity: int) -> SharedRegistry:
        return cls._joined(lambda: create_or_elect(native.elect, name, capacity))

    @classmethod
    def attach(cls, address: str, timeout: float | None) -> SharedRegistry:
        deadline = deadline_after(timeout)
        return cls._joined(lambda: attach(address, deadline))

    @classmethod
    def default(cls) -> SharedRegistry:
        """The process's default registry: the one that is open, the one in the environment, or a
        new one.
        """
        address = os.environ.get(ENVIRONMENT, "")
        registry = cls._joined(lambda: open_default(address))
        if address != registry.label:
            os.environ[ENVIRONMENT] = registry.label
        return registry

    @classmethod
    def _joined(cls, open_it: Callable[[], int]) -> SharedRegistry:
        """Opens a registry by ``open_it`` and joins it.

        In a registry whose namespaces have registrars of their own, the last member may leave, and
        so close it, after this process has found the registry and before it joins: then this opens
        it anew. That ends, since each retry means that another member came and left in between.
        Errors of ``open_it`` come through.
        """
        while True:
            handle = open_it()
            try:
                return cls._of(handle)
            except errors.RegistryClosedError as error:
                if not str(error.registry).startswith("elect:"):
                    raise

    def __repr__(self) -> str:
        state = "closed" if self._closed else ROLE_NAMES[self.role]
        return f"<SharedRegistry {self.label} {state}>"

    @property
    def handle(self) -> int:
        """The number by which libmdispatch knows this opening, for kernels in C."""
        return self._handle

    def _fail(self, status: int) -> Exception:
        if status in (MD_EROLE, MD_ENOENT) and self.is_untold():
            return errors.RegistryError(_UNTOLD.format(os.getpid(), self.pid), self.label)
        from .status import error_for  # only what has failed needs it

        error = error_for(status, self.label)
        if isinstance(error, errors.RegistrarGoneError):
            error.pid = native.stat(self._handle)[1][_MAIN_PID]
        if self._is_left_behind(status):
            error.args = (f"{error.args[0]}\n{_DAEMON.format(self._forked_from)}",)
        return error

    def _is_left_behind(self, status: int) -> bool:
        """Whether the registry is gone because the process ended from which this one was forked: so
        a program becomes a daemon. Not said to a worker of multiprocessing, which is none.
        """
        # While another thread imports the module, it lacks the function: no child is there then.
        process = sys.modules.get("multiprocessing.process")
        parent = getattr(process, "parent_process", int)()
        if not self._forked_from or self._closed or parent:
            return False
        if status != MD_ECLOSED:
            return status == MD_EDIED
        try:
            with open(f"/proc/{self._forked_from}/stat", "rb") as stat:
                return stat.read().rpartition(b") ")[2][:1] in b"ZX"  # dead, and not waited for yet
        except OSError:
            return True

    def register(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
        origin = getattr(where, "origin", where)  # of a Location; else a text of the registry
        try:
            status, ref, seq, first = often.register(
                self._handle, self._member, kind, POLICY[kind], key, name, body, origin
            )
        except UnicodeEncodeError:
            return self.register(kind, key, _whole(name), _whole(body), _whole(origin))
        if status == 0:
            try:
                if self.role == PEER:
                    self._mine.add(seq)
                record = (ref, seq, kind, int(key), name, body, origin, self.pid, self.interpreter)
                made: Registration = fact(Registration, record)
                return made
            except BaseException:  # no memory: an error must have changed nothing
                often.strike(self._handle, self._member, ref, seq)
                raise
        if status == MD_ETOOLONG:
            end = _bytes(origin)[-MD_MAX_WHERE:].decode("utf-8", "ignore")
            if end != origin:
                return self.register(kind, key, name, body, end)
        if status == MD_EEXIST and first is not None:
            raise errors.DuplicateRegistrationError(
                f"{kind_of(kind).name} {name!r} is registered already",
                kind_of(kind).name,
                name,
                str(key),
                first[6].partition("\n")[0],
                origin.partition("\n")[0],
            )
        if status == MD_EROLE and self._unjoined:
            self._join_late()
            return self.register(kind, key, name, body, where)
        raise self._fail(status)

    @property
    def published(self) -> list[tuple[int, int]]:
        return often.published(self._handle)

    def remove(self, registration: Removable) -> bool:
        if self._unjoined:
            return False  # a child of a fork: nothing is its own yet
        status = often.strike(self._handle, self._member, registration.ref, registration.seq)
        if status == 0 and not self._mine:
            return True
        if status in (0, MD_ENOENT, MD_EROLE, MD_ECLOSED):
            # After MD_EROLE the registration stays: it belongs to the namespace now, not to this
            # member.
            self._mine.discard(registration.seq)
            return status == 0
        raise self._fail(status)

    def find(self, kind: int, key: int, name: str) -> Registration | None:
        status, record = often.find(self._handle, kind, key, _utf8(name))
        if record is not None:
            made: Registration = fact(Registration, record)
            return made
        if status == MD_ENOENT:
            return None
        raise self._fail(status)

    def is_apart(self, name: str) -> bool:
        return False

    def versions(self, name: str) -> str:
        return ""

    def for_entry(self, name: str) -> Facts:
        return self

    def has(self, kind: int, key: int, name: str) -> bool:
        status = often.has(self._handle, kind, key, _utf8(name))
        if status in (0, MD_ENOENT):
            return status == 0
        raise self._fail(status)

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
        self._check_membership()
        deadline = deadline_after(timeout)
        encoded = _utf8(name)
        ticket = ticket or native.now()  # see Note [Tickets]
        wait = (
            self._handle,
            self._member,
            kind,
            key,
            at_least,
            encoded,
            deadline,
            ticket,
            or_elect,
        )
        token = object()
        try:
            living.waits.begin(token)
            status, record, course = often.await_fact(*wait)
            if status == MD_EINTR:
                status, record, course = _go_on(course, often.await_fact, *wait)
        finally:
            living.waits.under_way.discard(token)
        waited: Waited = fact(Waited, course)
        if course[_SLEEPS] and "logging" in sys.modules and waits_log.listens():
            self._tell_wait(described(kind, key, name), status, waited)
        if record is not None:
            return fact(Registration, record), waited
        if status == MD_EELECTED:
            raise Elected
        if status == MD_ETIMEDOUT:
            return None, waited
        if status == MD_ECANCELED:
            raise errors.WaitCancelledError(
                f"the wait for {name} ({kind_of(kind).name}) was ended: its task was cancelled or "
                "its interpreter is shutting down"
            )
        raise self._fail(status)

    def await_change(self, seq: int, timeout: float | None, ticket: int = 0) -> tuple[int, Waited]:
        self._check_membership()
        deadline = deadline_after(timeout)
        ticket = ticket or native.now()  # see Note [Tickets]
        wait = (self._handle, self._member, seq, deadline, ticket)
        token = object()
        try:
            living.waits.begin(token)
            status, now, course = often.await_change(*wait)
            if status == MD_EINTR:
                status, now, course = _go_on(course, often.await_change, *wait)
        finally:
            living.waits.under_way.discard(token)
        waited: Waited = fact(Waited, course)
        if waited.sleeps and waits_log.listens():
            self._tell_wait("any change", status, waited)
        if status in (0, MD_ETIMEDOUT):
            return now, waited
        if status == MD_ECANCELED:
            raise errors.WaitCancelledError(
                "the wait for any change was ended: it was cancelled or its interpreter is "
                "shutting down"
            )
        raise self._fail(status)

    def _tell_wait(self, what: str, status: int, waited: Waited) -> None:
        end = native.status_text(status) if status else "it is there"
        text = "waited %.6f s in %s for %s, %d times asleep: %s"
        waits_log.tell(text, waited.seconds, self.label, what, waited.sleeps, end)

    def cancel(self, ticket: int = 0) -> None:
        native.cancel(self._handle, self._member, ticket)

    def registrations(self, name: str | None = None) -> tuple[int, int, list[Registration]]:
        status, version, node, records = often.list_facts(
            self._handle, None if name is None else _utf8(name)
        )
        if status:
            raise self._fail(status)
        return version, node, list(map(_registration, records))

    def registrations_since(self, kind: int, seq: int) -> tuple[int, list[Registration]]:
        status, live, records = often.list_since(self._handle, kind, seq)
        if status:
            raise self._fail(status)
        return live, list(map(_registration, records))

    def claim(self, namespace: str, where: str) -> bool:
        self._check_membership()
        origin = _bytes(getattr(where, "origin", where))[-MD_MAX_WHERE:]
        status, _ = native.claim(self._handle, self._member, _bytes(namespace), origin)
        if status in (0, MD_EEXIST):
            return status == 0
        raise self._fail(status)

    def release(self, namespace: str) -> None:
        if self._unjoined:
            return
        status = native.release(self._handle, self._member, _bytes(namespace))
        if status not in (0, MD_ENOENT, MD_EROLE, MD_ECLOSED):
            raise self._fail(status)

    def is_untold(self) -> bool:
        return self.pid != os.getpid()

    @property
    def is_host(self) -> bool:
        if self._is_host is None:
            self._is_host = self.stat()[_POLICY] == MD_POLICY_BRIDGE
        return self._is_host

    def is_mine(self, registration: Registration) -> bool:
        return registration.seq in self._mine

    def version(self, node: int) -> int:
        version = often.version(self._handle, node)
        if version < 0:
            raise self._fail(version)
        return version

    def reader(self, node: int) -> Callable[[], int]:
        return partial(often.version, self._handle, node)  # type: ignore[no-any-return]

    def view(self, make: bool = True) -> View | None:
        if self._view is None and make:
            from .native._call import View

            if self._closed:
                raise self._fail(MD_ECLOSED)
            try:
                self._view = View(self._handle)
            except ValueError:  # another thread has just closed it
                raise self._fail(MD_ECLOSED) from None
        return self._view

    def touch(self) -> None:
        if self._view is not None:
            self._view.touch()

    def members(self) -> list[MemberTuple]:
        status, found = native.members(self._handle)
        if status:
            raise self._fail(status)
        return found

    def stat(self) -> StatTuple:
        status, figures = native.stat(self._handle)
        if status:
            raise self._fail(status)
        return figures

    def main_is_absent(self) -> bool:
        """Whether this is a sub-interpreter of the registrar, and the main interpreter there has
        not opened the registry (yet).
        """
        pid = os.getpid()
        if self.role != WORKER or interpreter_id == 0:
            return False
        figures = self.stat()
        if figures[_MAIN_PID] != pid or figures[_POLICY] != MD_POLICY_MAIN:
            return False
        return all(member[:2] != (0, pid) for member in self.members())

    def check(self) -> str:
        """The broken invariants, one per line; "" when none is."""
        status, report = native.check(self._handle)
        if status not in (0, MD_EDAMAGED):
            raise self._fail(status)
        return report.decode()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        living.end(self)
        if self._view is not None:
            from .native.calls import changed

            changed()  # calls in C still see the registry's words, and must not believe them
        if os.environ.get(ENVIRONMENT) == self.label and self.role == MAIN:
            del os.environ[ENVIRONMENT]
        if not self._unjoined:
            native.leave(self._handle, self._member)
        native.close(self._handle)
        # Handles count in C, and another Registry of this process may have the same one.
        self._handle = 0
        if self.after_close is not None:
            self.after_close()

    def forked(self, at_once: bool) -> bool:
        """In the child of a fork: the parent's membership stays the parent's.

        The child joins at its first call that only a member makes, as the user that it is by then
        (Note [A child of a fork looks only], native/core/store/region.c); where it cannot, each
        such call tries again, and raises why. Where each namespace has a registrar of its own it
        joins ``at_once``: what its parent has registered stays as long as somebody of its namespace
        is there. Returns whether the lock could be had.
        """
        self._mine = set()
        self._late = None
        self._unjoined = MD_ELOCK
        if self.role != WORKER:
            self._forked_from = self.pid
        self.pid = os.getpid()
        if self.role != PEER:
            self.role = WORKER
        elif at_once:
            self._join()
        if self.after_fork is not None:
            self.after_fork()
        self._late = new_lock()
        return self.role == WORKER or self._unjoined != MD_ELOCK

    def neighbours(self) -> set[int]:
        """The other interpreters of this process that are members."""
        _, found = native.members(self._handle)
        others = (interpreter_id, HOST, AS_BRIDGE)
        return {each[0] for each in found if each[1] == self.pid and each[0] not in others}

    def _join(self) -> None:
        self._unjoined, member, role = native.join(self._handle, self.interpreter)
        if not self._unjoined:
            self._member, self.role, self._user = member, role, os.geteuid()

    def _check_membership(self) -> None:
        """Before a call that only a member makes and that may take its time."""
        if self._unjoined:
            self._join_late()
        elif os.geteuid() != self._user:
            self._warn_of_user()

    def _warn_of_user(self) -> None:
        import warnings

        before, self._user = self._user, os.geteuid()
        warnings.warn(
            f"this process joined registry {self.label} as user {before} and is user {self._user} "
            f"now: it can still write into memory that processes of user {before} rely on. Open "
            "registries after the change of user, or start such processes by spawn: see "
            "docs/security.md",
            RuntimeWarning,
            stacklevel=4,
        )

    def _join_late(self) -> None:
        if self._late is not None:
            with self._late:
                if self._unjoined:
                    self._join()
        if self._unjoined:
            raise self._fail(self._unjoined)


# Note [Tickets]
# By its ticket a wait that goes on after a signal is known as the same, and md_await counts it
# from its beginning. So a wait that nobody will end by its ticket has one, too: the time of the
# clock. No other wait of its thread has that, and it is none of the numbers that waiting_async.py
# (from 1), watch.py (from 1 << 62) and asked.py (from 3 << 61) count.


def _warn_of_those_left() -> None:
    """A program that embeds Python has to end its interpreters before the main one. CPython itself
    ends the interpreters that Python made.
    """
    if interpreter_id != 0 or not c_kernels.has_host():
        return
    left = living.neighbours()
    if left:
        import warnings

        warnings.warn(
            f"this program ends Python while its interpreters {sorted(left)} live: end each with "
            "Py_EndInterpreter, in its thread, before Py_FinalizeEx (docs/embedding.md)",
            RuntimeWarning,
            stacklevel=1,
        )


def _go_on(
    before: WaitTuple, wait: Callable[[*Args], tuple[int, T, WaitTuple]], *args: *Args
) -> tuple[int, T, WaitTuple]:
    """Continues a wait after signals. Returns its status, its result, and its course as a whole."""
    while True:
        handle_signals()
        status, result, course = wait(*args)
        before = tuple(map(sum, zip(before, course, strict=True)))  # type: ignore[assignment]
        if status != MD_EINTR:
            return status, result, before


# Its end runs before that of living.py, which closes the registries.
atexit.register(_warn_of_those_left)
