"""Who serves kernels, and who calls there, as the commands show it."""

from __future__ import annotations

import json
import os
import signal
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import mdispatch
from json_keys import strangers
from kinds import until
from registries import FOLDER, Process, main_of, until_stopped, worker_of

from mdispatch.facts import NOTE, Registration
from mdispatch.facts.board import load_of
from mdispatch.facts.offers import offer_of, offer_text
from mdispatch.workers.interpreters import OWN_GIL

#: What the owner registers. A kernel waits for a byte: `hold` lets others run meanwhile, `clutch`
#: keeps the GIL.
OWNER = """
import ctypes
ANY = "CompositeExplicitAutograd"
keeping = ctypes.PyDLL(None)
lib.define("near(int n) -> int")
lib.impl("near", lambda n: n, ANY, serve=True)
lib.define("hold(int file) -> int")
lib.impl("hold", lambda file: len(os.read(file, 1)), ANY, serve="host")
go, say_go = os.pipe()
def clutch():
    keeping.read(go, ctypes.create_string_buffer(1), 1)
def interpreter(text):
    made = md.create_interpreter(own_gil=OWN)
    start = f"import mdispatch as md; registry = md.Registry.attach({registry.address!r})"
    def run():
        made.exec(start)
        made.exec(text)
        made.close()
    thread = threading.Thread(target=run)
    thread.start()
    return thread
"""
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
CALL = "with md.routing('shop'): registry.ops.shop."


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"srv-{request.node.name[5:20]}-{os.getpid()}"
    yield name
    (FOLDER / name).unlink(missing_ok=True)


@pytest.fixture
def main(name: str) -> Iterator[Process]:
    with main_of(name) as main:
        main.do(f"OWN = {OWN_GIL}" + OWNER)
        yield main


def asked(command: str, name: str, *more: str) -> dict[str, Any]:
    done = mdispatch(command, name, *more, "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    assert strangers(command, found) == []
    return found["registries"][0]


def served(name: str) -> dict[str, Any]:
    """The one member that serves, as both commands show it."""
    [there] = asked("doctor", name)["serving"]
    return there


def until_calls(name: str, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        found[:] = served(name)["calls"]
        return len(found) == number

    until(are_there)
    return found


def test_doctor_top_and_why_tell_who_serves_what_and_since_when(name: str, main: Process) -> None:
    begun = int(time.time()) - 60
    there = served(name)
    [at_top] = asked("top", name, "--count", "1")["serving"]
    assert at_top == there
    assert (there["pid"], there["interpreter"], there["stopped"]) == (main.pid, 0, False)
    near, hold = there["offers"]
    assert [each["operator"] for each in (near, hold)] == ["shop::near", "shop::hold"]
    assert [each["carrier"] for each in (near, hold)] == [None, "host"]
    assert begun <= near["since"] <= hold["since"] <= time.time()
    assert (there["limit"], there["calls"], there["ended"]) == (64, [], 0)
    for command in (("doctor", name), ("top", name, "--count", "1")):
        said = " ".join(mdispatch(*command).stdout.split())
        assert (
            f"serves pid {main.pid}, interpreter 0: shop::near, shop::hold (host); 0 calls running "
            "(of other processes at most 64), 0 waiting for its GIL, 0 ended"
        ) in said

    why = mdispatch("why", "shop::near", "--registry", name, "--json")
    found = json.loads(why.stdout)
    assert strangers("why", found) == []
    assert found["offers"] == [near]
    said = mdispatch("why", "shop::hold", "--registry", name).stdout
    assert (
        f'pid {main.pid}, interpreter 0: to other processes, by the carrier "host", since' in said
    )
    assert (
        json.loads(mdispatch("why", "shop::scale", "CPU", "--registry", name, "--json").stdout)[
            "offers"
        ]
        == []
    )


def test_a_visit_under_way_is_shown_and_counted_when_it_has_ended(name: str, main: Process) -> None:
    main.do(f"thread = interpreter({CALL!r} + f'hold({{go}})')")
    [call] = until_calls(name, 1)
    assert (call["operator"], call["pid"], call["waits"]) == ("shop::hold", main.pid, False)
    assert call["interpreter"] > 0
    assert Path(f"/proc/{main.pid}/task/{call['thread']}").exists()
    said = " ".join(mdispatch("top", name, "--count", "1").stdout.split())
    assert (
        f"calls pid {main.pid}, interpreter {call['interpreter']}, thread {call['thread']}, is in "
        f"pid {main.pid}, interpreter 0 and runs shop::hold, "
    ) in said
    main.do("os.write(say_go, b'x'); thread.join()")
    there = served(name)
    assert (there["calls"], there["ended"], there["running"]) == ([], 1, 0)


@pytest.mark.skipif(not OWN_GIL, reason="interpreters have a GIL of their own from Python 3.12 on")
@pytest.mark.skipif(FREE_THREADED, reason="nobody waits for a GIL there")
def test_a_visit_that_waits_for_the_owners_gil_says_so(
    name: str, main: Process, tmp_path: Path
) -> None:
    free, stop = tmp_path / "free", tmp_path / "stop"
    os.mkfifo(free)
    again = f"""
import os
with md.routing("shop"):
    while not os.path.exists({str(stop)!r}):
        registry.ops.shop.near(1)
"""
    main.do(f"go = os.open({str(free)!r}, os.O_RDWR)\nthread = interpreter({again!r})")
    until(lambda: served(name)["ended"] > 0)

    def waits() -> bool:  # before it has begun, a call may wait that soon gets in
        found = served(name)
        calls = [(each["operator"], each["pid"], each["waits"]) for each in found["calls"]]
        return (calls, found["waiting"]) == ([("shop::near", main.pid, True)], 1)

    def is_kept_out() -> bool:
        """Has the owner compute, and let nobody in. A call that was inside just then waits for
        nobody; it is let out, for another try.
        """
        main.begin("clutch()")
        end = time.monotonic() + 1
        while time.monotonic() < end:
            if waits():
                return True
        free.write_bytes(b"x")
        return False

    def says_so() -> bool:
        said = " ".join(mdispatch("doctor", name).stdout.split())
        return f"waits for the GIL of pid {main.pid}, interpreter 0 to call shop::near, " in said

    until(is_kept_out)
    began = time.monotonic()
    until(says_so)
    until(lambda: time.monotonic() > began + 0.1)
    stop.touch()
    free.write_bytes(b"x")
    until(lambda: not served(name)["calls"])
    there = served(name)
    assert there["longest_wait"] > 0.05
    assert there["ended"] > 0


def test_a_call_of_another_process_is_shown_also_while_the_owner_is_stopped(
    name: str, main: Process, tmp_path: Path
) -> None:
    free = tmp_path / "free"
    os.mkfifo(free)
    main.do(f"os.dup2(os.open({str(free)!r}, os.O_RDWR), 100)")
    with worker_of(f"shm:{name}") as caller:
        caller.begin(f"{CALL}hold(100)")
        [call] = until_calls(name, 1)
        who = (call["pid"], call["interpreter"], call["thread"])
        assert who == (caller.pid, 0, None)
        assert (call["operator"], call["waits"]) == ("shop::hold", False)

        os.kill(main.pid, signal.SIGSTOP)
        until_stopped(main.pid)
        there = served(name)
        assert there["stopped"]
        assert there["calls"][0]["pid"] == caller.pid
        os.kill(main.pid, signal.SIGCONT)

        free.write_bytes(b"x")
        until_calls(name, 0)
        assert served(name)["ended"] == 1


def test_a_worker_that_serves_and_is_stopped_needs_attention(name: str, main: Process) -> None:
    with worker_of(f"shm:{name}") as owner:
        owner.do(
            "lib = md.Library('shop', 'IMPL', registry=registry)\n"
            "lib.impl('scale', len, 'CPU', serve='host')"
        )
        both = [one["pid"] for one in asked("doctor", name)["serving"]]
        assert both == sorted((main.pid, owner.pid))
        os.kill(owner.pid, signal.SIGSTOP)
        until_stopped(owner.pid)
        [problem] = asked("doctor", name)["problems"]
        assert problem == (
            f"pid {owner.pid}, which serves shop::scale, is stopped, and those who call it wait: "
            f"kill -CONT {owner.pid}"
        )
        owner.kill()
        assert served(name)["pid"] == main.pid


def test_threads_that_have_ended_leave_their_row_and_their_count(name: str, main: Process) -> None:
    text = """
import threading
def call():
    with md.routing("shop"):
        registry.ops.shop.near(1)
for _ in range(300):
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
"""
    main.do(f"thread = interpreter({text!r}); thread.join()")
    assert served(name)["ended"] == 300  # there are 191 rows


def test_a_child_of_a_fork_shows_what_it_serves_and_nothing_of_its_parent(
    name: str, main: Process
) -> None:
    main.do(
        "if not os.fork():\n"
        "    import signal\n"
        "    more = md.Library('shop', 'IMPL', registry=registry)\n"
        "    more.impl('scale', len, 'CPU', serve=True)\n"
        "    signal.pause()"
    )
    children: list[dict[str, Any]] = []

    def serves() -> bool:
        children[:] = [one for one in asked("doctor", name)["serving"] if one["pid"] != main.pid]
        return bool(children)

    try:
        until(serves)
        [child] = children
        assert [each["operator"] for each in child["offers"]] == ["shop::scale"]
        assert (child["ended"], child["calls"]) == (0, [])
    finally:
        for one in children:
            os.kill(one["pid"], signal.SIGKILL)


GOOD = offer_text("f", "", "", False, 3, "host", "1.2", 10, 7, ("", ""))


def note(text: str) -> Registration:
    return Registration(1, 1, NOTE, 1, "shop::near", text, "x.py:1", os.getpid(), 0)


def test_what_is_no_offer_is_passed_by() -> None:
    offer = offer_of(note(GOOD))
    assert offer is not None
    assert (offer.ticket, offer.carrier, offer.since, offer.board) == (3, "host", 10, 7)
    parts = GOOD.split("\n")
    for place, bad in ((0, "another"), (5, "-3"), (5, "three"), (8, "1" * 16), (8, "")):
        assert offer_of(note("\n".join([*parts[:place], bad, *parts[place + 1 :]]))) is None
    assert offer_of(note("\n".join(parts[:-1]))) is None
    assert offer_of(note(GOOD + "\nmore")) is None
    lost = offer_of(note("\n".join([*parts[:9], "-1", *parts[10:]])))
    assert lost is not None
    assert lost.board == -1


def test_what_is_no_board_is_not_read(tmp_path: Path) -> None:
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    other = os.memfd_create("mdispatch-board")
    try:
        os.truncate(file, 1 << 14)
        for number in (-1, file, other, 10**6):
            assert load_of(os.getpid(), 0, number) is None
        os.ftruncate(other, 1 << 14)  # the right size, and no stamp
        assert load_of(os.getpid(), 0, other) is None
    finally:
        os.close(file)
        os.close(other)
