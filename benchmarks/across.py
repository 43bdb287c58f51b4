"""Calls that run elsewhere: in another interpreter of the process, and in another process, beside
an echo of the same values over a bare multiprocessing.Pipe. And methods of handles, there and here.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from multiprocessing.connection import Connection

import mdispatch as md
from mdispatch.cli.bench.figures import Figure, ratio
from mdispatch.cli.bench.measure import Settings, compiled, in_turns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["figures"]

ROUNDS = 60
_MIB = 1 << 20
_AIM = 1.5

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
    aims = {"other process, two ints": _AIM}
    for what in against:
        yield ratio(f"{what} / {against[what]}", *times[what], aim=aims.get(what))
