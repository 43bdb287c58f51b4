"""What owners and callers lack, or find in their folder: an error of its own each, or nothing."""

from __future__ import annotations

import os

import pytest
from kinds import run_main

pytestmark = pytest.mark.shared

#: An owner in the main part's process, in a folder of its own, and a caller of it.
HEAD = """
import contextlib, gc, resource, socket, stat, tempfile
from mdispatch import errors
from mdispatch.across.transports import transport, host, messages
from mdispatch.across.transports.place import Place
from mdispatch.across import serving
from mdispatch.facts.outside import folder
mine = tempfile.TemporaryDirectory(dir="/dev/shm")
os.environ["MDISPATCH_FOLDER"] = mine.name
place = Path(os.path.normpath(folder()) + ".calls")
def answer(call, caller):
    if isinstance(call, errors.MdispatchError):
        return transport.RAISED, serving.describe(call)
    return 0, "x" * call[0] if isinstance(call[0], int) else len(call[0])
def files():
    return sorted(os.listdir(place))
def descriptors():
    return [int(each) for each in os.listdir("/proc/self/fd")]
def spare(count):
    # So many more can be opened: all numbers below a limit are taken, and so many given back.
    gc.collect()  # what nobody has any more would be closed in the midst of it
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors()) + 33, hard))
    holes = []
    with contextlib.suppress(OSError):
        while True:
            holes.append(os.open("/", os.O_RDONLY))
    for _ in range(count):
        os.close(holes.pop())
    return holes
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
def plenty(holes):
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for each in holes:
        os.close(each)
def owns():
    owner = host._Owner(answer)
    owner.close()
owns()  # what is imported late is there now
"""


@pytest.mark.parametrize("umask", [0, 0o077, 0o277, 0o777])
def test_rights_are_the_same_under_any_umask(umask):
    got = run_main(
        HEAD
        + """
place.rmdir()
os.umask(args[0])
owner = host._Owner(answer)
modes = [stat.S_IMODE(each.stat().st_mode) for each in (place, *map(place.joinpath, files()))]
answered = host.HostTransport().call(owner.address, ["four"], (), 0)
owner.close()
place.chmod(0)  # as whoever died between the making and this
owns()
done(modes=modes, answered=answered, left=files(), again=stat.S_IMODE(place.stat().st_mode))
""",
        umask,
    )
    assert got["modes"] == [0o700, 0o600, 0o600]
    assert got["answered"] == (0, 4, True)
    assert got["again"] == 0o700
    assert got["left"] == []


def test_an_owner_that_lacks_room_or_descriptors_or_threads_says_so_and_leaves_nothing():
    got = run_main(
        HEAD
        + """
outcomes = {}
before = len(descriptors())
def tried(name):
    try:
        owns()
        outcomes[name] = ""
    except errors.SystemCallError as error:
        outcomes[name] = [str(error), error.errno, error.registry]
    assert files() == [], name
    assert len(descriptors()) == before, name
soft, most = resource.getrlimit(resource.RLIMIT_FSIZE)
for size in (0, 16):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    tried(f"size {size}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, most))
for count in range(1, 7):
    holes = spare(count)
    try:
        before = len(descriptors())
        tried(count)
    finally:
        plenty(holes)
before = len(descriptors())
import threading
start = threading.Thread.start
def none(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = none
tried("thread")
threading.Thread.start = start
tried("fine")
done(place=str(place), outcomes={str(name): told for name, told in outcomes.items()})
"""
    )
    place, got = got["place"], got["outcomes"]
    assert got["fine"] == ""
    for name, told in got.items():
        if told:
            text, number, path = told
            assert "calls of other processes need " in text, name
            assert text.endswith("or name another place in MDISPATCH_FOLDER.")
            assert number
            assert path.startswith((place, "a socket at"))
    assert got["size 0"][1] == 27  # EFBIG
    assert got["size 16"][1] == 28  # ENOSPC
    assert "can't start new thread" in got["thread"][0] or got["thread"][1] == 11
    assert got["1"]
    assert got["1"][1] == 24
    assert got["6"] == ""
    assert sum(bool(got[str(count)]) for count in range(1, 7)) >= 2


def test_large_values_without_descriptors_are_an_error_and_later_ones_are_answered():
    got = run_main(
        HEAD
        + """
owner = host._Owner(answer)
outcomes = {}
for what in ("x" * 50_000, 50_000):
    for count in range(9):
        caller = host.HostTransport()
        first = caller.call(owner.address, [1], (), 0)
        assert first == (0, "x", True), first
        holes = spare(count)
        try:
            why, told, _ = caller.call(owner.address, [what], (), 0)
            outcome = told[1] if why == transport.RAISED else why
        except errors.SystemCallError as error:
            outcome = str(error)
            assert error.errno == 24, error
        finally:
            plenty(holes)
        outcomes.setdefault(type(what).__name__, []).append(outcome)
        after = caller.call(owner.address, ["y" * 40_000], (), 0)
        assert after == (0, 40_000, True), after
        for line in list(caller._lines):
            line.close()
        until(lambda: not owner._lines)
owner.close()
done(outcomes=outcomes)
"""
    )["outcomes"]
    for outcomes in got.values():
        assert outcomes[0] != 0
        assert outcomes[-1] == 0
        for each in outcomes:
            assert each in (0, "SystemCallError") or "cannot be had: Too many" in str(each), got
    assert "SystemCallError" in got["str"] + got["int"]  # told by the owner


def test_an_error_is_described_without_its_traceback_if_nothing_can_be_imported():
    got = run_main(
        HEAD
        + """
sys.modules.pop("traceback", None)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
told = serving.describe(ValueError("odd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
done(told=told, later=serving.describe(ValueError("odd"))[-1])
"""
    )
    assert got["told"] == ["builtins", "ValueError", "odd", ["odd"], [], ""]
    assert got["later"] == "ValueError: odd"


def test_a_reader_without_a_descriptor_for_memory_says_so():
    got = run_main(
        HEAD
        + """
mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
beside, other = socket.socketpair()
reader, writer = messages.Messages(mine, beside), messages.Messages(theirs, other)
theirs.send(writer.packed(["x" * 50_000], -2, (), (), []))
holes = spare(0)
try:
    reader.receive()
except errors.SystemCallError as error:
    outcome = error.errno, str(error)
finally:
    plenty(holes)
for each in (mine, theirs, beside, other):
    each.close()
done(outcome=outcome)
"""
    )
    number, text = got["outcome"]
    assert number == 24  # EMFILE
    assert text.startswith("the memory that a message between processes lies in cannot be had")


def test_what_has_the_name_of_a_key_and_is_none_keeps_nobody_waiting():
    got = run_main(
        HEAD
        + """
owner = host._Owner(answer)
names = [f"{number}.{'0' * 16}" for number in range(1, 6)]
os.mkfifo(place / (names[0] + ".key"))
(place / (names[1] + ".key")).mkdir()
(place / (names[2] + ".key")).symlink_to(place / (owner.address + ".key"))
(place / (names[3] + ".key")).write_bytes(b"short")
os.mknod(place / (names[4] + ".key"), stat.S_IFSOCK | 0o600)
caller = host.HostTransport()
outcomes = []
for each in names:
    try:
        outcomes.append(caller.call(each, [1], (), 0)[0])
    except errors.SystemCallError as error:
        outcomes.append(error.errno)
odd = ["../x", "", "1.0", owner.address + "/", "/" + owner.address, f"{place}/{owner.address}",
       "x/../" + owner.address]
refused = [caller.call(each, [1], (), 0)[0] for each in odd]
other = host._Owner(answer)
left = files()
answered = other.address != owner.address and caller.call(other.address, ["four"], (), 0)
other.close()
owner.close()
done(outcomes=outcomes, left=[each for each in left if "0" * 16 in each], answered=answered,
     refused=refused)
"""
    )
    assert got["outcomes"] == [2, 2, 40, 2, 6]  # GONE, and ELOOP and ENXIO in words
    assert got["refused"] == [2] * 7
    assert got["answered"] == (0, 4, True)
    # What is no file of an owner stays, but what could be locked.
    assert [each[0] for each in got["left"]] == ["2", "3", "5"]


def test_a_line_that_its_owner_has_closed_is_no_owner_that_has_ended():
    got = run_main(
        HEAD
        + """
owner = host._Owner(answer)
caller = host.HostTransport()
first = caller.call(owner.address, ["four"], (), 0)
held = caller.hold(owner.address, ["four"], 0)
for each in list(owner._lines.values()):
    each.shutdown(socket.SHUT_RD)  # its thread ends
until(lambda: not owner._lines)
again = caller.call(owner.address, ["fives"], (), 0), caller.hold(owner.address, ["fives"], 0)
lines = len(owner._lines), len(caller._lines)
owner.close()
until(lambda: all(each.is_over() for each in caller._lines))
gone = caller.call(owner.address, [1], (), 0), caller.hold(owner.address, [1], 0)
done(first=first, held=held, again=again, lines=lines, gone=gone)
"""
    )
    assert got["first"] == got["held"] == (0, 4, True)
    assert got["again"] == ((0, 5, True), (0, 5, True))
    assert got["lines"] == (2, 2)
    assert got["gone"] == ((2, None, False), (2, None, False))


def test_no_address_leads_out_of_the_folder():
    got = run_main(
        HEAD
        + """
owner = host._Owner(answer)
caller = host.HostTransport()
elsewhere = Path(mine.name) / "elsewhere"
elsewhere.mkdir(mode=0o700)
(place / "within").mkdir(mode=0o700)
def reached(name):
    return caller.call(name, ["four"], (), 0)[0]
outcomes = [reached(owner.address)]
for folder in (elsewhere, place / "within"):
    for file in (owner.address, owner.address + ".key"):
        os.rename(place / file, folder / file)
    name = os.path.relpath(folder, place) + "/" + owner.address
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(place / name))  # it is there
    outcomes += [reached(name), reached(str(folder / owner.address)), reached("./" + name)]
    for file in (owner.address, owner.address + ".key"):
        os.rename(folder / file, place / file)
outcomes.append(reached(owner.address))
owner.close()
done(outcomes=outcomes)
"""
    )
    assert got["outcomes"] == [0, *[2] * 6, 0]  # GONE: nobody has such a name


def test_an_owner_whose_key_was_taken_for_a_dead_one_s_makes_another():
    """Whoever cleans has locked the key before its owner, and removes it."""
    got = run_main(
        HEAD
        + """
from mdispatch.across.transports import place as module
lock = module.fcntl.flock
cleaned = []
def later(file, how):
    if how == module.fcntl.LOCK_EX and len(cleaned) < 3:
        [name] = set(files()) - set(cleaned)
        os.unlink(place / name)
        cleaned.append(name)
    lock(file, how)
module.fcntl.flock = later
before = len(descriptors())
owner = host._Owner(answer)
module.fcntl.flock = lock
answered = host.HostTransport().call(owner.address, ["four"], (), 0)
there = files()
owner.close()
done(cleaned=len(set(cleaned)), answered=answered, there=there, address=owner.address, left=files())
"""
    )
    assert got["cleaned"] == 3
    assert got["answered"] == (0, 4, True)
    assert got["there"] == [got["address"], got["address"] + ".key"]
    assert got["left"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_with_the_key_is_answered_by_nobody_and_answers_nobody():
    """The folder and the key are in his way. Here they are not."""
    got = run_main(
        HEAD
        + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
def as_another(run):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setresuid(65534, 65534, 65534)
            os.write(write, repr(run()).encode())
        finally:
            os._exit(0)
    return child, read
def told(child, read):
    os.waitpid(child, 0)
    return eval(os.read(read, 4096).decode())
owner = host._Owner(answer)
key = owner._place.key
def greeted(line):
    greeting = host._Greeting(line, 0)
    try:
        greeting.answer(key)
        return "greeted"
    except (EOFError, OSError, host.AuthenticationError) as error:
        return type(error).__name__
def call():
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(place / owner.address))
        return greeted(line)
for path in (mine.name, str(place), str(place / owner.address)):
    os.chmod(path, 0o777)
calls = told(*as_another(call))
with socket.socket(socket.AF_UNIX) as line:
    line.connect(str(place / owner.address))
    same = greeted(line)
os.chmod(place, 0o700)
until(lambda: not owner._greeting)
# The other way: he listens at the owner's address.
os.chmod(place, 0o777)
owner._listening.close()
os.unlink(place / owner.address)
ready = place / "ready"
def listen():
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place / owner.address))
        listening.listen()
        open(ready, "w").close()
        line, _ = listening.accept()
        with line:
            greeting = host._Greeting(line, 0)
            try:
                greeting.challenge(key)
                return "answered"
            except (EOFError, OSError, host.AuthenticationError) as error:
                return type(error).__name__
child = as_another(listen)
until(ready.exists)
os.chmod(place, 0o700)
called = host.HostTransport().call(owner.address, ["secret"], (), 0)
done(calls=calls, same=same, called=called, listens=told(*child))
"""
    )
    assert got["same"] == "greeted"
    assert got["calls"] in ("EOFError", "ConnectionResetError", "BrokenPipeError")
    assert got["called"] == (2, None, False)
    assert got["listens"] in ("EOFError", "ConnectionResetError", "BrokenPipeError")


def test_a_child_of_a_fork_has_lines_of_its_own():
    got = run_main(
        HEAD
        + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
caller = transport.transport_named("host")
address = caller.serve(answer)
first = caller.call(address, ["four"], (), 0), caller.hold(address, ["four"], 0)
lines = list(caller._lines)
read, write = os.pipe()
child = os.fork()
if not child:
    try:
        closed = all(each.fileno() == -1 for line in lines for each in line._files)
        kept = [len(caller._idle), len(caller._lines), len(caller._holding), caller._owner]
        told = caller.call(address, ["fives"], (), 0), caller.hold(address, ["fives"], 0)
        os.write(write, repr([closed, kept, told, len(caller._lines)]).encode())
    finally:
        os._exit(0)
os.waitpid(child, 0)
again = caller.call(address, [3], (), 0), caller.hold(address, [3], 0)
done(first=first, child=eval(os.read(read, 4096).decode()), again=again, lines=len(caller._lines))
"""
    )
    assert got["first"] == ((0, 4, True), (0, 4, True))
    assert got["child"] == [True, [0, 0, 0, None], ((0, 5, True), (0, 5, True)), 2]
    assert got["again"] == ((0, "xxx", True), (0, "xxx", True))
    assert got["lines"] == 2
