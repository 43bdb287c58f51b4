"""Leaders, bridges and workers of a cluster by random schedules. See cluster_schedules.py."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from measure import HANG_SECONDS, Figures
from scenario import Scenario

PROGRAM = Path(__file__).with_name("cluster_schedules.py")


@pytest.mark.parametrize("engine", ["memory", "redis"])
@pytest.mark.scenario("cluster schedules")
def test_whatever_befalls_leaders_bridges_and_engine_each_host_has_a_prefix_and_heals(
    engine: str, scenario: Scenario, tmp_path: Path
) -> None:
    if engine == "redis":
        pytest.importorskip("redis", reason="redis-py is not installed")
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed")
    figures = tmp_path / "figures"
    options = {
        "engine": engine,
        "seconds": max(scenario.seconds, 0.1),
        "count": scenario.limit or 1_000_000,
        "seed": scenario.seed,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    # A process of its own: it takes the clock from the modules of mdispatch.cluster.
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), *words, "--figures", str(figures)],
        capture_output=True,
        text=True,
        timeout=3 * HANG_SECONDS + 2 * scenario.seconds,
        check=False,
    )
    if figures.exists():
        scenario.figures.merge(Figures.from_dict(json.loads(figures.read_text())))
    assert ran.returncode == 0, ran.stdout + ran.stderr
