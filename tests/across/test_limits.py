"""What a line is limited to: greeters and seconds of a greeting, lines, and what a message has."""

from __future__ import annotations

import os
import select
import socket
import threading
import tracemalloc
from contextlib import suppress

import pytest
from kinds import until
from patience import limit

from mdispatch.across.transports import host, messages, transport
from mdispatch.across.transports.messages import LARGEST, Messages, TooLarge
from mdispatch.across.transports.place import key_of, path_of
from mdispatch.facts.native import c_kernels

pytestmark = pytest.mark.shared

_NS = 1_000_000_000


class Owner:
    """An owner in this process, whose answer is the call itself, and callers of it."""

    def __init__(self) -> None:
        self.transport = host.HostTransport()
        self.owner = host._Owner(self.answer)
        self.address = self.owner.address
        self.took: list[object] = []

    def answer(self, call: object, caller: object) -> tuple[int, object]:
        self.took.append(call)
        return 0, call

    def call(self, *values: object, seconds: float = limit(60.0)) -> tuple[object, ...]:
        deadline = c_kernels.now() + int(seconds * _NS)
        return self.transport.call(self.address, list(values), (), deadline)

    def peer(self) -> socket.socket:
        """A process of this user, as the owner sees it, that has connected and no more."""
        made = socket.socket(socket.AF_UNIX)
        folder, _ = key_of(self.address)
        made.connect(path_of(folder, self.address))
        os.close(folder)
        return made

    def close(self) -> None:
        self.transport.forked()
        self.owner.close()


@pytest.fixture
def owner():
    made = Owner()
    yield made
    made.close()


def is_over(line: socket.socket) -> bool:
    """Waits until the other side has closed it, and takes what has come before."""
    with suppress(ConnectionError):
        while select.select([line], [], [], limit(60.0))[0]:
            if not line.recv(4096):
                return True
        return False
    return True


@pytest.mark.parametrize("told", [b"", b"\0", b"\0\0\0\x14" + b"x" * 19])
def test_a_greeting_ends_in_time_however_little_a_caller_sends(owner, monkeypatch, told):
    monkeypatch.setattr(host, "_GREETING", 0.2)
    with owner.peer() as peer:
        peer.send(told)
        assert is_over(peer)
        until(lambda: not owner.owner._greeting)
    assert owner.call(1) == (0, [1], True)


def test_a_greeting_ends_in_time_of_a_caller_that_sends_byte_by_byte(owner, monkeypatch):
    monkeypatch.setattr(host, "_GREETING", 0.3)
    with owner.peer() as peer:
        is_gone = False
        for byte in b"\0\0\1\0" + bytes(256):
            with suppress(ConnectionError):
                peer.send(bytes([byte]))
            select.select([], [], [], 0.005)  # each byte comes in time
            is_gone = not owner.owner._greeting
            if is_gone:
                break
        assert is_gone
    assert owner.took == []


@pytest.mark.parametrize("size", [-1, 257, 2**31 - 1])
def test_a_greeting_that_would_be_longer_than_any_ends_at_once(owner, monkeypatch, size):
    monkeypatch.setattr(host, "_GREETING", limit(3600.0))
    with owner.peer() as peer:
        peer.send(host._LENGTH.pack(size) + b"x" * 100)
        assert is_over(peer)


def test_a_caller_that_shows_the_key_and_sends_no_line_is_left(owner, monkeypatch):
    monkeypatch.setattr(host, "_GREETING", 0.2)
    with owner.peer() as peer:
        folder, key = key_of(owner.address)
        os.close(folder)
        greeting = host._Greeting(peer, 0)
        greeting.answer(key)
        greeting.challenge(key)
        assert is_over(peer)


def test_so_many_callers_are_greeted_at_once_and_the_next_waits(owner, monkeypatch):
    monkeypatch.setattr(host, "GREETERS", 2)
    with owner.peer() as first, owner.peer() as second:
        assert first.recv(4)
        assert second.recv(4)
        assert owner.call(1, seconds=0.3) == (transport.LATE, None, False)
        assert len(owner.owner._greeting) == 2
        first.close()
        assert owner.call(2) == (0, [2], True)
    assert owner.took == [[2]]


def test_an_owner_ends_while_it_greets_all_that_it_may(owner, monkeypatch):
    monkeypatch.setattr(host, "GREETERS", 1)
    accepts = [each for each in threading.enumerate() if each.name == "mdispatch-calls"][-1]
    with owner.peer() as first:
        assert first.recv(4)
        owner.owner.close()
        owner.owner._place.__init__()  # for the fixture, which closes it as well
    until(lambda: not accepts.is_alive())


def test_an_owner_has_so_many_lines_and_refuses_the_next(owner, monkeypatch):
    monkeypatch.setattr(host, "LINES", 1)
    assert owner.call(1) == (0, [1], True)
    other = host.HostTransport()
    assert other.call(owner.address, [2], (), 0) == (transport.BUSY, None, False)
    assert owner.call(3) == (0, [3], True)
    owner.transport.forked()  # closes its line
    until(lambda: not owner.owner._lines)
    assert other.call(owner.address, [4], (), 0) == (0, [4], True)
    other.forked()
    assert owner.took == [[1], [3], [4]]


@pytest.mark.parametrize("stops", ["connects", "sends one byte", "greets"])
def test_a_caller_has_a_deadline_towards_an_owner_that_stops_in_mid_greeting(owner, stops):
    """An owner that listens at the address of another one, and knows its key."""
    folder, key = key_of(owner.address)
    owner.owner._listening.close()
    os.unlink(owner.address, dir_fd=folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path_of(folder, owner.address))
        os.close(folder)
        listening.listen(1)
        ended = threading.Event()

        def own() -> None:
            line, _ = listening.accept()
            with line:
                if stops == "sends one byte":
                    line.send(b"\0")
                elif stops == "greets":
                    greeting = host._Greeting(line, 0)
                    greeting.challenge(key)
                    greeting.answer(key)
                ended.wait(limit(60.0))

        thread = threading.Thread(target=own)
        thread.start()
        assert owner.call(1, seconds=0.3) == (transport.LATE, None, False)
        ended.set()
        thread.join()


def test_an_answer_that_comes_at_the_deadline_is_not_lost(owner, monkeypatch):
    """The owner has taken the call, so the caller cannot take it back; before it looks once more,
    the answer is there.
    """
    began, goes_on = threading.Event(), threading.Event()
    took_back = host._Line._took_back

    def answer(call: object, caller: object) -> tuple[int, object]:
        began.set()
        goes_on.wait(limit(60.0))
        return 0, call

    def too_late(line: host._Line) -> bool:
        began.wait(limit(60.0))
        taken = took_back(line)
        goes_on.set()
        assert select.select([line._messages.socket], [], [], limit(60.0))[0]
        return taken

    assert owner.call(0) == (0, [0], True)  # the line is there
    owner.owner._answer = answer
    monkeypatch.setattr(host._Line, "_took_back", too_late)
    assert owner.call(1, seconds=0.05) == (0, [1], True)
    monkeypatch.undo()
    assert owner.call(2) == (0, [2], True)
    assert len(owner.transport._lines) == 1  # and the line goes on


# --- messages -------------------------------------------------------------------------------------


class Pair:
    """Two sides of a line; ``theirs`` is another process."""

    def __init__(self) -> None:
        self.files = [*socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
        self.files += socket.socketpair()
        self.mine = Messages(self.files[0], self.files[2])
        self.theirs = Messages(self.files[1], self.files[3])

    def send_memory(self, size: int, seals: int = messages._SEALS, holes: bool = True) -> None:
        """Sealed memory, and a message that is all of it."""
        memory = os.memfd_create("large", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, size)
        if not holes:
            os.posix_fallocate(memory, 0, size)
        messages.fcntl.fcntl(memory, messages.fcntl.F_ADD_SEALS, seals)
        socket.send_fds(self.files[3], [messages._NUMBER.pack(1)], [memory])
        os.close(memory)
        self.files[1].send(messages._ELSEWHERE.pack(messages._STAMP, 1, size))


@pytest.fixture
def pair():
    made = Pair()
    yield made
    for each in made.files:
        each.close()


def test_memory_that_its_sender_has_not_paid_for_is_refused(pair):
    pair.send_memory(1 << 20, holes=False)
    assert pair.mine.receive().nbytes == 1 << 20
    pair.mine._their_number = 0
    pair.send_memory(1 << 20)
    with pytest.raises(ValueError, match="has holes"):
        pair.mine.receive()
    assert pair.mine._theirs is None


@pytest.mark.parametrize("size", [LARGEST + 4096, 64 << 30])
def test_memory_that_is_larger_than_any_message_is_refused(pair, size):
    pair.send_memory(size)
    with pytest.raises(ValueError, match="larger than any message"):
        pair.mine.receive()


@pytest.mark.parametrize("left_out", ["F_SEAL_SHRINK", "F_SEAL_GROW", "F_SEAL_SEAL"])
def test_memory_without_all_its_seals_is_refused(pair, left_out):
    seals = messages._SEALS & ~getattr(messages.fcntl, left_out)
    pair.send_memory(1 << 16, seals, holes=False)
    with pytest.raises(ValueError, match="could be cut off"):
        pair.mine.receive()


def test_a_message_says_no_more_than_its_memory_has(pair):
    pair.send_memory(1 << 16, holes=False)
    assert pair.mine.receive().nbytes == 1 << 16
    pair.files[1].send(messages._ELSEWHERE.pack(messages._STAMP, 1, (1 << 16) + 1))
    with pytest.raises(ValueError, match="larger than the memory"):
        pair.mine.receive()


MOST = 1 << 20  # values of a message: wire.c


def test_a_message_has_so_many_values_and_no_more():
    most = [None] * (MOST - 1)  # the list is one, too
    size = c_kernels.pack(most, -2, (), (), [], None, 0)
    arena = bytearray(size)
    assert c_kernels.pack(most, -2, (), (), [], arena, 0) == size
    assert len(c_kernels.unpack(arena, (), [], 0)) == MOST - 1
    assert c_kernels.pack([*most, None], -2, (), (), [], None, 0) == -MOST - 1
    assert c_kernels.pack([most, [None]], -2, (), (), [], None, 0) == -MOST - 3
    stamp = bytes(arena[:2])
    number = (MOST).to_bytes(8, "little")
    flat = stamp + b"\6" + number + bytes(MOST)
    nested = stamp + b"\6" + (2).to_bytes(8, "little") + b"\6" + number + bytes(MOST + 1)
    deep = stamp + b"\6" + number + b"\6" + bytes(8) + b"\6" + bytes(8) + bytes(MOST)
    for bad in (flat, nested, deep):
        with pytest.raises(ValueError, match="too many values"):
            c_kernels.unpack(bad, (), [], 0)


def test_a_list_of_more_values_than_a_message_has_takes_no_memory():
    """Its sender has eight times less to send."""
    count = 4 * MOST
    body = c_kernels.pack([], -2, (), (), [], None, 64)[:2]
    body += b"\6" + count.to_bytes(8, "little") + bytes(count)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="too many values"):
            c_kernels.unpack(body, (), [], 0)
        assert tracemalloc.get_traced_memory()[1] < count
    finally:
        tracemalloc.stop()


def test_what_is_more_than_a_message_takes_is_told_on_both_sides_and_the_line_goes_on(
    owner, monkeypatch
):
    assert owner.call([None] * MOST) == (transport.LARGE, f"has {MOST + 2:,} values", False)
    owner.owner._answer = lambda call, caller: (0, [None] * MOST if call == [1] else call)
    assert owner.call(1) == (transport.LARGE, f"has {MOST + 3:,} values", True)
    monkeypatch.setattr(messages, "LARGEST", 1 << 20)
    assert owner.call(b"x" * (1 << 19))[0] == 0
    (why, told, has_run) = owner.call(b"x" * (1 << 20))
    assert (why, has_run) == (transport.LARGE, False)
    assert told.startswith("takes 1,048,")
    assert len(owner.transport._lines) == len(owner.owner._lines) == 1


@pytest.mark.parametrize("size", [16, 1 << 20])
def test_a_caller_is_told_of_memory_that_the_owner_keeps(owner, size):
    kept = []
    owner.owner._answer = lambda call, caller: (0, kept.append(call))
    assert owner.call(bytearray(size)) == (transport.KEPT, None, True)
    owner.owner._answer = lambda call, caller: (0, None)
    assert owner.call(bytearray(size)) == (0, None, True)
    assert len(owner.transport._lines) == len(owner.owner._lines) == 1
    kept.clear()


def test_a_message_takes_memory_that_is_there_before_it_is_written(pair):
    with pytest.raises(TooLarge):
        pair.theirs.packed([None] * MOST, -2, (), (), [])
    message = pair.theirs.packed([b"x" * (1 << 16)], -2, (), (), [])
    pair.theirs.socket.send(message)
    assert pair.mine.copied(pair.mine.receive(), ()) == [b"x" * (1 << 16)]


def test_a_caller_that_takes_no_answers_keeps_no_place_among_the_calls(owner):
    """Its line ends once its answers fill it; the owner's end waits for no such call."""
    made = host._Line(owner.address, 0)
    message = made._messages.packed([b"x" * 30_000], -2, (), (), [])

    def is_left() -> bool:
        with suppress(OSError):
            made._messages.socket.send(message, socket.MSG_DONTWAIT)
        return not owner.owner._lines

    until(is_left)
    assert owner.owner._inside == 0
    made.close()


@pytest.mark.parametrize("size", [1, 1 << 17])
def test_a_line_whose_owner_has_gone_says_so_whatever_is_sent(owner, size):
    line = host._Line(owner.address, 0)
    owner.owner.close()
    until(lambda: line.is_over())
    assert line.call([b"x" * size], (), 0) == (transport.GONE, None, False)
    assert not line.is_idle
    owner.owner._place.__init__()  # for the fixture, which closes it as well
