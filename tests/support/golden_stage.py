"""The stage for the cases of golden errors: a registry with some registrations, other processes,
and the list of the cases.
"""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinds import until
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.facts.opening import ENVIRONMENT

CASES: dict[str, Callable[[Stage], object]] = {}
_stages = itertools.count()


def case(title: str) -> Callable[[Callable[[Stage], object]], None]:
    """A way to provoke an error. Its title has the error's class and the action."""

    def keep(provoke: Callable[[Stage], object]) -> None:
        assert title not in CASES
        CASES[title] = provoke

    return keep


class Array:
    def __init__(self, *keys: str) -> None:
        self.__dispatch_keys__ = md.DispatchKeySet(keys or "CPU")


def kernel(*args: object, **kwargs: object) -> None:
    """The registrations of the stage."""


class Stage:
    """The stage of a case: a registry with some registrations, and a second process."""

    def __init__(self, registry: md.Registry, folder: Path, worker: dict[str, Exception]) -> None:
        self.registry = registry
        self.folder = folder
        self.worker = worker
        # Another name for each stage of a process: an epoch counts the leaders of one run.
        self.name = f"golden-{os.getpid()}{next(_stages):04}"
        self.lib = md.Library("shop", "DEF", registry=registry)
        self.lib.define("scale(Tensor x, float factor=2.0, *, Tensor? out=None) -> Tensor")
        self.lib.define("split(Tensor x, int parts) -> (Tensor, Tensor)")
        self.lib.define("split.sizes(Tensor x, int[] sizes) -> Tensor[]")
        self.lib.impl("scale", kernel, "CPU")
        self.lib.impl("split", kernel, "CPU")

    @property
    def shop(self) -> Any:
        return self.registry.ops.shop

    def library(self, *arguments: str) -> md.Library:
        return md.Library(*arguments, registry=self.registry)


# --- other processes ------------------------------------------------------------------------------

CATCH = """
import pickle, sys
import mdispatch.errors
try:
    exec(compile(open({file!r}).read(), {file!r}, "exec"), {{"__name__": "__main__"}})
except mdispatch.errors.MdispatchError as error:
    sys.stdout.buffer.write(pickle.dumps(error))
"""


def elsewhere(stage: Stage, script: str, **environment: str) -> None:
    """Raises the error that a script raises in a process of its own."""
    file = stage.folder / "script.py"
    file.write_text(script)
    kept = {key: value for key, value in os.environ.items() if key != ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CATCH.format(file=str(file))],
        capture_output=True,
        env=kept | environment,
        timeout=limit(60),
        cwd=stage.folder,
    )
    assert done.stdout, done.stderr.decode()
    raise pickle.loads(done.stdout)


class Main:
    """A process with a registry, which ends in the way it is told."""

    SCRIPT = """
import sys
import mdispatch as md
registry = md.Registry.create(*sys.argv[1:])
md.Library("shop", "DEF", registry=registry).define("scale(Tensor x) -> Tensor")
print(registry.address, flush=True)
for line in sys.stdin:
    registry.close()
    break
"""

    def __init__(self, *name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.SCRIPT, *name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def close(self) -> None:
        self.process.communicate("close\n")


def waiting(main: Main, end: Callable[[], None]) -> None:
    """Raises the error of a wait in a worker whose registrar ends in this way."""
    caught: list[Exception] = []

    def wait() -> None:
        try:
            md.wait_for_def("shop::never", 60, registry=worker)
        except errors.MdispatchError as error:
            caught.append(error)

    with md.Registry.attach(main.address) as worker:
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: any(member[4] for member in worker.dispatcher.facts.members()))
        end()
        thread.join()
    raise caught[0]
