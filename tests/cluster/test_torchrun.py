"""A real torchrun with two nodes: each with a folder of its own, and, where that is allowed, with a
network and a memory of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from namespaces import Node, two_nodes
from patience import limit
from torch_store import TorchStore

from mdispatch.cluster import Fenced, Unreachable, connect, parse_url, torch_engine
from mdispatch.cluster.log import Garbled
from mdispatch.cluster.torchrun import url_of_job
from mdispatch.errors import InvalidArgumentError

pytestmark = [pytest.mark.shared, pytest.mark.specification]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "a/b",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}

RANK = """
import os, sys
import mdispatch as md
me = os.environ["RANK"]
lib = md.Library("job", "FRAGMENT", timeout={limit})
by = 9 if me == "3" and {is_divergent} else 1
try:
    lib.define(f"f(int x, int by={{by}}) -> int")
    said = md.default_registry().address + " defined"
except md.errors.SchemaMismatchError as error:
    said = str(error)
if me == "0":
    only = md.Library("job", "FRAGMENT")
    only.define("only(int x) -> int")
    md.seal()
else:
    md.wait_for_def("job::only", {limit})
"""

# What an existing job says beside its own work: nothing of it is registered with mdispatch.
WATCHES = """
import os, sys
me = os.environ["RANK"]
sys.path.insert(0, os.path.dirname(__file__) + ("/new" if me == "3" else "/old"))
import mdispatch as md
try:
    md.torch.watch(timeout={limit})
    done = md.warm_up("train_ops", timeout={limit})
    said = f"{{done.operators}} operators, {{done.kernels}} kernels"
except md.errors.WarmUpError as error:
    said = str(error)
md.seal()
"""

TRAIN_OPS = """
import torch
lib = torch.library.Library("train", "FRAGMENT")
lib.define("rotate(Tensor x, int steps={steps}) -> Tensor")
lib.impl("rotate", lambda x, steps: x, "CPU")
"""

# Rank 0 leads as long as it lives: so each waits for the others.
END = """
sys.stdout.write(f"rank {{me}}: {{said}}\\n".replace("\\n", "|")[:-1] + "\\n")
sys.stdout.flush()
from torch.distributed import PrefixStore, TCPStore
from datetime import timedelta
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
                 timeout=timedelta(seconds={limit}))
store = PrefixStore("test", store)
store.set("done/" + me, "1")
store.wait([f"done/{{n}}" for n in range(4)])
store.set("left/" + me, "1")
if me == "0":
    store.wait([f"left/{{n}}" for n in range(4)])
"""


@pytest.fixture(autouse=True)
def pytorch():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")


def torchrun(
    nodes: list[Node], tmp_path: Path, is_divergent: bool = False, rank: str = RANK
) -> str:
    """What the ranks said."""
    program = tmp_path / "rank.py"
    program.write_text((rank + END).format(limit=limit(60), is_divergent=is_divergent))
    processes = []
    for number, node in enumerate(nodes):
        options = [f"--nnodes={len(nodes)}", f"--nproc-per-node={4 // len(nodes)}"]
        options += [f"--node-rank={number}"]
        options += [f"--master-addr={nodes[0].address}", f"--master-port={nodes[0].port}"]
        command = [sys.executable, "-m", "torch.distributed.run", *options, str(program)]
        environment = node.environment() | {
            "MDISPATCH_REGISTRY": "cluster:torchrun",
            "OMP_NUM_THREADS": "1",
        }
        processes.append(node.start(command, environment))
    said = [each.communicate(timeout=limit(90)) for each in processes]
    assert {each.returncode for each in processes} == {0}, "".join(err for _, err in said)[-4000:]
    return "".join(out for out, _ in said)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["folders", "namespaces"])
def test_ranks_of_two_nodes_are_compared_with_rank_0(tmp_path, how):
    with two_nodes(tmp_path, how) as nodes:
        said = torchrun(nodes, tmp_path, is_divergent=True)
    lines = sorted(said.splitlines())
    assert len(lines) == 4, said
    for rank in (0, 1, 2):
        assert lines[rank].endswith(" defined")
        assert "shm:torchrun-" in lines[rank]
    assert "main interpreter (pid " in lines[3]
    assert " on node-0): the default of 'by' is 9 here, 1 there" in lines[3]
    assert "there: job::f(int x, int by=1) -> int    (node-0[" in lines[3]


@pytest.mark.thorough
def test_a_watch_of_torch_library_works_on_every_node(tmp_path):
    for name, steps in (("old", 1), ("new", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train_ops.py").write_text(TRAIN_OPS.format(steps=steps))
    with two_nodes(tmp_path, "folders") as nodes:
        lines = sorted(torchrun(nodes, tmp_path, rank=WATCHES).splitlines())
    assert lines[:3] == [f"rank {rank}: 1 operators, 1 kernels" for rank in range(3)]
    assert "rank 3: 1 difference from the main interpreter" in lines[3]
    assert f"{tmp_path}/new/train_ops.py:4)" in lines[3]
    assert "int steps=1) -> Tensor    (node-0[" in lines[3]
    assert f"]:{tmp_path}/old/train_ops.py:4)" in lines[3]


@pytest.mark.thorough
def test_the_example_does_what_it_says(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
    program = ROOT / "examples" / "hosts" / "torchrun_job.py"
    ended = subprocess.run(
        [sys.executable, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit(90),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_url_of_a_job():
    url = url_of_job(ENVIRONMENT)
    assert url == "torch://10.0.0.1:29500?run=torchrun-a-b-29500-2"
    assert parse_url(url).run == "torchrun-a-b-29500-2"
    assert url_of_job(ENVIRONMENT | {"MASTER_ADDR": "fd00::1"}).startswith(
        "torch://[fd00::1]:29500"
    )
    with pytest.raises(InvalidArgumentError, match="GROUP_RANK is not in the environment"):
        url_of_job({k: v for k, v in ENVIRONMENT.items() if k != "GROUP_RANK"})
    with pytest.raises(InvalidArgumentError, match="keeps no store"):
        url_of_job(ENVIRONMENT | {"TORCHELASTIC_USE_AGENT_STORE": "False"})


@pytest.mark.parametrize("at", ["log/", "lead", "value/"])
def test_a_leader_that_is_overtaken_in_the_middle_of_a_write_changes_nothing(
    run, a_store: TorchStore, monkeypatch, at
):
    url = parse_url(a_store.url(run))
    first, second = connect(url), connect(url)
    a, b = b"a" * 16, b"b" * 16
    epoch = first.acquire(a, b"first", 60, 0)
    first.append(epoch, a, None, 1, b"one")
    first.put(epoch, a, "snapshot", b"of one")
    set_ = torch_engine._set
    overtaken = []

    def late(store, key, before, value):
        if key.startswith(at) and not overtaken:
            overtaken.append(True)
            second.release(epoch, a)  # as if the lease of the first had run out
            later = second.acquire(b, b"second", 60, 0)
            second.put(later, b, "snapshot", b"of the second")
            second.append(later, b, None, 2, b"two")
        return set_(store, key, before, value)

    monkeypatch.setattr(torch_engine, "_set", late)
    write = (first.put, epoch, a, "snapshot", b"of nobody")
    if at != "value/":
        write = (first.append, epoch, a, (epoch, 1), 2, b"late")
    with pytest.raises(Fenced):
        write[0](*write[1:])
    assert [each[2] for each in second.read((0, 0), 10, 0)] == [b"one", b"two"]
    assert second.get("snapshot") == b"of the second"
    first.close()
    second.close()


def test_the_thread_of_a_store_ends_with_its_engine_and_with_an_error(run, a_store: TorchStore):
    before = set(threading.enumerate())
    engine = connect(parse_url(a_store.url(run)))
    assert engine.status().epoch == 0
    [first] = set(threading.enumerate()) - before

    def fails(store):
        raise OSError("no line")

    with pytest.raises(Unreachable, match="OSError: no line"):
        engine._ask(fails)
    first.join(limit(30))
    assert engine.status().epoch == 0
    [second] = set(threading.enumerate()) - before
    assert second is not first
    engine.close()
    second.join(limit(30))
    assert not first.is_alive()
    assert not second.is_alive()


@pytest.mark.parametrize(
    "odd",
    [
        *({"ttl": ttl} for ttl in (-0.1, 3600.1, "x")),
        *({name: -1} for name in ("epoch", "beat", "count", "first")),
        {"tail": [-1, 0]},
        {"tail": [0, -1]},
        {"token": "x"},
    ],
    ids=str,
)
def test_a_record_of_who_leads_that_is_none_is_refused(odd):
    good = {"epoch": 1, "beat": 1, "count": 1, "first": 1, "tail": [1, 1], "starts": [[1, 1, 1]]}
    good |= {"token": "aa", "leader": "bb", "ttl": 3600}
    assert torch_engine._Lead.read(json.dumps(good).encode()).ttl == 3600
    with pytest.raises(Garbled):
        torch_engine._Lead.read(json.dumps(good | odd).encode())


def test_a_store_that_is_stopped_is_unreachable_and_goes_on_later(run):
    store = TorchStore()
    try:
        url = parse_url(store.url(run, lease=0.5))
        engine = connect(url)
        assert engine.status().epoch == 0
        store.send(signal.SIGSTOP)
        with pytest.raises(Unreachable, match="no answer within"):
            engine.status()
        store.send(signal.SIGCONT)
        assert engine.acquire(b"a" * 16, b"me", 5, 0) == 1
        store.process.kill()
        with pytest.raises(Unreachable):
            engine.status()
        engine.close()
    finally:
        store.close()
