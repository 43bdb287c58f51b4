"""Roll calls of processes of which some are killed, stopped or late, with differences planted on
purpose, and a judge that knows the plants.

The judge refutes: two verdicts among the members of one round; a verdict that takes a member with a
plant for right, or one without for wrong; one that lacks a member which was there; and a call that
never ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from scenario import Scenario

import mdispatch as md

MEMBERS = 8
PATIENCE = 30.0  # seconds that a member may take to answer
SOON = 1.0  # seconds that a member waits for others of which one does not come

LIFE = """
import json, sys
import mdispatch as md

registry = md.Registry.attach(sys.argv[1])
print("here", flush=True)
for line in sys.stdin:
    turn, is_odd, timeout = json.loads(line)
    if is_odd:
        md.agree("plant", 1, registry=registry)
    else:
        md.choices.leave("plant", registry=registry)
    differs, late = False, None
    try:
        its = md.roll_call(expected=MEMBERS, round=turn, timeout=timeout, registry=registry)
    except md.errors.RollCallError as error:
        its, differs, late = error.verdict, error.differs, error.late
    print(json.dumps({
        "at": its.at,
        "agrees": its.agrees,
        "right": its.right,
        "groups": {each.pid: each.group for each in its.members},
        "differs": differs,
        "late": late is not None,
    }), flush=True)
"""


@dataclass
class Round:
    """A round: the members with a plant, and the fate of one of the members. ``answers`` has that
    of each that lives, by its process.
    """

    turn: int
    odd: set[int]
    how: str
    victim: int
    answers: dict[int, dict[str, Any]]

    def faults(self, pids: set[int]) -> list[str]:
        found, victim = [], self.victim
        counted = {
            pid: its
            for pid, its in self.answers.items()
            if not its["late"] and str(pid) in its["groups"]
        }
        for pid, its in self.answers.items():
            if pid not in counted and (pid != victim or self.how == "nothing"):
                found.append(f"{pid} was there and is not counted")
            if its["differs"] != (pid in self.odd) and (pid in counted or its["agrees"]):
                found.append(f"{pid} is told that it differs: {its['differs']}")
        if len({json.dumps(its["groups"]) for its in counted.values()}) != 1:
            return [*found, "there are several verdicts"]
        if len({its["at"] for its in self.answers.values()}) != 1:
            found.append("a late member has another verdict")
        (its, *_) = counted.values()
        groups = {int(pid): group for pid, group in its["groups"].items()}
        if not pids - {victim} <= groups.keys() <= pids or (
            self.how == "absent" and victim in groups
        ):
            found.append(f"it counts {len(groups)} members")
        wrong = [
            pid for pid, group in groups.items() if (group != its["right"]) != (pid in self.odd)
        ]
        found += [f"{pid} is in the wrong group" for pid in wrong]
        if its["agrees"] != (groups.keys() == pids and not self.odd & groups.keys()):
            found.append(f"agrees: {its['agrees']}")
        return found


@pytest.mark.scenario("roll calls")
def test_in_each_round_there_is_one_verdict_and_it_is_true(scenario: Scenario) -> None:
    dice, count = scenario.dice, scenario.figures.count
    program = f"import sys; sys.path[:] = {sys.path!r}\nMEMBERS = {MEMBERS}\n{LIFE}"
    with md.Registry.create(capacity=1 << 24) as registry:
        members: list[subprocess.Popen[str]] = []

        def start() -> None:
            words = [sys.executable, "-W", "error", "-c", program, registry.address]
            pipe = subprocess.PIPE
            member = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
            assert member.stdout
            assert member.stdout.readline() == "here\n"
            members.append(member)

        def ask(member: subprocess.Popen[str], timeout: float) -> None:
            assert member.stdin
            member.stdin.write(json.dumps([now.turn, member.pid in now.odd, timeout]) + "\n")
            member.stdin.flush()

        def answer(member: subprocess.Popen[str]) -> None:
            assert member.stdout
            now.answers[member.pid] = json.loads(member.stdout.readline())

        def befall(member: subprocess.Popen[str]) -> None:
            """The victim is killed or stopped somewhere in its call."""
            for _ in range(dice.below(60)):
                registry.dispatcher.facts.await_change(0, 0.0)
            member.send_signal(signal.SIGKILL if now.how == "killed" else signal.SIGSTOP)

        try:
            for _ in range(MEMBERS):
                start()
            for turn, _ in enumerate(scenario.rounds()):
                how = (*["nothing"] * 5, "absent", "killed", "stopped")[dice.below(8)]
                odd = {members[dice.below(MEMBERS)].pid for _ in range(dice.below(4))}
                victim = members[dice.below(MEMBERS)]
                now = Round(turn, odd, how, victim.pid, {})
                others = [each for each in members if each is not victim]
                pids = {each.pid for each in members}
                for each in others[::2]:
                    ask(each, PATIENCE if how == "nothing" else SOON)
                if how != "absent":
                    ask(victim, PATIENCE)
                for each in others[1::2]:
                    ask(each, PATIENCE if how == "nothing" else SOON)
                if how in ("killed", "stopped"):
                    befall(victim)
                for each in others:
                    answer(each)
                if how == "absent":
                    ask(victim, PATIENCE)
                if how == "stopped":
                    os.kill(victim.pid, signal.SIGCONT)
                if how == "killed":
                    victim.communicate(timeout=PATIENCE)
                    members.remove(victim)
                    start()
                else:
                    answer(victim)
                count("operations", MEMBERS)
                count("kills", how == "killed")
                wrong = now.faults(pids)
                assert not wrong, f"{now}\n" + "\n".join(wrong)
        finally:
            for each in members:
                each.kill()
                each.communicate(timeout=PATIENCE)
        registry.check_invariants()
