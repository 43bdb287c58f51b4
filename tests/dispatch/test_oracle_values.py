"""Keys, key sets and tables, compared with recordings of PyTorch 2.13: see
tests/oracle/README.md.
"""

from __future__ import annotations

import pytest
from recordings import recording

from mdispatch.dispatch.table import compute_table
from mdispatch.errors import InvalidKeyError
from mdispatch.keys import (
    RUNTIME_KEYS,
    DispatchKey,
    DispatchKeySet,
    backend_keys_of_autograd,
    device_key,
    functionality_to_backend_keys,
    highest_index,
    is_included_in_alias,
    parse_key,
    runtime_keys,
    table_index,
)

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

KEYS = recording("keys")
# The rest are markers, which only delimit ranges of keys: 47 ends the functionalities.
RECORDED = [k for k in KEYS["keys"] if k["value"] in {int(key) for key in DispatchKey}]


def names(keys):
    return [key.name for key in keys]


def keyset(key_names):
    return DispatchKeySet(key_names)


# --- keys -----------------------------------------------------------------------------------------


def test_every_recorded_key_that_is_no_marker_is_there():
    missing = {k["value"] for k in KEYS["keys"]} - {k["value"] for k in RECORDED}
    assert missing == {47, 48, 65, 82, 99, 116, 133} & {k["value"] for k in KEYS["keys"]}
    assert len(RECORDED) == len(list(DispatchKey)) == 149


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda k: k["name"])
def test_key_is_the_recorded_one(recorded):
    key = parse_key(recorded["name"])
    assert key == recorded["value"]
    assert key.raw == recorded["raw"]
    assert key.is_alias == recorded["alias"]
    assert key.functionality.name == recorded["functionality"]
    backend = recorded["backend_component_name"].removesuffix("Bit")
    assert key.backend == (None if backend == "Invalid" else backend)
    assert names(functionality_to_backend_keys(key)) == recorded["functionality_to_backend_keys"]
    assert names(DispatchKeySet(key)) == recorded["keyset_iteration"]
    assert runtime_keys(key).raw == recorded["runtime_keyset_raw"]
    assert names(runtime_keys(key)) == recorded["runtime_keyset(getRuntimeDispatchKeySet)"]
    assert backend_keys_of_autograd(key).raw == recorded["backend_keyset_from_autograd_raw"]
    assert names(backend_keys_of_autograd(key)) == recorded["backend_keyset_from_autograd"]


def highest(recorded):
    # A functionality without its backend is not a key. PyTorch names the marker before its block.
    return "Undefined" if recorded.endswith("Undefined") else recorded


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda k: k["name"])
def test_highest_priority_of_one_key_is_the_recorded_one(recorded):
    found = DispatchKeySet(parse_key(recorded["name"])).highest_priority()
    assert found.name == highest(recorded["keyset_highest"])


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda k: k["name"])
def test_full_after_is_the_recorded_one(recorded):
    key = parse_key(recorded["name"])
    if key.raw:
        assert DispatchKeySet.full_after(key).raw == recorded["full_after_raw"]
    else:  # PyTorch's answer has 15 of the 16 backends
        with pytest.raises(InvalidKeyError):
            DispatchKeySet.full_after(key)


def test_table_order_is_the_recorded_one():
    assert names(RUNTIME_KEYS) == KEYS["runtime_keys_in_table_order"]
    assert [table_index(key) for key in RUNTIME_KEYS] == list(range(137))
    assert names(DispatchKeySet.full()) == KEYS["priority_order_low_to_high"]


def test_highest_priority_of_every_pair_is_the_recorded_one():
    for first, row in zip(RUNTIME_KEYS[1:], KEYS["pair_highest_priority"]["rows"], strict=True):
        for second, expected in zip(RUNTIME_KEYS[1:], row, strict=True):
            assert highest_index(first.raw | second.raw) == expected, (first, second)


def test_alias_membership_is_the_recorded_one():
    for key in RECORDED:
        included = KEYS["is_included_in_alias"]["pairs"][str(key["value"])]["true_for_alias_values"]
        for alias in RECORDED:
            if alias["value"]:
                answer = is_included_in_alias(
                    DispatchKey(key["value"]), DispatchKey(alias["value"])
                )
                assert answer == (alias["value"] in included), (key["name"], alias["name"])


def test_every_name_that_pytorch_parses_is_parsed_to_its_key():
    for name, value in KEYS["parse_dispatch_key"].items():
        if value is not None:
            assert parse_key(name) == value


def test_a_device_has_the_recorded_key():
    for device, expected in KEYS["device_to_key"].items():
        if isinstance(expected, str):
            assert device_key(device).name == expected
            assert device_key(device + ":1").name == expected
        elif device != "cpu:0":  # PyTorch refuses it, as it is a mere device type
            with pytest.raises(InvalidKeyError):
                device_key(device)


@pytest.mark.parametrize("operation", range(400))
def test_set_operations_give_the_recorded_sets(operation):
    recorded = KEYS["keyset_ops"][operation]
    a, b, k = keyset(recorded["a"]), keyset(recorded["b"]), parse_key(recorded["k"])
    assert (a.raw, b.raw) == (recorded["a_raw"], recorded["b_raw"])
    assert names(a) == recorded["a_names"]
    assert repr(a) == recorded.get("str_a", repr(a))
    assert a.highest_priority().name == highest(recorded["a_highest"])
    for result, name in ((a | b, "or"), (a & b, "and"), (a - b, "sub")):
        assert (names(result), result.raw) == (recorded[name], recorded[name + "_raw"])
        if name + "_highest" in recorded:
            assert result.highest_priority().name == highest(recorded[name + "_highest"])
    assert (names(a.remove(k)), a.remove(k).raw) == (recorded["remove_k"], recorded["remove_k_raw"])
    assert a.add(k).raw == recorded["add_k_raw"]
    assert a.has(k) == recorded["has_k"]


@pytest.mark.parametrize("sample", KEYS["raw_samples"], ids=lambda s: hex(s["raw"]))
def test_a_raw_set_holds_the_recorded_keys(sample):
    if sample["raw"] >> 62:
        with pytest.raises(InvalidKeyError):
            DispatchKeySet.from_raw(sample["raw"])
    else:
        found = DispatchKeySet.from_raw(sample["raw"])
        assert names(found) == sample["names"]
        assert found.highest_priority().name == sample["highest"]


# --- tables ---------------------------------------------------------------------------------------


class Kernel:
    def __init__(self, label, is_fallthrough=False):
        self.label = label
        self.is_fallthrough = is_fallthrough


FALLBACKS = {
    parse_key(name): Kernel(fallback["debug"], fallback["fallthrough"])
    for name, fallback in KEYS["backend_fallbacks"].items()
}


def described(entry):
    """An entry, in the words of the recording."""
    label = None if entry.kernel is None else entry.kernel.label
    if entry.reason == "ambiguous autogradother":
        label = "ambiguous_autogradother"
    return [label, entry.reason, *["fallthrough"] * entry.is_fallthrough]


def assert_reasons_agree(table):
    for key, entry in zip(RUNTIME_KEYS, table.entries, strict=True):
        assert table.why(key)[-1].startswith(entry.reason + ": "), (key, table.why(key))


@pytest.mark.parametrize(
    "subset", recording("tables")["subsets"], ids=lambda s: "+".join(s["registered"]) or "none"
)
def test_table_of_registered_keys_is_the_recorded_one(subset):
    kernels = {parse_key(name): Kernel("fn_" + name) for name in subset["registered"]}
    table = compute_table(kernels, FALLBACKS)
    for key, entry in zip(RUNTIME_KEYS, table.entries, strict=True):
        assert described(entry) == subset["table"].get(key.name, [None, "missing"]), key
    assert_reasons_agree(table)


KERNEL_SETS = recording("kernel_sets")


@pytest.mark.parametrize("number", range(200))
def test_table_of_a_random_kernel_set_is_the_recorded_one(number):
    sample = KERNEL_SETS["samples"][number]
    kernels = {}
    for name, kind in sample["regs"]:
        key = parse_key(name or "CompositeImplicitAutograd")
        fallthrough = kind == "fallthrough"
        label = "registered at /dev/null:0" if fallthrough else "fn_" + (name or "catchall")
        kernels[key] = Kernel(label, fallthrough)
    table = compute_table(kernels, FALLBACKS)
    expected = [KERNEL_SETS["entries"][e] for e, count in sample["row"] for _ in range(count)]
    assert [described(entry) for entry in table.entries] == expected
    assert_reasons_agree(table)


@pytest.mark.parametrize("pair", recording("stale_pairs")["pairs_bad"], ids="+".join)
def test_the_order_of_registration_never_changes_the_table(pair):
    # PyTorch's cached table is stale after the first of these orders.
    first, second = (parse_key(name) for name in pair)
    kernels = {first: Kernel("first"), second: Kernel("second")}
    backwards = {second: kernels[second], first: kernels[first]}
    tables = [compute_table(order, FALLBACKS) for order in (kernels, backwards)]
    assert [described(e) for e in tables[0].entries] == [described(e) for e in tables[1].entries]
