"""``python -m benchmarks``: what its jobs say, and that each ratio is of one run. No test here
depends on how fast anything is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pyperf
import pytest
from commands import environment
from patience import limit

import mdispatch as md

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT))  # the benchmarks are no part of the package

from benchmarks import peers  # noqa: E402
from benchmarks.__main__ import JOBS  # noqa: E402

#: One process for each benchmark, which runs it once.
ONCE = ("--quick", "--debug-single-value")


def ran(
    *words: object, code: str = "", folder: Path = ROOT, path: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m benchmarks`` with these words, or the code, in a folder of such jobs."""
    start = ("-c", code) if code else ("-m", "benchmarks")
    found = os.pathsep.join(filter(None, (str(folder), path, os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, *start, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment() | {"PYTHONPATH": found},
        timeout=limit(110),
        check=False,
    )


# --- the table ------------------------------------------------------------------------------------

#: Values that it was given, so it measures nothing. The name is one of those that main() knows.
SAMPLE = """
from benchmarks.job import Job
job = Job()
these = job.values("these", [2.0, 6.0, 40.0, 8.0])
those = job.values("those", [1.0, 2.0, 4.0, 4.0])
job.values("room", [1500.0], "byte", aim=1024)
job.values("calls", [299.85], "integer")
job.ratio("no aim", these, those)
job.ratio("at most 2", these, those, aim=2.0)
job.ratio("at most 3", these, those, aim=3.0)
job.ratio("at least 2", these, those, aim=2.0, at_least=True)
job.ratio("at least 3", these, those, aim=3.0, at_least=True)
job.ratio("twice", these, those, factor=2.0)
job.more("more", these, those)
other = job.values("other", [3.0])
job.above("above, in ratios", (these, those), (those, other), aim=0.3)
job.left_out("plum", "not installed")
job.end()
"""
#: Looks for a variable of mdispatch's where it measures.
LOOKING = """
import os
from benchmarks.job import Job
job = Job()
job.statement("look", "pass", "found", lambda: os.environ["MDISPATCH_CALLS"], aim=1.0)
job.end()
"""
FAILING = "import os\nprint('noise', flush=True)\nos.kill(os.getpid(), 9)\n"
RUNS = """
import sys
from benchmarks import __main__ as benchmarks
benchmarks.JOBS = {"failing": "it fails", "sample-job": "it works"}
if sys.argv[1:2] == ["looking"]:
    benchmarks.JOBS = {"looking": "it looks"}
sys.exit(benchmarks.main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with other jobs."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "benchmarks").mkdir()
    for name in ("__init__", "__main__", "job"):
        shutil.copy(ROOT / "benchmarks" / f"{name}.py", folder / "benchmarks")
    (folder / "benchmarks" / "sample_job.py").write_text(SAMPLE)
    (folder / "benchmarks" / "failing.py").write_text(FAILING)
    (folder / "benchmarks" / "looking.py").write_text(LOOKING)
    return folder


@pytest.fixture(scope="module")
def sample(made: Path) -> dict[str, str]:
    """The lines of the table, by what they are about."""
    done = ran("sample-job", "--append", "run.json", code=RUNS, folder=made)
    assert done.returncode == 0, done.stderr
    lines = [re.split(r"  +", line.strip()) for line in done.stdout.splitlines()]
    return {first: " ".join(rest) for first, *rest in lines if first}


def test_a_ratio_is_that_of_the_medians_and_its_best_that_of_the_smallest(sample):
    assert re.fullmatch(r"2\.33 \+- [\d.]+ 2\.00", sample["no aim"])
    assert re.fullmatch(r"4\.67 \+- [\d.]+ 4\.00", sample["twice"])


def test_a_difference_is_that_of_medians_or_of_ratios(sample):
    assert re.fullmatch(r"4\.00 sec \+- [\d.]+ sec 1\.00 sec", sample["more"])
    said = sample["above, in ratios"]
    assert re.fullmatch(r"\+1\.33 \+- [\d.]+ \+1\.67 <= \+0\.30 missed", said)


@pytest.mark.parametrize(
    ("what", "verdict"),
    [
        ("at most 2", "<= 2.00 missed"),
        ("at most 3", "<= 3.00 met"),
        ("at least 2", ">= 2.00 met"),
        ("at least 3", ">= 3.00 missed"),
        ("room", "<= 1024 bytes missed"),
    ],
)
def test_an_aim_is_the_largest_value_wanted_or_the_smallest(sample, what, verdict):
    assert sample[what].endswith(verdict)


def test_the_table_counts_aims_and_names_what_was_left_out(sample):
    assert "4 of 6 aims missed" in sample
    assert "left out: plum: not installed" in sample
    assert sample["calls"].startswith("300 ")


def test_values_are_kept_in_a_file_of_pyperf(sample, made):
    found = {each.get_name(): each for each in pyperf.BenchmarkSuite.load(str(made / "run.json"))}
    assert {*found} == {
        f"sample-job: {each}" for each in ("these", "those", "room", "calls", "other")
    }
    assert found["sample-job: these"].get_values() == (2.0, 6.0, 40.0, 8.0)
    assert found["sample-job: room"].get_unit() == "byte"


def test_a_job_that_fails_is_told_with_what_it_said_and_the_others_go_on(made):
    done = ran(code=RUNS, folder=made)
    assert done.returncode == 1
    assert "noise" in done.stdout
    assert "failing failed with status -9" in done.stderr
    assert "--- sample-job: it works\n" in done.stdout
    assert "4 of 6 aims missed" in done.stdout


@pytest.mark.dear
def test_variables_of_mdispatch_hold_in_the_processes_that_measure(made, monkeypatch):
    monkeypatch.setenv("MDISPATCH_CALLS", "python")
    done = ran("looking", *ONCE, code=RUNS, folder=made)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^look .* met$", done.stdout, re.M)


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
    result = eval(peer.call(shape), {"f": case.f, "x": case.x, "y": case.y})
    if shape.kernel is shape.python:
        assert result is case.x
    elif peer is not peers.PLAIN:
        assert result is shape.kernel(*(case.x, case.y)[: shape.arity])


def test_twenty_kernels_are_at_twenty_keys():
    assert len(peers.KEYS) == len(set(peers.KEYS)) == 20


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One run of calls, where ovld is hidden and plum is another version."""
    folder = tmp_path_factory.mktemp("calls")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['ovld'] = None\n")
    (folder / "plum.py").write_text("def Dispatcher():\n    raise TypeError('another version')\n")
    names = "mdispatch,dict by type,singledispatch,ovld,plum"
    done = ran("calls", *ONCE, "--peers", names, path=str(folder))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
@pytest.mark.dear
def test_every_peer_has_its_ratio_of_every_shape_from_one_run(calls):
    for shape in peers.SHAPES:
        assert f"calls: plain call, {shape.what}: " in calls
        for peer in ("plain call again", "mdispatch", "dict by type", "singledispatch"):
            assert (
                len(re.findall(f"^{shape.what}: {peer} / plain call +[\\d.,]+ ", calls, re.M)) == 1
            )
    assert re.search(r"^1 arg: dict by type / mdispatch +[\d.,]+ .* >= 1\.00 ", calls, re.M)
    assert re.search(r"^keyword: mdispatch, above 1 arg +[+-][\d.,]+ ", calls, re.M)


@pytest.mark.dear
@pytest.mark.thorough
def test_a_peer_that_is_not_installed_is_said_and_the_others_are_measured(calls):
    assert "left out: ovld: not installed (pip install ovld)\n" in calls
    assert "ovld /" not in calls


@pytest.mark.dear
@pytest.mark.thorough
def test_a_peer_that_fails_costs_its_own_rows_only(calls):
    for shape in peers.SHAPES:
        assert f"left out: plum, {shape.what}: TypeError: another version\n" in calls
    assert "plum /" not in calls


# --- the jobs -------------------------------------------------------------------------------------


@pytest.mark.dear
def test_every_job_is_a_script_with_a_sentence_about_it():
    for name in JOBS:
        job = import_module(f"benchmarks.{name.replace('-', '_')}")
        assert callable(job.main), name
        assert job.__doc__, name


@pytest.mark.long
@pytest.mark.parametrize(
    "name", [each for each in JOBS if each not in ("calls", "cluster") and "torch" not in each]
)
def test_every_job_answers(name):
    done = ran(name, *ONCE)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ of \d+ aims missed; rough: --quick$", done.stdout, re.M), done.stdout
    assert done.stdout.count("\n") > 4


@pytest.mark.thorough
@pytest.mark.dear
def test_the_processes_that_measure_know_that_it_is_rough(tmp_path):
    done = ran("own", *ONCE, "--append", tmp_path / "run.json")
    assert done.returncode == 0, done.stderr
    found = pyperf.BenchmarkSuite.load(str(tmp_path / "run.json")).get_benchmark_names()
    assert "own: 200 other operators" in found


def test_what_the_rebuilding_job_changes_is_as_before_afterwards():
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


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("cals",), 2, "there is no job 'cals'"),
        (("calls", "--peers", "plam"), 1, "there is no peer 'plam'"),
        (("memory", "--values", "0"), 1, "--values"),
    ],
)
def test_unusable_arguments_end_it_before_anything_is_measured(words, status, said):
    done = ran(*words)
    assert done.returncode == status
    assert said in done.stderr
    assert "aims" not in done.stdout


def test_the_help_names_all_jobs_and_that_of_calls_all_peers():
    told = ran("--help").stdout
    assert [line.split()[0] for line in told.splitlines() if line.startswith("  ")][
        : len(JOBS)
    ] == [*JOBS]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.calls", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    for peer in peers.PEERS:
        assert peer.name in " ".join(done.stdout.split())
