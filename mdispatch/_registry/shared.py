"""The shared registry over the native contract: status codes become exceptions, interrupted waits
go on.

One object per interpreter and opening. It is this interpreter's membership: ``close`` ends it, a
fork gives the child one of its own, and at the interpreter's end it leaves by itself, so that no
waiter of it is ever left asleep.
"""

from __future__ import annotations

import atexit
import os

from .. import errors
from .._native import interpreter_id, native, run_signal_handlers
from .._nearest import shown
from . import KIND_NAMES, MAIN, RULES, WORKER, Registration, Waited
from .status import (
    CANCELLED,
    CLOSED,
    DAMAGED,
    EXISTS,
    INTERRUPTED,
    NOT_FOUND,
    ROLE,
    TIMED_OUT,
    deadline_after,
    error_for,
)
from .waits import Waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from .._native._contract import MemberTuple, RecordTuple, StatTuple, WaitTuple

    T = TypeVar("T")

__all__ = ["ENVIRONMENT", "SharedRegistry"]

#: The one environment variable by which child processes find the default registry of their parent.
ENVIRONMENT = "MDISPATCH_REGISTRY"

DEFAULT_CAPACITY = 256 * 1024 * 1024


def _registration(record: RecordTuple) -> Registration:
    ref, seq, kind, key, name, body, where, pid, interpreter = record
    return Registration(
        ref, seq, kind, key, _text(name), _text(body), _text(where), pid, interpreter
    )


# Texts of the registry are UTF-8. What is not (half a character, where a place was cut off) is
# shown, not refused: by then the fact is there.
def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _address_bytes(text: str) -> bytes:
    if not isinstance(text, str):
        raise errors.InvalidNameError(
            f"a registry's name is a str, not {type(text).__name__}", text
        )
    # What is not ASCII is no name or address, and would not reach the native registry as it is.
    if not text or len(text) > 180 or not text.isascii() or "\0" in text:
        raise error_for(-2, text[:60])
    return text.encode()


class SharedRegistry:
    """This interpreter's membership in a shared registry. Made by :meth:`create`, :meth:`attach`,
    :meth:`default`.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self.label = native.address(handle)[1].decode()
        self.pid = os.getpid()
        self._closed = False
        status, self._member, self.role = native.join(handle, interpreter_id)
        if status:
            native.close(handle)
            raise error_for(status, self.label)
        #: Called in the child of a fork, where other threads may have held locks that nobody frees.
        self.after_fork: Callable[[], None] | None = None
        _live[id(self)] = self

    @classmethod
    def create(cls, name: str | None, capacity: int) -> SharedRegistry:
        if not isinstance(capacity, int) or isinstance(capacity, bool):
            raise errors.InvalidArgumentError(
                f"capacity={shown(capacity)}: give a whole number of bytes"
            )
        text = None if name is None else _address_bytes(name).decode()
        if not 0 < capacity <= 1 << 34:
            status, handle = -1, 0
        else:
            status, handle = native.create(text, capacity)
        if status == -1:
            raise errors.InvalidArgumentError(
                f"capacity={shown(capacity)}: a registry has 458 KiB (466944 bytes) to 16 GiB; "
                f"the default is {DEFAULT_CAPACITY} and costs memory only as it is used"
            )
        if status:
            raise error_for(status, name or "(anonymous)")
        return cls(handle)

    @classmethod
    def attach(cls, address: str, timeout: float | None) -> SharedRegistry:
        deadline = deadline_after(timeout)
        data = _address_bytes(address)
        while True:
            status, handle = native.attach(data, deadline)
            if status != INTERRUPTED:
                break
            _run_signal_handlers()
        if status:
            raise error_for(status, address)
        return cls(handle)

    @classmethod
    def default(cls) -> SharedRegistry:
        """The process's default registry: open already, or named by the environment, or new."""
        address = os.environ.get(ENVIRONMENT, "")
        try:
            data = _address_bytes(address) if address else b""
            while True:
                status, handle = native.open_default(data)
                if status != INTERRUPTED:
                    break
                _run_signal_handlers()
            if status:
                raise error_for(status, address)
        except errors.MdispatchError as error:
            if address:
                error.args = (
                    f"{error.args[0]}\n{ENVIRONMENT}={shown(address)} in the environment names "
                    "the registry of a parent "
                    f"process. Unset it to work alone.",
                )
            raise
        registry = cls(handle)
        if os.environ.get(ENVIRONMENT) != registry.label:
            os.environ[ENVIRONMENT] = registry.label
        return registry

    def __repr__(self) -> str:
        state = "closed" if self._closed else ("main" if self.role == MAIN else "worker")
        return f"<SharedRegistry {self.label} {state}>"

    def _fail(self, status: int) -> Exception:
        error = error_for(status, self.label)
        if isinstance(error, errors.MainMemberGoneError):
            error.pid = native.stat(self._handle)[1][7]
        return error

    def register(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
        status, record = native.register(
            self._handle,
            self._member,
            kind,
            RULES[kind],
            key,
            _bytes(name),
            _bytes(body),
            _bytes(where)[-1024:],
        )
        if status == 0 and record is not None:
            return _registration(record)
        if status == EXISTS and record is not None:
            first = _registration(record)
            raise errors.DuplicateRegistrationError(
                f"{KIND_NAMES[kind]} {name!r} is registered already",
                KIND_NAMES[kind],
                name,
                str(key),
                first.where,
                where,
            )
        raise self._fail(status)

    def strike(self, registration: Registration) -> bool:
        status = native.strike(self._handle, self._member, registration.ref, registration.seq)
        if status in (0, NOT_FOUND, ROLE, CLOSED):
            return status == 0
        raise self._fail(status)

    def find(self, kind: int, key: int, name: str) -> Registration | None:
        status, record = native.find(self._handle, kind, key, _bytes(name))
        if record is not None:
            return _registration(record)
        if status == NOT_FOUND:
            return None
        raise self._fail(status)

    def has(self, kind: int, key: int, name: str) -> bool:
        status, _ = native.find(self._handle, kind, key, _bytes(name))
        if status in (0, NOT_FOUND):
            return status == 0
        raise self._fail(status)

    def await_fact(
        self, kind: int, key: int, name: str, at_least: int, timeout: float | None, ticket: int = 0
    ) -> tuple[Registration | None, Waited]:
        deadline = deadline_after(timeout)
        encoded = _bytes(name)
        status, record, waited = _until_it_ends(
            lambda: native.await_fact(
                self._handle, self._member, kind, key, at_least, encoded, deadline, ticket
            )
        )
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
            lambda: native.await_change(self._handle, self._member, seq, deadline, ticket)
        )
        if status in (0, TIMED_OUT):
            return now, waited
        if status == CANCELLED:
            raise errors.WaitCancelledError(
                "the wait for any change was ended: it was cancelled or its interpreter shuts down"
            )
        raise self._fail(status)

    def cancel(self, ticket: int = 0) -> None:
        native.cancel(self._handle, self._member, ticket)

    def registrations(self, name: str | None = None) -> tuple[int, int, list[Registration]]:
        status, version, node, records = native.list_facts(
            self._handle, None if name is None else _bytes(name)
        )
        if status:
            raise self._fail(status)
        return version, node, [_registration(r) for r in records]

    def registrations_since(self, kind: int, seq: int) -> tuple[int, list[Registration]]:
        status, live, records = native.list_since(self._handle, kind, seq)
        if status:
            raise self._fail(status)
        return live, [_registration(r) for r in records]

    def version(self, node: int) -> int:
        version = native.version(self._handle, node)
        if version < 0:
            raise self._fail(version)
        return version

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
        if os.environ.get(ENVIRONMENT) == self.label and self.role == MAIN:
            del os.environ[ENVIRONMENT]
        native.leave(self._handle, self._member)
        native.close(self._handle)

    def _join_again(self) -> None:
        """In the child of a fork: the parent's membership stays the parent's."""
        self.pid = os.getpid()
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


def _leave_all() -> None:
    for registry in list(_live.values()):
        registry.close()


def _rejoin_all() -> None:
    _waits.forked()
    for registry in list(_live.values()):
        registry._join_again()


def _warn_of_fork() -> None:
    """CPython cannot fork while a sub-interpreter lives: the child hangs or dies
    (python/cpython#139759).
    """
    pid = os.getpid()
    others = {
        member[0]
        for registry in _live.values()
        for member in registry.members()
        if member[1] == pid and member[0] != interpreter_id
    }
    if others:
        import warnings

        warnings.warn(
            f"this process forks while its sub-interpreters {sorted(others)} live: CPython "
            "ruins the child. "
            "Fork first and create interpreters afterwards, or start processes by spawn or "
            "subprocess.",
            RuntimeWarning,
            stacklevel=3,
        )


def _until_it_ends(wait: Callable[[], tuple[int, T, WaitTuple]]) -> tuple[int, T, Waited]:
    """A wait that goes on after signals: status, result, and how it went in all."""
    total = [0, 0, 0, 0, 0]
    _waits.begin()
    try:
        while True:
            status, result, stats = wait()
            for i, figure in enumerate(stats):
                total[i] += figure
            if status != INTERRUPTED:
                return status, result, Waited(total[0] / 1e9, *total[1:])
            _run_signal_handlers()
    finally:
        _waits.end()


def _run_signal_handlers() -> None:
    """After an interrupted wait. In a sub-interpreter on the main thread Python would not run them
    by itself.
    """
    raised = run_signal_handlers()
    if raised is None:
        return
    name, text = raised
    if name == "KeyboardInterrupt":
        raise KeyboardInterrupt(text)
    raise RuntimeError(f"a signal handler of the main interpreter raised {name}: {text}")


atexit.register(_leave_all)
os.register_at_fork(before=_warn_of_fork, after_in_child=_rejoin_all)
