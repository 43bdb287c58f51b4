"""The same operator in torch.library and here, in the workers of a DataLoader and in two ranks that
train: the same results, to the last digit.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from patience import limit

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
pytestmark = [
    pytest.mark.dear,
    pytest.mark.skipif(
        not torch.distributed.is_available(), reason="what another version of PyTorch lacks"
    ),
]

OPERATORS = """
import os
import sys
import torch
import mdispatch as md


def smooth(x: torch.Tensor, width: float) -> torch.Tensor:
    return torch.tanh(x / width)


def put(out: torch.Tensor, x: torch.Tensor) -> None:
    out.copy_(x * 2)


def made(custom_op, namespace):
    op = custom_op(f"{namespace}::smooth", smooth, mutates_args=())
    op.register_fake(lambda x, width: torch.empty_like(x))

    def keep(ctx, inputs, output):
        ctx.save_for_backward(output)
        ctx.width = inputs[1]

    def backward(ctx, grad):
        return grad * (1 - ctx.saved_tensors[0] ** 2) / ctx.width, None

    op.register_autograd(backward, setup_context=keep)
    return op, custom_op(f"{namespace}::put", put, mutates_args=["out"])


theirs, ours = made(torch.library.custom_op, "jobs_of_torch"), made(md.custom_op, "jobs_of_md")


class Samples(torch.utils.data.Dataset):
    def __init__(self, operators):
        self.operators = "ours" if operators is ours else "theirs"

    def __len__(self):
        return 8

    def __getitem__(self, at):
        op, put = globals()[self.operators]
        out = torch.empty(3)
        put(out, torch.full((3,), float(at)))
        return op(out, 2.0)


def train(rank, operators, address, compiled):
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    op = globals()[operators][0]

    def loss_of(x):
        return op(model(x), 0.5).square().mean()

    if compiled:
        loss_of = torch.compile(loss_of, backend="aot_eager")
    for step in range(4):
        optimizer.zero_grad()
        loss = loss_of(torch.full((2, 3), float(rank + step)))
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(operators, loss.item().hex(), flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)  # a thread of PyTorch's may abort a process of a busy machine that ends
"""

LOADERS = """
import torch
from operators import Samples, ours, theirs

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        for operators in (theirs, ours):
            loader = torch.utils.data.DataLoader(
                Samples(operators), num_workers=2, batch_size=2, multiprocessing_context=method
            )
            print(method, torch.cat([*loader]).tolist(), flush=True)
"""

TRAINING = """
import tempfile
import torch
from operators import train

if __name__ == "__main__":
    for compiled in (False, True):
        for operators in ("theirs", "ours"):
            with tempfile.TemporaryDirectory() as folder:
                address = f"file://{folder}/store"
                torch.multiprocessing.spawn(train, (operators, address, compiled), nprocs=2)
"""


def run(code, folder):
    (folder / "operators.py").write_text(OPERATORS)
    (folder / "main.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "main.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=limit(240),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.thorough
def test_workers_of_a_loader_that_are_forked_and_spawned(tmp_path):
    found = run(LOADERS, tmp_path)
    assert len(found) == 4
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert found[0].split(" ", 1)[1] == found[2].split(" ", 1)[1]


@pytest.mark.thorough
def test_two_ranks_that_train(tmp_path):
    theirs, ours, theirs_compiled, ours_compiled = [
        line.split()[1] for line in run(TRAINING, tmp_path)
    ]
    assert theirs == ours
    assert theirs_compiled == ours_compiled
