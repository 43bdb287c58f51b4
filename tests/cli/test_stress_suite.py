"""The stress suite says what failed and how to replay it, and plots the results."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from patience import limit

pytestmark = [pytest.mark.either_binding, pytest.mark.thorough]

STRESS = Path(__file__).parents[2] / "stress"
DRAWS = find_spec("matplotlib") is not None
with_matplotlib = pytest.mark.skipif(not DRAWS, reason="matplotlib is not installed")

SCENARIOS = """
import os, signal
import pytest

@pytest.mark.scenario("thrown")
@pytest.mark.parametrize("part", [0, 1])
def test_thrown(part, scenario, main):
    for _ in scenario.rounds():
        scenario.judge("a wait", "nobody", 2_000, 1_000)
    assert part == 0, f"the dice say {scenario.dice.below(1 << 30)}"

@pytest.mark.scenario("crash")
def test_crash(scenario):
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.scenario("late")
def test_late(scenario):
    scenario.figures.count("left out: the sea, since it is far")
    scenario.judge("a wait", "somebody", 400_000_000, 0, 50_000_000)

@pytest.mark.scenario("left out")
def test_left_out(scenario):
    pytest.skip("for no reason")
"""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The suite's files with other scenarios."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "stress").mkdir()
    for file in (*STRESS.glob("*.py"), STRESS / "plot.html", STRESS / "plot.css"):
        if not file.name.startswith("test_"):
            shutil.copy(file, folder / "stress")
    (folder / "stress" / "test_injected.py").write_text(SCENARIOS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def play(suite: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=suite,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=limit(110),
        check=False,
    )


@pytest.fixture(scope="module")
def played(suite: Path) -> str:
    plot = ("--plot", "page.html") if DRAWS else ()
    ran = play(suite, "stress", "-n", "2", "--seed", "71", "--rounds", "3", *plot)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    return ran.stdout


def replays(out: str) -> dict[str, tuple[str, str]]:
    """By scenario: the worker, and the command."""
    found = re.findall(r"^FAILED: (.*), on worker (\S+), seed 71; again:\n +(.*)$", out, re.M)
    return {title: (worker, command) for title, worker, command in found}


@pytest.mark.thorough
def test_a_failure_names_seed_scenario_and_worker_and_its_command_fails_in_the_same_way(
    suite: Path, played: str
) -> None:
    worker, command = replays(played)["thrown"]
    assert re.fullmatch(r"gw\d", worker)
    assert "--seed 71" in command
    assert "test_thrown[1]" in command
    said = re.search(r"the dice say \d+", played)
    assert said is not None
    ran = play(suite, *shlex.split(command)[1:], "-p", "no:xdist")
    assert ran.returncode == 1
    assert said[0] in ran.stdout  # the same random choices
    assert replays(ran.stdout)["thrown"][0] == "alone"


@pytest.mark.thorough
def test_a_worker_that_dies_is_told_with_its_command(played: str) -> None:
    titles = [title for title in replays(played) if "test_crash" in title]
    assert len(titles) == 1
    assert "test_crash" in replays(played)[titles[0]][1]


def test_a_wait_that_returns_too_late_fails(played: str) -> None:
    assert "late" in replays(played)
    assert "400.0 ms, 350.0 ms of them after it was there for sure" in played


def test_the_table_counts_rounds_operations_and_what_was_skipped(played: str) -> None:
    row = next(line for line in played.splitlines() if line.startswith("thrown  "))
    assert row.split()[1:3] == ["6", "6"]  # of both parts
    assert row.endswith("FAILED")
    assert "skipped: left out, 1 times: for no reason" in played


def test_what_a_scenario_left_out_is_told(played: str) -> None:
    assert "\nlate: left out: the sea, since it is far\n" in played


@with_matplotlib
def test_the_page_shows_the_same_and_loads_nothing(suite: Path, played: str) -> None:
    text = (suite / "page.html").read_text()
    opened: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not {"src", "href"} & {name for name, _ in attrs}
            if tag != "meta":
                opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Reader().feed(text)
    assert opened == []
    assert "://" not in text
    assert text.count("<svg") == 1
    assert "mathdefault" not in text
    for words in ("thrown", "crash", "left out", "--seed 71", "test_thrown[1]"):
        assert words in text
    assert "page.html" in played


@pytest.mark.thorough
def test_a_run_without_failures_needs_no_xdist_and_says_so(suite: Path) -> None:
    ran = play(suite, "stress", "-p", "no:xdist", "-k", "thrown and 0", "--seconds", "0.1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "FAILED" not in ran.stdout
    assert re.search(r"^stress: .* --seed \d+$", ran.stdout, re.M)


@pytest.mark.parametrize(
    ("file", "words"),
    [("run.gif", "end in .html or .png"), ("nowhere/run.html", "there is no folder")],
)
def test_what_cannot_be_drawn_is_refused_before_the_run(suite: Path, file, words) -> None:
    ran = play(suite, "stress", "--plot", file)
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert words in ran.stderr


@pytest.mark.parametrize("file", ["run.png", "run.html"])
def test_a_plot_without_matplotlib_says_what_to_install(suite: Path, file: str) -> None:
    (suite / "hide_matplotlib.py").write_text("import sys; sys.modules['matplotlib'] = None\n")
    ran = play(suite, "stress", "--plot", file, "-p", "hide_matplotlib")
    assert ran.returncode == pytest.ExitCode.USAGE_ERROR
    assert "pip install matplotlib" in ran.stderr


@with_matplotlib
def test_a_picture_is_drawn(suite: Path) -> None:
    words = ("-p", "no:xdist", "-k", "thrown and 0", "--rounds", "2", "--plot", "run.png")
    ran = play(suite, "stress", *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (suite / "run.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
