"""A job of PyTorch on two nodes whose ranks prove at their start that they registered the same.

Nothing is run beside it: the registrations travel through the store that torchrun keeps for the
job. This program starts torchrun twice on this machine, as two nodes; each has a folder of its own
for its registry, as if it were another host. In a cluster, start it as ever, on each node:

    MDISPATCH_REGISTRY=cluster:torchrun torchrun --nnodes 2 ... train.py
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import mdispatch as md


def rank() -> None:
    """What a rank does."""
    import torch.distributed

    me = f"rank {os.environ['RANK']}"
    torch.distributed.init_process_group("gloo")
    if me == "rank 0":
        alone = md.Library("fleet", "FRAGMENT")
        alone.define("dock(int step) -> int")
        alone.impl("dock", lambda step: 0, "CompositeExplicitAutograd")
    if me == "rank 3":
        os.environ["FLEET_VERSION"] = "2"
    try:
        import fleet_ops  # noqa: F401

        said = f"advance(1) is {md.ops.fleet.advance(1)}"
        md.wait_for_def("fleet::dock", 60)
        md.ops.fleet.dock(1)
    except md.errors.SchemaMismatchError as error:
        said = str(error)
    except md.errors.MdispatchError as error:
        said += f", and dock(1): {error}"
    md.seal()  # rank 0 says that all is registered; in others this does nothing
    said = said.replace("\n", "\n    ")
    sys.stdout.write(f"{me} {said}\n")
    torch.distributed.barrier()  # rank 0 leads as long as it lives
    torch.distributed.destroy_process_group()


def main() -> None:
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed here")
        return
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        nodes = []
        for node in range(2):
            own = Path(folder, f"node-{node}")
            own.mkdir(mode=0o700)
            here = {"MDISPATCH_FOLDER": str(own), "MDISPATCH_HOST": own.name}
            here["MDISPATCH_REGISTRY"] = "cluster:torchrun"
            options = ["--nnodes=2", "--nproc-per-node=2", f"--node-rank={node}"]
            options += ["--master-addr=127.0.0.1", f"--master-port={port}"]
            nodes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "torch.distributed.run", *options, __file__, "rank"],
                    env={**os.environ, **here, "OMP_NUM_THREADS": "1"},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        said = "".join(node.communicate()[0] for node in nodes)
    print(said)
    assert [node.returncode for node in nodes] == [0, 0]
    for number in (0, 1, 2):
        assert f"rank {number} advance(1) is 2" in said
    assert said.count("and dock(1):") == 2  # told on both nodes
    assert "in the main interpreter (pid" in said
    assert "on node-0): the default of 'by' is 10 here, 1 there" in said


if __name__ == "__main__":
    rank() if sys.argv[1:] == ["rank"] else main()
