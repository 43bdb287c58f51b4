"""Higher-order operators: names, keys, rules for modes, types and transforms, refusals."""

from __future__ import annotations

import collections
import copy
import pickle
import threading

import pytest
from places import PLACES, run_at
from runs import in_another_run

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context import guards, modes
from mdispatch.dispatch.context.hermetic import SafeObject
from mdispatch.dispatch.context.modes import DispatchMode, DispatchModeKey, mode_stack
from mdispatch.dispatch.context.transforms import FunctionalMode, Transform, TransformType
from mdispatch.dispatch.higher_order import (
    HigherOrderOperator,
    find_higher_order,
    higher_order_names,
)
from mdispatch.keys import DispatchKey, DispatchKeySet

pytestmark = pytest.mark.either_binding

FALLTHROUGH = [
    *("PythonDispatcher", "PythonTLSSnapshot", "ADInplaceOrView", "BackendSelect"),
    *("AutocastCPU", "AutocastCUDA", "AutocastXPU"),
]


def value(*keys):
    """A value with these keys."""
    return type("Value", (), {"__dispatch_keys__": keys})()


CPU = value("CPU")
GRAD = value("CPU", "AutogradCPU")


class Trace(DispatchMode):
    """A mode for which rules are registered."""


class Own(DispatchMode):
    """A mode that handles higher-order operators itself."""

    supports_higher_order_operators = True

    def __md_dispatch__(self, op, types, args, kwargs):
        return "own", op, types, args, kwargs


class Typed:
    __dispatch_keys__ = "CPU"

    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        raise AssertionError("not asked unless the class supports higher-order operators")


class Sub(Typed):
    pass


@pytest.fixture
def op():
    made = HigherOrderOperator("op")
    yield made
    made.close()
    assert mode_stack() == modes.pre_dispatch_modes() == ()
    assert guards.included_keys() == guards.DEFAULT_INCLUDED
    assert guards.excluded_keys() == guards.DEFAULT_EXCLUDED


def says(*words):
    return lambda *args, **kwargs: " ".join(words)


# --- names ----------------------------------------------------------------------------------------


def test_an_operator_is_found_by_its_name_until_it_is_closed(op):
    assert find_higher_order("op") is op
    assert "op" in higher_order_names()
    assert (op.name, op.namespace, op.__name__) == ("higher_order::op", "higher_order", "op")
    assert repr(op) == "<mdispatch operator higher_order::op>"
    op.close()
    op.close()
    assert op.is_gone
    assert "op" not in higher_order_names()
    uses = [op, lambda: op.py_impl("CPU"), lambda: op.dispatch("CPU"), lambda: op.py_kernels]
    uses += [lambda: op.fallthrough("CPU"), lambda: op.why("CPU")]
    for use in uses:
        with pytest.raises(errors.OperatorGoneError, match="higher_order::op was closed"):
            use()


def test_a_name_that_is_not_there_is_an_attribute_error_with_the_nearest(op):
    other = HigherOrderOperator("selection")
    with pytest.raises(AttributeError, match="no higher-order operator selecton; did you mean sel"):
        find_higher_order("selecton")
    other.close()
    with pytest.raises(errors.OperatorNotFoundError, match="this interpreter has op") as caught:
        find_higher_order("something")
    assert caught.value.operator == "higher_order::something"


@pytest.mark.parametrize("name", ["", "a b", "a::b", "a.b", 3])
def test_a_name_that_is_none_is_refused(name):
    before = higher_order_names()
    with pytest.raises(errors.InvalidNameError):
        HigherOrderOperator(name)
    assert higher_order_names() == before


def test_a_second_one_of_a_name_is_refused_with_both_places(op):
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        HigherOrderOperator("op")
    assert caught.value.first == op.where
    assert caught.value.second.startswith(__file__)
    assert caught.value.first != caught.value.second
    assert find_higher_order("op") is op
    op.close()
    other = HigherOrderOperator("op")
    op.close()  # not the name of the other one
    assert find_higher_order("op") is other
    other.close()


def test_made_by_another_run_of_its_module_it_takes_the_place_of_the_earlier_one():
    def make():
        return HigherOrderOperator("again")

    made = [in_another_run(make)() for _ in range(2)]
    assert find_higher_order("again") is made[1]
    made[0].py_impl("CPU")(says("old"))
    assert made[0](CPU) == "old"
    for each in made:
        each.close()


def test_the_place_of_a_subclass_is_where_it_is_made():
    class Select(HigherOrderOperator):
        def __init__(self, name):
            super().__init__(name)

        def __call__(self, which, *values):
            """An operator with a signature."""
            return super().__call__(which, *values)

    select = Select("select")
    with pytest.raises(errors.DuplicateRegistrationError):
        Select("select")
    select.py_impl("CPU")(lambda which, *values: values[which])
    assert select(1, 10, CPU) is CPU
    with pytest.raises(TypeError, match="which"):
        select()
    select.close()


def test_it_is_itself_when_it_is_copied_or_pickled(op):
    assert copy.copy(op) is copy.deepcopy([op])[0] is pickle.loads(pickle.dumps(op)) is op
    text = pickle.dumps(op)
    op.close()
    with pytest.raises(errors.OperatorNotFoundError):
        pickle.loads(text)


# --- keys -----------------------------------------------------------------------------------------


def test_the_keys_of_all_arguments_count_however_deep_they_are(op):
    op.py_impl("CPU")(says("cpu"))
    op.py_impl("CUDA")(says("cuda"))
    op.py_impl("CompositeExplicitAutograd")(says("none"))
    cuda = value("CUDA")
    assert op() == op(len, 3, [], {}, a=None) == "none"
    assert op(CPU) == op(a=CPU) == op([1, (CPU, 2)]) == op(a={"b": [{"c": (CPU,)}]}) == "cpu"
    assert op([CPU], {"a": cuda}) == "cuda"
    assert op({CPU: 1}) == "none"  # a dict's keys are not among its values


def test_functions_have_no_keys_and_are_handed_on_as_they_are(op):
    op.py_impl("CPU")(lambda function, x: function(x))
    assert op(lambda x: [x], CPU) == [CPU]


def test_the_arguments_come_as_they_were_given(op):
    op.py_impl("CPU")(lambda *args, **kwargs: (args, kwargs))
    given = [CPU, [1]]
    args, kwargs = op(given, 2, key_set=3, self=4)
    assert args[0] is given
    assert (args[1:], kwargs) == ((2,), {"key_set": 3, "self": 4})


def test_this_threads_keys_count_too(op):
    op.py_impl("CPU")(says("cpu"))
    op.py_impl("AutogradCPU")(says("autograd"))
    op.py_impl("Tracer")(says("tracer"))
    assert op(GRAD) == "autograd"
    with guards.AutoDispatchBelowAutograd():
        assert op(GRAD) == "cpu"
    with guards.IncludeDispatchKeyGuard("Tracer"):
        assert op(GRAD) == "tracer"


def test_the_keys_that_fall_through_at_first(op):
    assert op.non_fallthrough_keys == DispatchKeySet.full() - DispatchKeySet(FALLTHROUGH)
    assert len(set(FALLTHROUGH)) == 7
    op.py_impl("CPU")(says("cpu"))
    with guards.ForceDispatchKeyGuard(FALLTHROUGH, ()):
        assert op(CPU) == "cpu"
    with guards.ForceDispatchKeyGuard("AutocastMPS", ()), pytest.raises(errors.MissingKernelError):
        op(CPU)


def test_a_rule_at_a_key_that_falls_through_stops_calls_there(op):
    op.py_impl("CPU")(says("cpu"))
    op.py_impl("ADInplaceOrView", "AutocastCPU")(says("above"))
    assert op(CPU) == "above"  # every thread includes ADInplaceOrView at first
    op.fallthrough("ADInplaceOrView")
    assert op(CPU) == "cpu"
    assert op.has_kernel_for_dispatch_key("ADInplaceOrView")


def test_fallthrough_lets_calls_pass_by_a_key_for_all_backends(op):
    op.py_impl("CPU")(says("cpu"))
    with pytest.raises(errors.MissingKernelError):
        op(GRAD)
    op.fallthrough("AutogradCPU")
    assert op(GRAD) == "cpu"
    assert not op.non_fallthrough_keys.has("AutogradCUDA")
    op.py_impl("AutogradCUDA")(says("cuda"))
    with pytest.raises(errors.MissingKernelError, match="fallthrough"):
        op(GRAD)


@pytest.mark.parametrize("key", ["Autograd", "Undefined", "CompositeImplicitAutograd", "Nothing"])
def test_a_key_that_no_set_has_cannot_fall_through(op, key):
    before = op.non_fallthrough_keys
    with pytest.raises(errors.InvalidKeyError):
        op.fallthrough(key)
    assert op.non_fallthrough_keys == before


def test_alias_keys_serve_what_they_stand_for_as_in_every_table(op):
    op.py_impl("CompositeImplicitAutograd")(says("composite"))
    assert op(GRAD) == op() == op(value("Meta", "AutogradMeta")) == "composite"
    op.py_impl("CPU")(says("cpu"))
    with pytest.raises(errors.MissingKernelError, match="serves AutogradCPU"):
        op(GRAD)  # needs a gradient of this kernel, not of the composite's parts
    op.py_impl("Autograd")(says("autograd"))
    assert op(GRAD) == "autograd"
    assert "registered at " + __file__ in op.why("AutogradCPU")[-1]
    assert op.why("AutogradCPU")[-2] == "autograd kernel: a kernel at Autograd"
    assert op.why("Tracer")[-1] == "missing: nothing serves Tracer"


def test_backend_fallbacks_do_not_serve_it(op, registry):
    lib = md.Library("_", "IMPL", registry=registry)
    lib.fallback(says("fallback"), "CPU")
    with pytest.raises(errors.MissingKernelError) as caught:
        op(GRAD)
    assert caught.value.operator == "higher_order::op"
    assert caught.value.key == "AutogradCPU"  # for other operators it falls through
    lib.close()


def test_what_is_missing_is_told_with_what_is_there(op):
    op.py_impl("CPU")(says("cpu"))
    with pytest.raises(errors.MissingKernelError) as caught:
        op(value("CUDA"))
    error = caught.value
    assert (error.operator, error.key, error.available) == ("higher_order::op", "CUDA", ("CPU",))
    assert f"rules at: CPU ({__file__}:" in str(error)
    assert "py_impl('CUDA'), or let calls skip the key with fallthrough('CUDA')" in str(error)
    with pytest.raises(errors.MissingKernelError, match="a call without dispatch keys") as caught:
        op(1)
    assert caught.value.key == "Undefined"


def test_a_composite_rule_and_one_behind_autograd_other_are_ambiguous_there(op):
    op.py_impl("CompositeImplicitAutograd", "SparseCPU")(says("either"))
    with pytest.raises(errors.AmbiguousKernelError) as caught:
        op(value("FPGA", "AutogradOther"))
    assert set(caught.value.available) == {"CompositeImplicitAutograd", "SparseCPU"}


def test_dispatch_runs_what_stands_at_just_one_key(op):
    op.py_impl("CPU")(says("cpu"))
    op.py_impl("Autograd")(says("autograd"))
    assert op.dispatch("CPU", GRAD) == op.dispatch(DispatchKey.CPU) == "cpu"
    assert op.dispatch("AutogradCPU", CPU) == "autograd"
    with pytest.raises(errors.MissingKernelError):
        op.dispatch("CUDA", CPU)
    with pytest.raises(errors.InvalidKeyError):
        op.dispatch("Autograd", CPU)
    for key in ("Python", "PreDispatch", "FuncTorchDynamicLayerFrontMode"):
        with pytest.raises(errors.MissingKernelError, match=f"reached {key}, and there is nothing"):
            op.dispatch(key, CPU)
    op.py_impl(Trace)(lambda mode, x: (mode, x))
    with Trace() as mode:
        assert op.dispatch("Python", CPU) == (mode, CPU)


def test_a_rule_can_go_on_below_its_key(op):
    @op.py_impl("Autograd")
    def autograd(function, x):
        with guards.AutoDispatchBelowAutograd():
            return "autograd", op(function, x)

    op.py_impl("CPU")(lambda function, x: function(x))
    op.py_impl(Trace)(lambda mode, function, x: ("trace", op(function, x)))
    with Trace(), Trace():
        assert op(says("cpu"), GRAD) == ("autograd", ("trace", ("trace", "cpu")))


# --- registering ----------------------------------------------------------------------------------


def test_one_function_can_be_for_keys_classes_and_transforms_at_once(op):
    rule = op.py_impl("CPU", "CUDA", Trace, TransformType.Grad)(lambda *args: len(args))
    assert op.py_kernels == {DispatchKey.CPU: rule, DispatchKey.CUDA: rule}
    assert op.has_kernel_for_dispatch_key("CUDA")
    assert not op.has_kernel_for_dispatch_key("Meta")
    assert op.has_kernel_for_any_dispatch_key(DispatchKeySet("CUDA", "Meta"))
    assert not op.has_kernel_for_any_dispatch_key(DispatchKeySet("Meta"))
    assert op(CPU) == 1
    with Trace():
        assert op(CPU) == 2


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("Python", errors.InvalidKeyError),
        ("Undefined", errors.InvalidKeyError),
        (int, errors.InvalidArgumentError),
        (Trace(), errors.InvalidArgumentError),
    ],
    ids=["Python", "Undefined", "int", "a mode"],
)
def test_a_place_that_is_none_leaves_nothing_registered(op, wrong, error):
    with pytest.raises(error):
        op.py_impl("ADInplaceOrView", Trace, wrong)(says("never"))
    assert op.py_kernels == op.rules.by_class == {}
    assert not op.non_fallthrough_keys.has("ADInplaceOrView")
    with pytest.raises(errors.InvalidArgumentError):
        op.py_impl()
    with pytest.raises(errors.InvalidArgumentError, match=r"call fallthrough\(key\)"):
        op.py_impl("ADInplaceOrView")(md.fallthrough_kernel)
    assert op.py_kernels == {}


def test_a_second_rule_is_refused_and_another_run_of_its_module_replaces_it(op):
    def register(word):
        op.py_impl("CPU")(says(word))

    register("old")
    last = in_another_run(register)
    last("new")
    assert op(CPU) == "new"
    with pytest.raises(errors.DuplicateRegistrationError, match="has a rule for CPU already"):
        last("other")
    assert op(CPU) == "new"


# --- modes ----------------------------------------------------------------------------------------


def test_a_rule_for_a_mode_gets_the_mode_which_is_off_the_stack(op):
    stacks = []

    @op.py_impl(Trace)
    def traced(mode, *args, **kwargs):
        stacks.append((mode, mode_stack()))
        return args, kwargs

    with Trace() as outer, Trace() as inner:
        assert op(CPU, a=1) == ((CPU,), {"a": 1})
        assert op() == ((), {})
    assert stacks == [(inner, (outer,))] * 2


def test_modes_are_asked_innermost_first_each_once(op):
    op.py_impl(Trace)(lambda mode, x: [mode, *op(x)])
    op.py_impl("CPU")(lambda x: ["cpu"])
    with Trace() as a, Trace() as b, a:
        assert op(CPU) == [a, b, a, "cpu"]


def test_a_mode_is_back_after_a_rule_that_raised(op):
    @op.py_impl(Trace)
    def fail(mode, x):
        raise KeyError("on purpose")

    with Trace() as mode:
        for _ in range(2):
            with pytest.raises(KeyError, match="on purpose"):
                op(CPU)
            assert mode_stack() == (mode,)


def test_a_mode_without_a_rule_is_an_error_that_says_what_to_do(op):
    class Other(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            raise AssertionError("unasked")

    op.py_impl("CPU")(says("cpu"))
    op.py_impl(Trace)(says("trace"))
    with Other() as mode:
        with pytest.raises(errors.MissingRuleError) as caught:
            op(CPU)
        assert mode_stack() == (mode,)
    error = caught.value
    assert isinstance(error, NotImplementedError)
    assert error.operator == "higher_order::op"
    assert error.handler.endswith("Other")
    assert (error.key, error.available) == ("Python", ("Trace",))
    assert "supports_higher_order_operators to True" in str(error)
    with Other(), modes.disable_md_dispatch():
        assert op(CPU) == "cpu"


def test_a_mode_that_supports_them_gets_the_operator_itself(op):
    with Own():
        assert op(CPU, [1], a=2) == ("own", op, (), (CPU, [1]), {"a": 2})
        typed = Sub()
        assert op({"a": typed})[2] == (Sub,)


def test_of_a_rule_and_a_handler_the_nearer_class_is_asked(op):
    class Derived(Own):
        pass

    class Again(Own):
        def __md_dispatch__(self, op, types, args, kwargs):
            return "again"

    class Unsupported(Trace):
        def __md_dispatch__(self, op, types, args, kwargs):
            raise AssertionError("unasked")

    op.py_impl(Own)(says("rule for own"))
    op.py_impl(Trace)(says("rule for trace"))
    for cls, expected in (
        (Own, "rule for own"),
        (Derived, "rule for own"),
        (Again, "again"),
        (Unsupported, "rule for trace"),
    ):
        with cls():
            assert op(CPU) == expected


def test_operators_that_a_rule_calls_go_to_the_other_modes(op, registry):
    lib = md.Library("h", "DEF", registry=registry)
    lib.define("f(Any x) -> str")
    lib.impl("f", says("f"), "CompositeExplicitAutograd")
    seen = []

    class Log(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            seen.append((self, op.name))
            return op(*args, **kwargs)

    op.py_impl("CPU")(lambda function, x: function(x))
    op.py_impl(Log)(lambda mode, function, x: op(function, x))
    with Log() as a, Log() as b:
        assert op(registry.ops.h.f, CPU) == "f"
    assert seen == []  # both modes were off while the function ran
    op2 = HigherOrderOperator("op2")
    op2.py_impl("CPU")(lambda function, x: function(x))
    op2.py_impl(Log)(lambda mode, function, x: [function(x), op2(function, x)])
    with a, b:
        assert op2(registry.ops.h.f, CPU) == ["f", ["f", "f"]]
    op2.close()
    assert seen == [(a, "h::f")]


def test_two_operators_can_call_each_other(op):
    other = HigherOrderOperator("other")

    @op.py_impl("CPU", Trace)
    def down(*args):
        return ["op", *(other(*args[-2:]) if args[-2] else ())]

    @other.py_impl("CPU", Trace)
    def on(*args):
        return [f"other {len(args)}", *op(args[-2] - 1, args[-1])]

    # A mode serves the outer call and is off for all calls inside it.
    assert op(2, CPU) == ["op", "other 2", "op", "other 2", "op"]
    with Trace():
        assert other(1, CPU) == ["other 3", "op"]
        assert op(1, CPU) == ["op", "other 2", "op"]
    other.close()


def test_infrastructure_modes_are_asked_after_all_others(op):
    op.py_impl(FunctionalMode)(lambda mode, x: ["functional", *op(x)])
    op.py_impl(Trace)(lambda mode, x: ["trace", *op(x)])
    op.py_impl("CPU")(lambda x: ["cpu"])
    with Trace(), FunctionalMode():
        assert op(CPU) == ["trace", "functional", "cpu"]


# --- types ----------------------------------------------------------------------------------------


def test_types_are_asked_after_modes_subclasses_first_else_in_order(op):
    asked = []

    def declines(name):
        def rule(*args):
            asked.append(name)
            return NotImplemented

        return rule

    op.py_impl(Typed)(declines("Typed"))
    op.py_impl(Sub)(declines("Sub"))
    op.py_impl(Trace)(declines("Trace"))
    with Trace(), pytest.raises(errors.HandlersDeclinedError) as caught:
        op(Typed(), [{"deep": Sub()}])
    assert asked == ["Trace", "Sub", "Typed"]
    assert len(caught.value.handlers) == 3
    assert caught.value.operator == "higher_order::op"
    assert isinstance(caught.value, TypeError)


def test_a_rule_for_a_type_gets_the_arguments(op):
    op.py_impl(Typed)(lambda *args, **kwargs: (args, kwargs))
    typed = Sub()
    assert op(1, [typed], a=2) == ((1, [typed]), {"a": 2})


def test_a_type_without_a_rule_is_an_error_unless_it_supports_them(op):
    class Supports(Typed):
        supports_higher_order_operators = True

        @classmethod
        def __md_dispatch__(cls, op, types, args, kwargs):
            return cls, op, types

    with pytest.raises(errors.MissingRuleError, match=r"py_impl\(Sub\)"):
        op(Sub())
    assert op(Supports()) == (Supports, op, (Supports,))


def test_the_key_of_python_without_anybody_to_ask_is_passed_by(op):
    op.py_impl("CPU")(says("cpu"))
    assert op(value("CPU", "Python", "PythonTLSSnapshot")) == "cpu"
    op.fallthrough("Python")
    assert op(Typed()) == "cpu"
    with Trace():
        assert op(CPU) == "cpu"


# --- before dispatch ------------------------------------------------------------------------------


class Proxy(DispatchMode):
    mode_key = DispatchModeKey.PROXY


@pytest.fixture
def proxy():
    mode = Proxy()
    modes.push_pre_dispatch_mode(mode)
    yield mode
    modes.pop_pre_dispatch_mode()


def test_modes_before_dispatch_are_asked_before_everything_else(op, proxy):
    op.py_impl("CPU")(says("cpu"))
    op.py_impl("Autograd")(says("autograd"))
    with pytest.raises(errors.MissingRuleError, match="Proxy"):
        op(GRAD)

    @op.py_impl(Proxy)
    def rule(mode, x):
        return mode, modes.pre_dispatch_modes(), op(x)

    with Vmap():
        assert op(GRAD)[:2] == (proxy, ())
    assert op(GRAD) == (proxy, (), "autograd")
    assert modes.pre_dispatch_modes() == (proxy,)


def test_disabled_modes_are_not_asked_before_dispatch_either(op, proxy, registry):
    op.py_impl("CPU")(says("cpu"))
    lib = md.Library("h", "DEF", registry=registry)
    lib.define("f() -> str")
    lib.impl("f", says("f"), "CompositeExplicitAutograd")
    with modes.disable_md_dispatch():
        assert op(CPU) == "cpu"
        assert registry.ops.h.f() == "f"
    with pytest.raises(NotImplementedError):
        registry.ops.h.f()


def test_without_such_a_mode_a_rule_at_that_key_runs_else_it_is_passed_by(op):
    op.py_impl("CPU")(says("cpu"))
    with guards.IncludeDispatchKeyGuard("PreDispatch"):
        assert op(CPU) == "cpu"
        op.py_impl("PreDispatch")(says("before"))
        assert op(CPU) == "before"


# --- transforms -----------------------------------------------------------------------------------


class Vmap(Transform):
    transform_type = TransformType.Vmap

    def process(self, op, args, kwargs):
        return "process", op, op(*args, **kwargs)


def test_transforms_come_first_with_a_rule_or_by_process(op):
    op.py_impl("CPU")(says("cpu"))
    op.py_impl("Autograd")(says("autograd"))
    op.py_impl(Trace)(lambda mode, x: ("trace", op(x)))
    with Trace(), Vmap():
        assert op(GRAD) == ("process", op, "autograd")
        assert op(CPU) == ("process", op, ("trace", "cpu"))
    op.py_impl(TransformType.Vmap)(lambda transform, x: (transform, op(x)))
    with Vmap() as outer, Vmap() as inner:
        assert op(GRAD) == (inner, (outer, "autograd"))


def test_one_rule_serves_the_key_the_mode_and_the_transform(op):
    class Functionalize(Transform):
        transform_type = TransformType.Functionalize

    @op.py_functionalize_impl
    def rule(ctx, x):
        with ctx.redispatch_to_next():
            return ctx.kind, ctx.mode, ctx.transform, op(x)

    op.py_impl("CPU")(says("cpu"))
    at_key = ("key", None, None, "cpu")
    assert op(value("CPU", "Functionalize")) == at_key
    with FunctionalMode() as mode, Functionalize() as transform:
        assert op(CPU) == ("transform", None, transform, ("mode", mode, None, "cpu"))
    other = HigherOrderOperator("other")
    other.py_impl(FunctionalMode)(says("mine"))
    with pytest.raises(errors.DuplicateRegistrationError):
        other.py_functionalize_impl(rule)
    assert other.py_kernels == {}
    other.close()


# --- what belongs to somebody else ----------------------------------------------------------------


def test_what_is_at_home_is_opened_wherever_it_is(op):
    Pair = collections.namedtuple("Pair", "a b")
    op.py_impl("CPU")(lambda *args, **kwargs: (args, kwargs))
    held = SafeObject(CPU)
    assert op(held, function=SafeObject(len)) == ((CPU,), {"function": len})
    given = [1, {"a": (held,), "b": Pair(held, 2)}], collections.OrderedDict(a=held)
    (first, second), _ = op(*given)
    assert first == [1, {"a": (CPU,), "b": Pair(CPU, 2)}]
    assert type(first[1]["b"]) is Pair
    assert type(second) is collections.OrderedDict
    assert given[0][1]["a"] == (held,)  # the arguments stay as they were
    held.close()
    with pytest.raises(errors.ObjectGoneError) as caught:
        op([held])
    assert caught.value.operator == "higher_order::op"


def test_a_thread_has_modes_of_its_own(op):
    op.py_impl("CPU")(says("cpu"))
    op.py_impl(Trace)(says("trace"))
    results = []
    with Trace():
        thread = threading.Thread(target=lambda: results.append(op(CPU)))
        thread.start()
        thread.join()
        results.append(op(CPU))
    assert results == ["cpu", "trace"]


# --- four places ----------------------------------------------------------------------------------

MODULE = """
from mdispatch import HigherOrderOperator
from mdispatch.context import DispatchMode

class Array:
    __dispatch_keys__ = "CPU", "AutogradCPU"

class Trace(DispatchMode):
    pass

select = HigherOrderOperator("select")
select.fallthrough("AutogradCPU")
select.py_impl("CPU")(lambda which, *values: values[which])
select.py_impl(Trace)(lambda mode, *args: ("trace", select(*args)))
"""

BODY = """
import importlib, pickle
import feature
from mdispatch import HigherOrderOperator, errors, find_higher_order
from mdispatch.context import mode_stack

x = feature.Array()
with feature.Trace(), feature.Trace():
    traced = feature.select(0, "a", x)
try:
    HigherOrderOperator("select")
except errors.DuplicateRegistrationError as error:
    second = "feature.py" in error.first
travelled = pickle.loads(pickle.dumps(feature.select)) is feature.select
earlier = feature.select
importlib.reload(feature)
again = find_higher_order("select") is feature.select is not earlier
result = {"plain": feature.select(1, feature.Array(), "b"), "traced": traced, "second": second,
          "travelled": travelled, "again": again, "left": mode_stack()}
"""


@pytest.mark.parametrize("place", PLACES)
def test_each_interpreter_has_its_own(place, tmp_path):
    assert run_at(place, MODULE, BODY, tmp_path) == {
        "plain": "b",
        "traced": ("trace", ("trace", "a")),
        "second": True,
        "travelled": True,
        "again": True,
        "left": (),
    }


FOREIGN = """
from mdispatch import HigherOrderOperator
from mdispatch.context import DispatchMode

class Array:
    __dispatch_keys__ = "CPU"

class Mode(DispatchMode):
    pass

ran = []
op = HigherOrderOperator("op")
op.py_impl("CPU")(lambda *args: ran.append("cpu"))
op.py_impl("Tracer")(lambda *args: ran.append("tracer"))
"""

REFUSED = """
import pickle
from pathlib import Path
import mdispatch as md
from feature import Array, Mode, op, ran
from mdispatch import errors

held = pickle.loads(Path(HELD).read_bytes())

def refusal(call):
    try:
        call()
    except errors.ForeignObjectError as error:
        return error.operator, error.home != error.here, list(ran)

result = {}
with md.context.IncludeDispatchKeyGuard("Tracer"):  # above the key Python
    result["argument"] = refusal(lambda: op(len, [{"a": held["array"]}]))
    result["function"] = refusal(lambda: op(held["function"], Array()))
    md.context.push_mode(held["mode"])
    result["mode"] = refusal(lambda: op(Array()))
    md.context.pop_mode()
    op.py_impl(Mode)(held["rule"])
    with Mode():
        result["rule"] = refusal(lambda: op(Array()))
    op(Array())
result["ran"] = ran
"""

MAIN = """
    place, folder, body = args
    import sys, pickle
    sys.path.insert(0, folder)
    import feature
    from mdispatch.dispatch.context.hermetic import SafeObject
    held = {"array": feature.Array(), "mode": feature.Mode(), "function": len,
            "rule": lambda *args: None}
    held = {name: SafeObject(each) for name, each in held.items()}
    Path(folder, "held").write_bytes(pickle.dumps(held))
    done(**results(start(place, body + "\\nreport(**result)", 1, Path(folder)))[0])
"""


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_call_with_something_from_elsewhere_is_refused_before_anything_ran(place, tmp_path):
    from kinds import run_main

    (tmp_path / "feature.py").write_text(FOREIGN)
    body = REFUSED.replace("HELD", repr(str(tmp_path / "held")))
    values = run_main(MAIN, place, str(tmp_path), body)
    refused = ("higher_order::op", True, [])
    assert values["argument"] == values["function"] == values["mode"] == values["rule"] == refused
    assert values["ran"] == ["tracer"]
