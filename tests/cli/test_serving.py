"""Who serves kernels, as the commands show it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import mdispatch
from json_keys import strangers
from kinds import until
from registries import FOLDER, Process, main_of, until_stopped, worker_of

from mdispatch.across.offers import offer_of, offer_text
from mdispatch.facts import NOTE, Registration

#: What the owner registers.
OWNER = """
lib.define("near(int n) -> int")
lib.impl("near", lambda n: n, "CompositeExplicitAutograd", serve=True)
lib.define("hold(int file) -> int")
lib.impl("hold", len, "CompositeExplicitAutograd", serve="host")
"""


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"srv-{request.node.name[5:20]}-{os.getpid()}"
    yield name
    (FOLDER / name).unlink(missing_ok=True)


@pytest.fixture
def main(name: str) -> Iterator[Process]:
    with main_of(name) as main:
        main.do(OWNER)
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


def test_doctor_top_and_why_tell_who_serves_what_and_since_when(name: str, main: Process) -> None:
    begun = int(time.time()) - 60
    there = served(name)
    [at_top] = asked("top", name, "--count", "1")["serving"]
    assert at_top == there
    assert (there["pid"], there["interpreter"], there["stopped"]) == (main.pid, 0, False)
    near, hold = there["offers"]
    assert [each["operator"] for each in (near, hold)] == ["shop::near", "shop::hold"]
    assert [each["transport"] for each in (near, hold)] == [None, "host"]
    assert begun <= near["since"] <= hold["since"] <= time.time()
    for command in (("doctor", name), ("top", name, "--count", "1")):
        said = " ".join(mdispatch(*command).stdout.split())
        assert f"serves pid {main.pid}, interpreter 0: shop::near, shop::hold (host)" in said
        assert "stopped" not in said

    why = mdispatch("why", "shop::near", "--registry", name, "--json")
    found = json.loads(why.stdout)
    assert strangers("why", found) == []
    assert found["offers"] == [near]
    said = mdispatch("why", "shop::hold", "--registry", name).stdout
    assert (
        f'pid {main.pid}, interpreter 0: to other processes, by the transport "host", since' in said
    )
    assert (
        json.loads(mdispatch("why", "shop::scale", "CPU", "--registry", name, "--json").stdout)[
            "offers"
        ]
        == []
    )


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
        for command in ("doctor", "top"):
            count = ("--count", "1") * (command == "top")
            shown = {one["pid"]: one["stopped"] for one in asked(command, name, *count)["serving"]}
            assert shown == {main.pid: False, owner.pid: True}
            said = " ".join(mdispatch(command, name, *count).stdout.split())
            assert f"serves pid {owner.pid}, interpreter 0: shop::scale (host); stopped" in said
        [problem] = asked("doctor", name)["problems"]
        assert problem == (
            f"pid {owner.pid}, which serves shop::scale, is stopped, and those who call it wait: "
            f"kill -CONT {owner.pid}"
        )
        owner.kill()
        assert served(name)["pid"] == main.pid


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
    finally:
        for one in children:
            os.kill(one["pid"], signal.SIGKILL)


GOOD = offer_text("f", "", "", False, 3, "host", "1.2", 10, ("", ""))


def note(text: str) -> Registration:
    return Registration(1, 1, NOTE, 1, "shop::near", text, "x.py:1", os.getpid(), 0)


def test_what_is_no_offer_is_passed_by() -> None:
    offer = offer_of(note(GOOD))
    assert offer is not None
    assert (offer.ticket, offer.transport, offer.since) == (3, "host", 10)
    parts = GOOD.split("\n")
    for place, bad in ((0, "another"), (5, "-3"), (5, "three"), (8, "1" * 16), (8, "")):
        assert offer_of(note("\n".join([*parts[:place], bad, *parts[place + 1 :]]))) is None
    assert offer_of(note("\n".join(parts[:-1]))) is None
    assert offer_of(note(GOOD + "\nmore")) is None
