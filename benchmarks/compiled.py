"""C programs of this folder, linked to the library of the package that is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from mdispatch.facts import native

HERE = Path(__file__).parent
LIBRARY = Path(native.__file__).parent / "libmdispatch.so.1"


def build(name: str, folder: str) -> str:
    """The program of ``name.c``, in that folder."""
    program = str(Path(folder, name))
    flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", f"-I{HERE.parent / 'native'}", "-o", program]
    sources = [str(HERE / f"{name}.c"), str(LIBRARY), f"-Wl,-rpath,{LIBRARY.parent}"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, *sources], check=True)
    return program


def lines(program: str, *arguments: int) -> list[list[float]]:
    """The numbers that it prints, line by line."""
    words = [program, *map(str, arguments)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return [[float(word) for word in line.split()] for line in done.stdout.splitlines()]
