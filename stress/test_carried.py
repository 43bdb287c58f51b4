"""Kills and stops of owners in other processes, and of their callers. See carried.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from measure import HANG_SECONDS
from scenario import Scenario

PROGRAM = Path(__file__).with_name("carried.py")


@pytest.mark.scenario("calls of other processes", share=0.5)
def test_no_call_of_another_process_is_run_twice_or_hangs(scenario: Scenario) -> None:
    # A process of its own: it forks.
    options = {"seconds": scenario.seconds, "blows": 20 * scenario.limit, "seed": scenario.seed}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        capture_output=True,
        text=True,
        timeout=6 * HANG_SECONDS + 1.5 * scenario.seconds,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)
    for how, number in found["blows"].items():
        scenario.figures.count("kills" if "kill" in how else "stops", number)
    scenario.figures.count("operations", found["calls"])
