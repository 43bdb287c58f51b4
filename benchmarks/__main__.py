"""``python -m benchmarks [JOB]... [OPTION]...`` runs jobs, one after the other.

Words before the first option are jobs; without any, all run. The options are the jobs' own:
``--quick``, and those of pyperf, such as ``--append FILE``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import takewhile

__all__ = ["JOBS", "main"]

JOBS = {
    "calls": "a call, of everybody who dispatches / a plain call",
    "wake-up": "from a commit in one process to code in another one",
    "importing": "import in a sub-interpreter",
    "own": "packets, attributes, redispatch, many operators / a plain call",
    "values": "arrays, tensors, converted numbers / a plain call",
    "torch-calls": "operators on PyTorch's tensors / the same in torch.library",
    "torch-start": "a watch and definitions beside PyTorch / without",
    "context": "guards, modes, observers / a plain call",
    "across": "calls in another interpreter, and in another process",
    "rebuild": "the first call, and the first after a change",
    "parallel-calls": "two interpreters or threads that call at once",
    "parallel": "two interpreters that run a kernel at once",
    "find": "finding and verifying an operator that is there",
    "choices": "a choice that is there, and one that is made",
    "agreements": "a value that all have, and the steps of a job",
    "roll_calls": "a roll call of 8 processes with 500 operators each",
    "providers": "calls that choose among providers / a plain call",
    "find-c": "finding in C",
    "register": "define and impl of many operators, and closing",
    "verify": "verifying 10,000 operators in a sub-interpreter",
    "wake-up-c": "waking up in C",
    "waiters": "waking many processes that wait for one operator",
    "missing": "a wait of 10 ms that ends in an error",
    "cluster": "several hosts on a Redis server",
    "memory": "bytes for an operator",
}
#: A job starts without a parent's registry, and interpreters find bytecode as in an installation.
_LEFT_OUT = ("MDISPATCH_REGISTRY", "PYTHONDONTWRITEBYTECODE")


def _help() -> str:
    jobs = "".join(f"  {name:<16}{what}\n" for name, what in JOBS.items())
    return (
        "usage: python -m benchmarks [JOB]... [OPTION]...\n\n"
        f"Measures what mdispatch costs on this machine.\n\njobs (without any, all run):\n{jobs}\n"
        "options:\n"
        "  -h, --help      show this, and end\n"
        "  --quick         few values of one process, small numbers: rough\n"
        "  --append FILE   add the values to a file of pyperf's\n"
        "  ...             whatever else `python -m benchmarks.own --help` lists\n\n"
        "exit status: 0 measured; 1 a job failed, the others were measured; 2 no such job\n"
    )


def main(words: list[str]) -> int:
    """Runs the jobs; returns the exit status."""
    jobs = list(takewhile(lambda word: not word.startswith("-"), words))
    options = words[len(jobs) :]
    if {"-h", "--help"} & {*options}:
        print(_help(), end="")
        return 0
    for name in jobs:
        if name not in JOBS:
            print(f"there is no job {name!r}: python -m benchmarks --help", file=sys.stderr)
            return 2
    environment = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    failed = []
    for name in jobs or JOBS:
        print(f"--- {name}: {JOBS[name]}", flush=True)
        module = f"benchmarks.{name.replace('-', '_')}"
        done = subprocess.run([sys.executable, "-m", module, *options], env=environment)
        if done.returncode:
            failed.append(name)
            print(f"{name} failed with status {done.returncode}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
