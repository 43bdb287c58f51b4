"""The nodes of an inference engine read a configuration each. One of them has an old file. It does
not start, and its error names the field; without the check, all nodes would hang in their first
collective operation.

One field is each node's own, so the comparison leaves it out.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

import mdispatch as md

NODES = 3
OLD = 2  # the node with the old file


@dataclasses.dataclass
class SchedulerConfig:
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    policy: str = "fcfs"


@dataclasses.dataclass
class ParallelConfig:
    tensor_parallel_size: int = 4
    pipeline_parallel_size: int = 2
    node_rank: int = 0


def read_config(node: int) -> dict[str, Any]:
    """Stands for a file on each node."""
    scheduler = SchedulerConfig()
    if node == OLD:
        scheduler.max_num_batched_tokens = 4096
    return {
        "model": "example/model-7b",
        "scheduler": scheduler,
        "parallel": ParallelConfig(node_rank=node),
        "plugins": ["prices", "taxes"],
        "api_key": "of all nodes",
    }


def start_node(node: int) -> None:
    """Each node begins so, before it talks to the others."""
    md.agree("engine.config", read_config(node), ignore=["parallel.node_rank"])
    print(f"node {node} has the configuration of all")


def main() -> None:
    start_node(0)
    for node in range(1, NODES):
        done = subprocess.run(
            [sys.executable, __file__, str(node)],
            env=os.environ | {"RANK": str(node)},
            capture_output=True,
            text=True,
            check=False,
        )
        if node != OLD:
            print(done.stdout, end="")
            assert done.returncode == 0, done.stderr
            continue
        assert done.returncode == 1
        last = done.stderr.partition("DisagreementError: ")[2]
        print(f"node {node} does not start:\n{last}", end="")
        assert "scheduler.max_num_batched_tokens is 4096 here, and 8192 there" in last
        assert "of all nodes" not in done.stderr  # a key is a secret


if __name__ == "__main__":
    if len(sys.argv) > 1:
        start_node(int(sys.argv[1]))
    else:
        main()
