"""What a program that uses PyTorch pays when it starts: a watch of what it registers, and
definitions where PyTorch is imported.

Each value is the CPU time of the second half of a fresh process, which has imported PyTorch or not.
The programs take turns. They are files that register 308 operators through a helper, as engines
that serve models do, and 500 operators one by one. Python's collector visits all objects of PyTorch
once while a file of the first kind is imported, watched or not. Before a file of the second kind
everything is collected, for else that visit, which takes as long as the definitions, would fall
into one of the two.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from .job import Job

_ROUNDS = 20

_ENGINE = """
import torch
from torch.library import Library, infer_schema

lib = Library("engine", "FRAGMENT")

def register(name, function, mutates_args, fake):
    lib.define(name + infer_schema(function, mutates_args=mutates_args))
    lib.impl(name, function, "CPU")
    if fake is not None:
        lib._register_fake(name, fake)

"""
_OF_ENGINE = """
def op{i}(x: torch.Tensor, out: torch.Tensor, eps: float, n: int = {i}) -> None: out.copy_(x)
def fake{i}(x: torch.Tensor, out: torch.Tensor, eps: float, n: int = {i}) -> None: return
register("op{i}", op{i}, ["out"], {fake})
"""
_OURS = """
import mdispatch as md

lib = md.Library("ours", "DEF")
"""
_OF_OURS = """
def op{i}(x, y, n={i}): return x
lib.define("op{i}(Tensor x, Tensor y, int n={i}) -> Tensor")
lib.impl("op{i}", op{i}, "CPU")
"""

#: By name, what is done before the clock starts, and what it measures.
_PROGRAMS = {
    "308 operators of torch.library": ("import torch.library", "import engine"),
    "308 operators of torch.library, watched": (
        "import torch.library",
        "import mdispatch.torch; watch = mdispatch.torch.watch(); import engine",
    ),
    "500 operators of ours": ("import mdispatch, gc; gc.collect()", "import ours"),
    "500 operators of ours, PyTorch imported": (
        "import torch; import mdispatch, gc; gc.collect()",
        "import ours",
    ),
}


def _seconds(folder: str, before: str, measured: str) -> float:
    program = f"{before}\nfrom time import process_time\nbegan = process_time()\n{measured}\n"
    program += "print(process_time() - began)"
    path = os.pathsep.join([folder, *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> None:
    job = Job()
    if job.can("PyTorch", lambda: import_module("torch")) and not job.measures:
        found: dict[str, list[float]] = {name: [] for name in _PROGRAMS}
        with tempfile.TemporaryDirectory() as folder:
            fakes = [f"fake{i}" if i < 279 else "None" for i in range(308)]
            engine = [_OF_ENGINE.format(i=i, fake=fake) for i, fake in enumerate(fakes)]
            Path(folder, "engine.py").write_text(_ENGINE + "".join(engine))
            ours = [_OF_OURS.format(i=i) for i in range(500)]
            Path(folder, "ours.py").write_text(_OURS + "".join(ours))
            for program in _PROGRAMS.values():
                _seconds(folder, *program)  # compiles the files
            for _ in range(job.rounds(_ROUNDS)):
                for name, program in _PROGRAMS.items():
                    found[name].append(_seconds(folder, *program))
        plain, watched, alone, beside = (job.values(name, its) for name, its in found.items())
        job.ratio("a watch and 308 operators / the operators", watched, plain, aim=1.4)
        job.ratio("500 operators with PyTorch / without it", beside, alone, aim=1.5)
    job.end()


if __name__ == "__main__":
    main()
