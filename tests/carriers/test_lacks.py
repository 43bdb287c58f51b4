"""What owners and callers lack, or find in their folder: an error of its own each, or nothing."""

from __future__ import annotations

import pytest
from kinds import run_main

pytestmark = pytest.mark.shared

#: An owner in the main part's process, in a folder of its own, and a caller of it.
HEAD = """
import resource, socket, stat, tempfile
from mdispatch import errors
from mdispatch.carriers import carrier, host, messages
from mdispatch.carriers.place import Place
from mdispatch.dispatch import serving
from mdispatch.facts.outside import folder
mine = tempfile.TemporaryDirectory(dir="/dev/shm")
os.environ["MDISPATCH_FOLDER"] = mine.name
place = Path(os.path.normpath(folder()) + ".calls")
def answer(call, caller):
    if isinstance(call, errors.MdispatchError):
        return carrier.RAISED, serving.describe(call)
    return 0, "x" * call[0] if isinstance(call[0], int) else len(call[0])
def files():
    return sorted(os.listdir(place))
def descriptors():
    return [int(each) for each in os.listdir("/proc/self/fd")]
def spare(count):
    # What is open stays, and so many more can be opened.
    used = set(descriptors())
    top = max(used)
    holes = [os.open("/", os.O_RDONLY) for _ in range(top + 1 - len(used))]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors()) + count, hard))
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
answered = host.HostCarrier().call(owner.address, ["four"], (), 0)
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
        caller = host.HostCarrier()
        first = caller.call(owner.address, [1], (), 0)
        assert first == (0, "x", True), first
        holes = spare(count)
        try:
            why, told, _ = caller.call(owner.address, [what], (), 0)
            outcome = told[1] if why == carrier.RAISED else why
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
            assert each in (0, "SystemCallError") or "cannot be had: Too many open" in each, each
    assert "SystemCallError" in got["str"] + got["int"]  # told by the owner


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
caller = host.HostCarrier()
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
caller = host.HostCarrier()
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
