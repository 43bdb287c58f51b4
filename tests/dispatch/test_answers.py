"""The results of kernels, modes, types and transforms: an error names the one whose result does not
fit. And which values are asked for an answer, and which are values like any other.
"""

from __future__ import annotations

import pytest

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context import guards, modes
from mdispatch.dispatch.context.hermetic import SafeObject
from mdispatch.dispatch.context.homes import here
from mdispatch.dispatch.context.modes import DispatchMode
from mdispatch.dispatch.context.transforms import Transform
from mdispatch.dispatch.higher_order import HigherOrderOperator


class Array:
    __dispatch_keys__ = ("CPU", "AutogradCPU")


class Typed:
    __dispatch_keys__ = "CPU"

    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        return "typed"


class Text(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return "text"


class Change(Transform):
    def process(self, op, args, kwargs):
        return "changed"


class BeforeDispatch:
    def __enter__(self):
        modes.push_pre_dispatch_mode(Text())

    def __exit__(self, *exc):
        modes.pop_pre_dispatch_mode()


def wrong(x):
    return "wrong"


def fallback(operator, *args):
    return "fallback"


X = Array()


@pytest.fixture
def lib(registry):
    lib = md.Library("a", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x, "CPU")
    lib.define("wrong(Tensor x) -> Tensor")
    lib.impl("wrong", wrong, "CPU")
    lib.define("any(Tensor x) -> Any")
    lib.impl("any", lambda x: "cpu", "CPU")
    return lib


@pytest.fixture
def ops(registry, lib):
    return registry.ops.a


def foreign(type_name="Array", keys=None):
    """A holder whose object belongs to an interpreter that this process does not have."""
    holder = SafeObject.__new__(SafeObject)
    holder._set(None, here().neighbour(10**6), 1, type_name, keys, ())
    return holder


# --- who is named ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("block", "value", "who"),
    [
        (Text, X, "mode Text returned the str text"),
        (BeforeDispatch, X, "mode Text returned the str text"),
        (Change, X, "transform Change returned the str changed"),
        (guards.PreserveDispatchKeyGuard, Typed(), "type Typed returned the str typed"),
    ],
)
def test_of_a_result_that_does_not_fit_the_handler_is_named(ops, block, value, who):
    with block(), pytest.raises(errors.ReturnValueError) as caught:
        ops.f(value)
    assert str(caught.value).splitlines()[0] == f"a::f(): {who}, not Tensor"


def test_of_a_result_that_does_not_fit_the_kernel_is_named_wherever_it_was_called(
    registry, lib, ops
):
    class Pass(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            return op(*args, **kwargs)

    first = f"a::wrong(): kernel {__name__}.wrong returned the str wrong, not Tensor"
    with Pass(), pytest.raises(errors.ReturnValueError) as caught:
        ops.wrong(X)
    assert str(caught.value).splitlines()[0] == first

    ops.f.default.py_impl("CPU")(wrong)
    with guards.enable_python_dispatcher(), pytest.raises(errors.ReturnValueError) as caught:
        ops.f(X)
    first = f"a::f(): kernel {__name__}.wrong returned the str wrong, not Tensor"
    assert str(caught.value).splitlines()[0] == first

    md.Library("_", "IMPL", registry=registry).fallback(fallback, "AutogradCPU")
    with pytest.raises(
        errors.ReturnValueError, match=r"kernel .*\.fallback returned the str fallback"
    ):
        ops.f(X)


def test_an_object_that_is_not_at_home_is_refused_as_a_result_too(lib, ops):
    lib.define("away(Tensor x) -> Tensor")
    lib.impl("away", lambda x: foreign(), "CPU")
    with pytest.raises(errors.ForeignObjectError, match=r"a::away\(\): an object of Array") as e:
        ops.away(X)
    assert e.value.operator == "a::away"


def test_a_handler_may_close_the_operator_that_it_answers_for(lib, ops):
    class Close(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            lib.close()
            return args[0]

    f = ops.f.default
    with Close():
        assert f(X) is X
        with pytest.raises(errors.OperatorGoneError):
            f(X)
    assert modes.mode_stack() == ()


# --- who is asked ---------------------------------------------------------------------------------


def test_a_mode_that_is_an_argument_is_a_value_like_any_other(ops):
    op = HigherOrderOperator("takes_a_mode")
    try:
        op.py_impl("CompositeExplicitAutograd")(lambda mode: "done")
        assert op(Text()) == "done"
    finally:
        op.close()


def test_a_mode_from_elsewhere_is_refused_whatever_way_the_call_takes(ops):
    f = ops.any.default
    modes.push_mode(foreign("Text"))
    try:
        for call in (
            lambda: f(X),
            lambda: f.call_for_dispatch_key("Python", X),
            lambda: f.redispatch(md.DispatchKeySet("Python", "CPU"), X),
            lambda: f.call_boxed([X]),
        ):
            with pytest.raises(errors.ForeignObjectError, match=r"a::any\(\): an object of Text"):
                call()
    finally:
        modes.pop_mode()


def test_disabled_modes_from_elsewhere_are_in_nobodys_way(ops):
    modes.push_mode(foreign("Text"))
    modes.push_pre_dispatch_mode(foreign("Text"))
    try:
        with modes.disable_md_dispatch():
            assert ops.any(X) == "cpu"
    finally:
        modes.pop_mode()
        modes.pop_pre_dispatch_mode()


def test_of_a_handler_that_declines_the_repr_may_fail(ops):
    class Declines(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            return NotImplemented

        def __repr__(self):
            raise KeyError

    with Declines(), pytest.raises(errors.HandlersDeclinedError) as caught:
        ops.any(X)
    assert caught.value.handlers == (f"mode a {Declines.__qualname__}",)
    with Declines():
        assert ops.any(Typed()) == "typed"


def test_fallthrough_is_no_rule(ops):
    with pytest.raises(errors.InvalidArgumentError, match=r"register it with Library\.impl"):
        ops.any.default.py_impl("AutogradCPU")(md.fallthrough_kernel)
    assert ops.any.default.py_kernels == {}


# --- what is found --------------------------------------------------------------------------------


def test_an_operator_is_found_whatever_its_names_are_here(registry, lib):
    lib.define("f.schemas(str x) -> str")
    md.Library("find", "DEF", registry=registry).define("find(str x) -> str")
    for name in ("a::f.schemas", "find::find"):
        assert registry.ops.find(name).name == name
    with pytest.raises(errors.OperatorNotFoundError, match="higher_order::no"):
        registry.ops.find("higher_order::no")
