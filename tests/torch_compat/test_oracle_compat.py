"""mdispatch.torch_compat against recordings of the names it offers, in PyTorch 2.13.

The recording is tests/oracle/compat.json.gz, made by tests/oracle/record.py; its ``format`` says
how it is read. Here are keys, key sets and guards; programs and tables are in
test_oracle_programs.py, calls and libraries in test_oracle_calls.py.

Where mdispatch decides otherwise, on purpose, and the test that says so:

- What is no key has no name: test_markers_are_no_keys, test_every_key_has_its_name,
  test_a_functionality_without_a_backend_is_no_key, test_nothing_comes_after_a_key_without_a_place.
- Keys, key sets and guards are ours, and take more: test_our_keys_are_ints_and_our_sets_can_be_
  looked_into, test_ours_takes_more_than_theirs.
- Schemas are taken as they are meant: test_lax_schemas_are_refused,
  test_type_variables_are_no_types_of_an_operator,
  test_a_definition_with_too_many_arguments_leaves_nothing_behind.
- A kernel is a callable: test_what_cannot_be_called_is_no_kernel.
- None is no Tensor: test_none_is_refused_where_a_tensor_is_declared.
- There is one table: test_the_order_of_registration_never_changes_the_table (and
  test_oracle_sequences.py, which has the warnings too).
- What crashes PyTorch, or reads freed memory, is an error: the tests under "instead of a
  crash" in test_oracle_calls.py.
- A list of keys is taken as a whole: test_a_python_dispatcher_that_refuses_a_key_registers_at_none.
- What guards and setters did to a thread's sets can be undone:
  test_guards_that_end_out_of_order_leave_nothing_behind,
  test_a_key_that_is_taken_out_leaves_no_backend_behind.
"""

from __future__ import annotations

import copy
import pickle

import pytest
from recordings import (
    FALLBACKS,
    KEYS,
    RECORDED,
    RUNTIME_KEYS,
    Carrier,
    assert_outcome,
    fresh,
    in_a_thread,
    made,
    plain,
    sets_of_thread,
)

import mdispatch as md

pytestmark = pytest.mark.specification


NAMES = {value: name for name, value in KEYS.items()}

# --- keys and key sets ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED["constants"])
def test_a_constant_is_the_recorded_set(compat, name):
    constant = getattr(compat, name)
    assert isinstance(constant, compat.DispatchKeySet)
    assert constant.raw_repr() == RECORDED["constants"][name]


def test_the_enum_has_the_recorded_members(compat):
    members = compat.DispatchKey.__members__
    for name, value in RECORDED["members"]:
        if value not in RECORDED["markers"] and not name.startswith("EndOf"):
            assert members[name].value == value
            assert getattr(compat.DispatchKey, name) is members[name]


def test_every_key_has_its_name(compat):
    # PyTorch's enum lacks 17 keys, which it prints as ???.
    for value, (_, _, name) in RECORDED["shown"].items():
        key = compat.DispatchKey(int(value))
        real = NAMES[int(value)]
        assert name in (real, "???")
        assert repr(key) == f"DispatchKey.{real}"
        assert key.name == str(key) == real
        assert compat.DispatchKey.__members__[real] == key


def test_markers_are_no_keys(compat):
    for value in [*RECORDED["markers"], 156, 65535]:
        with pytest.raises((RuntimeError, ValueError)):
            compat.DispatchKey(value)
    assert not any(name.startswith(("StartOf", "EndOf")) for name in dir(compat.DispatchKey))


# The results of PyTorch's that name no key.
NO_RESULT = {"_dispatch_keyset_full_after": [0, *range(150, 156)]}


@pytest.mark.parametrize("name", RECORDED["functions"])
def test_a_function_of_a_key_has_the_recorded_results(compat, name):
    function = getattr(compat, name)
    with fresh(compat):
        for argument, recorded in RECORDED["functions"][name]:
            number = argument["key"] if isinstance(argument, dict) else KEYS.get(argument)
            if number in NO_RESULT.get(name, ()) and "value" in recorded:
                continue
            given = made(compat, argument)
            unread = isinstance(argument, str) and number is not None and "error" in recorded
            if unread and name not in ("_parse_dispatch_key", "_dispatch_key_for_device"):
                # PyTorch does not read the names of some keys. Here all are read.
                assert function(given) == function(compat.DispatchKey(number))
                continue
            assert_outcome(compat, lambda given=given: function(given), recorded)


def test_nothing_comes_after_a_key_without_a_place(compat):
    # PyTorch answers with PythonDispatcher and 15 of the 16 backends.
    for value in NO_RESULT["_dispatch_keyset_full_after"]:
        for key in (compat.DispatchKey(value), NAMES[value]):
            with pytest.raises(RuntimeError, match=NAMES[value]):
                compat._dispatch_keyset_full_after(key)


def test_membership_in_an_alias_is_the_recorded_one(compat):
    for alias, recorded in RECORDED["included_in_alias"].items():
        for value in map(int, RECORDED["shown"]):
            keys = compat.DispatchKey(value), compat.DispatchKey(int(alias))
            if value in recorded["failing"]:
                with pytest.raises(RuntimeError):
                    compat._dispatch_is_included_in_alias(*keys)
            else:
                answer = compat._dispatch_is_included_in_alias(*keys)
                assert answer is (value in recorded["true"]), keys


@pytest.mark.parametrize("number", range(len(RECORDED["key_sets"])))
def test_operations_of_key_sets_give_the_recorded_results(compat, number):
    one, other, key, results = RECORDED["key_sets"][number]
    a, b = map(compat.DispatchKeySet.from_raw_repr, (one, other))
    k = compat.DispatchKey(key)
    found = {
        "|": a | b,
        "&": a & b,
        "-": a - b,
        "==": a == b,
        "== itself": a == compat.DispatchKeySet.from_raw_repr(one),
        "has": a.has(k),
        "add": a.add(k),
        "remove": a.remove(k),
        "raw_repr": a.raw_repr(),
        "highestPriorityTypeId": a.highestPriorityTypeId(),
        "repr": repr(a),
        "to_string": compat._dispatch_keyset_to_string(a),
    }
    recorded = {name: result for name, result in results.items() if name != "state"}
    if recorded["highestPriorityTypeId"]["key"] in RECORDED["markers"]:
        recorded["highestPriorityTypeId"] = {"key": 0}
    assert {name: plain(compat, result) for name, result in found.items()} == recorded


def test_a_functionality_without_a_backend_is_no_key(compat):
    # PyTorch names the marker before the functionality's block.
    for name in ("Dense", "Sparse", "AutogradFunctionality"):
        keys = compat.DispatchKeySet(name)
        assert keys.highestPriorityTypeId() == compat.DispatchKey.Undefined
        assert repr(keys) == "DispatchKeySet()"


# What ours answer where PyTorch's pybind classes refuse, or answer otherwise: a DispatchKey is an
# int, a DispatchKeySet a set to look at, guards take whatever names keys.
OURS = {
    "repr(K.CPU)": "DispatchKey.CPU",
    "repr(K.Undefined)": "DispatchKey.Undefined",
    "str(K.CPU)": "CPU",
    "str(K.Autograd)": "Autograd",
    "format(K.CPU)": "CPU",
    "'%s' % K.CPU": "CPU",
    "f'{K.CPU:>20}'": "49".rjust(20),
    "K.CPU == 49": True,
    "49 == K.CPU": True,
    "K.CPU != 49": False,
    "K.CPU < K.CUDA": True,
    "K.CPU + 1": 50,
    "K.CPU & 1": 1,
    "isinstance(K.CPU, int)": True,
    "bool(K.Undefined)": False,
    "K(1.0)": md.DispatchKey.Dense,
    "KS(K.CPU) == K.CPU": False,
    "KS(K.CPU) == 'CPU'": False,
    "KS(K.CPU) == 65537": False,
    "KS(K.CPU) == None": False,
    "KS(K.CPU) != 3": True,
    "hash(KS(K.CPU))": hash(md.DispatchKeySet("CPU")),
    "list(KS(K.CPU))": [md.DispatchKey.CPU],
    "K.CPU in KS(K.CPU)": True,
    "bool(KS(K.Undefined))": False,
    "C._dispatch_pystub('a::b::c', ' x y')": RuntimeError,
    "C._dispatch_find_schema_or_throw('a::b::c', 'x')": RuntimeError,
    "C._dispatch_dump(name='no::op')": "",
    "K('CPU')": ValueError,
    "K(-1)": ValueError,
    "KS.from_raw_repr(-1)": RuntimeError,
    "KS.from_raw_repr(1 << 64)": RuntimeError,
    "C._IncludeDispatchKeyGuard('Bogus')": ValueError,
    "C._SetExcludeDispatchKeyGuard(KS(K.CPU), True)": ValueError,
}
# Accepted here; what it gives is no plain value.
ACCEPTED = {
    "iter(K)",
    "K.CPU.__getstate__()",
    "C._ExcludeDispatchKeyGuard('CPU')",
    "C._ExcludeDispatchKeyGuard(K.CPU)",
    "C._IncludeDispatchKeyGuard(KS(K.CPU))",
    "C._ForceDispatchKeyGuard(K.CPU, K.CPU)",
    "C._SetExcludeDispatchKeyGuard('CPU', 'x')",
    "C._dispatch_library('IMPL', 'n', '', 'f.py', -1)",
    "C._dispatch_library('IMPL', 'n', '', 'f.py', 1 << 32)",
}
# The table's kernel as an object to call: not offered.
NOT_THERE = {"C._dispatch_get_computed_kernel_for_dispatch_key('no::op', 'CPU')"}
EXPRESSIONS = [e for e in RECORDED["expressions"] if e[0] not in {*OURS, *ACCEPTED, *NOT_THERE}]


def evaluate(compat, source):
    space = {"C": compat, "K": compat.DispatchKey, "KS": compat.DispatchKeySet}
    return eval(source, space | {"copy": copy, "pickle": pickle})


def test_what_is_decided_otherwise_is_recorded_at_all():
    assert {*OURS, *ACCEPTED, *NOT_THERE} <= {source for source, _ in RECORDED["expressions"]}


@pytest.mark.parametrize("source", OURS)
def test_our_keys_are_ints_and_our_sets_can_be_looked_into(compat, source):
    expected = OURS[source]
    if isinstance(expected, type) and issubclass(expected, Exception):
        with fresh(compat), pytest.raises(expected):
            evaluate(compat, source)
    else:
        assert evaluate(compat, source) == expected


@pytest.mark.parametrize("source", sorted(ACCEPTED))
def test_ours_takes_more_than_theirs(compat, source):
    with fresh(compat):
        evaluate(compat, source)


@pytest.mark.parametrize(
    ("source", "recorded"), EXPRESSIONS, ids=[source for source, _ in EXPRESSIONS]
)
def test_an_expression_has_the_recorded_outcome(compat, source, recorded):
    with fresh(compat):
        assert_outcome(compat, lambda: evaluate(compat, source), recorded)


def test_bits_beyond_those_of_keys_are_refused(compat):
    for raw in (1 << 62, 1 << 63, (1 << 64) - 1):
        with pytest.raises((RuntimeError, TypeError)):
            compat.DispatchKeySet.from_raw_repr(raw)


# --- tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", RECORDED["tensors"])
def test_an_object_is_asked_for_its_keys_as_a_tensor_is(compat, raw):
    shown, like_a_subclass = RECORDED["tensors"][raw]
    carrier = Carrier(int(raw))
    keys = compat._dispatch_keys(carrier)
    assert isinstance(keys, compat.DispatchKeySet)
    assert keys.raw_repr() == int(raw)
    assert compat._dispatch_key_set(carrier) == shown
    assert compat._dispatch_isTensorSubclassLike(carrier) is like_a_subclass


# --- guards ---------------------------------------------------------------------------------------


def play_guards(compat, steps):
    """The sets of the thread after each step."""
    guards = {}
    for what, *rest in steps:
        if what == "new":
            number, name, arguments = rest
            guards[number] = getattr(compat, name)(*[made(compat, a) for a in arguments])
        elif what == "enter":
            assert guards[rest[0]].__enter__() is None
        elif what == "exit":
            assert guards[rest[0]].__exit__(None, None, None) is None
        elif what == "forget":
            del guards[rest[0]]
        else:
            setter = getattr(compat, f"_dispatch_tls_set_dispatch_key_{what}")
            getter = getattr(compat, f"_dispatch_tls_is_dispatch_key_{what}")
            key = compat.DispatchKey(rest[0])
            assert setter(key, rest[1]) is None
            has_bits = compat.DispatchKeySet(key).raw_repr() != 0
            assert getter(key) is (rest[1] if has_bits else True)
        yield sets_of_thread(compat)


@pytest.mark.parametrize("number", range(len(RECORDED["guards"])))
def test_guards_and_setters_have_the_recorded_effects(compat, number):
    recorded = RECORDED["guards"][number]

    def run():
        for step, seen, expected in zip(
            recorded["steps"],
            play_guards(compat, recorded["steps"]),
            recorded["sets"],
            strict=True,
        ):
            assert list(map(hex, seen)) == list(map(hex, expected)), step

    in_a_thread(run)


def test_a_new_thread_begins_with_the_recorded_sets(compat):
    with compat._IncludeDispatchKeyGuard("CPU"):
        assert in_a_thread(lambda: sets_of_thread(compat)) == RECORDED["in_a_new_thread"]


@pytest.mark.parametrize(
    "name", ["_ExcludeDispatchKeyGuard", "_AutoDispatchBelowAutograd", "_PreserveDispatchKeyGuard"]
)
def test_a_guard_lets_errors_through(compat, name):
    arguments = [compat.DispatchKeySet("CPU")] if "Exclude" in name else []
    before = sets_of_thread(compat)
    with pytest.raises(KeyError), getattr(compat, name)(*arguments):
        raise KeyError
    assert sets_of_thread(compat) == before


def test_a_key_that_is_taken_out_leaves_no_backend_behind(compat):
    # In PyTorch its backend's bit stays, and the set prints as it was but is another one.
    def run():
        before = sets_of_thread(compat)
        compat._dispatch_tls_set_dispatch_key_excluded("AutogradCUDA", True)
        compat._dispatch_tls_set_dispatch_key_included("CPU", True)
        compat._dispatch_tls_set_dispatch_key_included("CPU", False)
        compat._dispatch_tls_set_dispatch_key_excluded("AutogradCUDA", False)
        assert sets_of_thread(compat) == before

    in_a_thread(run)


def test_guards_that_end_out_of_order_leave_nothing_behind(compat):
    before = sets_of_thread(compat)
    first = compat._ExcludeDispatchKeyGuard(compat.DispatchKeySet("CPU"))
    second = compat._ExcludeDispatchKeyGuard(compat.DispatchKeySet("Tracer"))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert compat._dispatch_tls_is_dispatch_key_excluded("Tracer")
    assert not compat._dispatch_tls_is_dispatch_key_excluded("CPU")
    second.__exit__(None, None, None)
    assert sets_of_thread(compat) == before


def test_what_is_recorded_is_all_replayed():
    # So that a recording which lost a part does not pass.
    counted = {name: len(RECORDED[name]) for name in ("functions", "programs", "python_dispatcher")}
    assert counted == {"functions": 12, "programs": 33, "python_dispatcher": 22}
    assert len(RECORDED["calls"]) > 120
    assert sum(len(scenario["calls"]) for scenario in RECORDED["calls"]) > 800
    assert len(RECORDED["guards"]) == 7 * 7 + 60
    assert len(RECORDED["expressions"]) > 230
    assert set(RUNTIME_KEYS) >= set(FALLBACKS)
