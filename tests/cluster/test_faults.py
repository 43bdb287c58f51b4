"""One real Redis, and what happens to it and to the lines to it. Leaders and bridges are threads of
this process; hosts that are processes are in test_hosts.py.

Whatever happens, calls go on, a wait that ends says what ended it, and afterwards all hosts have
what the leader has.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from cluster_hosts import Host
from cluster_threads import WAIT, arrives, changes_until, define, host, leader
from redis_server import RedisServer
from tcp_proxy import Proxy

import mdispatch as md
from mdispatch.cluster import leading, parse_url
from mdispatch.cluster.hosts import CUT, GONE, OPEN, told
from mdispatch.errors import (
    EngineUnreachableError,
    FencedError,
    RegistrarGoneError,
)

pytestmark = [pytest.mark.shared, pytest.mark.specification]

LINES = {
    "cut to the server": lambda line: line.hold("to server"),
    "cut to the client": lambda line: line.hold("to client"),
    "stalled": lambda line: line.hold("to server", "to client"),
    "reset": Proxy.refuse,
    "a byte a second": lambda line: line.slow("to server", "to client"),
    "answers a byte a second": lambda line: line.slow("to client"),
}


@pytest.fixture
def hosts(tmp_path):
    made = [Host(f"node-{n}", tmp_path) for n in range(2)]
    yield made
    for each in made:
        each.close()


@pytest.fixture
def line(a_server: RedisServer):
    line = Proxy(a_server.port)
    yield line
    line.close()


def is_now(worker, *phases):
    """Waits until the host of a worker stands so."""
    facts = worker.dispatcher.facts

    def stands():
        now = told(facts)
        return now is not None and now.phase in phases

    changes_until(worker, stands)


def operator(registry, name):
    """A definition and a kernel; the library."""
    library = define(registry, name)
    library.impl(name, lambda x: x + 1, "CompositeExplicitAutograd")
    return library


def calls_go_on(worker, name="one"):
    assert getattr(worker.ops.s, name)(1) == 2


def says_what_ended_it(worker, url, name="two"):
    with pytest.raises(EngineUnreachableError, match=f"s::{name} did not come") as caught:
        md.wait_for_def(f"s::{name}", 0.05, registry=worker)
    error = caught.value
    assert error.engine == url.shown
    assert error.since
    assert error.seq >= 2
    for part in (error.engine, error.since, f"sequence {error.seq}"):
        assert part in str(error)


def all_alike(*registries):
    """The operators of a leader and of the workers, which may come yet."""
    main, *workers = registries
    for worker in workers:
        changes_until(worker, lambda w=worker: sorted(w.operators()) == sorted(main.operators()))
        worker.check_invariants()


@pytest.mark.dear
@pytest.mark.parametrize("how", LINES)
def test_a_host_whose_line_is_disturbed(a_server: RedisServer, run, line, how, monkeypatch):
    near, far = parse_url(a_server.url(run)), parse_url(a_server.url(run, port=line.port))
    with (
        leader(near, f"{run}-a") as main,
        host(near, f"{run}-1") as other,
        host(far, f"{run}-2") as worker,
    ):
        operator(main, "one")
        mine = operator(worker, "one")
        arrives(other, "one")
        LINES[how](line)
        operator(main, "two")
        arrives(other, "two")  # nobody else waits for that host
        is_now(worker, CUT)
        operator(main, "three")  # what was on its way before may have arrived
        calls_go_on(worker)
        says_what_ended_it(worker, far, "three")
        # It misses so much that the log does not have it any more: the leader waits for nobody.
        monkeypatch.setattr(leading, "SNAPSHOT_AFTER", 1)
        for n in range(5):
            define(main, f"f{n}")
            arrives(other, f"f{n}")
        line.heal()
        arrives(worker, "f4")
        all_alike(main, other, worker)
        calls_go_on(worker)
        assert mine


@pytest.mark.dear
@pytest.mark.parametrize("how", LINES)
def test_a_leader_whose_line_is_disturbed_and_nobody_in_its_place(
    a_server: RedisServer, run, line, how
):
    near, far = parse_url(a_server.url(run)), parse_url(a_server.url(run, port=line.port))
    with leader(far, f"{run}-a") as main, host(near, f"{run}-1") as worker:
        operator(main, "one")
        mine = operator(worker, "one")
        LINES[how](line)
        operator(main, "two")  # the leader goes on
        assert main.ops.s.two(1) == 2
        is_now(worker, GONE)
        calls_go_on(worker)
        operator(main, "three")  # what was on its way before may have arrived
        with pytest.raises(RegistrarGoneError, match="nobody leads any more") as caught:
            md.wait_for_def("s::three", WAIT, registry=worker)
        for part in (near.shown, "since", "sequence "):
            assert part in str(caught.value)
        line.heal()
        is_now(worker, OPEN)
        arrives(worker, "three")
        all_alike(main, worker)
        assert mine


def test_a_leader_that_is_cut_off_for_longer_than_its_lease_finds_a_second_one(
    a_server: RedisServer, run, line
):
    near, far = parse_url(a_server.url(run)), parse_url(a_server.url(run, port=line.port))
    with leader(far, f"{run}-a") as first, host(near, f"{run}-1") as worker:
        operator(first, "one")
        mine = operator(worker, "one")
        line.hold("to server")
        operator(first, "of_first")  # is on its way when the line is whole again
        with leader(near, f"{run}-b") as second:  # once the lease has run out
            operator(second, "one")
            operator(second, "two")
            arrives(worker, "two")
            line.heal()
            first.dispatcher.facts.publisher._thread.join(WAIT)
            with pytest.raises(FencedError, match="has taken over"):
                define(first, "three")
            assert first.ops.s.of_first(1) == 2
            calls_go_on(worker)
            all_alike(second, worker)
            assert "s::of_first" not in worker.operators()
            assert mine


def _killed_clients(server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def _flushed(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()


def _killed(server: RedisServer) -> None:
    server.kill()
    server.start()


@pytest.mark.thorough
@pytest.mark.parametrize("blow", [_killed_clients, _flushed, _killed])
def test_a_server_that_is_struck_while_the_leader_registers(server: RedisServer, run, blow):
    url = parse_url(server.url(run))
    with (
        leader(url, f"{run}-a") as main,
        host(url, f"{run}-1") as worker,
        host(url, f"{run}-2") as other,
    ):
        operator(main, "one")
        mine = operator(worker, "one")
        handle = worker.ops.s.one.default
        arrives(other, "one")
        for round_ in range(5):
            for n in range(20):
                define(main, f"f{round_}_{n}")
            blow(server)
            calls_go_on(worker)
        for each in (worker, other):
            arrives(each, "f4_19")
        all_alike(main, worker, other)
        assert worker.ops.s.one.default is handle  # it never went
        assert mine


@pytest.mark.long
def test_a_server_that_is_stopped_for_20_seconds(server: RedisServer, run):
    url = parse_url(server.url(run))
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        operator(main, "one")
        mine = operator(worker, "one")
        server.send(signal.SIGSTOP)
        # The 20 s are what this is about, and no synchronisation.
        threading.Timer(20.0, server.send, (signal.SIGCONT,)).start()
        is_now(worker, CUT)
        operator(main, "two")
        calls_go_on(worker)
        says_what_ended_it(worker, url)
        arrives(worker, "two")
        all_alike(main, worker)
        assert mine


@pytest.mark.thorough
def test_a_replica_that_takes_over_and_lacks_acknowledged_writes(
    a_server: RedisServer, tmp_path: Path, run
):
    folder = tmp_path / "replica"
    folder.mkdir()
    primary = RedisServer(tmp_path)
    replica = RedisServer(folder)
    clients, copies = Proxy(primary.port), Proxy(primary.port)
    url = parse_url(primary.url(run, port=clients.port))
    try:
        with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
            with replica.client() as client:
                client.execute_command("REPLICAOF", "127.0.0.1", copies.port)
                operator(main, "one")
                mine = operator(worker, "one")
                while not client.exists(f"mdispatch:{{{run}}}:log"):
                    pass
                with primary.client() as first:
                    assert first.wait(1, int(WAIT * 1000)) == 1
                copies.hold("to client")
                operator(main, "lost")
                arrives(worker, "lost")  # it was acknowledged, and is on no replica
                handle = worker.ops.s.lost.default
                primary.kill()
                client.execute_command("REPLICAOF", "NO", "ONE")
            clients.redirect(replica.port)
            with host(url, f"{run}-2") as late:
                arrives(late, "lost")
                operator(main, "two")
                arrives(worker, "two")
                all_alike(main, worker, late)
            calls_go_on(worker)
            assert worker.ops.s.lost.default is handle  # it never went
            assert mine
    finally:
        for each in (clients, copies, primary, replica):
            each.close()


def test_a_server_whose_memory_is_full(server: RedisServer, run):
    url = parse_url(server.url(run))
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        operator(main, "one")
        mine = operator(worker, "one")
        with server.client() as client:
            client.config_set("maxmemory", "1")  # and nothing may be dropped
            operator(main, "two")
            is_now(worker, CUT, GONE)
            is_now(worker, CUT)
            assert "maxmemory" in told(worker.dispatcher.facts).why
            calls_go_on(worker)
            says_what_ended_it(worker, url)
            client.config_set("maxmemory", "0")
        arrives(worker, "two")
        all_alike(main, worker)
        assert mine


def _faketime() -> str:
    for folder in ("x86_64-linux-gnu/", "aarch64-linux-gnu/", ""):
        library = Path(f"/usr/lib/{folder}faketime/libfaketime.so.1")
        if library.exists():
            return str(library)
    pytest.skip("libfaketime is not installed")


@pytest.mark.thorough
def test_the_clocks_of_hosts_jump(hosts, a_server: RedisServer, run, tmp_path, monkeypatch):
    """Those of both hosts' processes. Monotonic clocks do not jump; nothing goes by another."""
    clock = tmp_path / "clock"

    def jump(offset: str) -> None:
        (tmp_path / "next").write_text(offset + "\n")
        os.replace(tmp_path / "next", clock)

    jump("+0")
    faked = {
        "LD_PRELOAD": _faketime(),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    for name, value in faked.items():
        monkeypatch.setenv(name, value)
    url = a_server.url(run)
    begun = f"import time, mdispatch as md\nlib = md.Library('s', 'FRAGMENT', timeout={WAIT})\n"
    leader = hosts[0].program(f"cluster:{url}")
    leader.do(begun + "lib.define('f0(int x) -> int')")
    hosts[1].bridge(url)
    worker = hosts[1].program(run)
    worker.do(begun + f"md.wait_for_def('s::f0', {WAIT})")
    hosts[1].hears("is open")
    now = worker.do("result = time.time()")
    for n, offset in enumerate(("+3600", "-3600", "+0"), 1):
        jump(offset)
        leader.do(f"lib.define('f{n}(int x) -> int')")
        worker.do(f"md.wait_for_def('s::f{n}', {WAIT})")
        assert offset == "+0" or abs(worker.do("result = time.time()") - now) > 3000
    assert hosts[1].said.empty(), "a bridge took the jump for an event"


@pytest.mark.dear
@pytest.mark.parametrize("way", ["forward", "back"])
def test_the_clock_of_the_server_jumps(a_server: RedisServer, run, way):
    """As it does to the keys whose times the server counts: who leads, and the records of hosts."""
    url = parse_url(a_server.url(run))
    keys = [f"mdispatch:{{{run}}}:{name}" for name in ("lease", "seen")]
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        operator(main, "one")
        mine = operator(worker, "one")
        with a_server.client() as client:
            while len(times := client.zrange(keys[1], 0, -1, withscores=True)) < 1:
                pass
            hour = 3_600_000 * (-1 if way == "forward" else 1)
            client.pexpire(keys[0], max(1, client.pttl(keys[0]) + hour))
            for name, time in times:
                client.zadd(keys[1], {name: time + hour})
            operator(main, "two")
            arrives(worker, "two")
            calls_go_on(worker)
            lease = url.lease * 1000
            while not 0 < client.pttl(keys[0]) <= lease:  # the leader has renewed it
                pass
            now = client.time()[0] * 1000
            while not all(
                now < time < now + 100 * lease
                for _, time in client.zrange(keys[1], 0, -1, withscores=True)
            ):
                pass
        is_now(worker, OPEN)
        all_alike(main, worker)
        assert mine
