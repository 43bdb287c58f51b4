"""The benchmarks: each job in a process of its own, its figures in a table.

    python -m benchmarks [--json FILE] [NAME...]

A figure that misses its aim is marked, and is no failure: the machine may have been busy. Nothing
here knows what a second is worth on yours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from .measure import Figure

JOBS = ("wake_up", "verify_many", "import_cost", "parallel", "memory", "call_cost")


#: Jobs start without a parent's registry, and with bytecode whatever the caller's habits: as an
#: installed package is imported, and not compiled from source in each interpreter.
LEFT_OUT = ("MDISPATCH_REGISTRY", "PYTHONDONTWRITEBYTECODE")


def figures_of(job: str, bytecode: str) -> list[Figure]:
    """Runs one job. It has told why when it fails; then CalledProcessError."""
    environment = {k: v for k, v in os.environ.items() if k not in LEFT_OUT}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{job}"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        env=environment,
    )
    return [Figure(**fields) for fields in json.loads(done.stdout)]


def table(job: str, figures: list[Figure]) -> str:
    width = max(len(f.what) for f in figures)
    lines = [f"{job:<{width}}      median        min     aim  rounds"]
    for f in figures:
        numbers = f"{number(f.median)} {f.unit:<2} {number(f.best)}"
        aim = "" if f.aim is None else f"{f.aim:g}"
        missed = "  missed" if f.aim is not None and f.median > f.aim else ""
        lines.append(f"{f.what:<{width}}  {numbers} {aim:>7} {f.rounds:>7}{missed}")
    return "\n".join(lines)


def number(value: float) -> str:
    return f"{value:>9.2f}" if value < 100 else f"{value:>9.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("jobs", nargs="*", metavar="NAME", help=f"of {', '.join(JOBS)}; else all")
    parser.add_argument("--json", metavar="FILE", help="write the figures there too")
    asked = parser.parse_args()
    unknown = [job for job in asked.jobs if job not in JOBS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}: there are {', '.join(JOBS)}")
    found = {}
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores\n")
    with tempfile.TemporaryDirectory() as bytecode:
        for job in asked.jobs or JOBS:
            try:
                figures = figures_of(job, bytecode)
            except subprocess.CalledProcessError as error:
                print(f"{job} failed: {error}", file=sys.stderr)
                return 1
            found[job] = [asdict(f) for f in figures]
            print(table(job, figures) + "\n", flush=True)
    if asked.json:
        result = {"python": sys.version, "cores": os.cpu_count(), "figures": found}
        Path(asked.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0
