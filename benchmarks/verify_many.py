"""Verifying 10,000 operators in a fresh sub-interpreter, in ms and against creating that one.

The module registers in a loop, so that what is measured is the verifying and not the reading of a
module with 10,000 functions. ``python -m benchmarks.verify_many --profile`` shows where the time
goes (not on 3.12, whose profiler does not load in sub-interpreters).
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from . import fresh
from .measure import Figure, figure, ratio, report

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATORS = 10_000
ROUNDS = 9
AIM = 100.0

MODULE = """
import mdispatch as md

lib = md.Library("{name}", "DEF")

def kernel(x, factor=2.0):
    return x

for i in range({operators}):
    lib.define(f"op{{i}}(Tensor x, float factor=2.0) -> Tensor")
    {impl}
"""
IMPL = {"many_def": "pass", "many_impl": 'lib.impl(f"op{i}", kernel, "CPU")'}

# What the worker does: it imports the module plainly, or by a warm-up, which looks besides for what
# the main interpreter has and this one has not.
CASES = {
    "define": ("many_def", "import many_def"),
    "define and impl": ("many_impl", "import many_impl"),
    "define and impl, by warm_up": ("many_impl", "md.warm_up('many_impl')"),
}

BEFORE = """
import mdispatch as md
md.default_registry(), md.Library, md.warm_up
"""
TIMED = """
began = perf_counter()
{verify}
tell(perf_counter() - began)
"""
PROFILED = """
import cProfile, pstats
profile = cProfile.Profile()
profile.enable()
{verify}
profile.disable()
pstats.Stats(profile).sort_stats("tottime").print_stats(25)
tell(None)
"""


def cases() -> Iterator[tuple[str, str, str]]:
    """Each case, what its worker does, and the folder of the module, by then registered here."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        for case, (name, verify) in CASES.items():
            text = MODULE.format(name=name, operators=OPERATORS, impl=IMPL[name])
            Path(folder, f"{name}.py").write_text(text, encoding="utf-8")
            module = import_module(name)
            yield case, verify, folder
            module.lib.close()
            del sys.modules[name]
        sys.path.remove(folder)


def figures() -> list[Figure]:
    found = []
    for case, verify, folder in cases():
        code = BEFORE + TIMED.format(verify=verify)
        runs = [fresh.run(code, folder) for _ in range(ROUNDS)]
        created = [seconds for seconds, _ in runs]
        verified = [float(str(answer)) for _, answer in runs]
        what = f"{OPERATORS:,} operators, {case}"
        found += [
            figure(f"{what}: ms", verified, "ms", scale=1e3, aim=AIM),
            ratio(f"{what} / creating the {fresh.KIND} interpreter", verified, created),
        ]
    return found


def profile() -> None:
    for case, verify, folder in cases():
        print(f"--- {case}", flush=True)
        fresh.run(BEFORE + PROFILED.format(verify=verify), folder)


if __name__ == "__main__":
    if "--profile" in sys.argv:
        profile()
    else:
        report(figures())
