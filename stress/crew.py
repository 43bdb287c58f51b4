"""Crews: threads, sub-interpreters and processes that do what crew_roles.py says, and whoever tells
them and hears what came out.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import crew_roles
from measure import HANG_SECONDS, Histogram

from mdispatch.pool import interpreters as host

HERE = Path(__file__).parent

#: What most scenarios are played by: both kinds of interpreters, where there are both.
OWN = "own-gil" if host.OWN_GIL else "shared-gil"
CAST = ("thread", "thread", "thread", "shared-gil", OWN, OWN)


class Done:
    """How one order ended, see crew_roles.py."""

    def __init__(self, who: int, words: Sequence[str]) -> None:
        self.who = who
        self.ended = words[0]
        self.began, self.returned, self.queued = map(int, words[1:4])
        self.more = " ".join(words[4:])


class Crew:
    """``cast``: of each member "thread", "shared-gil", "own-gil" or "process"."""

    def __init__(
        self,
        address: str,
        cast: Sequence[str],
        roles: Sequence[str] = (),
        more: Sequence[Sequence[object]] = (),
        prefixes: Sequence[Sequence[str]] = (),
    ) -> None:
        self.cast = tuple(cast)
        self.interpreters = 0
        self._results, self._write = os.pipe()
        self._left = b""
        self._orders: list[int] = []
        self._threads: list[threading.Thread] = []
        self.processes: dict[int, subprocess.Popen] = {}
        self._said: list[tuple[int, str, list[str]]] = []
        for number, kind in enumerate(cast):
            read, write = os.pipe()
            self._orders.append(write)
            role = roles[number] if roles else "obey"
            args = (role, number, address, read, self._write, *(more[number] if more else ()))
            if kind == "process":
                self._start_process(args, prefixes[number] if prefixes else ())
                continue
            target = crew_roles.run if kind == "thread" else self._in_interpreter
            args = args if kind == "thread" else (kind == "own-gil", args)
            thread = threading.Thread(target=target, args=args, name=f"{role} {number}")
            self._threads.append(thread)
            thread.start()

    def _start_process(self, args: tuple, prefix: Sequence[str]) -> None:
        number, read = args[1], args[3]
        self.processes[number] = subprocess.Popen(
            [*prefix, sys.executable, str(HERE / "crew_roles.py"), *map(str, args)],
            pass_fds=(read, self._write),
            env={k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"},
        )
        os.close(read)

    def _in_interpreter(self, own_gil: bool, args: tuple) -> None:
        try:
            interpreter = host.create_interpreter(own_gil=own_gil)
            self.interpreters += 1
            interpreter.exec(
                f"import sys; sys.path[:] = {sys.path!r}\n"
                f"import crew_roles; crew_roles.run(*{args!r})"
            )
            interpreter.close()
        except BaseException as error:
            crew_roles.Channel(args[1], args[3], self._write).say("failed", repr(error))

    # --- telling and hearing

    def tell(self, number: int, *words: object) -> None:
        os.write(self._orders[number], (" ".join(map(str, words)) + "\n").encode())

    def hear(self, word: str, count: int, seconds: float = HANG_SECONDS) -> list[tuple[int, list]]:
        """The next lines that begin with this word. AssertionError for a failure, and for what
        hangs, with the stacks of all threads.
        """
        found: list[tuple[int, list]] = []
        end = time.monotonic() + seconds
        while True:
            for said in list(self._said):
                if said[1] == "failed":
                    raise AssertionError(f"{self.name(said[0])}: " + " ".join(said[2]))
                if said[1] == word and len(found) < count:
                    self._said.remove(said)
                    found.append((said[0], said[2]))
            if len(found) == count:
                return found
            left = end - time.monotonic()
            if not select.select([self._results], [], [], max(left, 0))[0]:
                heard = sorted(number for number, _ in found)
                raise AssertionError(
                    f"only {heard} of {count} said {word!r} within {seconds:.0f} s: "
                    f"somebody hangs\n{self.stacks()}"
                )
            *lines, self._left = (self._left + os.read(self._results, 65536)).split(b"\n")
            for line in lines:
                number, what, *more = line.decode().replace("\r", "\n").split(" ")
                self._said.append((int(number), what, more))

    def ready(self, count: int) -> None:
        """Until as many as that are about to do what they were told."""
        self.hear("ready", count)

    def done(self, count: int, seconds: float = HANG_SECONDS) -> list[Done]:
        return [Done(number, words) for number, words in self.hear("done", count, seconds)]

    def name(self, number: int) -> str:
        return f"member {number} ({self.cast[number]})"

    def stacks(self) -> str:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            lines = [file.read()]
        for pid in (os.getpid(), *(each.pid for each in self.processes.values())):
            with contextlib.suppress(OSError):
                for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
                    wchan, call = ((task / each).read_text() for each in ("wchan", "syscall"))
                    lines.append(f"pid {pid} thread {task.name}: {wchan} {call.strip()}")
        return "\n".join(lines)

    # --- those who go on by themselves

    def gather(self, figures, late, seconds: float) -> None:
        """Until all have ended: their figures are added, and ``late`` is called for each wait that
        returned too late as far as its member knows.
        """
        self.hear("end", len(self.cast), seconds + HANG_SECONDS)
        for number, what, more in self._said:
            if what == "count":
                figures.count(" ".join(more[:-1]), int(more[-1]))
            elif what == "times":
                title = more[0].replace("_", " ")
                figures.latencies.setdefault(title, Histogram()).merge(Histogram.from_text(more[1]))
            elif what == "late":
                late(self.name(number), more[0].replace("_", " "), *map(int, more[1:]))
        self._said.clear()

    # --- ending

    def close(self) -> None:
        """No more orders; all end. Idempotent."""
        orders, self._orders = self._orders, []
        for write in orders:
            os.close(write)
        for thread in self._threads:
            thread.join(HANG_SECONDS)
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(HANG_SECONDS)
            process.kill()
            process.wait()
        if orders:
            assert not any(thread.is_alive() for thread in self._threads), self.stacks()
            os.close(self._results)
            os.close(self._write)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
