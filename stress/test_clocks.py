"""Clocks that jump, and processes for which time jumps. All waits are measured by CLOCK_MONOTONIC.

- Nobody can set that clock; CLOCK_REALTIME can be set, and must not matter.
- Processes in another time namespace read another CLOCK_MONOTONIC. Deadlines are made and kept by
  the one who waits, so they hold there too.
- For a process that is stopped and continued, time has jumped.
"""

from __future__ import annotations

import platform
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from crew import CAST, Crew
from mains import Main, MainClient
from measure import PATIENCE
from scenario import Scenario

SCHEMA = "f(Tensor x, int began={AT}) -> Tensor"
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)
FUTEX_WAITV, WAIT_BITSET, BY_REALTIME, MONOTONIC = 449, 9, 256, 1


def clock_of_wait(pid: int) -> str:
    """By which clock the kernel measures the sleep that a process's main thread is in; "" when it
    is in none.
    """
    words = Path(f"/proc/{pid}/syscall").read_text().split()
    if words[0] == str(FUTEX_WAITV):
        return "monotonic" if int(words[5], 16) == MONOTONIC else "another"
    operation = int(words[2], 16) if words[0] == str(FUTEX) else 0
    if operation & 127 != WAIT_BITSET:
        return ""
    return "another" if operation & BY_REALTIME else "monotonic"


@pytest.mark.scenario("clock of sleeps", share=0.5)
def test_every_sleep_is_measured_by_the_clock_that_nobody_can_set(
    scenario: Scenario, main: MainClient
) -> None:
    if FUTEX < 0:
        pytest.skip(f"the numbers of {platform.machine()}'s system calls are not known here")
    seen = 0
    with scenario.crew(main.address, ("process", "process")) as crew:
        for _ in scenario.rounds():
            seen += look_at_sleeps(scenario, crew)
        for _ in range(200):  # on a busy machine a sleep can be over before it was looked at
            seen = seen or look_at_sleeps(scenario, crew)
    scenario.figures.count("sleeps looked at", seen)
    assert seen


def look_at_sleeps(scenario: Scenario, crew: Crew) -> int:
    """Both wait; how often one of them was seen asleep."""
    seen = 0
    timeouts = [0.02 + scenario.dice.below(30) / 1000 for _ in crew.cast]
    for number, timeout in enumerate(timeouts):
        crew.tell(number, "wait", "never::comes", timeout)
    crew.ready(len(timeouts))
    end = time.monotonic() + min(timeouts) / 2
    while time.monotonic() < end:
        for process in crew.processes.values():
            clock = clock_of_wait(process.pid)
            assert clock != "another"
            seen += clock == "monotonic"
    for done in crew.done(len(timeouts)):
        due, who = done.began + int(timeouts[done.who] * 1e9), crew.name(done.who)
        scenario.judge("deadline to return", who, done.returned, due, 0, done.queued)
    return seen


def unshare_time() -> list[str]:
    """How a process comes into a time namespace here."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no program `unshare` (util-linux)")
    said = ""
    for more in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *more, "--time"]
        ran = subprocess.run(
            [*command, "--monotonic", "1", "true"], capture_output=True, text=True, check=False
        )
        if ran.returncode == 0:
            return command
        said = ran.stderr.strip()
    pytest.skip(f"no time namespace can be had: {said}")


@pytest.mark.scenario("other clocks")
def test_members_by_whose_clock_it_is_another_time_take_part_like_all(
    scenario: Scenario, main: MainClient
) -> None:
    command = unshare_time()
    offsets = [0, 0, 500_000 + scenario.dice.below(500_000), -int(time.monotonic() / 2), 1]
    cast = ("thread", *["process"] * 4)
    prefixes = [
        [*command, "--monotonic", str(o), "--boottime", str(o)] if o else [] for o in offsets
    ]
    everyone, name = range(len(cast)), f"{main.address[4:]}-clocks"
    with scenario.crew(main.address, cast, prefixes=prefixes) as crew:

        def judge(title: str, done, came: int, sure: int = 0) -> None:
            shift = offsets[done.who] * 1_000_000_000
            came, sure = max(came, done.began - shift), max(sure, done.began - shift)
            who = f"{crew.name(done.who)}, {offsets[done.who]} s away"
            scenario.judge(title, who, done.returned - shift, came, sure, done.queued)

        for _ in scenario.rounds():
            timeouts = [scenario.dice.below(30) / 1000 for _ in everyone]
            for number in everyone:  # what they had before is dead
                crew.tell(number, "attach", main.address, 5)
            assert {done.ended for done in crew.done(len(cast))} == {"ok"}
            crew.ready(len(cast))
            for number in everyone:
                crew.tell(number, "wait", "never::comes", timeouts[number])
            for done in crew.done(len(cast)):
                assert done.ended == "MainNeverArrivedError", done.ended
                due = done.began + int(timeouts[done.who] * 1e9)
                judge("deadline to return", done, due - offsets[done.who] * 1_000_000_000)
            crew.ready(len(cast))
            with Main(name) as own:
                teller = own.connect()
                for number in everyone:
                    crew.tell(number, "attach", own.address, 5)
                assert {done.ended for done in crew.done(len(cast))} == {"ok"}
                crew.ready(len(cast))
                for number in everyone:
                    crew.tell(number, "wait", "clocks::f", PATIENCE)
                crew.ready(len(cast))
                teller.tell("open", namespace="clocks")
                scenario.pause(3)
                times = teller.tell("define", namespace="clocks", schemas=[SCHEMA])["times"]["f"]
                for done in crew.done(len(cast)):
                    assert (done.ended, done.more) == ("ok", str(times[0])), crew.name(done.who)
                    judge("define to waiter", done, *times)
                teller.tell("check")
                for number in everyone:
                    crew.tell(number, "wait", "never::comes", "none")
                crew.ready(len(cast))
                times = own.kill()
                scenario.figures.count("kills")
                teller.close()
                for done in crew.done(len(cast)):
                    assert done.ended == "RegistrarGoneError", done.ended
                    judge("kill to waiter", done, *times)
    with Main(name):
        pass  # its name is free again


@pytest.mark.scenario("stopped and continued")
def test_a_waiter_that_was_stopped_beyond_its_outcome_returns_when_it_goes_on(
    scenario: Scenario, main: MainClient
) -> None:
    cast = ("process", "process", "thread")
    with scenario.crew(main.address, cast) as crew:
        for _ in scenario.rounds():
            timeout = 0.01 + scenario.dice.below(20) / 1000
            crew.tell(0, "wait", "never::comes", timeout)
            crew.tell(1, "wait", "stopped::f", PATIENCE)
            crew.tell(2, "wait", "stopped::f", PATIENCE)
            crew.ready(len(cast))
            for process in crew.processes.values():
                process.send_signal(signal.SIGSTOP)
            main.tell("open", namespace="stopped")
            times = main.tell("define", namespace="stopped", schemas=[SCHEMA])["times"]["f"]
            goes_on = crew.done(1)
            if goes_on[0].who != 2:  # it was faster than its stop
                goes_on += crew.done(1)
            time.sleep(timeout)
            before = time.monotonic_ns()
            for process in crew.processes.values():
                process.send_signal(signal.SIGCONT)
            after = time.monotonic_ns()
            for done in goes_on + crew.done(len(cast) - len(goes_on)):
                who = crew.name(done.who)
                expected = "ok" if done.who else "MainNeverArrivedError"
                assert done.ended == expected, f"{who}: {done.ended}"
                came = times[0] if done.who else done.began + int(timeout * 1e9)
                if done.who != 2 and done.returned > before:
                    scenario.judge(
                        "continue to return", who, done.returned, before, after, done.queued
                    )
                else:
                    scenario.judge(
                        "define to waiter", who, done.returned, came, times[1], done.queued
                    )
            main.tell("close", namespace="stopped")


@pytest.mark.scenario("the machine's clock", share=0.5)
def test_setting_the_machines_clock_ends_no_wait_and_delays_none(
    scenario: Scenario, main: MainClient, pytestconfig: pytest.Config
) -> None:
    jump = pytestconfig.getoption("--set-clock")
    if not jump:
        pytest.skip("this sets the clock of the machine: only with --set-clock SECONDS")
    began, real = time.monotonic(), time.time()
    try:
        time.clock_settime(time.CLOCK_REALTIME, real + time.monotonic() - began)
    except PermissionError:
        pytest.skip("this process may not set the clock")
    try:
        with scenario.crew(main.address, (*CAST, "process")) as crew:
            for number in scenario.rounds():
                timeouts = [scenario.dice.below(40) / 1000 for _ in crew.cast]
                for each, timeout in enumerate(timeouts):
                    crew.tell(each, "wait", "never::comes", timeout)
                crew.ready(len(timeouts))
                scenario.pause(20)
                now = real + time.monotonic() - began
                time.clock_settime(time.CLOCK_REALTIME, now + (-jump if number % 2 else jump))
                scenario.figures.count("jumps")
                for done in crew.done(len(timeouts)):
                    due = done.began + int(timeouts[done.who] * 1e9)
                    who = crew.name(done.who)
                    scenario.judge("deadline to return", who, done.returned, due, 0, done.queued)
    finally:
        time.clock_settime(time.CLOCK_REALTIME, real + time.monotonic() - began)
