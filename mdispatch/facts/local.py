"""The registry in plain Python, for one process: all there is where registries are not shared
(docs/other-systems.md), ``Registry.local()`` elsewhere, and the oracle to which tests compare the
shared one.

Locking: ``_lock`` is held by whoever changes the registrations or is about to wait. It is taken as
it is, not by the condition, whose ``with`` is a function of Python: a signal handler that raises
there would leave it taken. Readers take no lock: what they read is replaced as a whole, by one
store. A change stores the registrations of its name first, and raises the name's version and the
registry's sequence after that; a reader reads the version first. So it has a version with its own
registrations or with newer ones, and in the second case the next look finds another version.

No wake is lost: a waiter holds the lock while it looks at the registrations and until it sleeps
(the condition releases it in the same step), and a change is made and told under the lock. So a
change comes before the look, which sees it, or after the sleep has begun, which it ends. A signal
handler may raise between a change and its telling; therefore a sleep lasts 0.1 s at most, and the
waiter looks again. (On Windows nothing else would let the main thread run a handler.)

Note [Commits]
The lock is reentrant, since a signal handler or a finalizer may use the registry at any point, also
in the middle of a change by its own thread. So a change is prepared first. Then a few statements
without a call compare what it was prepared from with what is there, and store it. Python runs no
handler and no finalizer within them. If something came in between, the change is prepared anew.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from _functools import partial  # type: ignore[import-not-found]  # functools loads much more

from .. import errors
from ..errors.words import shown
from ..forking import new_lock
from . import living
from .logs import described, waits_log
from .native import alone_because, interpreter_id
from .native.alone import not_shared
from .native.constants import (
    MD_ECLOSED,
    MD_ETOOLONG,
    MD_MAX_BODY,
    MD_MAX_NAME,
    MD_POLICY_MAIN,
    MD_RAISE_ALL,
    MD_UNIQUE,
)
from .opening import ENVIRONMENT, check_capacity
from .registration import CLAIM, MAIN, POLICY, Registration, kind_of
from .status import error_for
from .waits import Waited, check_timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .abc import Facts, Removable
    from .native.contract import MemberTuple, StatTuple

#: The longest sleep of a waiter, in seconds.
_SLICE = 0.1
#: How the addresses of local registries begin. A pid follows.
_PREFIX = "local:"


def _whole(text: str) -> str:
    """Half a character (a lone surrogate) is escaped, not refused, as in a shared registry."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_MOST_PUBLISHED = 4


class _Published(threading.local):
    """What a thread has registered since it has asked to forget, the first few."""

    def __init__(self) -> None:
        self.now: list[tuple[int, int]] = []


class _Name:
    """The registrations of one name, oldest first, and its version. Changed under ``_lock``. It
    ends with the last registration, and its number is never given out again.
    """

    __slots__ = ("facts", "node", "version")

    def __init__(self, node: int) -> None:
        self.node = node
        self.version = 1
        self.facts: tuple[Registration, ...] = ()


class LocalRegistry:
    """The registrations of this interpreter, which registers all of them."""

    alone = alone_because or "it was made by Registry.local()"
    observes = keeps_own = False
    differing: Any = None

    def __init__(self, role: int = MAIN) -> None:
        self.role = role
        self.pid = os.getpid()
        self.label = f"{_PREFIX}{self.pid}"
        #: Called in the child of a fork. See Note [Locks across a fork] in forking.py.
        self.after_fork: Callable[[], None] | None = None
        self.after_close: Callable[[], None] | None = None
        self._lock = new_lock()
        self._changed = threading.Condition(self._lock)
        self._names: dict[str, _Name] = {}  # in the order of their first registrations
        self._nodes: dict[int, _Name] = {}
        self._numbers = itertools.count(1)
        self._last_node = 0
        self._next_seq = 1
        # Waits under way, with their tickets. Cancelling a wait removes it here.
        self._waits: dict[object, int] = {}
        self._published = _Published()
        self._closed = False
        self._made = time.monotonic_ns()
        # The process that has a registry of its own and is a parent of this one, until this one was
        # warned that it shares nothing with it. 0: there is none.
        self._parent = 0
        living.begin(self)

    @classmethod
    def create(cls, name: str | None, capacity: int) -> LocalRegistry:
        check_capacity(capacity)
        if name is not None:
            raise not_shared(f"A registry with a name ({shown(name)})", alone_because, str(name))
        return cls._for_process()

    @classmethod
    def elect(cls, name: str | None, capacity: int) -> LocalRegistry:
        raise not_shared("Registry.elect", alone_because, name or "")

    @classmethod
    def attach(cls, address: str, timeout: float | None) -> LocalRegistry:
        raise not_shared("Registry.attach", alone_because, str(address))

    @classmethod
    def default(cls) -> LocalRegistry:
        """The default registry of this process. In the environment its address tells children that
        there is one, which they do not share.
        """
        address = os.environ.get(ENVIRONMENT, "")
        parent = address.removeprefix(_PREFIX)
        if address and (parent == address or not parent.isdigit()):
            raise not_shared(f"{ENVIRONMENT}={shown(address)}", alone_because, address)
        registry = cls._for_process()
        if address and address != registry.label:
            registry._parent = int(parent)
        os.environ[ENVIRONMENT] = registry.label
        return registry

    @classmethod
    def _for_process(cls) -> LocalRegistry:
        if interpreter_id != 0:
            raise not_shared(
                f"Sub-interpreter {interpreter_id}, which verifies what the main one registers,",
                alone_because,
            )
        return cls()

    def __repr__(self) -> str:
        return f"<LocalRegistry {self.label}{' closed' if self._closed else ''}>"

    def _check_open(self) -> None:
        if self._closed:
            raise error_for(MD_ECLOSED, self.label)

    def _check(self, name: str, body: str = "") -> None:
        """Refuses what exceeds the limits of the contract (mdispatch.h, md_limit)."""
        if not 0 < len(name.encode()) <= MD_MAX_NAME or len(body.encode()) > MD_MAX_BODY:
            raise error_for(MD_ETOOLONG, self.label)

    def _warn_of_parent(self, where: str) -> None:
        """Before the first registration of a child process."""
        parent, self._parent = self._parent, 0
        import warnings

        # At the line that registers. Python shows the text of that line if it finds the file.
        file, _, line = where.rpartition(":")
        warnings.warn_explicit(
            f"process {self.pid} registers for itself: the registry of its parent, process "
            f"{parent}, is not shared with it ({self.alone}), so nothing compares "
            "what the two register. See docs/other-systems.md",
            errors.NotSharedWarning,
            file or where,
            int(line) if line.isdigit() else 1,
        )

    # --- changes

    def register(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
        if not POLICY[kind]:
            raise errors.InvalidArgumentError(f"nobody registers a {kind_of(kind).name} so")
        return self._put(kind, key, name, body, where)

    def _put(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
        name, body, origin = _whole(name), _whole(body), _whole(getattr(where, "origin", where))
        if self._parent:
            self._warn_of_parent(where)
        with self._lock:
            self._check_open()
            self._check(name, body)
            while True:  # see Note [Commits]
                its = self._names.get(name) or self._named(name)
                there, seq = its.facts, self._next_seq
                if POLICY[kind] & MD_UNIQUE:
                    self._check_unique(there, kind, key, name, where)
                fact = Registration(
                    0, seq, kind, int(key), name, body, origin, self.pid, interpreter_id
                )
                now = (*there, fact)
                if len(self._published.now) < _MOST_PUBLISHED:
                    self._published.now.append((0, seq))
                if its.facts is not there or self._next_seq != seq:
                    continue
                its.facts = now
                its.version += 1
                self._next_seq = seq + 1
                break
            self._tell(kind, its)
        return fact

    def forget_published(self) -> None:
        self._published.now = []

    @property
    def published(self) -> list[tuple[int, int]]:
        return self._published.now

    def _named(self, name: str) -> _Name:
        made = _Name(next(self._numbers))
        self._last_node = made.node
        self._nodes[made.node] = made
        return self._names.setdefault(name, made)

    @staticmethod
    def _check_unique(
        there: tuple[Registration, ...], kind: int, key: int, name: str, where: str
    ) -> None:
        first = next((f for f in reversed(there) if f.kind == kind and f.key == key), None)
        if first is not None:
            raise errors.DuplicateRegistrationError(
                f"{kind_of(kind).name} {name!r} is registered already",
                kind_of(kind).name,
                name,
                str(key),
                first.where,
                where,
            )

    def remove(self, registration: Removable) -> bool:
        wanted = registration.seq
        with self._lock:
            if self._closed:
                return False
            its, found = self._holder(registration)
            name = found.name if found is not None else ""
            while True:  # see Note [Commits]
                if its is None or found is None:
                    break
                there, seq = its.facts, self._next_seq
                now = tuple(fact for fact in there if fact.seq != wanted)
                if len(now) == len(there):
                    break
                if its.facts is not there or self._next_seq != seq:
                    continue
                its.facts = now
                its.version += 1
                self._next_seq = seq + 1
                if not now:
                    del self._names[name], self._nodes[its.node]
                self._tell(found.kind, its)
                return True
        return False

    def _holder(self, registration: Removable) -> tuple[_Name | None, Registration | None]:
        """The name whose registration this is, and the registration."""
        known = self._names.get(getattr(registration, "name", ""))
        for its in (known,) if known is not None else list(self._names.values()):
            for fact in its.facts:
                if (fact.ref, fact.seq) == (registration.ref, registration.seq):
                    return its, fact
        return None, None

    def _tell(self, kind: int, its: _Name) -> None:
        """After a change, under the lock: wakes those who wait."""
        try:
            if POLICY[kind] & MD_RAISE_ALL:
                for each in list(self._names.values()):
                    each.version += int(each is not its)
        finally:
            self._changed.notify_all()

    # --- looking

    def _matching(self, kind: int, key: int, name: str) -> list[Registration]:
        its = self._names.get(name)
        there = its.facts if its is not None else ()
        return [fact for fact in there if fact.kind == kind and fact.key == key]

    def find(self, kind: int, key: int, name: str) -> Registration | None:
        name = _whole(name)
        self._check_open()
        self._check(name)
        there = self._matching(kind, key, name)
        return there[-1] if there else None

    def is_apart(self, name: str) -> bool:
        return False

    def versions(self, name: str) -> str:
        return ""

    def for_entry(self, name: str) -> Facts:
        return self

    def has(self, kind: int, key: int, name: str) -> bool:
        return self.find(kind, key, name) is not None

    def registrations(self, name: str | None = None) -> tuple[int, int, list[Registration]]:
        self._check_open()
        if name is None:
            return 0, 0, [fact for its in list(self._names.values()) for fact in its.facts]
        its = self._names.get(_whole(name))
        if its is None:
            return 0, 0, []
        version = its.version
        return version, its.node, list(its.facts)

    def registrations_since(self, kind: int, seq: int) -> tuple[int, list[Registration]]:
        _, _, there = self.registrations()
        live = [fact for fact in there if kind in (0, fact.kind)]
        return len(live), [fact for fact in live if fact.seq >= seq]

    def version(self, node: int) -> int:
        self._check_open()
        its = self._nodes.get(node)
        if its is not None:
            return its.version
        if 0 < node <= self._last_node:
            return 0  # it has ended; no name has this version
        raise errors.InvalidArgumentError(f"there is no node {node}")

    def reader(self, node: int) -> Callable[[], int]:
        return partial(self.version, node)  # type: ignore[no-any-return]

    def view(self, make: bool = True) -> None:
        """Calls go through Python."""

    def touch(self) -> None:
        """No call in C knows anything of it."""

    def members(self) -> list[MemberTuple]:
        """This interpreter."""
        self._check_open()
        return [(interpreter_id, self.pid, self.role, 1, len(self._waits), 0, 0, 0, b"")]

    def stat(self) -> StatTuple:
        _, _, there = self.registrations()
        counts = len(there), len(self._names), self._next_seq
        return (0, 0, 0, *counts, 0, self.pid, 1, 1, 1, MD_POLICY_MAIN, 0, self._made)

    def check(self) -> str:
        """Only the numbers are derived. Another thread's change may have raised the one and not yet
        the other, but not while this one has the lock.
        """
        with self._lock:
            return "".join(
                f"{fact.name}: it has a registration of number {fact.seq}, before its time\n"
                for its in self._names.values()
                for fact in its.facts
                if fact.seq >= self._next_seq
            )

    # --- waits

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
        timeout = check_timeout(timeout)
        name = _whole(name)
        self._check(name)
        there: list[Registration] = []

        def reached() -> bool:
            there[:] = self._matching(kind, key, name)
            return len(there) >= at_least

        what = f"{name} ({kind_of(kind).name})"
        enough, waited = self._await(reached, what, timeout, ticket, (kind, key, name))
        return there[-1] if enough else None, waited

    def await_change(self, seq: int, timeout: float | None, ticket: int = 0) -> tuple[int, Waited]:
        timeout = check_timeout(timeout)
        now = [seq]

        def reached() -> bool:
            now[0] = self._next_seq
            return now[0] != seq

        _, waited = self._await(reached, "any change", timeout, ticket)
        return now[0], waited

    def _await(
        self,
        reached: Callable[[], bool],
        what: str,
        timeout: float | None,
        ticket: int,
        fact: tuple[int, int, str] | None = None,
    ) -> tuple[bool, Waited]:
        course = [0] * 4  # as Waited has it, by_lease left out
        ended = "cancelled"
        token = object()
        try:
            living.waits.begin(token)
            is_there = self._sleep_until(reached, what, timeout, ticket, course)
            ended = "it is there" if is_there else "timed out"
            return is_there, Waited(*course)
        except errors.RegistryClosedError:
            ended = "closed"
            raise
        finally:
            living.waits.under_way.discard(token)
            slept, sleeps, *_ = course
            if sleeps and waits_log.listens():
                waits_log.tell(
                    "waited %.6f s in %s for %s, %d times asleep: %s",
                    slept / 1e9,
                    self.label,
                    what if fact is None else described(*fact),
                    sleeps,
                    ended,
                )

    def _sleep_until(
        self,
        reached: Callable[[], bool],
        what: str,
        timeout: float | None,
        ticket: int,
        course: list[int],
    ) -> bool:
        """Whether it was reached before the time was up. Adds each sleep to the course."""
        deadline = None if timeout is None else time.monotonic() + timeout
        wait = object()
        with self._lock:
            self._waits[wait] = ticket
            try:
                while True:
                    self._check_open()
                    if wait not in self._waits:
                        raise errors.WaitCancelledError(
                            f"the wait for {what} was ended: its task was cancelled or its "
                            "interpreter is shutting down"
                        )
                    if reached():
                        return True
                    left = _SLICE if deadline is None else deadline - time.monotonic()
                    if left <= 0:
                        return False
                    began = time.monotonic_ns()
                    woken = self._changed.wait(min(left, _SLICE))
                    slept = (time.monotonic_ns() - began, 1, woken, not woken)
                    course[:] = map(int.__add__, course, slept)
            finally:
                self._waits.pop(wait, None)

    def cancel(self, ticket: int = 0) -> None:
        with self._lock:
            for wait, known in list(self._waits.items()):
                if ticket and known != ticket:
                    continue
                self._waits.pop(wait, None)
            self._changed.notify_all()

    # --- roles

    def claim(self, namespace: str, where: str) -> bool:
        if not self.has(CLAIM, 0, namespace):
            self._put(CLAIM, 0, namespace, "", where)
        return True  # there are no other members

    def release(self, namespace: str) -> None:
        for claim in self._matching(CLAIM, 0, namespace):
            self.remove(claim)

    @property
    def is_host(self) -> bool:
        return False

    def is_untold(self) -> bool:
        return False  # the child has a registry of its own

    def is_mine(self, registration: Registration) -> bool:
        return True

    # --- the end, and forks

    def close(self) -> None:
        living.end(self)
        if not self._closed and os.environ.get(ENVIRONMENT) == self.label:
            del os.environ[ENVIRONMENT]
        with self._lock:
            was_closed, self._closed = self._closed, True
            self._changed.notify_all()
        if not was_closed and self.after_close is not None:
            self.after_close()

    def neighbours(self) -> set[int]:
        """Other interpreters know nothing of it."""
        return set()

    def forked(self, at_once: bool) -> bool:
        """The child goes on alone, with a copy of all registrations."""
        self._parent, self.pid = self.pid, os.getpid()
        self.label = f"{_PREFIX}{self.pid}"
        self._changed = threading.Condition(self._lock)
        self._waits = {}
        # Without a GIL, another thread may have stored a registration and not yet its number.
        numbers = [fact.seq for its in self._names.values() for fact in its.facts]
        self._next_seq = max([self._next_seq, *(number + 1 for number in numbers)])
        if self.after_fork is not None:
            self.after_fork()
        return True
