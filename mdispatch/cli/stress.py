"""The command ``mdispatch stress``: finds the stress suite, runs it, and prints what came out.

The suite is not installed with the package. It tests the sources that it comes with, under the
settings of their pyproject.toml; and code that starts and kills processes for minutes does not
belong beside code that serves. So the command looks for it.
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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from .. import __version__
from ..errors.words import nearest, shown
from .columns import fit, plain
from .console import complain, json_option, standard_output, tell_written, write

if TYPE_CHECKING:
    from rich.console import Console

    from . import answers

_DAY = 86400.0
_FAILED = 1  # pytest's status when tests failed


def _seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0 < value <= _DAY:  # refuses NaN too
        raise click.BadParameter(f"{value} is not a number of seconds up to {_DAY:.0f}.")
    return value


def _count(context: click.Context, parameter: click.Parameter, value: int) -> int:
    if not 0 <= value <= 1_000_000_000:
        raise click.BadParameter(f"{value} is not a number from 0 to 1,000,000,000.")
    return value


@click.command
@click.argument(
    "wanted",
    metavar="[SCENARIO]...",
    nargs=-1,
    help="Only these; without any, all (see --list).",
)
@click.option(
    "--seconds", default=12.0, callback=_seconds, help="How long all scenarios together go on."
)
@click.option("--workers", "-n", default=0, callback=_count, help="Processes that play at once.")
@click.option("--seed", default=0, callback=_count, help="Of every random choice; 0 for a new one.")
@click.option(
    "--rounds", default=0, callback=_count, help="Rounds of each at most; 0 for no limit."
)
@click.option("--plot", metavar="FILE", help="Draw it: FILE.html or FILE.png.")
@click.option("--suite", metavar="FOLDER", help="Where the suite, or what holds it, is.")
@click.option("lists", "--list", is_flag=True, help="Show the scenarios, and end.")
@json_option("stress")
def stress(
    wanted: tuple[str, ...],
    seconds: float,
    workers: int,
    seed: int,
    rounds: int,
    plot: str | None,
    suite: str | None,
    lists: bool,
    as_json: bool,
) -> None:
    """Run the stress suite on this machine. It plays registrations, waits, kills, forks and
    interpreters at random, for some seconds or for hours. Processes that it started are killed;
    nothing else is.

    The suite comes with the sources and is not installed. It is looked for beside the package, as
    in an editable installation, and in the current directory. It needs mdispatch[test].

    \b
    Exit status:
      0    every scenario held
      1    some failed: each with the command that makes the same choices again
      2    unusable arguments; no suite, or a package that it needs is not
           installed
      130  interrupted
    """
    folder = find_suite(suite)
    if folder is None:
        where = "beside the package and in the current directory" if suite is None else suite
        complain(
            f"there is no stress suite (searched: {where}). It is not installed with the package: "
            f"it comes with the sources of mdispatch {__version__}. Run this in their folder, or "
            "say --suite FOLDER."
        )
        raise Exit(2)
    there = scenarios(folder)
    if lists:
        click.echo(listing_json(str(folder), there) if as_json else "\n".join(sorted(there)))
        return
    words = [_one_of(name, there) for name in wanted] or [folder.name]
    _check(folder, workers)
    output = standard_output()
    words += ["--seconds", f"{seconds:g}", "--seed", str(seed), "--rounds", str(rounds)]
    words += ["-n", str(workers)] if workers else []
    words += ["--plot", os.path.abspath(plot)] if plot is not None else []
    try:
        status, told = play(folder, words)
        if told is None or status not in (0, _FAILED):
            complain("the stress suite did not come to its end: see above.")
            raise Exit(2)
        write(Stressed(str(folder), status == 0, told), output, as_json)
        if plot is not None:
            tell_written(plot)
    except OSError as error:
        complain(str(error))
        raise Exit(2) from None
    except KeyboardInterrupt:
        raise Exit(130) from None
    raise Exit(status)


def _one_of(name: str, there: dict[str, str]) -> str:
    if name not in there:
        near = nearest(name, there)
        meant = f" Did you mean {', '.join(map(repr, near))}?" if near else ""
        raise click.BadParameter(
            f"there is no scenario {shown(name)}.{meant} mdispatch stress --list shows all.",
            param_hint="SCENARIO",
        )
    return there[name]


def _check(folder: Path, workers: int) -> None:
    needed = missing(workers > 0)
    if needed is not None:
        complain(
            f"the stress suite needs {needed!r}, which is not installed: "
            "python -m pip install 'mdispatch[test]'"
        )
        raise Exit(2)
    version = version_of(folder)
    if version not in (None, __version__):
        complain(f"warning: this is mdispatch {__version__}, the suite is that of {version}")


# --- the suite ------------------------------------------------------------------------------------

_FILES = ("conftest.py", "controller.py", "scenario.py")
_SCENARIO = re.compile(r'^@pytest\.mark\.scenario\(\s*"([^"]+)"(?:.|\n)*?^def (test_\w+)', re.M)


def find_suite(given: str | None) -> Path | None:
    """The folder of the suite: the given one, or else the one beside the package or in the current
    directory. A folder that holds the suite's folder will do. None when there is no suite.
    """
    locations = [Path(given)] if given is not None else [Path(__file__).parents[2], Path.cwd()]
    for location in locations:
        for folder in (location, location / "stress"):
            if all((folder / file).is_file() for file in _FILES):
                return folder.resolve()
    return None


def version_of(suite: Path) -> str | None:
    """The version of the sources around the suite; None when they do not say."""
    with suppress(OSError, tomllib.TOMLDecodeError, KeyError):
        project = tomllib.loads((suite.parent / "pyproject.toml").read_text())["project"]
        return str(project["version"]) if project["name"] == "mdispatch" else None
    return None


def scenarios(suite: Path) -> dict[str, str]:
    """The scenarios by title: for each, the name that pytest has for its test."""
    found = {}
    for file in sorted(suite.glob("test_*.py")):
        for title, test in _SCENARIO.findall(file.read_text()):
            found[title] = f"{suite.name}/{file.name}::{test}"
    return found


def missing(parallel: bool) -> str | None:
    """The name of a package that the suite needs and that is not installed; None when all are."""
    needs = ["pytest", "pytest_timeout", *(["xdist"] if parallel else [])]
    return next((name for name in needs if find_spec(name) is None), None)


def play(suite: Path, words: list[str]) -> tuple[int, dict[str, Any] | None]:
    """Runs the suite with pytest, whose output goes to standard error. Returns its exit status and
    its figures, None when it wrote none. Passes an interrupt on to pytest and waits for it.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    with tempfile.TemporaryDirectory(prefix="mdispatch-stress-") as folder:
        figures = Path(folder, "figures.json")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        # In a group of its own: only this process sends it Ctrl-C, once, so that it ends in order.
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


# --- the answer -----------------------------------------------------------------------------------


def listing_json(suite: str, scenarios: dict[str, str]) -> str:
    """The scenarios of the suite as JSON, sorted by title."""
    answer: answers.StressList = {
        "format": 2,
        "mdispatch": __version__,
        "suite": suite,
        "scenarios": [
            {"scenario": title, "location": scenarios[title]} for title in sorted(scenarios)
        ],
    }
    return json.dumps(answer, indent=2)


@dataclass(frozen=True, slots=True)
class Stressed:
    """The result of a run of the suite; ``told`` are the figures that it wrote."""

    suite: str
    passed: bool
    told: dict[str, Any]

    def json(self) -> str:
        answer: answers.Stress = {
            "format": 2,
            "mdispatch": __version__,
            "suite": self.suite,
            "passed": self.passed,
            "about": self.told["about"],
            "scenarios": self.told["scenarios"],
        }
        return json.dumps(answer, indent=2)

    def show(self, console: Console) -> None:
        fit(console)
        for line in self.told["text"][1:]:
            console.print(plain(line), soft_wrap=True)
