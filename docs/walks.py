"""Which files of the package five walks pass: ``python docs/walks.py``.

Each walk is made once to load what it needs, then profiled. architecture.md tells what they come
to.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import mdispatch as md
from mdispatch.dispatch.call_py import call as call_in_python

PACKAGE = os.path.dirname(md.__file__)


def files_of(walk: Callable[[], object]) -> list[str]:
    """The files of the package whose functions ``walk`` calls, in the order of the first calls."""
    found: dict[str, None] = {}

    def profile(frame: object, event: str, argument: object) -> None:
        if event == "call":
            file = frame.f_code.co_filename  # type: ignore[attr-defined]
            if file.startswith(PACKAGE):
                found[os.path.relpath(file, PACKAGE)] = None

    sys.setprofile(profile)
    try:
        walk()
    finally:
        sys.setprofile(None)
    return list(found)


class Box:
    """A value that the Python path is asked about."""

    __dispatch_keys__ = ("CPU",)


def walks() -> dict[str, list[str]]:
    """Each walk with its files."""
    registry = md.Registry.create()
    lib = md.Library("s", "DEF", registry=registry)
    for name in ("a", "b"):
        lib.define(f"{name}(Tensor x, int n=1) -> Tensor")
        lib.impl(name, lambda x, n: x, "CPU")
    numbers = iter(range(100))
    worker = md.Registry.attach(registry.address, timeout=0)
    operator = registry.ops.s.a.default

    def define() -> None:
        lib.define(f"f{next(numbers)}(Tensor x, int n=1) -> Tensor")

    def slow_call() -> None:
        call_in_python(operator, (Box(), True), {})  # C would make this call by itself

    def attach() -> None:
        md.Registry.attach(registry.address, timeout=0).close()

    def wait() -> None:
        name = f"s::w{next(numbers)}"
        later = threading.Timer(0.01, lib.define, [f"{name}() -> ()"])
        later.start()
        md.wait_for_def(name, 5.0, registry=worker)
        later.join()

    def implement() -> None:
        lib.impl("b", lambda x, n: x, "CUDA")

    found = {}
    for walk in (define, slow_call, attach, wait, implement):
        walk()
        found[walk.__name__] = files_of(walk)
    return found


if __name__ == "__main__":
    for name, files in walks().items():
        print(f"{name}: {len(files)}\n  " + "\n  ".join(files))
