"""Calls that run elsewhere: in another interpreter of the process, and in another process, beside
an echo of the same values over a bare multiprocessing.Pipe.
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

__all__ = ["figures"]

ROUNDS = 60
_MIB = 1 << 20
_AIM = 1.5

#: A process that has the definitions, and serves "add" and "size".
_OWNER = """
import sys
import mdispatch as md
md.register_type(bytearray, "CPU")
registry = md.Registry.create(sys.argv[1])
lib = md.Library("far", "DEF", registry=registry)
near = md.Library("near", "DEF", registry=registry)
for each, serve in ((lib, "host"), (near, False)):
    each.impl(each.define("add(int a, int b) -> int"), lambda a, b: a + b,
              "CompositeExplicitAutograd", serve=serve)
    each.impl(each.define("size(Tensor x) -> int"), lambda x: len(x), "CPU", serve=serve)
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
_NEIGHBOUR = """
import mdispatch as md
md.register_type(bytearray, "CPU")
library = md.Library("near", "IMPL", registry=md.Registry.attach(NAME))
library.impl("add", lambda a, b: a + b, "CompositeExplicitAutograd", serve=True)
library.impl("size", lambda x: len(x), "CPU", serve=True)
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
        echo = {"send": line.send, "recv": line.recv, "x": memory}
        works = {
            "Pipe echo, two ints": compiled("send((1, 2)); recv()", echo),
            "Pipe echo, 1 MiB": compiled("send(x); recv()", echo),
            "plain call": compiled("f(1, 2)", {"f": lambda a, b: a + b}),
            "other process, two ints": compiled("f(1, 2)", {"f": far.add.default}),
            "other process, 1 MiB": compiled("f(x)", {"f": far.size.default, "x": memory}),
            "visit, two ints": compiled("f(1, 2)", {"f": near.add.default}),
            "visit, 1 MiB": compiled("f(x)", {"f": near.size.default, "x": memory}),
        }
        against = {
            "other process, two ints": "Pipe echo, two ints",
            "other process, 1 MiB": "Pipe echo, 1 MiB",
            "visit, two ints": "plain call",
            "visit, 1 MiB": "visit, two ints",
        }
        times = in_turns(works, against, asked, ROUNDS)
        neighbour.close()
    aims = {"other process, two ints": _AIM}
    for what in against:
        yield ratio(f"{what} / {against[what]}", *times[what], aim=aims.get(what))
