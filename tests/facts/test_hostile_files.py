"""Files of every kind under a registry's name or behind an address, and processes that lack
something they need: each call succeeds or raises an error of its own class, at once; no process
crashes, and nothing is left behind. hostile_files.py has the kinds.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_files import (
    ARENA,
    AT,
    FINE,
    FOLDER,
    KINDS,
    MEMBERS,
    MUTEX,
    NOBODY,
    NOT_FOUND,
    Bytes,
    _libc,
)
from hostile_stage import LIMIT
from kinds import SUPPORT, run_main
from patience import limit
from seeds import seed_of

from mdispatch import errors
from mdispatch.facts import native

pytestmark = pytest.mark.shared

STAGE = Path(SUPPORT) / "hostile_stage.py"
IS_ROOT = os.geteuid() == 0
PATIENCE = 2.0  # how many seconds the default registry waits for a name to appear


@pytest.fixture(scope="module")
def stage():
    """Has a process with one thread fork a child that meets a kind."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(STAGE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:

        def meet(kind: str, patient: bool) -> dict:
            print(json.dumps([kind, patient]), file=process.stdin, flush=True)
            line = process.stdout.readline()
            assert line, "the stage ended"
            return json.loads(line)

        assert json.loads(process.stdout.readline()) == {"binding": native.which}
        yield meet
        process.stdin.close()


def test_there_are_many_kinds() -> None:
    assert len(KINDS) >= 64
    assert len([kind for kind in KINDS.values() if kind.attach != FINE]) >= 64


@pytest.mark.waits
@pytest.mark.parametrize("name", KINDS)
def test_each_kind_is_answered_by_its_error_and_at_once(name, stage, long_form) -> None:
    kind = KINDS[name]
    if kind.root and not IS_ROOT:
        pytest.skip("only root can make this kind")
    patient = long_form or name == "nothing"
    met = stage(name, patient)
    assert met["code"] == 0, met  # a negative number is a signal
    found = met["found"]
    expected = {
        doing: outcome
        for doing, outcome in kind.expected.items()
        if doing != "default" or patient or not kind.waits
    }
    assert {doing: found[doing][0] for doing in expected} == expected, found
    assert met["left"] == []
    for doing in expected:
        waits = kind.waits and doing == "default"  # it is tried once, and other work adds to that
        allowed = PATIENCE + limit(5) if waits else LIMIT
        assert found[doing][1] < allowed, (doing, found[doing])
    # It is attached: then every call succeeds or raises one of our errors.
    for call, (outcome, seconds, words) in found.get("use", {}).items():
        assert outcome == FINE or outcome in errors.__all__, (call, outcome, words)
        assert seconds < LIMIT, (call, outcome, words)


# --- what is done to a registry that processes have open ------------------------------------------

#: A process that attaches, then runs the lines that it is sent.
PUPPET = """
import sys
sys.path[:] = {path!r}
import mdispatch as md
from hostile_stage import attach, create, timed, use_all
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(repr(eval(line)), flush=True)
    except SyntaxError:
        exec(line)
        print(repr(None), flush=True)
"""


class Puppet:
    """Another process, which answers each line or ends."""

    def __init__(self) -> None:
        environment = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", PUPPET.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.is_ready = False

    def __call__(self, line: str):
        if not self.is_ready:
            assert self.process.stdout.readline() == "ready\n"
            self.is_ready = True
        print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        return eval(answer) if answer else ("ended", self.process.wait(limit(30)))

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(limit(30))
        self.process.stdout.close()


@pytest.fixture
def puppets():
    """A registrar with a named registry, and another process."""
    made = [Puppet(), Puppet()]  # both start at the same time
    name = f"puppets-{os.getpid()}"
    assert made[0](f"r = md.Registry.create({name!r}, capacity=1 << 20)") is None
    yield name, *made
    for each in made:
        each.end()
    FOLDER.joinpath(name).unlink(missing_ok=True)


ATTACHED = "w = md.Registry.attach({!r}); assert not w.is_main"
NEW_FACT = "r.dispatcher.facts.register(2, 0, {!r}, 'text', 'here') and None"
FOUND = "w.dispatcher.facts.await_fact(2, 0, {!r}, 1, 10.0)[0].body"
DEFINED = 'l = md.Library("ns", "DEF", registry=r); l.define("f() -> ()")'


@pytest.mark.either_binding
def test_whose_file_was_deleted_goes_on_and_the_name_is_free(puppets) -> None:
    name, main, worker = puppets
    stranger = Puppet()
    worker(ATTACHED.format(name))
    FOLDER.joinpath(name).unlink()
    main(NEW_FACT.format("a::b"))
    assert worker(FOUND.format("a::b")) == "text"
    assert stranger(f"timed(lambda: attach({name!r}))[0]") == NOT_FOUND
    # Another registry takes the name, and keeps it when the first one ends.
    assert stranger(f"r = md.Registry.create({name!r}, capacity=1 << 20)") is None
    inode = FOLDER.joinpath(name).stat().st_ino
    assert main("r.close()") is None
    assert FOLDER.joinpath(name).stat().st_ino == inode
    assert main(f"timed(lambda: attach({name!r}))[0]") == FINE
    assert stranger("r.close()") is None
    assert not FOLDER.joinpath(name).exists()
    stranger.end()


@pytest.mark.either_binding
def test_whose_file_was_replaced_by_another_kind_goes_on(puppets) -> None:
    name, main, worker = puppets
    stranger = Puppet()
    worker(ATTACHED.format(name))
    path = FOLDER / name
    path.unlink()
    path.write_bytes(b"something else")
    path.chmod(0o600)
    main(NEW_FACT.format("a::b"))
    assert worker(FOUND.format("a::b")) == "text"
    assert stranger(f"timed(lambda: attach({name!r}))[0]") == "RegistryFormatError"
    assert main("r.close()") is None
    assert path.read_bytes() == b"something else"
    stranger.end()


@pytest.mark.either_binding
def test_an_anonymous_registry_cannot_be_cut_and_a_named_one_can(puppets) -> None:
    """The one crash that a process of the same user can cause with no more than a file's rights.
    Only the kernel could prevent it, and it does not do so for memory that has a name.
    """
    name, main, worker = puppets
    main("a = md.Registry.create(capacity=1 << 20)")
    address = main("a.address")
    pid, fd = address.split(":")[1:3]
    anonymous = f"/proc/{pid}/fd/{fd}"
    for size in (0, 4096, 1 << 16):
        with pytest.raises(PermissionError):
            os.truncate(anonymous, size)
    assert os.stat(anonymous).st_mode & 0o7777 == 0o600
    worker(ATTACHED.format(name))
    os.truncate(FOLDER / name, 0)
    assert worker("w.dispatcher.facts.check()") == ("ended", -7)  # SIGBUS


NOISE = {
    "arena": lambda fd, dice: os.pwrite(fd, dice.randbytes(60_000), ARENA),
    "zeroes": lambda fd, _: os.pwrite(fd, bytes(60_000), ARENA),
    "end of the arena": lambda fd, _: put(fd, "arena_top", 1 << 20),
    "end of the arena, far away": lambda fd, _: put(fd, "arena_top", (1 << 64) - 16),
    "end of the arena, before it": lambda fd, _: put(fd, "arena_top", 64),
    "end of the arena, and a chain that leads there": lambda fd, _: lead_beyond(fd),
    "committed": lambda fd, _: put(fd, "committed", 1 << 60) and put(fd, "arena_top", 1 << 19),
    "capacity": lambda fd, _: put(fd, "capacity", 1 << 60),
    "index": lambda fd, _: put(fd, "index", 0xFFFFFFFF),
    "counts": lambda fd, _: put(fd, "used", 1 << 60) and put(fd, "names", 0),
    "sequence": lambda fd, _: put(fd, "next_seq", (1 << 64) - 1),
    "state": lambda fd, _: put(fd, "state", 3),
    "slots' tops": lambda fd, _: put(fd, "process_top", 1 << 31) and put(fd, "member_top", 1 << 31),
    "members": lambda fd, dice: os.pwrite(fd, dice.randbytes(ARENA - MEMBERS), MEMBERS),
    "event words": lambda fd, dice: os.pwrite(fd, dice.randbytes(4096), 4096),
    "mutex": lambda fd, _: os.pwrite(fd, b"\xff" * 40, MUTEX),
    "mutex of another type": lambda fd, _: os.pwrite(fd, b"\x40\0\0\0", MUTEX + 16),
    "lock held by nobody": lambda fd, _: os.pwrite(fd, NOBODY.to_bytes(4, "little"), MUTEX),
    "hole": lambda fd, _: punch(fd, ARENA // 4096 * 4096 + 4096, 60_000 // 4096 * 4096),
}


def put(fd: int, name: str, value: int) -> int:
    at, form = AT[name]
    return os.pwrite(fd, struct.pack("<" + form, value), at)


def lead_beyond(fd: int) -> None:
    """Leads readers to a location where the region is mapped but has no memory behind it."""
    node = Bytes(os.pread(fd, 1 << 20, 0)).node(b"ns::f")
    put(fd, "arena_top", 1 << 20)
    os.pwrite(fd, struct.pack("<I", ((1 << 20) - 4096) // 8), node + 16)


def punch(fd: int, start: int, size: int) -> None:
    keep_size_and_punch = 3
    offset = ctypes.c_int64
    assert _libc.fallocate(fd, keep_size_and_punch, offset(start), offset(size)) == 0


@pytest.mark.either_binding
@pytest.mark.parametrize("noise", NOISE)
def test_what_is_written_over_under_its_users_is_an_error_at_most(
    noise, puppets, long_form
) -> None:
    name, main, worker = puppets
    main(DEFINED)
    worker(ATTACHED.format(name))
    fd = os.open(FOLDER / name, os.O_RDWR)
    NOISE[noise](fd, random.Random(seed_of(long_form)))
    os.close(fd)
    for who, registry in ((worker, "w"), (main, "r")):
        used = who(f"use_all({registry}, 'ns::f')")
        for call, (outcome, seconds, words) in used.items():
            assert outcome == FINE or outcome in errors.__all__, (call, outcome, words)
            assert seconds < LIMIT, (call, outcome, words)
        assert who(f"{registry}.close()") is None


@pytest.mark.either_binding
@pytest.mark.long
def test_a_lock_that_is_never_let_go_of_is_an_error_after_10_s(puppets) -> None:
    name, main, worker = puppets
    worker(ATTACHED.format(name))
    fd = os.open(FOLDER / name, os.O_RDWR)
    os.pwrite(fd, main.process.pid.to_bytes(4, "little"), MUTEX)  # a thread that exists
    os.close(fd)
    outcome, seconds, words = worker("timed(w.dispatcher.facts.check, 1)")
    assert outcome == "RegistryError"
    assert "makes no progress" in words
    assert 9 < seconds < limit(15)
    main.process.kill()  # otherwise each would wait once more to leave
    worker.process.kill()


@pytest.mark.either_binding
@pytest.mark.long
@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
def test_a_folder_that_is_locked_for_ever_is_an_error_after_10_s() -> None:
    got = run_main(
        """
        import fcntl
        from hostile_stage import become, create, timed
        from mdispatch.facts.native import native
        from mdispatch.facts.status import error_for
        user, name = args
        def reap():
            raise error_for(native.reap(name.encode()), name)
        become(user)
        folder = Path(os.environ["MDISPATCH_FOLDER"], f"mdispatch-{user}")
        md.Registry.create(name, capacity=1 << 20).close()
        fd = os.open(folder, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        locked = timed(lambda: create(name), 1)
        reaped = timed(reap, 1)
        fcntl.flock(fd, fcntl.LOCK_UN)
        told = f"the folder of named registries, {folder}, is locked by process {os.getpid()}, "
        done(locked=locked, reaped=reaped, after=timed(lambda: create(name)), told=told)
        folder.rmdir()
        """,
        30_000 + os.getpid() % 10_000,
        "locked",
    )
    for what in ("locked", "reaped"):
        outcome, seconds, words = got[what]
        assert outcome == "RegistryError"
        assert got["told"] in words
        assert 9 < seconds < limit(15)
    assert got["after"][0] == FINE


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
@pytest.mark.either_binding
def test_rights_are_the_same_under_any_umask() -> None:
    got = run_main(
        """
        from hostile_stage import become
        user, name = args
        become(user)
        seen = []
        for mask in (0o000, 0o022, 0o077, 0o777, 0o277, 0o400):
            os.umask(mask)
            with md.Registry.create(name, capacity=1 << 20) as registry:
                path = Path(os.environ["MDISPATCH_FOLDER"], f"mdispatch-{user}", name)
                seen.append((path.parent.stat().st_mode & 0o7777, path.stat().st_mode & 0o7777))
                address = registry.address
            path.parent.rmdir()
        done(seen=seen)
        """,
        40_000 + os.getpid() % 10_000,
        "umask",
    )
    assert got["seen"] == [(0o700, 0o600)] * 6


@pytest.mark.thorough
@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
@pytest.mark.either_binding
def test_another_user_can_take_away_named_registries_and_no_others() -> None:
    got = run_main(
        """
        from hostile_stage import become, create, default, timed
        user, name = args
        folder = Path(os.environ["MDISPATCH_FOLDER"], f"mdispatch-{user}")
        folder.mkdir(0o700)  # root's
        try:
            pid = os.fork()
            if pid == 0:
                become(user)
                done(named=timed(lambda: create(name))[0], other=timed(lambda: default(""))[0])
                os._exit(0)
            os.waitpid(pid, 0)
        finally:
            folder.rmdir()
        """,
        20_000 + os.getpid() % 10_000,
        "taken",
    )
    assert (got["named"], got["other"]) == ("RegistryOwnerError", FINE)


@pytest.mark.thorough
@pytest.mark.skipif(not IS_ROOT, reason="only root can make a PID namespace")
@pytest.mark.either_binding
def test_a_child_forked_into_another_pid_namespace_is_refused_the_lock() -> None:
    got = run_main(
        """
        from hostile_stage import use_all
        import ctypes
        registry = md.Registry.create(capacity=1 << 20)
        library = md.Library("ns", "DEF", registry=registry)
        library.define("f() -> ()")
        assert ctypes.CDLL(None).unshare(0x20000000) == 0  # CLONE_NEWPID
        pid = os.fork()
        if pid == 0:
            done(**use_all(registry, "ns::f"))
            os._exit(0)
        os.waitpid(pid, 0)
        """
    )
    assert got["check"][0] == got["register"][0] == "ForeignRegistryError"
    assert got["find"][0] == got["list"][0] == FINE
