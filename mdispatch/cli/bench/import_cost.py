"""The time that mdispatch adds to a fresh sub-interpreter, against the time of creating it.

With PYTHONPROFILEIMPORTTIME=1 in the environment, ``mdispatch bench import`` shows the cost of each
module on stderr, in the sub-interpreters too. The import hook of another package's editable
installation adds to each creation.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from ...workers.warm_up import warm_up
from . import fresh
from .figures import Figure, figure, ratio
from .measure import Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 31

_MODULE = """
import mdispatch as md

lib = md.Library("small", "DEF")

class Array:
    __dispatch_keys__ = "CPU"

for name in ("scale", "shift", "clip"):
    lib.define(f"{name}(Tensor x, float by) -> Tensor")
    lib.impl(name, lambda x, by: x, "CPU")
"""

_CODES = {
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


def figures(asked: Settings) -> Iterator[Figure]:
    created: dict[str, list[float]] = {what: [] for what in _CODES}
    took: dict[str, list[float]] = {what: [] for what in _CODES}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "small_ops.py").write_text(_MODULE, encoding="utf-8")
        sys.path.insert(0, folder)
        warm_up("small_ops")
        for round_ in range(asked.rounds_of(ROUNDS) + 1):
            for what, code in _CODES.items():
                seconds, answer = fresh.run(code)
                if not round_:  # this one also reads files that nobody has read yet
                    continue
                created[what].append(seconds)
                took[what].append(float(str(answer)))
    every = [seconds for times in created.values() for seconds in times]
    yield figure(f"creating an interpreter ({fresh.KIND})", every, "ms", scale=1e3)
    for what in _CODES:
        aim = 0.4 if what == "import and default_registry" else None
        yield figure(what, took[what], "ms", scale=1e3)
        compared = f"{what} / creating the interpreter"
        yield ratio(compared, took[what], created[what], aim=aim)
