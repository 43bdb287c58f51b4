"""Forks at any moment at which CPython itself can fork."""

from __future__ import annotations

import pytest
from mains import MainClient
from scenario import Scenario


@pytest.mark.parametrize("role", ["worker", "main"])
@pytest.mark.scenario("fork storm")
def test_children_of_forks_use_what_they_inherited_as_workers(
    role: str, scenario: Scenario, main: MainClient
) -> None:
    own = f"{main.address[4:]}-forks" if role == "main" else ""
    scenario.apart("storm_of_forks", own=own, shared=list(main.place))
