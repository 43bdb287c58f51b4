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
from contextlib import contextmanager
from multiprocessing.connection import Connection

import mdispatch as md
from mdispatch.cli.bench.figures import Figure, figure, ratio
from mdispatch.cli.bench.measure import Settings, compiled, in_turns
from mdispatch.workers.interpreters import OWN_GIL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["figures"]

ROUNDS = 60
_MIB = 1 << 20
_AIM = 1.5
_LATE = 1.0

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


def figures(asked: Settings) -> Iterator[Figure]:
    md.register_type(bytearray, "CPU")
    name = f"across-{os.getpid()}"
    made: dict[str, Any] = {}
    exec(_ADDER, made)
    mine, theirs = socket.socketpair()
    with (
        mine,
        theirs,
        _process(_OWNER, name),
        _process(_ECHO, theirs.fileno(), pass_fds=[theirs.fileno()]),
        Connection(mine.detach()) as line,
        md.Registry.attach(name) as registry,
        md.routing("far", "near"),
    ):
        neighbour = md.create_interpreter()
        neighbour.exec(f"NAME = {name!r}\n{_NEIGHBOUR}")
        memory = bytearray(_MIB)
        far, near = registry.ops.far, registry.ops.near
        adder = made["register"](registry)()
        echo = {"send": line.send, "recv": line.recv, "x": memory}
        works = {
            "Pipe echo, two ints": compiled("send((1, 2)); recv()", echo),
            "Pipe echo, 1 MiB": compiled("send(x); recv()", echo),
            "plain call": compiled("f(1, 2)", {"f": lambda a, b: a + b}),
            "other process, two ints": compiled("f(1, 2)", {"f": far.add.default}),
            "other process, 1 MiB": compiled("f(x)", {"f": far.size.default, "x": memory}),
            "visit, two ints": compiled("f(1, 2)", {"f": near.add.default}),
            "visit, 1 MiB": compiled("f(x)", {"f": near.size.default, "x": memory}),
            "method of a handle, other process": compiled("h.add(1, 2)", {"h": far.shelf()}),
            "method of a handle, visit": compiled("h.add(1, 2)", {"h": near.shelf()}),
            "method of a handle, at home": compiled("h.add(1, 2)", {"h": md.share(adder)}),
            "its operator": compiled("f(x, 1, 2)", {"f": far.Adder.add, "x": adder}),
        }
        against = {
            "other process, two ints": "Pipe echo, two ints",
            "other process, 1 MiB": "Pipe echo, 1 MiB",
            "visit, two ints": "plain call",
            "visit, 1 MiB": "visit, two ints",
            "method of a handle, other process": "Pipe echo, two ints",
            "method of a handle, visit": "plain call",
            "method of a handle, at home": "its operator",
        }
        times = in_turns(works, against, asked, ROUNDS)
        neighbour.close()
        late = list(_busy(name, near, ROUNDS // 3)) if OWN_GIL else []
    aims = {"other process, two ints": _AIM}
    for what in against:
        yield ratio(f"{what} / {against[what]}", *times[what], aim=aims.get(what))
    if late:
        yield figure("visit of an owner that computes, p99", late, "ms", scale=1e3, aim=_LATE)
