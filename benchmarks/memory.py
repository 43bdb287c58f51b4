"""Bytes for an operator with one kernel: shared ones in the registry, local ones in an interpreter.

Shared bytes are those of a registry with nothing else in it, its fixed part left out
("used") or not ("committed": what the kernel backs with memory). They grow with the texts: names
here have about 22 bytes, schemas 60, places 40.
"""

from __future__ import annotations

import tracemalloc

import mdispatch as md
from mdispatch._registry.shared import SharedRegistry

from .measure import Figure, figure, report

COUNTS = (1_000, 10_000, 100_000)
#: Tracing makes everything several times slower.
TRACED = 10_000
CAPACITY = 256 << 20
AIM = 1024


def kernel(x: object, factor: float = 2.0) -> object:
    return x


def fill(registry: md.Registry, count: int) -> md.Library:
    library = md.Library("bench", "DEF", registry=registry)
    for i in range(count):
        name = library.define(f"operator_{i:06}(Tensor x, float factor=2.0) -> Tensor")
        library.impl(name, kernel, "CPU")
    return library


def shared(count: int) -> list[Figure]:
    facts = SharedRegistry.create(None, CAPACITY)
    with md.Registry(facts) as registry:
        _, _, empty, *_ = facts.stat()
        fill(registry, count)
        _, committed, used, *_ = facts.stat()
    what = f"shared bytes per operator with one kernel, at {count:,}"
    return [
        figure(f"{what}, used", [(used - empty) / count], "B", aim=AIM),
        figure(f"{what}, committed", [committed / count], "B", aim=AIM),
    ]


def local(count: int) -> Figure:
    with md.Registry.create(capacity=CAPACITY) as registry:
        fill(registry, 10).close()  # imports whatever registering imports
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        library = fill(registry, count)
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del library
    what = f"local bytes per operator with one kernel, main interpreter, at {count:,}"
    return figure(what, [(after - before) / count], "B")


if __name__ == "__main__":
    report([f for count in COUNTS for f in shared(count)] + [local(TRACED)])
