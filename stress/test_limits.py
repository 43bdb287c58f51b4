"""A registry that is full: of registrations, and of members."""

from __future__ import annotations

import time

import pytest
from crew import CAST
from mains import Main, MainClient, RefusedError
from measure import PATIENCE
from scenario import Scenario

import mdispatch as md

ROOM = [f"f{i}(Tensor x, int began={{AT}}) -> Tensor" for i in range(3)]
#: Members beside the main one (mdispatch.h, MD_MAX_MEMBERS).
MOST = 2047


@pytest.mark.scenario("full registry")
def test_a_full_registry_refuses_cleanly_and_takes_as_much_again_after_each_close(
    scenario: Scenario, main: MainClient
) -> None:
    """Memory comes back by size: the same registrations fit each time. Who waits gets what fits."""
    with scenario.crew(main.address) as crew, Main(capacity=600 * 1024) as own:
        for number in range(len(CAST)):
            crew.tell(number, "attach", own.address, 5)
        assert {done.ended for done in crew.done(len(CAST))} == {"ok"}
        crew.ready(len(CAST))
        teller = own.connect()
        teller.tell("open", namespace="room")  # names stay: these need room of their own
        teller.tell("define", namespace="room", schemas=ROOM, key="")
        teller.tell("close", namespace="room")
        took: list[int] = []
        for _ in scenario.rounds():
            for number in range(len(CAST)):
                crew.tell(number, "wait", f"room::f{number % 3}", PATIENCE)
            crew.ready(len(CAST))
            teller.tell("open", namespace="full")
            took.append(teller.tell("fill", namespace="full", limit=20_000)["defined"])
            with pytest.raises(RefusedError, match="RegistryFullError"):
                teller.tell("define", namespace="full", schemas=["h(Tensor x) -> Tensor"])
            teller.tell("check")
            began = time.monotonic_ns()
            teller.tell("close", namespace="full")
            teller.tell("open", namespace="room")
            times = teller.tell("define", namespace="room", schemas=ROOM, key="")["times"]
            for done in crew.done(len(CAST)):
                came, sure = times[f"f{done.who % 3}"]
                assert (done.ended, done.more) == ("ok", str(came)), crew.name(done.who)
                who = crew.name(done.who)
                scenario.judge("define to waiter", who, done.returned, came, sure, done.queued)
            teller.tell("close", namespace="room")
            scenario.figures.count("operations", 2 * took[-1])
            scenario.figures.latency("closing all", times["f0"][0] - began)
        assert len(set(took)) == 1, took
        teller.close()


@pytest.mark.scenario("full of members", share=0.5)
def test_a_registry_full_of_members_refuses_one_more_and_takes_another_for_each_that_leaves(
    scenario: Scenario, main: MainClient
) -> None:
    with Main() as own:
        members: list[md.Registry] = []
        for _ in range(MOST):
            members.append(md.Registry.attach(own.address))
        with pytest.raises(md.errors.RegistryFullError, match="no slot"):
            md.Registry.attach(own.address)
        for _ in scenario.rounds():
            going = 1 + scenario.dice.below(64)
            members = scenario.dice.shuffled(members)
            for member in members[:going]:
                member.close()
            del members[:going]
            for _ in range(going):
                began = time.monotonic_ns()
                members.append(md.Registry.attach(own.address))
                scenario.figures.latency("attach when nearly full", time.monotonic_ns() - began)
            with pytest.raises(md.errors.RegistryFullError, match="no slot"):
                md.Registry.attach(own.address)
            scenario.figures.count("operations", 2 * going + 1)
        teller = own.connect()
        assert teller.tell("stat")["members"] == MOST + 1
        teller.tell("check")
        teller.close()
        for member in members:
            member.close()
