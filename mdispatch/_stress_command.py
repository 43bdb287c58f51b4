"""The command ``mdispatch stress``: what it is asked, and its exit status."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from . import __version__
from ._command import complain, standard_output, write
from ._nearest import nearest, shown
from ._stress import find_suite, missing, play, scenarios, version_of
from ._stress_show import Stressed, listing_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["stress"]

_DAY = 86400.0
_FAILED = 1  # what pytest says when tests failed


def _seconds(value: float) -> float:
    if not 0 < value <= _DAY:  # refuses NaN too
        raise typer.BadParameter(f"{value} is not a number of seconds up to {_DAY:.0f}.")
    return value


def _count(value: int) -> int:
    if not 0 <= value <= 1_000_000_000:
        raise typer.BadParameter(f"{value} is not a number from 0 to 1,000,000,000.")
    return value


def stress(
    wanted: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCENARIO", help="Only these; without any, all (see --list)."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(callback=_seconds, help="How long all scenarios together go on.")
    ] = 12.0,
    workers: Annotated[
        int, typer.Option("--workers", "-n", callback=_count, help="Processes that play at once.")
    ] = 0,
    seed: Annotated[
        int, typer.Option(callback=_count, help="Of every random choice; 0 for a new one.")
    ] = 0,
    rounds: Annotated[
        int, typer.Option(callback=_count, help="Rounds of each at most; 0 for no limit.")
    ] = 0,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw it: FILE.html or FILE.png.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Where the suite, or what holds it, is.")
    ] = None,
    lists: Annotated[bool, typer.Option("--list", help="Show the scenarios, and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: keys in pydoc mdispatch._stress_show.")
    ] = False,
) -> None:
    """Run the stress suite on this machine: registrations, waits, kills, forks and interpreters at
    random, for some seconds or for hours. Processes that it started are killed; nothing else is.

    The suite comes with the sources and is not installed. It is looked for beside the package, as
    in an editable installation, and in the current directory. It needs mdispatch[test].

    \b
    Exit status:
      0    every scenario held
      1    some failed: each with the command that makes the same choices again
      2    unusable arguments; no suite, or a package that it needs is not installed
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
        raise typer.Exit(2)
    there = scenarios(folder)
    if lists:
        typer.echo(listing_json(str(folder), there) if as_json else "\n".join(sorted(there)))
        return
    words = [_one_of(name, there) for name in wanted or ()] or [folder.name]
    _check(folder, workers)
    output = standard_output()
    words += ["--seconds", f"{seconds:g}", "--seed", str(seed), "--rounds", str(rounds)]
    words += ["-n", str(workers)] if workers else []
    words += ["--plot", os.path.abspath(plot)] if plot is not None else []
    try:
        status, told = play(folder, words)
        if told is None or status not in (0, _FAILED):
            complain("the stress suite did not come to its end: see above.")
            raise typer.Exit(2)
        write(Stressed(str(folder), status == 0, told), output, as_json)
    except OSError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(status)


def _one_of(name: str, there: dict[str, str]) -> str:
    if name not in there:
        near = nearest(name, there)
        meant = f" Did you mean {', '.join(map(repr, near))}?" if near else ""
        raise typer.BadParameter(
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
        raise typer.Exit(2)
    version = version_of(folder)
    if version not in (None, __version__):
        complain(f"warning: this is mdispatch {__version__}, the suite is that of {version}")
