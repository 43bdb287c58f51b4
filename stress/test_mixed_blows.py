"""Kills, stops and robberies of everybody, with a disk that fills up. See mixed_blows.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from measure import HANG_SECONDS, Figures
from scenario import Scenario

PROGRAM = Path(__file__).with_name("mixed_blows.py")


@pytest.mark.scenario("mixed blows", share=2.0)
def test_whoever_is_killed_stopped_or_robbed_the_registries_keep_what_was_acknowledged(
    scenario: Scenario, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if request.config.option.seconds < 60:
        pytest.skip("this takes a minute and more: only with --seconds 60")
    figures = tmp_path / "figures"
    options = {"seconds": scenario.seconds, "blows": 8 * scenario.limit, "seed": scenario.seed}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    # A process of its own: it takes a disk of its own, and forks.
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), *words, "--figures", str(figures)],
        capture_output=True,
        text=True,
        timeout=6 * HANG_SECONDS + 1.5 * scenario.seconds,
        check=False,
    )
    if figures.exists():
        scenario.figures.merge(Figures.from_dict(json.loads(figures.read_text())))
    assert ran.returncode == 0, ran.stdout + ran.stderr
