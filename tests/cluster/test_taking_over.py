"""Bridges of one host that are killed: another one of the host takes over, no registration is lost,
and what waits goes on. Real processes, and one real Redis.
"""

from __future__ import annotations

import json

import pytest
from cluster_hosts import Host
from json_keys import strangers
from patience import limit
from redis_server import RedisServer

pytestmark = [pytest.mark.shared, pytest.mark.specification]

WAIT = limit(30)

SHOP = f"""
import mdispatch as md
lib = md.Library("shop", "FRAGMENT", timeout={WAIT})
lib.define("scale(int x, int by=2) -> int")
lib.impl("scale", lambda x, by=2: x * by, "CompositeExplicitAutograd")
"""
CALL = "result = md.ops.shop.scale(3)"


def add(*names):
    return "".join(f"lib.define('{name}(int x) -> int')\n" for name in names)


def wait(name, timeout=WAIT):
    return f"md.wait_for_def('shop::{name}', {timeout})"


LAST_BRIDGE_ENDS = """
facts = md.default_registry().dispatcher.facts
while any(role == 4 and is_alive for _, _, role, is_alive, *_ in facts.members()):
    facts.await_change(facts.await_change(0, 0)[0], 0.1)
"""


@pytest.fixture
def hosts(tmp_path):
    made = [Host(f"node-{n}", tmp_path) for n in range(2)]
    yield made
    for host in made:
        host.close()


def worker_of(host, url):
    """A worker that brings a bridge along."""
    worker = host.program(f"cluster:{url}&role=worker")
    worker.do(SHOP)
    return worker


@pytest.mark.thorough
def test_a_bridge_that_is_killed_and_another_that_waited(hosts, a_server: RedisServer, run):
    url = a_server.url(run)
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(SHOP)
    first = hosts[1].bridge(url)
    hosts[1].hears("is open")
    hosts[1].bridge(url)
    hosts[1].hears("waits to take over")
    worker = hosts[1].program(run)
    worker.do(SHOP)
    worker.do("handle = md.ops.shop.scale.default")
    worker.begin(wait("more"))  # which goes on whoever dies
    first.kill()
    said = hosts[1].hears("takes over at epoch")
    assert "sequence 0" not in said
    leader.do(add("more"))
    assert worker.end() == (None, None)
    assert worker.do("result = handle(3)") == 6  # the same definition is no change
    told = hosts[0].command("cluster", url)
    assert told.stdout.count("bridge node-1[") >= 1


@pytest.mark.thorough
def test_the_first_worker_of_a_host_brings_its_bridge_and_another_takes_over(
    hosts, a_server: RedisServer, run
):
    url = a_server.url(run)
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(SHOP)
    workers = [worker_of(hosts[1], url) for _ in range(5)]
    assert workers[4].do("import os; result = os.environ['MDISPATCH_REGISTRY']") == f"shm:{run}"
    roles = "result = sum(m[2] == 4 for m in md.default_registry().dispatcher.facts.members())"
    assert workers[4].do(roles) == 3
    for n in range(2):
        workers[4].begin(wait(f"f{n}"))
        workers[n].kill()
        leader.do(add(f"f{n}"))
        assert workers[4].end() == (None, None)
    workers[2].kill()
    workers[4].do(LAST_BRIDGE_ENDS)
    leader.do(add("late"))
    kind, text = workers[4].fails(wait("late", 1000))
    assert kind == "RegistrarGoneError"
    assert "the bridge of this host has ended" in text
    assert workers[4].do(CALL) == 6
    worker_of(hosts[1], url)  # a worker that comes later brings one, and all goes on
    workers[4].do(wait("late"))


@pytest.mark.thorough
def test_of_bridges_that_come_at_once_three_stay(hosts, a_server: RedisServer, run):
    url = a_server.url(run)
    hosts[0].program(f"cluster:{url}").do(SHOP)
    workers = [hosts[1].program(f"cluster:{url}&role=worker") for _ in range(6)]
    for worker in workers:
        worker.begin(SHOP)
    for worker in workers:
        assert worker.end() == (None, None)
    roles = "result = sum(m[2] == 4 for m in md.default_registry().dispatcher.facts.members())"
    assert workers[0].do(roles) == 3


@pytest.mark.thorough
def test_rank_0_leads_and_other_ranks_are_workers(hosts, a_server: RedisServer, run, monkeypatch):
    url = a_server.url(run)
    monkeypatch.setenv("RANK", "0")
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(SHOP)
    monkeypatch.setenv("RANK", "3")
    for host in hosts:
        worker = host.program(f"cluster:{url}")
        worker.do(SHOP)
        assert worker.do("result = md.default_registry().is_worker") is True
        assert worker.do(CALL) == 6


@pytest.mark.thorough
def test_bridges_that_are_killed_while_the_leader_registers(hosts, a_server: RedisServer, run):
    """Each dies at some moment of a batch. In the end all is there that the leader has, once."""
    url = a_server.url(run)
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(SHOP)
    watcher = hosts[1].bridge(url)
    worker = hosts[1].program(run)
    worker.do(SHOP)
    bridges = [watcher] + [hosts[1].bridge(url) for _ in range(3)]
    for n, bridge in enumerate(bridges[:3]):
        leader.begin(add(*(f"f{n}_{k}" for k in range(300))) + f"result = lib and {n}")
        worker.do(wait(f"f{n}_{n * 70}"))
        bridge.kill()
        assert leader.end()[0] == n
    leader.do(add("last"))
    worker.do(wait("last"))
    facts = (
        "result = sorted([f.kind, int(f.key), f.name, f.text.split(chr(10))[0]] for f in "
        "md.default_registry().dispatcher.facts.registrations()[2] if f.kind < 7)"
    )
    assert worker.do(facts) == leader.do(facts)
    assert worker.do("result = md.default_registry().check_invariants()") is None
    assert worker.do(CALL) == 6


@pytest.mark.thorough
def test_a_bridge_that_takes_over_without_an_engine_serves_what_is_there(
    hosts, server: RedisServer, run
):
    url = server.url(run)
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(SHOP)
    first = hosts[1].bridge(url)
    hosts[1].bridge(url)
    worker = hosts[1].program(run)
    worker.do(SHOP)
    server.kill()
    first.kill()
    hosts[1].hears("takes over at epoch")
    hosts[1].hears("is cut off")
    leader.do(add("meanwhile"))
    assert worker.fails(wait("meanwhile", 0.1))[0] == "EngineUnreachableError"
    assert worker.do(CALL) == 6
    server.start()  # which has forgotten all
    worker.do(wait("meanwhile"))
    assert worker.do(CALL) == 6


@pytest.mark.thorough
def test_what_the_leader_struck_out_while_there_was_no_bridge_is_struck_out(
    hosts, a_server: RedisServer, run
):
    url = a_server.url(run)
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(SHOP + "other = md.Library('other', 'DEF')\nother.define('f(int x) -> int')")
    bridge = hosts[1].bridge(url)
    worker = hosts[1].program(run)
    worker.do(SHOP)
    worker.do("md.wait_for_def('other::f')")
    bridge.kill()
    bridge.wait()
    leader.do("other.close()\n" + add("more"))
    hosts[1].bridge(url)
    worker.do(wait("more"))
    assert worker.do("result = md.default_registry().operators()") == ["shop::scale", "shop::more"]


@pytest.mark.thorough
def test_the_commands_show_who_serves_a_host_and_who_waits(hosts, a_server: RedisServer, run):
    url = a_server.url(run)
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(SHOP)
    first = hosts[1].bridge(url, "--json")
    serves = json.loads(hosts[1].hears('"open"'))
    assert strangers("bridge", serves) == []
    assert serves["serves"] is True
    second = hosts[1].bridge(url, "--json")
    waits = json.loads(hosts[1].hears("waits to take over"))
    assert (waits["serves"], waits["cluster"]) == (False, None)
    worker = hosts[1].program(run)
    worker.do(SHOP)
    told = hosts[1].command("doctor", "--json", run)
    assert told.returncode == 0, told.stdout
    answer = json.loads(told.stdout)
    assert strangers("doctor", answer) == []
    [seen] = answer["registries"]
    assert (seen["policy"], seen["registrar"]) == ("bridge", None)
    assert seen["cluster"]["pid"] == first.pid
    assert seen["cluster"]["waiting"] == [second.pid]
    assert seen["cluster"]["state"] == "open"
    assert seen["cluster"]["leader"] == f"node-0[{leader.pid}]"
    assert seen["cluster"]["sequence"] > 0
    assert seen["cluster"]["engine"].endswith(f"run={run}")
    assert f"bridge {first.pid}" in hosts[1].command("doctor", run).stdout
    shown = hosts[1].command("top", "--count", "1", run).stdout
    assert f"to take over waits pid {second.pid}" in " ".join(shown.split())
    [of_leader] = json.loads(hosts[0].command("doctor", "--json", run).stdout)["registries"]
    assert of_leader["policy"] == "main"
    assert of_leader["cluster"]["pid"] == leader.pid
    told = hosts[0].command("cluster", "--json", url)
    answer = json.loads(told.stdout)
    assert strangers("cluster", answer) == []
    assert answer["led"] is True
    assert [each["role"] for each in answer["hosts"]] == ["leader", "bridge"]
    for bridge in (first, second):
        bridge.kill()
        bridge.wait()
    assert "no bridge" in hosts[1].command("doctor", run).stdout
    worker.do(CALL)
