"""Any sequence of guards and setters, compared with models of what they should do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdispatch.dispatch.context.guards import (
    AUTOGRAD,
    AutoDispatchBelowAutograd,
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    PreserveDispatchKeyGuard,
    SetExcludeDispatchKeyGuard,
    excluded_keys,
    included_keys,
    set_excluded,
    set_included,
)
from mdispatch.dispatch.context.guards import DEFAULT_EXCLUDED as EXCLUDED
from mdispatch.dispatch.context.guards import DEFAULT_INCLUDED as INCLUDED
from mdispatch.facts.native import calls
from mdispatch.keys import BACKEND_BITS, DispatchKey, DispatchKeySet
from mdispatch.keys.numbers import FULL, PER_BACKEND_BITS

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

# Few keys, so that guards and setters often concern the same one.
PLAIN = ["Python", "BackendSelect", "AutocastCPU"]
plain = st.sampled_from(PLAIN)
keys = st.sampled_from([*PLAIN, "CPU", "SparseCUDA", "AutogradCPU", "AutogradCUDA"])
key_sets = st.lists(keys, max_size=3).map(DispatchKeySet)
steps = st.one_of(
    st.tuples(st.just("include"), key_sets),
    st.tuples(st.just("exclude"), key_sets),
    st.tuples(st.just("force"), key_sets, key_sets),
    st.tuples(st.just("preserve")),
    st.tuples(st.just("below autograd")),
    st.tuples(st.just("switch"), plain, st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 9)),
    st.tuples(st.just("set included"), plain, st.booleans()),
    st.tuples(st.just("set excluded"), keys, st.booleans()),
)
sequences = st.lists(steps, min_size=10, max_size=40)
MAKE = {
    "include": IncludeDispatchKeyGuard,
    "exclude": ExcludeDispatchKeyGuard,
    "force": ForceDispatchKeyGuard,
    "preserve": PreserveDispatchKeyGuard,
    "below autograd": AutoDispatchBelowAutograd,
    "switch": SetExcludeDispatchKeyGuard,
}
SET = {"set included": set_included, "set excluded": set_excluded}


def adds(key_set):
    return lambda before: before | key_set


def becomes(key_set):
    return lambda before: key_set


def switches(key, on):
    return lambda before: before.add(key) if on else before.remove(key)


def spares(before, key, on):
    """A key that is not there is not taken out: that would take the same key of other backends,
    too.
    """
    return not on and DispatchKey.parse(key).backend and key not in before


def changes(what, arguments):
    """How a guard changes the included set and the excluded set; None when it does not."""
    nothing = DispatchKeySet()
    return {
        "include": lambda: (adds(*arguments), None),
        "exclude": lambda: (None, adds(*arguments)),
        "force": lambda: tuple(map(becomes, arguments)),
        "preserve": lambda: (adds(nothing), adds(nothing)),
        "below autograd": lambda: (None, adds(AUTOGRAD)),
        "switch": lambda: (None, switches(*arguments)),
        "set included": lambda: (switches(*arguments), None),
        "set excluded": lambda: (None, switches(*arguments)),
    }[what]()


class SaveAndRestore:
    """A guard saves whole sets when it begins and restores them when it ends. (PyTorch 2.13)"""

    def __init__(self):
        self.now = {0: INCLUDED, 1: EXCLUDED}
        self.restore = []

    def begin(self, what, *arguments):
        if what == "switch":
            key, was = arguments[0], arguments[0] in self.now[1]
            self.restore.append(lambda: self.set("set excluded", key, was))
        else:
            saved = {i: self.now[i] for i, change in enumerate(changes(what, arguments)) if change}
            self.restore.append(lambda: self.now.update(saved))
        self.set(what, *arguments)

    def set(self, what, *arguments):
        for i, change in enumerate(changes(what, arguments)):
            if change and not (what in SET and spares(self.now[i], *arguments)):
                self.now[i] = change(self.now[i])

    def end(self, which):
        assert which == len(self.restore) - 1
        self.restore.pop()()


class OpenGuards:
    """The changes of the guards that are open, in order, each with the changes of the setters that
    end with the guard.
    """

    def __init__(self):
        # By guard: what it does to each set, and the key of one that cares for no other. The first
        # stands for what never ends.
        self.opened = [([becomes(INCLUDED)], [becomes(EXCLUDED)], None)]

    def begin(self, what, *arguments):
        own = arguments[0] if what == "switch" else None
        self.opened.append((*([c] if c else [] for c in changes(what, arguments)), own))

    def set(self, what, *arguments):
        i, change = next((i, c) for i, c in enumerate(changes(what, arguments)) if c)
        if spares(self.now[i], *arguments):
            return
        for guard in reversed(self.opened):
            if guard[i]:
                guard[i].append(change)
                if guard[2] in (None, arguments[0]):
                    return

    def end(self, which):
        del self.opened[1 + which]

    @property
    def now(self):
        both = [DispatchKeySet(), DispatchKeySet()]
        for i in range(2):
            for change in [change for guard in self.opened for change in guard[i]]:
                both[i] = change(both[i])
        return both


def follow(model, sequence, nested):
    """Takes the same steps with guards and with the model, and compares after each."""
    opened = []
    for what, *arguments in [*sequence, *[("end", 0)] * len(sequence)]:
        if what in SET:
            SET[what](*arguments)
            model.set(what, *arguments)
        elif what != "end":
            opened.append(MAKE[what](*arguments).__enter__())
            model.begin(what, *arguments)
        elif opened:
            which = len(opened) - 1 if nested else arguments[0] % len(opened)
            opened.pop(which).__exit__()
            model.end(which)
        included, excluded = included_keys(), excluded_keys()
        assert set(included) == set(model.now[0])
        # Only the functionalities of the excluded keys count.
        assert excluded.raw & ~BACKEND_BITS == model.now[1].raw & ~BACKEND_BITS
        assert calls.now() == (included.raw, FULL & ~(excluded.raw & ~BACKEND_BITS))


def follow_in_a_new_thread(*arguments):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(follow, *arguments).result()


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(sequences)
def test_guards_that_end_in_order_do_what_saving_and_restoring_whole_sets_would(sequence):
    follow_in_a_new_thread(SaveAndRestore(), sequence, True)


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(sequences)
def test_in_any_order_the_sets_are_those_of_the_guards_that_are_open(sequence):
    follow_in_a_new_thread(OpenGuards(), sequence, False)


WITH_BITS = [key for key in DispatchKey if key.raw]
any_key = st.tuples(st.integers(0, 1), st.sampled_from(WITH_BITS), st.booleans())


@given(st.lists(any_key, min_size=20, max_size=80))
def test_setters_do_to_every_key_what_the_original_does_and_leave_no_backend_behind(given_steps):
    def run():
        both = [INCLUDED.raw, EXCLUDED.raw]
        for side, key, on in given_steps:
            (set_included, set_excluded)[side](key, on)
            # c10: tls_set_dispatch_key_included, DispatchKeySet::has, add and remove
            if (both[side] & key.raw == key.raw) is not on:
                without = both[side] & ~(key.raw & ~BACKEND_BITS)
                both[side] = both[side] | key.raw if on else without
                # There the backends stay, for the next key that exists per backend.
                if not both[side] & PER_BACKEND_BITS:
                    both[side] &= ~BACKEND_BITS
            assert [included_keys().raw, excluded_keys().raw] == both, (side, key, on)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(run).result()
