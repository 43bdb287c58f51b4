"""Whether the layers of native/core hold, and no files call each other in a circle.

    python3 layers.py [FOLDER]      FOLDER: a copy of native/; exit status 1 when something is wrong

Each file is compiled without optimisation, and nm says which functions it defines and which it
uses: those it calls and those whose address it hands on. What an inline function of a header uses,
each file uses that has a call of it. Of core/ variables count likewise; of bind/ they do not, since
CPython calls back through the tables of a module and its types.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Bottom up: a layer uses itself and those before it.
LAYERS = ("ground", "store", "state", "contract")
#: Which files of core/ may use a function, by the beginning of their names.
RESERVED = {
    "md__enter": ("core/contract/",),
    "md__lock": ("core/contract/", "core/state/recover.c"),
}
CC = [os.environ.get("CC", "cc"), "-std=c11", "-O0", "-fPIC", "-D_GNU_SOURCE"]
CC += ["-I", sysconfig.get_path("include")]

Symbols = dict[str, tuple[set[str], set[str]]]


def symbols(native: Path, part: str) -> Symbols:
    """Of each file of a part: the names that it defines for others, and those that it uses."""
    defines = "TW" if part.startswith("bind") else "TWBCDRV"
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.o")
        for source in sorted((native / part).rglob("*.c")):
            subprocess.run([*CC, "-c", "-o", made, source], check=True)
            nm = subprocess.run(
                ["nm", "-P", "-g", made], check=True, capture_output=True, text=True
            )
            kinds = [line.split()[:2] for line in nm.stdout.splitlines()]
            found[str(source.relative_to(native))] = (
                {name for name, kind in kinds if kind in defines},
                {name for name, kind in kinds if kind == "U"},
            )
    return found


def arrows(found: Symbols) -> dict[str, dict[str, str]]:
    """Of each file: the files that it uses, each with one name by which it does."""
    home = {name: file for file, (defined, _) in found.items() for name in defined}
    return {
        file: {home[name]: name for name in sorted(used) if name in home}
        for file, (_, used) in found.items()
    }


def circles(uses: dict[str, dict[str, str]]) -> Iterator[str]:
    left = dict(uses)
    while ends := [file for file, others in left.items() if not others.keys() & left.keys()]:
        for file in ends:
            del left[file]
    if left:  # each file that is left uses another one that is
        way = [next(iter(left))]
        while way[-1] not in way[:-1]:
            way.append(next(other for other in left[way[-1]] if other in left))
        yield "a circle: " + " -> ".join(way[way.index(way[-1]) :])


def layer(file: str) -> int:
    return LAYERS.index(file.split("/")[1])


def includes(native: Path) -> Iterator[str]:
    for path in sorted((native / "core").rglob("*.[ch]")):
        file = str(path.relative_to(native))
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
            header = (path.parent / name).resolve()
            if header.parent == native:
                continue  # the contract
            if not header.is_relative_to(native / "core"):
                yield f"{file} includes {name}, which is not the core's"
            elif layer(str(header.relative_to(native))) > layer(file):
                yield f"{file} includes {name}, which is of a higher layer"


def wrongs(native: Path) -> Iterator[str]:
    """What is wrong with the tree, in words."""
    yield from includes(native)
    for part in ("core", "bind/call", "bind/ext"):
        found = symbols(native, part)
        uses = arrows(found)
        yield from circles(uses)
        if part != "core":
            continue
        for file, others in uses.items():
            for other, name in others.items():
                if layer(other) > layer(file):
                    yield f"{file} uses {name} of {other}, which is of a higher layer"
        for name, allowed in RESERVED.items():
            for file, (_, used) in found.items():
                if name in used and not file.startswith(allowed):
                    yield f"{file} uses {name}, which is not its to call"


def main(arguments: list[str]) -> int:
    wrong = list(wrongs(Path(arguments[0] if arguments else Path(__file__).parent).resolve()))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
