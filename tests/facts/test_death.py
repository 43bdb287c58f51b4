"""Processes that are killed: their waiters learn of it, and the processes that are left go on."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from kinds import INTERPRETERS, run_main, until
from patience import limit

import mdispatch as md
from mdispatch.facts.native.constants import MD_DEF, MD_MAX_BODY

pytestmark = pytest.mark.shared

WAITING_WORKER = """
import mdispatch as md, time
registry = md.default_registry()
i_am_here()
try:
    md.wait_for_def("never::comes", 60.0)
except md.errors.MdispatchError as error:
    at, pid = time.monotonic(), getattr(error, "pid", 0)
    report(at=at, error=type(error).__name__, pid=pid, text=str(error))
"""

# The registrar is a child of the process that watches, and is killed there.
KILL_MAIN = """
kind, count, folder, text, how = args
read, write = os.pipe()
registrar_pid = os.fork()
if registrar_pid == 0:
    md.default_registry()
    workers = start(kind, text, count, Path(folder))
    until_asleep(workers)
    os.write(write, b"x")
    if how == "leave":
        md.default_registry().close()
        os._exit(0)
    signal.pause()
assert os.read(read, 1) == b"x"
killed = time.monotonic()
if how != "leave":
    os.kill(registrar_pid, how)
os.waitpid(registrar_pid, 0)
until(lambda: all((Path(folder) / str(i)).exists() for i in range(count)))
heard = [eval((Path(folder) / str(i)).read_text()) for i in range(count)]
done(main=registrar_pid, delays=[h["at"] - killed for h in heard], heard=heard)
"""


@pytest.mark.waits
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "term"])
@pytest.mark.parametrize(("kind", "count"), [("subprocess", 1), ("spawn", 4), ("fork", 16)])
def test_workers_that_wait_hear_of_the_registrars_death(kind, count, how, tmp_path) -> None:
    got = run_main(KILL_MAIN, kind, count, str(tmp_path), WAITING_WORKER, int(how))
    assert {h["error"] for h in got["heard"]} == {"RegistrarGoneError"}
    assert {h["pid"] for h in got["heard"]} == {got["main"]}
    # The promise is 0.2 s; the lease tells a waiter in much less than a millisecond. A loaded
    # machine may be slow to run us.
    assert sorted(got["delays"])[len(got["delays"]) // 2] < 2.0
    assert all("start it again" in h["text"] for h in got["heard"])


def test_workers_that_wait_hear_of_the_registrars_leaving(tmp_path) -> None:
    got = run_main(KILL_MAIN, "spawn", 2, str(tmp_path), WAITING_WORKER, "leave")
    assert {h["error"] for h in got["heard"]} == {"RegistryClosedError"}


def test_death_is_told_by_the_lease_not_by_the_slice(tmp_path) -> None:
    got = run_main(
        """
        folder, = args
        read, write = os.pipe()
        registrar_pid = os.fork()
        if registrar_pid == 0:
            os.write(write, md.default_registry().address.encode())
            signal.pause()
        try:
            address = os.read(read, 200).decode()
            from mdispatch.facts.native import native
            status, handle = native.attach(address.encode(), -1)
            assert status == 0
            status, member, role = native.join(handle, 0)
            assert (status, role) == (0, 2)
            pid = os.fork()
            if pid == 0:
                until(lambda: native.members(handle)[1][-1][4] == 1)
                os.kill(registrar_pid, signal.SIGKILL)
                os._exit(0)
            until_then = native.now() + 30 * 10**9
            status, _, stats = native.await_fact(
                handle, member, 2, 0, 1, b"never::comes", until_then, 0, False)
            assert os.waitpid(pid, 0)[1] == 0
            done(status=status, by_lease=stats[4], kernel=os.uname().release)
        finally:  # it has our output open, for which whoever reads it waits
            os.kill(registrar_pid, signal.SIGKILL)
        """,
        str(tmp_path),
    )
    assert got["status"] == -4
    major, minor = (int(part) for part in got["kernel"].split(".")[:2])
    if (major, minor) >= (5, 16):
        assert got["by_lease"] == 1


@pytest.mark.thorough
def test_a_worker_killed_while_it_waits_leaves_the_others_waiting_and_its_slot_free(
    tmp_path,
) -> None:
    got = run_main(
        """
        folder, text = args
        registry = md.default_registry()
        workers = start("spawn", text, 4, Path(folder))
        until_asleep(workers)
        for victim in workers[:2]:
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
        lib = md.Library("never", "DEF")
        lib.define("comes(Tensor x) -> Tensor")
        for survivor in workers[2:]:
            survivor.join()
        alive = [m for m in registry.dispatcher.facts.members() if m[3]]
        joins = "import mdispatch as md; md.default_registry(); report(ok=1)"
        more = start("spawn", joins, 1, Path(folder) / "b")
        done(alive=len(alive), check=registry.dispatcher.facts.check(), left=results(more),
             members=registry.dispatcher.facts.stat()[10])
        """,
        _with_folder(tmp_path),
        WAITING_WORKER,
    )
    assert got["alive"] == 1
    assert got["check"] == ""
    # The newcomer has swept the dead member: this interpreter is the only one left (the newcomer
    # has left too).
    assert got["members"] == 1


def _with_folder(tmp_path) -> str:
    (tmp_path / "b").mkdir()
    return str(tmp_path)


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_interpreter_destroyed_under_nobody_leaves_no_member(kind, tmp_path) -> None:
    got = run_main(
        """
        kind, folder = args
        registry = md.default_registry()
        joins = "import mdispatch as md; md.default_registry(); report(ok=1)"
        workers = start(kind, joins, 3, Path(folder))
        results(workers)
        done(members=registry.dispatcher.facts.stat()[10], check=registry.dispatcher.facts.check())
        """,
        kind,
        str(tmp_path),
    )
    assert (got["members"], got["check"]) == (1, "")


@pytest.mark.thorough
def test_a_worker_killed_while_it_holds_the_lock_stops_nobody(hold: str) -> None:
    name = f"held-{os.getpid()}"
    with md.Registry.create(name) as registry:
        lib = md.Library("held", "DEF", registry=registry)
        with subprocess.Popen([hold, name], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            writer = threading.Thread(target=lib.define, args=("f() -> ()",))
            writer.start()
            tid = writer.native_id
            call = Path(f"/proc/self/task/{tid}/syscall")
            # It sleeps in the kernel, in the lock's futex.
            until(lambda: call.read_text().split()[0] == "202")
            assert writer.is_alive()
            holder.kill()
        writer.join(limit(30))
        assert not writer.is_alive()
        assert registry.ops.held.f.overloads() == ["default"]
        assert registry.dispatcher.facts.stat()[6] == 1  # recoveries
        assert registry.dispatcher.facts.check() == ""


@pytest.mark.thorough
def test_who_is_outrun_and_waits_for_the_lock_keeps_no_other_thread_from_running(hold: str) -> None:
    name = f"outrun-{os.getpid()}"
    with md.Registry.create(name) as registry:
        facts = registry.dispatcher.facts
        # A long one, so that each look takes long enough to be outrun.
        there = facts.register(MD_DEF, 0, "held::f", "x" * MD_MAX_BODY, "here")
        found: list[bool] = []
        killed = threading.Event()

        def look() -> None:
            while not killed.is_set():
                found.append(facts.find(MD_DEF, 0, "held::f") == there)

        with subprocess.Popen([hold, name, "held::f"], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            reader = threading.Thread(target=look)
            reader.start()
            call = Path(f"/proc/self/task/{reader.native_id}/syscall")
            # In a futex that processes share: that of the registry's lock. The GIL's is private.
            until(lambda: call.read_text().split()[::2][:2] == ["202", "0x9"])
            holder.kill()
            killed.set()
        reader.join(limit(30))
        assert all(found)
