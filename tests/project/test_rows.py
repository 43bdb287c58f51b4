"""What .ci/run makes of changes, skips, red tests and figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROWS = Path(__file__).parents[2] / ".ci" / "rows"

pytestmark = [
    pytest.mark.lint,
    pytest.mark.skipif(not ROWS.exists(), reason="this is not a checkout"),
]

if ROWS.exists():
    sys.path.insert(0, str(ROWS))
    import change as changes
    import commits
    import judge
    import ledger
    from row import Row


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    command = ["git", "-C", folder, *names, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write(folder: Path, name: str, text: str = "") -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in which nothing has changed yet, of a project with this one's layers."""
    there = tmp_path / "there"
    write(there, "pyproject.toml", (ROWS.parents[1] / "pyproject.toml").read_text())
    write(there, "native/core/x.c")
    git(there, "init", "-q", "-b", "main")
    git(there, "add", ".")
    git(there, "commit", "-qm", "one")
    git(tmp_path, "clone", "-q", "there", "here")
    return tmp_path / "here"


#: The packages and modules above those that make operators and workers.
ROOF = ("torch_compat", "config", "cli", "__main__")


@pytest.mark.parametrize(
    ("file", "packages"),
    [
        ("mdispatch/cli/ls.py", {"cli", "__main__"}),
        ("mdispatch/fake.py", {"fake", *ROOF}),
        ("mdispatch/workers/warm_up.py", {"workers", "context", "fake", "telemetry", *ROOF}),
        ("mdispatch/choices/choosing.py", None),
        ("mdispatch/facts/shared.py", None),
        ("mdispatch/__init__.py", None),
        ("tests/facts/test_x.py", {"facts"}),
        ("tests/pytorch/test_x.py", {"pytorch"}),
        ("tests/support/kinds.py", None),
        ("tests/conftest.py", None),
        ("docs/overview.md", set()),
        ("README.md", set()),
        ("native/core/x.c", None),
        ("setup.py", None),
        (".ci/run", None),
    ],
)
def test_a_change_calls_for_its_room_and_those_above_it(clone, tmp_path, file, packages):
    write(clone, file, "changed")
    found = changes.change(clone, tmp_path / "good")
    assert found.packages == (None if packages is None else frozenset(packages))


def test_the_tests_of_what_has_changed_run_wherever_their_folder_lies(tmp_path):
    for folder in ("across", "pytorch", "workers", "project"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    names = {"torch", "telemetry", "config", "across"}
    folders = changes.Change(frozenset(names), "").folders(tmp_path)
    assert folders == ("tests/across", "tests/project", "tests/pytorch", "tests/workers")


def test_a_committed_change_counts_and_a_merge_calls_for_everything(clone, tmp_path):
    write(clone, "mdispatch/cli/ls.py", "changed")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "two")
    assert changes.change(clone, tmp_path / "good").has("cli")
    assert not changes.change(clone, tmp_path / "good").has("facts")
    git(clone, "checkout", "-q", "-b", "other", "HEAD^")
    write(clone, "docs/x.md")
    git(clone, "add", ".")
    git(clone, "commit", "-qm", "three")
    git(clone, "merge", "-q", "-m", "four", "main")
    assert changes.change(clone, tmp_path / "good").packages is None


def test_on_main_itself_the_last_good_run_tells_whether_c_has_changed(clone, tmp_path):
    good = tmp_path / "good"
    assert changes.change(clone, good) == changes.Change(None, "this is main itself")
    assert changes.change(clone, good).touches("native/")
    good.write_text(git(clone, "rev-parse", "HEAD"))
    assert not changes.change(clone, good).touches("native/")
    write(clone, "native/core/x.c", "changed")
    assert changes.change(clone, good).touches("native/")
    assert not changes.change(clone, good).touches("setup.py")


def test_a_skip_that_the_table_does_not_allow_in_its_row_is_told(tmp_path):
    table = tmp_path / "skips.toml"
    table.write_text('[[skip]]\nreason = "no (bread|salt)"\nrows = ["suite/*"]\nwhy = "shops"\n')
    skips = judge.Skips(table)
    assert skips.complaint("suite/3.13/all", {"a": "no salt here", "b": "no bread"}) == ""
    assert "  a: no milk" in skips.complaint("suite/3.13/all", {"a": "no milk", "b": "no salt"})
    assert "  a: no salt" in skips.complaint("extras/all", {"a": "no salt"})


def test_a_flaky_test_is_filed_and_the_eleventh_entry_is_red(tmp_path):
    table = tmp_path / "flaky.toml"
    table.write_text("# none\n")
    flaky = judge.Flaky(table)
    word, text = flaky.file(["t.py::a[1-x]"], "suite/3.13/all", "both outputs", add=True)
    assert word == "FLAKY"
    assert text.startswith("both outputs")
    assert "t.py::a[1-x]" in judge.Flaky(table)
    word, _ = flaky.file([f"t.py::b{i}" for i in range(9)], "row", "", add=False)
    assert word == "FLAKY"
    word, text = flaky.file(["t.py::c"], "row", "", add=False)
    assert word == "FAILED"
    assert "11 entries" in text


def test_tests_are_counted_by_their_record_or_by_lines(tmp_path):
    record, log = tmp_path / "record", tmp_path / "log"
    log.write_text("3 passed, 1 failed\n== build/x\n2 passed, 0 failed, 5 skipped\n")
    row = Row("native/gcc", "make", folder="x", counts="lines")
    counted = judge.count(row, log, record)
    assert (counted.passed, counted.failed, counted.skipped) == (5, 1, 5)
    log.write_text("ok     this\nFAILED that_one (83 ms)\n5 passed, 1 failed\n")
    assert judge.failed_programs(row, log) == ["native/gcc::that_one"]
    lines = [
        ["a", "passed", 0.1, 0.2, ""],
        ["b", "failed", 0.1, 0.2, ""],
        ["c", "skipped", 0, 0, "r"],
    ]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    counted = judge.count(row, log, record)
    assert (counted.failed_tests, counted.skips) == (["b"], {"c": "r"})


def test_what_became_slower_than_the_median_is_told(tmp_path):
    for cpu in (1.0, 1.1, 9.0, 1.0, 1.0):  # one bad day is no trend
        ledger.keep(tmp_path, "row", "ok", 1, 20, 0, {"t": judge.Test("passed", cpu)})
    assert "nothing" in ledger.slower(tmp_path, ["row"])
    ledger.keep(tmp_path, "row", "ok", 1, 30, 0, {"t": judge.Test("passed", 2.0)})
    said = ledger.slower(tmp_path, ["row"])
    assert "row t: 2.0 CPU s, usually 1.0" in said
    assert "row : 30.0 CPU s, usually 20.0" in said


def test_a_function_that_is_only_ever_skipped_is_told(tmp_path):
    tests = tmp_path / "tests"
    write(
        tests, "test_x.py", "def test_a(): ...\ndef test_b(): ...\nclass T:\n  def test_c(s): ...\n"
    )
    record = {
        "tests/test_x.py::test_a[1]": judge.Test("passed"),
        "tests/test_x.py::T::test_c": judge.Test("failed"),
        "tests/test_x.py::test_b": judge.Test("skipped"),
    }
    ledger.keep(tmp_path, "row", "ok", 1, 1, 0, record)
    assert ledger.unrun(tmp_path, tests).splitlines()[1:] == ["  tests/test_x.py::test_b"]


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ("Add a thing\n\nBecause it was missing.", 0),
        ("Add a thing", 1),
        ("Add a thing\nBecause", 1),
        ("add a thing.\n\nBecause it was missing.", 1),
        (f"Add {'a very ' * 10}long subject\n\nBecause.", 1),
    ],
)
def test_a_commit_says_in_one_line_what_it_does_and_below_why(message: str, count: int) -> None:
    assert len(commits.faults(message)) == count


def test_a_commit_without_a_reason_is_named(clone: Path) -> None:
    git(clone, "commit", "-q", "--allow-empty", "-m", "Change it", "-m", "It was wrong.")
    git(clone, "commit", "-q", "--allow-empty", "-m", "Change it again")
    script = [sys.executable, ROWS / "commits.py", clone]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Change it again: there is no body" in done.stdout
    # The first commit of the clone has no body either.
    assert done.stdout.endswith("1 passed, 2 failed\n")
