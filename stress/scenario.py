"""What a scenario holds: its dice, its time, its figures, and its registrar."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from crew import CAST, Crew
from mains import MainClient
from measure import ALLOWED_NS, HANG_SECONDS, Dice, Figures

APART = Path(__file__).with_name("apart.py")


class Scenario:
    """One test's. ``name`` and ``seed`` give the choices; ``seconds`` and ``rounds`` the end."""

    def __init__(self, name: str, seed: int, seconds: float, rounds: int) -> None:
        self.name = name
        self.seed = zlib.crc32(f"{seed} {name}".encode())
        self.seconds = seconds
        self.limit = rounds
        self.dice = Dice(self.seed)
        self.figures = Figures()
        self._began = 0.0

    def begin(self) -> None:
        """Its time begins."""
        self._began = time.monotonic()

    def rounds(self) -> Iterator[int]:
        """Numbers of rounds, until the time is up or there were as many as wanted; one at least."""
        number = 0
        while True:
            yield number
            number += 1
            self.figures.count("rounds")
            if number == self.limit or self.left <= 0:
                return

    @property
    def left(self) -> float:
        """Seconds."""
        return self.seconds - (time.monotonic() - self._began)

    def pause(self, most_ms: float) -> None:
        """Up to so long: where in what the others do the next thing comes."""
        time.sleep(self.dice.below(int(most_ms * 1000) + 1) / 1e6)

    # --- judging

    def judge(
        self, title: str, who: str, end: int, came: int, sure: int = 0, queued: int = 0
    ) -> None:
        """A wait returned at ``end``; its outcome was there at ``came`` at the earliest, at
        ``sure`` at the latest (who brings it about may itself long for a processor).

        AssertionError if that took too long.
        """
        assert end >= came, f"{who}: {title} ended {(came - end) / 1e6:.3f} ms too early"
        self.figures.count("operations")
        self.figures.latency(title, end - came)
        if end - came > ALLOWED_NS:
            self.figures.count("late by the clock")
        took = end - max(came, sure) - queued
        if took > ALLOWED_NS:
            raise AssertionError(
                f"{who}: {title} took {(end - came) / 1e6:.1f} ms, {took / 1e6:.1f} ms of them "
                f"after it was there for sure and with a processor: {ALLOWED_NS / 1e6:.0f} ms "
                "are allowed"
            )

    # --- who plays

    def crew(self, address: str, cast: Sequence[str] = CAST, **more) -> Crew:
        crew = Crew(address, cast, **more)
        self.figures.count("interpreters", sum(kind.endswith("-gil") for kind in cast))
        return crew

    def play(self, crew: Crew, main: MainClient, seconds: float) -> None:
        """Hears out a crew whose members go on by themselves while ``main`` churns."""

        def late(who: str, title: str, end: int, came: int, queued: int) -> None:
            sure = main.tell("returned", began=came)["returned"]
            took = end - max(came, sure) - queued
            assert took <= ALLOWED_NS, (
                f"{who}: {title} took {(end - came) / 1e6:.1f} ms, {took / 1e6:.1f} ms of them "
                "after it was there for sure and with a processor"
            )

        crew.gather(self.figures, late, seconds)

    def apart(self, act: str, **arguments: object) -> dict:
        """Plays an act in a process of its own (see apart.py), adds its figures, and returns what
        it says beside them.
        """
        words = {
            **arguments,
            "seed": self.dice.below(1 << 30),
            "seconds": max(self.left, 0.0),
            "rounds": self.limit,
        }
        ran = subprocess.Popen(
            [sys.executable, str(APART), act, json.dumps(words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"},
            start_new_session=True,
        )
        try:
            out, err = ran.communicate(timeout=words["seconds"] + 3 * HANG_SECONDS)
        except BaseException:
            os.killpg(ran.pid, 9)  # what it has started too
            ran.communicate()
            raise
        assert ran.returncode == 0, f"{act} ended with {ran.returncode}\n{out}\n{err}"
        said: dict = json.loads(out.splitlines()[-1])
        self.figures.merge(Figures.from_dict(said.pop("figures")))
        return said
