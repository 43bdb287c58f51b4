"""Programs, tables and PythonDispatcher against recordings of PyTorch 2.13.

See test_oracle_compat.py for the recording, and for what mdispatch decides otherwise.
"""

from __future__ import annotations

import warnings

import pytest
from recordings import (
    RECORDED,
    Player,
    answer,
    assert_same_error,
    fresh,
    python_kernel,
    recording,
    table_of,
)

import mdispatch as md
from mdispatch.torch_compat.python_dispatcher import PythonDispatcher

pytestmark = pytest.mark.specification

# --- programs -------------------------------------------------------------------------------------


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
