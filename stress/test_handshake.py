"""The handshake under load: who registers, who waits and who verifies meet in every order."""

from __future__ import annotations

import time

import pytest
from crew import CAST
from mains import Main, MainClient
from measure import ALLOWED_NS, PATIENCE
from scenario import Scenario

PARTS = pytest.mark.parametrize("part", [0, 1])
SCHEMAS = ["f(Tensor x, int y=3) -> Tensor", "g(Tensor x) -> Tensor", "h(Tensor x) -> Tensor"]


@PARTS
@pytest.mark.scenario("handshake storm", share=1.5)
def test_all_who_wait_get_what_is_defined_however_the_two_meet(
    part: int, scenario: Scenario, main: MainClient
) -> None:
    dice, space = scenario.dice, f"storm{part}"
    with scenario.crew(main.address) as crew:
        for _ in scenario.rounds():
            main.tell("open", namespace=space)
            names = [f"f{i}" for i in range(1 + dice.below(4))]
            schemas = [f"{name}(Tensor x, int began={{AT}}) -> Tensor" for name in names]
            early = dice.below(len(names)) if dice.below(2) else 0  # these are there before
            times = main.tell("define", namespace=space, schemas=schemas[:early])["times"]
            wanted = {}
            for number in dice.shuffled(list(range(len(CAST)))):
                wanted[number] = names[dice.below(len(names))]
                crew.tell(number, "wait", f"{space}::{wanted[number]}", PATIENCE)
            if dice.below(2):
                crew.ready(len(CAST))
                scenario.pause(dice.below(3))
            times |= main.tell("define", namespace=space, schemas=schemas[early:])["times"]
            for done in crew.done(len(CAST)):
                came, sure = times[wanted[done.who]]
                assert (done.ended, done.more) == ("ok", str(came)), crew.name(done.who)
                came, sure = max(came, done.began), max(sure, done.began)
                who = crew.name(done.who)
                scenario.judge("define to waiter", who, done.returned, came, sure, done.queued)
            main.tell("close", namespace=space)
            scenario.figures.count("definitions", len(names))


@PARTS
@pytest.mark.scenario("late main")
def test_workers_that_come_before_the_registrar_wait_for_it_or_say_that_it_never_came(
    part: int, scenario: Scenario, main: MainClient
) -> None:
    dice, space = scenario.dice, f"late{part}"
    with scenario.crew(main.address) as crew:
        for number in scenario.rounds():
            if number % 6 == 5:
                come_before_the_registry(scenario, crew, f"{main.address[4:]}-late{part}")
                for each in range(len(CAST)):
                    crew.tell(each, "attach", main.address, 2)
                crew.done(len(CAST))
                crew.ready(len(CAST))
            impatient = {each: 0.001 * (1 + dice.below(20)) for each in range(dice.below(3))}
            for each in range(len(CAST)):
                crew.tell(each, "verify", space, impatient.get(each, PATIENCE), "same")
            crew.ready(len(CAST))
            for done in crew.done(len(impatient)):
                assert done.who in impatient, "only these cannot wait"
                assert done.ended == "MainNeverArrivedError", done.ended
                deadline = done.began + int(impatient[done.who] * 1e9)
                who = crew.name(done.who)
                scenario.judge("deadline to return", who, done.returned, deadline, 0, done.queued)
                crew.tell(done.who, "verify", space, PATIENCE, "same")  # it tries again
            crew.ready(len(impatient))
            scenario.pause(20)
            came = time.monotonic_ns()
            main.tell("open", namespace=space)
            sure = main.tell("define", namespace=space, schemas=SCHEMAS)["times"]["h"][1]
            for done in crew.done(len(CAST)):
                assert done.ended == "ok", f"{crew.name(done.who)}: {done.ended}"
                who = crew.name(done.who)
                scenario.judge("main to verified", who, done.returned, came, sure, done.queued)
            main.tell("close", namespace=space)


def come_before_the_registry(scenario: Scenario, crew, name: str) -> None:
    """All attach to a registry that is created only then."""
    for number in range(len(CAST)):
        crew.tell(number, "attach", name, PATIENCE)
    crew.ready(len(CAST))
    began = time.monotonic_ns()
    with Main(name) as own:
        sure = time.monotonic_ns()  # it listens
        for done in crew.done(len(CAST)):
            assert done.ended == "ok", f"{crew.name(done.who)}: {done.ended}"
            late = done.returned - max(sure, began) - done.queued
            assert late <= ALLOWED_NS, f"{crew.name(done.who)} attached {late / 1e6:.1f} ms late"
            scenario.figures.count("operations")
        assert own.process.poll() is None


EXPECTED = {
    "same": "ok",
    "schema": "SchemaMismatchError",
    "key": "KeyMismatchError",
    "name": "NameMismatchError",
    "namespace": "MainNeverArrivedError",
}
#: What fails only when its time is up, and so is not to have much.
LATE = ("key", "name", "namespace")


@PARTS
@pytest.mark.scenario("divergent workers")
def test_each_difference_is_told_by_its_own_exception_and_to_nobody_else(
    part: int, scenario: Scenario, main: MainClient
) -> None:
    dice, space = scenario.dice, f"divergent{part}"
    variants = list(EXPECTED)
    with scenario.crew(main.address) as crew:
        for _ in scenario.rounds():
            chosen = [variants[dice.below(len(variants))] for _ in CAST]
            main_is_late = not any(variant in LATE for variant in chosen) and dice.below(2)
            opened = time.monotonic_ns()
            if not main_is_late:
                main.tell("open", namespace=space)
                main.tell("define", namespace=space, schemas=SCHEMAS)
            timeouts = [0.001 * dice.below(20) if each in LATE else PATIENCE for each in chosen]
            for number, variant in enumerate(chosen):
                crew.tell(number, "verify", space, timeouts[number], variant)
            crew.ready(len(CAST))
            if main_is_late:
                opened = time.monotonic_ns()
                main.tell("open", namespace=space)
                main.tell("define", namespace=space, schemas=SCHEMAS)
            sure = time.monotonic_ns()
            for done in crew.done(len(CAST)):
                variant, who = chosen[done.who], crew.name(done.who)
                assert done.ended == EXPECTED[variant], f"{who}, {variant}: {done.ended}"
                if variant in LATE:
                    deadline = done.began + int(timeouts[done.who] * 1e9)
                    title, came, least = "deadline to return", deadline, 0
                else:
                    title, least = "verification", max(sure, done.began)
                    came = max(opened, done.began)
                scenario.judge(title, who, done.returned, came, least, done.queued)
                scenario.figures.count(variant)
            main.tell("close", namespace=space)
