"""The command ``mdispatch verify``: imports operator modules in the main interpreter, warms up
fresh sub-interpreters and processes with them, and prints everything that differs.

Threads: one per worker creates it, runs it and puts its row in a queue, once. The caller's thread
alone reads the queue, gives up on workers that are late, and closes the rest.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from _thread import allocate_lock
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Protocol

import click
from click.core import ParameterSource
from click.exceptions import Exit

from ...errors import MdispatchError, NotSharedError
from ...facts import kind_of
from ...facts.backing import check_shared
from ...facts.opening import ENVIRONMENT
from ...pool.interpreters import create_interpreter
from ...registry import Registry, default_registry
from ...workers.warm_up import WarmUp, counts
from ..asking import reason, registries_like
from ..console import (
    complain,
    import_in_main,
    json_option,
    module_names,
    progress,
    search_here,
    standard_output,
    write,
)
from .result import Difference, Plan, Result, Row, row_of
from .worker import read_began, read_report, source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...facts import Registration
    from ...pool.interpreters import Interpreter

_MOST = 128  # workers of a kind: each takes open files and a thread
_DAY = 86400.0
_MAIN_PID = 7  # its index in the figures of a registry
_UNKNOWN_IMPORT = 10.0  # seconds that the modules may take, where they were not imported before
_NOTHING = 5  # as pytest ends that collected no test


def _workers(context: click.Context, parameter: click.Parameter, value: int) -> int:
    if not 0 <= value <= _MOST:
        raise click.BadParameter(f"{value} is not a number from 0 to {_MOST}.")
    return value


def _seconds(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0 <= value <= _DAY:  # refuses NaN too
        raise click.BadParameter(f"{value} is not a number of seconds from 0 to {_DAY:.0f}.")
    return value


@click.command
@click.argument(
    "modules",
    metavar="MODULE...",
    nargs=-1,
    callback=module_names,
    help="Operator modules, by name.",
)
@click.option(
    "--entry-points",
    "groups",
    metavar="GROUP",
    multiple=True,
    help="Verify the plug-ins of this group of entry points, too, of those that are installed. Can "
    "be given several times.",
)
@click.option(
    "--interpreters",
    default=2,
    callback=_workers,
    help="Sub-interpreters to warm up. With --torch none: PyTorch is loaded once in a process.",
)
@click.option("--processes", default=1, callback=_workers, help="Processes to warm up.")
@click.option(
    "--timeout",
    default=5.0,
    callback=_seconds,
    help="Seconds that the waits of a worker take together.",
)
@click.option(
    "--against",
    metavar="NAME",
    shell_complete=registries_like,
    help="Compare with the registry of a process that is running, by its name or address.",
)
@click.option(
    "--torch",
    is_flag=True,
    help="Verify what the modules register with torch.library, too (mdispatch.torch.watch).",
)
@click.option(
    "--job",
    metavar="NAME",
    shell_complete=registries_like,
    help="Without modules: the verdict of the last roll call (mdispatch.roll_call) in the registry "
    "of a running job, by its name or address. It waits for one up to --timeout.",
)
@json_option("verify")
def verify(
    modules: tuple[str, ...],
    groups: tuple[str, ...],
    interpreters: int,
    processes: int,
    timeout: float,
    against: str | None,
    torch: bool,
    job: str | None,
    as_json: bool,
) -> None:
    """Import operator modules everywhere and tell all that differs.

    The modules are imported in the main interpreter, where they register, then in new
    sub-interpreters (each with a GIL of its own from Python 3.12 on) and in new processes, where
    they are verified, all at once. The current directory is searched for them, as by python -m.

    With --against the modules are imported in workers only, and verified with what a running
    process has registered: before you replace it by another version.

    With --job it imports nothing, and tells whether all processes of a running job have the same,
    as these have found when they called the roll.

    A worker that hangs is given up some seconds after the timeout; what modules print goes to
    standard error.

    \b
    Exit status:
      0    all workers agree with the main interpreter; all of the job agree
      1    some differ: each difference is explained; also a worker that was
           killed, or in which alone the import fails; no verdict in time
      2    unusable arguments; no such module, or one that fails in the main
           interpreter; no such registry, or one that ends meanwhile; the
           answer could not be written; registries are not shared on this
           system
      5    the modules register nothing, so nothing was verified
      130  interrupted
    """
    if job is not None:
        if modules or groups or against or torch:
            raise click.BadParameter(
                "--job takes no modules, no --entry-points, no --against and no --torch."
            )
        try:
            from .job import tell
        except ModuleNotFoundError:
            raise click.BadParameter("--job needs mdispatch.choices, which is not here.") from None
        tell(job, timeout, as_json)
    if not modules and not groups:
        raise click.UsageError("Missing argument 'MODULE...'.")
    if torch:
        source = click.get_current_context().get_parameter_source("interpreters")
        if source is ParameterSource.DEFAULT:
            interpreters = 0
        elif interpreters:
            raise click.BadParameter("--torch takes processes: PyTorch is loaded once in each.")
    if not interpreters and not processes:
        raise click.BadParameter("there is nothing to verify without interpreters and processes.")
    try:
        check_shared("mdispatch verify")
    except NotSharedError as error:
        complain(str(error))
        raise Exit(2) from None
    faulthandler.enable()
    plan = Plan(modules, interpreters, processes, timeout, against, torch, groups)
    answer = standard_output()
    workers = None
    try:
        with progress("warming up", interpreters + processes) as step:
            if against is None:
                began = monotonic()
                first = _watch if torch else None
                main = import_in_main(plan.modules, plan.timeout, first, groups)
                takes = monotonic() - began if torch else main.import_seconds
            else:
                main, before = _join(against)
                takes = _UNKNOWN_IMPORT
            workers = Workers(plan, plan.limit(takes))
            rows = workers.rows(step)
        facts = default_registry().dispatcher.facts
        registered = facts.registrations()[2]
        there = sum(_is_counted(fact) for fact in registered)
        if against is not None:
            _check_kept(against, before, registered)
        result = Result(plan, main, rows, there, facts.stat()[_MAIN_PID])
        status = _NOTHING if result.empty else 0 if result.agree else 1
        try:
            write(result, answer, as_json)
        except OSError as error:
            complain(f"the answer could not be written: {error}")
            status = 2
        if workers.close():
            raise Exit(status)
    except KeyboardInterrupt:
        status = 130
        if workers is not None:
            workers.kill()
    # A thread is inside an interpreter and will not leave it, so nothing else ends this process.
    sys.stderr.flush()
    os._exit(status)


def _is_counted(fact: Registration) -> bool:
    """Whether a module registers it: the version of PyTorch, which names no operator, is there by
    itself.
    """
    return bool(kind_of(fact.kind).called(fact.name)[0])


def _watch() -> None:
    from ...torch.watching import watch

    watch()


def _check_kept(name: str, before: Sequence[Registration], now: Sequence[Registration]) -> None:
    """Ends the command where registrations have ended meanwhile: then workers may have registered
    in their place, and have compared nothing.
    """
    there = {fact.seq for fact in now}
    ended = [each for each in before if each.seq not in there and not kind_of(each.kind).by_any]
    if ended:
        its = kind_of(ended[0].kind)
        complain(
            f"{its.say(its.what, ended[0].name, '')} has ended in registry {name} while this "
            f"compared with it, as {len(ended)} of {len(before)} registrations there: nothing is "
            "verified. Verify again while the processes of the registry are running."
        )
        raise Exit(2)


def _join(name: str) -> tuple[WarmUp, list[Registration]]:
    """Makes a running registry that of this process and its workers. Returns the registrations
    there, and how many they are. Ends the command when it cannot be joined.
    """
    search_here()
    try:
        with Registry.attach(name) as registry:
            os.environ[ENVIRONMENT] = registry.address
            there = default_registry().dispatcher.facts.registrations()[2]
    except MdispatchError as error:
        complain(reason(error))
        raise Exit(2) from None
    return WarmUp(*counts(there), 0.0, 0.0, ()), there


# --- the workers ----------------------------------------------------------------------------------


class _Worker(Protocol):
    """One worker: ``run`` in a thread of its own, ``close`` after that, the others at any time."""

    def run(self) -> Row: ...
    def kill(self) -> None: ...
    def late(self, limit: float) -> Row: ...
    def row(self, ended: Difference | None) -> Row: ...
    def close(self) -> None: ...


class _InInterpreter:
    """A sub-interpreter of this process. Nothing can end it from outside; it can be left behind."""

    def __init__(self, plan: Plan, path: Sequence[str]) -> None:
        self._report = os.memfd_create("mdispatch-verify")
        self._source = source(path, *plan.program, self._report)
        self._interpreter: Interpreter | None = None
        self._create: float | None = None

    def run(self) -> Row:
        ended = None
        began = monotonic()
        try:
            self._interpreter = create_interpreter()
            self._create = monotonic() - began
            self._interpreter.exec(self._source)
        except Exception as error:
            ended = Difference("failed", type(error).__name__, summary=str(error))
        return self.row(ended)

    def kill(self) -> None:
        pass

    def late(self, limit: float) -> Row:
        summary = f"no report within {limit:.3g} s: the interpreter was left behind"
        text = "Does a module wait for something while it is imported?"
        return self.row(Difference("silent", "", summary=summary, text=text))

    def row(self, ended: Difference | None) -> Row:
        identity = None if self._interpreter is None else self._interpreter.id
        report = read_report(self._report)
        return row_of("interpreter", os.getpid(), identity, self._create, report, ended)

    def close(self) -> None:
        if self._interpreter is not None:
            self._interpreter.close()
        os.close(self._report)


class _InProcess:
    """A new process of the same Python. Its output is shown when it fails."""

    def __init__(self, plan: Plan, path: Sequence[str], limit: float) -> None:
        self._report = os.memfd_create("mdispatch-verify")
        self._output = os.memfd_create("mdispatch-verify-output")
        self._source = source(path, *plan.program, self._report)
        self._limit = limit
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0
        self._killed = False
        self._lock = allocate_lock()

    def run(self) -> Row:
        with self._lock:
            if self._killed:
                return self.row(None)
            self._began = monotonic_ns()
            # Shortly before it is given up, the process prints where it is, however late it comes
            # to this line. Later an alarm ends it, in case this process died and cannot give it up.
            until = self._began / 1e9 + 0.9 * self._limit
            ends = (
                "import faulthandler, _signal, time\n"
                f"faulthandler.dump_traceback_later(max(0.001, {until} - time.monotonic()))\n"
                f"_signal.alarm({int(2 * self._limit) + 1})\n"
            )
            # In a group of its own: the terminal's Ctrl-C does not reach it, and we end it.
            process = self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", ends + self._source],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(self._report,),
                process_group=0,
            )
        status = process.wait()
        return self.row(self._ended(status) if status else None)

    def _ended(self, status: int) -> Difference | None:
        reported = "after its report" if read_report(self._report) else "before it reported"
        text = self._last_lines()
        if status < 0:
            name = signal.Signals(-status).name if -status in _SIGNALS else f"signal {-status}"
            summary = f"the process was killed by {name} {reported}"
            return Difference("killed", name, summary=summary, text=text)
        summary = f"the process ended with exit status {status} {reported}"
        return Difference("failed", "exit", summary=summary, text=text)

    def _last_lines(self) -> str:
        start = max(0, os.fstat(self._output).st_size - (1 << 20))
        lines = os.pread(self._output, 1 << 20, start).decode(errors="backslashreplace")
        return "\n".join(f"  | {line}" for line in lines.splitlines()[-20:])

    def late(self, limit: float) -> Row:
        self.kill()
        if read_report(self._report):
            return self.row(None)  # a thread of some module keeps it alive, which does no harm
        summary = f"no report within {limit:.3g} s: the process was killed"
        return self.row(Difference("silent", "", summary=summary, text=self._last_lines()))

    def row(self, ended: Difference | None) -> Row:
        report = read_report(self._report)
        began = read_began(self._report)
        if report is None and ended is None:
            summary = "the process ended before it reported, with exit status 0"
            ended = Difference("failed", "exit", summary=summary)
        create = None if began is None else (began - self._began) / 1e9
        pid = None if self._process is None else self._process.pid
        return row_of("process", pid, 0, create, report, ended)

    def kill(self) -> None:
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()  # does nothing once the process was waited for

    def close(self) -> None:
        os.close(self._report)
        os.close(self._output)


_SIGNALS = {int(s) for s in signal.Signals}


class Workers:
    """The workers of a plan, which run all at once. Call :meth:`rows`, then :meth:`close`."""

    def __init__(self, plan: Plan, limit: float) -> None:
        path = list(sys.path)  # interpreters and processes do not inherit changes to it
        self._crew: list[_Worker] = [
            *(_InInterpreter(plan, path) for _ in range(plan.interpreters)),
            *(_InProcess(plan, path, limit) for _ in range(plan.processes)),
        ]
        self._limit = limit
        self._arrived: SimpleQueue[tuple[int, Row]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._all_arrived = False
        self._is_ending = threading.Event()
        self._closed: list[int] = []

    def rows(self, each: Callable[[], None]) -> list[Row]:
        """Runs the workers, calls ``each`` whenever one is done, and returns the rows, interpreters
        first. Gives a worker up that has not reported after the limit (seconds), and kills it if it
        is a process.
        """
        deadline = monotonic() + self._limit
        for index in range(len(self._crew)):
            self._threads.append(threading.Thread(target=self._run, args=(index,), daemon=True))
            self._threads[-1].start()
        found: dict[int, Row] = {}
        while len(found) < len(self._crew):
            try:
                index, row = self._arrived.get(timeout=max(0.0, deadline - monotonic()))
            except Empty:
                break
            found[index] = row
            each()
        self._all_arrived = len(found) == len(self._crew)
        rows = [
            found[index] if index in found else worker.late(self._limit)
            for index, worker in enumerate(self._crew)
        ]
        # Interpreters have numbers in the order in which their threads created them.
        return sorted(rows, key=lambda row: (row.kind, row.interpreter or 0, row.pid or 0))

    def _run(self, index: int) -> None:
        try:
            row = self._crew[index].run()
        except Exception as error:  # a process that cannot be started
            failed = Difference("failed", type(error).__name__, summary=str(error))
            row = self._crew[index].row(failed)
        self._arrived.put((index, row))
        self._is_ending.wait()
        # Some versions of Python refuse to destroy an interpreter in which a thread runs. And where
        # the interpreter has imported threading, its end waits for the thread that did so: for this
        # one, unless it destroys the interpreter itself.
        with suppress(Exception):
            self._crew[index].close()
            self._closed.append(index)

    def kill(self) -> None:
        """Kills the processes."""
        for worker in self._crew:
            worker.kill()

    def close(self, limit: float = 5.0) -> bool:
        """Kills the processes and destroys the interpreters, which first run what their modules
        registered to run at exit. Returns False when an interpreter is not done after ``limit``
        seconds, or was given up before. Then only os._exit ends this process, because some of its
        threads are inside interpreters.
        """
        self.kill()
        if not self._all_arrived:
            return False
        deadline = monotonic() + limit
        self._is_ending.set()
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        return len(self._closed) == len(self._crew)
