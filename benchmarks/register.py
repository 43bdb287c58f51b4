"""Defining operators and giving each a kernel, in the main interpreter: a thousand, and a hundred
thousand; closing them again; and a module of thousands of lines.

An operator takes ``define`` and one ``impl``. The time is given in seconds and in calls of an
empty Python function, which is measured in turns with it, so that machines can be compared. The
schemas are of 600 kinds. Times are those of the thread, because other processes on the machine
disturb them less than they disturb the wall clock. The garbage collector does not run meanwhile: it
would visit every object again and again while the process grows. What that costs is measured apart,
and with it the exit of a process that has so many operators, less that of one that has one. Bytes
are for two kernels.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tracemalloc
from random import Random
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

import mdispatch as md

from .job import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


FEW, MANY, QUICK_MANY = 1_000, 100_000, 10_000
ROUNDS, ROUNDS_OF_MANY = 21, 3
LINES = 3_000
TRACED = 10_000
CAPACITY = 512 << 20
CALLS = 100_000

KINDS = [
    f"({first}, {second}{third}) -> {returned}"
    for first in ("Tensor self", "Tensor x", "Tensor(a!) self", "Tensor[] tensors", "Tensor? input")
    for second in (
        "Tensor other",
        "Scalar alpha",
        "int dim",
        "float p",
        "bool train",
        "int[2] size",
    )
    for third in ("", ", *, Tensor(a!) out", ", int n=1", ', str mode="mean"', ", float eps=1e-05")
    for returned in ("Tensor", "(Tensor, Tensor)", "()", "Tensor[]")
]


def kernel(x: object) -> object:
    return x


def _kernel_for(kind: str) -> Callable[..., Any]:
    """A function that takes just the arguments of such a schema."""
    arguments = md.parse_schema(f"f{kind}").arguments
    named = [each.name for each in arguments if each.kwarg_only]
    taken = [each.name for each in arguments if not each.kwarg_only] + (
        ["*", *named] if named else []
    )
    made: Callable[..., Any] = eval(f"lambda {', '.join(taken)}: None")
    made.__name__ = made.__qualname__ = kernel.__qualname__
    return made


KERNELS = [_kernel_for(kind) for kind in KINDS]


def calls() -> float:
    """Seconds of one call of an empty function."""
    began = thread_time()
    for i in range(CALLS):
        kernel(i)
    return (thread_time() - began) / CALLS


def close_newest_first(library: md.Library) -> None:
    library.close()


def close_oldest_first(library: md.Library) -> None:
    for handle in library._handles:
        handle.close()
    library.close()


def close_at_random(library: md.Library) -> None:
    handles = list(library._handles)
    Random(5).shuffle(handles)
    for handle in handles:
        handle.close()
    library.close()


CLOSE = {
    "newest first": close_newest_first,
    "oldest first": close_oldest_first,
    "at random": close_at_random,
}


def once(count: int, close: Callable[[md.Library], None]) -> tuple[float, float, float]:
    """Seconds per operator of registering and of closing, and wall seconds of registering."""
    names = [f"operator_{i:06}" for i in range(count)]
    schemas = [name + KINDS[i % len(KINDS)] for i, name in enumerate(names)]
    kernels = [KERNELS[i % len(KINDS)] for i in range(count)]
    with md.Registry.create(capacity=CAPACITY) as registry:
        library = md.Library("bench", "DEF", registry=registry)
        gc.collect()
        gc.disable()
        wall, began = perf_counter(), thread_time()
        for name, schema, made in zip(names, schemas, kernels, strict=True):
            library.define(schema)
            library.impl(name, made, "CPU")
        registered, wall = thread_time(), perf_counter() - wall
        close(library)
        closed = thread_time()
    gc.enable()
    return (registered - began) / count, (closed - registered) / count, wall / count


def rates(job: Job) -> None:
    most = QUICK_MANY if job.quick else MANY
    rounds = {FEW: job.rounds(ROUNDS), most: ROUNDS_OF_MANY}
    took: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    plain: dict[int, list[float]] = {FEW: [], most: []}
    once(FEW, close_newest_first)  # imports, and reads every kind of schema
    for count in (FEW, most):
        for _ in range(rounds[count]):
            for order, close in CLOSE.items():
                plain[count].append(calls())
                took.setdefault((count, order), []).append(once(count, close))
    registered = {}
    for count in (FEW, most):
        every = [each for order in CLOSE for each in took[count, order]]
        what = f"define and impl, {count:,} operators"
        registered[count] = job.values(f"{what}, each", [each[0] for each in every], aim=10e-6)
        job.values(f"{what}, each, by the wall", [each[2] for each in every])
        bare = job.values(f"call of an empty function, {count:,}", plain[count])
        job.ratio(f"{what} / call of an empty function", registered[count], bare)
    job.ratio(f"the same, {most:,} / {FEW:,}", registered[most], registered[FEW], aim=1.3)
    for count in (FEW, most):
        for order in CLOSE:
            aim = 3e-6 if order == "newest first" else None  # as Library.close does
            seconds = [each[1] for each in took[count, order]]
            closed = job.values(f"closing {order}, {count:,}, each", seconds, aim=aim)
            job.ratio(f"closing {order} / registering, {count:,}", closed, registered[count], aim=1)


_PROGRAM = """
import os, sys
sys.path[:] = {path!r}
from time import thread_time
import mdispatch as md

def kernel(x, p=1.0):
    return x

registry = md.Registry.create(capacity={capacity})
library = md.Library("bench", "DEF", registry=registry)
began = thread_time()
for i in range({count}):
    library.define(f"operator_{{i:06}}(Tensor x, float p=1.0) -> Tensor")
    library.impl(f"operator_{{i:06}}", kernel, "CPU")
print(thread_time() - began, thread_time(), flush=True)
"""


def program(count: int) -> tuple[float, float]:
    """Of a program: seconds of registering so many, and of its exit after that, as processor
    time.
    """
    code = _PROGRAM.format(path=sys.path, capacity=CAPACITY, count=count)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        registered, until = map(float, process.stdout.read().split())
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return registered, usage.ru_utime + usage.ru_stime - until


def exits(job: Job) -> None:
    count = QUICK_MANY if job.quick else MANY
    registered, ended = [], []
    for _ in range(ROUNDS_OF_MANY):
        _, idle = program(1)
        took, end = program(count)
        registered.append(took)
        ended.append(max(end - idle, 1e-9))  # pyperf keeps no zeros
    what = f"{count:,} operators, the collector on"
    took = job.values(f"define and impl, {what}", registered)
    job.values(f"define and impl, {what}, each", [each / count for each in registered], aim=8e-6)
    exit_ = job.values(f"exit with {what}", ended)
    job.ratio(f"exit with {what} / registering them", exit_, took, aim=0.05)


def straight(job: Job) -> None:
    """A module that is nothing but definitions, one to a line: the last lines against the first."""
    lines = ["from time import thread_time", "began = thread_time()"]
    lines += [f'lib.define("op_{i}(Tensor x) -> Tensor")' for i in range(LINES)]
    third = LINES // 3
    lines.insert(2 + third, "first = thread_time() - began")
    lines.insert(3 + 2 * third, "began = thread_time()")
    lines.append("last = thread_time() - began")
    code = compile("\n".join(lines), "module.py", "exec")
    first, last = [], []
    for _ in range(5):
        with md.Registry.create(capacity=CAPACITY) as registry:
            scope = {"lib": md.Library("bench", "DEF", registry=registry), "__name__": "module"}
            exec(code, scope)
        first.append(float(str(scope["first"])))
        last.append(float(str(scope["last"])))
    what = f"{third:,} lines of a module of {LINES:,} definitions"
    begin = job.values(f"the first {what}", first)
    job.ratio(f"the last {what} / the first", job.values(f"the last {what}", last), begin)


def memory(job: Job) -> None:
    """Each operator with two kernels, each from a function and a line of its own."""
    traced, lines = TRACED // 10 if job.quick else TRACED, []
    for i in range(traced):
        lines.append(f"name = lib.define({f'operator_{i:06}' + KINDS[i % len(KINDS)]!r})")
        lines.append(f'lib.impl(name, kernels[{2 * i}], "CPU")')
        lines.append(f'lib.impl(name, kernels[{2 * i + 1}], "CUDA")')
    code = compile("\n".join(lines), "/home/user/project/package/module.py", "exec")
    codes = [KERNELS[i // 2 % len(KINDS)].__code__ for i in range(2 * traced)]
    kernels = [type(kernel)(code, {}, f"kernel_{i}") for i, code in enumerate(codes)]
    with md.Registry.create(capacity=CAPACITY) as registry:
        library = md.Library("bench", "DEF", registry=registry)
        _, _, empty, *_ = registry.dispatcher.facts.stat()  # type: ignore[attr-defined]
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        exec(code, {"lib": library, "kernels": kernels, "__name__": "module"})
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        _, committed, used, *_ = registry.dispatcher.facts.stat()  # type: ignore[attr-defined]
    what = f"bytes per operator with two kernels, at {traced:,}"
    job.values(f"local {what}", [(after - before) / traced], "byte", aim=2048)
    job.values(f"shared {what}, used", [(used - empty) / traced], "byte", aim=1024)
    job.values(f"shared {what}, committed", [committed / traced], "byte", aim=1024)


def main() -> None:
    job = Job()
    rates(job)
    exits(job)
    straight(job)
    memory(job)
    job.end()


if __name__ == "__main__":
    main()
