"""Calls of one operator by two interpreters or two threads at once, against one alone.

The same is measured with a plain Python function: it shows how much the machine and the interpreter
have to give.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from timeit import Timer

import mdispatch as md
from mdispatch.pool.interpreters import OWN_GIL

from .job import Job
from .pairs import Workers, in_turns, times_the_work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from .pairs import Work

ROUNDS = 60
_OPERATOR, _PLAIN = "operator", "plain call"
#: How many times the calls of one alone.
_INTERPRETERS_AIM, _THREADS_AIM = 1.7, 1.8
#: Of one turn. It takes some 10 ms: much more than starting a thread does.
_CALLS, _QUICK_CALLS = 200_000, 20_000

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


def main() -> None:
    job = Job()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "calls_ops.py").write_text(_MODULE, encoding="utf-8")
        sys.path.insert(0, folder)
        md.warm_up("calls_ops")
        calls = _QUICK_CALLS if job.quick else _CALLS
        _interpreters(job, calls)
        _threads(job, calls, sys.modules["calls_ops"])
    job.end()


def _interpreters(job: Job, calls: int) -> None:
    if not OWN_GIL:
        job.left_out("own-GIL interpreters", "there are none before Python 3.12")
        return
    busy = {_OPERATOR: f"call_operator({calls})", _PLAIN: f"call_plain({calls})"}
    with Workers() as workers:
        kinds = {
            kind: [workers.interpreter(_BEFORE, code, own_gil=True) for _ in range(2)]
            for kind, code in busy.items()
        }
        found = in_turns(kinds, job.rounds(ROUNDS))
    times_the_work(job, found, "own-GIL interpreters", {_OPERATOR: _INTERPRETERS_AIM})


def _threads(job: Job, calls: int, module: ModuleType) -> None:
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        job.left_out("threads without a GIL", "this Python has a GIL")
        return

    def pair(f: object) -> list[Work]:
        """Each with an array and with code of its own, one function for both."""
        timers = [Timer("f(x)", "f, x = made", globals={"made": (f, module.Array())}) for _ in "ab"]
        return [partial(timer.timeit, calls) for timer in timers]

    found = in_turns(
        {_OPERATOR: pair(module.operator), _PLAIN: pair(module.kernel)}, job.rounds(ROUNDS)
    )
    times_the_work(job, found, "threads", {_OPERATOR: _THREADS_AIM})


if __name__ == "__main__":
    main()
