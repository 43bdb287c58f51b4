"""Interpreters that end while somebody waits."""

from __future__ import annotations

import pytest
from mains import MainClient
from scenario import Scenario


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.scenario("ended interpreters")
def test_who_waits_in_an_interpreter_that_ends_is_sent_home_and_nobody_else(
    part: int, scenario: Scenario, main: MainClient
) -> None:
    left = scenario.limit
    while True:
        said = scenario.apart("ended_interpreters", shared=main.place, space=f"endings{part}")
        left -= said["rounds"]
        if scenario.left <= 0 or (scenario.limit and left <= 0):
            break
