"""A roll call of 8 processes with 500 operators each: the time from the last call to the moment at
which all have the verdict. A roll call that expects this process alone shows how much of it is the
inventory of the last one, which it makes before it posts.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import mdispatch as md

from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MEMBERS, OPERATORS, QUICK_OPERATORS = 8, 500, 100
ROUNDS = 30
_AIM = 5e-3

_MODULE = """
import mdispatch as md

lib = md.Library("roll", "DEF")
for i in range({operators}):
    lib.define(f"op{{i}}(Tensor x, float factor=2.0) -> Tensor")
    lib.impl(f"op{{i}}", lambda x, factor=2.0: x, "CPU")
"""
_MEMBER = """
import sys
from time import monotonic
sys.path.insert(0, {folder!r})
import many
import mdispatch as md
print("here", flush=True)
for line in sys.stdin:
    md.roll_call(expected={members}, timeout=60)
    print(monotonic(), flush=True)
"""


def _seconds(operators: int, rounds: int) -> Iterator[tuple[float, float]]:
    """For each round: the roll call of all, and one of this process alone."""
    with TemporaryDirectory() as folder:
        Path(folder, "many.py").write_text(_MODULE.format(operators=operators))
        sys.path.insert(0, folder)
        __import__("many")
        text = _MEMBER.format(folder=folder, members=MEMBERS)
        members = [
            subprocess.Popen(
                [sys.executable, "-c", text],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(MEMBERS - 1)
        ]
        for each in members:
            assert each.stdout
            assert each.stdout.readline() == "here\n"
        for turn in range(rounds):
            for each in members:
                assert each.stdin
                each.stdin.write("\n")
                each.stdin.flush()
            facts = md.default_registry().dispatcher.facts
            while not any(
                its.round == str(turn) and len(its.posts) == MEMBERS - 1
                for its in md.choices.roll_calls("job")
            ):
                facts.await_change(0, 0.0)
            began = monotonic()
            md.roll_call(expected=MEMBERS, timeout=60)
            ends = [
                monotonic(),
                *(float(each.stdout.readline()) for each in members if each.stdout),
            ]
            alone = monotonic()
            md.roll_call(expected=1, name="alone")
            yield max(ends) - began, monotonic() - alone
        for each in members:
            each.communicate()


def main() -> None:
    job = Job()
    operators = QUICK_OPERATORS if job.quick else OPERATORS
    found = [*_seconds(operators, job.rounds(ROUNDS))] if not job.measures else []
    aim = None if job.quick else _AIM
    of_all, alone = zip(*found, strict=True) if found else ((), ())
    every = job.values(f"{MEMBERS} processes, {operators} operators", of_all)
    one = job.values(f"1 process, {operators} operators", alone)
    job.more("from the last post to all verdicts", every, one, aim=aim)
    job.end()


if __name__ == "__main__":
    main()
