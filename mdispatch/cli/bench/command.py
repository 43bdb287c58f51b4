"""The command ``mdispatch bench``: its arguments, its progress and its exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from ...errors.words import nearest
from ..console import complain, json_option, progress, standard_output, tell_written, write
from .jobs import JOBS, Job, checkout
from .measure import Settings
from .peers import PEERS
from .plot import draw, refusal
from .running import processes_of, run
from .show import Measured

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST = 100_000


def _one_of(name: str, names: Iterable[str], what: str) -> str:
    names = tuple(names)
    if name not in names:
        near = nearest(name, names)
        meant = f" Did you mean {', '.join(near)}?" if near else ""
        raise click.BadParameter(
            f"there is no {what} {name!r}.{meant} mdispatch bench --list shows all."
        )
    return name


def _jobs(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> list[str]:
    return [_one_of(name, (job.name for job in JOBS), "job") for name in names]


def _peers(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    for name in _split(text):
        _one_of(name, (peer.name for peer in PEERS), "peer")
    return text


def _split(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _rounds(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    if value is not None and not 1 <= value <= _MOST:
        raise click.BadParameter(f"{value} is not a number from 1 to {_MOST}.")
    return value


def _plot(context: click.Context, parameter: click.Parameter, file: str | None) -> str | None:
    reason = refusal(file) if file is not None else None
    if reason is not None:
        raise click.BadParameter(reason)
    return file


@click.command
@click.argument(
    "jobs",
    metavar="[JOB]...",
    nargs=-1,
    callback=_jobs,
    help="Of --list; without any, all here.",
)
@click.option(
    "--peers",
    metavar="NAME,NAME",
    callback=_peers,
    help="Of --list; without it, all in `calls`.",
)
@click.option("--rounds", type=int, callback=_rounds, help="Rounds of each process of a job.")
@click.option("--quick", is_flag=True, help="Few rounds, one process, small numbers: rough.")
@click.option("--plot", metavar="FILE", callback=_plot, help="Draw it: FILE.html or FILE.png.")
@json_option("bench")
@click.option("lists", "--list", is_flag=True, help="Show jobs and peers, and end.")
def bench(
    jobs: list[str],
    peers: str | None,
    rounds: int | None,
    quick: bool,
    plot: str | None,
    as_json: bool,
    lists: bool,
) -> None:
    """Measure what calls, imports and waits cost here, as ratios. Calls are compared with a plain
    Python call, and with the other dispatchers that are installed.

    Both sides of a ratio are measured in turns in one process; a figure is the median over the
    rounds of several processes, beside it the best. A figure that misses its aim is marked, and is
    no failure: the machine may have been busy.

    All jobs take some minutes. Nothing else should run meanwhile.

    \b
    Exit status:
      0    measured
      1    a job failed; the others were measured
      2    unusable arguments; the picture could not be written
      130  interrupted
    """
    if lists:
        click.echo(_listing(), nl=False)
        raise Exit(0)
    asked = Settings(rounds, quick, tuple(_split(peers)) if peers else None)
    wanted = [job for job in JOBS if (job.name in jobs if jobs else not job.missing)]
    answer = standard_output()
    try:
        with progress("measuring", _steps(wanted, asked)) as step:
            measured = Measured(run(wanted, asked, step))
        write(measured, answer, as_json)
        if plot is not None:
            draw(measured.run, plot)
            tell_written(plot)
    except OSError as error:
        complain(str(error))
        raise Exit(2) from None
    except KeyboardInterrupt:
        raise Exit(130) from None
    raise Exit(1 if measured.failed else 0)


def _steps(jobs: Iterable[Job], asked: Settings) -> int:
    return sum(processes_of(job, asked) for job in jobs if not job.missing)


def _listing() -> str:
    rows = [("jobs", ""), *_rows(job for job in JOBS if job.is_packaged)]
    rows += [("jobs of the repository", "" if checkout() else "(only in a checkout of it)")]
    rows += _rows(job for job in JOBS if not job.is_packaged)
    rows += [("peers", "")]
    rows += [(f"  {peer.name}", peer.missing or peer.version or "here") for peer in PEERS]
    width = max(len(name) for name, _ in rows) + 2
    return "".join(f"{name:<{width}}{what}".rstrip() + "\n" for name, what in rows)


def _rows(jobs: Iterable[Job]) -> list[tuple[str, str]]:
    return [(f"  {job.name}", job.what) for job in jobs]
