"""Random schedules of a cluster in made-up time, judged; and that the judge finds what each rule of
the protocol is there for. stress/test_cluster.py has more of them, and those on a real Redis.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import limit

pytestmark = [pytest.mark.shared, pytest.mark.specification, pytest.mark.timeout(limit(300))]

PROGRAM = Path(__file__).parents[2] / "stress" / "cluster_schedules.py"


def play(*words: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: it takes the clock from the modules.
    return subprocess.run(
        [sys.executable, str(PROGRAM), *words],
        capture_output=True,
        text=True,
        timeout=limit(250),
        check=False,
    )


@pytest.mark.thorough
def test_no_host_leaves_the_log_and_all_heal_within_two_seconds():
    ran = play("--count", "25", "--seed", "7")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "25 schedules" in ran.stdout
    assert "wrong: nothing" in ran.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rules", "finds"),
    [("chain", "fork"), ("epoch", "hang"), ("chain epoch", "two writers")],
    ids=["chain", "epoch", "both"],
)
def test_without_a_rule_the_judge_finds_what_it_is_there_for(rules, finds):
    words = ("--count", "600", "--seed", "8", "--until", finds, "--without", *rules.split())
    ran = play(*words)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"'{finds}': 1" in ran.stdout.splitlines()[-1], ran.stdout
