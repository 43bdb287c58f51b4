"""Writes docs/faults-of-the-original.md anew: ``python docs/faults_page.py``, with PyTorch.

The programs are in docs/faults. Their ends are those that the page says, or else those of now.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["PAGE", "PROGRAMS", "blocks", "ends_of", "main", "page"]

DOCS = Path(__file__).parent
PAGE = DOCS / "faults-of-the-original.md"
PROGRAMS = sorted(
    f"docs/faults/{path.parent.name}/{path.name}" for path in DOCS.glob("faults/*/*.py")
)

#: A program in the page, and its end. Where there may be several, "or" is between them.
_BLOCK = re.compile(
    r"<!-- (docs/faults/\S+) -->\n```python\n(.*?)```\n\n```text\n(.*?)```\n", re.DOTALL
)

#: Runs each program in a child of its own, which SIGALRM kills after a while. The children have
#: PyTorch already, for it takes much longer to import than the programs take; those that are fresh
#: import it themselves.
_HOST = """
import os, resource, runpy, signal, sys

limit, fresh, folder, *programs = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if not int(fresh):
    import gc, torch
    gc.freeze()
for number, program in enumerate(programs):
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for descriptor in (1, 2):
        os.dup2(os.open(f"{folder}/{number}.{descriptor}", os.O_WRONLY | os.O_CREAT), descriptor)
    signal.alarm(int(limit))
    sys.argv = [program]
    if int(fresh):
        os.execv(sys.executable, [sys.executable, "-u", program])
    runpy.run_path(program, run_name="__main__")
    break
"""


def _end(status: int, output: str, errors: str) -> str:
    """What a program printed, and its signal or the first line of its exception."""
    lines = output.splitlines()
    if status < 0:
        lines.append(f"killed by {signal.Signals(-status).name}")
    elif "Traceback" in errors:
        last = errors.rpartition("Traceback (most recent call last):\n")[2].splitlines()
        line = next(line for line in last if not line.startswith(" "))
        lines.append(line if status else f"at its end: {line}")
    elif status:
        lines.append(f"exit status {status}")
    return "".join(f"{line}\n" for line in lines)


def ends_of(programs: list[str], folder: Path, limit: int = 60, fresh: bool = False) -> list[str]:
    """How each of the programs ends. `folder` is empty; what they print is left there."""
    environment = {key: each for key, each in os.environ.items() if key != "MDISPATCH_REGISTRY"}
    paths = [str(DOCS.parent / program) for program in programs]
    host = subprocess.run(
        [sys.executable, "-u", "-c", _HOST, str(limit), str(int(fresh)), str(folder), *paths],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=True,
    )
    return [
        _end(int(status), *((folder / f"{number}.{each}").read_text() for each in (1, 2)))
        for number, status in enumerate(host.stdout.splitlines())
    ]


def _alternatives(said: str) -> list[str]:
    return re.split("^or\n", said, flags=re.MULTILINE)


def blocks(text: str) -> dict[str, tuple[str, list[str]]]:
    """By program: what the page shows of it, and the ends that the page says it has."""
    return {name: (code, _alternatives(said)) for name, code, said in _BLOCK.findall(text)}


def page(text: str, ends: dict[str, str]) -> str:
    """The page with the programs as they are, and those of their ends that it does not say."""

    def block(found: re.Match[str]) -> str:
        name, _, said = found.groups()
        code, end = (DOCS.parent / name).read_text(), ends[name]
        end = said if end in _alternatives(said) else end
        return f"<!-- {name} -->\n```python\n{code}```\n\n```text\n{end}```\n"

    return _BLOCK.sub(block, text)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ends = ends_of(PROGRAMS, Path(folder), fresh=True)
    PAGE.write_text(page(PAGE.read_text(), dict(zip(PROGRAMS, ends, strict=True))))


if __name__ == "__main__":
    main()
