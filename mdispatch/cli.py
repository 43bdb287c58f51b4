"""The command line: arguments, exit status, and what goes to standard output.

Standard output gets the answer and nothing else. What modules print while they are imported, here,
in other interpreters or from C, goes to standard error: descriptor 1 is turned there meanwhile.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import __version__
from ._registry.shared import ENVIRONMENT
from ._verify import Plan, Workers
from ._verify_show import Result
from .warming import examine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from .warming import WarmUp

__all__ = ["app"]

_MOST = 128  # workers of a kind: each has files and threads open
_DAY = 86400.0

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mdispatch {__version__}")
        raise typer.Exit


@app.callback()
def _mdispatch(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """An operator registry and dispatcher for threads, sub-interpreters and processes."""


def _workers(value: int) -> int:
    if not 0 <= value <= _MOST:
        raise typer.BadParameter(f"{value} is not a number from 0 to {_MOST}.")
    return value


def _seconds(value: float) -> float:
    if not 0 <= value <= _DAY:  # refuses NaN too
        raise typer.BadParameter(f"{value} is not a number of seconds from 0 to {_DAY:.0f}.")
    return value


def _module_names(names: list[str]) -> list[str]:
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            hint = ""
            if name.endswith(".py"):
                stem = os.path.normpath(name.removesuffix(".py")).strip(os.sep)
                hint = f" Is it {stem.replace(os.sep, '.')!r}?"
            raise typer.BadParameter(f"{name!r} is not the name of a module.{hint}")
    return list(dict.fromkeys(names))


@app.command()
def verify(
    modules: Annotated[
        list[str],
        typer.Argument(metavar="MODULE", callback=_module_names, help="Operator modules, by name."),
    ],
    interpreters: Annotated[
        int, typer.Option(callback=_workers, help="Sub-interpreters to warm up.")
    ] = 2,
    processes: Annotated[int, typer.Option(callback=_workers, help="Processes to warm up.")] = 1,
    timeout: Annotated[
        float,
        typer.Option(callback=_seconds, help="Seconds that the waits of a worker take together."),
    ] = 5.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: keys in pydoc mdispatch._verify_show.")
    ] = False,
) -> None:
    """Import operator modules everywhere and tell everything that differs.

    The modules are imported in the main interpreter, where they register, then in new
    sub-interpreters (each with a GIL of its own from Python 3.12 on) and in new processes, where
    they are verified, all at once. The current directory is searched for them, as by python -m.

    A worker that hangs is given up some seconds after the timeout; what modules print goes to
    standard error.

    \b
    Exit status:
      0    all workers agree with the main interpreter
      1    some differ: each difference is explained; also a worker that was killed, or in which
           alone the import fails
      2    unusable arguments; no such module, or one that fails in the main interpreter
      130  interrupted
    """
    if not interpreters and not processes:
        raise typer.BadParameter("there is nothing to verify without interpreters and processes.")
    faulthandler.enable()
    os.environ.pop(ENVIRONMENT, None)  # the registry of a parent is none of this command's
    if not sys.flags.safe_path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    plan = Plan(tuple(modules), interpreters, processes, timeout)
    answer = _standard_output()
    workers = None
    try:
        with _progress(interpreters + processes) as step:
            main = _import_in_main(plan)
            workers = Workers(plan, plan.limit(main.import_seconds))
            rows = workers.rows(step)
        result = Result(plan, main, rows)
        with suppress(BrokenPipeError), answer:
            answer.write(result.json() + "\n" if as_json else _shown(result, answer))
        status = 0 if result.agree else 1
        if workers.close():
            raise typer.Exit(status)
    except KeyboardInterrupt:
        status = 130
        if workers is not None:
            workers.kill()
    # Some thread is inside an interpreter and will not leave it: nothing else ends the process.
    sys.stderr.flush()
    os._exit(status)


def _standard_output() -> TextIO:
    """What standard output is now. From here on, descriptor 1 is standard error."""
    sys.stdout.flush()
    answer = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    os.dup2(2, 1)
    return answer


def _shown(result: Result, file: TextIO) -> str:
    """The text for people, as it fits where it goes."""
    console = Console(file=file, markup=False, emoji=False, highlight=False)
    with console.capture() as shown:
        result.show(console)
    return shown.get()


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Shows how many workers are done, where someone may be looking. Yields what counts one."""
    console = Console(stderr=True)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        yield lambda: None
        return
    columns = (TextColumn("warming up"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def _import_in_main(plan: Plan) -> WarmUp:
    """Registers the modules. Ends the command where one is not there, or fails."""
    try:
        return examine(plan.modules, timeout=plan.timeout)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and any(f"{name}.".startswith(f"{missing}.") for name in plan.modules):
            message = f"{error}. Searched: the current directory ({os.getcwd()}) and sys.path."
        else:
            _print_traceback(error)
            message = f"{', '.join(plan.modules)}: the import in the main interpreter failed."
    print(f"mdispatch: {message}", file=sys.stderr)
    raise typer.Exit(2)


def _print_traceback(error: BaseException) -> None:
    """Without the frames that lead from here to the module."""
    shown = traceback.TracebackException.from_exception(error)
    folders = (os.path.dirname(__file__), os.path.dirname(importlib.__file__), "<frozen importlib")
    while shown.stack and shown.stack[0].filename.startswith(folders):
        del shown.stack[0]
    print(*shown.format(), sep="", end="", file=sys.stderr)
