"""The registry in plain Python, for one interpreter: the oracle to which tests compare the shared
one.

Locking: the condition ``_changed`` guards all fields after it. Waiters look at the facts again
after each change.
"""

from __future__ import annotations

import os
import threading
import time

from .. import errors
from .native.constants import MD_MAX_BODY, MD_MAX_NAME, MD_RAISE_ALL, MD_UNIQUE
from .registration import KIND_NAMES, MAIN, POLICY, Registration
from .waits import Waited, check_timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .abc import Struck

__all__ = ["LocalRegistry"]


class LocalRegistry:
    """Facts in a list, simple enough to be right; the shared registry has to agree with it."""

    def __init__(self, role: int = MAIN) -> None:
        self.role = role
        self.label = "(local)"
        self._changed = threading.Condition()
        self._facts: list[Registration] = []
        self._versions: dict[str, int] = {}
        self._nodes: list[str] = []
        self._next_seq = 1
        # Waits under way, with their tickets. Cancelling a wait removes it here.
        self._waits: dict[object, int] = {}
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise errors.RegistryClosedError(
                "the local registry is closed; make a new one", self.label
            )

    def _check(self, name: str, body: str = "") -> None:
        """Refuses what exceeds the limits of the contract (mdispatch.h, md_limit)."""
        if not name or len(name.encode("utf-8", "backslashreplace")) > MD_MAX_NAME:
            raise errors.InvalidArgumentError(f"names have 1 to {MD_MAX_NAME} bytes")
        if len(body.encode("utf-8", "backslashreplace")) > MD_MAX_BODY:
            raise errors.InvalidArgumentError(f"bodies have at most {MD_MAX_BODY} bytes")

    def _matching(self, kind: int, key: int, name: str) -> list[Registration]:
        return [f for f in self._facts if (f.kind, f.key, f.name) == (kind, key, name)]

    def _raise_versions(self, kind: int, name: str) -> None:
        for each in self._versions if POLICY[kind] & MD_RAISE_ALL else [name]:
            self._versions[each] += 1

    def register(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
        with self._changed:
            self._check_open()
            self._check(name, body)
            if name not in self._versions:
                self._nodes.append(name)
                self._versions[name] = 1
            there = self._matching(kind, key, name)
            if POLICY[kind] & MD_UNIQUE and there:
                raise errors.DuplicateRegistrationError(
                    f"{KIND_NAMES[kind]} {name!r} is registered already",
                    KIND_NAMES[kind],
                    name,
                    str(key),
                    there[-1].where,
                    where,
                )
            fact = Registration(0, self._next_seq, kind, key, name, body, where, os.getpid(), 0)
            self._next_seq += 1
            self._facts.append(fact)
            self._raise_versions(kind, name)
            self._changed.notify_all()
            return fact

    def strike(self, registration: Struck) -> bool:
        with self._changed:
            wanted = registration.ref, registration.seq
            found = [fact for fact in self._facts if (fact.ref, fact.seq) == wanted]
            if self._closed or not found:
                return False
            self._facts.remove(found[0])
            self._next_seq += 1
            self._raise_versions(found[0].kind, found[0].name)
            self._changed.notify_all()
            return True

    def find(self, kind: int, key: int, name: str) -> Registration | None:
        with self._changed:
            self._check_open()
            self._check(name)
            there = self._matching(kind, key, name)
            return there[-1] if there else None

    def has(self, kind: int, key: int, name: str) -> bool:
        return self.find(kind, key, name) is not None

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
        with self._changed:
            self._check(name)
            enough, waited = self._await(
                lambda: len(self._matching(kind, key, name)) >= at_least,
                f"{name} ({KIND_NAMES[kind]})",
                timeout,
                ticket,
            )
            return self._matching(kind, key, name)[-1] if enough else None, waited

    def await_change(self, seq: int, timeout: float | None, ticket: int = 0) -> tuple[int, Waited]:
        timeout = check_timeout(timeout)
        with self._changed:
            _, waited = self._await(lambda: self._next_seq != seq, "any change", timeout, ticket)
            return self._next_seq, waited

    def _await(
        self, reached: Callable[[], bool], what: str, timeout: float | None, ticket: int
    ) -> tuple[bool, Waited]:
        end = None if timeout is None else time.monotonic() + timeout
        waited = Waited()
        wait = object()
        self._waits[wait] = ticket
        try:
            while True:
                self._check_open()
                if wait not in self._waits:
                    raise errors.WaitCancelledError(f"the wait for {what} was ended")
                if reached():
                    return True, waited
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False, waited
                began = time.monotonic()
                woken = self._changed.wait(left)
                waited.seconds += time.monotonic() - began
                waited.sleeps += 1
                waited.wakes += woken
        finally:
            self._waits.pop(wait, None)

    def cancel(self, ticket: int = 0) -> None:
        with self._changed:
            for wait in [
                wait for wait, known in self._waits.items() if not ticket or known == ticket
            ]:
                del self._waits[wait]
            self._changed.notify_all()

    def registrations(self, name: str | None = None) -> tuple[int, int, list[Registration]]:
        with self._changed:
            self._check_open()
            if name is None:
                return 0, 0, [f for each in self._nodes for f in self._facts if f.name == each]
            if name not in self._versions:
                return 0, 0, []
            node = self._nodes.index(name) + 1
            return self._versions[name], node, [f for f in self._facts if f.name == name]

    def registrations_since(self, kind: int, seq: int) -> tuple[int, list[Registration]]:
        with self._changed:
            self._check_open()
            live = [f for f in self._facts if kind in (0, f.kind)]
            return len(live), [f for f in live if f.seq >= seq]

    def claim(self, namespace: str, where: str) -> bool:
        return self.role == MAIN  # there are no other members

    def release(self, namespace: str) -> None:
        pass

    def is_untold(self) -> bool:
        return False  # the child has a book of its own

    def is_mine(self, registration: Registration) -> bool:
        return True

    def version(self, node: int) -> int:
        with self._changed:
            self._check_open()
            if not 0 < node <= len(self._nodes):
                raise errors.InvalidArgumentError(f"there is no node {node}")
            return self._versions[self._nodes[node - 1]]

    def view(self, make: bool = True) -> None:
        """Calls go through Python."""

    def touch(self) -> None:
        """No call in C knows anything of it."""

    def check(self) -> str:
        """Only the versions are derived."""
        with self._changed:
            self._check_open()
            return "".join(
                f"{fact.name} has no version\n"
                for fact in self._facts
                if fact.name not in self._versions
            )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
