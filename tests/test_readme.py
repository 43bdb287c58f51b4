"""The README's Python runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def run(code: str, folder: Path, *, name: str = "snippet.py") -> subprocess.CompletedProcess[str]:
    (folder / name).write_text(code)
    return subprocess.run(
        [sys.executable, "-W", "error", str(folder / name)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin"},
    )


def test_the_readme_opens_with_something_that_runs(tmp_path) -> None:
    ran = run(SNIPPETS[0], tmp_path, name="shop.py")
    assert ran.stdout == "array('d', [3.0, 6.0])\n", ran.stderr


@pytest.mark.parametrize("index", range(1, len(SNIPPETS)))
def test_each_snippet_runs(index: int, tmp_path) -> None:
    (tmp_path / "shop.py").write_text(SNIPPETS[0])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    # As a reader would: after the module of the first snippet.
    code = SNIPPETS[index].replace(
        "import mdispatch as md\n", "import mdispatch as md\nimport shop\n", 1
    )
    if "shop::total" in code:
        code += "import array\nassert md.ops.shop.total(array.array('d', [1, 2])) == 3.0\n"
    code = code.replace('"jobs"', f'"jobs-{tmp_path.parent.name}-{index}"')
    ran = run(code, tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_the_two_commands_are_marked_for_ci() -> None:
    for mark in ("setup", "test"):
        assert re.search(rf"^<!-- ci: {mark} -->\n```sh\n", README, re.MULTILINE)


COMMANDS = re.findall(r"^mdispatch (.*?)(?:  +#.*)?$", README, re.MULTILINE)


@pytest.mark.parametrize("command", [c for c in COMMANDS if "--import" in c])
def test_each_command_of_the_readme_runs(command: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mdispatch", *command.split()],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "audio::gain" in ran.stdout


def test_there_are_commands_in_the_readme() -> None:
    assert len(COMMANDS) >= 3


def shape(text: str) -> list[str]:
    """The lines without what differs from run to run and from machine to machine: versions, process
    ids, milliseconds, and how wide a column is for them.
    """
    text = re.sub(r"\d+\.\d[\w.+]*|(?<=pid )\d+", "N", text)
    text = re.sub(r"^(interpreter|process)( +)\d+", r"\1 N", text, flags=re.MULTILINE)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [re.sub("─+", "─", line) for line in lines if line]


def test_the_set_up_ends_as_the_readme_shows(tmp_path) -> None:
    """The last of the commands that set up, as a new user gives them, on this Python."""
    command = re.findall(r"^\.venv/bin/mdispatch (verify .*)$", README, re.MULTILINE)
    shown = re.findall(
        r"^What the first one ends with:\n\n```text\n(.*?)^```", README, re.DOTALL | re.MULTILINE
    )
    ran = subprocess.run(
        [sys.executable, "-m", "mdispatch", *command[0].split()],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert shape(ran.stdout) == shape(shown[0])
