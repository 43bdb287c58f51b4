"""Processes of one registry that run lines, and give back all that they printed meanwhile."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from commands import environment
from patience import limit

from mdispatch.facts.opening import ENVIRONMENT

_PROGRAM = """
import logging, sys
logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s", stream=sys.stdout)
import mdispatch as md
from mdispatch import errors
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Member:
    """Such a process. Its modules are in ``folder``; ``env`` changes its environment."""

    def __init__(self, address: str, folder: Path, **env: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            cwd=folder,
            env=environment(**{ENVIRONMENT: address}, **env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, text: str) -> str:
        """Runs the lines in the process's module. Returns what it printed and logged."""
        self.begin(text)
        return self.told()

    def begin(self, text: str) -> None:
        """Has the process run the lines, and does not wait."""
        assert self.process.stdin
        self.process.stdin.write(f"exec({textwrap.dedent(text)!r})\n")
        self.process.stdin.flush()

    def told(self) -> str:
        """The text that the process has printed and logged, once it has run the lines."""
        assert self.process.stdout
        told = []
        for line in self.process.stdout:
            if line == "done\n":
                return "".join(told)
            told.append(line)
        raise AssertionError(f"the member has ended with {self.process.wait()}: {told}")

    def end(self) -> None:
        self.process.communicate(timeout=limit(60))


@contextmanager
def member(address: str, folder: Path, **env: str) -> Iterator[Member]:
    made = Member(address, folder, **env)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.end()
