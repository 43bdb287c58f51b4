"""Follows a page as its reader does, in an empty folder, word for word.

    python following.py WHEEL PAGE...

does so in new virtual environments into which the page's own line installs the wheel; ``follow``
does so with what is installed here. What a page says is this:

- a block of Python whose first line is ``# NAME.py`` is written into that file;
- a block of ``sh`` is a terminal of its own, in that folder. One with a program that waits for
  Enter goes on; the next begins when it has printed a line;
- a block of ``text`` is what the commands above it print last. Process ids, paths, times and blanks
  may differ.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from patience import limit

BLOCK = re.compile(r"^(<!-- [^\n]* -->\n)?```(python|sh|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LIMIT = limit(300)  # seconds for one block: one of them may install


def blocks(page: str) -> list[tuple[str, str]]:
    """Kind and text of each block; those with a comment above are for somebody else."""
    return [(kind, text) for comment, kind, text in BLOCK.findall(page) if not comment]


def shape(text: str) -> list[str]:
    """The lines without what differs from run to run."""
    text = re.sub(r"(?<=pid )\d+|\d+\.\d+ ms", "N", text)
    text = re.sub(r"^(interpreter|process)( +)\d+", r"\1 N", text, flags=re.MULTILINE)
    text = re.sub(r"(/[\w.-]+)+/(?=[\w-]+\.py:\d)", "", text)
    return [" ".join(re.sub("─+", "─", line).split()) for line in text.splitlines() if line.strip()]


def follow(page: str, folder: Path, environment: Mapping[str, str], *, installs: bool) -> int:
    """Follows the page, and returns how many commands ran. A line that installs is left out where
    there is nothing to install. Raises AssertionError where the page is wrong.
    """
    counted, printed, waiting = 0, "", []
    try:
        found = blocks(page)
        for i, (kind, text) in enumerate(found):
            name = re.match(r"# ([\w/]+\.py)\n", text)
            if kind == "python" and name:
                (folder / name[1]).write_text(text)
            elif kind == "text":
                wanted = shape(text)
                assert shape(printed)[-len(wanted) :] == wanted, f"{text}\nis not\n{printed}"
            elif kind == "sh" and (installs or "pip install" not in text):
                terminal = subprocess.Popen(
                    ["bash", "-c", text],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                )
                counted += text.count("\n")
                if "input()" in text:
                    waiting.append(terminal)
                    assert terminal.stdout
                    printed = terminal.stdout.readline()
                else:
                    printed, _ = terminal.communicate(timeout=LIMIT)
                    # A command that fails is one whose error the page shows.
                    fails = found[i + 1 : i + 2] and re.match(r"\S+Error: ", found[i + 1][1])
                    assert bool(terminal.returncode) == bool(fails), printed
        for terminal in waiting:
            said, _ = terminal.communicate("\n", timeout=LIMIT)
            assert terminal.returncode == 0, said
    finally:
        for terminal in waiting:
            if terminal.poll() is None:
                os.killpg(terminal.pid, signal.SIGKILL)
                terminal.communicate()
    return counted


@contextmanager
def new_environment(wheel: Path, folder: Path) -> Iterator[dict[str, str]]:
    """What a reader's shell has: a virtual environment, and an index that knows the wheel."""
    constraint = folder / "the-wheel"
    constraint.write_text("mdispatch=={1}\n".format(*wheel.name.split("-")))
    links = f"{wheel.resolve().parent} {os.environ.get('PIP_FIND_LINKS', '')}".strip()
    there = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", there], check=True)
    with tempfile.TemporaryDirectory(prefix="md-", dir="/dev/shm") as registries:
        found = {k: v for k, v in os.environ.items() if not k.startswith(("MDISPATCH", "PYTHON"))}
        found |= {"PIP_CONSTRAINT": str(constraint), "PIP_FIND_LINKS": links}
        found["MDISPATCH_FOLDER"] = registries
        yield {**found, "PATH": f"{there / 'bin'}:{os.environ['PATH']}"}


def main(wheel: Path, pages: list[Path]) -> None:
    for page in pages:
        with tempfile.TemporaryDirectory() as name:
            home, empty = Path(name, "home"), Path(name, "empty")
            home.mkdir()
            empty.mkdir()
            with new_environment(wheel, home) as environment:
                count = follow(page.read_text(), empty, environment, installs=True)
            assert count, f"{page} has no commands"
            print(f"{page.name}: {count} lines of commands, as written, from {wheel.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]])
