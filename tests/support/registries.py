"""Registries in processes of their own, for tests that look at them from outside. Each process runs
the code that it is sent, lives until it is killed, and dies with the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from commands import environment
from kinds import is_stopped, until

from mdispatch.facts.native import native
from mdispatch.facts.outside import Seen, look_at

FOLDER = Path(os.fsdecode(native.folder()[1]))

_TOLD = """
import json, os, sys, threading
import mdispatch as md
def wait(*args):
    def run():
        try:
            args[0](*args[1:], registry=registry)
        except md.errors.MdispatchError:
            pass
    threading.Thread(target=run, daemon=True).start()
{begin}
print(registry.address, flush=True)
for line in sys.stdin:
    exec(json.loads(line))
    print("done", flush=True)
"""
_MAIN = """
registry = md.Registry.create(sys.argv[1] or None, capacity=1 << 22)
lib = md.Library("shop", "DEF", registry=registry)
lib.define("scale(Tensor x) -> Tensor")
lib.define("shift(Tensor x) -> Tensor")
lib.impl("scale", len, "CPU")
"""
_WORKER = "registry = md.Registry.attach(sys.argv[1])\n"


class Process:
    """A process with a registry: its registrar, or a worker of it."""

    def __init__(self, argument: str, begin: str, *before: str) -> None:
        self._process = subprocess.Popen(
            [*before, sys.executable, "-c", _TOLD.format(begin=begin), argument],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self.pid = self._process.pid
        self.address = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"process {self.pid} ended"
        return line

    def begin(self, code: str) -> None:
        """Makes its main thread run some code, which may never end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()

    def do(self, code: str) -> None:
        """Makes it run some code, and waits for the end."""
        self.begin(code)
        assert self._line() == "done"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *args: object) -> None:
        with self._process:
            self._process.kill()


def main_of(name: str, *before: str) -> Process:
    """The registrar of a new registry; "" makes an anonymous one."""
    return Process(name, _MAIN, *before)


def worker_of(address: str) -> Process:
    return Process(address, _WORKER)


def seen(name: str) -> Seen:
    return look_at(f"shm:{name}", name)


def until_waiting(name: str, threads: int) -> None:
    until(lambda: sum(member.threads for member in seen(name).waiting) == threads)


def until_stopped(pid: int) -> None:
    until(lambda: is_stopped(pid))
