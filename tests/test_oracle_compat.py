"""mdispatch.torch_compat against recordings of the names it offers, in PyTorch 2.13.

The recording is tests/oracle/compat.json.gz, made by tests/oracle/record.py; its ``format`` says
how it is read. kernel_sets.json.gz, tables.json.gz and stale_pairs.json.gz are replayed here too.

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
- What crashes PyTorch, or reads freed memory, is an error: the tests under "instead of a crash".
- A list of keys is taken as a whole: test_a_python_dispatcher_that_refuses_a_key_registers_at_none.
- What guards and setters did to a thread's sets can be undone:
  test_guards_that_end_out_of_order_leave_nothing_behind,
  test_a_key_that_is_taken_out_leaves_no_backend_behind.
"""

from __future__ import annotations

import copy
import pickle
import threading
import warnings

import pytest
from test_oracle_sequences import (
    FALLBACKS,
    KEYS,
    RUNTIME_KEYS,
    Player,
    assert_same_error,
    fresh,
    recording,
    table_of,
)

import mdispatch as md
from mdispatch.python_dispatcher import PythonDispatcher

RECORDED = recording("compat")
NAMES = {value: name for name, value in KEYS.items()}


@pytest.fixture
def compat():
    from mdispatch import torch_compat

    return torch_compat


def made(compat, value):
    """A recorded argument."""
    if isinstance(value, dict) and "key" in value:
        return compat.DispatchKey(value["key"])
    if isinstance(value, dict):
        return compat.DispatchKeySet.from_raw_repr(value["set"])
    return value


def plain(compat, value):
    """A result, as it is recorded."""
    if isinstance(value, compat.DispatchKey):
        return {"key": value.value}
    if isinstance(value, compat.DispatchKeySet):
        return {"set": value.raw_repr()}
    if isinstance(value, (list, tuple)):
        return [plain(compat, item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return {"type": type(value).__name__}


def answer(run):
    """The value or the error. Without its stack, which would keep libraries alive."""
    try:
        return {"value": run()}
    except Exception as error:
        return {"error": error.with_traceback(None)}


def assert_outcome(compat, run, recorded):
    found = answer(run)
    if "error" in recorded:
        assert "error" in found, f"{found} is to be: {recorded}"
        assert_same_error(found["error"], recorded["error"], recorded["text"])
    else:
        assert "error" not in found, f"{found} is to be: {recorded}"
        assert plain(compat, found["value"]) == recorded["value"]


def sets_of_thread(compat):
    sets = compat._dispatch_tls_local_include_set(), compat._dispatch_tls_local_exclude_set()
    return [keys.raw_repr() for keys in sets]


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


class Carrier:
    """An object that carries these bits."""

    def __init__(self, raw):
        self.__dispatch_keys__ = md.DispatchKeySet.from_raw(raw)


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


def in_a_thread(run):
    """What ``run`` returns, from a thread of its own."""
    result = []

    def target():
        try:
            result.append(run())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


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


# --- programs -------------------------------------------------------------------------------------


def python_kernel(*args, **kwargs):
    return None


def play_program(compat, title):
    """Does the steps of a program."""
    recorded = RECORDED["programs"][title]
    player = Player(compat, {"py": python_kernel})
    for step in recorded["steps"]:
        warned = player.step(step)
        assert len(warned) == ("warning" in step), warned
        if warned:
            assert step["warning"].rpartition("new kernel: ")[2] in warned[0]
    return player, recorded


# Here PyTorch's answers are not ours: see the tests that are named for them.
OTHERWISE = {
    "lax schemas",
    "no callables",
    "more arguments than there is room for",
    "type variables",
}


@pytest.mark.parametrize("title", [t for t in RECORDED["programs"] if t not in OTHERWISE])
def test_a_program_has_the_recorded_effects(compat, title):
    with fresh(compat):
        player, recorded = play_program(compat, title)
        names = compat._dispatch_get_all_op_names()
        assert sorted(names) == sorted(recorded["operators"])
        assert sorted(compat._dispatch_get_registrations_for_dispatch_key()) == sorted(names)
        for name, asked in recorded["operators"].items():
            compare_answers(questions(compat, name), asked)
        compat._dispatch_check_all_invariants()
        assert sorted(compat._dispatch_find_dangling_impls()) == recorded["dangling"]
        player.libraries.clear()
        assert compat._dispatch_get_all_op_names() == recorded["left"] == []


def test_type_variables_are_no_types_of_an_operator(compat):
    # PyTorch takes them in def_legacy and def_name_t_t: they are TorchScript's.
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d1", "")
        with pytest.raises(RuntimeError, match="there is no type 't'"):
            library.def_legacy("d(t x) -> t")
        assert compat._dispatch_get_all_op_names() == []


def questions(compat, name):
    base, _, overload = name.partition(".")
    find = compat._dispatch_find_schema_or_throw
    direct = compat._dispatch_has_kernel_for_dispatch_key
    computed = compat._dispatch_has_computed_kernel_for_dispatch_key
    is_fallthrough = compat._dispatch_kernel_for_dispatch_key_is_fallthrough
    registered = compat._dispatch_get_registrations_for_dispatch_key
    has_any = compat._dispatch_has_kernel_for_any_dispatch_key
    return {
        "dump": compat._dispatch_dump(name),
        "dump_table": compat._dispatch_dump_table(name),
        "has_kernel": compat._dispatch_has_kernel(name),
        "schema": answer(lambda: str(find(base, overload).schema())),
        "debug": answer(lambda: find(base, overload).debug()),
        "pystub": compat._dispatch_pystub(base, overload),
        "listed": name in compat._dispatch_get_all_op_names(),
        "for_key": {
            key: [
                answer(lambda k=key: direct(name, k)),
                answer(lambda k=key: computed(name, k)),
                answer(lambda k=key: is_fallthrough(name, k)),
                name in registered(key),
            ]
            for key in ASKED
        },
        "for_sets": [
            [raw, has_any(name, compat.DispatchKeySet.from_raw_repr(raw))] for raw in ASKED_SETS
        ],
    }


SOME_OPERATOR = RECORDED["programs"]["a definition"]["operators"]["d1::f"]
ASKED = list(SOME_OPERATOR["for_key"])
ASKED_SETS = [raw for raw, _ in SOME_OPERATOR["for_sets"]]


def compare_answers(found, recorded):
    """In order of what tells most when it is wrong."""
    assert found["dump"] == recorded["dump"]
    assert found["dump_table"] == recorded["dump_table"]
    for what in ("has_kernel", "pystub", "listed", "for_sets"):
        assert found[what] == recorded[what], what
    for what in ("schema", "debug"):
        assert_same_answer(found[what], recorded[what])
    for key, (direct, computed, through, listed) in recorded["for_key"].items():
        own = found["for_key"][key]
        assert_same_answer(own[0], direct)
        if recorded["invariants"] is None:  # else PyTorch's cached table is stale
            assert_same_answer(own[1], computed)
        assert_same_answer(own[2], through)
        assert own[3] is listed, key


def assert_same_answer(found, recorded):
    if "error" in recorded:
        assert "error" in found, (found, recorded)
        assert_same_error(found["error"], recorded["error"], recorded["text"])
    else:
        assert found == {"value": recorded["value"]}


def lax_steps():
    steps = RECORDED["programs"]["lax schemas"]["steps"]
    return [step["do"]["schema"] for step in steps[1:]]


@pytest.mark.parametrize("schema", lax_steps())
def test_lax_schemas_are_refused(compat, schema):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d1", "")
        for define in (library.def_, library.define, library.def_legacy):
            with pytest.raises(RuntimeError):
                define(schema)
        assert compat._dispatch_get_all_op_names() == []


def test_a_definition_with_too_many_arguments_leaves_nothing_behind(compat):
    _, too_many, fitting = RECORDED["programs"]["more arguments than there is room for"]["steps"]
    assert not too_many["ok"]
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d1", "")
        with pytest.raises(RuntimeError, match="64"):
            library.def_(too_many["do"]["schema"])
        assert compat._dispatch_find_dangling_impls() == []
        library.def_(fitting["do"]["schema"])
        assert compat._dispatch_get_all_op_names() == ["d1::b"]


def test_what_cannot_be_called_is_no_kernel(compat):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d1", "")
        fallbacks = compat._dispatch_library("IMPL", "_", "")
        for function in (3, None, "f"):
            with pytest.raises((RuntimeError, TypeError)):
                library.impl("f", "CPU", function)
            with pytest.raises((RuntimeError, TypeError)):
                fallbacks.fallback("VE", function)
        assert compat._dispatch_get_all_op_names() == []
        assert not compat._dispatch_has_backend_fallback("VE")


def test_the_order_of_registration_never_changes_the_table(compat):
    with fresh(compat):
        player, recorded = play_program(compat, "the order of registration")
        broken = [operator["invariants"] for operator in recorded["operators"].values()]
        assert "RuntimeError" in broken
        compat._dispatch_check_all_invariants()
        assert table_of(compat, "d1::f") == table_of(compat, "d1::g")
        player.libraries.clear()


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(200))
def test_a_random_kernel_set_has_the_recorded_table(compat, number):
    recorded = recording("kernel_sets")
    sample = recorded["samples"][number]
    entries = [recorded["entries"][entry] for entry, count in sample["row"] for _ in range(count)]
    expected = dict(zip(recorded["runtime_keys"], entries, strict=True))
    with fresh(compat), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = compat._dispatch_library("FRAGMENT", "ks", "")
        if sample["def"]:
            library.def_("foo(Tensor x) -> Tensor")
        for key, kind in sample["regs"]:
            if kind == "fallthrough":
                library.impl("foo", key or "Undefined", md.fallthrough_kernel)
            else:
                library.impl_t_t("foo", key, "fn_" + (key or "catchall"))
        compat._dispatch_check_invariants("ks::foo")
        table = table_of(compat, "ks::foo")
        assert table == {k: e for k, e in expected.items() if e[1] != "missing"}


PAIRS = recording("stale_pairs")


@pytest.mark.parametrize("pair", PAIRS["pairs_bad"], ids="+".join)
def test_a_pair_of_kernels_has_one_table_in_either_order(compat, pair):
    # PyTorch's cached table is stale after the first of these orders.
    with fresh(compat):
        tables = []
        for order in (pair, pair[::-1]):
            library = compat._dispatch_library("FRAGMENT", "p", "")
            library.def_("foo(Tensor x) -> Tensor")
            for key in order:
                library.impl_t_t("foo", key, key)
            compat._dispatch_check_invariants("p::foo")
            tables.append(table_of(compat, "p::foo"))
            del library
        assert tables[0] == tables[1]


@pytest.mark.parametrize("dropped", PAIRS["drop_bad"], ids=lambda d: "+".join(map(str, d)))
def test_what_a_dropped_kernel_hid_is_back(compat, dropped):
    *pair, which = dropped
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "p", "")
        library.def_("foo(Tensor x) -> Tensor")
        held = [compat._dispatch_library("IMPL", "p", "") for _ in pair]
        for each, key in zip(held, pair, strict=True):
            each.impl_t_t("foo", key, key)
        del each, held[which]
        left = pair[1 - which]
        compat._dispatch_check_invariants("p::foo")
        found = table_of(compat, "p::foo")
        held.clear()
        library.impl_t_t("foo", left, left)
        assert found == table_of(compat, "p::foo")


# --- PythonDispatcher -----------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(RECORDED["python_dispatcher"])))
def test_a_python_dispatcher_tells_what_was_recorded(compat, number):
    with fresh(compat) as registry, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        play_python_dispatcher(compat, registry, RECORDED["python_dispatcher"][number])
        assert compat._dispatch_get_all_op_names() == []
        PythonDispatcher(registry)


def play_python_dispatcher(compat, registry, recorded):
    dispatcher = PythonDispatcher(registry)
    for keys, done in zip(recorded["register"], recorded["done"], strict=True):
        if "error" in done:
            with pytest.raises(RuntimeError):
                dispatcher.register(keys)
        else:
            dispatcher.register(keys)
    assert dispatcher.keys() == recorded["keys"]
    if not any(registers_some(keys) for keys in recorded["register"]):
        for method in ("registrations", "rawRegistrations", "dispatchTable", "rawDispatchTable"):
            # Of a kernel that is not in effect theirs shows "(inactive):" for its name.
            shown = [row for row in recorded[method].splitlines(True) if "(inactive):\n" not in row]
            assert getattr(dispatcher, method)() == "".join(shown)
    assert "error" in recorded["second"]
    with pytest.raises(RuntimeError):
        PythonDispatcher(registry)


def registers_some(keys):
    """Whether PyTorch registers kernels at the first of these keys before it refuses another."""
    known = [key in PythonDispatcher.supported_keys for key in keys]
    return known[:1] == [True] and not all(known)


def test_a_python_dispatcher_that_refuses_a_key_registers_at_none(compat):
    with fresh(compat) as registry:
        dispatcher = PythonDispatcher(registry)
        before = dispatcher.rawRegistrations()
        with pytest.raises(RuntimeError, match="Bogus"):
            dispatcher.register(["CPU", "Bogus", "XLA"])
        assert dispatcher.rawRegistrations() == before


@pytest.mark.parametrize("subset", recording("tables")["subsets"], ids=str)
def test_a_python_dispatcher_computes_the_recorded_table(compat, subset):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "__test__", "")
        library.def_("foo(Tensor x) -> Tensor")
        for key in subset["registered"]:
            library.impl_t_t("foo", key, "fn_" + key)
        assert table_of(compat, "__test__::foo") == subset["table"]


# --- calls ----------------------------------------------------------------------------------------


class Scenario:
    """The operators and kernels of a recorded scenario; what runs is noted in ``trace``."""

    def __init__(self, compat, recorded):
        self.compat = compat
        self.trace = []
        kernels = {name: self.kernel(name, what) for name, what in recorded["kernels"].items()}
        self.player = Player(compat, kernels)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for do in recorded["setup"]:
                self.player.run(do)

    def kernel(self, name, what):
        def run(*args, **kwargs):
            own = None
            if what.get("with_keyset"):
                own, *args = args
                assert isinstance(own, self.compat.DispatchKeySet)
            if what.get("fallback"):
                _, *args = args
            raw = None if own is None else own.raw_repr()
            self.trace.append([name, raw, *sets_of_thread(self.compat)])
            acts = what.get("acts", ())
            result = self.act(acts, own, args, kwargs)
            if acts and acts[-1][0] in ("redispatch", "call", "with"):
                return result
            result = what.get("result", ["argument", 0])
            return args[result[1]] if isinstance(result, list) else result

        return run

    def act(self, acts, own, args, kwargs):
        compat, result = self.compat, None
        for what, *rest in acts:
            if what == "redispatch":
                op, how, raw = rest
                keys = compat.DispatchKeySet.from_raw_repr(raw)
                if how != "set":
                    keys = own & keys if how == "and" else own - keys
                result = self.find(op).redispatch_boxed(keys, *args, **kwargs)
            elif what == "call":
                result = compat._dispatch_call_boxed(self.find(rest[0]), *args, **kwargs)
            elif what == "with":
                name, arguments, inner = rest
                with getattr(compat, name)(*[made(compat, a) for a in arguments]):
                    result = self.act(inner, own, args, kwargs)
            elif what == "raise":
                raise KeyError("raised by a kernel")
            else:
                setter = getattr(compat, f"_dispatch_tls_set_dispatch_key_{what}")
                setter(compat.DispatchKey(rest[0]), rest[1])
        return result

    def find(self, op):
        base, _, overload = op.partition(".")
        return self.compat._dispatch_find_schema_or_throw(base, overload)

    def call(self, call):
        """Makes a recorded call and compares what ran, and what came of it."""
        compat = self.compat
        arguments = []

        def value(given):
            if isinstance(given, dict):
                given = Carrier(given["keys"])
            elif isinstance(given, list):
                given = [value(item) for item in given]
            arguments.append(given)
            return given

        args = [value(item) for item in call["args"]]
        kwargs = {name: value(item) for name, item in call.get("kwargs", {}).items()}
        self.trace.clear()
        guards = [
            getattr(compat, name)(*[made(compat, a) for a in given])
            for name, given in call["within"]
        ]
        for guard in guards:
            guard.__enter__()
        failed = result = None
        try:
            if "redispatch" in call:
                keys = compat.DispatchKeySet.from_raw_repr(call["redispatch"])
                result = self.find(call["op"]).redispatch_boxed(keys, *args, **kwargs)
            else:
                result = compat._dispatch_call_boxed(self.find(call["op"]), *args, **kwargs)
        except Exception as error:
            failed = error
        for guard in reversed(guards):
            guard.__exit__(None, None, None)
        assert self.trace == call["trace"]
        if "error" in call:
            assert failed is not None
            expected = {"RuntimeError": RuntimeError, "KeyError": KeyError}
            expected["NotImplementedError"] = NotImplementedError
            assert isinstance(failed, expected[call["error"]]), (failed, call["text"])
        elif failed is not None:
            raise failed
        elif isinstance(call["result"], dict):
            assert result is arguments[call["result"]["argument"]]
        else:
            assert result == call["result"]


def takes_none_for_a_tensor(call):
    # Its argument is declared as Tensor, not as Tensor?; n is declared as int.
    return call["args"] == [None] and call["op"] == "c1::f"


@pytest.mark.parametrize("recorded", RECORDED["calls"], ids=[c["title"] for c in RECORDED["calls"]])
def test_calls_run_the_recorded_kernels_with_the_recorded_sets(compat, recorded):
    def run():
        with fresh(compat):
            scenario = Scenario(compat, recorded)
            for call in recorded["calls"]:
                if not takes_none_for_a_tensor(call):
                    scenario.call(call)

    in_a_thread(run)  # a kernel may leave its thread's sets changed


def test_none_is_refused_where_a_tensor_is_declared(compat):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "n", "")
        library.def_("f(Tensor x, Tensor? y=None) -> Tensor")
        library.impl("f", "CompositeImplicitAutograd", lambda x, y=None: x)
        handle = compat._dispatch_find_schema_or_throw("n::f", "")
        with pytest.raises(RuntimeError, match="x"):
            compat._dispatch_call_boxed(handle, None)
        carrier = Carrier(compat.DispatchKeySet("CPU").raw_repr())
        assert compat._dispatch_call_boxed(handle, carrier, None) is carrier


# --- libraries ------------------------------------------------------------------------------------


def test_registrations_end_when_their_library_dies(compat):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        other = library.def_("f(Tensor x) -> Tensor").impl_t_t("f", "CPU")
        assert other is library
        del library
        assert compat._dispatch_has_kernel("d::f")
        del other
        assert not compat._dispatch_has_kernel("d::f")


def test_a_library_can_be_used_after_its_reset(compat):
    with fresh(compat):
        library = compat._dispatch_library("DEF", "d", "", "f.py", 3)
        library.def_("f(Tensor x) -> Tensor")
        assert library.reset() is None
        assert library.reset() is None
        assert not compat._dispatch_has_kernel("d::f")
        library.def_("f(Tensor x) -> Tensor").impl_t_t("f")
        assert compat._dispatch_has_kernel("d::f")
        # Its namespace is free since the first reset.
        second = compat._dispatch_library("DEF", "d", "", "g.py", 4)
        del library
        assert not compat._dispatch_has_kernel("d::f")
        with pytest.raises(RuntimeError, match=r"g\.py:4"):
            compat._dispatch_library("DEF", "d", "")
        del second
        compat._dispatch_library("DEF", "d", "")


def test_a_library_of_a_closed_registry_dies_in_peace(compat):
    with md.Registry.create() as registry, compat.using(registry):
        library = compat._dispatch_library("DEF", "d", "")
        library.def_("f(Tensor x) -> Tensor").impl_t_t("f")
    library.reset()
    del library


def test_registries_know_nothing_of_each_other(compat):
    with fresh(compat):
        outer = compat._dispatch_library("DEF", "d", "", "f.py", 3)
        outer.def_("f(Tensor x) -> Tensor")
        with fresh(compat):
            assert not compat._dispatch_has_kernel("d::f")
            inner = compat._dispatch_library("DEF", "d", "", "g.py", 4)
            inner.def_("g(Tensor x) -> Tensor")
            # A library registers where it was opened.
            outer.impl_t_t("f")
            assert compat._dispatch_get_all_op_names() == ["d::g"]
            del inner
        assert compat._dispatch_find_dangling_impls() == []
        assert compat._dispatch_get_all_op_names() == ["d::f"]
        assert "CompositeImplicitAutograd[alias]: impl_t_t" in compat._dispatch_dump("d::f")


def test_another_thread_uses_what_it_says_itself(compat):
    with fresh(compat):
        library = compat._dispatch_library("DEF", "only_here", "")
        library.def_("f(Tensor x) -> Tensor")
        assert not in_a_thread(lambda: compat._dispatch_has_kernel("only_here::f"))


# --- instead of a crash ---------------------------------------------------------------------------


def test_a_bare_name_in_a_library_without_a_namespace_is_refused(compat):
    # Undefined behaviour in PyTorch.
    with fresh(compat):
        library = compat._dispatch_library("IMPL", "_", "CPU", "f.py", 3)
        with pytest.raises(RuntimeError, match=r"f\.py:3"):
            library.impl_t_t("f")
        with pytest.raises(RuntimeError):
            library.impl("f", "CPU", python_kernel)
        assert compat._dispatch_get_all_op_names() == []


def test_an_unknown_operator_has_no_fallthrough(compat):
    # PyTorch ends the process.
    with fresh(compat), pytest.raises(RuntimeError, match="no::op"):
        compat._dispatch_kernel_for_dispatch_key_is_fallthrough("no::op", "CPU")


def test_a_handle_knows_when_its_operator_is_gone(compat):
    # PyTorch reads freed memory, and after another definition calls that one.
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        library.def_("f(Tensor x) -> Tensor")
        handle = compat._dispatch_find_schema_or_throw("d::f", "")
        assert str(handle.schema()) == "d::f(Tensor x) -> Tensor"
        library.reset()
        library.def_("f(int x) -> int").impl("f", "CompositeImplicitAutograd", lambda x: x)
        for use in (handle.schema, handle.debug, lambda: compat._dispatch_call_boxed(handle, 1)):
            with pytest.raises(RuntimeError, match="d::f"):
                use()
        again = compat._dispatch_find_schema_or_throw("d::f", "")
        assert compat._dispatch_call_boxed(again, 1) == 1


@pytest.mark.parametrize("name", ["", "a b", "a::b"])
def test_a_namespace_that_no_name_can_have_is_refused(compat, name):
    # PyTorch registers operators there that nothing can find.
    with fresh(compat), pytest.raises(RuntimeError):
        compat._dispatch_library("FRAGMENT", name, "")


def test_none_is_no_text(compat):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        for run in (
            lambda: library.impl_t_t("f", None),
            lambda: library.def_(None),
            lambda: compat._dispatch_library("IMPL", "d", None),
            lambda: compat._dispatch_dump(None),
            lambda: compat._parse_dispatch_key(None),
        ):
            with pytest.raises((TypeError, RuntimeError)):
                run()


def test_names_beyond_ascii_are_refused_in_words(compat):
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        with pytest.raises(RuntimeError):
            library.def_("äöü(Tensor x) -> Tensor")
        with pytest.raises(RuntimeError):
            library.impl_t_t("äöü")


def test_a_fallback_runs_for_arguments_that_carry_the_python_key(compat):
    # PyTorch looks the fallback up under the operator's name, where it is not.
    with fresh(compat):
        library = compat._dispatch_library("FRAGMENT", "d", "")
        library.def_("f(Tensor x) -> Tensor")
        library.impl("f", "Python", md.fallthrough_kernel)
        star = compat._dispatch_library("IMPL", "_", "")
        star.fallback("FPGA", lambda op, x: x)
        keys = compat.DispatchKeySet("FPGA") | compat.DispatchKeySet("Python")
        carrier = Carrier(keys.raw_repr())
        handle = compat._dispatch_find_schema_or_throw("d::f", "")
        assert compat._dispatch_call_boxed(handle, carrier) is carrier


def test_what_is_recorded_is_all_replayed():
    # So that a recording which lost a part does not pass.
    counted = {name: len(RECORDED[name]) for name in ("functions", "programs", "python_dispatcher")}
    assert counted == {"functions": 12, "programs": 33, "python_dispatcher": 22}
    assert len(RECORDED["calls"]) > 120
    assert sum(len(scenario["calls"]) for scenario in RECORDED["calls"]) > 800
    assert len(RECORDED["guards"]) == 7 * 7 + 60
    assert len(RECORDED["expressions"]) > 230
    assert set(RUNTIME_KEYS) >= set(FALLBACKS)
