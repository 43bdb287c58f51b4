"""Calling operators: which kernel runs, with which arguments, and the error when none does."""

from __future__ import annotations

import os
import sys
import threading

import pytest
from kinds import run_main
from places import PLACES

import mdispatch as md
from mdispatch import errors
from mdispatch.facts.local import LocalRegistry
from mdispatch.facts.modules import modules_of_file


class Array:
    def __init__(self, *keys):
        self.__dispatch_keys__ = keys or ("CPU",)


CPU, CUDA, META = Array("CPU"), Array("CUDA"), Array("Meta")
OTHER = Array("PrivateUse2")


def says(word):
    return lambda *args, **kwargs: word


def takes(*args, **kwargs):
    return args, kwargs


@pytest.fixture
def define(registry, lib):
    """Defines s::f, with a kernel at each of the keys that returns its key. Returns the packet."""

    def make(arguments, *keys, name="f"):
        lib.define(f"{name}({arguments}) -> str")
        for key in keys:
            lib.impl(name, says(key), key)
        return getattr(registry.ops.s, name.partition(".")[0])

    return make


# --- which kernel ---------------------------------------------------------------------------------


def test_the_arguments_key_chooses_the_kernel(define):
    f = define("Tensor x", "CPU", "CUDA")
    assert (f(CPU), f(CUDA), f(x=CUDA)) == ("CPU", "CUDA", "CUDA")


def test_of_several_arguments_the_highest_key_wins_wherever_it_stands(define):
    f = define("Tensor x, Tensor y", "CPU", "CUDA", "Meta")
    assert f(CPU, META) == f(META, CPU) == f(CPU, y=META) == "Meta"
    assert f(CUDA, CPU) == f(CPU, CUDA) == "CUDA"


def test_the_keys_in_lists_count(define):
    f = define("Tensor[] xs, Tensor?[] ys", "CPU", "CUDA")
    assert f([CPU, CPU], []) == "CPU"
    assert f([CPU, CUDA], []) == "CUDA"
    assert f((CPU, CUDA), ()) == "CUDA"
    assert f([CPU], [None, CUDA, None]) == "CUDA"


def test_an_optional_argument_counts_when_it_is_there(define):
    f = define("Tensor x, Tensor? y=None", "CPU", "CUDA")
    assert f(CPU) == f(CPU, None) == f(CPU, y=None) == "CPU"
    assert f(CPU, CUDA) == "CUDA"


def test_keyword_only_arguments_count(define):
    f = define("Tensor x, *, Tensor out, Tensor? more=None, Tensor[] rest", "CPU", "CUDA")
    assert f(CPU, out=CPU, rest=[]) == "CPU"
    assert f(CPU, out=CUDA, rest=[]) == "CUDA"
    assert f(CPU, out=CPU, more=CUDA, rest=[]) == "CUDA"
    assert f(CPU, out=CPU, rest=[CPU, CUDA]) == "CUDA"


def test_only_what_the_schema_calls_a_tensor_counts(define):
    f = define("Tensor x, Any other, *, Any? more=None", "CPU", "CUDA")
    assert f(CPU, CUDA, more=CUDA) == "CPU"


def test_without_tensors_only_composite_kernels_serve(define, lib):
    f = define("int x, Tensor? y=None", "CPU")
    with pytest.raises(
        errors.MissingKernelError, match="arguments carry no dispatch keys"
    ) as caught:
        f(1)
    assert caught.value.key == "Undefined"
    lib.impl("f", says("explicit"), "CompositeExplicitAutograd")
    assert (f(1), f(1, CPU)) == ("explicit", "CPU")


def test_a_key_set_of_several_keys_runs_the_highest(define):
    f = define("Tensor x", "CPU", "SparseCPU", "AutogradCPU")
    assert f(Array("CPU", "SparseCPU")) == "SparseCPU"
    assert f(Array("CPU", "AutogradCPU")) == "AutogradCPU"


def test_alias_keys_serve_what_they_stand_for_and_yield_to_exact_ones(define):
    f = define("Tensor x", "CompositeExplicitAutograd", "Autograd", "CUDA")
    assert f(CPU) == "CompositeExplicitAutograd"
    assert f(CUDA) == "CUDA"
    assert f(Array("CPU", "AutogradCPU")) == "Autograd"


def test_a_composite_kernel_serves_every_backend_and_its_autograd(define):
    f = define("Tensor x", "CompositeImplicitAutograd")
    for keys in (("CPU",), ("Meta",), ("CPU", "AutogradCPU"), ("SparseCUDA",), ()):
        assert f(Array(*keys) if keys else CPU) == "CompositeImplicitAutograd"


def test_a_backends_own_kernel_keeps_the_composite_off_its_autograd_key_in_any_order(define, lib):
    value = Array("CPU", "AutogradCPU")
    for first, second in (
        ("CompositeImplicitAutograd", "CPU"),
        ("CPU", "CompositeImplicitAutograd"),
    ):
        f = define("Tensor x", first, second, name=f"{first[:2].lower()}f")
        assert f(value) == "CPU"  # it falls through Autograd
        assert f(Array("CUDA", "AutogradCUDA")) == "CompositeImplicitAutograd"


def test_two_candidates_behind_autogradother_are_neither(define):
    f = define("Tensor x", "CompositeImplicitAutograd", "SparseCPU")
    with pytest.raises(errors.AmbiguousKernelError, match="AutogradOther") as caught:
        f(Array("SparseCPU", "AutogradOther"))
    assert isinstance(caught.value, errors.MissingKernelError)
    assert caught.value.key == "AutogradOther"


# --- falling through ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        "AutogradCPU",
        "AutogradMeta",
        "AutogradOther",
        "ADInplaceOrView",
        "BackendSelect",
    ],
)
def test_autograd_and_its_like_fall_through_without_a_kernel(define, key):
    f = define("Tensor x", "CPU", "Meta")
    backend = "Meta" if key.endswith("Meta") else "CPU"
    assert f(Array(backend, key)) == backend


def test_a_fallthrough_kernel_makes_its_key_pass_by(define, lib):
    f = define("Tensor x", "CPU", "Conjugate")
    value = Array("CPU", "Conjugate")
    assert f(value) == "Conjugate"
    lib.impl("f", md.fallthrough_kernel, "Conjugate")
    assert f(value) == "CPU"


def test_a_fallthrough_for_one_backend_only_is_one_for_that_backend_only(define, lib):
    f = define("Tensor x", "CPU", "CUDA", "SparseCUDA")
    lib.impl("f", md.fallthrough_kernel, "SparseCPU")
    assert f(Array("CPU", "SparseCPU")) == "CPU"
    assert f(Array("CUDA", "SparseCUDA")) == "SparseCUDA"


def test_a_fallthrough_fallback_makes_calls_of_every_operator_pass_by(define, lib, wild):
    f = define("Tensor x", "CPU")
    g = define("Tensor x", "CPU", "Conjugate", name="g")
    value = Array("CPU", "Conjugate")
    with pytest.raises(errors.MissingKernelError, match="Conjugate"):
        f(value)
    wild.fallback(md.fallthrough_kernel, "Conjugate")
    assert (f(value), g(value)) == ("CPU", "Conjugate")


def test_a_fallback_of_ones_own_replaces_a_builtin_one_until_it_is_closed(define, wild):
    f = define("Tensor x", "CPU")
    value = Array("CPU", "AutogradCPU")
    wild.fallback(says("graded"), "AutogradCPU")
    assert f(value) == "graded"
    wild.close()
    assert f(value) == "CPU"


def test_calls_without_tensors_reach_a_kernel_at_backendselect(define):
    f = define("int x", "BackendSelect", "CompositeExplicitAutograd")
    assert f(1) == "BackendSelect"


def test_autocast_keys_count_only_where_a_thread_asks_for_them(define):
    f = define("Tensor x", "CPU", "AutocastCPU")
    assert f(Array("CPU", "AutocastCPU")) == "CPU"
    assert f.default.redispatch(md.DispatchKeySet("CPU", "AutocastCPU"), CPU) == "AutocastCPU"


def test_a_call_whose_last_key_falls_through_has_no_key(define, lib):
    f = define("Tensor x")
    lib.impl("f", md.fallthrough_kernel, "CPU")
    with pytest.raises(errors.MissingKernelError) as caught:
        f(CPU)
    assert caught.value.key == "Undefined"


def test_the_fallthrough_kernel_is_a_mark_and_no_function():
    with pytest.raises(errors.MdispatchError, match="mark"):
        md.fallthrough_kernel(1, x=2)


# --- redispatch -----------------------------------------------------------------------------------


def test_redispatch_runs_the_kernel_of_the_set_whatever_the_arguments_carry(define):
    f = define("Tensor x, int y=1", "CPU", "CUDA")
    assert f.default.redispatch(md.DispatchKeySet("CUDA"), CPU) == "CUDA"
    assert f.default.redispatch(md.DispatchKeySet("CUDA"), CPU, y=3) == "CUDA"


def test_redispatch_takes_the_set_as_it_is(define, lib):
    f = define("Tensor x", "CPU")
    lib.impl("f", md.fallthrough_kernel, "Conjugate")
    both = md.DispatchKeySet("CPU", "Conjugate")
    with pytest.raises(errors.MissingKernelError):
        f.default.redispatch(both, CPU)
    assert f(Array("CPU", "Conjugate")) == "CPU"


def test_a_kernel_hands_on_to_what_is_below_it(define, lib, registry):
    f = define("Tensor x, *, Tensor y", "CPU")
    below = md.DispatchKeySet.full_after("AutogradCPU")

    @lib.impl("f", dispatch_key="AutogradCPU", with_keyset=True)
    def autograd(keys, x, *, y):
        return "autograd of " + registry.ops.s.f.default.redispatch(keys & below, x, y=y)

    assert f(Array("CPU", "AutogradCPU"), y=CPU) == "autograd of CPU"


@pytest.mark.parametrize("keys", ["CPU", None, 1, ("CPU",), md.DispatchKey.CPU], ids=repr)
def test_redispatch_takes_a_key_set_and_nothing_else(define, keys):
    with pytest.raises(errors.ArgumentError, match="DispatchKeySet"):
        define("Tensor x", "CPU").default.redispatch(keys, CPU)


# --- what arrives ---------------------------------------------------------------------------------


def test_defaults_and_conversions_arrive_at_the_kernel(registry, lib):
    lib.define("f(Tensor x, float a=2, int[2] b=3, *, str c='d', Tensor? e=None, bool g) -> Any")
    lib.impl("f", takes, "CPU")
    f = registry.ops.s.f
    args, kwargs = f(CPU, g=1)
    assert args == (CPU, 2.0, [3, 3])
    assert type(args[1]) is float
    assert kwargs == {"c": "d", "e": None, "g": True}
    args, kwargs = f(CPU, 5, (1, 2), c="z", g=False)
    assert args == (CPU, 5.0, [1, 2])
    assert type(args[1]) is float
    assert kwargs == {"c": "z", "e": None, "g": False}
    assert f(b=7, x=CPU, g=True)[0] == (CPU, 2.0, [7, 7])


def test_a_list_that_a_kernel_changes_is_its_own(registry, lib):
    lib.define("f(Tensor x, int[] a=[1, 2]) -> Any")
    lib.impl("f", lambda x, a: a.append(9) or a, "CPU")
    given = [5]
    assert registry.ops.s.f(CPU, given) == [5, 9]
    assert given == [5]
    assert registry.ops.s.f(CPU) == registry.ops.s.f(CPU) == [1, 2, 9]


def test_more_arguments_than_named_arrive_where_the_schema_allows_it(registry, lib):
    lib.define("f(Tensor x, ...) -> Any")
    lib.impl("f", takes, "CPU")
    assert registry.ops.s.f(CPU, 1, "two") == ((CPU, 1, "two"), {})


def test_arguments_may_be_called_as_parameters_of_ours(registry, lib):
    lib.define(
        "f(Tensor self, int args, int operator, int entry, *, int key_set, int kwargs) -> Any"
    )
    lib.impl("f", takes, "CPU")
    f = registry.ops.s.f
    expected = (CPU, 1, 2, 3), {"key_set": 4, "kwargs": 5}
    named = {"self": CPU, "args": 1, "operator": 2, "entry": 3, "key_set": 4, "kwargs": 5}
    assert f(**named) == f.default(**named) == expected
    assert f.default.redispatch(md.DispatchKeySet("CPU"), **named) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "needs a value for 'x'"),
        ((CPU,), {}, "needs a value for 'y'"),
        ((CPU, 1, 2), {}, "takes 2 positional arguments, not 3"),
        ((CPU, 1), {"z": 1}, "has no argument "),
        ((CPU, 1), {"y": 1}, "twice"),
        ((CPU, "1"), {}, "takes int for 'y', not str"),
        ((CPU, 1.0), {}, "takes int for 'y', not float"),
        ((None, 1), {}, "takes Tensor for 'x', not NoneType"),
        ((5, 1), {}, "takes Tensor for 'x', not int"),
        ((object(), 1), {}, "takes Tensor for 'x', not object"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_schema(define, args, kwargs, words):
    f = define("Tensor x, int y", "CPU")
    for call in (
        f,
        f.default,
        lambda *a, **k: f.default.redispatch(md.DispatchKeySet("CPU"), *a, **k),
    ):
        with pytest.raises(errors.ArgumentError) as caught:
            call(*args, **kwargs)
        assert words in str(caught.value)
        assert "s::f(Tensor x, int y) -> str" in str(caught.value)
        assert isinstance(caught.value, TypeError)
        assert caught.value.operator == "s::f"
        assert str(caught.value.schema) == "s::f(Tensor x, int y) -> str"


def test_what_a_kernel_raises_passes_through_as_it_is(define, lib):
    f = define("Tensor x")

    class OwnError(Exception):
        pass

    @lib.impl("f", dispatch_key="CPU")
    def kernel(x):
        raise OwnError("own")

    with pytest.raises(OwnError, match="own"):
        f(CPU)
    with pytest.raises(OwnError):
        f.default(CPU)


@pytest.mark.parametrize(
    ("returns", "result"),
    [("Any", object()), ("Tensor", CPU), ("int[]", [1, 2]), ("Tensor?", None), ("()", None)],
)
def test_what_a_kernel_returns_comes_back_as_it_is(registry, lib, returns, result):
    lib.define(f"f(Tensor x) -> {returns}")
    lib.impl("f", says(result), "CPU")
    assert registry.ops.s.f(CPU) is result


@pytest.mark.parametrize(
    ("returns", "result", "expected"),
    [("float", 1, 1.0), ("(int, float)", [True, 2], (1, 2.0)), ("int[]", (1, 2), [1, 2])],
)
def test_what_a_kernel_returns_is_converted_as_arguments_are(
    registry, lib, returns, result, expected
):
    lib.define(f"f(Tensor x) -> {returns}")
    lib.impl("f", says(result), "CPU")
    assert repr(registry.ops.s.f(CPU)) == repr(expected)


@pytest.mark.parametrize(
    ("returns", "result", "words"),
    [
        ("Tensor", None, "returned None, not Tensor"),
        ("Tensor", 3, "returned 3, not Tensor"),
        ("int", 1.5, "returned 1.5, not int"),
        ("(Tensor, int)", (CPU,), "returned 1 values, not a tuple of 2"),
        ("(Tensor, int)", (CPU, "a"), "returned the str a as value 1, not int"),
        ("()", 5, "returned 5, not None"),
        ("str", object(), "returned an object of object, not str"),
    ],
)
def test_what_does_not_fit_the_schema_is_refused(registry, lib, returns, result, words):
    lib.define(f"f(Tensor x) -> {returns}")
    lib.impl("f", says(result), "CPU")
    with pytest.raises(errors.ReturnValueError) as caught:
        registry.ops.s.f(CPU)
    assert str(caught.value).splitlines() == [
        f"s::f(): kernel {__name__}.says.<locals>.<lambda> {words}",
        f"  declared as s::f(Tensor x) -> {returns}",
    ]
    assert caught.value.operator == "s::f"


# --- packets, overloads, names --------------------------------------------------------------------


def test_a_packet_runs_an_overload_that_fits(define):
    f = define("Tensor x, float y", "CPU", name="f.real")
    define("Tensor x, int y", "CPU", name="f.whole")
    define("Tensor x, str y", "CPU", name="f.text")
    assert f.overloads() == ["real", "whole", "text"]
    assert f(CPU, 1) == f(CPU, "text") == "CPU"
    with pytest.raises(errors.ArgumentError):
        f(CPU, [])


def test_the_order_of_definition_decides_between_overloads_that_both_fit(registry, lib):
    for first, second in (("float", "int"), ("int", "float")):
        for overload in (first, second):
            lib.define(f"{first}_first.{overload}_(Tensor x, {overload} y) -> str")
            lib.impl(f"{first}_first.{overload}_", says(overload), "CPU")
        assert getattr(registry.ops.s, f"{first}_first")(CPU, 1) == first
    assert registry.ops.s.int_first(CPU, 1.5) == "float"


def test_when_no_overload_fits_each_says_why(define):
    f = define("Tensor x, int y", "CPU", name="f.whole")
    define("Tensor x", "CPU", name="f")
    with pytest.raises(errors.ArgumentError) as caught:
        f(CPU, "text")
    for words in (
        "s::f.whole",
        "s::f",
        "takes int for 'y', not str",
        "takes 1 positional argument, not 2",
    ):
        assert words in str(caught.value)
    assert caught.value.operator == "s::f"


def test_an_overload_may_be_called_as_an_attribute_of_packets(define):
    f = define("Tensor x", "CPU", name="f.overloads")
    assert f(CPU) == "CPU"
    define("Tensor x, int y", "CUDA", name="f._registry")
    assert f(CUDA, 1) == "CUDA"
    assert f.overloads() == ["overloads", "_registry"]


def test_what_was_looked_up_once_is_the_same_object_afterwards(registry, define):
    f = define("Tensor x", "CPU")
    assert registry.ops.s.f is f
    assert registry.ops is registry.ops
    assert registry.ops.s is registry.ops.s
    assert f.default is f.default


def test_operators_say_their_names_and_schemas(registry, define):
    f = define("Tensor x", "CPU", name="f.out")
    assert str(f.out.schema) == "s::f.out(Tensor x) -> str"
    assert f.out.name == f.out.__name__ == "s::f.out"
    assert "s::f.out" in repr(f.out)
    assert "out" in repr(f)
    assert "out" in dir(f)
    assert "f" in dir(registry.ops.s)


def test_a_missing_operator_names_the_nearest(registry, define):
    define("Tensor x", name="scale")
    with pytest.raises(errors.OperatorNotFoundError, match="did you mean scale") as caught:
        registry.ops.s.scael  # noqa: B018
    assert isinstance(caught.value, AttributeError)
    assert (caught.value.operator, caught.value.nearest) == ("s::scael", ("scale",))
    with pytest.raises(errors.OperatorNotFoundError, match="namespace 's' has scale"):
        registry.ops.s.quite_another_thing  # noqa: B018
    with pytest.raises(errors.OperatorNotFoundError, match="import the module that does"):
        registry.ops.nowhere.scale  # noqa: B018
    assert not hasattr(registry.ops.s, "scael")
    assert getattr(registry.ops.s, "scael", None) is None


def test_a_missing_overload_names_those_that_are_there(define):
    f = define("Tensor x", name="f.out")
    with pytest.raises(errors.OperatorNotFoundError, match="it has out") as caught:
        f.ouf  # noqa: B018
    assert (caught.value.operator, caught.value.nearest) == ("s::f.ouf", ("out",))
    with pytest.raises(errors.OperatorNotFoundError):
        f.default  # noqa: B018


@pytest.mark.parametrize("name", ["__wrapped__", "__len__", "__array__"])
def test_pythons_own_attributes_are_not_looked_up_in_the_registry(registry, define, name):
    f = define("Tensor x")
    for thing in (registry.ops, registry.ops.s, f):
        with pytest.raises(AttributeError):
            getattr(thing, name)


# --- operators that are gone ----------------------------------------------------------------------


def test_an_operator_that_was_closed_says_so_for_ever(registry, define, lib):
    packet = define("Tensor x", "CPU")
    operator = packet.default
    assert operator(CPU) == packet(CPU) == "CPU"
    lib.close()
    for call in (operator, packet, lambda x: operator.redispatch(md.DispatchKeySet("CPU"), x)):
        with pytest.raises(errors.OperatorGoneError, match="is not defined") as caught:
            call(CPU)
        assert caught.value.operator == "s::f"
    with pytest.raises(errors.OperatorGoneError):
        operator.schema  # noqa: B018
    again = md.Library("s", "FRAGMENT", registry=registry)
    again.define("f(Tensor x, int y=3) -> int")
    with pytest.raises(errors.MissingKernelError):
        packet(CPU)
    again.impl("f", lambda x, y: y, "CPU")
    assert packet(CPU) == registry.ops.s.f(CPU) == packet.default(CPU) == 3
    assert str(packet.default.schema) == "s::f(Tensor x, int y=3) -> int"
    # The name exists again; the object that was kept is still another operator.
    assert operator.is_gone
    with pytest.raises(errors.OperatorGoneError, match="closed, and another") as caught:
        operator(CPU)
    assert "s::f(Tensor x, int y=3) -> int" in str(caught.value)


def test_an_overload_that_was_closed_leaves_the_others(registry, lib):
    other = md.Library("s", "FRAGMENT", registry=registry)
    lib.define("f.a(Tensor x) -> str")
    other.define("f.b(Tensor x) -> str")
    lib.impl("f.a", says("a"), "CPU")
    other.impl("f.b", says("b"), "CPU")
    f = registry.ops.s.f
    assert f(CPU) == "a"
    lib.close()
    assert f.overloads() == ["b"]
    assert f(CPU) == "b"


def test_a_closed_registry_is_what_its_operators_speak_of(registry, define):
    f = define("Tensor x", "CPU")
    operator = f.default
    assert f(CPU) == "CPU"
    registry.close()
    for call in (f, operator, lambda x: f.default, lambda x: registry.ops.s.g):
        with pytest.raises(errors.RegistryClosedError):
            call(CPU)


# --- kernels that are missing ---------------------------------------------------------------------


def test_a_missing_kernel_is_told_with_the_key_and_those_that_are_there(define):
    f = define("Tensor x", "CUDA", "Meta")
    with pytest.raises(errors.MissingKernelError) as caught:
        f(Array("SparseCPU"))
    error = caught.value
    assert (error.operator, error.key) == ("s::f", "SparseCPU")
    assert sorted(error.available) == ["CUDA", "Meta"]
    assert isinstance(error, NotImplementedError)
    for word in ("s::f", "SparseCPU", "CUDA", "Meta", "Register one"):
        assert word in str(error)


@pytest.mark.shared
def test_a_kernel_that_only_the_main_interpreter_has_is_told_with_its_place(registry, define):
    f = define("Tensor x", "CPU")
    with md.Registry.attach(registry.address, timeout=0) as worker:
        elsewhere = worker.ops.s.f
        with pytest.raises(errors.LocalKernelMissingError, match="did not register it") as caught:
            elsewhere(CPU)
        error = caught.value
        assert (error.operator, error.key, error.available) == ("s::f", "CPU", ())
        assert error.where.startswith(f"{__file__}:")
        assert error.where in str(error)
        md.Library("s", "IMPL", registry=worker, timeout=0).impl("f", says("here too"), "CPU")
        assert elsewhere(CPU) == "here too"
    assert f(CPU) == "CPU"


BRINGS = """
import mdispatch as md
class Array:
    __dispatch_keys__ = "CPU"
lib = md.Library("b", "DEF")
lib.define("f(Tensor x) -> str")
lib.impl("f", lambda x: "f", "CPU")
STUB
lib.define("g(Tensor x) -> str")
lib.impl("g", lambda x: "g", "CPU")
"""

USES = """
import mdispatch as md

class Array:
    __dispatch_keys__ = "CPU"

def outcome(call):
    try:
        return call()
    except md.errors.LocalKernelMissingError as error:
        return error.module, error.module in str(error), error.where.rpartition("/")[2]

registry = md.default_registry()
f, g = md.ops.b.f, md.ops.b.g
result = {"before": outcome(lambda: f(Array())), "stub": outcome(lambda: g(Array()))}
registry.allow_imports("elsewhere", "feat")
result["others"] = outcome(lambda: f(Array()))
registry.allow_imports("feature")
result["after"] = outcome(lambda: CALL), outcome(lambda: g(Array()))
"""

WITHOUT_IMPORT = """
    place, folder, body = args
    import sys
    sys.path.insert(0, folder)
    import feature
    done(**results(start(place, body + "\\nreport(**result)", 1, Path(folder)))[0])
"""


@pytest.mark.parametrize("call", ["f(Array())", "f.default.call_for_dispatch_key('CPU', Array())"])
@pytest.mark.parametrize("place", PLACES[1:])
@pytest.mark.shared
def test_an_operator_that_is_not_loaded_here_names_its_module_and_may_import_it(
    place, call, tmp_path
):
    stub = "lib.set_python_module('kernels.of_g')"
    (tmp_path / "feature.py").write_text(BRINGS.replace("STUB", stub))
    found = run_main(WITHOUT_IMPORT, place, str(tmp_path), USES.replace("CALL", call))
    missing = ("feature", True, "feature.py:7")
    assert found["before"] == found["others"] == missing
    assert found["stub"] == ("kernels.of_g", True, "feature.py:10")
    assert found["after"] == ("f", "g")


TWO_THREADS = """
import sys, threading, types
waits = sys.modules["waits"] = types.ModuleType("waits")
waits.begun, waits.go = threading.Event(), threading.Event()
registry.allow_imports("feature")
outcomes = []

def call():
    outcomes.append(outcome(lambda: g(Array())))

def importing(frame, event, arg):
    if "importlib" in frame.f_code.co_filename:
        waits.go.set()

def call_too():
    sys.settrace(importing)
    try:
        call()
    finally:
        waits.go.set()

first, second = threading.Thread(target=call), threading.Thread(target=call_too)
first.start()
waits.begun.wait()
second.start()
first.join()
second.join()
result = {"outcomes": outcomes}
"""


@pytest.mark.shared
def test_a_thread_waits_for_the_import_that_another_ones_call_began(tmp_path):
    stub = """
import sys
waits = sys.modules.get("waits")  # only where calls import it
if waits:
    waits.begun.set()
    waits.go.wait()
"""
    (tmp_path / "feature.py").write_text(BRINGS.replace("STUB", stub))
    body = USES.partition("result = ")[0] + TWO_THREADS
    found = run_main(WITHOUT_IMPORT, PLACES[-1], str(tmp_path), body)
    assert found["outcomes"] == ["g", "g"]


def test_modules_are_allowed_by_their_full_names(registry):
    for name in ("", "a b", "a..b", "a/b", 3, None):
        with pytest.raises(errors.InvalidArgumentError, match="is not the name of a module"):
            registry.allow_imports(name)


def test_a_module_is_found_by_its_file(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/x/lib", "/x", ""])
    assert modules_of_file("/x/lib/pack/mod.py") == ["pack.mod", "lib.pack.mod"]
    assert modules_of_file("/x/lib/pack/__init__.py") == ["pack", "lib.pack"]
    assert modules_of_file("/x/mod.so") == ["mod"]
    for file in ("/y/mod.py", "/x/not-a-name.py", "<stdin>", "/x/mod.txt", ""):
        assert modules_of_file(file) == []


@pytest.mark.shared
def test_a_missing_local_kernel_is_not_replaced_by_another_one(registry, define, lib):
    """When the main interpreter runs the CPU kernel, a worker must not run the composite one."""
    define("Tensor x", "CompositeExplicitAutograd", "CPU")
    with md.Registry.attach(registry.address, timeout=0) as worker:
        mine = md.Library("s", "IMPL", registry=worker, timeout=0)
        mine.impl("f", says("composite"), "CompositeExplicitAutograd")
        assert worker.ops.s.f(CUDA) == "composite"
        with pytest.raises(errors.LocalKernelMissingError):
            worker.ops.s.f(CPU)


@pytest.mark.shared
def test_a_fallthrough_of_the_main_interpreter_needs_no_callable_here(registry, define, lib, wild):
    define("Tensor x", "CPU")
    lib.impl("f", md.fallthrough_kernel, "Conjugate")
    wild.fallback(md.fallthrough_kernel, "Functionalize")
    with md.Registry.attach(registry.address, timeout=0) as worker:
        md.Library("s", "IMPL", registry=worker, timeout=0).impl("f", says("mine"), "CPU")
        assert worker.ops.s.f(Array("CPU", "Conjugate", "Functionalize")) == "mine"


@pytest.mark.shared
def test_a_worker_follows_what_the_main_interpreter_changes(registry, define, lib):
    define("Tensor x", "CPU")
    with md.Registry.attach(registry.address, timeout=0) as worker:
        mine = md.Library("s", "IMPL", registry=worker, timeout=0)
        mine.impl("f", says("mine"), "CPU")
        f = worker.ops.s.f
        operator = f.default
        assert f(CPU) == "mine"
        other = md.Library("s", "IMPL", registry=registry)
        other.impl("f", says("newer"), "CPU")
        with pytest.raises(errors.LocalKernelMissingError):
            f.default(CPU)
        other.close()
        assert f(CPU) == "mine"
        lib.close()
        for call in (f, operator):
            with pytest.raises(errors.OperatorGoneError):
                call(CPU)
        lib = md.Library("s", "DEF", registry=registry)
        lib.define("f(Tensor x, int y=0) -> str")
        lib.impl("f", says("again"), "CPU")
        for call in (f, f.default):
            with pytest.raises(errors.KernelOutdatedError):
                call(CPU)
        with pytest.raises(errors.OperatorGoneError, match="another operator has since"):
            operator(CPU)


# --- tables and versions --------------------------------------------------------------------------


def test_registering_one_operator_leaves_the_tables_of_others_as_they_are(registry, define, lib):
    define("Tensor x", "CPU")
    define("Tensor x", "CPU", name="g")
    entry = registry.dispatcher.entry("s::f")
    table = entry.current_table()
    other = md.Library("s", "FRAGMENT", registry=registry)
    other.define("h(Tensor x) -> str")
    other.impl("g", says("new"), "CPU")
    other.impl("h", says("new"), "CPU")
    assert entry.current_table() is table
    assert registry.ops.s.g(CPU) == "new"
    other.close()
    assert entry.current_table() is table


def test_what_concerns_an_operator_replaces_its_table(registry, define, lib):
    define("Tensor x", "CPU")
    entry = registry.dispatcher.entry("s::f")
    seen = [entry.current_table()]
    other = md.Library("s", "IMPL", registry=registry)
    other.impl("f", says("new"), "CPU")
    seen.append(entry.current_table())
    other.close()
    seen.append(entry.current_table())
    assert entry.current_table() is seen[-1]
    assert len({id(table) for table in seen}) == 3


def test_a_fallback_makes_every_table_stale(registry, define, wild):
    define("Tensor x", "CPU")
    define("Tensor x", "CPU", name="g")
    entries = [registry.dispatcher.entry(name) for name in ("s::f", "s::g")]
    before = [entry.current_table() for entry in entries]
    wild.fallback(says("fallback"), "Meta")
    between = [entry.current_table() for entry in entries]
    wild.close()
    after = [entry.current_table() for entry in entries]
    for tables in zip(before, between, after, strict=True):
        assert len({id(table) for table in tables}) == 3
    assert registry.ops.s.f(CPU) == "CPU"


def test_a_refused_registration_leaves_the_table_as_it_is(registry, define, lib):
    define("Tensor x", "CPU")
    entry = registry.dispatcher.entry("s::f")
    table = entry.current_table()
    with pytest.raises(errors.DuplicateRegistrationError):
        lib.define("f(Tensor x) -> str")
    with pytest.raises(errors.InvalidKeyError):
        lib.impl("f", says(1), "GPU")
    assert entry.current_table() is table


def test_operators_work_over_any_registry_that_keeps_the_protocol():
    registry = md.Registry(LocalRegistry())
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x, float y=2) -> Any")
    lib.impl("f", lambda x, y: y, "CPU")
    assert registry.ops.s.f(CPU) == 2.0
    lib.close()
    registry.close()


# --- threads --------------------------------------------------------------------------------------


class Hammer:
    """Threads call while the main thread registers and closes. Every outcome must be an allowed
    one.
    """

    def __init__(self, call, allowed):
        self.call, self.allowed = call, allowed
        self.stop = False
        self.wrong = []
        self.calls = [0, 0, 0]
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(3)]

    def run(self, i):
        while not self.stop:
            try:
                outcome = self.call()
            except Exception as error:
                outcome = type(error)
                text = f"{outcome.__name__}: {error}"
            else:
                text = repr(outcome)
            if outcome not in self.allowed:
                self.wrong.append(text)
                return
            self.calls[i] += 1

    def __enter__(self):
        self.interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        for thread in self.threads:
            thread.start()
        return self

    def rounds(self, most=400):
        """Goes on until something is wrong or ``most`` rounds are over."""
        done = 0
        while done < most and not self.wrong:
            done += 1
            yield done

    def __exit__(self, *exc):
        while min(self.calls) == 0 and not self.wrong and exc == (None, None, None):
            os.sched_yield()
        self.stop = True
        sys.setswitchinterval(self.interval)
        for thread in self.threads:
            thread.join()
        assert self.wrong == []
        assert min(self.calls) > 0


def test_while_a_kernel_comes_and_goes_calls_see_the_old_or_the_new_one(registry, define):
    f = define("Tensor x", "CPU").default
    with Hammer(lambda: f(CPU), {"CPU", "new"}) as hammer:
        for _ in hammer.rounds():
            other = md.Library("s", "IMPL", registry=registry)
            other.impl("f", says("new"), "CPU")
            other.close()


@pytest.mark.dear
def test_while_the_only_kernel_comes_and_goes_calls_run_it_or_find_none(registry, define):
    f = define("Tensor x").default
    with Hammer(lambda: f(CPU), {"new", errors.MissingKernelError}) as hammer:
        for _ in hammer.rounds():
            other = md.Library("s", "IMPL", registry=registry)
            other.impl("f", says("new"), "CPU")
            other.close()


def test_while_a_fallback_comes_and_goes_calls_run_it_or_find_none(registry, define):
    f = define("Tensor x").default
    with Hammer(lambda: f(CPU), {"fallback", errors.MissingKernelError}) as hammer:
        for _ in hammer.rounds():
            wild = md.Library("_", "IMPL", registry=registry)
            wild.fallback(says("fallback"), "CPU")
            wild.close()


def test_no_table_is_computed_between_a_fallbacks_fact_and_its_callable(
    registry, define, monkeypatch
):
    """In between, the callable was paired neither with the registration nor with anything else: its
    number came while the rules were asked.
    """
    f = define("Tensor x").default
    lock, register = registry.dispatcher.fallbacks.lock, registry.dispatcher.facts.register
    was_free = []

    def register_and_look(*args):
        fact = register(*args)
        looking = threading.Thread(target=lambda: was_free.append(lock.acquire(blocking=False)))
        looking.start()
        looking.join()
        return fact

    monkeypatch.setattr(registry.dispatcher.facts, "register", register_and_look)
    md.Library("_", "IMPL", registry=registry).fallback(says("fallback"), "CPU")
    assert was_free == [False]
    assert f(CPU) == "fallback"


@pytest.mark.dear
def test_while_a_definition_is_replaced_no_call_mixes_the_old_and_the_new(registry):
    """A kernel must get the arguments of the schema that it was registered with."""

    def register(word, arguments):
        made = md.Library("s", "FRAGMENT", registry=registry)
        made.define(f"f({arguments}) -> Any")
        made.impl("f", lambda *args, **kwargs: (word, args[1:], *kwargs.items()), "CPU")
        return made

    old, new = ("old", "Tensor x, int y=1"), ("new", "Tensor x, str y='two', *, Tensor? z=None")
    first = register(*old)
    f = registry.ops.s.f.default
    first.close()
    allowed = {
        ("old", (1,)),
        ("new", ("two",), ("z", None)),
        errors.OperatorGoneError,
        errors.MissingKernelError,
    }
    with Hammer(lambda: f(CPU), allowed) as hammer:
        for i in hammer.rounds():
            register(*(new if i % 2 else old)).close()


@pytest.mark.dear
def test_while_keys_of_an_operator_change_a_missing_kernel_is_told_without_stumbling(
    registry, define
):
    f = define("Tensor x", "CUDA").default
    names = [
        "CPU",
        "HIP",
        "XLA",
        "MPS",
        "IPU",
        "XPU",
        "HPU",
        "VE",
        "Lazy",
        "MTIA",
        "MAIA",
        "PrivateUse1",
    ]
    with Hammer(lambda: f(OTHER), {errors.MissingKernelError}) as hammer:
        for i in hammer.rounds():
            other = md.Library("s", "IMPL", registry=registry)
            other.impl("f", says("new"), names[i % len(names)])
            if i % 50 == 49:
                registry.dispatcher.entry("s::f").callables = ()
            other.close()


@pytest.mark.thorough
def test_while_other_operators_are_registered_calls_go_on(registry, define, lib):
    f = define("Tensor x", "CPU").default
    with Hammer(lambda: f(CPU), {"CPU"}) as hammer:
        for i in hammer.rounds(200):
            lib.define(f"g{i}(Tensor x) -> str")
            lib.impl(f"g{i}", says("g"), "CPU")
