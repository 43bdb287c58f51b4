"""Processes that have lost something that their registry needs: its descriptor, a slot, its user,
or the time in which a stopped process lets go of the lock.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kinds import run_main
from patience import limit
from registries import FOLDER

import mdispatch as md

pytestmark = [pytest.mark.either_binding, pytest.mark.shared]

# Defines until the registry would have to grow; what the last try said.
FILL = """
def define_until_refused(lib):
    for count in range(10_000):
        try:
            lib.define(f"op_{count}(Tensor x) -> Tensor")
        except md.errors.MdispatchError as error:
            return count, type(error).__name__, str(error)
    raise AssertionError("it grew")
"""


@pytest.mark.thorough
def test_a_daemon_that_closes_all_descriptors_writes_into_nobody_elses_file(tmp_path) -> None:
    got = run_main(
        FILL
        + """
strange = Path(args[0], "strange")
registry = md.Registry.create(None, capacity=1 << 24)
lib = md.Library("shop", "DEF", registry=registry)
os.closerange(3, 256)
files = [open(strange, "w+") for _ in range(20)]  # one of them gets the number
files[0].write("8 bytes.")
files[0].flush()
count, name, words = define_until_refused(lib)
md.wait_for_def("shop::op_0", 0, registry=registry)
registry.check_invariants()
registry.close()
done(size=strange.stat().st_size, count=count, name=name, words=words,
     open=[file.fileno() for file in files if os.fstat(file.fileno()).st_size == 8])
for file in files:
    file.close()
os._exit(0)
""",
        str(tmp_path),
    )
    assert got["size"] == 8
    assert len(got["open"]) == 20
    assert got["count"]
    assert got["name"] == "RegistryAccessError"
    assert "closed its file descriptor" in got["words"]


@pytest.mark.thorough
def test_a_worker_without_its_descriptor_gives_the_registry_up_for_nobody(hold) -> None:
    """It attaches, loses the descriptor, and comes upon the lock of one that died in a registry
    that has grown meanwhile.
    """
    got = run_main(
        """
        import subprocess
        hold, name = args
        registry = md.Registry.create(name, capacity=1 << 24)
        read, write = os.pipe()
        tell, told = os.pipe()
        grown, growing = os.pipe()
        pid = os.fork()
        if pid == 0:
            for registry in list(md.facts.living._live.values()):
                registry.close()
            worker = md.Registry.attach(name)
            os.write(write, b"x")
            os.read(grown, 1)
            for fd in os.listdir("/proc/self/fd"):
                if name in str(os.path.realpath(f"/proc/self/fd/{fd}")):
                    os.close(int(fd))
            said = []
            for _ in range(2):
                try:
                    worker.check_invariants()
                except md.errors.MdispatchError as error:
                    said.append((type(error).__name__, str(error)))
            os.write(told, repr(said).encode())
            os.read(grown, 1)
            md.wait_for_def("shop::later", 10.0, registry=worker)
            worker.check_invariants()
            os._exit(0)
        os.read(read, 1)
        lib = md.Library("shop", "DEF", registry=registry)
        long = ", ".join(f"Tensor x{i:050}" for i in range(60))
        for i in range(50):
            lib.define(f"op_{i}({long}) -> Tensor")
        with subprocess.Popen([hold, name], stdout=subprocess.PIPE) as holder:
            assert holder.stdout.readline() == b"held\\n"
            holder.kill()
        os.write(growing, b"x")
        said = eval(os.read(tell, 1000))
        lib.define("later(Tensor x) -> Tensor")
        registry.check_invariants()
        os.write(growing, b"x")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        done(said=said, status=status, recoveries=registry.dispatcher.facts.stat()[6])
        registry.close()
        """,
        hold,
        f"lost-worker-{os.getpid()}",
    )
    assert [name for name, _ in got["said"]] == ["RegistryAccessError"] * 2
    assert "closed its file descriptor" in got["said"][0][1]
    assert got["status"] == 0
    assert got["recoveries"] == 1


@pytest.mark.thorough
def test_a_child_for_which_there_is_no_slot_says_so_and_joins_when_there_is_one(fill) -> None:
    got = run_main(
        """
        import subprocess
        fill, name = args
        registry = md.Registry.create(name, capacity=1 << 22)
        md.Library("shop", "DEF", registry=registry).define("scale(Tensor x) -> Tensor")
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        filler = subprocess.Popen([fill, name], **pipes)
        assert filler.stdout.readline() == b"full\\n"
        ask, asked = os.pipe()
        tell, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = []
            for _ in range(2):
                try:
                    md.wait_for_def("shop::never", 0, registry=registry)
                except md.errors.MdispatchError as error:
                    said.append((type(error).__name__, str(error)))
            os.write(told, repr(said).encode())
            os.read(ask, 1)
            md.wait_for_def("shop::later", 10.0, registry=registry)
            os._exit(7)
        said = eval(os.read(tell, 1000))
        filler.stdin.write(b"\\n")
        filler.stdin.flush()
        assert filler.stdout.readline() == b"room\\n"
        os.write(asked, b"x")
        md.Library("shop", "FRAGMENT", registry=registry).define("later(Tensor x) -> Tensor")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        filler.kill()
        filler.communicate()
        done(said=said, status=status)
        registry.close()
        """,
        fill,
        f"lost-slot-{os.getpid()}",
    )
    assert [name for name, _ in got["said"]] == ["RegistryFullError"] * 2
    assert "no slot" in got["said"][0][1]
    assert got["status"] == 7


@pytest.mark.long
def test_a_child_forked_beside_a_stopped_holder_of_the_lock_joins_when_it_goes_on(hold) -> None:
    """The fork waits for one limit, whatever number of registries is open, and claims nothing."""
    got = run_main(
        """
        import subprocess
        hold, name = args
        names = [f"{name}-{i}" for i in range(2)]
        registries = [md.Registry.create(each, capacity=1 << 22) for each in names]
        team = md.Registry.elect(f"{name}-team", capacity=1 << 22)
        for i in range(3):
            md.Library(f"shop{i}", "DEF", registry=team)
        names.append(f"{name}-team")
        pipes = dict(stdout=subprocess.PIPE)
        holders = [subprocess.Popen([hold, each], **pipes) for each in names]
        for holder in holders:
            assert holder.stdout.readline() == b"held\\n"
            holder.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        ask, asked = os.pipe()
        tell, told = os.pipe()
        before = time.monotonic()
        pid = os.fork()
        if pid == 0:
            said = [time.monotonic() - before]
            try:
                md.wait_for_def("shop::never", 0, registry=registries[1])
            except md.errors.MdispatchError as error:
                said += type(error).__name__, str(error)
            os.write(told, repr(said).encode())
            os.read(ask, 1)
            for registry in registries:
                md.wait_for_def("shop::later", 20.0, registry=registry)
            with md.Library("mine", "DEF", registry=team) as lib:
                lib.define("own(Tensor x) -> Tensor")
            os._exit(7)
        said = eval(os.read(tell, 1000))
        for holder in holders:
            holder.kill()
            holder.communicate()
        os.write(asked, b"x")
        for registry in registries:
            md.Library("shop", "DEF", registry=registry).define("later(Tensor x) -> Tensor")
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        done(said=said, status=status)
        for registry in (*registries, team):
            registry.close()
        """,
        hold,
        f"lost-time-{os.getpid()}",
    )
    seconds, name, words = got["said"]
    assert 9 < seconds < limit(15)
    assert name == "RegistryError"
    assert "makes no progress" in words
    assert got["status"] == 7


@pytest.mark.long
def test_a_process_ends_within_one_limit_beside_a_stopped_holder_of_the_lock(hold) -> None:
    got = run_main(
        """
        import subprocess
        hold, name = args
        registry = md.Registry.create(name, capacity=1 << 22)
        worker = "import mdispatch as md; md.Registry.attach(%r); print('in', flush=True); input()"
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        ends = subprocess.Popen([sys.executable, "-c", worker % name], **pipes)
        assert ends.stdout.readline() == b"in\\n"
        with subprocess.Popen([hold, name], stdout=subprocess.PIPE) as holder:
            assert holder.stdout.readline() == b"held\\n"
            holder.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
            before = time.monotonic()
            ends.communicate(b"\\n")
            seconds = time.monotonic() - before
            holder.kill()
        done(seconds=seconds, status=ends.returncode)
        registry.close()
        """,
        hold,
        f"lost-end-{os.getpid()}",
    )
    assert 9 < got["seconds"] < limit(15)
    assert got["status"] == 0


def test_registries_that_another_thread_closed_are_given_back_by_the_next_call() -> None:
    got = run_main(
        """
        import threading
        def mapped():
            return Path("/proc/self/maps").read_text().count("memfd:mdispatch")
        before = mapped()
        for _ in range(20):
            registry = md.Registry.create(None, capacity=1 << 22)
            thread = threading.Thread(target=registry.close)
            thread.start()
            thread.join()
        left = mapped()
        md.Registry.create(None, capacity=1 << 22).close()
        done(before=before, left=left, after=mapped())
        """
    )
    assert got["left"] <= got["before"] + 1
    assert got["after"] == got["before"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_registry_of_root_that_is_closed_as_another_user_is_in_nobodys_way() -> None:
    name = f"lost-user-{os.getpid()}"
    got = run_main(
        """
        name, = args
        registry = md.Registry.create(name, capacity=1 << 22)
        os.setuid(65534)
        registry.close()
        done(error=None)
        """,
        name,
    )
    assert got["error"] is None
    with pytest.raises(md.errors.RegistryClosedError):
        md.Registry.attach(name, timeout=0)
    md.Registry.create(name, capacity=1 << 22).close()
    assert not Path(FOLDER, name).exists()
