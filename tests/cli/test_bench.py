"""``mdispatch bench``: its answers, and that each ratio is of one run. No test here depends on how
fast anything is.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command_line import mdispatch
from commands import environment
from patience import limit
from rich.console import Console

import mdispatch as md
from mdispatch.cli.app import app
from mdispatch.cli.bench import command, jobs, measure, peers, plot, running
from mdispatch.cli.bench import figures as made
from mdispatch.cli.bench.figures import Answer, LeftOut
from mdispatch.cli.bench.measure import Settings
from mdispatch.cli.bench.plot import draw
from mdispatch.cli.bench.show import Measured, listed
from mdispatch.cli.columns import say_figures, styled

ROOT = Path(__file__).resolve().parents[2]
FIGURE = {"what", "peer", "unit", "median", "best", "low", "high", "rounds", "processes"}
FIGURE |= {"aim", "at_least", "missed", "unsteady"}


def bench(*words: str) -> dict[str, Any]:
    done = mdispatch("bench", *words, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


# --- how time is taken ----------------------------------------------------------------------------


class Clock:
    """Jobs that take a given time, and note the order in which they ran."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.slower = 1.0

    def work(self, name: str, seconds: float) -> measure.Work:
        def run(count: int) -> float:
            self.order.append(name)
            return count * seconds * self.slower

        return run


def turns(clock: Clock, rounds: int) -> dict[str, tuple[list[float], list[float]]]:
    works = {"plain": clock.work("plain", 1e-6), "a": clock.work("a", 3e-6)}
    works["b"] = clock.work("b", 5e-6)
    against = {"a": "plain", "b": "plain"}
    return measure.in_turns(works, against, Settings(rounds, quick=True), 50)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no measurement is repeated because of another process."""
    monkeypatch.setattr(measure, "_switches", lambda: 0)


@pytest.mark.dear
def test_each_work_runs_right_after_the_one_that_it_is_compared_with(quiet):
    clock = Clock()
    times = turns(clock, 4)
    one, other = ["a", "plain", "a"], ["b", "plain", "b"]  # each runs once before it counts
    assert clock.order[-24:] == 2 * [*one, *other, *other, *one]
    assert {name: (len(a), len(b)) for name, (a, b) in times.items()} == {"a": (4, 4), "b": (4, 4)}


@pytest.mark.dear
def test_a_machine_that_gets_slower_changes_seconds_and_no_ratio(quiet):
    clock = Clock()

    class Slowing(Clock):
        def work(self, name: str, seconds: float) -> measure.Work:
            plain = clock.work(name, seconds)

            def run(count: int) -> float:
                if name == "plain" and clock.order.count("plain") > 12:
                    clock.slower *= 1.5
                return plain(count)

            return run

    times = turns(Slowing(), 6)
    assert max(times["a"][0]) > 3 * min(times["a"][0])
    figure = made.ratio("a", *times["a"])
    assert figure.values == pytest.approx([3.0] * 6)
    assert (figure.median, figure.low, figure.high) == pytest.approx((3.0, 3.0, 3.0))


def test_what_was_disturbed_is_taken_again_and_counts_when_it_always_is(monkeypatch):
    switches = iter([0, 1, 1, 2, 2, 2])
    monkeypatch.setattr(measure, "_switches", lambda: next(switches))
    taken = iter("abcd")
    assert measure.undisturbed(lambda: next(taken)) == "c"
    busy = iter(range(100))
    monkeypatch.setattr(measure, "_switches", lambda: next(busy))
    rounds = iter(range(100))
    assert measure.undisturbed(lambda: next(rounds)) == measure._TRIES - 1


def test_a_thread_that_has_to_leave_its_processor_knows():
    before = measure._switches()
    end = time.monotonic() + limit(30)
    allowed = os.sched_getaffinity(0)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, {min(allowed)})
        os.sched_setaffinity(0, {min(allowed)})
        while measure._switches() == before:
            assert time.monotonic() < end
    finally:
        os.sched_setaffinity(0, allowed)
        busy.kill()
        busy.wait()


def test_inner_loops_are_as_long_as_a_reading_of_the_clock_is_worth():
    clock = Clock()
    assert measure.loops_for(clock.work("a", 1e-6), 1e-3) == 1024
    assert measure.loops_for(clock.work("a", 1.0), 1e-3) == 1


def test_what_is_timed_is_run_so_many_times_and_with_code_of_its_own():
    calls: list[int] = []
    one = measure.compiled("f(x)", {"f": calls.append, "x": 7})
    other = measure.compiled("f(x)", {"f": calls.append, "x": 8})
    assert one(3) > 0
    assert calls == [7, 7, 7]
    assert one.__code__ is not other.__code__


def test_the_collector_rests_while_time_is_taken_and_runs_on_afterwards():
    import gc

    seen: list[bool] = []
    with measure.without_collector():
        seen.append(gc.isenabled())
    assert seen == [False]
    assert gc.isenabled()


def test_settings_travel_to_the_processes_that_measure(monkeypatch):
    asked = Settings(7, True, ("plum", "ovld"), 3)
    monkeypatch.setenv(measure.ENVIRONMENT, asked.text())
    assert measure.settings() == asked
    assert (asked.rounds_of(50), Settings(quick=True).rounds_of(50)) == (7, 5)
    assert Settings().rounds_of(50) == 50


# --- figures --------------------------------------------------------------------------------------


def test_a_figure_is_the_median_of_the_rounds_and_its_best_that_of_the_smallest():
    figure = made.ratio("a", [2.0, 6.0, 40.0, 8.0], [1.0, 2.0, 4.0, 4.0])
    assert (figure.median, figure.best, figure.rounds) == (2.5, 2.0, 4)
    assert (figure.low, figure.high) == (2.0, 4.75)
    assert figure.unsteady


@pytest.mark.parametrize(
    ("aim", "at_least", "missed"),
    [
        (None, False, False),
        (2.0, False, True),
        (3.0, False, False),
        (2.0, True, False),
        (3.0, True, True),
    ],
)
def test_an_aim_is_the_largest_value_wanted_or_the_smallest(aim, at_least, missed):
    assert made.figure("a", [2.5], "x", aim=aim, at_least=at_least).missed is missed


def test_processes_are_merged_over_their_rounds_and_the_best_is_that_of_the_middle_one():
    answers = [
        Answer((made.figure("a", values, "us", aim=9.0, peer="p"),), (LeftOut("q", "gone"),))
        for values in ([1.0, 2.0], [3.0, 4.0], [50.0, 60.0])
    ]
    merged = made.merged(answers)
    (figure,) = merged.figures
    assert (figure.median, figure.best, figure.rounds, figure.processes) == (3.5, 3.0, 6, 3)
    assert (figure.aim, figure.peer, figure.unit) == (9.0, "p", "us")
    assert merged.left_out == (LeftOut("q", "gone"),)


def test_what_a_process_reports_arrives_as_it_was(capfd):
    found = [made.ratio("a", [1.0, 2.0], [2.0, 2.0], aim=1.0, at_least=True, peer="p")]
    made.report([*found, LeftOut("q", "not installed")])
    assert made.reported(capfd.readouterr().out) == Answer(
        tuple(found), (LeftOut("q", "not installed"),)
    )
    with pytest.raises((ValueError, TypeError, KeyError)):
        made.reported('{"figures": [{"what": "a"}], "left_out": []}')


# --- peers ----------------------------------------------------------------------------------------

#: The peers that cannot do all of it.
UNFIT = {"ovld", "plum", "uarray", "__array_function__", "torch custom_op"}
HERE = [each for each in (peers.PLAIN, *peers.PEERS) if not each.missing]


@pytest.mark.parametrize("shape", peers.SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("peer", HERE, ids=lambda peer: peer.name)
def test_every_peer_that_is_here_runs_the_kernel_of_the_job(peer, shape):
    if peer.module == "torch":
        pytest.skip("what PyTorch registers stays in the process")
    try:
        case = peer.case(shape)
    except peers.UnfitError:
        assert peer.name in UNFIT
        return
    names = {"f": case.f, "x": case.x, "y": case.y}
    result = eval(case.call or shape.call, names)
    if shape.kernel is shape.python:
        assert result is case.x
    elif peer is not peers.PLAIN:
        assert result is shape.kernel(*(case.x, case.y)[: shape.arity])


def test_twenty_kernels_are_at_twenty_keys():
    assert len(peers.KEYS) == len(set(peers.KEYS)) == 20


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """One run of calls, with peers that need nothing and one that is made to be missing."""
    return bench("calls", "--rounds", "3", "--peers", "mdispatch,dict by type,singledispatch")


@pytest.mark.dear
def test_the_json_has_its_keys(answer):
    assert answer["format"] == 1
    assert set(answer) == {"format", "about", "quick", "load", "busy", "began", "seconds", "jobs"}
    assert answer["quick"] is True
    assert len(answer["load"]) == 2
    (job,) = answer["jobs"]
    assert set(job) == {"job", "what", "figures", "left_out", "missing", "failure"}
    assert (job["job"], job["missing"], job["failure"]) == ("calls", None, None)
    for figure in job["figures"]:
        assert set(figure) == FIGURE
        assert figure["low"] <= figure["median"] <= figure["high"]
        assert (figure["missed"] is None) == (figure["aim"] is None)


def test_every_peer_has_its_ratio_of_every_shape_from_the_rounds_of_one_run(answer):
    (job,) = answer["jobs"]
    found = {(each["peer"], each["what"]): each for each in job["figures"] if each["peer"]}
    for shape in peers.SHAPES:
        plain = found.pop(("plain call", shape.what))
        assert (plain["unit"], plain["rounds"]) == ("ns", 12)  # before each of four, three times
        for peer in ("plain call again", "mdispatch", "dict by type", "singledispatch"):
            figure = found.pop((peer, shape.what))
            assert (figure["unit"], figure["rounds"], figure["processes"]) == ("x", 3, 1)
    assert found == {}
    compared = {each["what"]: each for each in job["figures"] if not each["peer"]}
    assert compared["dict by type / mdispatch, 1 arg"]["at_least"] is True
    assert compared["mdispatch: keyword, above 1 arg"]["unit"] == "+x"


@pytest.mark.dear
def test_a_peer_that_is_not_installed_is_said_and_the_others_are_measured(monkeypatch):
    monkeypatch.setattr(peers.Ovld, "module", "no_such_module")
    asked = Settings(1, True, ("ovld", "dict by type"))
    from mdispatch.cli.bench.calls import figures

    found = list(figures(asked))
    assert LeftOut("ovld", "not installed (pip install ovld)") in found
    assert {each.peer for each in found if not isinstance(each, LeftOut)} == {
        "plain call",
        "plain call again",
        "dict by type",
    }


@pytest.mark.dear
def test_a_peer_that_fails_costs_its_own_rows_only(monkeypatch):
    def broken(self, shape, types):
        raise TypeError("another version")

    monkeypatch.setattr(peers.Singledispatch, "function", broken)
    from mdispatch.cli.bench.calls import figures

    found = list(figures(Settings(1, True, ("singledispatch", "dict by type"))))
    reasons = {each for each in found if isinstance(each, LeftOut)}
    assert LeftOut("singledispatch, 1 arg", "TypeError: another version") in reasons
    assert len(reasons) == len(peers.SHAPES)


@pytest.mark.thorough
def test_every_job_answers_or_says_why_not():
    names = ["wake-up", "import"]
    names += ["own", "rebuild", "parallel-calls", "parallel", "find", "providers", "verify"]
    names += ["missing", "memory"]
    found = bench(*names, "--rounds", "1")["jobs"]
    assert [each["job"] for each in found] == names
    for each in found:
        assert each["failure"] is None
        assert each["figures"] or each["left_out"], each["job"]
        assert len({figure["what"] for figure in each["figures"]}) == len(each["figures"])


def test_what_the_rebuilding_job_changes_is_as_before_afterwards(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    rebuild = import_module("benchmarks.rebuild")
    library = md.Library("rebuild", "DEF")
    call, change = rebuild._operator(library, "unchanged", 2)
    call(peers.TYPES[0]())
    before = md.default_registry().registrations("rebuild::unchanged")
    version = md.default_registry().dispatcher.entry("rebuild::unchanged")._state
    change()
    assert md.default_registry().registrations("rebuild::unchanged") == before
    call(peers.TYPES[0]())
    assert md.default_registry().dispatcher.entry("rebuild::unchanged")._state is not version
    library.close()


def test_jobs_of_the_repository_are_found_from_its_folder_and_said_to_be_missing_elsewhere(
    tmp_path, monkeypatch
):
    job = jobs.Job("find-c", "benchmarks.find_c", "")
    assert jobs.checkout() == ROOT
    assert job.missing == ""
    assert "there is no benchmarks.no_such" in jobs.Job("x", "benchmarks.no_such", "").missing
    monkeypatch.setattr(jobs, "__file__", str(tmp_path / "mdispatch" / "cli" / "bench" / "jobs.py"))
    monkeypatch.chdir(tmp_path)
    assert "checkouts of the repository" in job.missing
    outcome = running.run([job], Settings(1, True), lambda: None).outcomes[0]
    assert (outcome.missing, outcome.answer.figures) == (job.missing, ())


def test_without_names_only_jobs_that_are_here_run_and_the_list_says_where_the_others_are(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(jobs, "__file__", str(tmp_path / "mdispatch" / "cli" / "bench" / "jobs.py"))
    monkeypatch.chdir(tmp_path)
    ran: list[str] = []

    def nothing(wanted, asked, step):
        ran.extend(job.name for job in wanted)
        return running.Run(asked, (), (0.0, 0.0), 0.0, 0.0)

    monkeypatch.setattr(command, "run", nothing)
    assert CliRunner().invoke(app, ["bench", "--json"]).exit_code == 0
    assert ran == ["calls", "wake-up", "import"]
    listed = CliRunner().invoke(app, ["bench", "--list"]).output
    assert "jobs of the repository  (only in a checkout of it)" in listed


@pytest.mark.dear
def test_the_jobs_of_the_repository_have_what_a_job_is_asked_for(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    found = [job.module for job in jobs.JOBS if job.module.startswith("benchmarks.")]
    assert len(found) == 18
    for module in found:
        assert callable(import_module(module).figures), module


@pytest.mark.dear
def test_a_job_that_fails_is_told_with_what_it_said_and_the_others_go_on(tmp_path, monkeypatch):
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "mdispatch.h").touch()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "failing.py").write_text(
        "import os\nprint('noise', flush=True)\ndef figures(asked):\n    os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "benchmarks" / "working.py").write_text(
        "from mdispatch.cli.bench.figures import figure\nprint('noise')\n"
        "def figures(asked):\n    yield figure('a', [asked.rounds], 'B')\n"
    )
    monkeypatch.setattr(jobs, "__file__", str(tmp_path / "mdispatch" / "cli" / "bench" / "jobs.py"))
    both = [jobs.Job(name, f"benchmarks.{name}", "") for name in ("failing", "working")]
    steps: list[None] = []
    run = running.run(both, Settings(5, True), lambda: steps.append(None))
    failed, worked = run.outcomes
    assert failed.failure is not None
    assert (failed.failure.status, failed.failure.said) == (-9, "noise")
    assert [each.median for each in worked.answer.figures] == [5]
    assert len(steps) == 2
    assert Measured(run).failed
    assert json.loads(Measured(run).json())["jobs"][0]["failure"]["status"] == -9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cals",), "Did you mean calls?"),
        (("--peers", "plam"), "Did you mean plum?"),
        (("--rounds", "0"), "is not a number from 1 to"),
        (("--plot", "x.gif"), "has to end in .html or .png"),
        (("--plot", "no/such/folder/x.html"), "there is no folder"),
    ],
)
def test_unusable_arguments_end_it_before_anything_is_measured(words, said):
    done = CliRunner().invoke(app, ["bench", *words])
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_the_list_names_all_jobs_and_peers():
    done = CliRunner().invoke(app, ["bench", "--list"])
    assert done.exit_code == 0
    listed = [line.split("  ")[1] for line in done.output.splitlines() if line.startswith("  ")]
    assert listed == [job.name for job in jobs.JOBS] + [peer.name for peer in peers.PEERS]


@pytest.mark.dear
def test_people_see_ratios_aims_and_what_was_left_out_on_lines_that_fit(tmp_path):
    words = ["calls", "--quick", "--rounds", "2", "--peers", "mdispatch,uarray"]
    page = tmp_path / "bench.html"
    drawn = plot.refusal(str(page)) is None
    done = mdispatch("bench", *words, *(["--plot", str(page)] if drawn else []))
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    for text in ("plain call", "mdispatch: 1 arg", "<= 1.3", "left out:", "rough: --quick"):
        assert text in done.stdout, text
    if drawn:
        html = page.read_text()
        Closed().feed(html)
        assert "mdispatch bench" in html
        assert "<script" not in html


class Closed(HTMLParser):
    """Every element that is opened is closed, in order."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def measured() -> running.Run:
    """A run with everything that can be drawn in it."""
    figures = (
        made.ratio("1 arg", [3e-6, 4e-6], [1e-6, 1e-6], aim=2.2, peer="mdispatch"),
        made.figure("1 arg", [1e-6, 1e-6], "ns", scale=1e9, peer="plain call"),
        made.figure("above", [-0.2, 0.1], "+x", aim=0.3),
        made.figure("a & b <c> $x_1$", [1500.0], "B", aim=1024),
    )
    answer = Answer(figures, (LeftOut("plum", "not installed"),))
    outcomes = (
        running.Outcome(jobs.JOBS[0], answer),
        running.Outcome(jobs.JOBS[1], failure=running.Failure(-9, "killed")),
        running.Outcome(jobs.JOBS[2], missing="not here"),
    )
    about = {"mdispatch": "0", "Python": "3", "system": "s", "processors": "2"}
    return running.Run(Settings(), outcomes, (0.1, 0.2), 0.0, 1.0, about)


def test_a_page_shows_missed_aims_and_what_was_left_out(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    draw(measured(), str(tmp_path / "bench.html"))
    html = (tmp_path / "bench.html").read_text()
    Closed().feed(html)
    assert html.count("missed") == 2
    assert html.count("a &amp; b &lt;c&gt; $x_1$") == 2, "in the drawing and in its table"
    assert "<svg" in html
    assert "://" not in html, "nothing is loaded"
    assert "<script" not in html
    for text in ("plum: not installed", "wake-up: killed", "import: not here"):
        assert text in html, text


def test_a_picture_is_drawn_by_matplotlib(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    draw(measured(), str(tmp_path / "bench.png"))
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["html", "png"])
def test_without_matplotlib_a_plot_is_refused_with_what_to_install(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["bench", "calls", "--plot", str(tmp_path / f"bench.{kind}")])
    assert done.exit_code == 2
    said = " ".join(done.output.replace("│", " ").split())
    assert "matplotlib, which is not installed: pip install 'mdispatch[plot]'" in said
    assert list(tmp_path.iterdir()) == []


def test_figures_with_a_peer_and_no_aim_are_in_its_table_only():
    figures = measured().outcomes[0].answer.figures
    assert [each.what for each in listed(figures)] == ["1 arg", "above", "a & b <c> $x_1$"]
    assert not figures[2].missed


@pytest.mark.parametrize("length", range(30, 60))
def test_a_name_of_any_length_has_its_figures_on_a_line(length):
    console = Console(file=io.StringIO(), width=80)
    headings = ("", "median", "best", "half of all", "aim", "")
    figures = ["1234.5 ms", "11.5", "10.0 to 15.2", "", ""]
    say_figures(console, headings, [((*map(styled, ["x" * length, *figures]),), ())], left=1)
    *_, last = console.file.getvalue().splitlines()
    assert last.split()[-6:-3] == ["1234.5", "ms", "11.5"]


def test_python_dash_m_benchmarks_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        check=True,
    )
    assert done.stdout == CliRunner().invoke(app, ["bench", "--list"]).output
