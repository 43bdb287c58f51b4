"""The command ``mdispatch bench``: its arguments, its progress and its exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ._bench.jobs import JOBS, Job
from ._bench.measure import Settings
from ._bench.peers import PEERS
from ._bench.running import processes_of, run
from ._bench_plot import draw
from ._bench_show import Measured
from ._command import complain, progress, standard_output, write
from ._nearest import nearest
from ._pictures import refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["bench"]

_MOST = 100_000


def _one_of(name: str, names: Iterable[str], what: str) -> str:
    names = tuple(names)
    if name not in names:
        near = nearest(name, names)
        meant = f" Did you mean {', '.join(near)}?" if near else ""
        raise typer.BadParameter(
            f"there is no {what} {name!r}.{meant} mdispatch bench --list shows all."
        )
    return name


def _jobs(names: list[str] | None) -> list[str]:
    return [_one_of(name, (job.name for job in JOBS), "job") for name in names or ()]


def _peers(text: str | None) -> str | None:
    for name in _split(text):
        _one_of(name, (peer.name for peer in PEERS), "peer")
    return text


def _split(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _rounds(value: int | None) -> int | None:
    if value is not None and not 1 <= value <= _MOST:
        raise typer.BadParameter(f"{value} is not a number from 1 to {_MOST}.")
    return value


def _plot(file: str | None) -> str | None:
    reason = refusal(file) if file is not None else None
    if reason is not None:
        raise typer.BadParameter(reason)
    return file


def bench(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB", callback=_jobs, help="Of --list; without any, all."),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME", callback=_peers, help="Of --list; without it, all in `calls`."
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(callback=_rounds, help="Rounds of each process of a job.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few rounds, one process, small numbers: rough.")
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(metavar="FILE", callback=_plot, help="Draw it: FILE.html or FILE.png."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: keys in pydoc mdispatch._bench_show.")
    ] = False,
    lists: Annotated[bool, typer.Option("--list", help="Show jobs and peers, and end.")] = False,
) -> None:
    """Measure what calls, registrations and waits cost here, as ratios: calls against a plain
    Python call, and against the other dispatchers that are installed.

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
        typer.echo(_listing(), nl=False)
        raise typer.Exit
    asked = Settings(rounds, quick, tuple(_split(peers)) if peers else None)
    wanted = [job for job in JOBS if not jobs or job.name in jobs]
    answer = standard_output()
    try:
        with progress("measuring", _steps(wanted, asked)) as step:
            measured = Measured(run(wanted, asked, step))
        write(measured, answer, as_json)
        if plot is not None:
            draw(measured.run, plot)
    except OSError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(1 if measured.failed else 0)


def _steps(jobs: Iterable[Job], asked: Settings) -> int:
    return sum(processes_of(job, asked) for job in jobs if not job.missing)


def _listing() -> str:
    rows = [("jobs", ""), *((f"  {job.name}", _with(job.what, job.missing)) for job in JOBS)]
    rows += [("peers", "")]
    rows += [(f"  {peer.name}", peer.missing or peer.version or "here") for peer in PEERS]
    width = max(len(name) for name, _ in rows) + 2
    return "".join(f"{name:<{width}}{what}".rstrip() + "\n" for name, what in rows)


def _with(what: str, missing: str) -> str:
    return f"{what} ({missing})" if missing else what
