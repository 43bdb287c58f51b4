"""Python processes killed at random moments: nothing is lost, nobody hangs. See kill_python.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLER = Path(__file__).with_name("kill_python.py")


@pytest.mark.parametrize("part", [0, 1])
def test_what_killed_processes_leave_is_whole_and_all_hear_of_the_main_members_end(
    part: int, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds, rounds = pytestconfig.getoption("--seconds"), pytestconfig.getoption("--rounds")
    seed = pytestconfig.getoption("--seed") * 2 + part
    options = ["--seconds", str(seconds), "--rounds", str(rounds), "--seed", str(seed)]
    environment = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
    # A process of its own: this one may have threads, and is not to be forked.
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(KILLER), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90 + 1.5 * seconds,
    )
    with capsys.disabled():
        print("\n" + ran.stdout)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
