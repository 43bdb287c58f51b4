"""The Python and the commands of docs/overview.md run as they stand."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
from pathlib import Path

import following
import pytest
from patience import limit

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "overview.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


#: What a snippet needs that is not there where nothing is shared, and what it ends with there.
ONLY_SHARED = {
    "Registry.create(": ("a registry with a name", "NotSharedError: A registry with a name")
}
#: Where children of a pool import the module themselves, it tells that they share nothing.
if multiprocessing.get_all_start_methods()[0] != "fork":
    ONLY_SHARED["ProcessPoolExecutor("] = "workers that compare", "registers for itself"


def run(
    code: str, folder: Path, *, name: str = "snippet.py", **more: str
) -> subprocess.CompletedProcess[str]:
    (folder / name).write_text(code)
    return subprocess.run(
        [sys.executable, "-W", "error", str(folder / name)],
        capture_output=True,
        text=True,
        timeout=limit(60),
        cwd=folder,
        env={
            "PYTHONPATH": str(folder),
            "PATH": "/usr/bin:/bin",
            "MDISPATCH_FOLDER": os.environ["MDISPATCH_FOLDER"],
            **more,
        },
    )


def test_the_page_opens_with_something_that_runs(tmp_path) -> None:
    ran = run(SNIPPETS[0], tmp_path, name="shop.py")
    assert ran.stdout == "array('d', [3.0, 6.0])\n", ran.stderr


def run_snippet(index: int, tmp_path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "shop.py").write_text(SNIPPETS[0])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    # As a reader would run it: after the module of the first snippet.
    code = SNIPPETS[index].replace(
        "import mdispatch as md\n", "import mdispatch as md\nimport shop\n", 1
    )
    if "shop::total" in code:
        code += "import array\nassert md.ops.shop.total(array.array('d', [1, 2])) == 3.0\n"
    code = code.replace('"jobs"', f'"jobs-{tmp_path.parent.name}-{index}"')
    return run(code, tmp_path, **more)


@pytest.mark.parametrize("index", range(1, len(SNIPPETS)))
def test_each_snippet_runs(index: int, tmp_path: Path) -> None:
    ran = run_snippet(index, tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("index", range(1, len(SNIPPETS)))
def test_each_snippet_runs_where_nothing_is_shared_or_is_in_the_table(
    index: int, tmp_path: Path
) -> None:
    ran = run_snippet(index, tmp_path, MDISPATCH_BINDING="none")
    found = [end for word, (_, end) in ONLY_SHARED.items() if word in SNIPPETS[index]]
    if found:
        assert ran.returncode == 1, "it runs: take it out of the table"
        assert found[0] in ran.stderr
    else:
        assert ran.returncode == 0, ran.stderr


COMMANDS = re.findall(r"^mdispatch (.*?)(?:  +#.*)?$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", [c for c in COMMANDS if "--import" in c])
def test_each_command_of_the_page_runs(command: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mdispatch", *command.split()],
        capture_output=True,
        text=True,
        timeout=limit(60),
        cwd=ROOT,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "audio::gain" in ran.stdout


def test_there_are_commands_on_the_page() -> None:
    assert len(COMMANDS) >= 3


def shape(text: str) -> list[str]:
    """The lines without versions and milliseconds; from 1000 on, these have no decimals."""
    return following.shape(re.sub(r"\d+\.\d[\w.+]*|\b\d{4,}\b", "N", text))


@pytest.mark.thorough
def test_what_verify_prints_is_what_the_page_shows() -> None:
    command, shown = re.findall(
        r"^mdispatch (verify [^\n]*)\n```\n\nIt ends with:\n\n```text\n(.*?)^```",
        PAGE,
        re.DOTALL | re.MULTILINE,
    )[0]
    assert f".venv/bin/mdispatch {command}" in (ROOT / "README.md").read_text()
    ran = subprocess.run(
        [sys.executable, "-m", "mdispatch", *command.split()],
        capture_output=True,
        text=True,
        timeout=limit(60),
        cwd=ROOT,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert shape(ran.stdout) == shape(shown)


def test_the_examples_are_where_the_package_says(tmp_path) -> None:
    """In a checkout, or installed with the wheel."""
    asked = subprocess.run(
        [sys.executable, "-m", "mdispatch.config", "--examples"],
        capture_output=True,
        text=True,
        timeout=limit(60),
        cwd=tmp_path,
        check=True,
    )
    there = Path(asked.stdout.strip())
    folders = (there, ROOT / "examples")
    here, ours = ({path.relative_to(f) for path in f.rglob("*.*")} for f in folders)
    # pip compiles what it installs.
    assert {path for path in here if "__pycache__" not in path.parts} == {
        path for path in ours if "__pycache__" not in path.parts
    }
