"""The promises of the computed dispatch table: see Note [Precedence] in
mdispatch/dispatch/table.py.

test_oracle_values.py tests that these are PyTorch's rules.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdispatch.dispatch.table import compute_table
from mdispatch.errors import InvalidKeyError
from mdispatch.keys import (
    BACKENDS,
    RUNTIME_KEYS,
    DispatchKey,
    DispatchKeySet,
    parse_key,
    runtime_keys,
    table_index,
)

pytestmark = pytest.mark.either_binding


class Kernel:
    def __init__(self, name="", is_fallthrough=False):
        self.name = name
        self.is_fallthrough = is_fallthrough

    def __repr__(self):
        return self.name


def kernels(*names, fallthrough=()):
    here = {parse_key(name): Kernel(name) for name in names}
    return here | {parse_key(name): Kernel(name, True) for name in fallthrough}


def at(table, key):
    entry = table.entries[table_index(parse_key(key))]
    return entry.kernel and entry.kernel.name, entry.reason


def test_without_kernels_nothing_is_there():
    table = compute_table({}, {})
    assert len(table.entries) == len(RUNTIME_KEYS) == 137
    assert {(entry.kernel, entry.reason) for entry in table.entries} == {(None, "missing")}
    assert table.mask == DispatchKeySet.full().raw
    assert table.backend_masks is None


def test_each_rule_gives_way_to_those_before_it():
    order = [
        ("AutogradCPU", "kernel"),
        ("CompositeImplicitAutograd", "math kernel"),
        ("Autograd", "autograd kernel"),
    ]
    fallbacks = {DispatchKey.AutogradCPU: Kernel("fallback")}
    for left in range(len(order) + 1):
        table = compute_table(kernels(*(name for name, _ in order[left:])), fallbacks)
        expected = order[left] if left < len(order) else ("fallback", "backend fallback")
        assert at(table, "AutogradCPU") == expected


def test_alias_keys_of_backends_have_their_precedence():
    order = [
        ("CPU", "kernel"),
        ("CompositeExplicitAutogradNonFunctional", "default backend kernel"),
        ("CompositeExplicitAutograd", "default backend kernel"),
        ("CompositeImplicitAutograd", "math kernel"),
    ]
    for left, expected in enumerate(order):
        table = compute_table(kernels(*(name for name, _ in order[left:])), {})
        assert at(table, "CPU") == expected


def test_a_backend_kernel_keeps_the_composite_one_off_its_autograd_key():
    table = compute_table(kernels("CompositeImplicitAutograd", "CPU", "Autograd"), {})
    assert at(table, "AutogradCPU") == ("Autograd", "autograd kernel")
    assert at(table, "AutogradCUDA") == ("CompositeImplicitAutograd", "math kernel")


def test_a_default_backend_kernel_keeps_the_composite_one_off_every_key():
    table = compute_table(kernels("CompositeImplicitAutograd", "CompositeExplicitAutograd"), {})
    assert "math kernel" not in {entry.reason for entry in table.entries}
    assert at(table, "Undefined") == ("CompositeExplicitAutograd", "default backend kernel")


def test_two_ways_to_serve_autogradother_are_ambiguous():
    table = compute_table(kernels("CompositeImplicitAutograd", "SparseCPU"), {})
    assert at(table, "AutogradOther") == (None, "ambiguous autogradother")
    table = compute_table(kernels("CompositeImplicitAutograd", "SparseCPU", "AutogradOther"), {})
    assert at(table, "AutogradOther") == ("AutogradOther", "kernel")


def test_only_the_three_composite_keys_serve_calls_without_keys():
    serving = [
        key
        for key in DispatchKey
        if key is not DispatchKey.Undefined
        and compute_table({key: Kernel()}, {}).lookup(0).kernel is not None
    ]
    assert serving == [
        DispatchKey.CompositeImplicitAutograd,
        DispatchKey.CompositeExplicitAutograd,
        DispatchKey.CompositeExplicitAutogradNonFunctional,
    ]


@pytest.mark.parametrize("key", [key for key in DispatchKey if key.raw or key.is_alias], ids=str)
def test_a_lone_kernel_serves_exactly_the_keys_its_key_stands_for(key):
    table = compute_table({key: Kernel()}, {})
    served = {k for k, e in zip(RUNTIME_KEYS[1:], table.entries[1:], strict=True) if e.kernel}
    assert served == set(runtime_keys(key))


def test_a_fallback_needs_a_runtime_key():
    for key in (DispatchKey.Autograd, DispatchKey.Dense):
        with pytest.raises(InvalidKeyError):
            compute_table({}, {key: Kernel()})


# --- fallthrough ----------------------------------------------------------------------------------


def effective(table, *names):
    return DispatchKeySet.from_raw(table.effective(DispatchKeySet(*names).raw))


def test_a_fallthrough_kernel_is_as_if_its_key_were_not_there():
    table = compute_table(kernels("CPU", fallthrough=["ADInplaceOrView"]), {})
    keys = effective(table, "CPU", "ADInplaceOrView")
    assert keys == DispatchKeySet("CPU")
    assert table.lookup(keys.raw).kernel.name == "CPU"


def test_a_kernel_overrides_a_fallthrough_fallback():
    fallbacks = kernels(fallthrough=["ADInplaceOrView"])
    table = compute_table(kernels("CPU", "ADInplaceOrView"), fallbacks)
    assert table.mask == DispatchKeySet.full().raw
    assert effective(table, "CPU", "ADInplaceOrView").has("ADInplaceOrView")


def test_a_functionality_can_fall_through_for_some_backends_only():
    table = compute_table(kernels("CPU", "CUDA", "AutogradCUDA", fallthrough=["AutogradCPU"]), {})
    assert len(table.backend_masks) == 16
    assert effective(table, "CPU", "AutogradCPU") == DispatchKeySet("CPU")
    assert effective(table, "CUDA", "AutogradCUDA").has("AutogradCUDA")
    # The highest backend decides.
    assert effective(table, "CUDA", "AutogradCPU").has("AutogradCUDA")


def test_a_functionality_that_falls_through_for_all_backends_needs_one_mask():
    table = compute_table(kernels("CPU", fallthrough=["Autograd"]), {})
    assert table.backend_masks is None
    assert effective(table, "CPU", "AutogradCPU") == DispatchKeySet("CPU")


def test_the_mask_says_what_the_entries_say():
    for backend in BACKENDS:
        table = compute_table(kernels(fallthrough=["Sparse" + backend, "Tracer"]), {})
        for other in BACKENDS:
            falls = not effective(table, "Sparse" + other, "Tracer")
            assert falls == (other == backend)
        assert not DispatchKeySet.from_raw(table.mask).has("Tracer")


def test_a_redispatch_is_not_masked():
    table = compute_table(kernels(fallthrough=["CPU"]), {})
    assert table.lookup(DispatchKeySet("CPU").raw).is_fallthrough


# --- why ------------------------------------------------------------------------------------------


def test_why_names_every_rule_tried_and_what_it_found():
    table = compute_table(kernels("CompositeImplicitAutograd", "CPU", "Autograd"), {})
    assert table.why(DispatchKey.AutogradCPU) == (
        "kernel: no kernel at AutogradCPU",
        "default backend kernel: CompositeExplicitAutogradNonFunctional does not stand for"
        " AutogradCPU",
        "default backend kernel: CompositeExplicitAutograd does not stand for AutogradCPU",
        "nested kernel: CompositeImplicitAutogradNestedTensor does not stand for AutogradCPU",
        "math kernel: a kernel at CompositeImplicitAutograd, but also one at CPU",
        "autograd kernel: a kernel at Autograd",
    )


def test_why_tells_alias_keys_without_a_kernel_from_those_that_do_not_stand_for_the_key():
    steps = compute_table({}, {}).why(DispatchKey.XLA)
    assert steps[:4] == (
        "kernel: no kernel at XLA",
        "default backend kernel: CompositeExplicitAutogradNonFunctional does not stand for XLA",
        "default backend kernel: no kernel at CompositeExplicitAutograd",
        "nested kernel: CompositeImplicitAutogradNestedTensor does not stand for XLA",
    )
    assert steps[-2:] == ("backend fallback: none for XLA", "missing: nothing serves XLA")
    # A kernel at an alias key that does not stand for the key changes no word.
    nested = kernels("CompositeImplicitAutogradNestedTensor")
    assert compute_table(nested, {}).why(DispatchKey.XLA) == steps


def test_why_names_the_backends_that_make_a_composite_kernel_ambiguous():
    table = compute_table(kernels("CompositeImplicitAutograd", "SparseCUDA"), {})
    assert table.why(DispatchKey.AutogradOther)[-1] == (
        "ambiguous autogradother: kernels at CompositeImplicitAutograd and at SparseCUDA"
    )


def test_why_refuses_a_key_without_a_slot():
    with pytest.raises(InvalidKeyError):
        compute_table({}, {}).why(DispatchKey.Autograd)


registrations = st.dictionaries(
    st.sampled_from([key for key in DispatchKey if key is not DispatchKey.Undefined]),
    st.builds(Kernel, st.just("k"), st.booleans()),
    max_size=12,
)
fallbacks_of = st.dictionaries(
    st.sampled_from(RUNTIME_KEYS[1:]), st.builds(Kernel, st.just("f"), st.booleans()), max_size=6
)


@pytest.mark.thorough
@pytest.mark.dear
@given(registrations, fallbacks_of)
def test_both_forms_of_the_rules_agree(registered, fallbacks):
    table = compute_table(registered, fallbacks)
    for key, entry in zip(RUNTIME_KEYS, table.entries, strict=True):
        assert table.why(key)[-1].startswith(entry.reason + ": ")


@pytest.mark.dear
@given(registrations, fallbacks_of, st.randoms())
def test_the_order_of_registrations_does_not_matter(registered, fallbacks, random):
    shuffled = random.sample(list(registered.items()), len(registered))
    one, other = compute_table(registered, fallbacks), compute_table(dict(shuffled), fallbacks)
    for entry, same in zip(one.entries, other.entries, strict=True):
        assert (entry.kernel, entry.reason) == (same.kernel, same.reason)
    assert (one.mask, one.backend_masks) == (other.mask, other.backend_masks)


@pytest.mark.dear
@given(registrations, fallbacks_of, st.lists(st.sampled_from(RUNTIME_KEYS[1:]), max_size=5))
def test_a_call_reaches_a_fallthrough_kernel_only_without_keys(registered, fallbacks, names):
    table = compute_table(registered, fallbacks)
    raw = table.effective(DispatchKeySet(names).raw)
    assert not table.lookup(raw).is_fallthrough or not DispatchKeySet.from_raw(raw)


def test_a_table_keeps_what_it_was_computed_from():
    registered = kernels("CPU")
    table = compute_table(registered, {})
    registered.clear()
    assert table.why(DispatchKey.CPU) == ("kernel: a kernel at CPU",)


@pytest.mark.parametrize("pair", list(itertools.permutations(["CPU", "Autograd", "Meta"], 2)))
def test_unregistering_gives_the_table_from_before(pair):
    first, _ = pair
    before = compute_table(kernels(first), {})
    registered = kernels(*pair)
    del registered[parse_key(pair[1])]
    after = compute_table(registered, {})
    assert [at(before, key) for key in RUNTIME_KEYS] == [at(after, key) for key in RUNTIME_KEYS]
