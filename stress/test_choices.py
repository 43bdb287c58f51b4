"""Processes that agree on thousands of choices while they are killed in the middle of deciding, and
stopped, replaced, and given files with choices. The judge reads what each has written down.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest
from chooser import CANDIDATES
from conftest import PATIENCE
from mains import MainClient
from measure import HANG_SECONDS
from scenario import Scenario

import mdispatch as md
from mdispatch import choices
from mdispatch.facts import CLAIM

PROGRAM = Path(__file__).with_name("chooser.py")
PROCESSES, PROFILES, FEW = 8, 1_000, 60


class Chooser:
    """A process, and its history."""

    def __init__(self, words: list[str], history: Path) -> None:
        self.history = history
        self.killed_at = 0  # the time before the signal that killed it
        program = [sys.executable, "-W", "error", str(PROGRAM)]
        self.process = subprocess.Popen([*program, *words], stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        self.killed_at = time.monotonic_ns()
        self.process.kill()

    def end(self) -> None:
        """It has ended: well, or by a signal."""
        _, said = self.process.communicate()
        assert self.process.returncode in (0, -signal.SIGKILL), said
        assert self.process.returncode == 0 or not said

    @property
    def written(self) -> int:
        return self.history.stat().st_size if self.history.exists() else 0

    def lines(self) -> list[tuple[str, list[int]]]:
        text = self.history.read_text() if self.history.exists() else ""
        return [(line[0], list(map(int, line[2:].split()))) for line in text.splitlines()]


def told(running: list[Chooser], registry: md.Registry) -> str:
    """What they do who do nothing."""
    _, claims = registry.dispatcher.facts.registrations_since(CLAIM, 0)
    waits = [(m[1], m[4], m[8]) for m in registry.dispatcher.facts.members()]
    last = [(each.process.pid, each.lines()[-2:]) for each in running]
    return f"{last}; members {waits}; claims {[(c.pid, c.name) for c in claims]}"


def judge(everybody: list[Chooser], chosen: dict[int, int], loaded: dict[int, int]) -> int:
    """AssertionError where two differ, or two decide at once. How many decisions there were."""
    deciding: dict[int, list[tuple[int, int, Chooser]]] = defaultdict(list)
    decided: dict[int, list[tuple[int, Chooser]]] = defaultdict(list)
    for each in everybody:
        begun: dict[int, int] = {}
        for what, (profile, *rest) in each.lines():
            if what == "D":
                begun[profile] = rest[0]
            elif what == "E":
                deciding[profile].append((begun.pop(profile), rest[1], each))
                decided[profile].append((rest[0], each))
            else:
                assert rest[0] == chosen[profile], f"divergence: {profile}: {rest[0]}"
        for profile, at in begun.items():  # it was killed there
            deciding[profile].append((at, max(at, each.killed_at), each))
            assert each.process.returncode == -signal.SIGKILL
    for profile, intervals in deciding.items():
        intervals.sort(key=lambda interval: interval[0])
        for (_, end, _), (begin, _, _) in itertools.pairwise(intervals):
            assert begin >= end, f"two members decide {profile} at once"
    for profile, value in chosen.items():
        whole = [v for v, each in decided[profile] if each.process.returncode == 0]
        values = [v for v, _ in decided[profile]] + [v for p, v in loaded.items() if p == profile]
        assert value in values, f"nobody has chosen {value} for {profile}"
        assert len(whole) <= 1, f"{len(whole)} members have decided {profile} and lived on"
    return sum(map(len, decided.values()))


def made_before(file: Path, operator: str, profiles: int, scenario: Scenario) -> dict[int, int]:
    """A file with the choices of a quarter of the profiles."""
    with md.Registry.local() as other:
        picked = scenario.dice.shuffled(list(range(profiles)))[: profiles // 4]
        values = {profile: scenario.dice.below(len(CANDIDATES)) for profile in picked}
        for profile, value in values.items():
            md.choose(operator, profile, CANDIDATES, lambda v=value: v, registry=other)
        choices.export(file, registry=other)
    return values


@pytest.mark.scenario("choices", share=2.0)
def test_members_that_are_killed_and_stopped_while_they_decide_agree_on_every_choice(
    scenario: Scenario, main: MainClient, tmp_path: Path
) -> None:
    dice, count = scenario.dice, scenario.figures.count
    profiles = PROFILES if scenario.seconds >= 20 else FEW
    with md.Registry.attach(main.address) as registry:
        for number in scenario.rounds():
            operator = f"choices{number}::{os.getpid()}"
            file = tmp_path / f"{number}.json"
            loaded = made_before(file, operator, profiles, scenario) if dice.below(2) else {}
            everybody: list[Chooser] = []

            def start(operator=operator, file=file, loaded=loaded, everybody=everybody) -> Chooser:
                history = tmp_path / f"{operator[:-2].replace(':', '')}-{len(everybody)}"
                words = [main.address, operator, profiles, dice.below(1 << 30), history]
                if loaded and dice.below(2):
                    words.append(file)
                everybody.append(Chooser(list(map(str, words)), history))
                return everybody[-1]

            running = [start() for _ in range(PROCESSES - 1)]  # and one that comes late
            late = True
            seen, end = -1, 0.0
            try:
                while running:
                    written = sum(each.written for each in everybody) + len(everybody)
                    if written != seen:
                        seen, end = written, time.monotonic() + 2 * HANG_SECONDS * PATIENCE
                    assert time.monotonic() < end, f"nothing goes on: {told(running, registry)}"
                    scenario.pause(30)
                    one = running[dice.below(len(running))]
                    begun = one.process.poll() is None and one.history.exists()
                    if begun and not dice.below(20):
                        one.kill()
                    elif begun and not dice.below(4):
                        os.kill(one.process.pid, signal.SIGSTOP)
                        scenario.pause(30)
                        os.kill(one.process.pid, signal.SIGCONT)
                        count("stops")
                    for each in [each for each in running if each.process.poll() is not None]:
                        each.end()
                        running.remove(each)
                        if each.process.returncode and len(everybody) < 6 * PROCESSES:
                            running.append(start())
                            count("kills")
                    if late:
                        running.append(start())
                        late = False
            finally:
                for each in running:
                    each.process.kill()
                    each.process.communicate()
            made = choices.made(operator, registry=registry)
            chosen = {each.profile: each.value for each in made}
            assert len(chosen) == len(made)
            if any(each.process.returncode == 0 for each in everybody):
                assert len(chosen) == profiles
            count("operations", judge(everybody, chosen, loaded))
            for each in made:
                assert choices.withdraw(each, registry=registry)
    with md.Registry.attach(main.address) as registry:  # which finds the dead
        _, claims = registry.dispatcher.facts.registrations_since(CLAIM, 0)
        assert not [claim for claim in claims if "choices" in claim.name]
        registry.check_invariants()
