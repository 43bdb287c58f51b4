"""mdispatch.torch.watch on the hosts of a cluster: the leader's process registers what
torch.library has there, and all others, on all hosts, verify theirs.
"""

from __future__ import annotations

import importlib.util

import pytest
from cluster_hosts import Host
from patience import limit
from redis_server import RedisServer

pytestmark = [pytest.mark.shared, pytest.mark.specification, pytest.mark.thorough]

OPS = """\
import torch
lib = torch.library.Library("train", "FRAGMENT")
lib.define("rotate(Tensor x, int steps={steps}) -> Tensor")
lib.impl("rotate", lambda x, steps={steps}: x, "{key}")
@torch.library.custom_op("train::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
{fake}
"""
FAKE = "scale.register_fake(torch.empty_like)"

WATCH = """
import sys
sys.path.insert(0, {folder!r})
import mdispatch as md
md.torch.watch(timeout={timeout})
"""
WARM_UP = """
done = md.warm_up("train_ops", timeout={timeout})
result = done.operators, done.kernels
"""
DIFFERS = """
from mdispatch.workers.warm_up import examine
result = sorted(
    [type(e).__name__, e.name, e.key, e.here, e.there, str(e)]
    for e in examine("train_ops", timeout={timeout}).differences
)
"""

WAIT = limit(60)


@pytest.fixture(autouse=True)
def pytorch():
    if importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")


@pytest.fixture
def hosts(tmp_path):
    made = [Host(f"node-{n}", tmp_path) for n in range(2)]
    yield made
    for host in made:
        host.close()


def release(folder, name, steps=1, key="CPU", fake=FAKE):
    """A folder with the module, in this version."""
    folder = folder / name
    folder.mkdir()
    (folder / "train_ops.py").write_text(OPS.format(steps=steps, key=key, fake=fake))
    return str(folder)


def program(host, registry, folder):
    made = host.program(registry)
    made.begin(WATCH.format(folder=folder, timeout=WAIT))
    return made


@pytest.mark.timeout(240)
def test_a_worker_of_another_host_verifies_and_is_told_in_what_it_differs(
    hosts, a_server: RedisServer, run, tmp_path
):
    url = a_server.url(run, lease=10)
    old = release(tmp_path, "old")
    new = release(tmp_path, "new", steps=2, key="CUDA", fake="")
    hosts[1].bridge(url)
    workers = [program(hosts[1], run, folder) for folder in (old, new)]  # before any leader
    leader = program(hosts[0], f"cluster:{url}", old)
    assert leader.end() == (None, None)
    there = leader.do(WARM_UP.format(timeout=WAIT))
    assert leader.do("result = md.seal()") is True
    assert [each.end() for each in workers] == [(None, None)] * 2
    same, other = workers
    # Two definitions; rotate at CPU, and what PyTorch registers for a custom_op.
    assert same.do(WARM_UP.format(timeout=WAIT)) == there
    assert there[0] == 2
    found = other.do(DIFFERS.format(timeout=WAIT))
    at, here = f"node-0[{leader.pid}]:{old}/train_ops.py", f"{new}/train_ops.py"
    told = {tuple(each[:3]): each[3:] for each in found}
    schema = told["SchemaMismatchError", "train::rotate", ""]
    assert schema[0].endswith(f"{here}:3")
    assert schema[1] == f"{at}:3"
    assert f"in the main interpreter (pid {leader.pid} on node-0)" in schema[2]
    assert f"(node-1[{other.pid}]:{here}:3)" in schema[2]
    key = told["KeyMismatchError", "train::rotate", "CUDA"]
    assert f"there: CPU    ({at}:3)" in key[2]
    assert f"in the main interpreter (pid {leader.pid} on node-0) within" in key[2]
    assert f"here:  node-1[{other.pid}]:{here}:4" in key[2]
    missing = told["MissingInWorkerError", "train::rotate", "CPU"]
    assert missing[1] == f"{at}:4"
    assert f"(pid {leader.pid} on node-0)" in missing[2]
    assert told["MissingInWorkerError", "train::scale", "register_fake"][1] == f"{at}:8"


@pytest.mark.timeout(240)
def test_a_leader_that_does_not_watch_is_named(hosts, a_server: RedisServer, run, tmp_path):
    url = a_server.url(run, lease=10)
    leader = hosts[0].program(f"cluster:{url}")
    leader.do("import mdispatch as md; md.Library('s', 'DEF').define('f() -> ()'); md.seal()")
    hosts[1].bridge(url)
    worker = program(hosts[1], run, str(tmp_path))
    _, error = worker.end()
    assert error[0] == "MainNeverArrivedError"
    assert "here:  /ops/shop.py:5" in error[1]
    assert "there: PyTorch is not watched" in error[1]
    assert f"led by node-0[{leader.pid}], is sealed since" in error[1]
    assert "Call mdispatch.torch.watch() there too" in error[1]


@pytest.mark.timeout(240)
def test_the_end_of_the_leaders_watch_ends_its_facts_everywhere(
    hosts, a_server: RedisServer, run, tmp_path
):
    url, folder = a_server.url(run, lease=10), release(tmp_path, "old")
    leader = program(hosts[0], f"cluster:{url}", folder)
    leader.end()
    leader.do(WARM_UP.format(timeout=WAIT) + "\nlib = md.Library('s', 'DEF')")
    hosts[1].bridge(url)
    worker = program(hosts[1], run, folder)
    assert worker.end() == (None, None)
    worker.do(WARM_UP.format(timeout=WAIT))
    leader.do("md.torch.watch().close(); lib.define('last() -> ()')")
    left = worker.do(f"""
from mdispatch.torch.kind import TORCH
md.wait_for_def("s::last", {WAIT})
result = md.default_registry().dispatcher.facts.registrations_since(TORCH, 0)[1]
""")
    assert left == []
