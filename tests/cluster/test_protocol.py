"""Leaders and bridges on an engine in memory that forgets, is cut off, and lies."""

from __future__ import annotations

import os

import pytest
from cluster_threads import WAIT, arrives, comes, define, goes, host, leader
from patience import limit

import mdispatch as md
from mdispatch.cluster import leading, parse_url
from mdispatch.cluster.memory import Store, stores
from mdispatch.cluster.region import HostBook
from mdispatch.errors import EngineUnreachableError, FencedError, OperatorGoneError
from mdispatch.facts import DEF

pytestmark = [pytest.mark.shared, pytest.mark.specification]


@pytest.fixture
def url(run):
    return parse_url(f"memory:protocol?run={run}&lease={min(4.0, limit(1))}&policy=follow")


@pytest.fixture
def store(url):
    return stores.setdefault(url.shown, Store())


def test_what_is_registered_arrives_and_what_ends_goes(url, run):
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        library = define(main, "one")
        arrives(worker, "one")
        define(main, "two")
        arrives(worker, "two")
        library.close()
        goes(worker, "one")
        assert worker.operators() == ["s::two"]
        assert md.seal(WAIT, registry=main) is True
        assert md.seal(registry=worker) is False


def test_the_thread_of_a_leader_pushes_nobody_who_registers_off_the_processor(url, run):
    before = os.sched_getscheduler(0)
    with leader(url, run) as main:
        md.seal(WAIT, registry=main)  # by then it runs
        thread = main.dispatcher.facts.publisher._thread.native_id
        assert os.sched_getscheduler(thread) == os.SCHED_BATCH
        assert os.sched_getscheduler(0) == before


def test_a_definition_that_replaces_another_does_so_everywhere(url, run):
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        library = define(main, "f")
        before = arrives(worker, "f")
        handle = worker.ops.s.f.default
        library.close()
        define(main, "f", "(str x) -> int")
        goes_or_changed = before
        while goes_or_changed.body == before.body:
            seq, _ = worker.dispatcher.facts.await_change(0, 0)
            goes_or_changed = arrives(worker, "f")
            if goes_or_changed.body == before.body:
                worker.dispatcher.facts.await_change(seq, WAIT)
        with pytest.raises(OperatorGoneError):
            handle(1)


def test_a_late_host_reads_a_snapshot_and_the_rest(url, run, store, monkeypatch):
    monkeypatch.setattr(leading, "SNAPSHOT_AFTER", 1)
    with leader(url, f"{run}-a") as main:
        for n in range(20):
            define(main, f"f{n}")
            md.seal(WAIT, registry=main) if n == 0 else None
        with host(url, f"{run}-1") as worker:
            comes(worker, "f19")
            assert len(worker.operators()) == 20
        with store.lock:
            assert len(store.log) < 20  # it was trimmed
            kept = [key for key in store.values if key.startswith("chunk:")]
            assert len(kept) <= 4  # of the last two snapshots


@pytest.mark.parametrize("how", ["older", "empty"])
def test_an_engine_that_forgets_is_given_all_again(url, run, store, how):
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        empty = Store().backup()
        define(main, "one")
        arrives(worker, "one")
        backup = store.backup()
        define(main, "two")
        arrives(worker, "two")
        handle = worker.ops.s.two.default
        store.restore(backup if how == "older" else empty)
        define(main, "three")
        arrives(worker, "three")
        assert sorted(worker.operators()) == ["s::one", "s::three", "s::two"]
        assert handle is worker.ops.s.two.default  # it never went
        with host(url, f"{run}-2") as late:
            arrives(late, "three")
            assert sorted(late.operators()) == ["s::one", "s::three", "s::two"]


def test_a_quiet_leader_notices_too_that_the_engine_forgot(url, run, store):
    with leader(url, f"{run}-a") as main:
        empty = Store().backup()
        define(main, "one")
        with host(url, f"{run}-1") as worker:
            arrives(worker, "one")
        store.restore(empty)
        with host(url, f"{run}-2") as late:  # nothing is registered meanwhile
            arrives(late, "one")


@pytest.mark.dear
def test_the_next_leader_goes_on_and_nothing_alike_changes(url, run, store):
    with host(url, f"{run}-1") as worker:
        with leader(url, f"{run}-a") as main:
            libraries = [define(main, "same"), define(main, "other"), define(main, "gone")]
            md.seal(WAIT, registry=main)
            for name in ("same", "other", "gone"):
                arrives(worker, name)
            assert len(libraries) == 3
        handles = [getattr(worker.ops.s, name).default for name in ("same", "other", "gone")]
        with leader(url, f"{run}-b") as main:
            define(main, "same")
            define(main, "other", "(str x) -> int")
            define(main, "new")
            comes(worker, "new")  # until it follows the new epoch, the run is sealed for it
            assert "s::gone" in worker.operators()  # until the seal
            md.seal(WAIT, registry=main)
            goes(worker, "gone")
            assert worker.ops.s.same.default is handles[0]
            for handle in handles[1:]:
                with pytest.raises(OperatorGoneError):
                    handle(1)


def test_who_lost_the_lead_is_told_at_its_next_registration(url, run, store):
    with leader(url, f"{run}-a") as first, host(url, f"{run}-1") as worker:
        define(first, "one")
        arrives(worker, "one")
        with store.lock:
            first_publisher = first.dispatcher.facts.publisher
            store.lease = 0.0  # as if it had been silent for long
        with leader(url, f"{run}-b") as second:
            define(second, "two")
            arrives(worker, "two")
            first_publisher._thread.join(WAIT)
            with pytest.raises(FencedError, match="has taken over") as caught:
                define(first, "three")
            assert caught.value.epoch == 1
            assert caught.value.leader
            assert first.operators() == ["s::one"]  # the refused one has changed nothing
            assert "s::three" not in worker.operators()


def test_a_wait_that_an_unreachable_engine_keeps_waiting_says_so(url, run, store):
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        define(main, "one")
        arrives(worker, "one")
        with store.lock:
            store.is_cut = True
        facts = worker.dispatcher.facts
        seq, _ = facts.await_change(0, 0)
        while not any("cut off" in text for text in worker.said):
            seq, _ = facts.await_change(seq, WAIT)
        with pytest.raises(EngineUnreachableError, match="s::two did not come") as caught:
            md.wait_for_def("s::two", 0.05, registry=worker)
        assert caught.value.engine == url.shown
        assert caught.value.seq >= 2
        define(main, "two")  # the leader goes on
        with store.lock:
            store.is_cut = False
        arrives(worker, "two")


@pytest.mark.parametrize("what", [b"", b"md" + bytes(100), b"\xff" * 500])
def test_what_somebody_writes_into_the_log_is_not_applied_and_healed_by_the_leader(
    url, run, store, what
):
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        define(main, "one")
        arrives(worker, "one")
        with store.lock:
            epoch, seq = store.tail
            store.log.append((epoch, seq + 1, what))
            store.tail = (epoch, seq + 1)
            store.lock.notify_all()
        define(main, "two")  # the leader finds another tail than its own
        arrives(worker, "two")
        assert sorted(worker.operators()) == ["s::one", "s::two"]


def test_of_two_hosts_one_of_which_was_told_otherwise_both_end_alike(url, run, store):
    """An epoch that the engine gave twice: the bridge that knows the first one is astray, and the
    leader sees it.
    """
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        define(main, "one")
        arrives(worker, "one")
        backup = store.backup()
    with store.lock:
        store.lease = 0.0
    with host(url, f"{run}-1") as worker:
        with leader(url, f"{run}-b") as main:
            define(main, "lost")
            arrives(worker, "lost")
            main.dispatcher.facts.publisher.end()
        with store.lock:
            records = dict(store.records)
        store.restore(backup)
        with store.lock:
            store.lease, store.records = 0.0, {}
        with leader(url, f"{run}-c") as main:
            define(main, "two")
            arrives(worker, "two")
            md.seal(WAIT, registry=main)
            goes(worker, "lost")
            assert worker.operators() == ["s::two"]
        assert records


def test_a_bridge_that_was_killed_in_its_first_batch_leaves_what_the_next_one_goes_on_with(
    url, run
):
    name = f"{run}-1"
    with leader(url, f"{run}-a") as main:
        define(main, "one")
        killed = HostBook.opened(name, 1 << 24)
        assert killed.is_next()  # and has told nobody how far it is
        with md.Registry.attach(name):
            there = main.dispatcher.facts.find(DEF, 0, "s::one")
            killed.register(DEF, 0, "s::one", there.text, there.where)
            killed.close()
            with host(url, name) as worker:
                define(main, "two")
                arrives(worker, "two")
                assert sorted(worker.operators()) == ["s::one", "s::two"]
