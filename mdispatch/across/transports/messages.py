"""Messages between two processes: values as bytes, over a socket that keeps messages apart.

What is larger than a socket's message lies in memory that the sender shares: a memfd, sealed so
that nobody makes it smaller under its reader, whose descriptor goes over the line beside the
socket. It has no name, so nothing is left when a process is killed. The sender uses it for its next
large message again; a larger one gets another memory, with the next number.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from errno import EMFILE
from struct import Struct

from ...errors import SystemCallError
from ...facts.native import c_kernels

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: How many bytes a message has at most that does not lie in shared memory.
INLINE = 1 << 15
#: How many bytes a message has at most.
LARGEST = 1 << 30

#: A message of this form says where the message is: number of the memory, size. wire.c begins its
#: own by another stamp.
_ELSEWHERE = Struct("=HxxIQ")
_STAMP = 0x4D02
_NUMBER = Struct("=I")
#: How each call begins: a list of six, of which the first are the ticket, the deadline and a list.
#: (the kinds of wire.c)
_HEAD = Struct("=HBqBqBqBq")
_INT, _LIST = 2, 6
_SMALLEST = 1 << 16
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_SHARED, _COPIES = 1, 2
_BLOCK = 512  # bytes, of what stat() counts


def _no_memory(size: int, error: OSError) -> SystemCallError:
    what = f"{size:,} bytes of memory" if size else "the memory"
    return SystemCallError(
        f"{what} that a message between processes lies in cannot be had: "
        f"{os.strerror(error.errno or 0)}\nClose files, or give this process more memory.",
        errno=error.errno,
    )


class TooLarge(Exception):
    """What is to be sent is more than a message takes. The text says what it has."""


class Messages:
    """One side of a line. Belongs to the thread that makes, or answers, the call under way.

    ``socket`` keeps messages apart; over ``beside`` go the descriptors of memory.
    """

    __slots__ = (
        "_buffer",
        "_mine",
        "_number",
        "_pack",
        "_their_number",
        "_theirs",
        "_unpack",
        "beside",
        "socket",
    )

    def __init__(self, channel: socket.socket, beside: socket.socket) -> None:
        self.socket = channel
        self.beside = beside
        self._pack, self._unpack = c_kernels.pack, c_kernels.unpack
        self._buffer = bytearray(INLINE)
        self._mine: mmap.mmap | None = None
        self._number = 0
        self._theirs: mmap.mmap | None = None
        self._their_number = 0

    def packed(
        self,
        value: list[Any],
        depth: int,
        known: tuple[Any, ...],
        written: tuple[Any, ...],
        met: list[Any],
    ) -> bytes | str:
        """The message for :meth:`send`; the name of a type that cannot travel, as a text. Raises
        TooLarge, and OSError where no memory can be had.

        ``met`` gets the memory in it. Memory in ``known`` is sent by its number there, and that in
        ``written`` lies where both sides write to it.
        """
        limit = 0 if written else INLINE
        while True:
            made: bytes | str | int
            made = self._pack(value, depth, known, written, met, self._mine, limit)
            if not isinstance(made, int):
                return made
            if made < 0:
                raise TooLarge(f"has {-made:,} values")
            if made > LARGEST:
                raise TooLarge(f"takes {made:,} bytes")
            if self._mine is not None and made <= len(self._mine):
                return _ELSEWHERE.pack(_STAMP, self._number, made)
            self._share(made)

    def _share(self, size: int) -> None:
        """New memory of mine for that many bytes, and some more. Raises SystemCallError, and
        ConnectionError where nobody is there to get it.
        """
        size = max(_SMALLEST, 1 << (size - 1).bit_length())
        memory = -1
        try:
            memory = os.memfd_create("mdispatch-call", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.posix_fallocate(memory, 0, size)  # else writing to it could be a SIGBUS
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            self._mine = None
            made = mmap.mmap(memory, size)
            self._number += 1
            socket.send_fds(self.beside, [_NUMBER.pack(self._number)], [memory])
            self._mine = made
        except ConnectionError:
            raise
        except OSError as error:
            raise _no_memory(size, error) from None
        finally:
            if memory >= 0:
                os.close(memory)

    def mine(self, message: bytes) -> memoryview:
        """The bytes of a message that lies in my memory."""
        assert self._mine is not None
        return memoryview(self._mine)[: _ELSEWHERE.unpack(message)[2]]

    def wait(self) -> bool:
        """Until there is a message, which is left where it is. False at the end. Raises OSError."""
        return bool(self.socket.recv(1, socket.MSG_PEEK))

    def head(self) -> tuple[int, int] | None:
        """The ticket of the call in the next message, which is left where it is, and the number of
        homes on its way here. None where the message is there no more, or its memory cannot be had.
        Raises as :meth:`receive`.
        """
        try:
            body = self.receive(socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except (BlockingIOError, SystemCallError):
            return None
        if body is None:
            return None
        with body:
            if len(body) < _HEAD.size:
                raise ValueError("it is no call")
            stamp, outer, size, is_ticket, ticket, is_deadline, _, inner, way = _HEAD.unpack_from(
                body
            )
        if (stamp, outer, size, is_ticket, is_deadline, inner) != (
            _STAMP,
            _LIST,
            6,
            _INT,
            _INT,
            _LIST,
        ):
            raise ValueError("it is no call")
        return ticket, way

    def receive(self, flags: int = 0) -> memoryview | None:
        """The next message, None at the end. Raises OSError, SystemCallError where its memory
        cannot be had, and ValueError for what is none.
        """
        size = self.socket.recv_into(self._buffer, 0, flags)
        if not size:
            return None
        body = memoryview(self._buffer)[:size]
        if size != _ELSEWHERE.size:
            return body
        stamp, number, size = _ELSEWHERE.unpack(body)
        if stamp != _STAMP:
            return body
        body.release()
        while self._their_number != number:
            self._their_number = self._take()
        if self._theirs is None or size > len(self._theirs):
            raise ValueError("it is larger than the memory that was sent")
        return memoryview(self._theirs)[:size]

    def _take(self) -> int:
        """Takes the next memory that the other side shares. Returns its number."""
        self._theirs = None
        told, found, flags, _ = socket.recv_fds(
            self.beside, _NUMBER.size, 1, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        )
        try:
            if not found and flags & socket.MSG_CTRUNC:
                raise _no_memory(0, OSError(EMFILE, "no descriptor is left"))
            if len(found) != 1 or len(told) != _NUMBER.size:
                raise ValueError("it has no memory")
            if fcntl.fcntl(found[0], fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise ValueError("its memory could be cut off")
            memory = os.fstat(found[0])
            if memory.st_size > LARGEST:
                raise ValueError("its memory is larger than any message")
            if memory.st_blocks * _BLOCK < memory.st_size:
                raise ValueError("its memory has holes")  # whoever reads them would pay for them
            try:
                self._theirs = mmap.mmap(found[0], memory.st_size)
            except OSError as error:
                raise _no_memory(memory.st_size, error) from None
        finally:
            for each in found:
                os.close(each)
        return int(_NUMBER.unpack(told)[0])

    def shown(self, body: memoryview, met: list[Any]) -> Any:
        """The value of a message. Its memory, in ``met``, is that of the message."""
        how = _SHARED if body.obj is self._theirs else 0
        return self._unpack(body, (), met, how)

    def copied(self, body: memoryview, known: tuple[Any, ...]) -> Any:
        """The value of a message, which stays no longer than this call."""
        how = _SHARED if body.obj is self._theirs else 0
        try:
            return self._unpack(body, known, [], how | _COPIES)
        finally:
            body.release()

    def keep_theirs(self) -> None:
        """Somebody keeps memory of a message that was shown: no other message is put there."""
        self._buffer = bytearray(INLINE)
        self._theirs = None

    def leave_mine(self) -> None:
        """The other side keeps memory of mine: it gets no other message there."""
        self._mine = None
