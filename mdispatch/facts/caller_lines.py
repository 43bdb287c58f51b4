"""The lines of user code from which registrations come."""

from __future__ import annotations

from ..errors.locations import Location, name_in, on_behalf, printable, registrants_location
from .native import caller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType
    from typing import Any

    Reach = tuple[CodeType, Iterator[tuple[int, int, int | None]], int, int, int | None]

_KNOWN = 64


class CallerLines:
    """Finds the line of user code that called mdispatch, fast when a module registers much.

    Python finds the line of an instruction by reading the line table from its start: thousands of
    entries in a module that defines thousands of operators. So each search continues where the last
    one ended; and the lines that a loop calls from again and again are remembered.

    There is no lock. Looking a known line up is one step, and so is noting one. A thread that
    searches takes the iterator away; another thread finds no iterator and starts a new one.
    """

    __slots__ = ("_known", "_reach")

    def __init__(self) -> None:
        self._known: dict[int, tuple[CodeType, Location]] = {}  # by the instruction
        self._reach: list[Reach] = []  # at most one: how far the last search got

    def here(self) -> Location:
        """The location of the code that registers."""
        found = caller("__name__")
        return (found and self._at(*found)) or registrants_location()

    def of(self, frame: FrameType) -> Location:
        """The location of the code on whose behalf that of a frame registers."""
        behalf = on_behalf(frame)
        found = behalf and self._at(behalf.f_code, behalf.f_lasti, behalf.f_globals)
        return found or registrants_location(frame)

    def _at(self, code: CodeType, at: int, names: dict[str, Any]) -> Location | None:
        """The location of an instruction; None for code without a file: its module says more."""
        known = self._known.get(at)
        if known is not None and known[0] is code:
            return known[1]
        if code.co_filename.startswith("<"):
            return None
        location = Location(printable(f"{code.co_filename}:{self._line(code, at)}"), name_in(names))
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[at] = code, location
        return location

    def _line(self, code: CodeType, at: int) -> int | None:
        try:
            reached, lines, start, end, line = self._reach.pop()
        except IndexError:
            reached = None
        if reached is not code or at < start:
            lines, end = code.co_lines(), 0
        while at >= end:
            start, end, line = next(lines)
        self._reach[:] = [(code, lines, start, end, line)]
        return line
