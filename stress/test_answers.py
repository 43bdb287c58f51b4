"""Definitions, kernels, priorities, choices and registrars change under callers; nobody gets an
impossible answer.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from answers_judge import Judge, calls, notes
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


class Successors:
    """Registrars of one name, of which each replaces the one before."""

    def __init__(self, scenario: Scenario, name: str, histories: Path) -> None:
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
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        # Seen by gdb in 3.13.5: flush_std_files waits for the lock of a stream, for ever.
        pytest.skip("a free-threaded CPython may hang as a registrar with threads ends")
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
