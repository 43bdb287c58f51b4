"""What comes and goes for ever, and those who wait, call, verify, listen and close meanwhile."""

from __future__ import annotations

import time

import pytest
from crew import CAST, OWN
from mains import Main, MainClient
from scenario import Scenario

PARTS = pytest.mark.parametrize("part", [0, 1])


def words_of(scenario: Scenario, count: int, spaces: list[str], seconds: float) -> list[tuple]:
    """What each member of a crew that goes on by itself is told: its dice, its end, names."""
    until = time.monotonic_ns() + int(seconds * 1e9)
    return [(scenario.dice.below(1 << 30), until, ",".join(spaces)) for _ in range(count)]


@PARTS
@pytest.mark.scenario("churn", share=1.5)
def test_whoever_looks_at_what_comes_and_goes_for_ever_is_told_the_truth(
    part: int, scenario: Scenario, main: MainClient
) -> None:
    spaces = [f"churn{part}{letter}" for letter in "ab"]
    roles = ("wait", "wait", "call", "verify", "attach", "wait", "wait", "attach")
    cast = ("thread", "thread", "thread", "thread", "thread", "shared-gil", OWN, OWN)
    for space in spaces:
        main.tell("churn", namespace=space, operators=8, seed=scenario.seed, pause_ms=5)
    more = words_of(scenario, len(cast), spaces, max(scenario.left, 0.1))
    with scenario.crew(main.address, cast, roles=roles, more=more) as crew:
        scenario.play(crew, main, scenario.seconds)
    for space in spaces:
        done = main.tell("stop", namespace=space)
        assert done["rounds"], "the registrar has closed nothing"
        scenario.figures.count("rounds", done["rounds"])
        scenario.figures.count("definitions", done["definitions"])
        scenario.figures.count("operations", 2 * done["definitions"])
        assert main.tell("operators", namespace=space) == {"operators": []}


@PARTS
@pytest.mark.scenario("close while waiting")
def test_a_registry_that_is_closed_sends_home_whoever_waits_in_it(
    part: int, scenario: Scenario, main: MainClient
) -> None:
    """By the interpreter that waits, and by the registrar, for all."""
    cast = ("thread", "thread", "shared-gil", OWN)
    roles = ["close_while_waiting"] * len(cast)
    more = words_of(scenario, len(cast), [], max(scenario.left / 2, 0.1))
    with scenario.crew(main.address, cast, roles=roles, more=more) as crew:
        scenario.play(crew, main, scenario.seconds)
    name = f"{main.address[4:]}-close{part}"
    with scenario.crew(main.address) as crew:
        for _ in scenario.rounds():
            with Main(name) as own:
                for number in range(len(CAST)):
                    crew.tell(number, "attach", own.address, 5)
                assert {done.ended for done in crew.done(len(CAST))} == {"ok"}
                crew.ready(len(CAST))
                for number in range(len(CAST)):
                    crew.tell(number, "wait", "never::comes", "none")
                crew.ready(len(CAST))
                scenario.pause(3)
                came, sure = own.leave()
                for done in crew.done(len(CAST)):
                    assert done.ended == "RegistryClosedError", done.ended
                    who = crew.name(done.who)
                    since, at_last = max(came, done.began), max(sure, done.began)
                    scenario.judge(
                        "leave to waiter", who, done.returned, since, at_last, done.queued
                    )


@PARTS
@pytest.mark.scenario("listeners under load")
def test_listeners_know_what_is_there_when_it_has_grown_quiet(
    part: int, scenario: Scenario, main: MainClient
) -> None:
    spaces = [f"listen{part}{letter}" for letter in "ab"]
    cast = ("thread", "thread", "shared-gil", OWN)
    for space in spaces:
        main.tell("churn", namespace=space, operators=8, seed=scenario.seed, pause_ms=3)
    more = words_of(scenario, len(cast), [*spaces, f"listen{part}stays"], max(scenario.left, 0.1))
    roles = ["listen"] * len(cast)
    with scenario.crew(main.address, cast, roles=roles, more=more) as crew:
        crew.hear("ready", len(cast), scenario.seconds + 30)
        for space in spaces:
            done = main.tell("stop", namespace=space)
            scenario.figures.count("rounds", done["rounds"])
            scenario.figures.count("definitions", done["definitions"])
        main.tell("open", namespace=f"listen{part}stays")
        schemas = [f"f{i}(Tensor x, int began={{AT}}) -> Tensor" for i in range(5)]
        main.tell("define", namespace=f"listen{part}stays", schemas=schemas)
        for number in range(len(cast)):
            crew.tell(number, "quiet")
        crew.gather(scenario.figures, None, 30)
    main.tell("close", namespace=f"listen{part}stays")
