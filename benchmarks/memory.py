"""Bytes for an operator with two kernels: shared in the registry, and local in an interpreter.

Shared bytes are those of a registry with nothing else in it: "used" leaves out its fixed part,
"committed" is the memory that the kernel has given to all of it. They grow with the texts: names
here have about 22 bytes, schemas 60, locations 40.
"""

from __future__ import annotations

import tracemalloc

import mdispatch as md
from mdispatch.facts.shared import SharedRegistry

from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COUNTS, QUICK_COUNT = (1_000, 10_000, 100_000), 300
#: Tracing makes everything several times slower.
TRACED = 10_000
CAPACITY = 256 << 20
_SHARED_AIM, _LOCAL_AIM = 1024, 2048

#: A module as users have one: what registers is found by its code, which is not the package's.
_MODULE = """
import mdispatch as md

def on_cpu(x, factor=2.0):
    return x

def on_cuda(x, factor=2.0):
    return x

def fill(registry, count):
    library = md.Library("bench", "DEF", registry=registry)
    for i in range(count):
        name = library.define(f"operator_{i:06}(Tensor x, float factor=2.0) -> Tensor")
        library.impl(name, on_cpu, "CPU")
        library.impl(name, on_cuda, "CUDA")
    return library
"""
_SCOPE: dict[str, Any] = {"__name__": "array_operators"}
exec(compile(_MODULE, "/srv/project/package/array_operators.py", "exec"), _SCOPE)
_fill = _SCOPE["fill"]


def _shared(job: Job, count: int) -> None:
    facts = SharedRegistry.create(None, CAPACITY)
    with md.Registry(facts) as registry:
        _, _, empty, *_ = facts.stat()
        _fill(registry, count)
        _, committed, used, *_ = facts.stat()
    what = f"shared bytes per operator with 2 kernels, at {count:,}"
    job.values(f"{what}, used", [(used - empty) / count], "byte", aim=_SHARED_AIM)
    job.values(f"{what}, committed", [committed / count], "byte", aim=_SHARED_AIM)


def _local(job: Job, count: int) -> None:
    with md.Registry.create(capacity=CAPACITY) as registry:
        _fill(registry, 10).close()  # imports whatever registering imports
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        library = _fill(registry, count)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del library
    what = f"local bytes per operator with 2 kernels, main interpreter, at {count:,}"
    job.values(what, [(after - before) / count], "byte", aim=_LOCAL_AIM)


def main() -> None:
    job = Job()
    for count in (QUICK_COUNT,) if job.quick else COUNTS:
        _shared(job, count)
    _local(job, QUICK_COUNT if job.quick else TRACED)
    job.end()


if __name__ == "__main__":
    main()
