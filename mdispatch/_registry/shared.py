"""The shared registry over the native contract: status codes become exceptions, interrupted waits
go on.

One object per interpreter and opening. It is this interpreter's membership: ``close`` ends it, a
fork gives the child one of its own, and at the interpreter's end it leaves by itself, so that no
waiter of it is ever left asleep.
"""

from __future__ import annotations

import atexit
import os
from functools import partial

from .. import errors
from .._forking import load_the_rest
from .._logs import described, waits_log
from .._native import c_kernels, interpreter_id, native, often, unlock, unlock_modules
from . import HOST, KIND_NAMES, MAIN, PEER, ROLE_NAMES, RULES, WORKER, Elected, Registration, Waited
from .opening import (
    DEFAULT_CAPACITY,
    ENVIRONMENT,
    attach,
    create_or_elect,
    handle_signals,
    open_default,
)
from .status import (
    CANCELLED,
    CLOSED,
    DAMAGED,
    ELECTED,
    EXISTS,
    INTERRUPTED,
    NOT_FOUND,
    ROLE,
    TIMED_OUT,
    TOO_LONG,
    deadline_after,
    error_for,
)
from .waits import Waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from .._native._call import View
    from .._native._contract import MemberTuple, RecordTuple, StatTuple, WaitTuple
    from . import Struck

    T = TypeVar("T")

__all__ = ["DEFAULT_CAPACITY", "ENVIRONMENT", "SharedRegistry"]


_new = tuple.__new__
# By partial: thousands are made at once.
_registration: Callable[[RecordTuple], Registration] = partial(_new, Registration)


# Texts of the registry are UTF-8. What is not (half a character) is shown, not refused.
def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _whole(text: str) -> str:
    return _bytes(text).decode()


def _utf8(text: str) -> str | bytes:
    return text if text.isascii() else _bytes(text)


class SharedRegistry:
    """This interpreter's membership in a shared registry. Made by :meth:`create`, :meth:`elect`,
    :meth:`attach`, :meth:`default`.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.label = native.address(handle)[1].decode()
        self.pid = os.getpid()
        self._closed = False
        self._view: View | None = None
        status, self._member, self.role = native.join(handle, interpreter_id)
        if status:
            raise error_for(status, self.label)
        self._mine: set[int] = set()  # PEER: the numbers of what it has registered
        #: Called in the child of a fork, where other threads may have held locks that nobody frees.
        self.after_fork: Callable[[], None] | None = None
        _live[id(self)] = self

    @classmethod
    def _of(cls, handle: int) -> SharedRegistry:
        """Takes the opening over, or gives it back."""
        try:
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
        """The process's default registry: open already, or named by the environment, or new."""
        address = os.environ.get(ENVIRONMENT, "")
        registry = cls._joined(lambda: open_default(address))
        if os.environ.get(ENVIRONMENT) != registry.label:
            os.environ[ENVIRONMENT] = registry.label
        return registry

    @classmethod
    def _joined(cls, open_it: Callable[[], int]) -> SharedRegistry:
        """Where there is no main member, the last of the others may leave, and close the registry,
        after this process has found it and before it is a member: then it is opened anew. Each time
        somebody else has come and gone, so this ends. What ``open_it`` raises is its answer.
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

    def _fail(self, status: int) -> Exception:
        error = error_for(status, self.label)
        if isinstance(error, errors.MainMemberGoneError):
            error.pid = native.stat(self._handle)[1][7]
        return error

    def register(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
        try:
            status, ref, seq, first = often.register(
                self._handle, self._member, kind, RULES[kind], key, name, body, where
            )
        except UnicodeEncodeError:
            return self.register(kind, key, _whole(name), _whole(body), _whole(where))
        if status == 0:
            try:
                if self.role == PEER:
                    self._mine.add(seq)
                record = (ref, seq, kind, int(key), name, body, where, self.pid, interpreter_id)
                return _new(Registration, record)
            except BaseException:  # no memory: an error must have changed nothing
                often.strike(self._handle, self._member, ref, seq)
                raise
        if status == TOO_LONG:
            end = _bytes(where)[-1024:].decode("utf-8", "ignore")
            if end != where:
                return self.register(kind, key, name, body, end)
        if status == EXISTS and first is not None:
            raise errors.DuplicateRegistrationError(
                f"{KIND_NAMES[kind]} {name!r} is registered already",
                KIND_NAMES[kind],
                name,
                str(key),
                first[6],
                where,
            )
        raise self._fail(status)

    def strike(self, registration: Struck) -> bool:
        status = often.strike(self._handle, self._member, registration.ref, registration.seq)
        if status in (0, NOT_FOUND, ROLE, CLOSED):
            # With ROLE it stays, but it is the namespace's now, and no longer this member's.
            self._mine.discard(registration.seq)
            return status == 0
        raise self._fail(status)

    def find(self, kind: int, key: int, name: str) -> Registration | None:
        status, record = often.find(self._handle, kind, key, _utf8(name))
        if record is not None:
            return _registration(record)
        if status == NOT_FOUND:
            return None
        raise self._fail(status)

    def has(self, kind: int, key: int, name: str) -> bool:
        status = often.has(self._handle, kind, key, _utf8(name))
        if status in (0, NOT_FOUND):
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
        deadline = deadline_after(timeout)
        encoded = _utf8(name)
        status, record, waited = _until_it_ends(
            lambda: often.await_fact(
                self._handle, self._member, kind, key, at_least, encoded, deadline, ticket, or_elect
            )
        )
        if waited.sleeps and waits_log.listens():
            self._tell_wait(described(kind, key, name), status, waited)
        if status == ELECTED:
            raise Elected
        if record is not None:
            return _registration(record), waited
        if status == TIMED_OUT:
            return None, waited
        if status == CANCELLED:
            raise errors.WaitCancelledError(
                f"the wait for {name} ({KIND_NAMES[kind]}) was ended: its task was cancelled "
                "or its interpreter shuts down"
            )
        raise self._fail(status)

    def await_change(self, seq: int, timeout: float | None, ticket: int = 0) -> tuple[int, Waited]:
        deadline = deadline_after(timeout)
        status, now, waited = _until_it_ends(
            lambda: often.await_change(self._handle, self._member, seq, deadline, ticket)
        )
        if waited.sleeps and waits_log.listens():
            self._tell_wait("any change", status, waited)
        if status in (0, TIMED_OUT):
            return now, waited
        if status == CANCELLED:
            raise errors.WaitCancelledError(
                "the wait for any change was ended: it was cancelled or its interpreter shuts down"
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
            self._handle, None if name is None else _bytes(name)
        )
        if status:
            raise self._fail(status)
        return version, node, list(map(_registration, records))

    def registrations_since(self, kind: int, seq: int) -> tuple[int, list[Registration]]:
        status, live, records = native.list_since(self._handle, kind, seq)
        if status:
            raise self._fail(status)
        return live, list(map(_registration, records))

    def claim(self, namespace: str, where: str) -> bool:
        status, _ = native.claim(
            self._handle, self._member, _bytes(namespace), _bytes(where)[-1024:]
        )
        if status in (0, EXISTS):
            return status == 0
        raise self._fail(status)

    def release(self, namespace: str) -> None:
        status = native.release(self._handle, self._member, _bytes(namespace))
        if status not in (0, NOT_FOUND, ROLE, CLOSED):
            raise self._fail(status)

    def is_mine(self, registration: Registration) -> bool:
        return registration.seq in self._mine

    def version(self, node: int) -> int:
        version = often.version(self._handle, node)
        if version < 0:
            raise self._fail(version)
        return version

    def view(self, make: bool = True) -> View | None:
        if self._view is None and make:
            from .._native._call import View

            if self._closed:
                raise self._fail(CLOSED)
            try:
                self._view = View(self._handle)
            except ValueError:  # by another thread, just now
                raise self._fail(CLOSED) from None
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

    def check(self) -> str:
        """The broken invariants, one per line; "" when none is."""
        status, report = native.check(self._handle)
        if status not in (0, DAMAGED):
            raise self._fail(status)
        return report.decode()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        _live.pop(id(self), None)
        if self._view is not None:
            from .._native._call import changed

            changed()  # calls in C still see its words, and must not believe them
        if os.environ.get(ENVIRONMENT) == self.label and self.role == MAIN:
            del os.environ[ENVIRONMENT]
        native.leave(self._handle, self._member)
        native.close(self._handle)

    def _join_again(self) -> None:
        """In the child of a fork: the parent's membership stays the parent's."""
        self.pid = os.getpid()
        self._mine = set()
        status, member, role = native.join(self._handle, interpreter_id)
        if status == 0:
            self._member, self.role = member, role
        else:
            self.role = WORKER  # the registry is closed or full: every call will say so
        if self.after_fork is not None:
            self.after_fork()


# The memberships of this interpreter: for its end and for forks, which nobody announces to the
# objects themselves.
_live: dict[int, SharedRegistry] = {}


def _cancel_all() -> None:
    for registry in list(_live.values()):
        registry.cancel()


_waits = Waits(_cancel_all)


def _warn_of_those_left() -> None:
    """A program that embeds Python has to end its interpreters before the main one. Of interpreters
    that Python itself made CPython takes care.
    """
    if interpreter_id != 0 or not c_kernels.has_host():
        return
    left = _neighbours()
    if left:
        import warnings

        warnings.warn(
            f"this program ends Python while its interpreters {sorted(left)} live: end each with "
            "Py_EndInterpreter, in its thread, before Py_FinalizeEx (docs/embedding.md)",
            RuntimeWarning,
            stacklevel=1,
        )


def _leave_all() -> None:
    _warn_of_those_left()
    for registry in list(_live.values()):
        registry.close()


def _rejoin_all() -> None:
    unlock_modules()
    unlock(_waits)
    _waits.forked()
    for registry in list(_live.values()):
        unlock(registry)
        registry._join_again()


def _neighbours() -> set[int]:
    """The other interpreters of this process that are members."""
    pid = os.getpid()
    return {
        member[0]
        for registry in _live.values()
        for member in native.members(registry._handle)[1]
        if member[1] == pid and member[0] not in (interpreter_id, HOST)
    }


def _before_fork() -> None:
    load_the_rest()
    _warn_of_fork()


def _warn_of_fork() -> None:
    """CPython cannot fork while a sub-interpreter lives: the child hangs or dies
    (python/cpython#139759).
    """
    others = _neighbours()
    if others:
        import warnings

        warnings.warn(
            f"this process forks while its sub-interpreters {sorted(others)} live: CPython "
            "ruins the child. "
            "Fork first and create interpreters afterwards, or start processes by spawn or "
            "subprocess.",
            RuntimeWarning,
            stacklevel=4,
        )


def _until_it_ends(wait: Callable[[], tuple[int, T, WaitTuple]]) -> tuple[int, T, Waited]:
    """A wait that goes on after signals: status, result, and how it went in all."""
    _waits.begin()
    try:
        status, result, stats = wait()
        while status == INTERRUPTED:
            handle_signals()
            before = stats
            status, result, stats = wait()
            stats = tuple(map(sum, zip(before, stats, strict=True)))  # type: ignore[assignment]
        slept_ns, *counts = stats
        return status, result, Waited(slept_ns / 1e9, *counts)
    finally:
        _waits.end()


atexit.register(_leave_all)
os.register_at_fork(before=_before_fork, after_in_child=_rejoin_all)
