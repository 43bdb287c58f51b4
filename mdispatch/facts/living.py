"""The registries that this interpreter has open. Its end closes them, so that no waiter is left
asleep; the child of a fork renews them.
"""

from __future__ import annotations

import atexit
import os

from ..forking import load_the_rest, renew
from .native import unlock, unlock_modules
from .waits import Waits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Living(Protocol):
        """A registry, as far as its beginning and end are concerned."""

        def cancel(self) -> None:
            """Ends all waits of this interpreter."""

        def close(self) -> None:
            """Leaves the registry. Idempotent."""

        def forked(self, at_once: bool) -> bool:
            """In the child of a fork; ``at_once``: it may wait for others. Returns whether the
            registries after it may.
            """

        def neighbours(self) -> set[int]:
            """The other interpreters of this process that have the registry open."""


_live: dict[int, Living] = {}


def begin(registry: Living) -> None:
    _live[id(registry)] = registry


def end(registry: Living) -> None:
    _live.pop(id(registry), None)


def neighbours() -> set[int]:
    """The other interpreters of this process that have a registry open which is open here."""
    return {each for registry in _live.values() for each in registry.neighbours()}


def _cancel_all() -> None:
    for registry in list(_live.values()):
        registry.cancel()


#: The waits under way in this interpreter, whatever they wait for.
waits = Waits(_cancel_all)


def _close_all() -> None:
    for registry in list(_live.values()):
        registry.close()


def _in_child() -> None:
    """See Note [Locks across a fork] in forking.py."""
    unlock_modules()
    renew()
    unlock(waits)
    waits.forked()
    at_once = True
    for registry in list(_live.values()):
        unlock(registry)
        # Who holds the lock of one may be stopped: a fork waits for that once, and not for each.
        at_once = registry.forked(at_once) and at_once


def _before_fork() -> None:
    load_the_rest()
    _warn_of_fork()


def _warn_of_fork() -> None:
    """CPython cannot fork while a sub-interpreter lives: the child hangs or dies
    (python/cpython#139759).
    """
    others = neighbours()
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


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
