"""The operators of one interpreter, as far as somebody there uses them.

A name has at most one entry at a time, in which all meet who use the operator: handles, those who
register kernels, calls. An entry lives while one of them refers to it, and while it has callables
or rules of this interpreter, whoever refers to it. So a program that makes and ends names for ever
keeps none of them, and nobody ever has another entry than the one that is found.

Locking: none. Each method changes the dict in one step. An entry is found dead and replaced by two
steps: whoever loses the second one uses what the winner has put there. That may be an entry itself,
where a dead reference was: then there is nothing to remove any more.
"""

from __future__ import annotations

# Not weakref, which loads much more.
from _weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .entry import OperatorEntry


class _Ref(ref["OperatorEntry"]):
    """A reference that knows its name, and counts for nothing."""

    __slots__ = ("name",)
    name: str


class Entries:
    """The entries by their operators' names."""

    def __init__(self) -> None:
        #: Those that have callables or rules, and references to the others. An entry that gets the
        #: first, or loses the last one, changes the one into the other, under its lock.
        self.there: dict[str, OperatorEntry | _Ref] = {}
        self._ended = self._forget  # one bound method for all references

    def get(self, name: str) -> OperatorEntry | None:
        there = self.there.get(name)
        return there() if isinstance(there, _Ref) else there

    def __getitem__(self, name: str) -> OperatorEntry:
        entry = self.get(name)
        if entry is None:
            raise KeyError(name)
        return entry

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get_or_put(
        self, name: str, make: Callable[[str], OperatorEntry], is_kept: bool = False
    ) -> OperatorEntry:
        """``is_kept``: a new one stays, whoever refers to it, until it lets go of itself."""
        while True:
            entry = self.get(name)
            if entry is not None:
                return entry
            dead = self.there.get(name)
            if isinstance(dead, _Ref):
                self._forget(dead)
            fresh = make(name)
            there = fresh if is_kept else self._ref(fresh)
            if self.there.setdefault(name, there) is there:
                return fresh

    def let_go(self, entry: OperatorEntry) -> None:
        """It lives as long as somebody refers to it."""
        self.there[entry.name] = self._ref(entry)

    def _ref(self, entry: OperatorEntry) -> _Ref:
        there = _Ref(entry, self._ended)
        there.name = entry.name
        return there

    # At the end of an interpreter modules have no names any more; the defaults are still there.
    def _forget(
        self,
        dead: _Ref,
        remove: Callable[..., None] = _remove_dead_weakref,
        no_ref: type[TypeError] = TypeError,
    ) -> None:
        try:
            remove(self.there, dead.name)
        except no_ref:
            return  # it is an entry by now

    def end(self) -> None:
        """Drops them, and their callables, each of which refers to its entry. Takes them out of
        PyTorch, where another registry may need their names.
        """
        for entry in self.values():
            if entry.peer is not None:
                entry.leave_peer()
        for there in list(self.there.values()):
            if not isinstance(there, _Ref):
                there.callables = ()
        self.there.clear()  # to which each entry refers

    def items(self) -> Iterator[tuple[str, OperatorEntry]]:
        for name in list(self.there):
            entry = self.get(name)
            if entry is not None:
                yield name, entry

    def keys(self) -> list[str]:
        return [name for name, _ in self.items()]

    def values(self) -> list[OperatorEntry]:
        return [entry for _, entry in self.items()]
