"""Runs code in fresh sub-interpreters, times their creation, and returns what the code tells."""

from __future__ import annotations

import ast
import os
import sys
from time import perf_counter

from mdispatch.pool.interpreters import OWN_GIL, create_interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mdispatch.pool.interpreters import Interpreter

#: The kind of sub-interpreter that the benchmarks make here.
KIND = "own-GIL" if OWN_GIL else "shared-GIL"

_PRELUDE = """
import posix, sys
from time import perf_counter
sys.path[:] = {path!r}
def tell(answer):
    posix.write({fd}, repr(answer).encode())
"""


def create(*, own_gil: bool = OWN_GIL) -> tuple[Interpreter, float]:
    """A fresh interpreter, and the seconds that creating it took."""
    began = perf_counter()
    interpreter = create_interpreter(own_gil=own_gil)
    return interpreter, perf_counter() - began


def prelude(fd: int, folder: str = "") -> str:
    """Source that lets code import what this interpreter can, and what lies in ``folder``."""
    return _PRELUDE.format(path=[folder, *sys.path] if folder else sys.path, fd=fd)


def answer_of(interpreter: Interpreter, code: str, folder: str = "") -> object:
    """Runs the code there, on this thread, and returns what it gave ``tell`` (at most 64 KiB)."""
    here, there = os.pipe()
    try:
        interpreter.exec(prelude(there, folder) + code)
        return ast.literal_eval(os.read(here, 1 << 16).decode())
    finally:
        os.close(here)
        os.close(there)


def run(code: str, folder: str = "", *, own_gil: bool = OWN_GIL) -> tuple[float, object]:
    """Runs the code in an interpreter of its own: the seconds of creating that, and the answer."""
    interpreter, created = create(own_gil=own_gil)
    try:
        return created, answer_of(interpreter, code, folder)
    finally:
        interpreter.close()
