"""Makes a CUDA build of PyTorch work without CUDA: ``.ci/without_cuda.py PYTHON``.

The index has most versions of PyTorch only as builds for CUDA, whose libraries need some gigabytes
of others. On the processor nothing calls those. This puts a library of the same name beside
PyTorch's own for each that is not there, with the functions that PyTorch's libraries look for:
each returns an error's number. The CUDA runtime, which is small, has to be the real one: code of
PyTorch registers itself there when it is loaded.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path


def _lines(*command: object) -> list[str]:
    return subprocess.run(
        [str(each) for each in command], check=True, text=True, stdout=subprocess.PIPE
    ).stdout.splitlines()


def _symbols(library: Path, which: str) -> set[str]:
    """Those with their versions; weak ones, which need not be there, left out."""
    found = (line.split() for line in _lines("nm", "-D", which, library))
    return {parts[-1] for parts in found if parts[-2] != "w"}


def main(python: str) -> None:
    [site] = _lines(python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))")
    folder = Path(site, "torch", "lib")
    libraries = sorted(folder.glob("*.so*"))
    there = {each.name for each in libraries}
    there |= {each.name for each in Path(site).glob("**/*.so*")}
    needed = {
        match[1]
        for each in libraries
        for line in _lines("readelf", "-d", each)
        if (match := re.search(r"NEEDED.*\[(.+)\]", line))
    }
    system = dict(
        re.findall(r"\t(\S+) .*x86-64.* => (\S+)", "\n".join(_lines("/sbin/ldconfig", "-p")))
    )
    missing = needed - there - system.keys()
    defined: set[str] = set()
    theirs = [Path(system[name]) for name in needed & system.keys()]
    for each in [*libraries, *theirs, *Path(site).glob("nvidia/**/*.so*")]:
        defined |= {name.split("@")[0] for name in _symbols(each, "--defined-only")}
    versions: dict[str, set[str]] = {}  # of functions, by version; "" for none
    for each in libraries:
        for symbol in _symbols(each, "--undefined-only"):
            name, _, version = symbol.partition("@")
            if not name.startswith(("Py", "_Py")):
                versions.setdefault(version, set()).update({name} - defined)
    names = sorted(set().union(*versions.values()))
    source = "".join(f"int {name}(void) {{ return 100; }}\n" for name in names)
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(of))} }};\n"
        for version, of in sorted(versions.items())
        if version and of
    )
    command = ["gcc", "-w", "-shared", "-fPIC", "-fno-builtin", "-xc", "-", "-o"]
    with tempfile.NamedTemporaryFile("w") as map_:
        map_.write(script)
        map_.flush()
        for name in sorted(missing):
            subprocess.run(
                [*command, str(folder / name), f"-Wl,-soname,{name},--version-script,{map_.name}"],
                input=source,
                text=True,
                check=True,
            )
    print(len(names), "functions in", *sorted(missing))


if __name__ == "__main__":
    main(*sys.argv[1:])
