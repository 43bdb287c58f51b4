"""The registry that a member has for itself: the registrations under names apart."""

from __future__ import annotations

import itertools

from ..facts.local import LocalRegistry


class Own(LocalRegistry):
    """The registrations under names apart. ``first`` is the number of the first one."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._next_seq = first
        self._numbers = itertools.count(first)

    def forked(self, at_once: bool) -> bool:
        done = super().forked(at_once)
        self._parent = 0  # the child shares what its parent shared: there is nothing to warn of
        return done
