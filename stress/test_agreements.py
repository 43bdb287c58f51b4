"""Agreements of processes that are killed, stopped and replaced, with differences planted on
purpose, and a judge that knows the plants.

Each member writes down what it asked for, when, and the outcome. An agreement holds from the end of
its call until its member asks for something else, or dies. The judge refutes: two agreements with
different values that hold at one time; a refusal by a member that had not asked for another value,
or was dead; and a call that never ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from scenario import Scenario

import mdispatch as md

MEMBERS = 8
NAMES = 3
PATIENCE = 30.0  # seconds that a member may take to answer, or to end

LIFE = """
import json, os, random, sys, time
import mdispatch as md

address, log, seed = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND), int(sys.argv[3])
dice = random.Random(seed)
registry = md.Registry.attach(address)
while True:
    name = f"config {dice.randrange(NAMES)}"
    odd = dice.random() < 0.1
    value = {"size": dice.choice([1, 2]) if odd else 4096, "plugins": ["a", "b"]}
    if dice.random() < 0.02:
        value["large"] = "x" * 100_000
    told = {"pid": os.getpid(), "name": name, "value": str(sorted(value.items()))[:60]}
    told["begin"] = time.monotonic_ns()
    os.write(log, (json.dumps(told) + "\\n").encode())
    try:
        md.agree(name, value, registry=registry)
        told["by"] = 0
    except md.errors.DisagreementError as error:
        told["by"] = error.pid
        assert error.fields, str(error)
    told["end"] = time.monotonic_ns()
    os.write(log, (json.dumps(told) + "\\n").encode())
"""


@dataclass
class Call:
    """A call of a member: ``by`` is the process that refused it, 0 where it agreed, and -1 where
    its member died meanwhile. It holds from ``end`` to ``until``, and counts for others from
    ``begin`` to ``given_up``.
    """

    pid: int
    name: str
    value: str
    begin: int
    end: int
    by: int
    until: float = float("inf")
    given_up: float = float("inf")


def read(log: Path, sent: dict[int, int], dead: dict[int, int]) -> dict[str, list[Call]]:
    """The calls by name. ``sent`` has the times before a process was killed, ``dead`` those after
    its death.
    """
    ended: dict[tuple[int, int], Call] = {}
    for line in log.read_text().splitlines():
        told = json.loads(line)
        its = (told["pid"], told["begin"])
        # Its member may die within the call.
        end = dead.get(told["pid"], 0)
        ended[its] = Call(**{"end": end, "by": -1} | told)
    calls = sorted(ended.values(), key=lambda call: call.begin)
    last: dict[tuple[int, str], Call] = {}
    for call in calls:
        before = last.get((call.pid, call.name))
        if before is not None and before.value != call.value:
            before.until, before.given_up = call.begin, call.end
        elif before is not None:
            before.until = before.given_up = call.end
        last[call.pid, call.name] = call
    for call in last.values():
        call.until = sent.get(call.pid, float("inf"))
        call.given_up = dead.get(call.pid, float("inf"))
    found: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.name].append(call)
    return found


def faults(calls: list[Call]) -> Iterator[str]:
    """The contradictions among the calls of one name."""
    calls = sorted(calls, key=lambda call: call.end)
    open_: list[Call] = []
    for call in calls:
        if not call.by:
            open_ = [each for each in open_ if each.until > call.end]
            for each in open_:
                if each.value != call.value and each.pid != call.pid:
                    yield f"both hold: {each} and {call}"
            open_.append(call)
    by_pid: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_pid[call.pid].append(call)
    for call in calls:
        if call.by > 0 and not any(
            each.value != call.value and each.begin < call.end and each.given_up > call.begin
            for each in by_pid[call.by]
        ):
            yield f"refused by nobody: {call}"


@pytest.mark.scenario("agreements", share=2.0)
def test_members_that_are_killed_and_stopped_agree(scenario: Scenario, tmp_path: Path) -> None:
    log, dice, count = tmp_path / "log", scenario.dice, scenario.figures.count
    log.touch()
    sent: dict[int, int] = {}
    dead: dict[int, int] = {}
    stopped: set[int] = set()
    with md.Registry.create(capacity=1 << 24) as registry:
        program = f"import sys; sys.path[:] = {sys.path!r}\nNAMES = {NAMES}\n{LIFE}"

        def start() -> subprocess.Popen[bytes]:
            seed = str(dice.below(1 << 30))
            words = [sys.executable, "-W", "error", "-c", program, registry.address, str(log), seed]
            return subprocess.Popen(words)

        def end(member: subprocess.Popen[bytes]) -> None:
            assert member.poll() is None, "a member has ended by itself"
            sent[member.pid] = time.monotonic_ns()
            member.kill()
            member.wait(PATIENCE)
            dead[member.pid] = time.monotonic_ns()
            stopped.discard(member.pid)
            count("kills", 1)

        members = [start() for _ in range(MEMBERS)]
        for _ in scenario.rounds():
            size = log.stat().st_size
            deadline = time.monotonic() + PATIENCE
            while log.stat().st_size < size + 20_000:
                assert time.monotonic() < deadline, "nobody gets anywhere"
                time.sleep(0.002)
            chosen = dice.below(MEMBERS)
            member = members[chosen]
            if dice.below(10) < 6:
                end(member)
                members[chosen] = start()
            elif member.pid in stopped:
                os.kill(member.pid, signal.SIGCONT)
                stopped.discard(member.pid)
            elif len(stopped) < MEMBERS // 2:
                os.kill(member.pid, signal.SIGSTOP)
                stopped.add(member.pid)
        for member in members:
            end(member)
        registry.check_invariants()
    for name, calls in read(log, sent, dead).items():
        count("operations", len(calls))
        wrong = list(faults(calls))
        assert not wrong, f"{name}: {len(wrong)} of {len(calls)}\n" + "\n".join(wrong[:5])


ROUNDS = """
import json, os, random, sys
import mdispatch as md

address, number, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
registry = md.Registry.attach(address)
dice = random.Random(seed)  # all have the same, so all know the plants
turns = 0
print("here", flush=True)
for line in sys.stdin:
    wrong = 0
    for _ in range(int(line)):
        odd = dice.randrange(MEMBERS) if dice.random() < 0.3 else None
        turn = dice.random()
        value = {"turn": turn, "odd": odd == number}
        turns += 1
        try:
            name = f"plan {turns}"
            md.agree(name, value, among=MEMBERS, timeout=PATIENCE, registry=registry)
            wrong += odd is not None
        except md.errors.DisagreementError as error:
            wrong += odd is None or [each.path for each in error.fields] != ["odd"]
        # Who has not asked yet has to meet those that have: nobody leaves before all have ended.
        md.agree(f"end {turns}", 0, among=MEMBERS, timeout=PATIENCE, registry=registry)
        md.choices.leave(name, registry=registry)
        md.choices.leave(f"end {turns - 1}", registry=registry)
    print(wrong, flush=True)
"""


@pytest.mark.scenario("agreements, rounds")
def test_in_each_round_all_agree_or_all_hear_of_the_one_that_differs(scenario: Scenario) -> None:
    seed, count = str(scenario.dice.below(1 << 30)), scenario.figures.count
    with md.Registry.create(capacity=1 << 24) as registry:
        sets = f"sys.path[:] = {sys.path!r}\nMEMBERS, PATIENCE = {MEMBERS}, {PATIENCE}"
        words = [sys.executable, "-W", "error", "-c", f"import sys; {sets}\n{ROUNDS}"]
        members = [
            subprocess.Popen(
                [*words, registry.address, str(number), seed],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(MEMBERS)
        ]
        try:
            for member in members:
                assert member.stdout
                assert member.stdout.readline() == "here\n"
            for _ in scenario.rounds():
                for member in members:
                    assert member.stdin
                    member.stdin.write("25\n")
                    member.stdin.flush()
                told = [member.stdout.readline() for member in members if member.stdout]
                assert told == ["0\n"] * MEMBERS, "wrong verdicts of each member"
                count("operations", 25 * MEMBERS)
        finally:
            for member in members:
                member.communicate(timeout=PATIENCE)
        registry.check_invariants()
