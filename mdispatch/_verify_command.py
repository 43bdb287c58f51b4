"""The command ``mdispatch verify``: its arguments, its progress and its exit status."""

from __future__ import annotations

import faulthandler
import os
import sys
from typing import Annotated

import typer

from ._command import complain, import_in_main, module_names, progress, standard_output, write
from ._verify import Plan, Workers
from ._verify_show import Result

__all__ = ["verify"]

_MOST = 128  # workers of a kind: each has files and threads open
_DAY = 86400.0


def _workers(value: int) -> int:
    if not 0 <= value <= _MOST:
        raise typer.BadParameter(f"{value} is not a number from 0 to {_MOST}.")
    return value


def _seconds(value: float) -> float:
    if not 0 <= value <= _DAY:  # refuses NaN too
        raise typer.BadParameter(f"{value} is not a number of seconds from 0 to {_DAY:.0f}.")
    return value


def verify(
    modules: Annotated[
        list[str],
        typer.Argument(metavar="MODULE", callback=module_names, help="Operator modules, by name."),
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
      2    unusable arguments; no such module, or one that fails in the main interpreter; the
           answer could not be written
      130  interrupted
    """
    if not interpreters and not processes:
        raise typer.BadParameter("there is nothing to verify without interpreters and processes.")
    faulthandler.enable()
    plan = Plan(tuple(modules), interpreters, processes, timeout)
    answer = standard_output()
    workers = None
    try:
        with progress("warming up", interpreters + processes) as step:
            main = import_in_main(plan.modules, plan.timeout)
            workers = Workers(plan, plan.limit(main.import_seconds))
            rows = workers.rows(step)
        result = Result(plan, main, rows)
        status = 0 if result.agree else 1
        try:
            write(result, answer, as_json)
        except OSError as error:
            complain(f"the answer could not be written: {error}")
            status = 2
        if workers.close():
            raise typer.Exit(status)
    except KeyboardInterrupt:
        status = 130
        if workers is not None:
            workers.kill()
    # Some thread is inside an interpreter and will not leave it: nothing else ends the process.
    sys.stderr.flush()
    os._exit(status)
