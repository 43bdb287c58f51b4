"""What mdispatch adds to a fresh sub-interpreter, against creating that interpreter.

With PYTHONPROFILEIMPORTTIME=1 in the environment, ``python -m benchmarks import_cost`` shows the
cost of each module on stderr, in the sub-interpreters too. Run it so and not by itself: run.py sees
to it that there is bytecode. An editable installation adds its import hook to each creation.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import mdispatch as md

from . import fresh
from .measure import Figure, figure, ratio, report

ROUNDS = 31

MODULE = """
import mdispatch as md

lib = md.Library("small", "DEF")

class Array:
    __dispatch_keys__ = "CPU"

for name in ("scale", "shift", "clip"):
    lib.define(f"{name}(Tensor x, float by) -> Tensor")
    lib.impl(name, lambda x, by: x, "CPU")
"""

CODES = {
    "import and default_registry": """
began = perf_counter()
import mdispatch
mdispatch.default_registry()
tell(perf_counter() - began)
""",
    "import, warm_up of a small module, first call": """
began = perf_counter()
import mdispatch
mdispatch.warm_up("small_ops")
from small_ops import Array
mdispatch.ops.small.scale(Array(), 2.0)
tell(perf_counter() - began)
""",
}


def figures() -> list[Figure]:
    created: dict[str, list[float]] = {what: [] for what in CODES}
    took: dict[str, list[float]] = {what: [] for what in CODES}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "small_ops.py").write_text(MODULE, encoding="utf-8")
        sys.path.insert(0, folder)
        md.warm_up("small_ops")
        for round_ in range(ROUNDS + 1):
            for what, code in CODES.items():
                seconds, answer = fresh.run(code)
                if round_:  # the first one also reads files that nobody has read yet
                    created[what].append(seconds)
                    took[what].append(float(str(answer)))
    every = [seconds for times in created.values() for seconds in times]
    found = [figure(f"creating an interpreter ({fresh.KIND}): ms", every, "ms", scale=1e3)]
    for what in CODES:
        aim = 1.0 if what == "import and default_registry" else None
        found.append(figure(f"{what}: ms", took[what], "ms", scale=1e3))
        compared = f"{what} / creating the interpreter"
        found.append(ratio(compared, took[what], created[what], aim=aim))
    return found


if __name__ == "__main__":
    report(figures())
