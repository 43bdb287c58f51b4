"""The transport for other processes of this host: a unix socket and a key that only this user can
reach, by multiprocessing.connection, and one thread of the owner for each line.

Note [Off the wire]
A line is a pair of sockets that keep messages apart. The caller holds the owner's end of it, too.
So it can take its own call back off the wire: the kernel gives each message to one reader. Who has
got the message decides what the call is: begun, where it was the owner; never run, where it was the
caller. No clock, no flag and no word of the other side is asked for it, so it holds for an owner
that is stopped or killed at any instruction, and one that goes on later finds nothing to run.

A caller waits for four things at once, with the deadline: the answer; the end of the line beside
the pair, over which the owner was greeted; the end of the owner's process (a pidfd, since a child
of the owner may have inherited its sockets); its interrupt. No wake is lost: all four stay as they
are once they have come, and the caller looks for the answer once more before it says that there is
none.

Calls of different lines close no circle: each has a thread of the owner to itself, and an owner
that has too many refuses the next one, or lets it wait where its kernel has a queue. Only calls
wait that no served kernel makes, so nobody who waits has a place elsewhere.

Note [Turns]
A call that waits stays on the wire, so its caller takes it back as ever: then its line ends, and
its turn with it. A thread that waits polls the file of its turn and the end of its line. No wake is
lost: it adds the turn under `_more` where it finds no place left. A thread that leaves a place
looks for turns under `_more`, and hands the place to the first. The file can be read from then on.
A thread whose line has ended takes its turn out under `_more`; if it has got the place meanwhile,
it finds no call on the wire, and leaves the place in the same way.

Locking: the pools of idle lines are dicts and lists, and each use is one step of one. `_more`
guards the owner's counts and turns; nobody waits for another lock, or runs a kernel, with it.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from errno import EAGAIN, ECONNREFUSED, ECONNRESET, ENOENT, EPIPE, ESRCH
from multiprocessing import AuthenticationError
from multiprocessing.connection import answer_challenge, deliver_challenge

from ...errors import InvalidArgumentError, MdispatchError, RegistryOwnerError, SystemCallError
from ...facts.native import c_kernels, interpreter_id
from ...forking import new_lock
from ..arrays import write_back
from .messages import Messages, TooLarge
from .place import Place, key_of, path_of, refused
from .transport import (
    BUSY,
    DAMAGED,
    GONE,
    KEPT,
    LARGE,
    LATE,
    NO_KERNEL,
    UNFIT,
    UNFIT_RESULT,
    Caller,
    Interrupt,
    interrupt,
    queues,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .transport import Answer

#: How many calls of other processes an owner runs at once, how many lines it has, how many callers
#: it greets at once, and how many wait until it greets them.
CALLS, LINES, GREETERS, _BACKLOG = 64, 512, 64, 128
#: Seconds in which a caller must have shown that it knows the key.
_GREETING = 10.0
_READY, _FULL = b"+", b"-"
_CREDENTIALS = struct.Struct("3i")
_LENGTH = struct.Struct("!i")  # as multiprocessing.connection has it
_NS = 1_000_000_000
#: Answers of an owner that has not called the kernel.
_NOT_RUN = (NO_KERNEL, LATE, BUSY, GONE)
#: What a connection fails with where nobody listens any more.
_NOBODY = (ENOENT, ECONNREFUSED, ECONNRESET, EPIPE, ESRCH)


class _Late(Exception):
    """The deadline has passed before the line was there."""


class _Greeting:
    """What multiprocessing's challenges need of a connection. All of the greeting ends by the
    deadline, however slowly the other side sends.
    """

    def __init__(self, line: socket.socket, deadline: int) -> None:
        self._line = line
        self._deadline = deadline

    def recv_bytes(self, maxlength: int) -> bytes:
        (size,) = _LENGTH.unpack(self._received(_LENGTH.size))
        if not 0 <= size <= maxlength:
            raise AuthenticationError("it sends what is no greeting")
        return self._received(size)

    def send_bytes(self, told: bytes) -> None:
        # The first bytes that the line takes: there is room for them.
        self._line.send(_LENGTH.pack(len(told)) + told, socket.MSG_DONTWAIT)

    def _received(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            _wait_for(self._line.fileno(), self._deadline)
            more = self._line.recv(size - len(got), socket.MSG_DONTWAIT)
            if not more:
                raise EOFError
            got += more
        return bytes(got)

    def challenge(self, key: bytes) -> None:
        """Has the other side show that it knows the key. Raises AuthenticationError, OSError,
        EOFError, _Late.
        """
        self._step(deliver_challenge, key)

    def answer(self, key: bytes) -> None:
        """Shows the other side that this one knows the key. Raises as :meth:`challenge`."""
        self._step(answer_challenge, key)

    def _step(self, step: Any, key: bytes) -> None:
        try:
            step(self, key)
        except (AssertionError, ValueError) as error:  # Python 3.11, and digests that are none
            raise AuthenticationError(str(error)) from None


def _left(deadline: int) -> int | None:
    """Milliseconds until then, rounded up; None for ever."""
    return max(0, -(-(deadline - c_kernels.now()) // 1_000_000)) if deadline else None


def _wait_for(file: int, deadline: int) -> None:
    """Until it can be read. Raises _Late, and the error of the interrupt."""
    one = select.poll()
    one.register(file, select.POLLIN)
    ends = interrupt.get()
    if ends is not None:
        one.register(ends, select.POLLIN)
    if not one.poll(_left(deadline)):
        raise _Late
    _go_on(ends)


def _go_on(ends: Interrupt | None) -> None:
    """Raises the error of an interrupt that has come."""
    if ends is not None and ends.is_set():
        raise ends.error


def _is_mine(line: socket.socket) -> tuple[int, bool]:
    """The process at the other end, and whether it is this user's."""
    told = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(told)
    return pid, user == os.geteuid()


# --- the caller -----------------------------------------------------------------------------------


class _Line:
    """A caller's line to an owner. One call at a time uses it."""

    def __init__(self, address: str, deadline: int) -> None:
        """Raises OSError and EOFError (nobody is there), AuthenticationError, BlockingIOError and
        _Full (too many are there), _Late.
        """
        self._files: list[Any] = []
        #: Whether it is open, and no call is on its way.
        self.is_idle = False
        try:
            folder, key = key_of(address)
            try:
                beside = self._kept(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                beside.setblocking(False)  # a full queue is an error at once
                beside.connect(path_of(folder, address))
                beside.setblocking(True)
            finally:
                os.close(folder)
            pid, is_mine = _is_mine(beside)
            if not is_mine:
                raise AuthenticationError("another user listens there")
            greeting = _Greeting(beside, deadline)
            greeting.answer(key)
            greeting.challenge(key)
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._kept(mine)
            self._theirs = self._kept(theirs)
            socket.send_fds(beside, [_READY], [theirs.fileno()])
            _wait_for(beside.fileno(), deadline)
            told = beside.recv(1)
            if told != _READY:
                raise BlockingIOError if told == _FULL else EOFError
            self._messages = Messages(mine, beside)
            self._ends = select.poll()
            self._ends.register(mine, select.POLLIN)
            self._ends.register(beside, 0)
            process = _process(pid)
            if process is not None:
                self._files.append(process)
                self._ends.register(process, select.POLLIN)
            self.is_idle = True
        except BaseException:
            self.close()
            raise

    def _kept(self, made: socket.socket) -> socket.socket:
        self._files.append(made)
        return made

    def is_over(self) -> bool:
        return bool(self._ends.poll(0))

    def close(self) -> None:
        self.is_idle = False
        for each in self._files:
            each.close()

    def call(
        self, call: list[Any], written: tuple[Any, ...], deadline: int
    ) -> tuple[int, Any, bool | None]:
        """As that of the transport. The line is idle again after an answer. Else it is closed, and
        the call is taken back, also when a signal handler raises at any point.
        """
        messages = self._messages
        met: list[Any] = []
        views: list[Any] = []
        try:
            self.is_idle = False
            message = messages.packed(call, -2, (), written, met)
            if isinstance(message, str):
                self.is_idle = True
                return UNFIT, message, False
            if written:
                messages.shown(messages.mine(message), views)
            answer = self._exchanged(message, tuple(met), deadline)
        except TooLarge as error:
            self.is_idle = True  # nothing was sent
            return LARGE, str(error), False
        except ConnectionError:  # of what sends: there is nobody
            return GONE, None, False
        finally:
            if not self.is_idle:
                self._took_back()
                self.close()
        if self.is_idle:
            for memory, view in zip(met, views, strict=False):
                if not any(memory is each for each in written):
                    continue
                if type(view) is not memoryview:
                    write_back(memory, view)
                elif not view.readonly:
                    c_kernels.write_back(memory, view)
        return answer

    def _exchanged(
        self, message: bytes, met: tuple[Any, ...], deadline: int
    ) -> tuple[int, Any, bool | None]:
        """Sends a call, and waits for its answer. If that has come, the line is idle again. Raises
        ConnectionError where nobody is there.
        """
        try:
            self._messages.socket.send(message)
            why, body = self._answer(deadline)
            if body is None:
                return abs(why), None, why > 0
            why, result = self._messages.copied(body, met)
            if why == KEPT:
                self._messages.leave_mine()
            self.is_idle = True
            return why, result, why not in _NOT_RUN
        except ValueError as error:
            return DAMAGED, str(error), True

    def _answer(self, deadline: int) -> tuple[int, memoryview | None]:
        """The answer; else why there is none, with a minus where the call was taken back. Raises
        the error of the interrupt.
        """
        ends = interrupt.get()
        if ends is None:
            return self._answer_or_end(deadline, None)
        file = ends.fileno()
        self._ends.register(file, select.POLLIN)
        try:
            return self._answer_or_end(deadline, ends)
        finally:
            self._ends.unregister(file)

    def _answer_or_end(
        self, deadline: int, ends: Interrupt | None
    ) -> tuple[int, memoryview | None]:
        while True:
            is_over = self._ends.poll(_left(deadline))
            body = self._look()
            if body is not None:
                return 0, body
            _go_on(ends)
            if not is_over and not (deadline and c_kernels.now() >= deadline):
                continue
            why = GONE if is_over else LATE
            if self._took_back():
                return -why, None
            body = self._look()  # it came meanwhile
            return (why, None) if body is None else (0, body)

    def _look(self) -> memoryview | None:
        try:
            return self._messages.receive(socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            return None

    def _took_back(self) -> bool:
        """See Note [Off the wire]."""
        try:
            return bool(self._theirs.recv(1, socket.MSG_DONTWAIT))
        except OSError:
            return False


class _Process:
    """A descriptor that can be read when a process has ended."""

    def __init__(self, pid: int) -> None:
        self._file = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._file

    def close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def _process(pid: int) -> _Process | None:
    """None where the system has no such descriptors, or does not show that process. Raises
    ProcessLookupError.
    """
    if not pid or not hasattr(os, "pidfd_open"):
        return None
    try:
        return _Process(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None


# --- the owner ------------------------------------------------------------------------------------


class _Turn:
    """A call that waits for a place."""

    __slots__ = ("_file", "refusal", "ticket")

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        #: 0 when it has a place, GONE where there will be none. None as long as it waits.
        self.refusal: int | None = None
        self._file = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def end(self, refusal: int) -> None:
        self.refusal = refusal
        os.eventfd_write(self._file, 1)

    def wait(self, line: socket.socket) -> None:
        """Until it has ended, or the line has."""
        both = select.poll()
        both.register(self._file, select.POLLIN)
        both.register(line, 0)
        both.poll()

    def close(self) -> None:
        os.close(self._file)


class _Owner:
    """Listens, and answers."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._place = Place()
        self.address = self._place.name
        self._more = threading.Condition()
        self._lines: dict[socket.socket, socket.socket] = {}  # the line beside, and the pair's end
        self._greeting: dict[socket.socket, None] = {}  # the lines that are greeted now
        self._inside = 0
        self._turns: list[_Turn] = []  # those that wait, in their order
        self._is_open = True
        try:
            self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._place.bind(self._listening)
                self._listening.listen(_BACKLOG)
                self._start(self._listen)
            except BaseException:
                self._listening.close()
                raise
        except BaseException as error:
            self._place.close()
            if isinstance(error, RuntimeError):  # no thread can be had
                error = OSError(EAGAIN, str(error))
            if not isinstance(error, OSError):
                raise
            do = "Make room there, or close files or end threads"
            raise refused(f"a socket at {self.address}", error, do) from None

    def _start(self, what: Any, *args: Any) -> None:
        threading.Thread(target=what, args=args, daemon=True, name="mdispatch-calls").start()

    def _listen(self) -> None:
        while self._is_open:
            with self._more:
                self._more.wait_for(lambda: not self._is_open or len(self._greeting) < GREETERS)
            try:
                line, _ = self._listening.accept()
            except OSError:
                if self._is_open:
                    time.sleep(0.05)  # no descriptors are left, until one is closed
                continue
            with self._more:
                self._greeting[line] = None
            try:
                self._start(self._have, line)
            except RuntimeError:  # no thread can be had
                self._greeted(line)
                line.close()

    def _greeted(self, line: socket.socket) -> None:
        """It is greeted, or was left: the next one may come."""
        with self._more:
            self._greeting.pop(line, None)
            self._more.notify_all()

    def _have(self, line: socket.socket) -> None:
        """A thread's life: greets a caller, and answers its calls until it goes."""
        with line, suppress(OSError, EOFError, ValueError, AuthenticationError, _Late):
            try:
                end = self._greet(line)
            finally:
                self._greeted(line)
            if end is None:
                return
            with end:
                with self._more:
                    has_room = self._is_open and len(self._lines) < LINES
                    if has_room:
                        self._lines[line] = end
                line.send(_READY if has_room else _FULL)
                if has_room:
                    try:
                        self._serve(Messages(end, line))
                    finally:
                        with self._more:
                            del self._lines[line]

    def _greet(self, line: socket.socket) -> socket.socket | None:
        """The end of the pair that a caller has sent, who knows the key. Raises OSError, EOFError,
        AuthenticationError, _Late.
        """
        if not _is_mine(line)[1]:
            return None
        deadline = c_kernels.now() + int(_GREETING * _NS)
        greeting = _Greeting(line, deadline)
        greeting.challenge(self._place.key)
        greeting.answer(self._place.key)
        _wait_for(line.fileno(), deadline)
        _, found, _, _ = socket.recv_fds(line, 1, 1, socket.MSG_CMSG_CLOEXEC)
        return socket.socket(fileno=found[0]) if len(found) == 1 else None

    def _serve(self, messages: Messages) -> None:
        gone = select.poll()
        gone.register(messages.socket, 0)
        caller = Caller(lambda: bool(gone.poll(0)))
        try:
            self._answer_all(messages, caller)
        finally:
            caller.end()

    def _answer_all(self, messages: Messages, caller: Caller) -> None:
        while True:
            refusal, told, flags = GONE, None, 0
            # Without a queue a step is saved. A line that is idle when the first queue comes finds
            # it after its next call.
            if queues:
                if not messages.wait():
                    return
                (refusal, told), flags = self._enter(messages), socket.MSG_DONTWAIT
            try:
                try:
                    body = messages.receive(flags)
                except BlockingIOError:
                    continue  # the caller has taken its call back
                if body is None:
                    return
                if not flags:
                    refusal = self._place_now()
                reply = (
                    messages.packed([refusal, told], -1, (), (), [])
                    if refusal
                    else self._reply(messages, body, caller)
                )
                assert isinstance(reply, bytes)
                # There is room, if the caller has taken the last answer; nobody waits for another.
                messages.socket.send(reply, socket.MSG_DONTWAIT)
            except SystemCallError as error:  # its memory cannot be had: it says so, and ends
                last = messages.packed([*self._answer(error, caller)], -1, (), (), [])
                messages.socket.send(last, socket.MSG_DONTWAIT)  # type: ignore[arg-type]
                return
            finally:
                if not refusal:
                    self._leave()

    def _enter(self, messages: Messages) -> tuple[int, Any]:
        """Takes a place for the call that is on the wire, and waits for one where the call may.
        Returns 0; or why there is none, and the length of the queue. See Note [Turns].
        """
        refusal = self._place_now()
        if refusal != BUSY:
            return refusal, None
        ticket, way = messages.head() or (0, 0)
        most = queues.get(abs(ticket), 0) if way == 1 else 0
        turn = None
        if most:
            try:
                turn = _Turn(abs(ticket))
            except OSError:  # no descriptor is left
                return BUSY, most
        try:
            with self._more:
                refusal = self._place_now()
                if refusal != BUSY:
                    return refusal, None
                if turn is None or sum(each.ticket == turn.ticket for each in self._turns) >= most:
                    return BUSY, most
                self._turns.append(turn)
            turn.wait(messages.socket)
            with self._more:
                if turn.refusal is None:
                    self._turns.remove(turn)
                    return GONE, None
                return turn.refusal, None
        finally:
            if turn is not None:
                turn.close()

    def _place_now(self) -> int:
        """Takes a place. Returns 0, BUSY or GONE."""
        with self._more:
            if not self._is_open:
                return GONE
            if self._inside >= CALLS:
                return BUSY
            self._inside += 1
            return 0

    def _leave(self) -> None:
        with self._more:
            if self._turns:
                self._turns.pop(0).end(0)  # whose place it is now
                return
            self._inside -= 1
            self._more.notify_all()

    def _reply(self, messages: Messages, body: memoryview, caller: Caller) -> bytes | str:
        met: list[Any] = []
        call: list[Any] | MdispatchError
        try:
            call = messages.shown(body, met)
        except MdispatchError as error:  # of an object in it: the caller is told
            call = error
        if not isinstance(call, (list, MdispatchError)):
            raise ValueError("it is no call")
        why, told = self._answer(call, caller)
        del call
        try:
            reply = messages.packed([why, told], -1, tuple(met), (), [])
            if isinstance(reply, str):
                reply = messages.packed([UNFIT_RESULT, reply], -1, (), (), [])
        except TooLarge as error:
            reply = messages.packed([LARGE, str(error)], -1, (), (), [])
        except SystemCallError as error:
            reply = messages.packed([*self._answer(error, caller)], -1, (), (), [])
        told = None
        if met:
            met.clear()
            try:
                body.release()
            except BufferError:  # the kernel has kept some of it
                messages.keep_theirs()
                if not why:
                    return messages.packed([KEPT, None], -1, (), (), [])
        return reply

    def close(self) -> None:
        """Waits for the calls that are inside, and takes no other."""
        with self._more:
            self._is_open = False
            for turn in self._turns:
                turn.end(GONE)
            self._turns = []
            self._more.notify_all()
            self._more.wait_for(lambda: not self._inside)
            ends = list(self._lines.values())
        for each in (self._listening, *ends):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RD)  # its thread wakes up and ends
        self._listening.close()
        self._place.close()

    def forked(self) -> None:
        self._place.let_go()
        for each in (*self._greeting, *self._lines, *self._lines.values()):
            each.close()
        for turn in self._turns:
            turn.close()
        self._listening.close()


# --- both -----------------------------------------------------------------------------------------


class HostTransport:
    """See the module."""

    def __init__(self) -> None:
        self._owner: _Owner | None = None
        self._idle: dict[str, list[_Line]] = {}
        self._lines: dict[_Line, None] = {}  # all of them, for a child
        self._holding: dict[str, _Line] = {}
        self._opening = new_lock()

    def serve(self, answer: Answer) -> str:
        if interpreter_id != 0:
            raise InvalidArgumentError(
                "a sub-interpreter serves no other processes: its threads could outlive it\nServe "
                "the kernel in the main interpreter, or with serve=True."
            )
        made = None
        with self._opening:
            if self._owner is None:
                import atexit

                made = _Owner(answer)
                if self._owner is None:
                    self._owner = made
                    atexit.register(self._end)
            owner = self._owner
        if made is not None and made is not owner:
            made.close()  # a signal handler of this thread has started one meanwhile
        return owner.address

    def _end(self) -> None:
        owner, self._owner = self._owner, None  # None in a child
        if owner is not None:
            owner.close()

    def call(
        self, address: str, call: list[Any], written: tuple[Any, ...], deadline: int
    ) -> tuple[int, Any, bool | None]:
        while True:
            _go_on(interrupt.get())
            line: _Line | int
            try:
                line, is_new = self._idle.get(address, []).pop(), False
            except IndexError:
                line, is_new = self._reached(address, deadline), True
            if isinstance(line, int):
                return line, None, False
            try:
                answer = line.call(call, written, deadline)
            finally:
                if line.is_idle:
                    self._idle.setdefault(address, []).append(line)
                else:
                    self._lines.pop(line, None)
            if is_new or answer[0] != GONE or answer[2] is not False:
                return answer
            # That line has ended, and the call was not taken. Its owner may live.

    def hold(self, address: str, call: list[Any], deadline: int) -> tuple[int, Any, bool | None]:
        while True:
            old = self._holding.pop(address, None)
            line = old or self._reached(address, deadline)
            if isinstance(line, int):
                return line, None, False
            try:
                answer = line.call(call, (), deadline)
            finally:
                if line.is_idle:
                    self._holding[address] = line
                else:
                    self._lines.pop(line, None)
            if old is None or answer[0] != GONE or answer[2] is not False:
                return answer

    def _reached(self, address: str, deadline: int) -> _Line | int:
        """A new line, or why there is none. Raises RegistryOwnerError, SystemCallError."""
        try:
            return self._opened(address, deadline)
        except _Late:
            return LATE
        except BlockingIOError:
            return BUSY
        except (RegistryOwnerError, SystemCallError):
            raise
        except (EOFError, AuthenticationError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NOBODY:
                why = os.strerror(error.errno) if error.errno else str(error)
                raise SystemCallError(
                    f"a line to the owner at {address} cannot be had: {why}\n"
                    "Close files, or call from fewer threads.",
                    address,
                    errno=error.errno,
                ) from None
            return GONE

    def _opened(self, address: str, deadline: int) -> _Line:
        # Lines are opened seldom: then those are closed whose owners have gone.
        for other, idle in list(self._idle.items()):
            if other != address and any(each.is_over() for each in list(idle)):
                for each in self._idle.pop(other, []):
                    self._lines.pop(each, None)
                    each.close()
        line = _Line(address, deadline)
        self._lines[line] = None
        return line

    def forked(self) -> None:
        for line in list(self._lines):
            line.close()
        self._idle, self._lines, self._holding = {}, {}, {}
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.forked()
