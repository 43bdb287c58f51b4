"""One table of everything that can have a registry's name or be behind an address, each made for
real.

Most kinds are damaged copies of a model's bytes. The model's registrar lives, so an undamaged
copy is a registry like any other. hostile_stage.py meets the kinds; test_hostile_files.py has the
expected outcomes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import resource
import select
import signal
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

import mdispatch as md
from mdispatch.facts.native import native

FOLDER = Path(os.fsdecode(native.folder()[1]))
SHM = FOLDER.parent

# The format, as native/core/ground/layout.h has it. Offsets of a registration's fields are counted
# back from its text.
AT = {
    "magic": (0, "8s"),
    "format": (8, "I"),
    "stamp": (12, "I"),
    "capacity": (16, "Q"),
    "boot": (24, "16s"),
    "uuid": (40, "16s"),
    "pid_space": (56, "Q"),
    "uid": (64, "I"),
    "committed": (128, "Q"),
    "arena_top": (136, "Q"),
    "index": (144, "Q"),
    "state": (152, "I"),
    "main_state": (156, "I"),
    "process_top": (160, "I"),
    "member_top": (164, "I"),
    "next_seq": (320, "Q"),
    "names": (328, "Q"),
    "facts": (336, "Q"),
    "used": (344, "Q"),
}
MUTEX, MUTEX_SIZE, FREE_LISTS = 192, 40, 360
EVENTS, PROCESSES, MEMBERS, ARENA = 4096, 8192, 139264, 401408
NODE, FACT, INDEX = 0x4E4F4445, 0x46414354, 0x494E4458
NOBODY = 0x3FFFFFF0  # no thread has this id

FORMAT, DAMAGED = "RegistryFormatError", "RegistryDamagedError"
FOREIGN = "ForeignRegistryError"
OWNER, ACCESS = "RegistryOwnerError", "RegistryAccessError"
NAME, NOT_FOUND, EXISTS = "InvalidNameError", "RegistryNotFoundError", "RegistryExistsError"
DIED, CLOSED, SYSTEM = "RegistrarGoneError", "RegistryClosedError", "SystemCallError"
FINE = "fine"


@dataclass(frozen=True)
class Kind:
    """``make`` lays it down and returns the address to attach to, or None for the name given; what
    it yields after is cleaned up. What comes out of each doing is an error's class, or FINE.
    """

    make: object
    attach: str
    create: str = ""
    default: str = ""
    root: bool = False
    waits: bool = False  # the default registry waits for such a name, since it may still appear
    user: bool = False  # a process of another user meets it
    is_process: bool = False  # the file is normal, the process that meets it is not
    within: object = None  # what that process does to itself first

    @property
    def expected(self) -> dict[str, str]:
        return {
            "attach": self.attach,
            "default": self.default or self.attach,
            "create": self.create or (EXISTS if self.attach == FINE else self.attach),
        }


KINDS: dict[str, Kind] = {}


def kind(name: str, attach: str, **how: object):
    def add(make):
        assert name not in KINDS, name
        KINDS[name] = Kind(make, attach, **how)
        return make

    return add


# --- bytes ---------------------------------------------------------------------------------------


class Bytes(bytearray):
    """A copy of the model."""

    def put(self, at: int, form: str, value: object) -> Bytes:
        struct.pack_into("<" + form, self, at, value)
        return self

    def set(self, name: str, value: object) -> Bytes:
        return self.put(*AT[name], value)

    def get(self, name: str) -> int:
        at, form = AT[name]
        return struct.unpack_from("<" + form, self, at)[0]

    def u32(self, at: int) -> int:
        return struct.unpack_from("<I", self, at)[0]

    def noise(self, start: int, end: int) -> Bytes:
        self[start:end] = random.Random(end).randbytes(end - start)
        return self

    def blocks(self, tag: int) -> list[int]:
        at, found = ARENA, []
        while at < self.get("arena_top"):
            size, its_tag = struct.unpack_from("<II", self, at)
            if its_tag == tag:
                found.append(at)
            at += size
        return found

    def node(self, name: bytes) -> int:
        return next(at for at in self.blocks(NODE) if self[at + 32 : at + 32 + len(name)] == name)

    def fact(self) -> int:
        """The newest registration of the name that has several."""
        return self.u32(self.node(b"many::op") + 16) * 8

    def text(self) -> int:
        return self.index(b"many::op(Tensor x)", self.fact())


def write(path: Path, data: bytes, mode: int = 0o600) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(fd, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def damaged(name: str, attach: str, change, **how: object) -> None:
    """A file with a changed copy of the model's bytes."""

    @kind(name, attach, **how)
    def make(path: Path, model: Bytes) -> None:
        changed = change(model)
        write(path, model if changed is None else changed)


def behind(name: str, change, joined: str = FINE) -> None:
    """Damage that a look at the file does not find. It shows when the registry is joined or
    used.
    """
    damaged("behind the header: " + name, joined, change, create=EXISTS)


for cut, what in (
    (0, "empty file"),
    (1, "one byte"),
    (8, "magic and no more"),
    (100, "cut in the header"),
    (4096, "header and no more"),
    (EVENTS + 64, "cut in the event words"),
    (PROCESSES, "cut at the process slots"),
    (MEMBERS + 128, "cut in the member slots"),
    (ARENA - 1, "cut before the arena"),
):
    damaged(what, FORMAT, lambda m, cut=cut: m[:cut])
damaged("cut at the arena", DAMAGED, lambda m: m[:ARENA])
damaged("cut by a page", DAMAGED, lambda m: m[: len(m) - 4096])
damaged("cut by a byte", DAMAGED, lambda m: m[: len(m) - 1])
damaged("longer than it says", FINE, lambda m: m + bytes(5000))
damaged("text", FORMAT, lambda m: b"hello\n" * 100_000)
damaged("zeroes", FORMAT, lambda m: bytes(len(m)))
damaged("ones", FORMAT, lambda m: b"\xff" * len(m))
damaged("noise", FORMAT, lambda m: m.noise(0, len(m)))
damaged("noise behind the magic", FORMAT, lambda m: m.noise(8, len(m)))
damaged("magic", FORMAT, lambda m: m.set("magic", b"mdisptcX"))
damaged("magic turned round", FORMAT, lambda m: m.set("magic", b"hctpsidm"))
damaged("format newer", FORMAT, lambda m: m.set("format", m.get("format") + 1))
damaged("format 0", FORMAT, lambda m: m.set("format", 0))
damaged("format of the other byte order", FORMAT, lambda m: m.set("format", 2 << 24))
damaged("stamp", FORMAT, lambda m: m.set("stamp", m.get("stamp") ^ 1))
damaged("boot", FOREIGN, lambda m: m.set("boot", b"0123456789abcdef"), create=FINE)
damaged("PID namespace", FOREIGN, lambda m: m.set("pid_space", 1), create=FINE)
damaged("user in the header", OWNER, lambda m: m.set("uid", m.get("uid") + 1))
damaged("capacity 0", DAMAGED, lambda m: m.set("capacity", 0))
damaged("capacity too small", DAMAGED, lambda m: m.set("capacity", 4096))
damaged("capacity unaligned", DAMAGED, lambda m: m.set("capacity", m.get("capacity") + 8))
damaged("capacity too large", DAMAGED, lambda m: m.set("capacity", (1 << 34) + 4096))
damaged("capacity huge", DAMAGED, lambda m: m.set("capacity", (1 << 64) - 4096))
damaged("capacity 16 GiB", FINE, lambda m: m.set("capacity", 1 << 34))
damaged("committed 0", DAMAGED, lambda m: m.set("committed", 0))
damaged("committed beyond the file", DAMAGED, lambda m: m.set("committed", len(m) + 4096))
damaged("committed huge", DAMAGED, lambda m: m.set("committed", (1 << 64) - 1))
damaged("arena's end 0", DAMAGED, lambda m: m.set("arena_top", 0))
damaged("arena's end before it", DAMAGED, lambda m: m.set("arena_top", ARENA - 16))
damaged("arena's end uncommitted", DAMAGED, lambda m: m.set("arena_top", len(m) + 16))
damaged("arena's end huge", DAMAGED, lambda m: m.set("arena_top", (1 << 64) - 16))
damaged("state closed", CLOSED, lambda m: m.set("state", 1), create=FINE, waits=True)
damaged("state damaged", DAMAGED, lambda m: m.set("state", 2))
damaged("state unknown", DAMAGED, lambda m: m.set("state", 77))
damaged(
    "registrar's lease says dead",
    DIED,
    lambda m: m.put(PROCESSES, "I", 0x40000000),
    create=FINE,
    waits=True,
)

behind("state of the registrar", lambda m: m.set("main_state", 77))
behind("more process slots than there are", lambda m: m.set("process_top", (1 << 32) - 1))
behind("more member slots than there are", lambda m: m.set("member_top", (1 << 32) - 1))
behind("mutex of noise", lambda m: m.noise(MUTEX, MUTEX + MUTEX_SIZE), DAMAGED)
behind("mutex of ones", lambda m: m.put(MUTEX, "40s", b"\xff" * 40), DAMAGED)
behind("mutex of another type", lambda m: m.put(MUTEX + 16, "I", 0x40), DAMAGED)
behind("mutex with priority inheritance", lambda m: m.put(MUTEX + 16, "I", 0xB0), DAMAGED)
behind("mutex held by nobody", lambda m: m.put(MUTEX, "I", NOBODY), DAMAGED)
behind("mutex whose holder died", lambda m: m.put(MUTEX, "I", 0x40000000 | NOBODY))
behind("mutex that cannot be recovered", lambda m: m.put(MUTEX + 8, "I", 0x7FFFFFFE), DAMAGED)
behind("event words", lambda m: m.noise(EVENTS, PROCESSES))
behind("process slots but the first", lambda m: m.noise(PROCESSES + 128, MEMBERS))
behind("member slots", lambda m: m.noise(MEMBERS, ARENA))
behind(
    "member slots all taken",
    lambda m: m.noise(MEMBERS, ARENA).set("member_top", 2048),
    "RegistryFullError",
)
behind("sequence 0", lambda m: m.set("next_seq", 0))
behind("sequence at its end", lambda m: m.set("next_seq", (1 << 64) - 1))
behind("counts", lambda m: m.set("names", 1 << 63).set("facts", 0).set("used", 1 << 62))
behind("arena's end unaligned", lambda m: m.set("arena_top", m.get("arena_top") - 4))
behind("arena's end early", lambda m: m.set("arena_top", m.get("arena_top") - 64))
behind("index 0", lambda m: m.set("index", 0))
behind("index outside", lambda m: m.set("index", 0xFFFFFFF0 << 8 | 8))
behind("index of 2^200", lambda m: m.set("index", m.get("index") & ~0xFF | 200))
behind("index too large", lambda m: m.set("index", m.get("index") & ~0xFF | 28))
behind("index of one", lambda m: m.set("index", m.get("index") & ~0xFF))
behind("index inside the header", lambda m: m.set("index", 8 << 8 | 3))
behind("index is a fact", lambda m: m.set("index", m.fact() // 8 << 8 | 1))
behind("index full of noise", lambda m: m.noise(m.blocks(INDEX)[-1] + 8, _end(m, INDEX)))
behind("index full of what is outside", lambda m: _fill(m, INDEX, b"\xf0\xff\xff\xff"))
behind("block of size 0", lambda m: m.put(m.fact(), "I", 0))
behind("block of no multiple", lambda m: m.put(m.fact(), "I", 72 + 1))
behind("block of another class", lambda m: m.put(m.fact(), "I", 4096 + 16))
behind("block beyond the arena", lambda m: m.put(m.fact(), "I", (1 << 32) - 16))
behind("tag unknown", lambda m: m.put(m.fact() + 4, "I", 0x12345678))
behind("a name's tag is free", lambda m: m.put(m.node(b"many::op") + 4, "I", 0x46524545))
behind("first block is of size 0", lambda m: m.put(ARENA, "I", 0))
behind("fact is its own next", lambda m: m.put(m.fact() + 8, "I", m.fact() // 8))
behind("chain of two that goes round", lambda m: _round(m))
behind("chain leads outside", lambda m: m.put(m.fact() + 8, "I", 0xFFFFFFFF))
behind("chain leads into the header", lambda m: m.put(m.fact() + 8, "I", 1))
behind("chain leads into a block", lambda m: m.put(m.fact() + 8, "I", m.fact() // 8 + 3))
behind("chain leads to a name", lambda m: m.put(m.fact() + 8, "I", m.node(b"many::op") // 8))
behind("name's head outside", lambda m: m.put(m.node(b"many::op") + 16, "I", 0xFFFFFFFF))
behind("all names share a chain", lambda m: _share(m))
behind("fact of another name", lambda m: m.put(m.fact() + 12, "I", m.node(b"other::op") // 8))
behind("fact of no name", lambda m: m.put(m.fact() + 12, "I", 0))
behind("fact's number is 0", lambda m: m.put(m.fact() + 16, "Q", 0))
behind("fact's number is the last", lambda m: m.put(m.fact() + 16, "Q", (1 << 64) - 1))
behind("name longer than its block", lambda m: m.put(m.node(b"many::op") + 24, "I", 1000))
behind("name of 4 GiB", lambda m: m.put(m.node(b"many::op") + 24, "I", (1 << 32) - 1))
behind("name's hash", lambda m: m.put(m.node(b"many::op") + 20, "I", 1))
behind("name is no text", lambda m: m.put(m.node(b"many::op") + 32, "8s", b"\xff\xfe\x00\x1b[2J\n"))
behind("body longer than its block", lambda m: m.put(m.text() - 8, "I", 60_000))
behind("body of 4 GiB", lambda m: m.put(m.text() - 8, "I", (1 << 32) - 1))
behind("place of 4 GiB", lambda m: m.put(m.text() - 4, "I", (1 << 32) - 1))
behind("kind unknown", lambda m: m.put(m.text() - 20, "I", 99))
behind("key unknown", lambda m: m.put(m.text() - 16, "i", -5))
behind("schema is noise", lambda m: m.noise(m.text(), m.text() + 16))
behind("schema is another language", lambda m: m.put(m.text(), "12s", b"import os; \n"))
behind("free lists", lambda m: m.noise(FREE_LISTS, FREE_LISTS + 96 * 4))
behind("free lists are facts", lambda m: m.put(FREE_LISTS, "384s", _u32(m.fact() // 8) * 96))
behind("arena of noise", lambda m: m.noise(ARENA, len(m)))
behind("arena of zeroes", lambda m: m.put(ARENA, f"{len(m) - ARENA}s", b""))
behind("everything but the header's first page", lambda m: m.noise(PROCESSES + 128, len(m)))


def _u32(value: int) -> bytes:
    return struct.pack("<I", value)


def _end(m: Bytes, tag: int) -> int:
    return m.blocks(tag)[-1] + m.u32(m.blocks(tag)[-1])


def _fill(m: Bytes, tag: int, word: bytes) -> None:
    start, end = m.blocks(tag)[-1] + 8, _end(m, tag)
    m[start:end] = word * ((end - start) // len(word))


def _round(m: Bytes) -> None:
    m.put(m.u32(m.fact() + 8) * 8 + 8, "I", m.fact() // 8)


def _share(m: Bytes) -> None:
    for at in m.blocks(NODE):
        m.put(at + 16, "I", m.fact() // 8)


@kind("nothing", NOT_FOUND, create=FINE, waits=True)
def _nothing(path: Path, model: Bytes) -> None:
    pass


@kind("holes and nothing else", FORMAT)
def _holes(path: Path, model: Bytes) -> None:
    write(path, b"")
    os.truncate(path, len(model))


@kind("a header before holes", FORMAT)
def _header_before_holes(path: Path, model: Bytes) -> None:
    write(path, model[:4096])
    os.truncate(path, len(model))


@kind("a hole in the slots", DAMAGED)
def _hole(path: Path, model: Bytes) -> None:
    _with_hole(path, model, MEMBERS // 4096 * 4096)


@kind("a hole in the arena", DAMAGED)
def _hole_in_arena(path: Path, model: Bytes) -> None:
    _with_hole(path, model, len(model) // 4096 * 4096 - 4096)


def _with_hole(path: Path, model: Bytes, at: int) -> None:
    write(path, b"")
    with open(path, "r+b") as file:
        file.write(model[:at])
        file.seek(at + 4096)
        file.write(model[at + 4096 :])
        file.truncate(len(model))


# --- other things than files ----------------------------------------------------------------------


@kind("folder", ACCESS)
def _directory(path: Path, model: Bytes) -> None:
    path.mkdir(0o700)


@kind("FIFO", ACCESS)
def _fifo(path: Path, model: Bytes) -> None:
    os.mkfifo(path, 0o600)


@kind("FIFO that somebody reads", ACCESS)
def _fifo_read(path: Path, model: Bytes):
    os.mkfifo(path, 0o600)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield
    # No process has opened it: a reader that had met a writer would learn of its end.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    assert poll.poll(0) == []
    os.close(fd)


@kind("socket", ACCESS)
def _socket(path: Path, model: Bytes) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def linked(name: str, target: str | None) -> None:
    @kind(f"symbolic link to {name}", ACCESS)
    def make(path: Path, model: Bytes):
        real = path.with_name(path.name + ".real")
        if target is None:
            write(real, model)
        os.symlink(target or real, path)
        yield
        real.unlink(missing_ok=True)


linked("a registry", None)
linked("nothing", "/nowhere/at/all")
linked("itself", ".")
linked("a folder", "/etc")
linked("a file outside", "/etc/passwd")
linked("a device", "/dev/zero")
linked("a process's memory", "/proc/self/mem")


@kind("symbolic link that goes round", ACCESS)
def _round_link(path: Path, model: Bytes) -> None:
    os.symlink(path.name, path)


def device(name: str, major: int, minor: int) -> None:
    @kind(f"device {name}", ACCESS, root=True)
    def make(path: Path, model: Bytes) -> None:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(major, minor))


device("null", 1, 3)
device("zero", 1, 5)
device("full", 1, 7)
device("terminal", 5, 0)
device("that does not exist", 0, 0)


# --- rights ---------------------------------------------------------------------------------------

for mode, what in (
    (0o620, "writable by the group"),
    (0o602, "writable by all"),
    (0o640, "readable by the group"),
    (0o604, "readable by all"),
    (0o666, "without rights to keep"),
    (0o700, "executable"),
    (0o400, "read only"),
    (0o200, "write only"),
    (0o000, "without rights"),
    (0o4600, "setuid"),
    (0o2600, "setgid"),
    (0o1600, "sticky"),
):

    @kind(f"file {what}", OWNER)
    def _rights(path: Path, model: Bytes, mode: int = mode) -> None:
        write(path, model, mode)


@kind("file of another user", OWNER, root=True)
def _foreign(path: Path, model: Bytes) -> None:
    write(path, model)
    os.chown(path, 12345, -1)


@kind("file of another group", FINE, root=True)
def _foreign_group(path: Path, model: Bytes) -> None:
    write(path, model)
    os.chown(path, -1, 12345)


@kind("hard link to a registry", FINE)
def _hard_link(path: Path, model: Bytes):
    real = path.with_name(path.name + ".real")
    write(real, model)
    os.link(real, path)
    yield
    real.unlink()


@kind("hard link to another user's file", OWNER, root=True)
def _hard_link_foreign(path: Path, model: Bytes):
    real = SHM / path.name
    write(real, model)
    os.chown(real, 12345, 12345)
    os.link(real, path)
    yield
    real.unlink()


@kind("file locked by another", FINE)
def _locked(path: Path, model: Bytes):
    write(path, model)
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# As while md_reap removes it: later another registry may have the name.
@kind("file under a lease of another", NOT_FOUND, create=EXISTS, waits=True)
def _leased(path: Path, model: Bytes):
    write(path, model)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    with open(path, "r+b") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield


# --- registries that live and that died -----------------------------------------------------------


def _registrar_of(path: Path) -> int:
    """A process that has created the registry and stays."""
    out, come = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(os.open("/dev/null", os.O_RDWR), 1)
            registry = md.Registry.create(path.name, capacity=1 << 20)
            assert registry.is_main
            os.write(come, b"x")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(come)
    assert os.read(out, 1) == b"x"
    os.close(out)
    return pid


def _end_process(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@kind("registry that lives", FINE)
def _alive(path: Path, model: Bytes):
    pid = _registrar_of(path)
    yield
    _end_process(pid)


@kind("registry whose registrar was killed", DIED, create=FINE, waits=True)
def _killed(path: Path, model: Bytes) -> None:
    _end_process(_registrar_of(path))


@kind("registry whose registrar is stopped", FINE)
def _stopped(path: Path, model: Bytes):
    pid = _registrar_of(path)
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    yield
    _end_process(pid)


# --- names and addresses --------------------------------------------------------------------------

UUID = "0123456789abcdef" * 2
ORIGIN = native.origin(b"")[1].decode()


def named(what: str, address: str, outcome: str = NAME, **how: object) -> None:
    @kind(f"name {what}", outcome, **how)
    def make(path: Path, model: Bytes) -> str:
        return address


named("that is empty", "", default=FINE)
named("one dot", ".")
named("two dots", "..")
named("that leads up", "../hostile")
named("that leads down", "a/b")
named("that is a path", "/dev/shm/hostile")
named("that begins with a dot", ".hidden")
named("of 129 characters", "x" * 129)
named("of 100,000 characters", "x" * 100_000)
named("that is not ASCII", "\u00fcber")
named("with a surrogate", "a\udc80")
named("with a blank", "a b")
named("with a line end", "a\n")
named("with an escape", "a\x1b[2J")
named("with a backslash", "a\\b")
named("with a colon", "a:b")
named("with a format", "%s%n")
named("with a scheme and a path", "shm:../x")
named("with a scheme and nothing", "shm:")
named("with NUL", "a\0b", default="ValueError: embedded null byte")

for address, what in (
    ("fd:", "without numbers"),
    ("fd:1:2", "without its registry"),
    (f"fd:1:2:{UUID}", "without its boot"),
    (f"fd:1:2:{UUID}:{UUID}", "without its PID namespace"),
    (f"fd:1:2:{UUID}:{UUID}:1x", "with a letter behind it"),
    (f"fd:1:2:{UUID}:{UUID}:{10**20}", "of a PID namespace too large"),
    (f"fd:1:2:{UUID[:-1]}:{ORIGIN}", "too short"),
    (f"fd:1:2:{UUID}0:{ORIGIN}", "too long"),
    (f"fd:1:2:{UUID}:{ORIGIN} ", "with a blank behind it"),
    (f"fd:1:2:{UUID}:{ORIGIN}/../x", "with a path behind it"),
    (f"fd:1:2:{UUID.upper()}:{ORIGIN}", "in capitals"),
    (f"fd:-1:2:{UUID}:{ORIGIN}", "with a negative process"),
    (f"fd:1:-2:{UUID}:{ORIGIN}", "with a negative descriptor"),
    (f"fd:0:2:{UUID}:{ORIGIN}", "of process 0"),
    (f"fd:01:2:{UUID}:{ORIGIN}", "with a zero before it"),
    (f"fd: 1:2:{UUID}:{ORIGIN}", "with a blank in it"),
    (f"fd:+1:2:{UUID}:{ORIGIN}", "with a sign"),
    (f"fd:4294967297:2:{UUID}:{ORIGIN}", "of a process number too large"),
    (f"fd:1:99999999999999999999:{UUID}:{ORIGIN}", "of a descriptor number too large"),
    (f"fd:self:2:{UUID}:{ORIGIN}", "of this process by a word"),
):
    named(f"is an address {what}", address)
named("of a process of another boot", f"fd:{os.getpid()}:3:{UUID}:{UUID}:1", FOREIGN, create=NAME)
named(
    "of a process of another PID namespace",
    f"fd:{os.getpid()}:3:{UUID}:{ORIGIN.partition(':')[0]}:1",
    FOREIGN,
    create=NAME,
)
named("of a process that is not there", f"fd:2000000000:3:{UUID}:{ORIGIN}", DIED, create=NAME)


def descriptor(what: str, outcome: str, opener, uuid: str = UUID, **how: object) -> None:
    """The address of an open file of the stage."""

    @kind(f"address of {what}", outcome, create=NAME, **how)
    def make(path: Path, model: Bytes):
        fd, others = opener(path, model)
        its = bytes(model[40:56]).hex() if uuid == "right" else uuid
        yield f"fd:{os.getpid()}:{fd}:{its}:{ORIGIN}"
        for each in (fd, *others):
            os.close(each)


def _opened(path: str, flags: int = os.O_RDWR):
    return lambda where, model: (os.open(path, flags), ())


def _pipe(path: Path, model: Bytes):
    out, come = os.pipe()
    return out, (come,)


def _sockets(path: Path, model: Bytes):
    with socket.socket() as made:
        return os.dup(made.fileno()), ()


def _memfd(change, mode: int = 0o600):
    def opener(path: Path, model: Bytes):
        fd = os.memfd_create("hostile")
        os.fchmod(fd, mode)
        os.write(fd, change(model))
        return fd, ()

    return opener


def _gone(path: Path, model: Bytes):
    write(path, model)
    fd = os.open(path, os.O_RDWR)
    path.unlink()
    return fd, ()


def _epoll(path: Path, model: Bytes):
    with select.epoll() as made:
        return os.dup(made.fileno()), ()


descriptor("a pipe", ACCESS, _pipe)
descriptor("a socket", ACCESS, _sockets)
descriptor("a folder", ACCESS, _opened("/tmp", os.O_RDONLY))
descriptor("/dev/zero", ACCESS, _opened("/dev/zero"))
descriptor("/dev/full", ACCESS, _opened("/dev/full"))
descriptor("an epoll", ACCESS, _epoll)
descriptor("an event counter", ACCESS, lambda path, model: (_eventfd(), ()))
descriptor("a folder by its path only", ACCESS, _opened("/etc", os.O_PATH))
descriptor("a file of the system", OWNER, _opened("/etc/passwd", os.O_RDONLY))
descriptor("a process's memory", FORMAT, _opened("/proc/self/mem", os.O_RDONLY))
descriptor("a process's list of mappings", OWNER, _opened("/proc/self/maps", os.O_RDONLY))
descriptor("an empty memfd", FORMAT, _memfd(lambda m: b""))
descriptor("a memfd of something else", FORMAT, _memfd(lambda m: b"something else" * 100_000))
descriptor("a memfd that all may write", OWNER, _memfd(lambda m: m, 0o777), "right")
descriptor("another registry", NOT_FOUND, _memfd(lambda m: m), default=DIED)
descriptor("a copy of the right registry", FINE, _memfd(lambda m: m), "right")
descriptor("a registry whose file is gone", FINE, _gone, "right")
descriptor("a cut registry", DAMAGED, _memfd(lambda m: m[: len(m) - 1]), "right")


def _eventfd() -> int:
    return ctypes.CDLL(None).eventfd(0, 0)


@kind("address of a descriptor that is closed", NOT_FOUND, create=NAME, default=DIED)
def _no_descriptor(path: Path, model: Bytes) -> str:
    return f"fd:{os.getpid()}:999999:{UUID}:{ORIGIN}"


@kind("address of a process that is nobody's child any more", DIED, create=NAME)
def _ended(path: Path, model: Bytes) -> str:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return f"fd:{pid}:3:{UUID}:{ORIGIN}"


@kind("address of a zombie", NOT_FOUND, create=NAME, default=DIED)
def _zombie(path: Path, model: Bytes):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    yield f"fd:{pid}:3:{UUID}:{ORIGIN}"
    os.waitpid(pid, 0)


# --- the folder -----------------------------------------------------------------------------------
# A process of another user meets these, since this user's folder is in use.


def folder(what: str, outcome: str, make) -> None:
    create = FINE if outcome == NOT_FOUND else outcome
    waits = outcome == NOT_FOUND

    @kind(
        f"registries' folder {what}",
        outcome,
        create=create,
        root=True,
        user=True,
        waits=waits,
    )
    def prepare(path: Path, model: Bytes):
        folder = path.parent
        user = int(folder.name.rpartition("-")[2])
        make(folder, user)
        yield
        _remove(folder)
        _remove(folder.with_name(folder.name + ".other"))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for each in path.iterdir():
            each.unlink()
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _made(mode: int, owner: int | None = None):
    def make(folder: Path, user: int) -> None:
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, user if owner is None else owner, -1)

    return make


def _folder_link(folder: Path, user: int) -> None:
    other = folder.with_name(folder.name + ".other")
    _made(0o700)(other, user)
    os.symlink(other, folder)
    os.chown(folder, user, -1, follow_symlinks=False)


def _folder_file(folder: Path, user: int) -> None:
    folder.write_text("")
    os.chown(folder, user, -1)


folder("is not there", NOT_FOUND, lambda folder, user: None)
folder("is a file", OWNER, _folder_file)
folder("is a FIFO", OWNER, lambda folder, user: os.mkfifo(folder))
folder("is a link to a folder", OWNER, _folder_link)
folder("is a link to nothing", OWNER, lambda folder, user: os.symlink("/nowhere", folder))
folder("is another user's", OWNER, _made(0o700, 12345))
folder("is root's, open to all", OWNER, _made(0o777, 0))
folder("is writable by the group", OWNER, _made(0o770))
folder("is readable by all", OWNER, _made(0o755))
folder("cannot be entered", NOT_FOUND, _made(0o600))
folder("has no rights", NOT_FOUND, _made(0o000))


# --- what the process itself may and has ----------------------------------------------------------


def process(what: str, outcome: str, within, create: str, default: str = "", **how: object) -> None:
    """Attaches to a copy, creates a new registry, makes a default one without an address."""

    @kind(
        f"process {what}",
        outcome,
        create=create,
        default=default,
        within=within,
        is_process=True,
        **how,
    )
    def make(path: Path, model: Bytes):
        fd, _ = _memfd(lambda m: m)(path, model)
        yield f"fd:{os.getpid()}:{fd}:{bytes(model[40:56]).hex()}:{ORIGIN}"
        os.close(fd)


def limit(which: int, value):
    def within() -> None:
        now = value() if callable(value) else value
        resource.setrlimit(which, (now, resource.getrlimit(which)[1]))

    return within


def _descriptors(spare: int) -> int:
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    return fd + spare


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize() + (1 << 18)


_libc = ctypes.CDLL(None, use_errno=True)


def _checked(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _mounted(options: bytes, fill: bool = False, flags: int = 0):
    """Gives this process a file system of its own where the folder lies."""

    def within() -> None:
        _checked(_libc.unshare(0x00020000))  # CLONE_NEWNS
        # Private: only this process sees what is mounted on it. In a chroot "/" is not a mount.
        if _libc.mount(b"none", b"/dev/shm", None, 0x44000, None) < 0:
            _checked(_libc.mount(b"none", b"/", None, 0x44000, None))
        _checked(_libc.mount(b"tmpfs", os.fsencode(SHM), b"tmpfs", flags, options))
        if fill:
            FOLDER.mkdir(0o700)
            with contextlib.suppress(OSError), open(SHM / "filler", "wb", 0) as file:
                while True:
                    file.write(bytes(4096))

    return within


def _other_pids() -> None:
    """A child in a PID namespace of its own does the rest."""
    _checked(_libc.unshare(0x20000000))  # CLONE_NEWPID
    pid = os.fork()
    if pid:
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _no_executable_memory() -> None:
    _other_pids()  # each of which has this setting for itself
    Path("/proc/sys/vm/memfd_noexec").write_text("2")


process(
    "without descriptors", SYSTEM, limit(resource.RLIMIT_NOFILE, lambda: _descriptors(0)), SYSTEM
)
process(
    "with one descriptor", SYSTEM, limit(resource.RLIMIT_NOFILE, lambda: _descriptors(1)), SYSTEM
)
process("without address space", SYSTEM, limit(resource.RLIMIT_AS, _address_space), SYSTEM)
process("that may not make files", FINE, limit(resource.RLIMIT_FSIZE, 0), SYSTEM, SYSTEM)
process("on a full disk", FINE, _mounted(b"size=64k", fill=True), SYSTEM, root=True, default=FINE)
process("on a disk too small", FINE, _mounted(b"size=256k"), SYSTEM, root=True, default=FINE)
process("on a disk without inodes", FINE, _mounted(b"nr_inodes=1"), SYSTEM, root=True, default=FINE)
process("on a disk to read only", FINE, _mounted(b"", flags=1), SYSTEM, root=True, default=FINE)
process("in another PID namespace", FOREIGN, _other_pids, FINE, root=True, default=FINE)
process("that may have no executable memory", FOREIGN, _no_executable_memory, FINE, FINE, root=True)
process("of another user", OWNER, None, FINE, root=True, user=True, default=FINE)
process("with a umask that takes all", FINE, lambda: os.umask(0o777), FINE)
