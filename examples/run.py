"""Runs the programs among the examples, those of the tables of README.md, and says which ran.

    python examples/run.py           what needs more than is installed is left out, and listed
    python examples/run.py --all     everything must run, but what needs another Python or system
    python examples/run.py --team    in a team: there is no main interpreter. For pools
    python examples/run.py pools     only those whose names begin so; several may be given

Exit status 0 when all that had to run did, and ended well.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT = 120  # seconds for one example
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def table(readme: Path) -> dict[str, str]:
    """The programs, with what each needs: "" for nothing, a package, "Python 3.14", a program for
    Debian's Python, "Debian's uwsgi", or "a shared registry", with the reason; several with "; "
    between them. A row whose last cell is "-" is that of a file that is no program.
    """
    rows = re.findall(r"^\| `(\S+\.py)` \|.*\| *([^|]*?) *\|$", readme.read_text(), re.MULTILINE)
    return {name: needs for name, needs in rows if needs != "-"}


def is_debians() -> bool:
    """Whether this is the Python for which Debian builds programs."""
    return sys.base_prefix == "/usr"


def is_shared() -> bool:
    """Whether registries are shared here: not on macOS, on Windows or with musl."""
    import mdispatch as md

    try:
        md.Registry.elect().close()
    except md.errors.NotSharedError:
        return False
    return True


def why_not(needs: str) -> str:
    """The first thing that is missing here; "" when nothing is."""
    if "; " in needs:
        return next(filter(None, map(why_not, needs.split("; "))), "")
    if needs.startswith("a shared registry: "):
        return "" if is_shared() else needs
    if needs.startswith("Python "):
        wanted = tuple(map(int, needs.removeprefix("Python ").split(".")))
        return needs if sys.version_info < wanted else ""
    if needs.startswith("Debian's "):
        there = is_debians() and shutil.which(needs.removeprefix("Debian's "), path=SYSTEM_PATH)
        return "" if there else needs
    return needs if needs and importlib.util.find_spec(needs) is None else ""


def run(program: Path, folder: str, in_team: bool = False) -> tuple[bool, str]:
    """Whether it ended well, and what it said."""
    # What packages write down for themselves goes with the folder.
    homes = {"HOME": folder, "RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    if in_team:
        homes["MDISPATCH_REGISTRY"] = f"elect:{Path(folder).name}"
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"} | homes,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[0] + f"\nkilled after {LIMIT} s\n"
    return process.returncode == 0, said


def main(arguments: list[str], here: Path = HERE) -> int:
    python = f"{sys.version_info[0]}.{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    counts = {"ok": 0, "FAILED": 0, "left out": 0}
    lines, must_all, in_team = [], "--all" in arguments, "--team" in arguments
    beginnings = tuple(each for each in arguments if not each.startswith("-")) or ""
    for name, needs in table(here / "README.md").items():
        if not name.startswith(beginnings):
            continue
        missing = why_not(needs)
        began = time.monotonic()
        if not missing:
            with tempfile.TemporaryDirectory(prefix="md-", ignore_cleanup_errors=True) as folder:
                well, said = run(here / name, folder, in_team)
            result = "ok" if well else "FAILED"
            if not well:
                print(f"==== {name}\n{said}")
        else:
            of_another = missing.startswith(("Python ", "a shared registry: ")) or (
                missing.startswith("Debian's ") and not is_debians()
            )
            is_late = must_all and not of_another
            result = "FAILED" if is_late else "left out"
        counts[result] += 1
        took = f"{time.monotonic() - began:5.1f} s" if not missing else f"needs {missing}"
        lines.append(f"{python:6} {name:34} {result:9} {took}")
    print(*lines, sep="\n")
    print("{ok} passed, {FAILED} failed, {left out} skipped".format_map(counts))
    return 0 if counts["ok"] and not counts["FAILED"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
