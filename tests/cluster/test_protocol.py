"""Leaders and bridges on an engine in memory that forgets, is cut off, and lies."""

from __future__ import annotations

import os
import threading
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest
from cluster_threads import WAIT, arrives, changes_until, comes, define, goes, host, leader
from kinds import until
from our_kinds import OURS
from patience import limit

import mdispatch as md
from mdispatch.cluster import connect, leading, parse_url
from mdispatch.cluster.bridge import Bridge
from mdispatch.cluster.following import MANIFEST, Follower
from mdispatch.cluster.hosts import OPEN
from mdispatch.cluster.log import (
    BATCH,
    NO_CHAIN,
    START,
    Entry,
    Fact,
    Leader,
    pack,
    pack_batch,
    unpack,
)
from mdispatch.cluster.memory import Store, stores
from mdispatch.cluster.records import Record, accepted_bytes
from mdispatch.cluster.region import HostRegistry
from mdispatch.cluster.state import Manifest, State, start_bytes
from mdispatch.errors import (
    ClassMismatchError,
    EngineUnreachableError,
    FencedError,
    OperatorGoneError,
    PriorityMismatchError,
    ProviderRefusedError,
)
from mdispatch.facts import DEF, IMPL, TYPE
from mdispatch.facts.kinds import COMPARED
from mdispatch.facts.native.constants import MD_CLASS as CLASS
from mdispatch.facts.native.constants import MD_PRIORITY as PRIORITY
from mdispatch.facts.native.constants import MD_TORCH as TORCH
from mdispatch.keys import DispatchKey

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


def test_no_text_of_a_log_breaks_a_call_or_a_comparison(url, run):
    """Whoever can write the log can say anything in it, and members only compare."""
    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        registry, library = main.dispatcher.facts, define(main, "f")
        arrives(worker, "f")
        with md.Library("s", "FRAGMENT", registry=worker, timeout=0) as here:
            registry.register(IMPL, DispatchKey.CompositeImplicitAutograd, "s::f", "f", "/a.py:1")
            for n, text in enumerate(["", "!", "\n", ",,", "a\nb\nc", "\0", "x" * 60000, "{}é"]):
                registry.register(PRIORITY, 0, "s::f", text, "/a.py:1")
                for kind in (CLASS, TYPE, TORCH):
                    registry.register(kind, 0, f"s::Thing{n}", text, "/a.py:1")
                library.define(f"last{n}() -> ()")
                arrives(worker, f"last{n}")
                if n == 0:
                    here.impl("f", lambda x: x)
                with suppress(ProviderRefusedError):  # where the priority is a strict one
                    assert worker.ops.find("s::f")(1) == 1
                is_optional = text.partition("\n")[2]  # it says that a worker may have its own
                differs = nullcontext() if is_optional else pytest.raises(PriorityMismatchError)
                with differs:
                    md.set_priority("s::f", ["fast"], registry=worker, timeout=0).close()
                methods = {"turn": "() -> ()"}
                register = md.register_class(
                    f"s.Thing{n}", methods=methods, registry=worker, timeout=0
                )
                with pytest.raises(ClassMismatchError):
                    register(type("Thing", (), {"turn": print}))


def newest(registry):
    return registry.dispatcher.facts.find(PRIORITY, 0, "s::f")


def test_the_priority_that_counts_is_the_leaders_for_the_next_bridge_too(url, run):
    with leader(url, f"{run}-a") as main:
        registry = main.dispatcher.facts
        with host(url, f"{run}-1") as first:
            a, _ = (registry.register(PRIORITY, 0, "s::f", text, "/a.py:1") for text in "ab")
            changes_until(first, lambda: newest(first) and newest(first).text == "b")
            kept = md.Registry.attach(f"{run}-1")  # so the registry stays
        registry.remove(a)
        registry.register(PRIORITY, 0, "s::f", "a", "/a.py:1")
        with kept, host(url, f"{run}-1"):
            changes_until(kept, lambda: newest(kept).text == "a")
            there = kept.dispatcher.facts.registrations("s::f")[2]
            assert [fact.text for fact in there] == ["b", "a"]


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


def snapshot_of(store) -> Manifest | None:
    """The last snapshot, if it has all that the leader has appended."""
    with store.lock:
        told, tail = store.values.get(MANIFEST), store.tail
    found = Manifest.read(told)[0] if told else None
    return found if found and (found.epoch, found.seq) == tail else None


def test_an_engine_keeps_the_chunks_of_the_last_two_snapshots(url, run, store, monkeypatch):
    monkeypatch.setattr(leading, "SNAPSHOT_AFTER", 1)

    def has_only_these() -> bool:
        found = snapshot_of(store)
        with store.lock:
            kept = {key for key in store.values if key.startswith("chunk:")}
        return found is not None and kept == {*found.chunks, *found.before}

    with leader(url, f"{run}-a") as main, host(url, f"{run}-1") as worker:
        define(main, "always")
        arrives(worker, "always")
        for n in range(6):
            library = define(main, f"f{n}")
            arrives(worker, f"f{n}")
            until(has_only_these)
            library.close()
            goes(worker, f"f{n}")
            until(has_only_these)
        with host(url, f"{run}-2") as late:
            arrives(late, "always")


def test_a_late_host_learns_from_a_snapshot_that_the_run_is_sealed(url, run, store, monkeypatch):
    with leader(url, f"{run}-a") as main:
        define(main, "one")
        md.seal(WAIT, registry=main)
        monkeypatch.setattr(leading, "SNAPSHOT_AFTER", 1)
        define(main, "two")  # the seal is behind the last snapshot, so this makes another one
        until(lambda: snapshot_of(store) is not None)
        with host(url, f"{run}-1") as worker:
            until(lambda: any("is sealed" in line for line in worker.said))


def test_a_leader_with_nothing_to_say_sleeps(url, run, monkeypatch):
    with leader(url, f"{run}-a") as main:
        facts = main.dispatcher.facts
        real, slept = facts.await_change, []

        def await_change(seq, timeout, *more):
            slept.append(timeout)
            return real(seq, timeout, *more)

        monkeypatch.setattr(facts, "await_change", await_change)
        define(main, "one")
        until(lambda: max(slept, default=0) > 0)


def test_a_bridge_that_takes_over_from_a_held_one_holds_where_the_engine_has_forgotten(run):
    url = parse_url(f"memory:held?run={run}&lease={min(4.0, limit(1))}&policy=hold")
    store = stores.setdefault(url.shown, Store())
    heard: list[str] = []
    with host(url, f"{run}-1") as worker:
        with leader(url, f"{run}-a") as main:
            define(main, "f")
            arrives(worker, "f")
        with leader(url, f"{run}-b") as main:
            define(main, "f", "(str x) -> int")
            until(lambda: any("is held" in line for line in worker.said))
        second = Bridge(url, f"{run}-1")
        thread = threading.Thread(target=second.run, args=(heard.append,))
        thread.start()
        until(lambda: any("waits to take over" in line for line in heard))
        store.restore(Store().backup())
    try:
        until(lambda: second.told is not None)
        assert any("takes over at epoch" in line for line in heard)
        assert [line for line in heard if " is " in line and "is held" not in line] == []
    finally:
        second.ended.set()
        thread.join()


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
            facts = first.dispatcher.facts
            for kind in OURS.values():
                if kind.by_any and kind.rule:  # what any member registers, it registers still
                    own = facts.register(kind.number, 0, "s.own", "text", "/a.py:1")
                    assert facts.find(kind.number, 0, "s.own") == own
                elif kind.hosts == COMPARED and not kind.by_any:
                    with pytest.raises(FencedError):
                        facts.register(kind.number, 0, "s::own", "text", "/a.py:1")


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
        killed = HostRegistry.opened(name, 1 << 24)
        assert killed.is_next()  # and has told nobody how far it is
        with md.Registry.attach(name):
            there = main.dispatcher.facts.find(DEF, 0, "s::one")
            killed.register(DEF, 0, "s::one", there.text, there.where)
            killed.close()
            with host(url, name) as worker:
                define(main, "two")
                arrives(worker, "two")
                assert sorted(worker.operators()) == ["s::one", "s::two"]


def test_what_a_killed_bridge_registered_ends_with_the_next_one_where_the_log_has_it_no_more(
    url, run
):
    """It was killed before it told how far it was, and the leader has removed it out since."""
    name = f"{run}-1"
    with leader(url, f"{run}-a") as main:
        define(main, "one")
        killed = HostRegistry.opened(name, 1 << 24)
        assert killed.is_next()
        me = main.dispatcher.facts.publisher._me
        with md.Registry.attach(name):
            for each in ("one", "gone"):
                place = f"{me.host}[{me.pid}]:a.py:1"
                killed.register(DEF, 0, f"s::{each}", f"s::{each}(int x) -> int", place)
            killed.close()
            with host(url, name) as worker:
                define(main, "two")
                arrives(worker, "two")
                goes(worker, "gone")
                assert sorted(worker.operators()) == ["s::one", "s::two"]


def test_a_leader_that_a_person_has_accepted_frees_no_later_one(run, store):
    url = parse_url(f"memory:protocol?run={run}&lease={min(4.0, limit(1))}&policy=hold")
    engine = connect(url)

    def text() -> str:
        there = worker.dispatcher.facts.find(DEF, 0, "s::f")
        return "" if there is None else there.body  # between two leaders nothing is there

    def held() -> int:
        return sum("is held" in each for each in worker.said)

    with host(url, f"{run}-1") as worker:
        with leader(url, f"{run}-a") as main:
            define(main, "f")
            arrives(worker, "f")
        with leader(url, f"{run}-b") as main:
            define(main, "f", "(str x) -> int")
            until(lambda: held() == 1)
            assert "(int x)" in text()
            engine.accept(accepted_bytes(main.dispatcher.facts.publisher._me.number))
            until(lambda: "(str x)" in text())
        with leader(url, f"{run}-c") as main:
            define(main, "f", "(float x) -> int")
            until(lambda: held() == 2 or "(float x)" in text())
            assert "(str x)" in text()


# --- another log of the same epoch number ---------------------------------------------------------


def log_of(store, text: str, count: int) -> list[bytes]:
    """Makes a store have the first epoch of a leader, with so many batches; returns its entries."""
    me = Leader(7, "node-0", 42)
    state, root, chain, entries = State(), NO_CHAIN, NO_CHAIN, []
    for seq in range(1, count + 2):
        what, said = START, start_bytes(me)
        if seq > 1:
            fact = Fact(7, seq, DEF, 0, 42, 0, f"s::{text}{seq}", "s::f() -> ()", "a.py:1")
            what, said = BATCH, pack_batch([], [fact])
        elif text == "b":  # so that its chain is another from its beginning
            said = start_bytes(me._replace(pid=43))
        entry, chain = pack(what, chain, said)
        state.apply(Entry(what, chain, said))
        entries.append(entry)
        root = chain if seq == 1 else root
    chunks = state.chunks()
    manifest = Manifest(1, root, count + 1, chain, tuple(chunks), ()).packed(state)
    with store.lock:
        store.epoch, store.tail = 1, (1, count + 1)
        store.log = [(1, seq, each) for seq, each in enumerate(entries, 1)]
        store.values = {MANIFEST: manifest, **chunks}
    return entries


def followed(follower: Follower) -> None:
    for _ in range(4):
        for _ in follower.follow(0):
            pass


def names(follower: Follower) -> list[str]:
    return sorted(fact.name for fact in follower.state.facts.values())


def test_a_follower_goes_to_no_other_log_of_the_same_epoch_number(url, store):
    engine = connect(url)
    log_of(store, "a", 2)
    follower = Follower(engine)
    followed(follower)
    at, there = follower.at, names(follower)
    assert there == ["s::a2", "s::a3"]
    log_of(store, "b", 6)  # longer, and its snapshot is further on
    followed(follower)
    assert follower.astray
    assert (follower.at, names(follower)) == (at, there)
    log_of(store, "a", 6)
    followed(follower)
    assert not follower.astray
    assert follower.at.root == at.root
    assert len(names(follower)) == 6


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_bridge_takes_over_from_no_other_log_of_the_same_epoch_number(url, store, trimmed):
    engine = connect(url)
    log_of(store, "a", 2)
    first = Follower(engine)
    followed(first)
    log_of(store, "b", 6)
    if trimmed:
        with store.lock:
            del store.log[:]
    second = Follower(engine)
    assert second.resume(first.at) is False
    assert second.astray
    assert names(second) == []
    # Nor where it goes on to a higher epoch, as long as no snapshot of that is there.
    entries = log_of(store, "b", 2)
    entry, _ = pack(START, unpack(entries[-1]).chain, start_bytes(Leader(8, "node-0", 44)))
    with store.lock:
        store.log.append((2, 4, entry))
        store.epoch, store.tail = 2, (2, 4)
    for each in (second, Follower(engine)):
        assert each.resume(first.at) is False
        assert each.astray
    log_of(store, "a", 6)
    assert second.resume(first.at) is True
    assert len(names(second)) == 6


def test_a_leader_that_sees_a_host_with_another_log_of_its_epoch_begins_a_higher_one(
    url, run, store
):
    with leader(url, f"{run}-a") as main:
        define(main, "one")
        publisher = main.dispatcher.facts.publisher
        md.seal(WAIT, registry=main)
        before = publisher._follower.at
        record = Record.of("bridge", "x", replace(before, root=b"r" * 16), 1, OPEN)
        connect(url).announce("elsewhere:1", record.packed(), 60.0)
        until(lambda: store.epoch > before.epoch)
        assert publisher.fenced_by == ""
