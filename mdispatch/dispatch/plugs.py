"""The state of a feature for one registry, without a field of its own in the core.

A feature derives a class from :class:`Plug`. ``dispatcher.of(Class)`` is the registry's one object
of this class, made at the first call. So a registry pays for the features in use, and the core
names none.

Note [When a Dispatcher calls its plugs]
The Dispatcher calls its plugs before a warm-up compares, in the child of a fork, and at the end of
the registry, each time in the order of their making. No plug uses the state of another one there,
so another order would come to the same.

- Before a warm-up compares, a plug may register and verify: nothing is locked.
- At the end the registry is closed already, and the operators are still there: a plug that follows
  them stops first.
- In the child all locks of the package are free (Note [Locks across a fork], forking.py), and this
  interpreter has joined again. The listeners and the operators come after the plugs.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Plug:
    """The state of a feature for one registry. See the module."""

    __slots__ = ()

    def __init__(self, dispatcher: Any) -> None:
        """``dispatcher`` is the registry's."""

    def forked(self, is_heir: bool) -> None:
        """In the child of a fork: forgets the state of the parent, and unlocks its own tables.
        ``is_heir``: the registrations that were made here belong to the parent.
        """

    def look(self) -> None:
        """Before a warm-up compares: registers or verifies what the feature follows, and has not
        yet seen.
        """

    def ended(self) -> None:
        """After the end of the registry: lets go of all objects."""
