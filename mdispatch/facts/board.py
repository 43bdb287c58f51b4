"""A board: what an interpreter that serves kernels shows of the calls in it to whoever looks from
outside (``mdispatch doctor``, ``top``), also while it is stopped, or computes and answers nobody.

It is memory without a name, which the interpreter keeps open: its offers have the number of the
descriptor, under which /proc shows it to the same user. It ends with the process. Nobody joins,
asks or waits for anything to read it.

It has lines of eight integers (``row`` in native/bind/ext/visit.c). The first one is the heading:
stamp, process, interpreter, how many calls have ended and how long one has waited for the GIL at
most, both of threads that have ended. Then comes a row for each thread that visits, then one for
each call of other processes at a time: since when the call is there (0: none is), since when it
runs (0: it waits for the GIL), its ticket, the caller's process, interpreter and thread (0: not
known), how many calls of this row have ended, and how long one has waited at most.

Each row has one writer: the thread whose seat has it, or whose call has it. Who reads may see a
part of one call and a part of the next: it is a look, not a count.
"""

from __future__ import annotations

import mmap
import os
import re
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from .native import native

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

__all__ = ["Board", "Load", "UnderWay", "load_of"]

_ROW = Struct("=8q")
_DONE = Struct("=q")
_AT_DONE = 48
_STAMP = int.from_bytes(b"mdboard1", "little")
_NAME = "mdispatch-board"
_LINK = f"/memfd:{_NAME} (deleted)"
#: How many threads that visit, and how many calls of other processes, have a row. Those beyond them
#: have none, and are not seen.
_VISITS, _CALLS = 191, 64
_SIZE = _ROW.size * (1 + _VISITS + _CALLS)
_CALLER = re.compile(r"interpreter (\d{1,15}) of process (\d{1,15})")


@lru_cache(maxsize=64)
def _caller(home: str) -> tuple[int, int]:
    """The process and the interpreter of a home in words."""
    found = _CALLER.match(home)
    return (int(found[2]), int(found[1])) if found else (0, 0)


class Board:
    """The board of this interpreter. ``number`` is that of its descriptor; ``visits`` is the memory
    for native/bind/ext/visit.c: the heading and the rows of visits. Raises OSError if none can be
    had.

    Locking: none. A free row is taken, and given back, by one step of a list.
    """

    __slots__ = ("_done", "_free", "_memory", "number", "visits")

    def __init__(self, interpreter: int) -> None:
        import fcntl  # only Linux has it all

        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        self.number = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.number, _SIZE)
            fcntl.fcntl(self.number, fcntl.F_ADD_SEALS, seals)
            self._memory = mmap.mmap(self.number, _SIZE)
        except BaseException:
            os.close(self.number)
            raise
        _ROW.pack_into(self._memory, 0, _STAMP, os.getpid(), interpreter, 0, 0, 0, 0, 0)
        first = _ROW.size * (1 + _VISITS)
        self.visits = memoryview(self._memory)[:first]
        self._free = list(range(first, _SIZE, _ROW.size))
        self._done = dict.fromkeys(self._free, 0)

    def begins(self, ticket: int, home: str) -> int:
        """A call of another process begins to run. Returns what :meth:`ends` takes."""
        try:
            row = self._free.pop()
        except IndexError:
            return 0
        now = native.now()
        done = self._done[row]
        _ROW.pack_into(self._memory, row, now, now, abs(ticket), *_caller(home), 0, done, 0)
        return row

    def ends(self, row: int) -> None:
        if row:
            self._done[row] += 1
            _DONE.pack_into(self._memory, row, 0)
            _DONE.pack_into(self._memory, row + _AT_DONE, self._done[row])
            self._free.append(row)

    def close(self) -> None:
        """Shows it no longer. Its memory stays as long as somebody has it."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


class UnderWay(NamedTuple):
    """A call in an interpreter that serves: its ticket there; its caller (0: not known); since how
    many seconds it is there; and whether it waits for the GIL, else it runs.
    """

    ticket: int
    pid: int
    interpreter: int
    thread: int
    seconds: float
    waits: bool


class Load(NamedTuple):
    """What a board shows: how many calls have ended, how many seconds one has waited for the GIL at
    most, and the calls that are there, the longest first.
    """

    done: int
    longest: float
    calls: tuple[UnderWay, ...]

    @classmethod
    def of(cls, data: bytes, now: int) -> Self:
        (*_, done, longest, _, _, _), *rows = _ROW.iter_unpack(data)
        calls = []
        for since, runs, ticket, pid, interpreter, thread, ended, waited in rows:
            done += ended
            longest = max(longest, waited)
            if since:
                seconds = max(0, now - since) / 1e9
                waits = not runs
                calls.append(UnderWay(ticket, pid, interpreter, thread, seconds, waits))
        calls.sort(key=lambda each: -each.seconds)
        return cls(done, longest / 1e9, tuple(calls))


def load_of(pid: int, interpreter: int, number: int) -> Load | None:
    """What the board of that interpreter shows; None where it cannot be seen."""
    path = f"/proc/{pid}/fd/{number}"
    try:
        if os.readlink(path) != _LINK:
            return None
        board = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.pread(board, _SIZE, 0)
    finally:
        os.close(board)
    if len(data) != _SIZE or _ROW.unpack_from(data)[:3] != (_STAMP, pid, interpreter):
        return None
    return Load.of(data, native.now())
