"""The options of all stress tests: how long, how often, with which seed."""

from __future__ import annotations

import time

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stress")
    group.addoption("--seconds", type=float, default=5.0, help="how long each test goes on")
    group.addoption("--rounds", type=int, default=0, help="how many rounds, 0 for no limit")
    group.addoption("--seed", type=int, default=0, help="of every random choice, 0 for a new one")


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--seed"):
        # The workers of xdist get what the one that started them has chosen.
        given = getattr(config, "workerinput", {}).get("stress_seed")
        config.option.seed = given or time.time_ns() // 1000 % 1_000_000 + 1


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    node.workerinput["stress_seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"stress: --seconds {config.option.seconds:g} --seed {config.option.seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.timeout(120 + 2 * config.option.seconds))
