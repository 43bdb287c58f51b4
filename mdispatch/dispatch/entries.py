"""The operators of one interpreter, as far as somebody there uses them.

A name has at most one entry at a time, in which all meet who use the operator: handles, those who
register kernels, calls. An entry lives while one of them refers to it, and while it has callables
or rules of this interpreter (``occupied``), whoever refers to it. So a program that makes and ends
names for ever keeps none of them, and nobody ever has another entry than the one that is found.

Locking: none. Each method changes a dict in one step. An entry is found dead and replaced by two
steps: whoever loses the second one uses what the winner has put there.
"""

from __future__ import annotations

# Not weakref, which loads much more.
from _weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .entry import OperatorEntry

__all__ = ["Entries"]


class _Ref(ref["OperatorEntry"]):
    """A reference that knows its name, and counts for nothing."""

    __slots__ = ("name",)
    name: str


class Entries:
    """The entries by their operators' names."""

    def __init__(self) -> None:
        self.refs: dict[str, _Ref] = {}
        #: Those that have callables or rules. An entry enters and removes itself, under its lock.
        self.occupied: dict[str, OperatorEntry] = {}
        self._ended = self._forget  # one bound method for all references

    def get(self, name: str) -> OperatorEntry | None:
        there = self.refs.get(name)
        return None if there is None else there()

    def __getitem__(self, name: str) -> OperatorEntry:
        entry = self.get(name)
        if entry is None:
            raise KeyError(name)
        return entry

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get_or_put(self, name: str, make: Callable[[str], OperatorEntry]) -> OperatorEntry:
        while True:
            entry = self.get(name)
            if entry is not None:
                return entry
            _remove_dead_weakref(self.refs, name)
            fresh = make(name)
            there = _Ref(fresh, self._ended)
            there.name = name
            if self.refs.setdefault(name, there) is there:
                return fresh

    # At the end of an interpreter modules have no names any more; the default is still there.
    def _forget(self, there: _Ref, remove: Callable[..., None] = _remove_dead_weakref) -> None:
        remove(self.refs, there.name)

    def items(self) -> Iterator[tuple[str, OperatorEntry]]:
        for name, there in list(self.refs.items()):
            entry = there()
            if entry is not None:
                yield name, entry

    def keys(self) -> list[str]:
        return [name for name, _ in self.items()]

    def values(self) -> list[OperatorEntry]:
        return [entry for _, entry in self.items()]
