"""Finding an operator that is there, and verifying it: from Python, by one process and by two at
once.

There are 1,000 operators. A worker verifies the operators that the main interpreter has registered;
that is measured in a sub-interpreter.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import mdispatch as md
from mdispatch import facts

from . import fresh
from .job import Job
from .pairs import Workers, in_turns, times_the_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .job import Work


TURNS = 31
_OPERATORS, _QUICK_OPERATORS = 1_000, 50
#: Seconds; how many times as much two processes find as one.
_AIM, _TWICE_AIM = 1e-6, 1.9

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

_IN_WORKER = {
    "find a fact, in a worker": "find({kind}, 0, name)",
    "verify: wait_for_def(name)": "wait(name)",
    "verify: wait_for_impl(name, key)": "wait_impl(name, 'CPU')",
}
_TIMED = """
def timed(count, find=facts.find, wait=md.wait_for_def, wait_impl=md.wait_for_impl, name={name!r}):
    began = perf_counter()
    for _ in range(count):
        {statement}
    return perf_counter() - began
"""


def main() -> None:
    job = Job()
    operators = _QUICK_OPERATORS if job.quick else _OPERATORS
    before = _BEFORE.format(name=_NAME, kind=facts.DEF)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "find_ops.py").write_text(
            _MODULE.format(operators=operators), encoding="utf-8"
        )
        sys.path.insert(0, folder)
        md.warm_up("find_ops")
        for what, statement in _MAIN.items():
            names = "find, has, ops_find, wait_for_def, kind, name"
            job.statement(what, statement, names, _names, aim=_AIM)
        for what, statement in _IN_WORKER.items():
            told = f"{what}, {fresh.KIND} interpreter"
            code = _TIMED.format(name=_NAME, statement=statement.format(kind=facts.DEF))
            job.seconds(told, partial(_in_worker, before + code), aim=_AIM)
        if not job.measures:
            _at_once(job, before)
    job.end()


def _names() -> tuple[Any, ...]:
    found = md.default_registry().dispatcher.facts
    return found.find, found.has, md.ops.find, md.wait_for_def, facts.DEF, _NAME


def _in_worker(code: str) -> Work:
    interpreter, _ = fresh.create()
    fresh.answer_of(interpreter, f"{code}\ntell(timed(100))\n")
    return lambda count: float(str(fresh.answer_of(interpreter, f"{code}\ntell(timed({count}))\n")))


def _at_once(job: Job, before: str) -> None:
    turns = 2_000 if job.quick else 5_000
    with Workers() as workers:
        pair = [workers.process(before, f"many({turns})") for _ in range(2)]
        found = in_turns({"find a fact": pair}, job.rounds(TURNS))
    times_the_work(job, found, "processes", {"find a fact": _TWICE_AIM})


if __name__ == "__main__":
    main()
