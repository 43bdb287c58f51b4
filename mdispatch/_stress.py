"""The stress suite: where it is, which scenarios it has, and one run of it.

It is no part of the package that is installed: it belongs to the sources, of which it is a test,
with the settings of their pyproject.toml; and what starts and kills processes for minutes should
not lie among what serves. So it is looked for.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["find_suite", "missing", "play", "scenarios", "version_of"]

_FILES = ("conftest.py", "controller.py", "scenario.py")
_SCENARIO = re.compile(r'^@pytest\.mark\.scenario\(\s*"([^"]+)"(?:.|\n)*?^def (test_\w+)', re.M)


def find_suite(given: str | None) -> Path | None:
    """Its folder: the one that was given, the one beside the package, or the current directory's;
    or one that holds it. None where it is not.
    """
    places = [Path(given)] if given is not None else [Path(__file__).parents[1], Path.cwd()]
    for place in places:
        for folder in (place, place / "stress"):
            if all((folder / file).is_file() for file in _FILES):
                return folder.resolve()
    return None


def version_of(suite: Path) -> str | None:
    """The version of the sources that it belongs to, where these say."""
    with suppress(OSError, tomllib.TOMLDecodeError, KeyError):
        project = tomllib.loads((suite.parent / "pyproject.toml").read_text())["project"]
        return str(project["version"]) if project["name"] == "mdispatch" else None
    return None


def scenarios(suite: Path) -> dict[str, str]:
    """By title: the test that plays it, as pytest is told."""
    found = {}
    for file in sorted(suite.glob("test_*.py")):
        for title, test in _SCENARIO.findall(file.read_text()):
            found[title] = f"{suite.name}/{file.name}::{test}"
    return found


def missing(parallel: bool) -> str | None:
    """A package that it needs and that is not installed; None when all are there."""
    needs = ["pytest", "pytest_timeout", *(["xdist"] if parallel else [])]
    return next((name for name in needs if find_spec(name) is None), None)


def play(suite: Path, words: list[str]) -> tuple[int, dict[str, Any] | None]:
    """Runs it with pytest, whose words go to standard error: its exit status, and the figures; None
    where it did not come to any. An interrupt is passed on, and pytest is waited for.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    with tempfile.TemporaryDirectory(prefix="mdispatch-stress-") as folder:
        figures = Path(folder, "figures.json")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        # In a group of its own: Ctrl-C comes to it once, from here, so that it can end in order.
        with subprocess.Popen(
            [*command, "--figures", str(figures)],
            cwd=suite.parent,
            stdin=subprocess.DEVNULL,
            stdout=2,
            env=environment,
            process_group=0,
        ) as process:
            try:
                status = process.wait()
            except BaseException:
                process.send_signal(signal.SIGINT)
                raise
        if not figures.exists():
            return status, None
        told: dict[str, Any] = json.loads(figures.read_text())
        return status, told
