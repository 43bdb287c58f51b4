"""Deaths by SIGKILL: of the registrar, and of who holds the lock. Those of everybody, at random
moments, are in test_kill.py.
"""

from __future__ import annotations

import pytest
from crew import CAST
from mains import Main, MainClient
from scenario import Scenario


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.scenario("kill -9 of the main")
def test_all_who_wait_hear_of_the_registrars_death_and_another_takes_its_place(
    part: int, scenario: Scenario, main: MainClient
) -> None:
    dice, name = scenario.dice, f"{main.address[4:]}-kill{part}"
    everyone = range(len(CAST) + 1)
    with scenario.crew(main.address, (*CAST, "process")) as crew:
        for _ in scenario.rounds():
            own = Main(name)  # of the name of the one that was killed
            teller = own.connect()
            for number in everyone:
                crew.tell(number, "attach", own.address, 5)
            assert {done.ended for done in crew.done(len(everyone))} == {"ok"}
            crew.ready(len(everyone))
            churns = dice.below(3)
            for each in range(churns):
                teller.tell("churn", namespace=f"c{each}", operators=8, seed=each, pause_ms=0)
            for number in everyone:
                crew.tell(number, "wait", "never::comes", "none")
            crew.ready(len(everyone))
            scenario.pause(10)
            came, sure = own.kill()
            scenario.figures.count("kills")
            for done in crew.done(len(everyone)):
                who = crew.name(done.who)
                assert done.ended == "RegistrarGoneError", f"{who}: {done.ended}"
                assert done.more == str(own.pid), f"{who} was told of pid {done.more}"
                first, least = max(came, done.began), max(sure, done.began)
                scenario.judge("kill to waiter", who, done.returned, first, least, done.queued)
            crew.tell(0, "attach", own.address, 0)
            assert crew.done(1)[0].ended == "RegistrarGoneError"
            crew.ready(1)
            teller.close()
            own.leave()
    with Main(name):
        pass  # its name is free again


@pytest.mark.scenario("kill -9 in the lock")
def test_who_is_killed_while_it_holds_the_lock_stops_nobody(
    scenario: Scenario, main: MainClient
) -> None:
    said = scenario.apart("killed_holders", name=f"{main.address[4:]}-lock")
    # A victim holds the lock about half of its time.
    assert said["recoveries"] or scenario.figures.counts["kills"] < 40
