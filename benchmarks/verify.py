"""Verifying 10,000 operators in a fresh sub-interpreter, in ms and against creating that one; and
the whole life of such an interpreter, from the import to its end, less that of an idle one. Times
are those of the thread, which other processes on the machine disturb less than the wall clock.

The module registers in a loop: the figure is to show the verifying, and not the reading of a module
with 10,000 functions.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from time import thread_time

from . import fresh
from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATORS, QUICK_OPERATORS = 10_000, 200
ROUNDS = 9
#: Seconds, for 10,000: to verify them, by a warm-up too, and the worker's whole life.
_AIM, _WARM_UP_AIM, _LIFE_AIM = 0.1, 0.08, 0.15

_MODULE = """
import mdispatch as md

lib = md.Library("{name}", "DEF")

def kernel(x, factor=2.0):
    return x

for i in range({operators}):
    lib.define(f"op{{i}}(Tensor x, float factor=2.0) -> Tensor")
    {impl}
"""
_IMPL = {"many_def": "pass", "many_impl": 'lib.impl(f"op{i}", kernel, "CPU")'}

# The worker imports the module plainly, or by a warm-up. A warm-up also looks for operators that
# the main interpreter has and the worker lacks.
_CASES = {
    "define": ("many_def", "import many_def"),
    "define and impl": ("many_impl", "import many_impl"),
    "define and impl, by warm_up": ("many_impl", "md.warm_up('many_impl')"),
    "define and impl, by warm_up, frozen": ("many_impl", "md.warm_up('many_impl', freeze=True)"),
}

_BEFORE = """
import mdispatch as md
md.default_registry(), md.Library, md.warm_up
"""
_TIMED = """
from time import thread_time
began = thread_time()
{verify}
tell(thread_time() - began)
"""
_IDLE = "tell(0.0)"


def _cases(operators: int) -> Iterator[tuple[str, str, str]]:
    """Each case, what its worker does, and the folder of the module, by then registered here."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        for case, (name, verify) in _CASES.items():
            text = _MODULE.format(name=name, operators=operators, impl=_IMPL[name])
            Path(folder, f"{name}.py").write_text(text, encoding="utf-8")
            module = import_module(name)
            yield case, verify, folder
            module.lib.close()
            del sys.modules[name]
        sys.path.remove(folder)


def main() -> None:
    job = Job()
    operators = QUICK_OPERATORS if job.quick else OPERATORS
    for case, verify, folder in _cases(operators):
        code = _BEFORE + _TIMED.format(verify=verify)
        created, verified, lives, idle = [], [], [], []
        for _ in range(job.rounds(ROUNDS)):
            idle.append(_life(_BEFORE + _IDLE, folder)[2])
            seconds, took, life = _life(code, folder)
            created.append(seconds)
            verified.append(took)
            lives.append(life)
        what = f"{operators:,} operators, {case}"
        is_all, by_warm_up = operators == OPERATORS, "warm_up" in case
        aim = _WARM_UP_AIM if by_warm_up else _AIM
        ours = job.values(what, verified, aim=aim if is_all else None)
        creation = job.values(f"{what}: creating the {fresh.KIND} interpreter", created)
        job.ratio(f"{what} / creating the {fresh.KIND} interpreter", ours, creation)
        whole = job.values(f"{what}: the interpreter's life", lives)
        other = job.values(f"{what}: an idle one's life", idle)
        aim = _LIFE_AIM if is_all and by_warm_up else None
        job.more(f"{what}, until the interpreter has ended", whole, other, aim=aim)
    job.end()


def _life(code: str, folder: str) -> tuple[float, float, float]:
    """Seconds of creating an interpreter, those that its code tells, and those of its life."""
    began = thread_time()
    interpreter, _ = fresh.create()
    created = thread_time() - began
    try:
        told = fresh.answer_of(interpreter, code, folder)
    finally:
        interpreter.close()
    return created, float(str(told)), thread_time() - began


if __name__ == "__main__":
    main()
