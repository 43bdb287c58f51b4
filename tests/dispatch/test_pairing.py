"""pair() and active(), pure functions: which callable of this interpreter stands for which
registration."""

from __future__ import annotations

import itertools
import random

import pytest

from mdispatch import facts as kinds
from mdispatch.dispatch.kernels import FALLTHROUGH, LocalKernel, fallthrough_kernel
from mdispatch.dispatch.pairing import AbsentKernel, active, missing, pair, table_of
from mdispatch.facts import Registration
from mdispatch.facts.local import LocalRegistry
from mdispatch.keys import RUNTIME_KEYS, DispatchKey

CPU, CUDA = DispatchKey.CPU, DispatchKey.CUDA


def fact(seq, label="k", key=CPU, kind=kinds.IMPL):
    return Registration(seq * 64, seq, kind, key, "s::f", label, f"ops.py:{seq}", 7, 0)


def kernel(seq=0, label="k", key=CPU):
    def function():
        """Stands for a kernel; its name is its label."""

    function.__module__, function.__qualname__ = "", label
    made = LocalKernel(key, function)
    made.seq = seq
    return made


def test_without_facts_there_is_no_kernel_whatever_is_here():
    assert pair([], []) is None
    assert pair([], [kernel(1), kernel()]) is None


def test_a_fact_without_any_callable_is_absent_and_says_which():
    there = fact(5, "ops.scale")
    chosen = pair([fact(1), there], [])
    assert isinstance(chosen, AbsentKernel)
    assert chosen.fact is there
    assert "ops.scale" in repr(chosen)
    assert not chosen.is_fallthrough


def test_an_absent_fallthrough_is_still_one():
    chosen = pair([fact(1, FALLTHROUGH)], [])
    assert isinstance(chosen, AbsentKernel)
    assert chosen.is_fallthrough


# --- the main interpreter: callables know their registrations
# ---------------------------------------------


@pytest.mark.parametrize("count", range(1, 5))
def test_whatever_facts_are_left_the_newest_ones_own_callable_is_active(count):
    here = [kernel(seq, "same") for seq in range(1, count + 1)]
    for left in itertools.chain.from_iterable(
        itertools.combinations(range(count), n) for n in range(1, count + 1)
    ):
        there = [fact(i + 1, "same") for i in left]
        for order in itertools.permutations(here):
            assert pair(there, list(order)) is here[left[-1]]


def test_a_callable_never_stands_for_another_fact_than_its_own():
    assert isinstance(pair([fact(1), fact(2)], [kernel(1)]), AbsentKernel)
    assert isinstance(pair([fact(2)], [kernel(1), kernel(3)]), AbsentKernel)


# --- a worker: callables know their labels --------------------------------------------------------


def test_a_workers_only_callable_stands_for_the_only_fact_whatever_its_label():
    mine = kernel(0, "another name")
    assert pair([fact(9, "there")], [mine]) is mine


@pytest.mark.parametrize("count", range(1, 5))
def test_with_labels_of_their_own_callables_find_their_facts_in_any_order(count):
    there = [fact(i + 1, f"k{i}") for i in range(count)]
    here = [kernel(0, f"k{i}") for i in range(count)]
    for order in itertools.permutations(here):
        for newest in range(1, count + 1):
            assert pair(there[:newest], list(order)) is here[newest - 1]


def test_callables_of_one_label_are_taken_in_the_order_of_both_sides():
    there = [fact(1, "same"), fact(2, "same")]
    here = [kernel(0, "same"), kernel(0, "same")]
    assert pair(there, here) is here[1]
    assert pair(there[:1], here) is here[0]
    assert isinstance(pair(there, here[:1]), AbsentKernel)


def test_when_the_main_interpreter_drops_a_kernel_the_worker_goes_back_to_the_one_before():
    old, new = kernel(0, "old"), kernel(0, "new")
    there = [fact(1, "old"), fact(2, "new")]
    assert pair(there, [old, new]) is new
    assert pair(there[:1], [old, new]) is old
    assert pair(there[1:], [old, new]) is new


def test_a_kernel_only_the_main_interpreter_added_is_absent_and_not_taken_from_another():
    mine = kernel(0, "k")
    assert isinstance(pair([fact(1, "k"), fact(2, "newer")], [mine]), AbsentKernel)


def test_labels_come_before_positions():
    here = [kernel(0, "b"), kernel(0, "a")]
    assert pair([fact(1, "a"), fact(2, "b")], here) is here[0]
    assert pair([fact(1, "x"), fact(2, "b")], here) is here[0]
    assert pair([fact(1, "b"), fact(2, "x")], here) is here[1]


def test_a_fact_registered_again_keeps_the_workers_callable():
    mine = kernel(0, "k")
    assert pair([fact(1, "k")], [mine]) is pair([fact(8, "k")], [mine]) is mine


# --- properties, on random input ------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(300))
def test_pairing_is_pure_and_gives_each_callable_at_most_once(seed):
    rng = random.Random(seed)
    labels = "ab"
    there = [
        fact(seq, rng.choice(labels)) for seq in sorted(rng.sample(range(1, 12), rng.randint(1, 5)))
    ]
    here = [
        kernel(rng.choice([0, 0, *range(1, 12)]), rng.choice(labels))
        for _ in range(rng.randint(0, 5))
    ]
    kept = list(there), list(here), [(k.seq, k.label) for k in here]
    for n in range(1, len(there) + 1):
        first, again = pair(there[:n], here), pair(there[:n], here)
        if isinstance(first, AbsentKernel):
            assert isinstance(again, AbsentKernel)
            assert first.fact is again.fact is there[n - 1]
        else:
            assert first is again
    assert (there, here, [(k.seq, k.label) for k in here]) == kept
    newest = pair(there, here)
    if isinstance(newest, AbsentKernel):
        assert newest.fact is there[-1]
        assert not any(k.seq == there[-1].seq for k in here)
    else:
        assert newest in here
        assert newest.seq in (0, there[-1].seq)
        # When the chosen callable is gone, the rest decides without it.
        assert pair(there, [k for k in here if k is not newest]) is not newest
    own = [k for k in here if k.seq == there[-1].seq]
    if own:
        assert newest is own[0]


@pytest.mark.parametrize("seed", range(50))
def test_facts_and_callables_of_other_keys_change_nothing(seed):
    rng = random.Random(seed)
    there = [fact(seq, rng.choice("ab"), rng.choice((CPU, CUDA))) for seq in range(1, 7)]
    here = {
        key: [kernel(rng.choice((0, 1, 2, 3)), rng.choice("ab"), key) for _ in range(3)]
        for key in (CPU, CUDA)
    }
    both = active(there, kinds.IMPL, here)
    for key in (CPU, CUDA):
        alone = active([f for f in there if f.key == key], kinds.IMPL, {key: here[key]})
        assert alone.keys() == both.keys() & {key}
        for found in alone:
            if isinstance(alone[found], AbsentKernel):
                assert alone[found].fact is both[found].fact
            else:
                assert alone[found] is both[found]


def test_active_has_exactly_the_keys_that_have_facts():
    here = {
        CPU: [kernel()],
        CUDA: [kernel(key=CUDA)],
        DispatchKey.Meta: [kernel(key=DispatchKey.Meta)],
    }
    assert active([], kinds.IMPL, here) == {}
    found = active([fact(1), fact(2, key=CUDA)], kinds.IMPL, here)
    assert found == {CPU: here[CPU][0], CUDA: here[CUDA][0]}
    assert all(isinstance(key, DispatchKey) for key in found)
    assert isinstance(active([fact(1)], kinds.IMPL, {})[CPU], AbsentKernel)


def test_facts_of_another_kind_do_not_count():
    mine = kernel(1)
    there = [fact(1), fact(2, kind=kinds.FALLBACK)]
    assert active(there, kinds.IMPL, {CPU: [mine]}) == {CPU: mine}
    assert active(there, kinds.DEF, {CPU: [mine]}) == {}
    assert isinstance(active(there, kinds.FALLBACK, {})[CPU], AbsentKernel)


# --- tables ---------------------------------------------------------------------------------------


def slots(table):
    return dict(zip(RUNTIME_KEYS, table.entries, strict=True))


def test_a_table_is_made_of_kernels_and_fallbacks_and_of_no_other_facts():
    mine, fallen = kernel(1), kernel(2, key=CUDA)
    there = [
        fact(1),
        fact(5, "schema", DispatchKey.Undefined, kinds.DEF),
        fact(6, "x", CUDA, kinds.PYSTUB),
    ]
    fallbacks = [
        fact(2, key=CUDA, kind=kinds.FALLBACK),
        fact(7, key=DispatchKey.Meta, kind=kinds.NAME),
    ]
    found = slots(table_of(there, {CPU: [mine]}, fallbacks, {CUDA: [fallen]}))
    assert (found[CPU].kernel, found[CPU].reason) == (mine, "kernel")
    assert (found[CUDA].kernel, found[CUDA].reason) == (fallen, "backend fallback")
    assert found[DispatchKey.Meta].kernel is None


def test_autograd_keys_fall_through_unless_something_is_registered_there():
    found = slots(table_of([], {}, [], {}))
    for key, entry in found.items():
        named = key.name in ("BackendSelect", "ADInplaceOrView")
        # The keys for which PyTorch registers none, either.
        none = ("HIP", "IPU", "VE", "PrivateUse2", "PrivateUse3", "NestedTensor")
        autograd = key.name.startswith("Autograd") and not key.name.endswith(none)
        assert entry.is_fallthrough == (named or autograd), key
        own = ("Python", "PythonTLSSnapshot", "PreDispatch", "PythonDispatcher")
        if key.name in (*own, "FuncTorchDynamicLayerFrontMode"):
            assert entry.kernel.function.__module__ == "mdispatch.dispatch.handlers"
        else:
            assert entry.kernel is None or entry.kernel.function is fallthrough_kernel
    mine = kernel(1, key=DispatchKey.AutogradCPU)
    there = [fact(1, key=DispatchKey.AutogradCPU)]
    assert slots(table_of(there, {mine.key: [mine]}, [], {}))[mine.key].kernel is mine
    absent = slots(table_of([], {}, [fact(1, key=mine.key, kind=kinds.FALLBACK)], {}))[mine.key]
    assert isinstance(absent.kernel, AbsentKernel)


def test_a_table_does_not_change_when_its_sources_do():
    here = {CPU: [kernel(1)]}
    there = [fact(1)]
    table = table_of(there, here, [], {})
    before = [(entry.kernel, entry.reason) for entry in table.entries], table.mask
    here[CPU].clear()
    there.clear()
    assert ([(entry.kernel, entry.reason) for entry in table.entries], table.mask) == before


def test_missing_tells_from_the_table_which_of_the_reasons_it_is():
    from mdispatch import errors

    absent = table_of([fact(3, "ops.scale")], {}, [], {})
    error = missing(LocalRegistry(), "s::f", absent, CPU.raw)
    assert type(error) is errors.LocalKernelMissingError
    assert (error.where, error.key, error.available) == ("ops.py:3", "CPU", ())
    assert "pid 7" in str(error)
    both = [fact(1, key=DispatchKey.CompositeImplicitAutograd), fact(2, key=DispatchKey.SparseCPU)]
    here = {DispatchKey(f.key): [kernel(f.seq, key=f.key)] for f in both}
    error = missing(
        LocalRegistry(), "s::f", table_of(both, here, [], {}), DispatchKey.AutogradOther.raw
    )
    assert type(error) is errors.AmbiguousKernelError
    assert error.available == ("CompositeImplicitAutograd", "SparseCPU")
    none = table_of([], {}, [], {})
    for raw, key in ((CUDA.raw, "CUDA"), (0, "Undefined")):
        error = missing(LocalRegistry(), "s::f", none, raw)
        assert type(error) is errors.MissingKernelError
        assert (error.operator, error.key, error.available) == ("s::f", key, ())
