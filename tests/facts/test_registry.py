"""The protocol of registries of registrations: every promise once, for each implementation.

At the end random operations compare the two implementations.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import sys
import threading
from contextlib import contextmanager

import pytest
from our_kinds import OURS

from mdispatch import errors
from mdispatch.facts import (
    DEF,
    FALLBACK,
    IMPL,
    LIBRARY,
    MAIN,
    NAME,
    NOTE,
    PYSTUB,
    WORKER,
    Registration,
    kind_of,
)
from mdispatch.facts.local import LocalRegistry
from mdispatch.facts.shared import SharedRegistry
from mdispatch.keys import DispatchKey

UNIQUE = [LIBRARY, DEF, FALLBACK]
RULED = [number for number, kind in OURS.items() if kind.rule]
STACKED = [IMPL, PYSTUB, NAME]


def named(kind):
    return kind_of(kind).name


def everything(facts):
    """Everything that a refused or read-only operation must leave unchanged."""
    _, _, there = facts.registrations()
    return there, {fact.name: facts.registrations(fact.name)[:2] for fact in there}


def put(facts, kind=IMPL, key=49, name="s::f", body="kernel", where="a.py:1"):
    return facts.register(kind, key, name, body, where)


@contextmanager
def waiting(facts, *calls):
    """Runs each call in a thread of its own. Inside the block all of them wait; yields their
    outcomes.
    """
    outcomes = [None] * len(calls)

    def run(i, call):
        try:
            outcomes[i] = call()
        except BaseException as error:
            outcomes[i] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    try:
        while waiters(facts) < len(calls):
            os.sched_yield()
        yield outcomes
    finally:
        facts.cancel()
        for thread in threads:
            thread.join()


def waiters(facts):
    if isinstance(facts, LocalRegistry):
        return len(facts._waits)
    return sum(member[4] for member in facts.members())


# --- register and find ----------------------------------------------------------------------------


def test_a_fact_is_found_as_it_was_registered(facts):
    made = put(facts, DEF, 0, "s::f.out", "s::f.out(Tensor x) -> ()", "dir/ops.py:7")
    assert (made.kind, made.key, made.name) == (DEF, 0, "s::f.out")
    assert (made.body, made.where) == ("s::f.out(Tensor x) -> ()", "dir/ops.py:7")
    assert (made.pid, made.interpreter) == (os.getpid(), 0)
    assert facts.find(DEF, 0, "s::f.out") == made


@pytest.mark.parametrize("kind", RULED, ids=named)
def test_every_kind_of_fact_can_be_registered_and_struck(facts, kind):
    made = put(facts, kind)
    assert facts.registrations("s::f")[2] == [made]
    assert facts.remove(made)
    assert facts.registrations("s::f")[2] == []


def test_only_exactly_this_kind_key_and_name_is_found(facts):
    put(facts, IMPL, 49, "s::f")
    assert facts.find(DEF, 49, "s::f") is None
    assert facts.find(IMPL, 50, "s::f") is None
    assert facts.find(IMPL, 49, "s::f.out") is None
    assert facts.find(IMPL, 49, "s::") is None


@pytest.mark.parametrize("key", [0, -1, 1, 155, 2**31 - 1, -(2**31)])
def test_any_32_bit_key_is_a_key(facts, key):
    assert facts.find(IMPL, key, "s::f") is None
    assert put(facts, IMPL, key).key == key
    assert facts.find(IMPL, key, "s::f").key == key


def test_the_key_of_a_registration_is_a_dispatch_key(facts):
    for made in (put(facts, IMPL, 49), put(facts, FALLBACK, 49), put(facts, NOTE, 49)):
        assert made.key is DispatchKey.CPU
        assert facts.find(*made.what).key is DispatchKey.CPU
        assert made.what[1] == 49
    kernel, definition = put(facts, IMPL, 155, "s::g"), put(facts, DEF, 0, "s::g")
    assert [f.key for f in facts.registrations("s::g")[2]] == [DispatchKey(155), DispatchKey(0)]
    assert repr(kernel).startswith(f"Registration(impl 's::g' key={DispatchKey(155).name} at ")
    assert repr(definition).startswith("Registration(def 's::g' at ")


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ("", ""),
        ("x" * 65536, ""),
        ("ä€😀\0\n", "ordner/müll.py:3"),
        *(("b" * n, "w" * m) for n in range(10) for m in (0, 1, 7, 8, 9)),
    ],
)
def test_texts_come_back_as_they_were_given(facts, body, where):
    put(facts, body=body, where=where)
    found = facts.find(IMPL, 49, "s::f")
    assert (found.text, found.where) == (body, where)


@pytest.mark.parametrize("name", ["n", "n" * 1023, "ü" * 511, "a\0b", "a b\n"])
def test_a_name_is_any_text_of_1_to_1023_bytes(facts, name):
    made = put(facts, name=name)
    assert facts.find(IMPL, 49, name) == made
    assert facts.registrations(name)[2] == [made]


@pytest.mark.parametrize(
    ("name", "body"),
    [("", ""), ("n" * 1024, ""), ("ü" * 512, ""), ("n", "x" * 65537), ("n", "ü" * 32769)],
)
def test_what_is_too_long_or_empty_is_refused_and_changes_nothing(facts, name, body):
    put(facts)
    before = everything(facts)
    with pytest.raises(errors.InvalidArgumentError):
        put(facts, name=name, body=body)
    assert everything(facts) == before
    assert facts.registrations(name) == (0, 0, [])


def test_no_text_makes_a_fact_that_cannot_be_read(facts):
    put(facts, body="half \udc80", where="\udcff.py:1")
    found = facts.find(IMPL, 49, "s::f")
    assert found.body.startswith("half ")
    assert found.where.endswith(".py:1")


@pytest.mark.shared
def test_a_place_too_long_for_the_registry_keeps_its_end():
    facts = SharedRegistry.create(None, 1 << 20)
    made = put(facts, where="ü" * 1000 + ".py:17")  # the cut falls inside a letter
    assert made.where.endswith("ü.py:17")
    assert 500 < len(made.where) < 1000
    facts.close()


def test_sequence_numbers_grow_and_are_never_used_twice(facts):
    seen = []
    for _ in range(5):
        made = put(facts)
        seen.append(made.seq)
        facts.remove(made)
    assert seen == sorted(set(seen))


# --- the rules of the kinds -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", UNIQUE, ids=named)
def test_a_second_unique_fact_is_refused_naming_both_places_and_changes_nothing(facts, kind):
    first = put(facts, kind, 3, "s", "one", "first.py:1")
    before = everything(facts)
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        put(facts, kind, 3, "s", "two", "second.py:2")
    error = caught.value
    assert (error.kind, error.name, error.key) == (kind_of(kind).name, "s", "3")
    assert (error.first, error.second) == ("first.py:1", "second.py:2")
    assert everything(facts) == before
    assert facts.find(kind, 3, "s") == first


@pytest.mark.parametrize("kind", UNIQUE, ids=named)
def test_a_unique_fact_can_be_registered_again_once_it_was_struck(facts, kind):
    facts.remove(put(facts, kind))
    assert facts.find(kind, 49, "s::f") is None
    assert facts.find(kind, 49, put(facts, kind).name) is not None


@pytest.mark.parametrize("kind", UNIQUE, ids=named)
def test_unique_facts_of_other_keys_and_names_are_not_in_the_way(facts, kind):
    made = [put(facts, kind, 1, "a"), put(facts, kind, 2, "a"), put(facts, kind, 1, "b")]
    assert [facts.find(f.kind, f.key, f.name) for f in made] == made


@pytest.mark.parametrize("kind", STACKED, ids=named)
def test_of_stacked_facts_the_newest_is_in_effect(facts, kind):
    made = [put(facts, kind, body=str(i)) for i in range(3)]
    assert facts.find(kind, 49, "s::f") == made[2]
    assert facts.registrations("s::f")[2] == made


@pytest.mark.parametrize("count", range(1, 6))
def test_in_whatever_order_registrations_end_the_newest_left_is_in_effect(facts, count):
    for order in itertools.permutations(range(count)):
        left = {i: put(facts, body=str(i)) for i in range(count)}
        for i in order:
            assert facts.remove(left.pop(i))
            assert facts.registrations("s::f")[2] == list(left.values())
            assert facts.find(IMPL, 49, "s::f") == (left[max(left)] if left else None)


@pytest.mark.parametrize("count", range(1, 6))
def test_in_whatever_order_registrations_of_all_kinds_end_the_others_stay(facts, count):
    kinds = [DEF, IMPL, LIBRARY, FALLBACK, NAME][:count]
    for order in itertools.permutations(range(count)):
        left = {i: put(facts, kind, i, "same") for i, kind in enumerate(kinds)}
        for i in order:
            gone = left.pop(i)
            assert facts.remove(gone)
            assert facts.find(gone.kind, gone.key, "same") is None
            assert facts.registrations("same")[2] == list(left.values())


# --- remove ---------------------------------------------------------------------------------------


def test_a_fact_is_struck_once(facts):
    made = put(facts)
    assert facts.remove(made) is True
    before = everything(facts)
    assert facts.remove(made) is False
    assert everything(facts) == before


def test_striking_a_fact_does_not_strike_one_that_took_its_place(facts):
    old = put(facts)
    facts.remove(old)
    new = put(facts)
    assert facts.remove(old) is False
    assert facts.find(IMPL, 49, "s::f") == new


def test_what_never_was_a_fact_cannot_be_struck(facts):
    made = put(facts)
    for ref, seq in ((made.ref, made.seq + 1), (1, made.seq + 1), (2**40, 1), (2**32 - 1, 0)):
        forged = Registration(ref, seq, IMPL, 49, "s::f", "kernel", "a.py:1", os.getpid(), 0)
        assert facts.remove(forged) is False
    assert facts.find(IMPL, 49, "s::f") == made


# --- registrations and versions -------------------------------------------------------------------


def test_a_name_nobody_registered_has_no_facts_no_version_and_no_node(facts):
    put(facts)
    assert facts.registrations("s::g") == (0, 0, [])


def test_all_facts_are_listed_with_those_of_a_name_oldest_first(facts):
    made = [
        put(facts, name=name, body=str(i))
        for i, name in enumerate(["s::f", "s::g", "s::f", "s::g"])
    ]
    version, node, listed = facts.registrations()
    assert (version, node) == (0, 0)
    assert sorted(listed, key=lambda fact: fact.seq) == made
    for name in ("s::f", "s::g"):
        assert [f for f in listed if f.name == name] == facts.registrations(name)[2]


def test_more_facts_than_fit_a_first_buffer_are_listed(facts):
    made = [put(facts, name=f"s::f{i}", body="x" * 500) for i in range(300)]
    assert facts.registrations()[2] == made


def test_the_version_of_a_name_is_raised_by_what_concerns_it_and_by_nothing_else(facts):
    put(facts, name="s::g")
    _, other, _ = facts.registrations("s::g")
    before = facts.version(other)
    made = put(facts)
    first, node, _ = facts.registrations("s::f")
    assert facts.version(node) == first
    another = put(facts, DEF)
    second = facts.version(node)
    facts.remove(made)
    third = facts.version(node)
    assert first < second < third
    facts.find(DEF, 49, "s::f")
    facts.registrations()
    facts.remove(made)
    with pytest.raises(errors.DuplicateRegistrationError):
        put(facts, DEF)
    assert facts.version(node) == third
    assert facts.version(other) == before
    assert facts.registrations("s::f") == (third, node, [another])


def test_a_fallback_raises_the_version_of_every_name(facts):
    put(facts, name="s::f")
    put(facts, name="s::g")
    nodes = [facts.registrations(name)[1] for name in ("s::f", "s::g")]
    before = [facts.version(node) for node in nodes]
    made = put(facts, FALLBACK, 49, "_")
    between = [facts.version(node) for node in nodes]
    facts.remove(made)
    after = [facts.version(node) for node in nodes]
    assert all(a < b < c for a, b, c in zip(before, between, after, strict=True))


def test_a_name_gives_its_node_back_when_its_last_fact_goes(facts):
    made = put(facts)
    version, node, _ = facts.registrations("s::f")
    facts.remove(made)
    assert facts.registrations("s::f")[1:] == (0, [])
    assert facts.version(node) != version


def test_a_node_that_is_none_has_no_version(facts):
    for node in (0, 3, 2**32 - 1, 2**40):
        with pytest.raises(errors.InvalidArgumentError):
            facts.version(node)


# --- await ----------------------------------------------------------------------------------------


def test_a_wait_for_what_is_there_returns_the_newest_without_sleeping(facts):
    put(facts)
    newest = put(facts)
    found, waited = facts.await_fact(IMPL, 49, "s::f", 1, None)
    assert found == newest
    assert (waited.sleeps, waited.seconds) == (0, 0.0)


def test_a_wait_for_what_never_comes_ends_with_none(facts):
    put(facts, key=50)
    for timeout in (0, 0.0, 0.01):
        found, waited = facts.await_fact(IMPL, 49, "s::f", 1, timeout)
        assert found is None
        assert (waited.sleeps > 0) == (timeout > 0)


@pytest.mark.parametrize(
    "timeout", [None, 60, 1e300, math.inf, 10**400], ids=lambda timeout: f"{timeout!r:.5}"
)
def test_a_wait_ends_when_the_fact_is_registered(facts, timeout):
    with waiting(facts, lambda: facts.await_fact(IMPL, 49, "s::f", 1, timeout)) as outcomes:
        put(facts, name="s::other")
        made = put(facts)
        while outcomes == [None]:
            os.sched_yield()
    found, waited = outcomes[0]
    assert found == made
    assert waited.seconds >= 0


def test_a_wait_for_several_facts_ends_with_the_last_of_them(facts):
    put(facts, body="1")
    with waiting(facts, lambda: facts.await_fact(IMPL, 49, "s::f", 3, 60)) as outcomes:
        put(facts, body="2")
        assert outcomes == [None]
        third = put(facts, body="3")
        while outcomes == [None]:
            os.sched_yield()
    assert outcomes[0][0] == third


def test_a_fact_that_was_struck_does_not_count(facts):
    facts.remove(put(facts))
    put(facts)
    assert facts.await_fact(IMPL, 49, "s::f", 2, 0)[0] is None


def test_a_cancel_ends_the_waits_with_its_ticket_and_no_other(facts):
    calls = [
        lambda t=ticket: facts.await_fact(IMPL, 49, "s::f", 1, 60, t) for ticket in (7, 8, 7, 0)
    ]
    with waiting(facts, *calls) as outcomes:
        facts.cancel(7)
        while outcomes[0] is None or outcomes[2] is None:
            os.sched_yield()
        assert outcomes[1] is outcomes[3] is None
        made = put(facts)
        while None in outcomes:
            os.sched_yield()
    assert isinstance(outcomes[0], errors.WaitCancelledError)
    assert isinstance(outcomes[2], errors.WaitCancelledError)
    assert outcomes[1][0] == outcomes[3][0] == made


def test_a_cancel_without_ticket_ends_all_waits(facts):
    calls = [lambda t=ticket: facts.await_fact(IMPL, 49, "s::f", 1, 60, t) for ticket in (0, 7, 8)]
    with waiting(facts, *calls) as outcomes:
        facts.cancel()
        while None in outcomes:
            os.sched_yield()
    assert [type(outcome) for outcome in outcomes] == [errors.WaitCancelledError] * 3


def test_a_cancel_is_for_the_waits_of_its_moment(facts):
    facts.cancel(7)
    facts.cancel()
    made = put(facts)
    assert facts.await_fact(IMPL, 49, "s::f", 1, 60, 7)[0] == made
    assert facts.await_fact(IMPL, 49, "s::g", 1, 0, 7)[0] is None


def test_closing_ends_the_waits(facts):
    call = lambda: facts.await_fact(IMPL, 49, "s::f", 1, 60)  # noqa: E731
    with waiting(facts, call, call) as outcomes:
        facts.close()
        while None in outcomes:
            os.sched_yield()
    assert [type(outcome) for outcome in outcomes] == [errors.RegistryClosedError] * 2


@pytest.mark.parametrize(
    "timeout", [-1, -0.001, math.nan, -math.inf, True, "1", b"1", [], 1j], ids=repr
)
def test_what_is_no_timeout_is_refused_even_when_nothing_is_to_be_waited_for(facts, timeout):
    put(facts)
    with pytest.raises(errors.InvalidArgumentError, match="timeout="):
        facts.await_fact(IMPL, 49, "s::f", 1, timeout)


# --- await any change -----------------------------------------------------------------------------


def sequence(facts):
    return facts.await_change(0, 0)[0]


def test_whoever_has_another_sequence_is_told_the_present_one_without_sleeping(facts):
    first = sequence(facts)
    assert first > 0
    made = put(facts)
    assert made.seq == first
    for seq in (0, first, first + 9, 2**64 - 1):
        now, waited = facts.await_change(seq, None)
        assert now == first + 1
        assert (waited.sleeps, waited.seconds) == (0, 0.0)


def test_every_change_raises_the_sequence_and_what_changes_nothing_does_not(facts):
    seen = [sequence(facts)]
    made = put(facts, DEF)
    seen.append(sequence(facts))
    with pytest.raises(errors.DuplicateRegistrationError):
        put(facts, DEF)
    with pytest.raises(errors.InvalidArgumentError):
        put(facts, name="")
    facts.find(DEF, 49, "s::f")
    facts.registrations()
    assert sequence(facts) == seen[-1]
    facts.remove(made)
    seen.append(sequence(facts))
    facts.remove(made)
    assert sequence(facts) == seen[-1]
    put(facts, FALLBACK, name="_")
    seen.append(sequence(facts))
    assert seen == sorted(set(seen))


def test_a_wait_for_a_change_that_never_comes_ends_with_the_same_sequence(facts):
    seq = sequence(facts)
    for timeout in (0, 0.0, 0.01):
        now, waited = facts.await_change(seq, timeout)
        assert now == seq
        assert (waited.sleeps > 0) == (timeout > 0)


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_wait_for_a_change_ends_with_a_registration_and_with_a_removal(facts, timeout):
    made = None
    for _ in range(2):
        seq = sequence(facts)
        with waiting(facts, *[lambda s=seq: facts.await_change(s, timeout)] * 3) as outcomes:
            if made is None:
                made = put(facts)
            else:
                assert facts.remove(made)
            while None in outcomes:
                os.sched_yield()
        assert [now for now, _ in outcomes] == [seq + 1] * 3


def test_a_cancel_ends_the_waits_for_changes_with_its_ticket_and_no_other(facts):
    seq = sequence(facts)
    calls = [lambda t=ticket: facts.await_change(seq, 60, t) for ticket in (7, 2**62, 7, 0)]
    with waiting(facts, *calls) as outcomes:
        facts.cancel(7)
        while outcomes[0] is None or outcomes[2] is None:
            os.sched_yield()
        assert outcomes[1] is outcomes[3] is None
        facts.cancel(2**62)
        while outcomes[1] is None:
            os.sched_yield()
        assert outcomes[3] is None
        facts.cancel()
        while outcomes[3] is None:
            os.sched_yield()
    assert [type(outcome) for outcome in outcomes] == [errors.WaitCancelledError] * 4


def test_closing_ends_the_waits_for_changes_and_none_begins_afterwards(facts):
    seq = sequence(facts)
    with waiting(facts, lambda: facts.await_change(seq, 60)) as outcomes:
        facts.close()
        while None in outcomes:
            os.sched_yield()
    assert isinstance(outcomes[0], errors.RegistryClosedError)
    for call in (
        lambda: facts.await_change(0, 0),
        lambda: facts.registrations_since(DEF, 0),
    ):
        with pytest.raises(errors.RegistryClosedError):
            call()


def test_what_is_no_timeout_is_refused_by_waits_for_changes_too(facts):
    with pytest.raises(errors.InvalidArgumentError, match="timeout="):
        facts.await_change(0, -1)


def test_facts_since_a_number_are_listed_and_all_of_their_kind_are_counted(facts):
    made = [put(facts, DEF if i % 2 else IMPL, i, f"s::f{i}") for i in range(6)]
    for i, fact in enumerate(made):
        for kind in (DEF, IMPL):
            later = [f for f in made[i:] if f.kind == kind]
            live, there = facts.registrations_since(kind, fact.seq)
            assert (live, sorted(there, key=lambda f: f.seq)) == (3, later)
    facts.remove(made[1])
    assert facts.registrations_since(DEF, made[4].seq) == (2, [made[5]])
    assert facts.registrations_since(LIBRARY, 0) == (0, [])
    assert facts.registrations_since(DEF, 2**64 - 1) == (2, [])


# --- the end --------------------------------------------------------------------------------------


def test_a_registry_can_be_closed_twice(facts):
    facts.close()
    facts.close()


def test_after_the_end_nothing_is_answered_and_ending_things_is_harmless(facts):
    made = put(facts)
    _, node, _ = facts.registrations("s::f")
    facts.close()
    for call in (
        lambda: put(facts),
        lambda: facts.find(IMPL, 49, "s::f"),
        lambda: facts.await_fact(IMPL, 49, "s::f", 1, 0),
        lambda: facts.registrations(),
        lambda: facts.registrations("s::f"),
        lambda: facts.version(node),
    ):
        with pytest.raises(errors.RegistryClosedError):
            call()
    assert facts.remove(made) is False
    facts.cancel()
    facts.cancel(3)


def test_whoever_makes_a_registry_is_its_registrar(facts):
    assert facts.role == MAIN
    assert isinstance(facts.label, str)
    assert facts.label


@pytest.mark.shared
def test_a_second_membership_of_the_main_interpreter_verifies_only():
    main = SharedRegistry.create(None, 1 << 20)
    worker = SharedRegistry.attach(main.label, 0)
    made = put(main)
    before = everything(main)
    assert worker.role == WORKER
    assert worker.find(IMPL, 49, "s::f") == made
    with pytest.raises(errors.RegistryError, match="only its registrar"):
        put(worker)
    assert worker.remove(made) is False
    assert everything(main) == everything(worker) == before
    worker.close()
    assert main.find(IMPL, 49, "s::f") == made
    main.close()


@pytest.mark.shared
def test_a_full_registry_refuses_and_keeps_what_it_has():
    facts = SharedRegistry.create(None, 466944)

    def fill():
        for i in range(10_000):
            put(facts, name=f"s::f{i}", body="x" * 1000)

    with pytest.raises(errors.RegistryFullError):
        fill()
    before = everything(facts)
    assert len(before[0]) > 10
    with pytest.raises(errors.RegistryFullError):
        put(facts, body="x" * 60_000)
    assert everything(facts) == before
    assert facts.remove(before[0][0])
    assert put(facts, name=before[0][0].name, body="x" * 1000)
    assert facts.check() == ""
    facts.close()


# --- both implementations against each other ------------------------------------------------------


class Twin:
    """Makes each call in both registries and compares all that can be observed."""

    NAMES = ("s::f", "s::f.out", "s::g", "_", "t")
    KEYS = (0, 49, 50)

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.both = (LocalRegistry(), SharedRegistry.create(None, 1 << 22))
        self.made = []
        self.versions = ({}, {})

    def outcome(self, facts, call):
        try:
            result = call(facts)
        except errors.MdispatchError as error:
            kept = {k: v for k, v in vars(error).items() if k != "registry"}
            return type(error), kept, None
        return None, None, result

    def same(self, call, plain=lambda result: result):
        local, shared = (self.outcome(facts, call) for facts in self.both)
        assert local[:2] == shared[:2]
        if local[0] is None:
            assert plain(local[2]) == plain(shared[2])
        return local[2], shared[2]

    def plain(self, fact):
        return None if fact is None else (fact.seq, *tuple(fact)[2:])

    def changed(self, i, name):
        """Whether the version word has changed since the last look at it."""
        version, node, _ = self.both[i].registrations(name)
        assert (version == 0) == (node == 0)
        assert not node or self.both[i].version(node) == version
        # A name that has ended gives its node back; one that comes again may get another.
        before = self.versions[i].get(name, (0, 0))
        self.versions[i][name] = (node, version)
        assert node != before[0] or version >= before[1]
        return (node, version) != before

    def step(self):
        kind = self.random.choice(RULED)
        key, name = self.random.choice(self.KEYS), self.random.choice(self.NAMES)
        what = self.random.random()
        if what < 0.5:
            body = "b" * self.random.choice((0, 1, 30, 2000))
            pair = self.same(
                lambda f: f.register(kind, key, name, body, f"{name}:{key}"), self.plain
            )
            if pair[0] is not None:
                self.made.append(pair)
        elif what < 0.85 and self.made:
            pair = self.random.choice(self.made)
            results = [f.remove(fact) for f, fact in zip(self.both, pair, strict=True)]
            assert results[0] is results[1]
            if self.random.random() < 0.9:
                self.made.remove(pair)
        elif what < 0.9:
            self.same(lambda f: f.find(kind, key, name), self.plain)
        elif what < 0.95:
            count = self.random.randint(1, 3)
            self.same(lambda f: f.await_fact(kind, key, name, count, 0)[0], self.plain)
        else:
            self.same(lambda f: f.register(kind, key, "", "", ""))
            self.same(lambda f: f.await_fact(kind, key, name, 1, -1))
            self.same(lambda f: f.version(0))

    def compare(self):
        assert [self.changed(0, name) for name in self.NAMES] == [
            self.changed(1, name) for name in self.NAMES
        ]
        for name in self.NAMES:
            self.same(lambda f, n=name: [self.plain(fact) for fact in f.registrations(n)[2]])
        self.same(lambda f: sorted(self.plain(fact) for fact in f.registrations()[2]))
        self.same(lambda f: f.await_change(0, 0)[0])
        since, kind = self.random.randint(0, 200), self.random.choice(RULED)
        self.same(
            lambda f: f.registrations_since(kind, since),
            lambda found: (found[0], sorted(self.plain(fact) for fact in found[1])),
        )


@pytest.mark.dear
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.shared
def test_both_implementations_answer_alike_whatever_happens(seed):
    twin = Twin(seed)
    for _ in range(250):
        twin.step()
        twin.compare()
    assert twin.both[1].check() == ""
    for facts in twin.both:
        facts.close()
    twin.same(lambda f: f.find(IMPL, 0, "s::f"))
    twin.same(lambda f: f.registrations())


def test_threads_that_register_and_strike_do_not_disturb_each_other(facts):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    start = threading.Barrier(4)
    problems = []

    def work(i):
        start.wait()
        try:
            mine = []
            for round_ in range(60):
                mine.append(put(facts, key=i, body=f"{i}.{round_}"))
                if round_ % 3 == 2:
                    assert facts.remove(mine.pop(len(mine) // 2))
                assert facts.find(IMPL, i, "s::f") == mine[-1]
                there = [f for f in facts.registrations("s::f")[2] if f.key == i]
                assert there == mine
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert problems == []
    there = facts.registrations("s::f")[2]
    assert len(there) == len({fact.seq for fact in there}) == 4 * 40


def test_has_tells_whether_such_a_fact_is_there(facts):
    assert not facts.has(IMPL, 49, "s::f")
    fact = put(facts, IMPL, 49, "s::f")
    assert facts.has(IMPL, 49, "s::f")
    assert not facts.has(IMPL, 50, "s::f")
    assert not facts.has(DEF, 49, "s::f")
    facts.remove(fact)
    assert not facts.has(IMPL, 49, "s::f")
    facts.close()
    with pytest.raises(errors.RegistryClosedError):
        facts.has(IMPL, 49, "s::f")
