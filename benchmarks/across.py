"""Calls that run elsewhere: in another interpreter of the process, and in another process, beside
an echo of the same values over a bare multiprocessing.Pipe. Methods of handles, there and here. And
visits of an interpreter that computes in Python the whole time.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import cached_property
from multiprocessing.connection import Connection

import mdispatch as md
from mdispatch.pool.interpreters import OWN_GIL

from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from pyperf import Benchmark

ROUNDS = 20
_MIB = 1 << 20
_AIM = 1.5
_LATE = 1e-3

#: A registered class: both processes have it.
_ADDER = """
import mdispatch as md
def register(registry):
    @md.register_class("far.Adder", methods={"add": "(int a, int b) -> int"}, registry=registry)
    class Adder:
        def add(self, a, b):
            return a + b
    return Adder
"""

#: An object of no registered class. Its handle comes as the answer of an operator.
_SHELF = """
class Shelf:
    def add(self, a, b):
        return a + b
shelf = Shelf()
"""

#: A process that has the definitions, and serves "add" and "size", and an object.
_OWNER = f"""
import sys
{_ADDER}
{_SHELF}
md.register_type(bytearray, "CPU")
registry = md.Registry.create(sys.argv[1])
lib = md.Library("far", "DEF", registry=registry)
near = md.Library("near", "DEF", registry=registry)
for each, serve in ((lib, "host"), (near, False)):
    each.impl(each.define("add(int a, int b) -> int"), lambda a, b: a + b,
              "CompositeExplicitAutograd", serve=serve)
    each.impl(each.define("size(Tensor x) -> int"), lambda x: len(x), "CPU", serve=serve)
    each.impl(each.define("shelf() -> Any"), lambda: md.share(shelf, serve="host"),
              "CompositeExplicitAutograd", serve=serve)
for each in ("busy() -> int", "stop() -> ()"):
    near.impl(near.define(each), lambda: None, "CompositeExplicitAutograd")
register(registry)
print("ready", flush=True)
sys.stdin.read()
"""

#: Its twin without mdispatch: both ends of a multiprocessing.Pipe are such connections.
_ECHO = """
import sys
from multiprocessing.connection import Connection
line = Connection(int(sys.argv[1]))
print("ready", flush=True)
try:
    while True:
        told = line.recv()
        line.send(told[0] + told[1] if type(told) is tuple else len(told))
except EOFError:
    pass
"""

#: An interpreter of this process, which serves the operators of "near".
_NEIGHBOUR = f"""
import mdispatch as md
{_SHELF}
md.register_type(bytearray, "CPU")
library = md.Library("near", "IMPL", registry=md.Registry.attach(NAME))
library.impl("add", lambda a, b: a + b, "CompositeExplicitAutograd", serve=True)
library.impl("size", lambda x: len(x), "CPU", serve=True)
library.impl("shelf", lambda: md.share(shelf), "CompositeExplicitAutograd", serve=True)
"""

#: An interpreter that computes until it is told to stop.
_COMPUTER = """
import mdispatch as md
library = md.Library("near", "IMPL", registry=md.Registry.attach(NAME))
going = [True]
library.impl("busy", lambda: 1, "CompositeExplicitAutograd", serve=True)
library.impl("stop", going.clear, "CompositeExplicitAutograd", serve=True)
"""
_COMPUTES = "while going: sum(range(100))"
#: Visits of it in one round.
_VISITS = 200


def _busy(name: str, near: Any, rounds: int) -> Iterator[float]:
    """Of each round the time that one visit in a hundred exceeds, in seconds."""
    computer = md.create_interpreter(own_gil=True)
    computer.exec(f"NAME = {name!r}\n{_COMPUTER}")
    thread = threading.Thread(target=computer.exec, args=(_COMPUTES,))
    thread.start()
    busy = near.busy.default
    try:
        for _ in range(rounds):
            times = []
            for _ in range(_VISITS):
                time.sleep(0.001)  # one that comes at once may be in before the owner goes on
                begin = time.perf_counter()
                busy()
                times.append(time.perf_counter() - begin)
            yield sorted(times)[-1 - _VISITS // 100]
    finally:
        near.stop()
        thread.join()
        computer.close()


@contextmanager
def _process(code: str, *args: object, **options: object) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        **options,  # type: ignore[call-overload]
    ) as process:
        process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()


class _World:
    """The owners, the echo and what is called; each is started when it is asked for first."""

    def __init__(self, ends: ExitStack) -> None:
        self._ends = ends
        self.name = f"across-{os.getpid()}"
        self.memory = bytearray(_MIB)
        md.register_type(bytearray, "CPU")

    @cached_property
    def registry(self) -> md.Registry:
        self._ends.enter_context(_process(_OWNER, self.name))
        registry = self._ends.enter_context(md.Registry.attach(self.name))
        self._ends.enter_context(md.routing("far", "near"))
        return registry

    @cached_property
    def line(self) -> Connection:
        mine, theirs = socket.socketpair()
        self._ends.enter_context(_process(_ECHO, theirs.fileno(), pass_fds=[theirs.fileno()]))
        theirs.close()
        return self._ends.enter_context(Connection(mine.detach()))

    @property
    def far(self) -> Any:
        return self.registry.ops.far

    @cached_property
    def near(self) -> Any:
        registry = self.registry
        neighbour = md.create_interpreter()
        self._ends.callback(neighbour.close)
        neighbour.exec(f"NAME = {self.name!r}\n{_NEIGHBOUR}")
        return registry.ops.near

    @cached_property
    def adder(self) -> Any:
        made: dict[str, Any] = {}
        exec(_ADDER, made)
        return made["register"](self.registry)()

    def operator_of_a_method(self) -> tuple[Any, ...]:
        adder = self.adder
        return self.far.Adder.add, adder


def main() -> None:
    with ExitStack() as ends:
        job, world = Job(), _World(ends)
        _measured(job, world)
        if OWN_GIL and not job.measures:
            late = _busy(world.name, world.near, job.rounds(ROUNDS))
            job.values("visit of an owner that computes, p99", late, aim=_LATE)
        job.end()


def _measured(job: Job, world: _World) -> None:
    def of(what: str, statement: str, names: str, prepare: Callable[[], Any]) -> Benchmark | None:
        return job.statement(what, statement, names, prepare)

    plain = of("plain call", "f(1, 2)", "f", lambda: lambda a, b: a + b)
    ends, handle = "send, recv, x", "h.add(1, 2)"
    echo = of("Pipe echo, two ints", "send((1, 2)); recv()", ends, lambda: _echo(world))
    whole = of("Pipe echo, 1 MiB", "send(x); recv()", ends, lambda: _echo(world))
    ints = of("other process, two ints", "f(1, 2)", "f", lambda: world.far.add.default)
    job.ratio("other process / Pipe echo, two ints", ints, echo, aim=_AIM)
    size = of(
        "other process, 1 MiB", "f(x)", "f, x", lambda: (world.far.size.default, world.memory)
    )
    job.ratio("other process / Pipe echo, 1 MiB", size, whole)
    visit = of("visit, two ints", "f(1, 2)", "f", lambda: world.near.add.default)
    job.ratio("visit, two ints / plain call", visit, plain)
    size = of("visit, 1 MiB", "f(x)", "f, x", lambda: (world.near.size.default, world.memory))
    job.ratio("visit, 1 MiB / visit, two ints", size, visit)
    method = "method of a handle"
    there = of(f"{method}, other process", handle, "h", lambda: world.far.shelf())
    job.ratio(f"{method}, other process / Pipe echo, two ints", there, echo)
    there = of(f"{method}, visit", handle, "h", lambda: world.near.shelf())
    job.ratio(f"{method}, visit / plain call", there, plain)
    here = of(f"{method}, at home", handle, "h", lambda: md.share(world.adder))
    operator = of("its operator", "f(x, 1, 2)", "f, x", world.operator_of_a_method)
    job.ratio(f"{method}, at home / its operator", here, operator)


def _echo(world: _World) -> tuple[Any, ...]:
    return world.line.send, world.line.recv, world.memory


if __name__ == "__main__":
    main()
