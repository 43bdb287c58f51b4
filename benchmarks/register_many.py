"""Defining operators and giving each a kernel, in the main interpreter: a thousand, and a hundred
thousand; closing them again; and a module of thousands of lines.

An operator takes ``define`` and one ``impl``. The time is given in microseconds and in calls of an
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
from mdispatch.cli.bench.figures import figure, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from mdispatch.cli.bench.figures import Figure
    from mdispatch.cli.bench.measure import Settings

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


def rates(asked: Settings) -> Iterator[Figure]:
    most = QUICK_MANY if asked.quick else MANY
    rounds = {FEW: asked.rounds_of(ROUNDS), most: asked.rounds or ROUNDS_OF_MANY}
    took: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    plain: dict[tuple[int, str], list[float]] = {}
    once(FEW, close_newest_first)  # imports, and reads every kind of schema
    for count in (FEW, most):
        for _ in range(rounds[count]):
            for order, close in CLOSE.items():
                plain.setdefault((count, order), []).append(calls())
                took.setdefault((count, order), []).append(once(count, close))
    for count in (FEW, most):
        every = [t for order in CLOSE for t in took[count, order]]
        bare = [p for order in CLOSE for p in plain[count, order]]
        what = f"define and impl, {count:,} operators"
        yield figure(f"{what}: us each", [t[0] for t in every], "us", scale=1e6, aim=10)
        yield figure(f"{what}: us each, by the wall", [t[2] for t in every], "us", scale=1e6)
        yield ratio(f"{what} / call of an empty function", [t[0] for t in every], bare)
    few, many = ([t[0] for order in CLOSE for t in took[n, order]] for n in (FEW, most))
    least = min(len(few), len(many))
    yield ratio(f"the same, {most:,} / {FEW:,}", many[:least], few[:least], aim=1.3)
    for count in (FEW, most):
        for order in CLOSE:
            register, close_ = ([t[i] for t in took[count, order]] for i in (0, 1))
            yield ratio(f"closing {order} / registering, {count:,}", close_, register, aim=1)
            aim = 3 if order == "newest first" else None  # as Library.close does
            yield figure(f"closing {order}, {count:,}: us each", close_, "us", scale=1e6, aim=aim)


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


def exits(asked: Settings) -> Iterator[Figure]:
    count = QUICK_MANY if asked.quick else MANY
    registered, ended = [], []
    for _ in range(asked.rounds or ROUNDS_OF_MANY):
        _, idle = program(1)
        took, end = program(count)
        registered.append(took)
        ended.append(max(end - idle, 0.0))
    each = [seconds / count for seconds in registered]
    what = f"{count:,} operators, the collector on"
    yield figure(f"define and impl, {what}: us each", each, "us", scale=1e6, aim=8)
    yield ratio(f"exit with {what} / registering them", ended, registered, aim=0.05)


def straight() -> Iterator[Figure]:
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
    what = f"the last {third:,} lines of a module of {LINES:,} definitions / the first"
    yield ratio(what, last, first)


def memory() -> Iterator[Figure]:
    """Each operator with two kernels, each from a function and a line of its own."""
    lines = []
    for i in range(TRACED):
        lines.append(f"name = lib.define({f'operator_{i:06}' + KINDS[i % len(KINDS)]!r})")
        lines.append(f'lib.impl(name, kernels[{2 * i}], "CPU")')
        lines.append(f'lib.impl(name, kernels[{2 * i + 1}], "CUDA")')
    code = compile("\n".join(lines), "/home/user/project/package/module.py", "exec")
    codes = [KERNELS[i // 2 % len(KINDS)].__code__ for i in range(2 * TRACED)]
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
    what = f"bytes per operator with two kernels, at {TRACED:,}"
    yield figure(f"local {what}", [(after - before) / TRACED], "B", aim=2048)
    yield figure(f"shared {what}, used", [(used - empty) / TRACED], "B", aim=1024)
    yield figure(f"shared {what}, committed", [committed / TRACED], "B", aim=1024)


def figures(asked: Settings) -> Iterator[Figure]:
    yield from rates(asked)
    yield from exits(asked)
    yield from straight()
    yield from memory()


if __name__ == "__main__":  # for perf and valgrind: nothing but registering so many
    once(int(sys.argv[-1]), close_newest_first)
    os._exit(0)
