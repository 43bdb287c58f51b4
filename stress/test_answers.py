"""Definitions, kernels, priorities, choices and registrars change under callers; nobody gets an
impossible answer.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from answers_judge import Judge, calls, notes
from cluster_processes import LEASE, Server
from crew import OWN, Crew
from mains import Main, MainClient
from measure import HANG_SECONDS
from scenario import Scenario

#: Who calls. The last of each kind registers nothing: its calls go to the registrar.
CAST = ("thread", "shared-gil", OWN, "process", "process", "process", "process", "process")
ROLES = ("answer", "answer", "answer", "answer", "answer", "answer_in_child", "answer", "ask")
#: Those that call through torch.ops as well, where there is PyTorch.
WITH_TORCH = (3, 4)


def crew_of(scenario: Scenario, address: str, files: Sequence[Path], *how: str) -> Crew:
    """Callers, which begin when they are told until when."""
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        scenario.figures.count("left out: torch.ops, since PyTorch is not installed")
    more = []
    for number, file in enumerate(files):
        words = ["answers", str(file), *how, *["torch"] * (has_torch and number in WITH_TORCH)]
        more.append((scenario.dice.below(1 << 30), 0, ",".join(words)))
    return scenario.crew(address, CAST, roles=ROLES, more=more)


def begin(scenario: Scenario, crew: Crew) -> int:
    """Has them begin together: PyTorch takes long to import. Returns until when."""
    crew.hear("ready", len(CAST), 2 * HANG_SECONDS)
    until = time.monotonic_ns() + int(max(scenario.left, scenario.seconds / 2) * 1e9)
    for number in range(len(CAST)):
        crew.tell(number, until)
    return until


def change(main: MainClient, scenario: Scenario, histories: Path, pause_ms: int) -> None:
    seed, history = scenario.dice.below(1 << 30), str(histories)
    main.tell("change", namespace="answers", seed=seed, pause_ms=pause_ms, history=history)


def check(scenario: Scenario, judge: Judge, files: Sequence[Path]) -> None:
    """AssertionError for an answer that was impossible."""
    for number, file in enumerate(files):
        answers = 0
        for call in calls(file):
            why = judge.impossible(call)
            assert not why, f"{CAST[number]} {number}: {why}\n{call}"
            answers += 1
        assert answers, f"{CAST[number]} {number} got no answer"
        for note in notes(file):
            why = judge.impossible_note(note[0], *note[1])
            assert not why, f"{CAST[number]} {number}: {why}\n{note}"
            answers += note[0] == "chosen"
        scenario.figures.count("operations", answers)


@pytest.mark.scenario("answers", share=2.0)
def test_no_call_is_answered_as_a_definition_has_it_that_is_not_in_effect(
    scenario: Scenario, main: MainClient, tmp_path: Path
) -> None:
    for number in scenario.rounds():
        histories = tmp_path / f"round{number}"
        histories.mkdir()
        files = [tmp_path / f"{number}-{each}" for each in range(len(CAST))]
        began = time.monotonic_ns()
        change(main, scenario, histories, 4)
        with crew_of(scenario, main.address, files) as crew:
            begin(scenario, crew)
            scenario.play(crew, main, scenario.seconds)
        done = main.tell("stop", namespace="answers")
        scenario.figures.count("definitions", done["definitions"])
        [history] = histories.iterdir()
        check(scenario, Judge(histories, files, {int(history.name): (began, 1 << 62)}), files)


def registrars_end() -> None:
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        # Seen by gdb in 3.13.5: flush_std_files waits for the lock of a stream, for ever.
        pytest.skip("a free-threaded CPython may hang as a registrar with threads ends")


class Successors:
    """Registrars of one name, of which each replaces the one before."""

    def __init__(self, scenario: Scenario, name: str, histories: Path) -> None:
        """``name`` is that of the registry, or the address of a cluster."""
        self.scenario, self.name, self.histories = scenario, name, histories
        #: When each was there, by its pid.
        self.reigns: dict[int, tuple[int, int]] = {}
        self._start()

    def _start(self) -> None:
        self._began = time.monotonic_ns()
        self.main = Main(self.name)
        assert self.main.pid not in self.reigns, "two registrars had one pid"
        self._teller = self.main.connect()  # the changes go on as long as it is open
        change(self._teller, self.scenario, self.histories, 12)

    def end(self) -> None:
        if self.scenario.dice.below(2):
            self.main.kill()
            self.scenario.figures.count("kills")
        self.main.leave()
        self._teller.close()
        self.reigns[self.main.pid] = self._began, time.monotonic_ns()

    def replace(self) -> None:
        self.end()
        self._start()


@pytest.mark.scenario("answers of successors", share=2.0)
def test_no_call_is_answered_as_a_registrar_has_it_that_was_replaced(
    scenario: Scenario, main: MainClient, tmp_path: Path
) -> None:
    registrars_end()
    histories = tmp_path / "histories"
    histories.mkdir()
    files = [tmp_path / f"{number}" for number in range(len(CAST))]
    successors = Successors(scenario, f"{main.address[4:]}-answers", histories)
    try:
        with crew_of(scenario, successors.main.address, files, "follow") as crew:
            until = begin(scenario, crew)
            while (left := until - time.monotonic_ns()) > 0:
                scenario.pause(min(2000, left / 1e6))
                successors.replace()
            scenario.play(crew, main, scenario.seconds)
    finally:
        successors.end()
    check(scenario, Judge(histories, files, successors.reigns), files)


class Bridge:
    """The process of a bridge, and its host's registry: see host_bridge.py."""

    def __init__(self, url: str, name: str, histories: Path) -> None:
        program = str(Path(__file__).with_name("host_bridge.py"))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", program, url, name, str(histories)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def close(self) -> None:
        self.process.communicate(timeout=HANG_SECONDS)


@pytest.mark.scenario("answers of leaders", share=2.0)
def test_no_call_is_answered_as_a_leader_on_another_host_has_it_no_more(
    scenario: Scenario, main: MainClient, tmp_path: Path
) -> None:
    """Callers are on a host whose registry a bridge writes. Which provider comes first is not
    judged there: the priorities of a leader that is gone stay until its successor's are there.
    """
    registrars_end()
    pytest.importorskip("redis", reason="redis-py is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    histories, of_leaders = tmp_path / "histories", tmp_path / "leaders"
    histories.mkdir()
    of_leaders.mkdir()
    files = [tmp_path / f"{number}" for number in range(len(CAST))]
    run, began = f"{main.address[4:]}-answers", time.monotonic_ns()
    with closing(Server()) as server, ExitStack() as ends:
        server.start("")
        url = f"redis://127.0.0.1:{server.port}/0?run={run}&lease={LEASE}&policy=follow"
        leaders = Successors(scenario, f"cluster:{url}", of_leaders)
        ends.callback(leaders.end)
        bridge = Bridge(url, f"{run}-far", histories)
        ends.callback(bridge.close)
        with crew_of(scenario, bridge.address, files, "far") as crew:
            until = begin(scenario, crew)
            while (left := until - time.monotonic_ns()) > 0:
                scenario.pause(min(2000, left / 1e6))
                leaders.replace()
            scenario.play(crew, main, scenario.seconds)
    check(scenario, Judge(histories, files, {bridge.process.pid: (began, 1 << 62)}), files)
