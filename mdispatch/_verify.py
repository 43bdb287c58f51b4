"""What ``mdispatch verify`` does: operator modules imported in the main interpreter, then warmed up
in fresh sub-interpreters and processes, and everything that differs.

Threads: one per worker creates it, runs it and puts its row in a queue, once. The caller's thread
alone reads the queue, gives up on workers that are late, and closes the rest. Nothing here prints.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Protocol

from ._verify_values import Difference, Row, row_of
from ._verify_worker import read_began, read_report, source
from .host import create_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .host import Interpreter

__all__ = ["Plan", "Workers"]

# Seconds that a worker may take beyond the timeout of its waits, and for each worker beside it.
_GRACE, _SHARE = 5.0, 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """What to verify: ``timeout`` in seconds bounds all waits of one worker together."""

    modules: tuple[str, ...]
    interpreters: int
    processes: int
    timeout: float

    def limit(self, import_seconds: float) -> float:
        """Seconds after which a worker that has not reported is given up, where the main
        interpreter took ``import_seconds`` for the same modules and all workers share its cores.
        """
        workers = self.interpreters + self.processes
        return self.timeout + _GRACE + workers * (_SHARE + import_seconds)


class _Worker(Protocol):
    """One worker: ``run`` in a thread of its own, ``close`` after that, the others at any time."""

    def run(self) -> Row: ...
    def kill(self) -> None: ...
    def late(self, limit: float) -> Row: ...
    def row(self, ended: Difference | None) -> Row: ...
    def close(self) -> None: ...


class _InInterpreter:
    """A sub-interpreter of this process. It cannot be ended from outside, only left behind."""

    def __init__(self, plan: Plan, path: Sequence[str]) -> None:
        self._report = os.memfd_create("mdispatch-verify")
        self._source = source(path, plan.modules, plan.timeout, self._report)
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
    """A fresh process of the same Python. What it prints is shown when it fails."""

    def __init__(self, plan: Plan, path: Sequence[str], limit: float) -> None:
        self._report = os.memfd_create("mdispatch-verify")
        self._output = os.memfd_create("mdispatch-verify-output")
        # Shortly before it is given up, it says where it is; later the alarm ends it, for the case
        # that nobody is left to give it up.
        self._source = (
            f"import faulthandler, _signal; faulthandler.dump_traceback_later({0.9 * limit})\n"
            f"_signal.alarm({int(2 * limit) + 1})\n"
            + source(path, plan.modules, plan.timeout, self._report)
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0
        self._killed = False
        self._lock = threading.Lock()

    def run(self) -> Row:
        with self._lock:
            if self._killed:
                return self.row(None)
            self._began = monotonic_ns()
            # In a process group of its own, the terminal's Ctrl-C leaves it to us to end it.
            process = self._process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", self._source],
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
            return self.row(None)  # some thread of a module keeps it from ending; that is no harm
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
                self._process.kill()  # nothing happens once it has been waited for

    def close(self) -> None:
        os.close(self._report)
        os.close(self._output)


_SIGNALS = {int(s) for s in signal.Signals}


class Workers:
    """The workers of a plan, all at once. After :meth:`rows` comes :meth:`close`."""

    def __init__(self, plan: Plan, limit: float) -> None:
        path = list(sys.path)  # interpreters and processes do not inherit changes of it
        self._crew: list[_Worker] = [
            *(_InInterpreter(plan, path) for _ in range(plan.interpreters)),
            *(_InProcess(plan, path, limit) for _ in range(plan.processes)),
        ]
        self._limit = limit
        self._arrived: SimpleQueue[tuple[int, Row]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._all_arrived = self._all_closed = False

    def rows(self, each: Callable[[], None]) -> list[Row]:
        """Runs them all, calls ``each`` whenever one is done; the rows, interpreters first.

        A worker that has not reported after the limit (seconds) is given up: a process is killed.
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
        # Interpreters are numbered in the order in which their threads came to create them.
        return sorted(rows, key=lambda row: (row.kind, row.interpreter or 0, row.pid or 0))

    def _run(self, index: int) -> None:
        try:
            row = self._crew[index].run()
        except Exception as error:  # a process that cannot be started
            failed = Difference("failed", type(error).__name__, summary=str(error))
            row = self._crew[index].row(failed)
        self._arrived.put((index, row))

    def kill(self) -> None:
        """Ends the processes, whatever they do."""
        for worker in self._crew:
            worker.kill()

    def close(self, limit: float = 5.0) -> bool:
        """Ends the processes and destroys the interpreters, which run what their modules left to do
        at their end. False when some are not done with it after ``limit`` seconds, or were given up
        before: then only os._exit ends this process, since threads of it are inside interpreters.
        """
        self.kill()
        if not self._all_arrived:
            return False
        deadline = monotonic() + limit
        for thread in self._threads:
            thread.join()  # after its row there is nothing left that it could wait for
        closer = threading.Thread(target=self._close_all, daemon=True)
        closer.start()
        closer.join(max(0.0, deadline - monotonic()))
        return self._all_closed

    def _close_all(self) -> None:
        # An interpreter in which a thread still runs is refused on some versions.
        with suppress(Exception):
            for worker in self._crew:
                worker.close()
            self._all_closed = True
