"""``mdispatch doctor``: what it reports about registries that live, die, are closed, damaged or
left over; what it removes, and what it does not touch.
"""

from __future__ import annotations

import fcntl
import io
import json
import mmap
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import mdispatch, on_terminal, without_style
from commands import environment
from json_keys import strangers
from kinds import SUPPORT, until
from patience import limit
from registries import FOLDER, main_of, seen, until_stopped, until_waiting, worker_of

import mdispatch as md
from mdispatch import errors
from mdispatch.cli.console import text_for
from mdispatch.cli.doctor import Diagnosis, diagnose, waiting_text
from mdispatch.facts import DEF, HOST, NOTE, Registration
from mdispatch.facts.differing import DIFFERS
from mdispatch.facts.native import native
from mdispatch.facts.outside import Member

pytestmark = pytest.mark.either_binding


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name that no other test uses; its file is removed afterwards."""
    name = f"{request.node.name[5:17]}-{os.getpid()}"
    yield name
    (FOLDER / f"{name}-model").unlink(missing_ok=True)
    path = FOLDER / name
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def diagnosis(name: str, *options: str, status: int) -> Diagnosis:
    """The command's report about one registry; checks the exit status."""
    found_out = diagnose(name, "--reap" in options, "--check" in options, "--dry-run" in options)
    assert min(found_out.needs_attention, 1) == status, found_out.json()
    return found_out


def doctor(name: str, *options: str, status: int) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(diagnosis(name, *options, status=status).json())
    return answer


def about(name: str, *options: str, status: int) -> dict[str, Any]:
    (registry,) = doctor(name, *options, status=status)["registries"]
    return dict(registry)


def text(name: str, *options: str, status: int) -> str:
    """The text of the command without a terminal."""
    page = io.StringIO()
    shown = text_for(diagnosis(name, *options, status=status), page)
    assert max(map(len, shown.splitlines())) <= 100
    assert "\x1b" not in shown
    return shown


def command(*arguments: str, status: int, **changes: Any) -> str:
    done = mdispatch("doctor", *arguments, **changes)
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    return done.stdout


# --- the living -----------------------------------------------------------------------------------


def test_a_live_registry_is_told_with_all_its_figures(name: str) -> None:
    with main_of(name) as main, worker_of(name) as worker:
        worker.do("other = md.Registry.attach(sys.argv[1])")
        told = about(name, status=0)
        with md.Registry.attach(name) as here:
            figures = here.dispatcher.facts.stat()
        assert told["address"] == main.address == f"shm:{name}"
        assert (told["name"], told["state"], told["policy"]) == (name, "open", "main")
        assert told["registrar"] == {"pid": main.pid, "state": "alive", "stopped": False}
        assert told["processes"] == {"alive": 2, "dead": 0}
        assert [(m["pid"], m["interpreter"], m["role"]) for m in told["members"]] == [
            (main.pid, 0, "main"),
            (worker.pid, 0, "worker"),
            (worker.pid, 0, "worker"),
        ]
        assert all(m["alive"] and m["waits"] is None for m in told["members"])
        # The library, two definitions and a kernel; three names with the namespace.
        assert (told["operators"], told["kernels"], told["registrations"]) == (2, 1, 4)
        assert (
            told["capacity"],
            told["committed"],
            told["used"],
            told["registrations"],
        ) == figures[:4]
        assert (told["names"], told["sequence"], told["recoveries"]) == figures[4:7]
        assert told["idle"] == figures[12] == 0
        assert 0 < told["free"] < told["capacity"] - told["used"]
        assert (told["error"], told["text"], told["lock"]) == (None, None, None)
        assert (told["deleted"], told["held_by"], told["problems"]) == (False, [], [])


def test_people_get_a_table_with_what_there_is_to_say(name: str) -> None:
    with main_of(name) as main, worker_of(name) as worker:
        worker.do("wait(md.wait_for_impl, 'shop::scale', 'CUDA', 100)")
        until_waiting(name, 1)
        lines = command(name, status=0).splitlines()
        assert lines[0].split() == [
            *("registry", "state", "registrar", "members"),
            *("processes", "operators", "registered", "waiting"),
        ]
        row = next(line for line in lines if str(main.pid) in line)
        assert row.split() == [name, "open", str(main.pid), "2", "2", "2", "4", "1"]
        shown = "\n".join(lines)
        assert re.search(r"memory +[\d.]+ KiB used, [\d.]+ MiB free of 4 MiB; ", shown)
        assert f"waiting  pid {worker.pid}, interpreter 0: a kernel of shop::scale at CUDA" in shown
        assert lines[-1] == "1 registry, nothing wrong."


def test_names_that_have_ended_are_told_apart_from_those_in_use(name: str) -> None:
    again = "again = md.Library('again', 'DEF', registry=registry); again.define('f() -> ()')"
    with main_of(name) as main:
        for does, names, idle in ((again, 5, 0), ("again.close()", 3, 2), (again, 5, 0)):
            main.do(does)
            told = about(name, status=0)
            assert (told["names"], told["idle"]) == (names, idle)
            words = "2 idle names; " if idle else ""
            assert f" committed; {words}recovered" in text(name, status=0)


def test_who_waits_and_for_what_is_told(name: str) -> None:
    with main_of(name), worker_of(name) as one, worker_of(name) as other:
        one.do("wait(md.wait_for_def, 'shop::later', 100)")
        until_waiting(name, 1)
        one.do("wait(md.wait_for_impl, 'shop::scale', 'AutogradCPU', 100)")
        other.do(
            "threading.Thread(target=registry.dispatcher.facts.await_change, daemon=True, "
            "args=(registry.dispatcher.facts.await_change(0, 0)[0], 100)).start()"
        )
        until_waiting(name, 3)
        waits = {m["pid"]: m["waits"] for m in about(name, status=0)["members"] if m["waits"]}
        assert 0 <= waits[one.pid].pop("seconds") < 60
        assert waits[one.pid] == {
            "threads": 2,
            "kind": "impl",
            "name": "shop::scale",
            "key": "AutogradCPU",
        }
        assert 0 <= waits[other.pid].pop("seconds") < 60
        assert waits[other.pid] == {"threads": 1, "kind": None, "name": "", "key": None}
        shown = text(name, status=0)
        assert f"pid {one.pid}, interpreter 0, newest of 2 threads: a kernel of" in shown
        assert f"pid {other.pid}, interpreter 0: any change" in shown


PLUGS_IN = """
import contextlib
mine = md.Library('shop', 'FRAGMENT', registry=registry, timeout=0)
with contextlib.suppress(Exception):  # as loaders of plug-ins do
    mine.define('scale(Tensor x, int by) -> Tensor')
"""


def test_who_differs_and_goes_on_is_told_with_both_places_until_it_is_mended(name: str) -> None:
    with main_of(name) as main, worker_of(name) as worker, worker_of(name) as other:
        worker.do(PLUGS_IN)
        told = about(name, status=1)
        assert [(each["pid"], each["interpreter"]) for each in told["differing"]] == [
            (worker.pid, 0)
        ]
        (each,) = told["differing"]
        head, *lines = each["text"].split("\n")
        assert head == (
            f"shop::scale has another schema in the main interpreter (pid {main.pid}): argument 2, "
            "'int by', is only here"
        )
        assert each["where"] == "<string>:5"
        (problem,) = told["problems"]
        assert problem.startswith(f"pid {worker.pid}, interpreter 0, differs: {head}; here: ")
        assert [line.strip() in problem for line in lines[:2]] == [True] * 2
        shown = " ".join(text(name, status=1).split())
        assert f"! pid {worker.pid}, interpreter 0, differs: shop::scale has another" in shown
        assert shown.endswith("1 registry, 1 needs attention.")

        other.do(PLUGS_IN)
        assert len(about(name, status=1)["problems"]) == 2
        worker.do("mine.define('scale(Tensor x) -> Tensor')")
        assert [each["pid"] for each in about(name, status=1)["differing"]] == [other.pid]
        other.kill()
        after = about(name, status=1)  # it died without leaving
        assert after["differing"] == []
        assert len(after["problems"]) == 1


def test_of_many_differences_the_first_are_told_to_people(name: str) -> None:
    define = "mine.define(f'f{number}(Tensor x) -> Tensor')"
    with main_of(name), worker_of(name) as worker:
        worker.do(PLUGS_IN)
        worker.do(f"for number in range(7):\n with contextlib.suppress(Exception): {define}")
        told = about(name, status=1)
        assert len(told["differing"]) == 8
        assert len(told["problems"]) == 6
        assert told["problems"][-1] == (
            "there are 3 more differences: warm_up tells them where they are, and --json here"
        )


def test_what_a_member_writes_into_such_a_note_cannot_steer_the_terminal(name: str) -> None:
    with main_of(name), worker_of(name) as worker:
        note = (NOTE, 0, DIFFERS, "a\x1b[2Jb", "\x1b")
        worker.do(f"registry.dispatcher.facts.register(*{note!r})")
        assert about(name, status=1)["differing"][0]["text"] == "a\x1b[2Jb"
        assert "\x1b" not in text(name, status=1)


WAITS_AGAIN = """
import signal
class Enough(Exception): pass
def enough(*_): raise Enough
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGUSR2, enough)
while True:
    try:
        {wait}
    except Enough:
        pass
"""


@pytest.mark.parametrize(
    "wait",
    [
        "md.wait_for_def('shop::later', None, registry=registry)",
        "registry.dispatcher.facts.await_change(registry.dispatcher.facts.await_change(0, 0)[0],"
        " None)",
    ],
    ids=["a fact", "any change"],
)
def test_a_wait_of_a_main_thread_is_counted_from_its_beginning(name: str, wait: str) -> None:
    def seconds() -> float:
        """-1 for the moment between two sleeps."""
        return max((member.seconds for member in seen(name).waiting), default=-1)

    with main_of(name), worker_of(name) as worker:
        worker.begin(WAITS_AGAIN.format(wait=wait))
        # It comes back for signals ten times a second, and for each that there is.
        until(lambda: seconds() > 0.5)
        os.kill(worker.pid, signal.SIGUSR1)
        until(lambda: seconds() > 1)

        def told() -> re.Match[str] | None:
            """None for the moment between two sleeps, too."""
            shown = command(name, status=0)
            return re.search(rf"pid {worker.pid}, interpreter 0: .*, ([\d.]+) s", shown)

        shown = None
        while shown is None:
            shown = told()
        assert float(shown[1]) >= 1
        # Given up and begun anew, it is another wait, although for the same.
        os.kill(worker.pid, signal.SIGUSR2)
        until(lambda: 0 <= seconds() < 0.5)


def test_looking_joins_nothing_and_changes_nothing(name: str) -> None:
    with main_of(name):
        before = (FOLDER / name).read_bytes()
        about(name, status=0)
        text(name, status=0)
        assert (FOLDER / name).read_bytes() == before


def held_by(pid: int) -> list[dict[str, Any]]:
    """This process's registries that have no file."""
    everything: list[dict[str, Any]] = json.loads(diagnose().json())["registries"]
    return [registry for registry in everything if pid in registry["held_by"]]


def test_an_anonymous_registry_is_listed_once_with_an_address_to_attach_to() -> None:
    with main_of("") as main, worker_of(main.address) as worker:
        worker.do("child = os.fork() or threading.Event().wait()")
        found = held_by(main.pid)
        assert [r["address"] for r in found] == [main.address]
        assert found[0]["name"] is None
        assert {main.pid, worker.pid} < set(found[0]["held_by"])
        with md.Registry.attach(found[0]["address"]) as here:
            assert here.operators() == ["shop::scale", "shop::shift"]
        shorter = main.address.rsplit(":", 3)[0]
        assert about(shorter, status=0)["address"] == main.address
        worker.do("os.kill(child, 9), os.waitpid(child, 0)")


def test_a_registry_is_listed_by_whoever_still_has_it(name: str) -> None:
    with main_of("") as main, worker_of(main.address) as worker:
        main.kill()
        (told,) = held_by(worker.pid)
        assert told["address"].startswith(f"fd:{worker.pid}:")
        assert (told["state"], told["held_by"]) == ("registrar died", [worker.pid])
        assert about(told["address"], status=1)["problems"] == told["problems"]


def test_both_bindings_tell_the_same(name: str) -> None:
    if sys.version_info[:2] == (3, 13) and "free-threading" in sys.version:
        pytest.skip("cffi does not support free-threaded 3.13")
    with main_of(name):
        options = ("--json", "--check", name)
        one, other = (command(*options, status=0, MDISPATCH_BINDING=b) for b in ("cffi", "ext"))
        assert json.loads(one) == json.loads(other) == doctor(name, "--check", status=0)


# --- the dead -------------------------------------------------------------------------------------


def test_a_dead_registrar_needs_attention_and_its_file_stays_while_a_worker_lives(
    name: str,
) -> None:
    with main_of(name) as main, worker_of(name) as worker:
        main.kill()
        told = about(name, "--reap", status=1)
        assert (told["state"], told["error"]) == ("registrar died", "RegistrarGoneError")
        assert told["registrar"] == {"pid": main.pid, "state": "died", "stopped": False}
        assert told["processes"] == {"alive": 1, "dead": 1}
        assert [m["alive"] for m in told["members"]] == [False, True]
        assert f"pid {main.pid}, died" in told["problems"][0]
        assert f"{main.pid}  1, 1 dead" in text(name, status=1)
        worker.kill()
        assert "--reap" in about(name, status=1)["problems"][0]
        assert "1 file is left over" in text(name, status=1)
        answer = doctor(name, "--reap", status=0)
        assert answer["registries"] == []
        (reaped,) = answer["reaped"]
        assert (reaped["name"], reaped["removed"]) == (name, True)
        assert str(main.pid) in reaped["why"]
        assert not (FOLDER / name).exists()
        with pytest.raises(errors.RegistryNotFoundError):
            diagnose(name)


def test_people_are_told_what_was_removed(name: str) -> None:
    with main_of(name) as main:
        main.kill()
    shown = text(name, "--reap", status=0)
    assert shown.startswith(f"removed: {name}: its registrar, pid {main.pid}, was dead")
    assert shown.endswith("\n\nNo registries.\n")
    with main_of(name):
        assert text(name, "--reap", status=0).startswith("Nothing to remove.")
        assert (FOLDER / name).exists()


def test_a_killed_worker_needs_attention_until_somebody_joins(name: str) -> None:
    with main_of(name), worker_of(name) as worker:
        worker.kill()
        told = about(name, "--reap", status=1)
        assert told["state"] == "open"
        assert told["processes"] == {"alive": 1, "dead": 1}
        assert f"1 process died without leaving (pid {worker.pid})" in told["problems"][0]
        with worker_of(name):
            assert about(name, status=0)["processes"] == {"alive": 2, "dead": 0}


def test_a_creation_that_was_killed_is_left_over(name: str) -> None:
    make = (
        f"import os; from mdispatch.facts.native import native; native.create({name!r}, 1 << 20); "
    )
    subprocess.run([sys.executable, "-c", make + "os.kill(os.getpid(), 9)"], check=False)
    told = about(name, status=1)
    assert (told["state"], told["registrar"]["state"]) == ("registrar died", "died")
    assert doctor(name, "--reap", status=0)["reaped"][0]["removed"]


def test_a_dry_run_tells_what_would_be_removed_and_removes_nothing(name: str) -> None:
    with main_of(name) as main:
        assert doctor(name, "--reap", "--dry-run", status=0)["would_reap"] == []
        main.kill()
    shown = command(name, "--reap", "--dry-run", status=1)
    assert shown.startswith(f"would be removed: {name}: its registrar, pid {main.pid}, was dead")
    answer = json.loads(command(name, "--reap", "--dry-run", "--json", status=1))
    assert [told["name"] for told in answer["would_reap"]] == [name]
    assert "reaped" not in answer
    assert seen(name).is_leftover
    refused = mdispatch("doctor", name, "--dry-run")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--dry-run goes with --reap" in refused.stderr
    assert "would_reap" not in doctor(name, "--reap", status=0)


def test_a_closed_registry_is_told_by_who_still_has_it_and_is_nothing_wrong(name: str) -> None:
    with main_of(name), main_of("") as main, worker_of(main.address) as worker:
        fd = worker.address.split(":")
        worker.do("print(end='')")
        main.do("registry.close()")
        found = held_by(worker.pid)
        assert [(r["state"], r["problems"]) for r in found] == [("closed", [])]
        assert found[0]["address"].split(":")[3] == fd[3]


POOL = """
import multiprocessing, os, sys
import mdispatch as md

def work(told, end):
    md.default_registry()
    second = sys.argv[1] == "shared" or md.Registry.create()
    told.put(os.getpid())
    try:
        end.recv()
    except EOFError:
        pass  # the parent is gone

if __name__ == "__main__":
    if sys.argv[1] == "shared":
        md.default_registry()
    context = multiprocessing.get_context(sys.argv[2])
    told, (end, ours) = context.Queue(), context.Pipe(duplex=False)
    workers = [context.Process(target=work, args=(told, end), daemon=True) for _ in range(3)]
    for worker in workers:
        worker.start()
    print(*(told.get() for _ in workers), flush=True)
    sys.stdin.read()
    ours.close()
"""


@pytest.mark.parametrize("how", ["fork", "spawn"])
@pytest.mark.parametrize("whose", ["their own", "shared"])
def test_processes_of_one_program_that_share_nothing_are_noticed(
    tmp_path: Path, how: str, whose: str
) -> None:
    (tmp_path / "pool.py").write_text(POOL)
    words = [sys.executable, str(tmp_path / "pool.py"), whose, how]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment()) as pool:
        assert pool.stdout is not None
        pids = sorted(map(int, pool.stdout.readline().split()))
        assert len(pids) == 3
        found_out = diagnose()
        ours = [each for each in json.loads(found_out.json())["apart"] if each["pids"] == pids]
        shown = " ".join(text_for(found_out, io.StringIO()).split())
        pool.communicate()
    told = "Each of 3 processes of one program has a registry of its own, so that none sees what "
    told += f"another registers: pid {', '.join(map(str, pids))} ("
    assert (len(ours), told in shown) == ((1, True) if whose == "their own" else (0, False))
    assert all(sys.executable.rpartition("/")[2] in each["program"] for each in ours)


def test_a_registry_whose_file_was_deleted_is_found_and_can_be_attached_to(name: str) -> None:
    with main_of(name) as main:
        (FOLDER / name).unlink()
        (told,) = held_by(main.pid)
        assert (told["state"], told["deleted"]) == ("open", True)
        assert "file was deleted" in told["problems"][0]
        with md.Registry.attach(told["address"]) as here:
            assert here.operators() == ["shop::scale", "shop::shift"]


# --- stopped processes ----------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_registry_is_shown_at_once_while_a_stopped_process_holds_its_lock(
    name: str, hold: str
) -> None:
    with main_of(name) as main, subprocess.Popen([hold, name], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        told = about(name, status=0)
        assert told["lock"] == {
            "thread": holder.pid,
            "pid": holder.pid,
            "stopped": False,
            "died": False,
        }
        holder.send_signal(signal.SIGSTOP)
        until_stopped(holder.pid)
        before = time.monotonic()
        told = about(name, "--reap", status=1)
        assert time.monotonic() - before < limit(9)  # how long it waits for a lock at most
        assert told["lock"]["stopped"]
        assert f"held by pid {holder.pid}, which is stopped" in told["problems"][0]
        holder.kill()
        holder.wait()
        told = about(name, status=1)
        assert told["lock"]["died"]
        main.do("lib.define('more() -> ()')")
        told = about(name, status=0)
        assert (told["lock"], told["recoveries"]) == (None, 1)


@pytest.mark.long
def test_a_check_gives_up_where_a_stopped_process_holds_the_lock(name: str, hold: str) -> None:
    with main_of(name), subprocess.Popen([hold, name], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        until_stopped(holder.pid)
        (checked,) = doctor(name, "--check", status=1)["checks"]
        assert not checked["well"]
        assert "is it stopped?" in checked["error"]
        holder.kill()


def test_a_stopped_registrar_needs_attention(name: str) -> None:
    with main_of(name) as main:
        os.kill(main.pid, signal.SIGSTOP)
        until_stopped(main.pid)
        assert about(name, status=1)["registrar"]["stopped"]
        assert f"{main.pid} stopped" in text(name, status=1)
        os.kill(main.pid, signal.SIGCONT)


# --- what cannot be opened ------------------------------------------------------------------------

# Offsets in a region's header: see native/core/ground/layout.h.
FORMAT, BOOT, PID_SPACE, COMMITTED, STATE, FACTS = 8, 24, 56, 128, 152, 336
ODD = {
    "another version": (FORMAT, b"\xff", errors.RegistryFormatError, "refused"),
    "another boot": (BOOT, b"0123456789abcdef", errors.ForeignRegistryError, "refused"),
    "another namespace": (PID_SPACE, b"\1" + bytes(7), errors.ForeignRegistryError, "refused"),
    "damaged": (COMMITTED, b"\xff" * 8, errors.RegistryDamagedError, "damaged"),
    "said to be damaged": (STATE, b"\2", errors.RegistryDamagedError, "damaged"),
}


def lay_down(name: str, content: bytes) -> Path:
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    path = FOLDER / name
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("kind", ODD)
def test_what_nobody_can_judge_is_told_and_removed_only_when_nobody_has_it_open(
    kind: str, name: str
) -> None:
    at, patch, error, state = ODD[kind]
    with main_of(f"{name}-model"):  # so that a lease in the copy belongs to a living process
        model = (FOLDER / f"{name}-model").read_bytes()
        path = lay_down(name, model[:at] + patch + model[at + len(patch) :])
        told = about(name, status=1)
        assert (told["state"], told["error"]) == (state, error.__name__)
        assert told["text"] in told["problems"][0]
        assert "--reap" in told["problems"][0]
        assert (told["registrations"] is None) == (kind == "another version")
        (would,) = doctor(name, "--reap", "--dry-run", status=1)["would_reap"]
        assert would["name"] == name
        assert would["why"].startswith("if no process has it open; ")
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            file.close()
            (left,) = doctor(name, "--reap", status=1)["reaped"]
            assert (left["name"], left["removed"]) == (name, False)
            assert "some process has it open" in left["why"]
            assert text(name, "--reap", status=1).startswith(f"left alone: {name}: ")
        assert path.exists()
        (left,) = doctor(name, "--reap", status=0)["reaped"]
        assert left["removed"]
        assert not path.exists()


def broken_files(folder: Path) -> dict[str, Any]:
    def noise(path: Path) -> None:
        path.write_bytes(os.urandom(500_000))
        path.chmod(0o600)

    def open_to_others(path: Path) -> None:
        path.touch()
        path.chmod(0o666)

    return {
        "empty": (lambda path: path.touch(0o600), "RegistryFormatError"),
        "noise": (noise, "RegistryFormatError"),
        "folder": (Path.mkdir, "RegistryAccessError"),
        "FIFO": (os.mkfifo, "RegistryAccessError"),
        "link": (lambda path: path.symlink_to("/etc/passwd"), "RegistryAccessError"),
        "others may write": (open_to_others, "RegistryOwnerError"),
    }


@pytest.mark.parametrize("kind", broken_files(FOLDER))
def test_what_is_no_registry_is_told_with_the_reason_and_left_alone(kind: str, name: str) -> None:
    make, error = broken_files(FOLDER)[kind]
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    make(FOLDER / name)
    answer = doctor(name, "--reap", status=1)
    (told,) = answer["registries"]
    assert (told["state"], told["error"]) == ("refused", error)
    assert (told["members"], told["used"], told["registrar"]) == (None, None, None)
    assert answer["reaped"] == []
    assert os.path.lexists(FOLDER / name)
    shown = text(name, status=1)
    assert "refused" in shown
    assert "1 registry, 1 needs attention." in shown


def test_a_live_registry_with_noise_in_its_blocks_is_told(name: str) -> None:
    with main_of(name):
        with (FOLDER / name).open("r+b") as file:
            file.seek(401408)
            size = file.read(4)
            file.seek(401408)
            file.write(b"\1\0\0\0")
        assert "--check" in about(name, status=1)["problems"][0]
        (checked,) = doctor(name, "--check", status=1)["checks"]
        assert "has size 1" in checked["broken"][0]
        with (FOLDER / name).open("r+b") as file:
            file.seek(401408)
            file.write(size)
        about(name, status=0)


# --- the check ------------------------------------------------------------------------------------


def test_a_check_tells_that_all_is_well_and_leaves_no_trace(name: str) -> None:
    with main_of(name) as main:
        before = about(name, status=0)
        answer = doctor(name, "--check", status=0)
        assert answer["checks"] == [
            {"address": main.address, "well": True, "broken": [], "error": None}
        ]
        assert answer["registries"] == [before]
        assert "check   all invariants hold" in text(name, "--check", status=0)
        main.do("lib.define('more() -> ()')")
        assert about(name, status=0) != before


def test_a_check_tells_which_invariants_are_broken(name: str) -> None:
    with main_of(name):
        with (FOLDER / name).open("r+b") as file:
            file.seek(FACTS)
            assert struct.unpack("<Q", file.read(8)) == (4,)
            file.seek(FACTS)
            file.write(struct.pack("<Q", 7))
        (checked,) = doctor(name, "--check", status=1)["checks"]
        assert (checked["well"], checked["error"]) == (False, None)
        assert checked["broken"] == ["facts: 4 by count, 7 in the header"]
        shown = text(name, "--check", status=1)
        assert "check   facts: 4 by count, 7 in the header" in shown


def test_what_does_not_live_is_not_checked(name: str) -> None:
    with main_of(name) as main:
        main.kill()
    assert doctor(name, "--check", status=1)["checks"] == []


# --- reaping and creating at the same time --------------------------------------------------------

CREATES = """
import os, sys
from mdispatch.facts.native import native
name, folder, rounds = sys.argv[1].encode(), sys.argv[2], int(sys.argv[3])
for _ in range(rounds):
    if os.fork() == 0:  # leaves a dead one behind, if it gets that far
        native.create(name.decode(), 1 << 20)
        os._exit(0)
    os.wait()
    status, handle = native.create(name.decode(), 1 << 20)
    assert status == 0, status
    mine = os.stat(f"{folder}/{name.decode()}").st_ino
    for _ in range(20):
        assert os.stat(f"{folder}/{name.decode()}").st_ino == mine
    native.close(handle)
"""


@pytest.mark.thorough
def test_reaping_never_takes_a_name_away_from_who_is_alive(name: str) -> None:
    ended = threading.Event()
    reaped = []

    def reap() -> None:
        while not ended.is_set():
            status = native.reap(name.encode())
            assert status in (0, -8, -9), status  # removed, in use, nothing there
            reaped.append(status == 0)

    reapers = [threading.Thread(target=reap) for _ in range(2)]
    for reaper in reapers:
        reaper.start()
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CREATES, name, str(FOLDER), "150"],
        capture_output=True,
        text=True,
        check=False,
        timeout=limit(100),
    )
    ended.set()
    for reaper in reapers:
        reaper.join()
    assert (done.returncode, done.stderr) == (0, "")
    assert any(reaped)


# --- in a location of our own
# ------------------------------------------------------------------------

APART = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]


def may_be_apart() -> bool:
    if not shutil.which("unshare"):
        return False
    mount = ["mount", "-t", "tmpfs", "none", str(FOLDER.parent)]
    return subprocess.run([*APART, *mount], capture_output=True, check=False).returncode == 0


needs_apart = pytest.mark.skipif(not may_be_apart(), reason="may not make namespaces here")


def apart(script: str) -> dict[str, Any]:
    """Runs a script in a location without other processes and registries."""
    code = (
        f"import sys; sys.path.insert(0, {SUPPORT!r})\n"
        "import json, os, signal\nfrom command_line import mdispatch\nfrom registries import *\n"
        "def doctor(*args):\n    done = mdispatch('doctor', *args)\n"
        "    return done.returncode, done.stdout, done.stderr\n" + script
    )
    mount = 'mount -t tmpfs none "$MDISPATCH_FOLDER" && exec "$@"'
    done = subprocess.run(
        [*APART, "sh", "-c", mount, "sh", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
        timeout=limit(100),
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@needs_apart
def test_a_user_without_registries_is_told_so_and_gets_no_folder() -> None:
    told = apart("print(json.dumps([doctor(), doctor('--reap'), FOLDER.exists()]))")
    assert told == [
        [0, "No registries.\n", ""],
        [0, "Nothing to remove.\n\nNo registries.\n", ""],
        False,
    ]


@pytest.mark.thorough
@needs_apart
def test_all_registries_are_listed_and_reaping_takes_the_dead_ones_only() -> None:
    code, before, after, names = apart("""
with main_of("lives"), main_of("") as anonymous, main_of("dies") as dies, main_of("died") as died:
    with worker_of("died"):
        dies.kill()
        died.kill()
        before = doctor()
        after = doctor("--reap")
        names = sorted(os.listdir(FOLDER))
        print(json.dumps([anonymous.address, before, after, names]))
""")
    status, shown, _ = before
    assert status == 1
    rows = [line.split()[:3] for line in shown.splitlines()[2:] if line[:1] not in ("", " ")]
    assert [row[:2] for row in rows[:3]] == [
        ["died", "registrar"],
        ["dies", "left"],
        ["lives", "open"],
    ]
    assert rows[3] == [code]
    assert shown.endswith("4 registries, 2 need attention.\n")
    status, shown, _ = after
    assert status == 1  # for the one that has a worker
    assert shown.startswith("removed: dies: ")
    assert shown.endswith("3 registries, 1 needs attention.\n")
    assert names == ["died", "lives"]


@needs_apart
def test_a_folder_that_others_can_get_into_is_told() -> None:
    status, shown, _ = apart("""
FOLDER.mkdir(mode=0o755)
print(json.dumps(doctor()))
""")
    assert status == 1
    words = " ".join(shown.split())  # in lines that are as long as the folder's name makes them
    assert "! the folder of named registries is not used: the folder " in words
    assert " has the rights 0755, not 0700, so others may have changed it." in words


@needs_apart
def test_a_registry_of_another_pid_namespace_stays_until_nobody_has_it_open(name: str) -> None:
    with main_of(name, "unshare", "--pid", "--fork", "--kill-child"):
        told = about(name, "--reap", status=1)
        assert (told["state"], told["error"]) == ("refused", "ForeignRegistryError")
        assert "PID namespace" in told["text"]
        assert (told["operators"], told["registrar"]["stopped"]) == (2, False)
        assert (FOLDER / name).exists()

    # The process inside ends with the one that made the namespace, a moment later.
    def is_gone() -> bool:
        assert native.reap(name.encode()) in (0, -9, -18)  # removed, gone, still open in a process
        return not (FOLDER / name).exists()

    until(is_gone)


# --- how it is said -------------------------------------------------------------------------------


def test_what_is_asked_for_and_is_not_there_gives_status_2(name: str) -> None:
    for wrong in (name, "../x", "fd:999999999:3"):
        done = mdispatch("doctor", wrong)
        assert (done.returncode, done.stdout) == (2, ""), wrong
        assert done.stderr.startswith("mdispatch: ")
    assert mdispatch("doctor", "--no-such-option").returncode == 2


def test_every_key_of_the_json_is_documented(name: str) -> None:
    with main_of(name), worker_of(name) as worker:
        worker.do("wait(md.wait_for_def, 'shop::later', 100)")
        until_waiting(name, 1)
        assert strangers("doctor", doctor(name, "--check", "--reap", status=0)) == []


@pytest.mark.parametrize("columns", [40, 80, 150])
def test_a_terminal_gets_lines_that_fit_and_colours_unless_it_wants_none(
    columns: int, name: str
) -> None:
    with main_of(name) as main, worker_of(name) as worker:
        worker.do("wait(md.wait_for_impl, 'shop::scale', 'CUDA', 100)")
        until_waiting(name, 1)
        os.kill(main.pid, signal.SIGSTOP)
        until_stopped(main.pid)
        done = on_terminal("doctor", name, columns=columns)
        shown = done.stdout
        assert done.returncode == 1, shown
        assert "\x1b[32mopen" in shown
        bare = without_style(shown)
        lines = bare.splitlines()
        assert max(len(line) for line in lines if name not in line) <= columns
        words = " ".join(bare.split())
        for told in (name, "open", f"{main.pid} stopped", "shop::scale at CUDA", "kill -CONT"):
            assert told in words
        plain = on_terminal("doctor", name, columns=columns, NO_COLOR="1").stdout
        assert name in plain
        assert not re.search(r"\x1b\[[0-9;]*3\dm", plain)


def test_a_name_cannot_steer_the_terminal() -> None:
    name = f"\x1b[31mred-{os.getpid()}"
    path = lay_down(name, b"")
    try:
        done = mdispatch("doctor")
        assert f"red-{os.getpid()}" in done.stdout
        assert "\x1b" not in done.stdout
        assert "RegistryFormatError" not in done.stdout
    finally:
        path.unlink()


KEEPS_LOCKED = """
import fcntl, os, signal, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.waits
@pytest.mark.thorough
def test_who_keeps_the_folder_locked_is_told(name: str) -> None:
    base = FOLDER.parent / name  # a folder of its own: others need theirs meanwhile
    base.mkdir()
    apart = {"MDISPATCH_FOLDER": str(base)}
    make = "import os, sys, mdispatch as md; md.Registry.create(sys.argv[1]); os._exit(0)"
    for leftover in ("one", "two"):
        words = [sys.executable, "-c", make, leftover]
        subprocess.run(words, env=environment(**apart), check=True)
    folder = base / FOLDER.name
    words = [sys.executable, "-c", KEEPS_LOCKED, str(folder)]
    with subprocess.Popen(words) as keeper:
        until_stopped(keeper.pid)
        told = (
            f"the folder of named registries, {folder}, is locked by process {keeper.pid}, "
            f"which makes no progress (is it stopped?): continue it (kill -CONT {keeper.pid}) "
        )
        try:
            assert told in " ".join(command(status=1, process=True, **apart).split())
            answer = json.loads(command("--json", status=1, process=True, **apart))
            assert answer["folder_problem"].startswith(told)
            # To try each would take as long, and say the same.
            reaped = json.loads(command("--json", "--reap", status=1, process=True, **apart))[
                "reaped"
            ]
            assert [(each["name"], each["why"].startswith(told)) for each in reaped] == [
                ("one", True)
            ]
        finally:
            keeper.kill()
    after = json.loads(mdispatch("doctor", "--json", "--reap", process=True, **apart).stdout)
    assert (after["folder_problem"], len(after["reaped"])) == (None, 2)
    shutil.rmtree(base)


@pytest.mark.parametrize("how", ["in a nap", "between two naps"])
def test_ctrl_c_ends_a_reaper_that_waits_for_a_creator(name: str, how: str) -> None:
    with main_of(name) as main:
        main.kill()
    folder = os.open(FOLDER, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    command = [sys.executable, "-m", "mdispatch", "doctor", "--reap", name]
    # A suite in the background ignores SIGINT, and its children would, too.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, env=environment(), preexec_fn=heed) as process:
        try:
            call = Path(f"/proc/{process.pid}/syscall")
            # In ppoll, between two attempts.
            until(lambda: os.uname().machine != "x86_64" or call.read_text().split()[0] == "271")
            if how == "between two naps":
                process.send_signal(signal.SIGSTOP)
                until_stopped(process.pid)
                time.sleep(0.01)  # its nap of 1 ms is over before it goes on, if there is no delay
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGCONT)
            assert process.wait(limit(8)) == 130  # without it, after 10 s
        finally:
            os.close(folder)  # creators wait for it, also here
    assert seen(name).is_leftover


def test_a_program_that_embeds_interpreters_is_called_so():
    for number, who in ((HOST, "the program itself"), (2, "interpreter 2")):
        member = Member(7, number, "worker", True, 1, DEF, "s::f", 0, 2.0)
        assert waiting_text(member).plain.startswith(f"pid 7, {who}: ")
    assert repr(Registration(64, 1, DEF, 0, "s::f", "", "host.c:3", 7, HOST)).endswith(
        "at host.c:3 by pid 7, the program itself)"
    )
