"""Two editions of a run on the same hosts, in one Redis: a deploy of a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster_hosts import Host
from patience import limit
from redis_server import RedisServer

pytestmark = [pytest.mark.shared, pytest.mark.specification, pytest.mark.thorough]
pytestmark += [pytest.mark.needs("editions")]

WAIT = limit(30)
SHOP = f"""
import mdispatch as md
lib = md.Library("shop", "FRAGMENT", timeout={WAIT})
lib.define("scale(int x, int by={{by}}) -> int")
lib.impl("scale", lambda x, by: x * by, "CompositeExplicitAutograd")
result = md.ops.shop.scale(3)
"""
LOGS = """
import io, logging
log = io.StringIO()
logging.basicConfig(level=logging.WARNING, stream=log)
"""


def test_two_editions_of_a_run_have_leaders_and_workers_of_their_own(
    tmp_path: Path, a_server: RedisServer, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [Host(f"node-{n}", tmp_path) for n in range(2)]
    url = f"cluster:{a_server.url(run + '@{env:RELEASE}')}"
    try:
        programs = []
        for release, by in (("1", 2), ("2", 5)):
            monkeypatch.setenv("RELEASE", release)
            leader = hosts[0].program(f"{url}&role=leader")
            assert leader.do(LOGS + SHOP.format(by=by)) == 3 * by
            worker = hosts[1].program(f"{url}&role=worker")
            assert worker.do(SHOP.format(by=by)) == 3 * by
            programs.append((leader, worker))
        (first, _), (second, worker) = programs
        assert first.do("result = log.getvalue()") == ""
        told = second.do("result = log.getvalue()")
        assert f"{run}@2 was made while {run}@1 (" in told
        asked = "import os; result = os.environ['MDISPATCH_REGISTRY']"
        assert [each.do(asked) for each in (second, worker)] == [f"shm:{run}@2"] * 2
        monkeypatch.setenv("RELEASE", "1")
        other = hosts[1].program(f"{url}&role=worker")
        kind, text = other.fails(SHOP.format(by=5))
        assert kind == "SchemaMismatchError"
        assert f"(pid {first.pid} on node-0)" in text
        done = hosts[1].command("doctor", "--json")
        there = [each for each in json.loads(done.stdout)["registries"] if each["name"]]
        assert {each["name"]: each["edition"]["beside"] for each in there} == {
            f"{run}@1": [f"{run}@2"],
            f"{run}@2": [f"{run}@1"],
        }
        done = hosts[0].command("diff", f"shm:{run}@1", f"shm:{run}@2", "--json")
        assert json.loads(done.stdout)["verdict"] == "breaking"
    finally:
        for host in hosts:
            host.close()
