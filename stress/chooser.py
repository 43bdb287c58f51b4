"""A process that asks for the choice of every profile, in an order of its own, and writes down what
it does: see test_choices.py.

    python stress/chooser.py ADDRESS OPERATOR PROFILES SEED HISTORY FILE

HISTORY gets a line for each step, by one write, so that a killed process has written all it did:

    D profile time          decide() begins
    E profile value time    decide() ends
    G profile value time    choose() has returned
"""

from __future__ import annotations

import os
import signal
import sys
import time

from measure import PATIENCE, Dice

import mdispatch as md
from mdispatch import choices

CANDIDATES = list(range(16))
_SUICIDES = 150  # one of so many decisions ends in the death of who decides


def main(
    address: str, operator: str, profiles: str, seed: str, history: str, file: str = ""
) -> None:
    dice, log = Dice(int(seed)), os.open(history, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, profile: int, *value: int) -> None:
        words = (what, profile, *value, time.monotonic_ns())
        os.write(log, (" ".join(map(str, words)) + "\n").encode())

    def ask(profile: int) -> int:
        def decide() -> int:
            note("D", profile)
            if not dice.below(_SUICIDES):
                os.kill(os.getpid(), signal.SIGKILL)
            if not dice.below(4):
                time.sleep(dice.below(2_000) / 1e6)
            value = dice.below(len(CANDIDATES))
            note("E", profile, value)
            return value

        return md.choose(operator, profile, CANDIDATES, decide, timeout=PATIENCE, registry=registry)

    registry = md.Registry.attach(address, timeout=PATIENCE)
    if file:
        choices.load(file, operator, CANDIDATES, registry=registry)
    for profile in dice.shuffled(list(range(int(profiles)))):
        note("G", profile, ask(profile))
    registry.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
