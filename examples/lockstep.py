"""Ranks decide in step which requests are in the next batch. One of them has dropped a request. The
error comes at that step, with both values and both lines.

It needs no group of processes and no thread: a late rank compares with the registered steps, and
old steps leave by themselves.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

import mdispatch as md

RANKS = 4
STEPS = 3000
FAULTY, AT = 2, 1234  # the rank that drops a request, and the step


def batch_of(step: int, rank: int) -> list[int]:
    """The requests that a rank takes into the batch of a step: all have the same queue."""
    queue = random.Random(step)
    batch = sorted(queue.sample(range(1000), 8))
    if rank == FAULTY and step == AT:
        batch.pop()
    return batch


def run_rank(rank: int) -> None:
    with md.agreeing("batches", window=STEPS) as batches:
        for step in range(STEPS):
            batches.agree(step, batch_of(step, rank))
    print(f"rank {rank} was in step with the others for {STEPS} steps")


def main() -> None:
    md.default_registry()  # the ranks find it through the environment
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank)],
            env=os.environ | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    told = [rank.communicate() for rank in ranks]
    for number, (rank, (said, complaints)) in enumerate(zip(ranks, told, strict=True)):
        print(said, end="")
        if rank.returncode:
            last = complaints.partition("DisagreementError: ")[2]
            print(f"rank {number} has stopped:\n{last}", end="")
            assert last.startswith(f"step {AT} of 'batches' has another value"), complaints
            assert "[7] is" in last
    # Whoever came to the step first counts, so either the faulty rank has stopped, or the others.
    stopped = [number for number, rank in enumerate(ranks) if rank.returncode]
    assert stopped in ([FAULTY], [rank for rank in range(RANKS) if rank != FAULTY]), stopped


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_rank(int(sys.argv[1]))
    else:
        main()
