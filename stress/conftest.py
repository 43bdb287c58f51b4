"""The suite's own plugin: its options, what each scenario gets, and the replay of a failure.

One registry serves the whole run, see controller.py; every worker of pytest-xdist is a process of
its own that attaches to it.

A new scenario is a test with the mark ``scenario``: its title in the table, and its share of the
time where it needs more or less than others. The fixture ``scenario`` has dice, rounds, figures and
crews; ``main`` is a connection to the run's registrar, and whoever kills, fills or closes a
registry starts a ``mains.Main`` of its own.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path

import controller
import pytest
from mains import MainClient
from scenario import Scenario

import mdispatch as md
from mdispatch.workers.pytest_plugin import own_folder

HERE = Path(__file__).parent
# On a machine with much else to do: MDISPATCH_TEST_PATIENCE=10 makes the limits ten times as long.
PATIENCE = float(os.environ.get("MDISPATCH_TEST_PATIENCE") or 1)
SCENARIO = pytest.StashKey[Scenario]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stress", "stress scenarios of mdispatch")
    group.addoption(
        "--seconds", type=float, default=12.0, help="how long all scenarios together go on"
    )
    group.addoption(
        "--rounds", type=int, default=0, help="how many rounds each has at most, 0 for no limit"
    )
    group.addoption("--seed", type=int, default=0, help="of every random choice, 0 for a new one")
    group.addoption("--plot", metavar="FILE.html|png", help="draw what came out as well")
    group.addoption(
        "--figures", metavar="FILE.json", help="write what came out as well (mdispatch stress)"
    )
    group.addoption(
        "--set-clock",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="let a scenario set the clock of THIS MACHINE so far forth and back again (root only)",
    )


def pytest_configure(config: pytest.Config) -> None:
    own_folder(config)
    config.addinivalue_line(
        "markers", "scenario(title, share=1.0): a stress scenario and its share of the time"
    )
    if hasattr(config, "workerinput"):
        config.option.seed = config.workerinput["stress_seed"]
        return
    if not config.option.seed:
        config.option.seed = time.time_ns() // 1000 % 1_000_000 + 1
    config.pluginmanager.register(controller.Controller(config), "stress-controller")


def pytest_report_header(config: pytest.Config) -> str:
    option = config.option
    return f"stress: --seconds {option.seconds:g} --rounds {option.rounds} --seed {option.seed}"


def share_of(item: pytest.Item) -> float:
    mark = item.get_closest_marker("scenario")
    return mark.kwargs.get("share", 1.0) if mark else 1.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives each scenario its part of the time. All workers collect the same, so they agree."""
    ours = [item for item in items if item.path.is_relative_to(HERE)]
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    total = sum(map(share_of, ours))
    for item in ours:
        seconds = config.option.seconds * min(1.0, workers * share_of(item) / total)
        name = item.nodeid.rpartition("::")[2]
        item.stash[SCENARIO] = Scenario(name, config.option.seed, seconds, config.option.rounds)
        item.add_marker(pytest.mark.timeout(PATIENCE * (150 + 2 * seconds)))


@pytest.fixture
def scenario(request: pytest.FixtureRequest) -> Scenario:
    found: Scenario = request.node.stash[SCENARIO]
    found.begin()
    return found


@pytest.fixture
def main(pytestconfig: pytest.Config, scenario: Scenario):
    """The run's registrar. After the scenario its registry is whole, as it sees it and as this
    process does.
    """
    place = getattr(pytestconfig, "workerinput", None)
    if place is None:
        place = pytestconfig.pluginmanager.get_plugin("stress-controller").place()
    client = MainClient(*place["stress_main"])
    with md.Registry.attach(client.address) as registry:
        yield client
        client.tell("check")
        registry.check_invariants()
    client.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """The figures travel with the test's report: those of a worker that dies later are not lost."""
    began = time.monotonic()
    try:
        return (yield)
    finally:
        if SCENARIO in item.stash:
            figures = item.stash[SCENARIO].figures.as_dict()
            values = {**figures, "took": time.monotonic() - began}
            item.user_properties.append((controller.FIGURES, json.dumps(values)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    made = yield
    if SCENARIO not in item.stash:
        return made
    found = item.stash[SCENARIO]
    mark = item.get_closest_marker("scenario")
    about = {
        "title": mark.args[0] if mark else item.name,
        "worker": os.environ.get("PYTEST_XDIST_WORKER", "alone"),
        "again": replay_of(item, found.seconds),
    }
    made.user_properties.append((controller.ABOUT, json.dumps(about)))
    if made.failed:
        text = f"{about['title']}, on worker {about['worker']}; again:\n{about['again']}"
        made.sections.append(("the stress scenario", text))
    return made


def replay_of(item: pytest.Item, seconds: float) -> str:
    """The command that makes the same choices again."""
    option = item.config.option
    words = ["pytest", item.nodeid, "--seed", str(option.seed), "--seconds", f"{seconds:.3g}"]
    if option.rounds:
        words += ["--rounds", str(option.rounds)]
    if option.set_clock:
        words += ["--set-clock", f"{option.set_clock:g}"]
    return shlex.join(words)
