"""Python processes killed at random moments: nothing is lost, nobody hangs. See kill_python.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from measure import HANG_SECONDS, Figures
from scenario import Scenario

KILLER = Path(__file__).with_name("kill_python.py")


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.scenario("kill -9 of anybody", share=2.0)
def test_what_killed_processes_leave_is_whole_and_all_hear_of_the_registrars_end(
    part: int, scenario: Scenario, tmp_path: Path
) -> None:
    """Its registry is its own. One process, at any moment a registrar, readers or waiters die."""
    figures = tmp_path / "figures"
    options = {"seconds": scenario.seconds, "rounds": scenario.limit, "seed": scenario.seed}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    # A process of its own: this one may have threads, and is not to be forked.
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(KILLER), *words, "--figures", str(figures)],
        env={k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"},
        capture_output=True,
        text=True,
        timeout=3 * HANG_SECONDS + 1.5 * scenario.seconds,
        check=False,
    )
    if figures.exists():
        scenario.figures.merge(Figures.from_dict(json.loads(figures.read_text())))
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
