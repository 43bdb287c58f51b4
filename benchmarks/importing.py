"""The time that mdispatch adds to a fresh sub-interpreter, against the time of creating it.

The import hook of another package's editable installation adds to each creation.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from mdispatch import warm_up

from . import fresh
from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .job import Work

#: The import, in creations of an interpreter.
_AIM = 0.4

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


def _creating() -> Work:
    def work(count: int) -> float:
        created = 0.0
        for _ in range(count):
            interpreter, seconds = fresh.create()
            interpreter.close()
            created += seconds
        return created

    return work


def _running(code: str, folder: str) -> Work:
    """The seconds that the code tells, without those of making its interpreter."""
    Path(folder, "small_ops.py").write_text(_MODULE, encoding="utf-8")
    sys.path.insert(0, folder)
    warm_up("small_ops")
    fresh.run(code)  # reads files that nobody has read yet
    return lambda count: sum(float(str(fresh.run(code)[1])) for _ in range(count))


def main() -> None:
    job = Job()
    created = job.seconds(f"creating an interpreter ({fresh.KIND})", _creating)
    with tempfile.TemporaryDirectory() as folder:
        for what, code in _CODES.items():
            took = job.seconds(what, partial(_running, code, folder))
            aim = _AIM if what == "import and default_registry" else None
            job.ratio(f"{what} / creating the interpreter", took, created, aim=aim)
    job.end()


if __name__ == "__main__":
    main()
