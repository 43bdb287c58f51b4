"""What anybody of this machine may send to an owner, or put in the way of its callers."""

from __future__ import annotations

import os
import socket
import sys

import pytest
from kinds import run_main

from mdispatch.across.by_value import LARGEST
from mdispatch.across.transports import messages
from mdispatch.across.transports.messages import Messages
from mdispatch.errors import CannotTravelError
from mdispatch.facts.native import c_kernels

pytestmark = pytest.mark.shared

VALUE = [1, None, True, 2.5, "ø", b"q", [1, ["x" * 40]], memoryview(b"abcdefgh").cast("H"), []]


def pack(value: object, limit: int = 1 << 16) -> bytes:
    return c_kernels.pack(value, -2, (), (), [], None, limit)


def plain(value: object) -> object:
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, memoryview) else value


@pytest.mark.parametrize("how", [0, 1, 2, 3])
def test_every_cut_and_every_changed_byte_of_a_message_is_refused_or_read_whole(how):
    message = pack(VALUE)
    assert plain(c_kernels.unpack(message, (), [], how)) == plain(VALUE)
    refused = 0
    for size in range(len(message)):
        try:
            # What is missing was no more than the padding at the end.
            assert plain(c_kernels.unpack(message[:size], (), [], how)) == plain(VALUE)
        except ValueError:
            refused += 1
    assert len(message) - 64 < refused < len(message)
    for place in range(len(message)):
        for change in (1, 2, 4, 7, 8, 9, 0x80, 0xFF):
            changed = bytearray(message)
            changed[place] ^= change
            try:
                # Whatever it reads, it reads all of it.
                repr(plain(c_kernels.unpack(changed, (), [], how)))
            except (ValueError, NotImplementedError):
                refused += 1
    assert refused > 2 * len(message)


def test_lists_without_end_and_sizes_without_bytes_take_no_memory():
    stamp = pack([])[:2]
    deep = stamp + (b"\6" + (1).to_bytes(8, "little")) * 1000
    for bad in (deep, stamp + b"\6" + b"\xff" * 7 + b"\x7f", stamp + b"\4" + b"\xff" * 7 + b"\x7f"):
        with pytest.raises(ValueError, match="damaged"):
            c_kernels.unpack(bad, (), [], 0)
    for kind in {*range(9, 256)} - {10, 11}:  # also that of objects; these are constants and arrays
        with pytest.raises(ValueError, match="unknown kind"):
            c_kernels.unpack(stamp + bytes([kind]) + bytes(64), (), [], 0)


def test_a_constant_may_stand_as_deep_as_a_list_and_no_deeper():
    stamp, one, most = pack([])[:2], b"\6" + (1).to_bytes(8, "little"), 36
    constant = b"\x0a" + pack(["antigravity.Flight", b"up"])[3:]
    c_kernels.unpack(stamp + one * (most + 1) + b"\0", (), [], 0)
    with pytest.raises(CannotTravelError, match="no class of that name"):
        c_kernels.unpack(stamp + one * most + constant, (), [], 0)
    for deeper in (one * (most + 2) + b"\0", one * (most + 1) + constant):
        with pytest.raises(ValueError, match="too deep"):
            c_kernels.unpack(stamp + deeper, (), [], 0)


def test_a_constant_that_is_none_is_refused_and_nothing_is_imported_for_its_name():
    stamp = pack([])[:2]

    def constant(*parts):
        return stamp + b"\x0a" + pack(list(parts))[3:]  # the kind of a list is one byte

    for parts in ((), ("shop.A",), (1, 2), ("a.B", []), "abc"):
        odd = constant(*parts)
        with pytest.raises(ValueError, match="damaged"):
            c_kernels.unpack(odd, (), [], 0)
    deep = stamp + (b"\x0a" + (2).to_bytes(8, "little")) * 1000
    with pytest.raises(ValueError, match="damaged"):
        c_kernels.unpack(deep, (), [], 0)
    with pytest.raises(CannotTravelError, match="no class of that name"):
        c_kernels.unpack(constant("antigravity.Flight", b"up"), (), [], 0)
    assert "antigravity" not in sys.modules


def test_memory_that_could_be_cut_off_is_refused():
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    beside, other = socket.socketpair()
    memory = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    with mine, theirs, beside, other:
        os.ftruncate(memory, 1 << 16)
        reader = Messages(mine, beside)
        socket.send_fds(other, [messages._NUMBER.pack(1)], [memory])
        theirs.send(messages._ELSEWHERE.pack(messages._STAMP, 1, 4096))
        with pytest.raises(ValueError, match="could be cut off"):
            reader.receive()
    os.close(memory)


def test_who_does_not_know_the_key_runs_nothing():
    got = run_main("""
from mdispatch.facts.outside import folder
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
import pickle, socket
ran = []
lib = md.Library("shop", "DEF")
lib.impl(lib.define("run() -> int"), lambda: ran.append(1) or 1, "CPU", serve="host")
place = Path(os.path.normpath(folder()) + ".calls")
[at] = [each for each in place.glob(f"{os.getpid()}.*") if each.suffix != ".key"]
key = (place / (at.name + ".key")).read_bytes()
outcomes = []
for told in (b"wrong" * 8, key):
    try:
        with Client(str(at), authkey=told) as line:
            outcomes.append("greeted")
            class Bomb:
                def __reduce__(self):
                    return open, (str(place / "bomb"), "w")
            line.send(Bomb())  # a pickle: it is no descriptor, so the line ends
            try:
                line.recv()
            except (EOFError, ConnectionError):
                outcomes.append("over")
    except AuthenticationError:
        outcomes.append("refused")
with socket.socket(socket.AF_UNIX) as line:
    line.connect(str(at))
    line.sendall(b"\\xff" * 10_000)
    try:
        while line.recv(4096):
            pass
    except ConnectionError:
        pass
    outcomes.append("over")
done(outcomes=outcomes, ran=ran, bomb=(place / "bomb").exists())
""")
    assert got["outcomes"] == ["refused", "greeted", "over", "over"]
    assert got["ran"] == []
    assert got["bomb"] is False


def test_a_folder_that_others_may_enter_is_refused():
    got = run_main("""
import tempfile
from mdispatch.facts.outside import folder
mine = tempfile.TemporaryDirectory(dir="/dev/shm")
os.environ["MDISPATCH_FOLDER"] = mine.name  # read when it is needed first
place = Path(os.path.normpath(folder()) + ".calls")
assert place.parent == Path(mine.name)
lib = md.Library("shop", "DEF")
lib.define("run() -> int")
lib.define("other() -> int")
outcomes = []
def serve():
    try:
        lib.impl("run", lambda: 1, "CPU", serve="host")
        outcomes.append("served")
    except md.MdispatchError as error:
        outcomes.append(type(error).__name__)
place.mkdir()
place.chmod(0o755)
serve()
place.rmdir()
elsewhere = place.with_name("elsewhere")
elsewhere.mkdir(0o700)
place.symlink_to(elsewhere)
serve()
place.unlink()
elsewhere.rmdir()
serve()
done(outcomes=outcomes, has=str(lib), mode=place.stat().st_mode & 0o777)
""")
    assert got["outcomes"] == ["RegistryOwnerError", "SystemCallError", "served"]
    assert got["mode"] == 0o700


@pytest.mark.parametrize("how", [0, 1, 2, 3])
@pytest.mark.parametrize("format_", ["O", "T{O:a:i:b:}", "2O", "@O"])
def test_memory_of_objects_is_refused(how, format_):
    """Whoever read it would follow pointers that somebody else has made up."""
    memory = memoryview(bytes(64)).cast("q")
    message = bytearray(pack([memory]))
    assert plain(c_kernels.unpack(message, (), [], how)) == [[0] * 8]
    place = message.index(b"q\0")
    message[place : place + len(format_)] = format_.encode()
    with pytest.raises(ValueError, match="odd memory"):
        c_kernels.unpack(message, (), [], how)


@pytest.mark.parametrize("how", [0, 1, 2, 3])
def test_memory_of_items_without_bytes_or_of_a_format_without_end_is_refused(how):
    message = pack([memoryview(bytes(64)).cast("q")])
    place = message.index(b"q\0")  # sixteen bytes of format, then the size of an item

    def changed(format_, size):
        head = format_.ljust(16, b"\0") + size.to_bytes(8, "little")
        return message[:place] + head + message[place + len(head) :]

    assert plain(c_kernels.unpack(changed(b"q", 8), (), [], how)) == [[0] * 8]
    for odd in (changed(b"2i", 0), changed(b"x" * 16, 8)):
        with pytest.raises(ValueError, match="odd memory"):
            c_kernels.unpack(odd, (), [], how)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_memory_that_the_reader_has_is_named_by_a_number_that_it_has(count):
    known = tuple(bytearray(4) for _ in range(count))
    for number, each in enumerate(known):
        message = c_kernels.pack(each, -2, known, (), [], None, 1 << 16)
        assert len(message) == 64
        assert c_kernels.unpack(message, known, [], 0) is each
        assert c_kernels.unpack(message[:3] + number.to_bytes(8, "little"), known, [], 0) is each
    [kind] = {c_kernels.pack(each, -2, known, (), [], None, 64)[2] for each in known} or {8}
    stamp = pack([])[:2]
    for number in (count, count + 1, 2**31, 2**62, -1):
        odd = stamp + bytes([kind]) + number.to_bytes(8, "little", signed=True)
        with pytest.raises(ValueError, match="damaged"):
            c_kernels.unpack(odd, known, [], 0)


@pytest.mark.parametrize("name", ["", "shop.A"])
def test_a_constant_of_more_than_any_has_is_not_looked_at(name):
    for text in ("[" * (LARGEST + 1), b"x" * (LARGEST + 1)):
        message = pack([])[:2] + b"\x0a" + pack([name, text], 1 << 22)[3:]
        with pytest.raises(ValueError, match="odd constant"):
            c_kernels.unpack(message, (), [], 0)
