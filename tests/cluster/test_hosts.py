"""Hosts as processes with folders of their own, one real Redis, and what happens to each of them.

Hosts with a memory and a network of their own are in test_many_hosts.py.
"""

from __future__ import annotations

import signal

import pytest
from cluster_hosts import Host
from patience import limit
from redis_server import RedisServer

pytestmark = [pytest.mark.shared, pytest.mark.specification]

WAIT = limit(30)

SHOP = """
import mdispatch as md
lib = md.Library("shop", "FRAGMENT", timeout={timeout})
lib.define("scale(int x, int by={by}) -> int")
lib.impl("scale", lambda x, by={by}: x * by, "CompositeExplicitAutograd")
"""


def shop(by=2, timeout=WAIT):
    return SHOP.format(by=by, timeout=timeout)


def add(name):
    return f"lib.define('{name}(int x) -> int')"


def wait(name, timeout=WAIT):
    return f"md.wait_for_def('shop::{name}', {timeout})"


CALL = "result = md.ops.shop.scale(3)"


@pytest.fixture
def hosts(tmp_path):
    made = [Host(f"node-{n}", tmp_path) for n in range(3)]
    yield made
    for host in made:
        host.close()


def begun(hosts, url, run):
    """A leader on the first host that has defined, a bridge and a worker on the second."""
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(shop())
    hosts[1].bridge(url)
    worker = hosts[1].program(run)
    worker.do(shop())
    return leader, worker


@pytest.mark.thorough
def test_a_worker_waits_for_the_leader_of_another_host_and_is_told_in_what_it_differs(
    hosts, a_server: RedisServer, run
):
    url = a_server.url(run)
    hosts[1].bridge(url)
    worker, other = (hosts[1].program(run) for _ in range(2))
    worker.begin(shop())  # before there is any leader
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(shop())
    assert worker.end() == (None, None)
    assert worker.do(CALL) == 6
    assert leader.do("import os; result = os.environ['MDISPATCH_REGISTRY']") == f"shm:{run}"
    kind, text = other.fails(shop(by=5))
    assert kind == "SchemaMismatchError"
    assert f"(pid {leader.pid} on node-0)" in text
    assert (
        f"here:  shop::scale(int x, int by=5) -> int    (node-1[{other.pid}]:/ops/shop.py:4)"
        in text
    )
    assert (
        f"there: shop::scale(int x, int by=2) -> int    (node-0[{leader.pid}]:/ops/shop.py:4)"
        in text
    )
    # Who differs is told to the cluster, with the next record of its host.
    while True:
        told = hosts[2].command("cluster", url)
        if f"worker {other.pid} of node-1[" in told.stdout:
            break
    assert told.returncode == 1
    assert f"leader node-0[{leader.pid}]" in told.stdout
    assert "bridge node-1[" in told.stdout
    assert "int by=5" in told.stdout


@pytest.mark.thorough
def test_the_seal_ends_waits_at_once(hosts, a_server: RedisServer, run):
    leader, worker = begun(hosts, a_server.url(run), run)
    worker.begin(wait("typo"))
    assert leader.do("result = md.seal()") is True
    assert worker.do("result = md.seal()") is False if worker.end()[1] is None else True
    kind, text = worker.fails(wait("typo", 10_000))  # it would last for hours
    assert kind == "NameMismatchError"
    assert "is sealed since" in text
    leader.do(add("late"))  # more may come
    assert worker.do("import time") is None
    assert worker.do(CALL) == 6


OFFER = "lib.impl('scale', str, 'CPU', provider='{0}', available={1})"
WAIT_FOR_CPU = "fact = md.wait_for_impl('shop::scale', 'CPU', {0}); result = fact.provider"


@pytest.mark.thorough
def test_a_provider_of_the_leader_that_is_not_available_ends_no_wait_of_another_host(
    hosts, a_server: RedisServer, run
):
    leader, worker = begun(hosts, a_server.url(run), run)
    leader.do(OFFER.format("gpu", False))
    while worker.fails(WAIT_FOR_CPU.format(0))[0] == "KeyMismatchError":
        pass  # until the provider has come here
    worker.begin(WAIT_FOR_CPU.format(WAIT))
    leader.do(OFFER.format("good", True))
    assert worker.end() == ("good", None)


@pytest.mark.thorough
def test_the_seal_ends_a_wait_where_no_provider_is_available(hosts, a_server: RedisServer, run):
    leader, worker = begun(hosts, a_server.url(run), run)
    leader.do(OFFER.format("gpu", False))
    worker.begin(WAIT_FOR_CPU.format(10_000))  # it would last for hours
    leader.do("md.seal()")
    _, error = worker.end()
    assert error[0] == "ProviderMissingError"
    assert "gpu: available=False" in error[1]
    assert "is sealed since" in error[1]


@pytest.mark.thorough
def test_a_leader_that_is_killed_and_started_again(hosts, a_server: RedisServer, run):
    url = a_server.url(run)
    leader, worker = begun(hosts, url, run)
    worker.do("handle = md.ops.shop.scale.default")
    leader.kill()
    assert worker.do(CALL) == 6
    hosts[1].hears("without a leader")
    kind, text = worker.fails(wait("more", 10_000))
    assert kind == "RegistrarGoneError"
    assert f"node-0[{leader.pid}]" in text
    again = hosts[0].program(f"cluster:{url}")
    again.do(shop() + add("more"))
    hosts[1].hears("is open")
    worker.do(wait("more"))
    assert worker.do("result = handle(3)") == 6  # the same definition is no change


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_server_that_is_killed_or_stopped(hosts, server: RedisServer, run, how):
    url = server.url(run)
    leader, worker = begun(hosts, url, run)
    server.send(signal.SIGSTOP) if how == "stopped" else server.kill()
    hosts[1].hears("is cut off")
    leader.do(add("meanwhile"))  # the leader goes on
    assert leader.do(CALL) == worker.do(CALL) == 6
    kind, text = worker.fails(wait("meanwhile", 0.1))
    assert kind == "EngineUnreachableError"
    assert f"redis://127.0.0.1:{server.port}/0?run={run}" in text
    assert "since" in text
    assert "sequence" in text
    server.send(signal.SIGCONT) if how == "stopped" else server.start()  # which has forgotten all
    worker.do(wait("meanwhile"))
    assert worker.do(CALL) == 6
    hosts[2].bridge(url)  # and late hosts find all
    late = hosts[2].program(run)
    late.do(shop() + wait("meanwhile"))
    assert late.do(CALL) == 6


@pytest.mark.thorough
def test_a_leader_that_was_stopped_finds_another_in_its_place(hosts, a_server: RedisServer, run):
    url = a_server.url(run)
    first, worker = begun(hosts, url, run)
    first.send(signal.SIGSTOP)
    second = hosts[2].program(f"cluster:{url}")
    second.do(shop() + add("by_second"))  # waits until the lease of the first has run out
    worker.do(wait("by_second"))
    first.send(signal.SIGCONT)
    first.do("import threading")
    first.do(
        "[each] = [t for t in threading.enumerate() if t.name == 'mdispatch leader'] or [None]\n"
        f"each and each.join({WAIT})"
    )
    kind, text = first.fails(add("by_first"))
    assert kind == "FencedError"
    assert f"node-2[{second.pid}]" in text
    assert first.do(CALL) == worker.do(CALL) == 6


@pytest.mark.thorough
def test_a_second_leader_beside_a_living_one_is_refused(hosts, a_server: RedisServer, run):
    url = a_server.url(run)
    leader, _ = begun(hosts, url, run)
    kind, text = hosts[2].program(f"cluster:{url}").fails(shop())
    assert kind == "RegistryExistsError"
    assert f"is led by node-0[{leader.pid}]" in text
    kind, text = hosts[1].program(f"cluster:{url}").fails(shop())
    assert kind == "RegistryExistsError"
    assert f"MDISPATCH_REGISTRY={run}" in text


@pytest.mark.thorough
def test_a_bridge_that_is_killed_with_none_in_its_place_ends_waits_and_is_started_again(
    hosts, a_server: RedisServer, run
):
    url = a_server.url(run)
    leader, worker = begun(hosts, url, run)
    hosts[2].bridge(url)
    other = hosts[2].program(run)
    other.do(shop())
    bridge = hosts[1].processes[0]
    bridge.kill()
    bridge.wait()
    assert worker.do(CALL) == 6
    assert worker.fails(wait("more"))[0] == "RegistrarGoneError"
    leader.do(add("more"))
    other.do(wait("more"))
    hosts[1].bridge(url)
    again = hosts[1].program(run)
    again.do(shop() + wait("more"))
    assert again.do(CALL) == 6
    worker.do(wait("more"))


@pytest.mark.thorough
def test_a_bridge_that_was_stopped_catches_up(hosts, a_server: RedisServer, run):
    leader, worker = begun(hosts, a_server.url(run), run)
    bridge = hosts[1].processes[0]
    bridge.send_signal(signal.SIGSTOP)
    leader.do("".join(f"lib.define('f{n}(int x) -> int')\n" for n in range(100)))
    assert worker.do(CALL) == 6
    bridge.send_signal(signal.SIGCONT)
    worker.do(wait("f99"))


@pytest.mark.thorough
def test_a_bridge_that_is_ended_says_good_bye(hosts, a_server: RedisServer, run):
    url = a_server.url(run)
    begun(hosts, url, run)
    bridge = hosts[1].processes[0]
    bridge.terminate()
    assert bridge.wait(WAIT) == 0
    assert "bridge" not in hosts[2].command("cluster", url).stdout


@pytest.mark.thorough
def test_a_password_is_in_no_text(hosts, server: RedisServer, run):
    secret = "hunter2hunter2"
    server.kill()
    server.start("--requirepass", secret)
    url = server.url(run, password=secret)
    leader, _ = begun(hosts, url, run)
    wrong = url.replace(secret, "wr0ngwr0ng")
    told = [
        *hosts[1].heard,
        hosts[2].command("cluster", url).stdout,
        *hosts[2].program(f"cluster:{wrong}").fails(shop()),
        hosts[2].command("cluster", wrong).stderr,
        hosts[2].command("cluster", url.replace("run=", "walk=")).stderr,
        hosts[2].command("cluster", url.replace("redis:", "rediz:")).stderr,
        *hosts[2].program(f"cluster:{url.replace('run=', 'walk=')}").fails(shop()),
        leader.do("import os; result = os.environ['MDISPATCH_REGISTRY']"),
    ]
    server.kill()
    told.append(hosts[1].hears("is cut off"))
    told.append(hosts[2].command("cluster", url).stderr)
    assert not any(secret in text or "wr0ng" in text for text in told), told
    assert any("rediss, torch, unix" in text for text in told)


@pytest.mark.thorough
def test_what_somebody_adds_to_the_log_is_healed_though_nothing_is_registered(
    hosts, a_server: RedisServer, run
):
    leader, worker = begun(hosts, a_server.url(run), run)
    client, log = a_server.client(), f"mdispatch:{{{run}}}:log"
    last = client.xinfo_stream(log)["last-generated-id"].decode()
    epoch, seq = map(int, last.split("-"))
    client.xadd(log, {"e": b"\x80\x04 some pickle"}, f"{epoch}-{seq + 1}")
    client.close()
    hosts[1].hears("is astray")
    hosts[1].hears("is open")
    leader.do(add("more"))
    worker.do(wait("more"))
