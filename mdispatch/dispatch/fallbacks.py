"""The callables of one interpreter's backend fallbacks: apart from kernels.py, for every start
makes the place for them, and few fill it.
"""

from __future__ import annotations

from ..facts.native import unlock
from ..forking import new_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..facts import Registration
    from ..keys.numbers import DispatchKey
    from .kernels import LocalKernel


class Fallbacks:
    """The callables of this interpreter's backend fallbacks, by key; all operators share them.

    ``lock`` is held while they change and while a table is computed from them. As with an entry's
    kernels, the interpreter that registers a fallback publishes its registration and adds its
    callable under one hold, and ends both under one hold. The lock is taken after an entry's own
    lock. ``changes`` counts the changes; a table that was computed at another count is out of date.
    ``refusal`` is set where this interpreter may call no operator: it raises the reason.
    """

    __slots__ = ("changes", "kernels", "lock", "preferences", "refusal", "when_changed")

    def __init__(self) -> None:
        self.kernels: dict[DispatchKey, list[LocalKernel]] = {}
        self.changes = 0
        self.refusal: Callable[[], object] | None = None
        #: Called after a change, for calls in C: they do not look at ``changes``.
        self.when_changed: Callable[[], object] = int
        #: What this interpreter prefers among kernels: a Chooser has it here. Under ``lock``.
        self.preferences: Any = None
        self.lock = new_lock()

    def add(self, kernel: LocalKernel, publish: Callable[[], Registration]) -> Registration:
        """Registers a fallback: ``publish`` its registration, then add its callable, under one
        hold."""
        with self.lock:
            fact = publish()
            kernel.seq = fact.seq
            self.keep(kernel)
        return fact

    def remove(self, kernel: LocalKernel, end: Callable[[], bool]) -> None:
        """Ends what was registered here: the registration, then the callable, under one hold."""
        with self.lock:
            end()
            self.drop(kernel)

    def keep(self, kernel: LocalKernel) -> None:
        """Adds the callable of a registration that was verified."""
        with self.lock:
            self.kernels.setdefault(kernel.key, []).append(kernel)
            self._changed()

    def drop(self, kernel: LocalKernel) -> None:
        """Removes the callable of a registration that was verified."""
        with self.lock:
            here = self.kernels.get(kernel.key, [])
            if kernel in here:
                here.remove(kernel)
            self._changed()

    def refuse(self, refusal: Callable[[], object] | None) -> None:
        """Has every call from now on begin with ``refusal``; None ends that."""
        with self.lock:
            self.refusal = refusal
            self._changed()

    def reorder(self, change: Callable[[], object]) -> None:
        """Changes what is preferred: every table is computed anew."""
        with self.lock:
            change()
            self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self.when_changed()


def inherit(kernels: dict[DispatchKey, list[LocalKernel]]) -> None:
    """In the child of a fork: the registrations of these callables belong to the parent."""
    unlock(kernels)
    for each in kernels.values():
        unlock(each)
        for kernel in each:
            kernel.seq = -abs(kernel.seq)
