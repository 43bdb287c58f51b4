"""Finding an operator that is there, and verifying it: from Python, by one process and by two at
once.

There are 1,000 operators. A worker verifies the operators that the main interpreter has registered;
that is measured in a sub-interpreter.
"""

from __future__ import annotations

import sys
import tempfile
from ast import literal_eval
from functools import partial
from pathlib import Path

import mdispatch as md
from mdispatch import facts
from mdispatch.cli.bench import fresh
from mdispatch.cli.bench.figures import Figure, figure
from mdispatch.cli.bench.measure import (
    Settings,
    compiled,
    loops_for,
    undisturbed,
    without_collector,
)

from .pairs import Workers, in_turns, times_the_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdispatch.cli.bench.measure import Work

__all__ = ["figures"]

ROUNDS, TURNS = 60, 31
_OPERATORS, _QUICK_OPERATORS = 1_000, 50
#: Microseconds; how many times as much two processes find as one.
_AIM, _TWICE_AIM = 1.0, 1.9

_MODULE = """
import mdispatch as md

lib = md.Library("find", "DEF")

def kernel(x):
    return x

for i in range({operators}):
    lib.define(f"op{{i}}(Tensor x) -> Tensor")
    lib.impl(f"op{{i}}", kernel, "CPU")
"""

_NAME = "find::op7"
_MAIN = {
    "find a fact": "find(kind, 0, name)",
    "is the fact there": "has(kind, 0, name)",
    "ops.find(name)": "ops_find(name)",
    "wait_for_def(name), in main": "wait_for_def(name)",
}

_BEFORE = """
import mdispatch as md
md.warm_up("find_ops")
facts = md.default_registry().dispatcher.facts
def many(count, find=facts.find, name="{name}"):
    for _ in range(count):
        find({kind}, 0, name)
many(100)
"""

_WORKER = """
from functools import partial
from mdispatch.cli.bench.measure import compiled, loops_for, undisturbed
names = dict(wait=md.wait_for_def, wait_impl=md.wait_for_impl, find=facts.find, name={name!r})
works = {{
    "find a fact, in a worker": compiled("find({kind}, 0, name)", names),
    "verify: wait_for_def(name)": compiled("wait(name)", names),
    "verify: wait_for_impl(name, key)": compiled("wait_impl(name, 'CPU')", names),
}}
found = {{what: [] for what in works}}
for what, work in works.items():
    count = loops_for(work, {seconds})
    for _ in range({rounds}):
        found[what].append(undisturbed(partial(work, count)) / count)
tell(found)
"""


def figures(asked: Settings) -> Iterator[Figure]:
    operators = _QUICK_OPERATORS if asked.quick else _OPERATORS
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "find_ops.py").write_text(
            _MODULE.format(operators=operators), encoding="utf-8"
        )
        sys.path.insert(0, folder)
        md.warm_up("find_ops")
        yield from _alone(asked)
        before = _BEFORE.format(name=_NAME, kind=facts.DEF)
        yield from _in_worker(asked, before)
        yield from _at_once(asked, before)


def _alone(asked: Settings) -> Iterator[Figure]:
    registry = md.default_registry()
    names = {
        "find": registry.dispatcher.facts.find,
        "has": registry.dispatcher.facts.has,
        "ops_find": md.ops.find,
        "wait_for_def": md.wait_for_def,
        "kind": facts.DEF,
        "name": _NAME,
    }
    works = {what: compiled(statement, names) for what, statement in _MAIN.items()}
    for what, rounds in _rounds(works, asked).items():
        yield figure(what, rounds, "us", scale=1e6, aim=_AIM)


def _rounds(works: dict[str, Work], asked: Settings) -> dict[str, list[float]]:
    counts = {what: loops_for(work, _seconds(asked)) for what, work in works.items()}
    found: dict[str, list[float]] = {what: [] for what in works}
    with without_collector():
        for _ in range(asked.rounds_of(ROUNDS)):
            for what, work in works.items():
                count = counts[what]
                found[what].append(undisturbed(partial(work, count)) / count)
    return found


def _seconds(asked: Settings) -> float:
    return 1e-4 if asked.quick else 1e-3


def _in_worker(asked: Settings, before: str) -> Iterator[Figure]:
    rounds = asked.rounds_of(ROUNDS)
    code = _WORKER.format(name=_NAME, kind=facts.DEF, rounds=rounds, seconds=_seconds(asked))
    _, answer = fresh.run(before + code)
    for what, times in literal_eval(str(answer)).items():
        yield figure(f"{what}, {fresh.KIND} interpreter", times, "us", scale=1e6, aim=_AIM)


def _at_once(asked: Settings, before: str) -> Iterator[Figure]:
    turns = 2_000 if asked.quick else 5_000
    with Workers() as workers:
        pair = [workers.process(before, f"many({turns})") for _ in range(2)]
        found = in_turns({"find a fact": pair}, asked.rounds_of(TURNS))
    yield from times_the_work(found, "processes", {"find a fact": _TWICE_AIM})
