"""Definitions, kernels and priorities change under callers; nobody gets an impossible answer."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from answers import Judge, calls
from crew import OWN
from mains import MainClient
from scenario import Scenario

#: Who calls. The last of each kind registers nothing: its calls go to the main member.
CAST = ("thread", "shared-gil", OWN, "process", "process", "process", "process", "process")
ROLES = ("answer", "answer", "answer", "answer", "answer", "answer_in_child", "answer", "ask")


@pytest.mark.scenario("answers", share=2.0)
def test_no_call_is_answered_as_a_definition_has_it_that_is_not_in_effect(
    scenario: Scenario, main: MainClient, tmp_path: Path
) -> None:
    history = tmp_path / "history"
    for _ in scenario.rounds():
        main.tell(
            "change", namespace="answers", seed=scenario.seed, pause_ms=4, history=str(history)
        )
        until = time.monotonic_ns() + int(max(scenario.left, 0.5) * 1e9)
        files = [tmp_path / f"{number}" for number in range(len(CAST))]
        more = [(scenario.dice.below(1 << 30), until, f"answers,{file}") for file in files]
        with scenario.crew(main.address, CAST, roles=ROLES, more=more) as crew:
            scenario.play(crew, main, scenario.seconds)
        done = main.tell("stop", namespace="answers")
        scenario.figures.count("definitions", done["definitions"])
        judge, asked = Judge(history), 0
        for number, file in enumerate(files):
            answers = 0
            for call in calls(file):
                why = judge.impossible(call)
                assert not why, f"{CAST[number]} {number}: {why}\n{call}"
                answers += 1
            assert answers, f"{CAST[number]} {number} got no answer"
            asked += answers
        scenario.figures.count("operations", asked)
