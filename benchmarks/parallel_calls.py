"""Calls of one operator by two interpreters or two threads at once, against one alone.

The same is measured with a plain Python function: it shows how much the machine and the interpreter
have to give.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import mdispatch as md
from mdispatch.cli.bench.figures import Figure, LeftOut
from mdispatch.cli.bench.measure import Settings, compiled, loops_for
from mdispatch.workers.interpreters import OWN_GIL

from .pairs import Workers, in_turns, times_the_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from .pairs import Work

__all__ = ["figures"]

ROUNDS = 60
_OPERATOR, _PLAIN = "operator", "plain call"
#: How many times the calls of one alone.
_INTERPRETERS_AIM, _THREADS_AIM = 1.7, 1.8
#: Of one turn: much more than starting a thread takes.
_SECONDS = 10e-3

_MODULE = """
import mdispatch as md

class Array:
    pass

md.register_type(Array, "CPU")
lib = md.Library("calls", "DEF")
lib.define("f(Tensor x) -> Tensor")

@lib.impl("f", dispatch_key="CPU")
def kernel(x):
    return x

operator = md.ops.calls.f.default
"""

#: For each kind of call, code of its own, as the interpreter learns what a call does where it
#: stands.
_BEFORE = """
import mdispatch as md
md.warm_up("calls_ops")
from calls_ops import Array, kernel, operator
x = Array()
def call_operator(count, f=operator):
    for _ in range(count):
        f(x)
def call_plain(count, f=kernel):
    for _ in range(count):
        f(x)
call_operator(1000)
call_plain(1000)
"""


def figures(asked: Settings) -> Iterator[Figure | LeftOut]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "calls_ops.py").write_text(_MODULE, encoding="utf-8")
        sys.path.insert(0, folder)
        md.warm_up("calls_ops")
        module = sys.modules["calls_ops"]
        seconds = _SECONDS / 10 if asked.quick else _SECONDS
        names = {"f": module.operator, "x": module.Array()}
        counts = {_OPERATOR: loops_for(compiled("f(x)", names), seconds)}
        counts[_PLAIN] = loops_for(compiled("f(x)", names | {"f": module.kernel}), seconds)
        yield from _interpreters(asked, counts)
        yield from _threads(asked, counts, module)
        module.lib.close()


def _interpreters(asked: Settings, counts: dict[str, int]) -> Iterator[Figure | LeftOut]:
    if not OWN_GIL:
        yield LeftOut("own-GIL interpreters", "there are none before Python 3.12")
        return
    busy = {
        _OPERATOR: f"call_operator({counts[_OPERATOR]})",
        _PLAIN: f"call_plain({counts[_PLAIN]})",
    }
    with Workers() as workers:
        kinds = {
            kind: [workers.interpreter(_BEFORE, code, own_gil=True) for _ in range(2)]
            for kind, code in busy.items()
        }
        found = in_turns(kinds, asked.rounds_of(ROUNDS))
    yield from times_the_work(found, "own-GIL interpreters", {_OPERATOR: _INTERPRETERS_AIM})


def _threads(
    asked: Settings, counts: dict[str, int], module: ModuleType
) -> Iterator[Figure | LeftOut]:
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        yield LeftOut("threads without a GIL", "this Python has a GIL")
        return

    def pair(kind: str, f: object) -> list[Work]:
        """Each with an array and with code of its own, one function for both."""
        works = [compiled("f(x)", {"f": f, "x": module.Array()}) for _ in range(2)]
        for work in works:
            work(1000)
        return [partial(work, counts[kind]) for work in works]

    kinds = {_OPERATOR: pair(_OPERATOR, module.operator), _PLAIN: pair(_PLAIN, module.kernel)}
    found = in_turns(kinds, asked.rounds_of(ROUNDS))
    yield from times_the_work(found, "threads", {_OPERATOR: _THREADS_AIM})
