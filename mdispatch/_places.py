"""Where the registrations of a library come from, one after the other."""

from __future__ import annotations

from ._native import caller
from ._place import place_of, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    Reach = tuple[CodeType, Iterator[tuple[int, int, int | None]], int, int, int | None]

__all__ = ["Places"]

_KNOWN = 64


class Places:
    """The places of one library's registrations: where the user's code is that calls mdispatch.

    To look for a line takes as long as the code that lies before it, thousands of lines in a module
    of thousands of operators. So it is looked for from where the last one was; and a loop comes
    from the same few places again and again.

    Without a lock: the places known are one step to look up and one to note, and who looks for a
    line takes the iterator away meanwhile. Another thread that finds none begins anew.
    """

    __slots__ = ("_known", "_reach")

    def __init__(self) -> None:
        self._known: dict[int, tuple[CodeType, str]] = {}  # by the place in the code
        self._reach: list[Reach] = []  # one at most: how far the lines of a code were looked at

    def here(self) -> str:
        """``file:line`` of the nearest code that is not ours."""
        found = caller("__name__")
        if found is None:
            return place_of(None)
        code, at = found
        known = self._known.get(at)
        if known is not None and known[0] is code:
            return known[1]
        place = printable(f"{code.co_filename}:{self._line(code, at)}")
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[at] = code, place
        return place

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
