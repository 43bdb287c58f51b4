"""The promises of dispatch keys and key sets beyond PyTorch's numbers (test_oracle_values.py)."""

from __future__ import annotations

import copy
import difflib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mdispatch
from mdispatch.errors import InvalidKeyError
from mdispatch.errors.words import nearest
from mdispatch.keys import (
    BACKENDS,
    RUNTIME_KEYS,
    DispatchKey,
    DispatchKeySet,
    backend_index,
    backend_keys_of_autograd,
    device_key,
    functionality_to_backend_keys,
    highest_index,
    is_included_in_alias,
    parse_key,
    runtime_keys,
    table_index,
)

# More digits than int turns into text.
HUGE = pytest.param(10**5000, id="huge")
ALIASES = [key for key in DispatchKey if key.is_alias]
sets = st.integers(0, (1 << 62) - 1).map(DispatchKeySet.from_raw)
keys = st.sampled_from(RUNTIME_KEYS[1:])


def test_there_is_one_object_per_key():
    for name, key in DispatchKey.__members__.items():
        assert getattr(DispatchKey, name) is key
        assert parse_key(name) is DispatchKey.parse(key) is DispatchKey(int(key)) is key
        assert pickle.loads(pickle.dumps(key)) is copy.deepcopy(key) is key
        assert (str(key), repr(key), key.name) == (name, f"DispatchKey.{name}", name)


def test_a_key_is_its_number():
    assert DispatchKey.CPU == 49
    assert isinstance(DispatchKey.CPU, int)
    assert {49: "cpu"}[DispatchKey.CPU] == "cpu"


def test_a_key_cannot_be_changed():
    with pytest.raises(AttributeError):
        DispatchKey.CPU.name = "GPU"
    with pytest.raises(AttributeError):
        DispatchKey.CPU.other = 1


@pytest.mark.parametrize("number", [-1, 47, 48, 65, 133, 156, 1 << 70, HUGE])
def test_a_number_between_the_keys_is_refused(number):
    with pytest.raises(InvalidKeyError) as caught:
        DispatchKey(number)
    assert caught.value.key == number


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cpu", "CPU"),
        ("AutogradCPUU", "AutogradCPU"),
        ("SpareCUDA", "SparseCUDA"),
        ("CompositImplicitAutograd", "CompositeImplicitAutograd"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_ones(name, meant):
    with pytest.raises(InvalidKeyError) as caught:
        parse_key(name)
    assert caught.value.key == name
    assert caught.value.nearest[0] == meant
    assert meant in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", "EndOfDenseBackends", "StartOfSparseBackends", "NotAKeyOfAny"]
)
def test_a_name_that_is_near_nothing_is_refused(name):
    with pytest.raises(InvalidKeyError):
        parse_key(name)


@pytest.mark.parametrize("key", [49, None, b"CPU", 1.5, ["CPU"], HUGE])
def test_only_names_and_keys_are_parsed(key):
    with pytest.raises(InvalidKeyError):
        parse_key(key)


def test_keys_without_a_slot_have_no_table_index():
    without = [*ALIASES, DispatchKey.Dense, DispatchKey.Sparse, DispatchKey.AutogradFunctionality]
    for key in without:
        with pytest.raises(InvalidKeyError):
            table_index(key)


@pytest.mark.parametrize("device", ["", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "gpu", "CPU"])
def test_a_device_that_is_none_is_refused(device):
    with pytest.raises(InvalidKeyError):
        device_key(device)


def test_undefined_stands_for_no_keys():
    with pytest.raises(InvalidKeyError):
        is_included_in_alias(DispatchKey.CPU, DispatchKey.Undefined)


# --- sets -----------------------------------------------------------------------------------------


def test_a_set_is_built_from_keys_names_and_iterables():
    expected = DispatchKeySet(DispatchKey.CPU) | DispatchKeySet(DispatchKey.AutogradCPU)
    assert DispatchKeySet("CPU", DispatchKey.AutogradCPU) == expected
    assert DispatchKeySet(["CPU", DispatchKey.AutogradCPU]) == expected
    assert DispatchKeySet(expected, iter(["CPU"])) == expected
    assert DispatchKeySet(*expected) == expected
    assert DispatchKeySet.from_raw(expected.raw) == expected


def test_keys_of_a_set_can_be_given_by_name():
    cpu = DispatchKeySet("CPU")
    assert cpu.has("CPU")
    assert "CUDA" not in cpu
    assert cpu.add("CUDA").remove("CPU") == DispatchKeySet.from_raw(3)
    assert DispatchKeySet.full_after("CPU") == DispatchKeySet.full_after(DispatchKey.CPU)


def test_two_keys_of_two_halves_make_a_cross_product():
    both = DispatchKeySet("AutogradCPU", "SparseCUDA")
    assert [key.name for key in both] == ["SparseCPU", "SparseCUDA", "AutogradCPU", "AutogradCUDA"]


def test_a_set_without_its_functionality_is_empty_but_not_the_empty_set():
    left = DispatchKeySet("CPU").remove("CPU")
    assert not left
    assert list(left) == []
    assert repr(left) == "DispatchKeySet()"
    assert left != DispatchKeySet()


def test_a_functionality_without_a_backend_is_no_key():
    dense = DispatchKeySet("Dense")
    assert dense.raw
    assert not dense
    # The next key below it is the highest one.
    assert DispatchKeySet("AutogradFunctionality", "FPGA").highest_priority() is DispatchKey.FPGA


@pytest.mark.parametrize("raw", [-1, 1 << 62, 1 << 64])
def test_bits_of_no_key_are_refused(raw):
    with pytest.raises(InvalidKeyError):
        DispatchKeySet.from_raw(raw)


@pytest.mark.parametrize("other", [1, "CPU", DispatchKey.CPU, None])
def test_sets_combine_with_sets_only(other):
    for operation in ("__or__", "__and__", "__sub__"):
        assert getattr(DispatchKeySet("CPU"), operation)(other) is NotImplemented


@pytest.mark.thorough
@given(sets)
def test_the_highest_key_is_the_last_of_the_iteration(a):
    assert a.highest_priority() is (list(a) or [DispatchKey.Undefined])[-1]
    assert bool(a) == bool(list(a))


@given(sets, sets)
def test_sets_that_are_equal_are_interchangeable(a, b):
    assert (a == b) == (a.raw == b.raw)
    assert pickle.loads(pickle.dumps(a)) == a
    assert hash(a) == hash(DispatchKeySet.from_raw(a.raw))
    assert {key for key in a if key in b} <= set(a & b)
    assert set(a) | set(b) <= set(a | b)


@given(sets, keys)
def test_a_key_that_was_taken_away_is_gone_for_every_backend(a, key):
    left = a.remove(key)
    assert key not in left
    assert all(other.functionality is not key.functionality for other in left)
    assert key in a.add(key)


@given(sets)
def test_the_highest_backend_of_a_set_is_found(a):
    here = [index for index in range(len(BACKENDS)) if a.raw >> index & 1]
    assert backend_index(a.raw) == max(here, default=0)


@given(keys)
def test_full_after_a_key_excludes_it_and_all_above(key):
    after = DispatchKeySet.full_after(key)
    assert after.highest_priority() is DispatchKey.PythonDispatcher
    below = after.remove("PythonDispatcher")
    assert key not in below
    assert highest_index(below.raw) < table_index(key)


# --- the rest -------------------------------------------------------------------------------------


def test_the_nearest_names_come_first_and_far_ones_not_at_all():
    names = ["add", "addmm", "sub", "Add"]
    assert nearest("ad", names, 1) == ("Add",)
    assert nearest("adm", names) == ("Add", "add", "addmm")
    assert nearest("dad", ["add"]) == ("add",)
    assert nearest("xyz", names) == ()
    assert nearest("", names) == ()
    assert nearest("x" * 10_000, names) == ()


def test_equally_near_names_come_in_alphabetical_order_and_each_of_them_once():
    assert nearest("conv4d", ["conv3d", "conv1d", "conv2d", "conv1d_"]) == (
        "conv1d",
        "conv2d",
        "conv3d",
    )
    many = [f"conv{i}" for i in range(1000, 9000)]
    assert nearest("conv12", [*many, "conv12_", "CONV12"], 2) == ("CONV12", "conv12_")


@pytest.mark.dear
@pytest.mark.parametrize("count", [10_000, 200_000])
@pytest.mark.parametrize("word", ["layer::scale_shfit_{:06}", "layer::{:06}" + "_fused" * 40])
def test_of_many_names_only_the_likeliest_are_compared(monkeypatch, count, word):
    compared = []

    class Counting(difflib.SequenceMatcher):
        def set_seq1(self, name):
            compared.extend([name] if name else [])  # the constructor sets no bit
            super().set_seq1(name)

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    names = [word.replace("shfit", "shift").format(i) for i in range(count)]
    middle = count * 2 // 3 + 7
    found = nearest(word.format(middle), names)
    assert found[0] == names[middle]
    assert len(compared) <= 500
    assert sum(map(len, compared)) <= 40_000
    assert len(set(compared)) == len(compared)
    assert nearest("layer::nothing_like_it", names) == ()


QUESTIONS = {
    "runtime_keys": runtime_keys,
    "backend_keys_of_autograd": backend_keys_of_autograd,
    "functionality_to_backend_keys": functionality_to_backend_keys,
    "is_included_in_alias": lambda key: is_included_in_alias(key, "Autograd"),
    "in which alias": lambda key: is_included_in_alias("AutogradCPU", key),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_key_is_asked_about_by_its_name_too(question):
    ask = QUESTIONS[question]
    for key in (DispatchKey.AutogradCPU, DispatchKey.Sparse, DispatchKey.Autograd):
        assert ask(key.name) == ask(key)
    for nonsense in ("AutogradCUP", 3, None):
        with pytest.raises(InvalidKeyError):
            ask(nonsense)


def test_importing_keys_schemas_and_tables_imports_nothing_else():
    # Interpreters come and go; each imports these. The package itself is left out: it needs more.
    code = (
        "import sys, types; package = types.ModuleType('mdispatch');"
        f"package.__path__ = [{str(Path(mdispatch.__file__).parent)!r}];"
        "sys.modules['mdispatch'] = package; before = set(sys.modules);"
        "import mdispatch.dispatch.table, mdispatch.dispatch.arguments, mdispatch.schema;"
        "print(*sorted(set(sys.modules) - before))"
    )
    command = [sys.executable, "-S", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = set(run.stdout.split())
    others = {name for name in imported if not name.startswith("mdispatch.")}
    assert others <= {"__future__", "_operator"}  # the second is a part of Python itself
    assert "mdispatch.schema.parser" not in imported
