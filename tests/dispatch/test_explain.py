"""What a registry tells about its operators: registrations, tables, and the way of a key set."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import pytest
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.table import _ALIASES
from mdispatch.keys.numbers import RUNTIME_KEYS


class Array:
    def __init__(self, *keys):
        self.__dispatch_keys__ = md.DispatchKeySet(keys)


def kernel(name):
    """A function that returns its name and is registered as ``ops.name``."""

    def run(*args, **kwargs):
        return name

    run.__module__, run.__qualname__ = "ops", name
    return run


@pytest.fixture
def lib(registry):
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any", tags=["slow", "core"])
    lib.define("f.out(Tensor x, *, Tensor out) -> Any")
    lib.define("pure(Tensor x) -> Any", alias_analysis="PURE_FUNCTION")
    return lib


@pytest.fixture
def worker(registry):
    """A worker that has imported nothing."""
    with md.Registry.attach(registry.address, timeout=0) as attached:
        yield attached


def place(path_and_line):
    return re.sub(r":\d+$", "", path_and_line)


# --- which operators there are --------------------------------------------------------------------


def test_operators_are_listed_in_the_order_of_their_definitions(registry, lib):
    md.Library("a", "DEF", registry=registry).define("first() -> ()")
    lib.impl("dangling", kernel("k"), "CPU")
    lib.register_name("held")
    assert registry.operators() == ["s::f", "s::f.out", "s::pure", "a::first"]


def test_an_operator_that_is_closed_is_listed_no_more(registry, lib):
    more = md.Library("s", "FRAGMENT", registry=registry)
    more.define("g() -> ()")
    assert "s::g" in registry.operators()
    more.close()
    assert "s::g" not in registry.operators()


def test_names_with_kernels_and_no_definition_dangle(registry, lib):
    lib.impl("late", kernel("k"), "CPU")
    lib.impl("early", kernel("k"), "CPU")
    lib.impl("f", kernel("k"), "CPU")
    lib.register_name("held")
    assert registry.dangling_implementations() == ["s::early", "s::late"]
    lib.define("late() -> ()")
    assert registry.dangling_implementations() == ["s::early"]


def test_a_fallback_is_no_operator(registry):
    md.Library("_", "IMPL", registry=registry).fallback(kernel("k"), "CPU")
    assert registry.operators() == registry.dangling_implementations() == []


def test_registrations_are_listed_oldest_first_and_of_this_name_only(registry, lib):
    lib.impl("f", kernel("one"), "CPU")
    lib.impl("f", kernel("two"), "CPU")
    lib.impl("f.out", kernel("out"), "CPU")
    lib.register_name("f")
    there = registry.registrations("s::f")
    assert [fact.body for fact in there] == ["s::f(Tensor x) -> Any", "ops.one", "ops.two", ""]
    assert [fact.seq for fact in there] == sorted(fact.seq for fact in there)
    assert all(place(fact.where) == __file__ for fact in there)
    assert registry.registrations("s::nothing") == []


def test_what_is_no_name_has_no_registrations_and_no_table(registry, lib):
    for ask in (registry.registrations, registry.dump, registry.table, registry.dump_table):
        with pytest.raises(errors.InvalidNameError):
            ask("s::f.default")
        with pytest.raises(errors.InvalidNameError):
            ask(5)
    with pytest.raises(errors.InvalidNameError):
        registry.why("a b")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("s::g", ("s::f",)),
        ("s::f.oot", ("s::f", "s::f.out")),
        ("t::pure", ("s::pure",)),
        ("pure", ("s::pure",)),
        ("puer", ("s::pure",)),
        ("s::PURE", ("s::pure",)),
        ("elsewhere::something", ()),
    ],
)
def test_an_operator_that_is_not_there_is_refused_with_the_nearest_names(registry, lib, name, near):
    for ask in (registry.dump, registry.table, registry.dump_table, registry.why):
        with pytest.raises(errors.OperatorNotFoundError) as caught:
            ask(name)
        assert caught.value.operator == name
        assert caught.value.nearest == near
        assert all(other in str(caught.value) for other in near)


def test_an_empty_registry_says_that_it_is(registry):
    with pytest.raises(errors.OperatorNotFoundError, match="nothing is registered here"):
        registry.dump("s::f")


def test_a_closed_registry_says_so(registry, lib):
    registry.close()
    for ask in (
        registry.operators,
        registry.dangling_implementations,
        lambda: registry.registrations("s::f"),
        lambda: registry.dump("s::f"),
        lambda: registry.table("s::f"),
        lambda: registry.dump_table("s::f"),
        lambda: registry.why("s::f"),
    ):
        with pytest.raises(errors.RegistryClosedError):
            ask()


# --- dump -----------------------------------------------------------------------------------------


def test_a_dump_has_the_definition_and_the_kernels_in_the_order_of_the_table(registry, lib):
    lib.impl("f", kernel("anything"), "CompositeExplicitAutograd")
    lib.impl("f", kernel("sparse"), "SparseCPU", signature="(Tensor x) -> Any")
    lib.impl("f", kernel("old"), "CPU")
    lib.impl("f", kernel("new"), "CPU")
    lib.impl("f", md.fallthrough_kernel, "AutogradCPU")
    origins = re.compile(rf"({re.escape(__file__)}):\d+, pid \d+")
    assert origins.sub("HERE", registry.dump("s::f")).splitlines() == [
        "s::f(Tensor x) -> Any",
        "  defined at HERE",
        "  tags core, slow",
        "  CPU: ops.new    (HERE)",
        "  CPU (inactive): ops.old    (HERE)",
        "  SparseCPU: ops.sparse (Tensor x) -> Any    (HERE)",
        "  AutogradCPU: fallthrough    (HERE)",
        "  CompositeExplicitAutograd (alias): ops.anything    (HERE)",
    ]


def test_a_dump_tells_what_is_not_defined_and_what_is_only_held(registry, lib):
    lib.impl("dangling", kernel("k"), "CPU")
    lib.register_name("held")
    assert registry.dump("s::dangling").startswith("s::dangling, which is not defined\n  CPU: ")
    assert registry.dump("s::held").startswith("s::held, which is not defined\n  name held at ")


def test_a_dump_tells_the_alias_analysis_where_it_is_not_that_of_the_schema(registry, lib):
    assert "  alias analysis PURE_FUNCTION" in registry.dump("s::pure").splitlines()
    assert "alias analysis" not in registry.dump("s::f")


# --- table ----------------------------------------------------------------------------------------


def test_a_table_has_a_row_for_each_runtime_key_in_the_order_of_their_priority(registry, lib):
    rows = registry.table("s::f")
    assert [row.key for row in rows] == list(RUNTIME_KEYS)


def test_a_row_tells_the_kernel_the_rule_and_the_place(registry, lib):
    lib.impl("f", kernel("cpu"), "CPU")
    lib.impl("f", kernel("graded"), "Autograd")
    lib.impl("f", md.fallthrough_kernel, "SparseCPU")
    rows = {row.key.name: row for row in registry.table("s::f")}
    cpu, graded, passed, built_in, nothing = (
        rows[key] for key in ("CPU", "AutogradCPU", "SparseCPU", "BackendSelect", "CUDA")
    )
    assert (cpu.kernel, cpu.reason, cpu.is_fallthrough) == ("ops.cpu", "kernel", False)
    assert place(cpu.where) == __file__
    assert cpu.registration == registry.registrations("s::f")[1]
    assert (graded.kernel, graded.reason) == ("ops.graded", "autograd kernel")
    assert graded.registration.key == md.DispatchKey.Autograd
    assert (passed.kernel, passed.is_fallthrough) == ("fallthrough", True)
    assert passed.registration is not None
    assert (built_in.where, built_in.registration) == ("built in", None)
    assert (nothing.kernel, nothing.reason, nothing.where) == ("", "missing", "")
    assert repr(nothing) == "<CUDA: nothing (missing)>"
    assert repr(cpu) == "<CPU: ops.cpu (kernel)>"


def test_backend_fallbacks_are_in_the_table_of_every_operator(registry, lib):
    wild = md.Library("_", "IMPL", registry=registry)
    wild.fallback(kernel("fall"), "Conjugate")
    for name in registry.operators():
        (row,) = (row for row in registry.table(name) if row.key is md.DispatchKey.Conjugate)
        assert (row.kernel, row.reason) == ("ops.fall", "backend fallback")
        assert place(row.where) == __file__
    wild.close()
    (row,) = (row for row in registry.table("s::f") if row.key is md.DispatchKey.Conjugate)
    assert row.reason == "missing"


def test_of_two_kernels_at_a_key_the_newest_is_in_the_table_until_it_goes(registry, lib):
    lib.impl("f", kernel("old"), "CPU")
    newer = md.Library("s", "IMPL", registry=registry)
    newer.impl("f", kernel("new"), "CPU")
    at_cpu = list(RUNTIME_KEYS).index(md.DispatchKey.CPU)
    assert registry.table("s::f")[at_cpu].kernel == "ops.new"
    newer.close()
    assert registry.table("s::f")[at_cpu].kernel == "ops.old"


def test_a_table_as_text_has_a_line_for_each_key_that_has_something(registry, lib):
    lib.impl("f", kernel("cpu"), "CPU")
    lib.impl("f", kernel("c"))
    lib.impl("f", kernel("sparse"), "SparseCPU")
    lines = registry.dump_table("s::f").splitlines()
    rows = [row for row in registry.table("s::f") if row.reason != "missing"]
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        cells = re.split(" {2,}", line)
        assert cells == [row.key.name, row.kernel or "-", row.reason, row.where][: len(cells)]
        assert line == line.rstrip()
    (other,) = (line for line in lines if line.startswith("AutogradOther "))
    assert re.split(" {2,}", other) == ["AutogradOther", "-", "ambiguous autogradother"]


def test_whoever_has_imported_nothing_reads_the_same(registry, lib, worker):
    lib.impl("f", kernel("cpu"), "CPU")
    lib.impl("f", kernel("any"))
    md.Library("_", "IMPL", registry=registry).fallback(kernel("fall"), "Conjugate")
    assert worker.operators() == registry.operators()
    assert worker.dump("s::f") == registry.dump("s::f")
    assert worker.dump_table("s::f") == registry.dump_table("s::f")
    for keys in ((), "CPU", ("CPU", "Conjugate"), "Meta"):
        assert str(worker.why("s::f", keys)) == str(registry.why("s::f", keys))
    assert not worker.dispatcher.entries.keys(), (
        "and looks at it without any of the machinery of calls"
    )


READER = """
import sys
import mdispatch as md
registry = md.Registry.attach(sys.argv[1])
for text in (registry.dump("s::f"), registry.dump_table("s::f"), registry.why("s::f", "CPU")):
    print(text)
"""


@pytest.mark.shared
def test_another_process_reads_the_same(registry, lib):
    lib.impl("f", kernel("cpu"), "CPU")
    mine = [registry.dump("s::f"), registry.dump_table("s::f"), str(registry.why("s::f", "CPU"))]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READER, registry.address],
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    assert (done.stdout, done.stderr) == ("\n".join(mine) + "\n", "")


# --- why ------------------------------------------------------------------------------------------


def test_an_explanation_has_every_step(registry, lib):
    lib.impl("f", kernel("cpu"), "CPU")
    lib.impl("f", md.fallthrough_kernel, "SparseCPU")
    found = registry.why("s::f", ["CPU", "SparseCPU", "AutocastCPU"])
    assert found.operator == "s::f"
    assert found.given == md.DispatchKeySet("CPU", "SparseCPU", "AutocastCPU")
    assert [key.name for key in found.added] == ["BackendSelect", "ADInplaceOrView"]
    assert [key.name for key in found.taken] == ["AutocastCPU"]
    passed = [key.name for key in found.passed_by]
    assert passed == ["SparseCPU", "BackendSelect", "ADInplaceOrView"]
    assert list(found.key_set) == [found.key] == [md.DispatchKey.CPU]
    assert found.rules == ("kernel: a kernel at CPU",)
    assert (found.row.kernel, found.row.reason, found.error) == ("ops.cpu", "kernel", None)
    assert repr(found).endswith("leads to <CPU: ops.cpu (kernel)>>")


def test_the_text_of_an_explanation_tells_it_all(registry, lib):
    lib.impl("f", kernel("cpu"), "CPU")
    text = str(registry.why("s::f", ("CPU", "AutogradCPU")))
    assert re.sub(rf"{re.escape(__file__)}:\d+", "HERE", text).splitlines() == [
        "s::f with CPU, AutogradCPU",
        "  arguments carry      CPU, AutogradCPU",
        "  the thread adds      BackendSelect, ADInplaceOrView",
        "  the thread excludes  no key",
        "  fall through         BackendSelect, ADInplaceOrView, AutogradCPU",
        "  left                 CPU",
        "  highest              CPU",
        "  rules at CPU, up to the one that decides:",
        "    kernel: a kernel at CPU",
        "  runs ops.cpu    (HERE)",
    ]


def test_an_explanation_counts_with_the_sets_of_the_thread_that_asks(registry, lib):
    lib.impl("f", kernel("cpu"), "CPU")
    lib.impl("f", kernel("graded"), "Autograd")
    keys = ("CPU", "AutogradCPU")
    assert registry.why("s::f", keys).row.kernel == "ops.graded"
    with md.context.ExcludeDispatchKeyGuard("AutogradCPU"):
        found = registry.why("s::f", keys)
        assert found.row.kernel == "ops.cpu"
        assert md.DispatchKey.AutogradCPU in found.taken
    with md.context.IncludeDispatchKeyGuard("AutogradCPU"):
        found = registry.why("s::f", "CPU")
        assert found.row.kernel == "ops.graded"
        assert md.DispatchKey.AutogradCPU in found.added
    assert registry.why("s::f", "CPU").row.kernel == "ops.cpu"


@pytest.mark.parametrize(
    "keys", ["CPU", ["CPU"], md.DispatchKey.CPU, md.DispatchKeySet("CPU"), ("CPU", "BackendSelect")]
)
def test_keys_are_given_as_everywhere(registry, lib, keys):
    lib.impl("f", kernel("cpu"), "CPU")
    assert registry.why("s::f", keys).row.kernel == "ops.cpu"


def test_an_unknown_key_is_refused(registry, lib):
    with pytest.raises(errors.InvalidKeyError) as caught:
        registry.why("s::f", "CPUU")
    assert "CPU" in caught.value.nearest


def test_without_keys_the_slot_of_undefined_decides(registry, lib):
    lib.impl("f", kernel("any"), "CompositeExplicitAutograd")
    found = registry.why("s::f")
    assert (found.key.name, found.row.kernel) == ("Undefined", "ops.any")


def raised_by(call):
    try:
        return call(), None
    except errors.MdispatchError as error:
        return None, error


def test_the_error_of_an_explanation_is_the_one_of_a_call(registry, lib):
    lib.impl("f", kernel("any"))
    lib.impl("f", kernel("sparse"), "SparseCPU")
    lib.impl("pure", kernel("cpu"), "CPU")
    for operator, keys in (
        ("f", ("SparseCPU", "AutogradOther")),
        ("f", ("CPU", "Conjugate")),
        ("pure", ("Meta",)),
        ("pure", ("SparseCPU", "AutogradCPU")),
    ):
        _, error = raised_by(lambda o=operator, k=keys: getattr(registry.ops.s, o)(Array(*k)))
        found = registry.why(f"s::{operator}", keys).error
        assert (type(found), str(found)) == (type(error), str(error))
        assert (found.key, found.available) == (error.key, error.available)


def test_the_text_of_an_explanation_tells_the_error(registry, lib):
    lines = str(registry.why("s::f", "CPU")).splitlines()
    at = lines.index("  a call raises MissingKernelError:")
    assert lines[at + 1] == "    s::f has no kernel that serves CPU"


def test_what_is_not_defined_cannot_be_called(registry, lib):
    lib.impl("dangling", kernel("k"), "CPU")
    lib.register_name("held")
    for name in ("dangling", "held"):
        error = registry.why(f"s::{name}", "CPU").error
        with pytest.raises(errors.OperatorNotFoundError):
            getattr(registry.ops.s, name)
        assert type(error) is errors.OperatorNotFoundError
        assert error.operator == f"s::{name}"
    assert "kernels at: CPU" in str(registry.why("s::dangling", "CPU").error)


# Python's own keys have fallbacks that go on to other kernels.
OWN = ("Python", "PythonTLSSnapshot", "PreDispatch", "PythonDispatcher")
OWN += ("FuncTorchDynamicLayerFrontMode",)
KEYS = [key.name for key in RUNTIME_KEYS if key.raw and key.name not in OWN]
KEYS += [alias.name for alias, _ in _ALIASES]


@pytest.mark.parametrize("seed", range(40))
def test_explanations_and_tables_say_what_calls_do(registry, lib, seed):
    """For any registrations and any keys: the kernel that is named runs, and the error that is
    named is raised.
    """
    rng = random.Random(seed)
    md.Library("_", "IMPL", registry=registry).fallback(kernel("fall"), rng.choice(KEYS[:-6]))
    near = [*rng.sample(KEYS[:-6], 6), "CPU", "AutogradCPU", "SparseCPU", "AutogradOther"]
    for key in dict.fromkeys([*rng.sample(near, 3), *rng.sample(KEYS[-6:], 2)]):
        passes = rng.random() < 0.2
        lib.impl("f", md.fallthrough_kernel if passes else kernel(key), key)
    for _ in range(30):
        keys = rng.sample(near, rng.randint(0, 4))
        found = registry.why("s::f", keys)
        result, error = raised_by(lambda k=keys: registry.ops.s.f(Array(*k)))
        if error is None:
            assert found.row.kernel == f"ops.{result}", keys
            assert found.error is None
        else:
            assert (type(found.error), str(found.error)) == (type(error), str(error)), keys
        row = registry.table("s::f")[list(RUNTIME_KEYS).index(found.key)]
        assert (row.kernel, row.reason) == (found.row.kernel, found.row.reason)
        assert found.rules[-1].startswith(found.row.reason + ": ")


def test_at_most_five_names_are_told_of_an_operator_that_is_not_there(registry, lib):
    for overload in "abcdefg":
        lib.define(f"many.{overload}(Tensor x) -> Tensor")
    with pytest.raises(errors.OperatorNotFoundError) as caught:
        registry.table("s::many.z")
    assert caught.value.nearest == tuple(f"s::many.{each}" for each in "abcde")


def test_what_a_definition_gives_is_worked_out_once(registry, lib):
    lib.define("once(Tensor x, *, Tensor y) -> Tensor")
    op = registry.ops.s.once.default
    _, signature = op.entry.current(op.generation)
    assert signature.binder is signature.binder
    assert signature.returns is signature.returns
    assert signature.schema is signature.schema
    assert signature.shape is signature.shape
