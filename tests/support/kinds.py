"""Workers of every kind: threads, interpreters, processes. Each runs a source text and writes down
the outcome.

A test's main part runs in a process of its own (``run_main``), as the script of a user would. The
process that runs pytest is not the main interpreter of any test, and it has threads, so it should
not be forked.

Hundreds of main parts and workers import this module, and most need little of it. So each function
imports what takes milliseconds to load and only that function needs.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from pathlib import Path

from patience import limit

import mdispatch as md
from mdispatch.pool import interpreters as host

THREAD = "thread"
INTERPRETERS = ["shared-gil", "own-gil"] if host.OWN_GIL else ["shared-gil"]
PROCESSES = ["fork", "forkserver", "spawn", "subprocess"]
KINDS = [THREAD, *INTERPRETERS, *PROCESSES]

#: For :func:`run_main`: so many workers of a kind run a text, and each reports an ``outcome``.
OUTCOMES = """
kind, count, folder, text = args
md.default_registry()
workers = start(kind, text, count, Path(folder))
got = [each["outcome"] for each in results(workers)]
facts = md.default_registry().dispatcher.facts
done(got=got, check=facts.check())
"""

#: This folder: workers import their helpers from it.
SUPPORT = str(Path(__file__).parent)

_PRELUDE = """
import sys
import tempfile
sys.path[:] = {path!r}
from patience import limit
INDEX, FOLDER = {index!r}, {folder!r}

def report(**values):
    import os
    name = f"{{FOLDER}}/{{INDEX}}"
    with open(name + ".part", "w") as file:
        file.write(repr(values))
    os.rename(name + ".part", name)

def arrived(turn):
    # A mark that the main part waits for.
    open(f"{{FOLDER}}/{{INDEX}}.arrived{{turn}}", "w").close()

def i_am_here():
    # Who to look at to see that this worker sleeps.
    import os, _thread
    with open(f"{{FOLDER}}/{{INDEX}}.part", "w") as file:
        file.write(f"{{os.getpid()}} {{_thread.get_native_id()}}")
    os.rename(f"{{FOLDER}}/{{INDEX}}.part", f"{{FOLDER}}/{{INDEX}}.task")
"""


def run_source(text: str, index: int, folder: str, path: list[str]) -> None:
    """What a worker of any kind runs. An error is a result, too."""
    try:
        exec(_PRELUDE.format(path=path, index=index, folder=folder) + text, {"__name__": "worker"})
    except BaseException:
        import traceback

        Path(folder, f"{index}.error").write_text(traceback.format_exc())


class Worker:
    """One started worker: ``join`` it, then read its ``result``. It has a ``pid`` if it is a
    process of its own.
    """

    def __init__(self, kind: str, text: str, index: int, folder: Path) -> None:
        import textwrap

        self.index = index
        self.folder = folder
        self.pid = os.getpid()
        args = (textwrap.dedent(text), index, str(folder), sys.path)
        if kind == THREAD:
            self._run = threading.Thread(target=run_source, args=args)
            self._run.start()
        elif kind in ("shared-gil", "own-gil"):
            self._run = threading.Thread(target=self._interpret, args=(kind == "own-gil", args))
            self._run.start()
        elif kind == "subprocess":
            import subprocess

            find = f"import sys; sys.path.insert(0, {SUPPORT!r})"
            code = f"{find}; import kinds; kinds.run_source(*{args!r})"
            self._run = subprocess.Popen([sys.executable, "-c", code])
            self.pid = self._run.pid
        else:
            import multiprocessing

            self._run = multiprocessing.get_context(kind).Process(target=run_source, args=args)
            self._run.start()
            self.pid = self._run.pid

    def _interpret(self, own_gil: bool, args: tuple[object, ...]) -> None:
        interpreter = host.create_interpreter(own_gil=own_gil)
        try:
            interpreter.exec(f"PRELUDE, ARGS = {_PRELUDE!r}, {args!r}\n" + _IN_INTERPRETER)
        except BaseException:
            import traceback

            Path(self.folder, f"{self.index}.error").write_text(traceback.format_exc())
        interpreter.close()

    def join(self, seconds: float = limit(60.0)) -> None:
        if hasattr(self._run, "wait"):  # a subprocess.Popen
            self._run.wait(seconds)
            return
        self._run.join(seconds)
        assert not self._run.is_alive(), f"worker {self.index} did not end within {seconds} s"

    def result(self) -> dict:
        import ast

        failed = self.folder / f"{self.index}.error"
        if failed.exists():
            raise AssertionError(f"worker {self.index} failed:\n{failed.read_text()}")
        return ast.literal_eval((self.folder / str(self.index)).read_text())

    def is_asleep(self) -> bool:
        """Whether its thread sleeps in the kernel, in the wait of an event count."""
        try:
            pid, tid = (self.folder / f"{self.index}.task").read_text().split()
            call = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()
        except OSError:
            return False
        # futex_waitv, or futex(FUTEX_WAIT_BITSET) on shared memory: nothing else here uses either.
        return call[0] == "449" or (call[0] == "202" and int(call[2], 16) == 9)


# Interpreters should not load multiprocessing. So they do not import this module; they get the text
# of run_source.
_IN_INTERPRETER = """
text, index, folder, path = ARGS
try:
    exec(PRELUDE.format(path=path, index=index, folder=folder) + text, {"__name__": "worker"})
except BaseException:
    import traceback
    with open(f"{folder}/{index}.error", "w") as file:
        file.write(traceback.format_exc())
"""


def start(kind: str, text: str, count: int, folder: Path) -> list[Worker]:
    return [Worker(kind, text, index, folder) for index in range(count)]


def results(workers: list[Worker]) -> list[dict]:
    for worker in workers:
        worker.join()
    return [worker.result() for worker in workers]


def until(condition, seconds: float = limit(60.0)) -> None:
    """Looks again and again until something that others do has happened."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{condition} did not come true within {seconds} s"
        select.select([], [], [], 0.001)


def is_stopped(pid: int) -> bool:
    """Whether a process has stopped: each of its threads does when it gets round to it."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    try:
        return {each.read_text().rpartition(") ")[2][0] for each in threads} == {"T"}
    except (FileNotFoundError, ProcessLookupError):  # one of them has just ended
        return False


def until_arrived(workers: list[Worker], turn: int) -> None:
    until(lambda: all((w.folder / f"{w.index}.arrived{turn}").exists() for w in workers))


def until_asleep(workers: list[Worker]) -> None:
    def asleep() -> bool:
        for worker in workers:
            if (worker.folder / f"{worker.index}.error").exists():
                worker.result()
        return all(worker.is_asleep() for worker in workers)

    until(asleep)


def run_main(text: str, *args: object, timeout: float = 90.0, check: bool = True) -> dict:
    """Runs a main part, the body of a function with ``args``, in a process of its own. Returns the
    arguments that it passes to ``done(...)``, or {} when it did not call that.
    """
    import ast
    import shutil
    import subprocess
    import tempfile
    import textwrap

    script = (
        f"import sys; sys.path.insert(0, {SUPPORT!r})\n"
        "from kinds import *\nfrom patience import limit\nfrom pathlib import Path\n"
        "import mdispatch as md\nimport os, signal, textwrap, time\n"
        "def done(**values):\n    print('DONE', repr(values), flush=True)\n"
        "def main(args):\n" + textwrap.indent(textwrap.dedent(text), "    ") + "\n"
        f"if __name__ == '__main__':\n    main({args!r})\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
    # In a folder of its own: what lies beside a script comes before the standard library.
    folder = Path(tempfile.mkdtemp(prefix="mdispatch-test-"))
    file = folder / "main.py"
    file.write_text(script)
    ran = subprocess.Popen(
        [sys.executable, "-W", "error", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    with ran:
        try:
            out, err = ran.communicate(timeout=limit(timeout))
        except BaseException as error:
            os.killpg(ran.pid, signal.SIGKILL)  # the workers too
            if isinstance(error, subprocess.TimeoutExpired):
                out, err = ran.communicate()
                raise AssertionError(f"not done after {timeout} s\n{out}\n{err}") from None
            raise
        finally:
            shutil.rmtree(folder)
    if check:
        assert ran.returncode == 0, f"exit status {ran.returncode}\n{out}\n{err}"
    values: dict = {"returncode": ran.returncode, "stderr": err, "stdout": out}
    for line in out.splitlines():
        if line.startswith("DONE "):
            values |= ast.literal_eval(line[5:])
    return values


__all__ = ["INTERPRETERS", "KINDS", "PROCESSES", "SUPPORT", "THREAD", "Worker", "md"]
__all__ += ["is_stopped", "results", "run_main", "start", "until", "until_arrived"]
__all__ += ["until_asleep"]
