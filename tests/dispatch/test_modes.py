"""Modes and types that handle calls: stacks, order, nesting, declined calls, and the snapshot."""

from __future__ import annotations

import threading

import pytest
from kinds import run_main
from places import PLACES, run_at
from runs import in_another_run

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch import call_py
from mdispatch.dispatch.context import guards, modes
from mdispatch.dispatch.context.hermetic import SafeObject
from mdispatch.dispatch.context.modes import (
    DispatchMode,
    DispatchModeKey,
    current_mode,
    mode_stack,
    push_mode,
)

pytestmark = pytest.mark.either_binding


class Array:
    __dispatch_keys__ = ("CPU", "AutogradCPU")


class Log(DispatchMode):
    """Notes each call that it sees, and goes on with it."""

    def __init__(self, seen, name="mode"):
        self.seen = seen
        self.name = name

    def __md_dispatch__(self, op, types, args, kwargs):
        self.seen.append(self.name)
        return op(*args, **kwargs)

    def __repr__(self):
        return self.name


class Decline(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return NotImplemented


class Typed:
    """Its type answers calls."""

    __dispatch_keys__ = "CPU"

    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        return cls.__name__, [each.__name__ for each in types], len(args), sorted(kwargs)


class Sub(Typed):
    pass


class Quiet(Typed):
    """Removes the handler that its base has."""

    __md_dispatch__ = None


class Declines(Typed):
    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        return NotImplemented


@pytest.fixture
def ops(registry):
    lib = md.Library("m", "DEF", registry=registry)
    lib.define("f(Tensor x, int n=1, *, str how='') -> Any")
    lib.impl("f", lambda x, n, how: ("cpu", n, how), "CPU")
    lib.define("many(Tensor[] x, Tensor? y=None) -> Any")
    lib.impl("many", lambda x, y: "cpu", "CPU")
    lib.define("none(int n) -> int")
    lib.impl("none", lambda n: n + 1)
    return registry.ops.m


X = Array()


# --- the stack ------------------------------------------------------------------------------------


def test_a_mode_sees_every_call_in_its_block_and_none_after_it(ops):
    seen = []
    with Log(seen) as mode:
        assert isinstance(mode, Log)
        assert ops.f(X, 2) == ("cpu", 2, "")
        assert ops.none(1) == 2  # also without tensors
    assert ops.f(X) == ("cpu", 1, "")
    assert seen == ["mode", "mode"]


def test_a_handler_gets_the_operator_and_every_argument(ops):
    class Show(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            return op, types, args, kwargs

    with Show():
        assert ops.f(X) == (ops.f.default, (), (X, 1), {"how": ""})
        assert ops.f(x=X, how="a", n=True) == (ops.f.default, (), (X, 1), {"how": "a"})


def test_the_innermost_mode_is_asked_first_and_its_calls_go_to_the_next(ops):
    seen = []
    with Log(seen, "outer"), Log(seen, "inner"):
        ops.f(X)
    assert seen == ["inner", "outer"]


def test_a_mode_can_be_there_twice(ops):
    seen = []
    mode = Log(seen)
    with mode, mode:
        assert mode_stack() == (mode, mode)
        ops.f(X)
    assert seen == ["mode", "mode"]
    assert mode_stack() == ()


def test_a_mode_is_off_the_stack_while_its_handler_runs_and_back_also_after_an_error(ops):
    stacks = []

    class Fail(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            stacks.append(mode_stack())
            raise KeyError("on purpose")

    mode = Fail()
    with mode:
        for _ in range(2):
            with pytest.raises(KeyError, match="on purpose"):
                ops.f(X)
        assert mode_stack() == (mode,)
    assert stacks == [(), ()]
    assert guards.included_keys() == guards.DEFAULT_INCLUDED
    assert guards.excluded_keys() == guards.DEFAULT_EXCLUDED


def test_blocks_that_end_out_of_order_leave_the_modes_that_are_still_open(ops):
    seen = []
    first, second = Log(seen, "first"), Log(seen, "second")
    first.__enter__()
    second.__enter__()
    first.__exit__()
    ops.f(X)
    assert (seen, mode_stack()) == (["second"], (second,))
    second.__exit__()
    assert guards.included_keys() == guards.DEFAULT_INCLUDED


def test_a_mode_that_a_handler_pushes_and_leaves_lies_below_the_handler_s_own(ops):
    seen = []

    class Leaves(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            push_mode(left)
            return op(*args, **kwargs)

    left, leaves = Log(seen), Leaves()
    with leaves:
        ops.f(X)
        assert mode_stack() == (left, leaves)
        assert modes.pop_mode() is leaves
        assert current_mode() is left
        push_mode(leaves)
    assert modes.pop_mode() is left
    assert seen == ["mode"]
    assert current_mode() is None


def test_infrastructure_modes_lie_below_all_others_in_their_order(ops):
    seen = []
    kinds = (DispatchModeKey.FUNCTIONAL, DispatchModeKey.FAKE, DispatchModeKey.PROXY)
    infra = [Log(seen, kind) for kind in kinds]
    for mode in infra:
        mode.mode_key = mode.name
    user = Log(seen, "user")
    push_mode(user)
    for mode in infra:
        push_mode(mode)
    ops.f(X)
    assert seen == ["user", "FUNCTIONAL", "PROXY", "FAKE"]
    assert [mode.name for mode in mode_stack()] == ["FAKE", "PROXY", "FUNCTIONAL", "user"]
    ops.f(X)  # and they are on the stack again
    assert [mode.name for mode in mode_stack()] == ["FAKE", "PROXY", "FUNCTIONAL", "user"]
    assert modes.pop_mode("PROXY").name == "PROXY"
    assert [modes.pop_mode().name for _ in range(3)] == ["user", "FUNCTIONAL", "FAKE"]
    assert guards.included_keys() == guards.DEFAULT_INCLUDED


def test_a_second_infrastructure_mode_of_a_kind_is_refused_and_nothing_changes():
    class Fake(Log):
        mode_key = DispatchModeKey.FAKE

    with Fake([]) as mode:
        with pytest.raises(errors.ModeStackError, match="FAKE is on the stack already"):
            push_mode(Fake([]))
        assert mode_stack() == (mode,)


@pytest.mark.parametrize("what", [None, "a mode", Log, object()])
def test_only_modes_go_onto_the_stack(what):
    with pytest.raises(errors.InvalidArgumentError, match="takes a DispatchMode"):
        push_mode(what)
    assert mode_stack() == ()


def test_a_kind_that_does_not_exist_is_refused():
    mode = Log([])
    mode.mode_key = "OTHER"
    with pytest.raises(errors.InvalidArgumentError, match="FAKE, PROXY, FUNCTIONAL"):
        push_mode(mode)


def test_there_is_nothing_to_pop_from_an_empty_stack():
    with pytest.raises(errors.ModeStackError, match="no mode on its stack"):
        modes.pop_mode()
    with pytest.raises(errors.ModeStackError, match="no mode of kind FAKE"):
        modes.pop_mode("FAKE")
    mode = Log([])
    push_mode(mode)
    modes.pop_mode()
    with pytest.raises(errors.ModeStackError, match="not on this thread's stack"):
        mode.__exit__()


def test_a_stack_belongs_to_its_thread(ops):
    seen, stacks, ends = [], [], []

    def other():
        stacks.append(mode_stack())
        ops.f(X)
        try:
            mode.__exit__()
        except errors.ModeStackError as error:
            ends.append(error)

    with Log(seen) as mode:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert (stacks, seen, len(ends)) == ([()], [], 1)


def test_a_mode_without_a_handler_says_so(ops):
    class Empty(DispatchMode):
        pass

    with Empty(), pytest.raises(NotImplementedError, match="Empty does not define __md_dispatch__"):
        ops.f(X)


def test_disabled_neither_modes_nor_types_are_asked(ops):
    seen = []
    with Log(seen):
        assert modes.is_md_dispatch_enabled()
        with modes.disable_md_dispatch():
            assert not modes.is_md_dispatch_enabled()
            assert ops.f(Sub()) == ("cpu", 1, "")
        assert modes.is_md_dispatch_enabled()
    assert not modes.is_md_dispatch_enabled()
    assert seen == []


# --- types ----------------------------------------------------------------------------------------


def test_a_type_with_a_handler_answers_its_calls(ops):
    assert ops.f(Typed(), how="x") == ("Typed", ["Typed"], 2, ["how"])
    assert md.key_set_of(Typed()) == md.DispatchKeySet("CPU", "Python", "PythonTLSSnapshot")


def test_types_are_asked_in_the_order_of_arguments_subclasses_first(ops):
    class Other:
        @classmethod
        def __md_dispatch__(cls, op, types, args, kwargs):
            return [each.__name__ for each in types]

    assert ops.many([X, Typed(), Typed()], Sub())[1] == ["Sub", "Typed"]
    assert ops.many([Other(), Typed()], Sub()) == ["Other", "Sub", "Typed"]
    assert ops.many([Typed(), Other(), Sub()])[:2] == ("Sub", ["Sub", "Typed", "Other"])


def test_a_handler_alone_makes_a_tensor(ops):
    class Bare:
        @classmethod
        def __md_dispatch__(cls, op, types, args, kwargs):
            return "bare"

    assert ops.f(Bare()) == "bare"
    md.register_type(Bare, "CUDA")
    assert md.key_set_of(Bare()) == md.DispatchKeySet("CUDA", "Python", "PythonTLSSnapshot")


def test_a_mode_is_no_tensor_and_a_type_may_have_attributes_of_any_name(ops):
    class Layer(Typed):
        is_mode = True

    assert ops.f(Layer()) == ("Layer", ["Layer"], 2, ["how"])
    with pytest.raises(md.errors.ArgumentError):
        ops.f(Decline())


def test_a_subclass_can_take_the_handler_away(ops):
    assert ops.f(Quiet()) == ("cpu", 1, "")


def test_nobody_is_told_of_a_type_whose_handler_was_taken_away(ops):
    told = []

    class Tell(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            told.append(types)
            return op(*args, **kwargs)

    for way in (ops.many, lambda *args: call_py.call(ops.many.default, args, {})):
        with Tell():
            assert way([Quiet(), X], Quiet()) == "cpu"
        with Tell():
            assert way([Quiet(), Typed()])[:2] == ("Typed", ["Typed"])
        with pytest.raises(errors.HandlersDeclinedError) as caught:
            way([Declines(), Quiet()])
        assert len(caught.value.handlers) == 1
    assert told == [(), (Typed,)] * 2


def test_the_mode_is_asked_before_the_types_and_told_of_them(ops):
    told = []

    class Tell(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            told.append(types)
            return op(*args, **kwargs)

    with Tell():
        assert ops.f(Sub())[0] == "Sub"
    assert told == [(Sub,)]


def test_what_a_mode_declines_goes_to_the_types_not_to_the_modes_outside(ops):
    seen = []
    with Log(seen), Decline():
        assert ops.f(Sub())[0] == "Sub"
    assert seen == []


def test_what_one_type_declines_goes_to_the_next(ops):
    assert ops.many([Typed(), Declines()])[:2] == ("Typed", ["Declines", "Typed"])


def test_when_everybody_declines_the_error_names_all_that_were_asked(ops):
    with Decline() as mode, pytest.raises(errors.HandlersDeclinedError) as caught:
        ops.f(Declines())
    assert caught.value.operator == "m::f"
    assert caught.value.handlers == (f"mode {mode!r}", f"type {__name__}.Declines")
    assert isinstance(caught.value, TypeError)


# --- rules ----------------------------------------------------------------------------------------


def test_a_rule_for_an_operator_and_a_class_of_modes_stands_for_its_handler(ops):
    seen = []
    rules = ops.f.default.rules
    handle = rules.add_class(Log, lambda mode, op, types, args, kwargs: (mode, op), full=True)
    with Log(seen) as mode:
        assert ops.f(X) == (mode, ops.f.default)
        assert ops.none(1) == 2
    handle.close()
    handle.close()
    with Log(seen):
        assert ops.f(X) == ("cpu", 1, "")
    assert seen == ["mode", "mode"]


def test_py_impl_registers_one_function_for_keys_and_classes_at_once(ops):
    op = ops.f.default

    @op.py_impl("AutogradCPU", Log, Typed)
    def rule(*args, **kwargs):
        return args, kwargs

    mode = Log([])
    with mode:
        assert op(X) == ((mode, X, 1), {"how": ""})
    value = Typed()
    assert op(value) == ((value, 1), {"how": ""})
    assert op(X) == ("cpu", 1, "")  # keys count only for the Python dispatcher
    with guards.enable_python_dispatcher():
        assert op(X) == ((X, 1), {"how": ""})
    assert op.py_kernels == {md.DispatchKey.AutogradCPU: rule}


def test_py_impl_registers_nothing_when_one_of_its_places_is_refused(ops):
    op = ops.f.default
    for refused in ("Python", "Undefined", int, 3):
        with pytest.raises(errors.InvalidArgumentError):
            op.py_impl("CPU", Log, refused)(lambda *args: None)
    assert (op.py_kernels, op.rules.by_class) == ({}, {})
    with pytest.raises(errors.InvalidArgumentError, match="needs a dispatch key or a class"):
        op.py_impl()
    with pytest.raises(errors.InvalidArgumentError, match="must be callable"):
        op.py_impl("CPU")(None)


def test_a_second_rule_is_refused_with_both_places(ops):
    op = ops.f.default
    op.py_impl("CPU")(lambda *args: "first")
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        op.py_impl("CPU")(lambda *args: "second")
    assert caught.value.first != caught.value.second
    assert __file__ in caught.value.first
    assert op.py_kernels[md.DispatchKey.CPU]() == "first"


def test_a_rule_of_a_module_that_is_run_again_replaces_the_earlier_one(ops):
    def register(turn):
        ops.f.default.py_impl("CPU")(lambda *args: turn)

    register(0)
    last = in_another_run(register)
    last(1)
    with pytest.raises(errors.DuplicateRegistrationError):
        last(2)
    assert ops.f.default.py_kernels[md.DispatchKey.CPU]() == 1


def test_a_rule_holds_for_subclasses_until_one_has_a_handler_of_its_own(ops):
    class Plain(Sub):
        pass

    class Own(Sub):
        @classmethod
        def __md_dispatch__(cls, op, types, args, kwargs):
            return "own"

    ops.f.default.py_impl(Typed)(lambda *args, **kwargs: "rule")
    assert [ops.f(each()) for each in (Typed, Plain, Own)] == ["rule", "rule", "own"]


def test_rules_end_with_the_definition(registry):
    lib = md.Library("m", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    old = registry.ops.m.f.default
    old.py_impl("CPU")(lambda x: "old")
    lib.close()
    with pytest.raises(errors.OperatorGoneError):
        old.py_impl("CUDA")(lambda x: "old")
    again = md.Library("m", "FRAGMENT", registry=registry)
    again.define("f(Tensor x) -> Any")
    new = registry.ops.m.f.default
    new.py_impl("CUDA")(lambda x: "new")
    assert set(new.py_kernels) == {md.DispatchKey.CUDA}
    old.rules  # noqa: B018  # of an operator that is gone: that one's, and not the new one's
    assert set(new.py_kernels) == {md.DispatchKey.CUDA}


# --- the Python dispatcher ------------------------------------------------------------------------


def test_python_kernels_take_part_in_the_table_by_its_rules(registry):
    lib = md.Library("m", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    lib.impl("f", lambda x: "composite")
    op = registry.ops.m.f.default
    op.py_impl("CPU")(lambda x: "python")
    with guards.enable_python_dispatcher():
        # Like any kernel, the Python kernel at CPU keeps the composite kernel away from
        # AutogradCPU.
        assert op(X) == "python"
    assert op(X) == "composite"


def test_what_a_kernel_redispatches_comes_to_the_python_kernels_again(registry):
    lib = md.Library("m", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    below = md.DispatchKeySet.full_after("AutogradCPU")
    op = registry.ops.m.f.default
    lib.impl(
        "f",
        lambda ks, x: ["autograd", *op.redispatch(ks & below, x)],
        "AutogradCPU",
        with_keyset=True,
    )
    lib.impl("f", lambda x: ["cpu"], "CPU")
    op.py_impl("CPU")(lambda x: ["python"])
    with guards.enable_python_dispatcher():
        assert op(X) == ["autograd", "python"]
    assert op(X) == ["autograd", "cpu"]


def test_without_any_kernel_the_python_dispatcher_says_what_is_missing(registry):
    md.Library("m", "DEF", registry=registry).define("f(Tensor x) -> Any")
    with guards.enable_python_dispatcher(), pytest.raises(errors.MissingKernelError) as caught:
        registry.ops.m.f(X)
    assert caught.value.key == "CPU"


# --- the snapshot ---------------------------------------------------------------------------------


def test_a_rule_in_a_safe_object_is_the_function_in_it(registry):
    lib = md.Library("m", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    op = registry.ops.m.f.default
    with SafeObject(lambda *args: "rule") as parcel:
        md.register_dispatch_rule(op, Log, parcel, lib=lib)
        with Log([]):
            assert op(X) == "rule"


def test_restored_keys_are_those_of_the_entry_whatever_is_included_or_excluded_in_between(registry):
    md.Library("m", "DEF", registry=registry).define("f(Tensor x) -> Any")
    every = md.DispatchKeySet.full()
    without_modes = every - modes.PYTHON

    class Again(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            before = guards.included_keys(), guards.excluded_keys()
            for around in (md.context.ExcludeDispatchKeyGuard, md.context.IncludeDispatchKeyGuard):
                with around(without_modes), modes.restore_keys_on_entry():
                    seen.append((guards.included_keys(), guards.excluded_keys()))
            assert (guards.included_keys(), guards.excluded_keys()) == before

    seen = []
    with md.context.ExcludeDispatchKeyGuard("Negative"), Again():
        entry = guards.included_keys() - modes.PYTHON, guards.excluded_keys()
        registry.ops.m.f(X)
    assert [(included - modes.PYTHON, excluded) for included, excluded in seen] == [entry] * 2


def test_restored_keys_spare_no_part_of_a_key_that_was_excluded_in_between(registry):
    md.Library("m", "DEF", registry=registry).define("f(Tensor x) -> Any")

    class Again(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            with md.context.ExcludeDispatchKeyGuard("AutogradCPU"), modes.restore_keys_on_entry():
                return guards.excluded_keys()

    with md.context.ExcludeDispatchKeyGuard("AutogradCUDA"), Again():
        assert registry.ops.m.f(X) == guards.excluded_keys()


def test_a_handler_runs_below_autograd_and_can_restore_the_keys_of_the_call(registry):
    lib = md.Library("m", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    op = registry.ops.m.f.default
    below = md.DispatchKeySet.full_after("AutogradCPU")
    ran = []

    def autograd(keys, x):
        ran.append("autograd")
        with (
            md.context.AutoDispatchBelowAutograd(),
            md.context.ExcludeDispatchKeyGuard("FuncTorchBatched"),
        ):
            return op.redispatch(keys & below, x)

    lib.impl("f", autograd, "AutogradCPU", with_keyset=True)
    lib.impl("f", lambda x: ran.append("cpu"), "CPU")

    class Again(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            inside.append(modes.keys_on_entry())
            ran.append("mode")
            op(*args)
            with modes.restore_keys_on_entry():
                op(*args)
                assert not guards.excluded_keys().has("FuncTorchBatched")

    inside = []
    with md.context.ExcludeDispatchKeyGuard("Conjugate"), Again():
        outside = (guards.included_keys(), guards.excluded_keys())
        op(X)
    assert ran == ["autograd", "mode", "cpu", "autograd", "cpu"]
    assert inside == [outside]
    assert modes.keys_on_entry() is None


def test_outside_of_a_handler_there_is_nothing_to_restore():
    with pytest.raises(errors.ModeStackError, match="no handler of a mode or a type is running"):
        modes.restore_keys_on_entry()


# --- before dispatch ------------------------------------------------------------------------------


def test_a_mode_before_dispatch_sees_calls_before_autograd(registry):
    lib = md.Library("m", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    ran = []
    op = registry.ops.m.f.default
    below = md.DispatchKeySet.full_after("AutogradCPU")

    def autograd(keys, x):
        ran.append("autograd")
        return op.redispatch(keys & below, x)

    lib.impl("f", autograd, "AutogradCPU", with_keyset=True)
    lib.impl("f", lambda x: ran.append("cpu"), "CPU")
    proxy, functional = Log(ran, "proxy"), Log(ran, "functional")
    proxy.mode_key, functional.mode_key = DispatchModeKey.PROXY, DispatchModeKey.FUNCTIONAL
    modes.push_pre_dispatch_mode(functional)
    modes.push_pre_dispatch_mode(proxy)
    assert modes.pre_dispatch_modes() == (proxy, functional)
    op(X)
    assert ran == ["functional", "proxy", "autograd", "cpu"]
    assert modes.pop_pre_dispatch_mode() is functional
    assert modes.pop_pre_dispatch_mode() is proxy
    assert guards.included_keys() == guards.DEFAULT_INCLUDED


def test_before_dispatch_there_is_one_of_a_kind_or_one_alone():
    alone, functional, fake = Log([]), Log([]), Log([])
    functional.mode_key, fake.mode_key = DispatchModeKey.FUNCTIONAL, DispatchModeKey.FAKE
    with pytest.raises(errors.InvalidArgumentError, match="FAKE cannot be a pre-dispatch mode"):
        modes.push_pre_dispatch_mode(fake)
    for first, second in ((alone, functional), (functional, alone), (functional, functional)):
        modes.push_pre_dispatch_mode(first)
        with pytest.raises(errors.ModeStackError):
            modes.push_pre_dispatch_mode(second)
        assert modes.pop_pre_dispatch_mode() is first
    with pytest.raises(errors.ModeStackError, match="no pre-dispatch mode"):
        modes.pop_pre_dispatch_mode()


def test_what_the_mode_before_dispatch_declines_nobody_else_is_asked(ops):
    mode = Decline()
    modes.push_pre_dispatch_mode(mode)
    try:
        with pytest.raises(errors.HandlersDeclinedError) as caught:
            ops.f(Sub())
        assert caught.value.handlers == (f"mode {mode!r}",)
    finally:
        modes.pop_pre_dispatch_mode()


# --- everywhere -----------------------------------------------------------------------------------

MODULE = """
import mdispatch as md

class Array:
    __dispatch_keys__ = ("CPU", "AutogradCPU")

class Typed:
    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        return cls.__name__

lib = md.Library("m", "DEF")
lib.define("f(Tensor x, int n=1) -> Any")
lib.impl("f", lambda x, n: n, "CPU")
"""

BODY = """
import mdispatch as md
from mdispatch.dispatch.context.hermetic import SafeObject
from feature import Array, Typed

class Count(md.context.DispatchMode):
    calls = 0
    def __md_dispatch__(self, op, types, args, kwargs):
        self.calls += 1
        return op(*args, **kwargs)

f = md.ops.m.f
result = {"plain": f(Array(), 3), "type": f(Typed()), "held": f(SafeObject(Array()), 4)}
with Count() as outer, Count() as inner:
    result["counted"] = (f(Array(), 5), outer.calls, inner.calls)
f.default.py_impl(Count)(lambda mode, x, n: -n)
f.default.py_impl("AutogradCPU")(lambda x, n: "python")
with Count():
    result["rule"] = f(Array(), 6)
with md.context.enable_python_dispatcher():
    result["python"] = f(Array())
"""


@pytest.mark.parametrize("place", PLACES)
def test_modes_types_and_rules_work_in_every_kind_of_interpreter(place, tmp_path):
    assert run_at(place, MODULE, BODY, tmp_path) == {
        "plain": 3,
        "type": "Typed",
        "held": 4,
        "counted": (5, 1, 1),
        "rule": -6,
        "python": "python",
    }


# --- what is not at home --------------------------------------------------------------------------

FOREIGN = """
import pickle
from pathlib import Path
import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context.hermetic import SafeObject

class Array:
    __dispatch_keys__ = ("CPU", "AutogradCPU")

class Mode(md.context.DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return op(*args, **kwargs)

ran = []
lib = md.Library("m", "DEF")
lib.define("f(Tensor x) -> Any")
lib.impl("f", lambda x: ran.append("autograd"), "AutogradCPU")
lib.impl("f", lambda x: ran.append("cpu"), "CPU")
"""

REFUSED = """
import pickle
from pathlib import Path
import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context.hermetic import SafeObject
from feature import Array, Mode, ran

def refusal(call):
    try:
        call()
    except errors.ForeignObjectError as error:
        return type(error).__name__, error.operator, error.home != error.here, list(ran)

held = pickle.loads(Path(FOLDER, "held").read_bytes())
f = md.ops.m.f
result = {"argument": refusal(lambda: f(held["array"]))}
md.context.push_mode(held["mode"])
result["mode"] = refusal(lambda: f(Array()))
md.context.pop_mode()
md.context.push_pre_dispatch_mode(held["mode"])
result["before dispatch"] = refusal(lambda: f(Array()))
with md.context.ExcludeDispatchKeyGuard("PreDispatch"), Mode():  # which does not ask it
    result["below it"] = refusal(lambda: f(Array()))
md.context.pop_pre_dispatch_mode()
f.default.rules.add_class(Mode, held["rule"], full=True)
with Mode():
    result["rule"] = refusal(lambda: f(Array()))
f(Array())
result["ran"] = ran
"""

MAIN = """
    place, folder, body = args
    import sys, pickle
    sys.path.insert(0, folder)
    import feature
    from mdispatch.dispatch.context.hermetic import SafeObject
    held = {"array": feature.Array(), "mode": feature.Mode(), "rule": lambda *args: None}
    held = {name: SafeObject(each) for name, each in held.items()}
    Path(folder, "held").write_bytes(pickle.dumps(held))
    done(**results(start(place, body + "\\nreport(**result)", 1, Path(folder)))[0])
"""


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_call_with_something_from_elsewhere_is_refused_before_anything_ran(place, tmp_path):
    (tmp_path / "feature.py").write_text(FOREIGN)
    values = run_main(MAIN, place, str(tmp_path), REFUSED)
    refused = ("ForeignObjectError", "m::f", True, [])
    assert values["argument"] == values["mode"] == values["rule"] == refused
    assert values["before dispatch"] == values["below it"] == refused
    assert values["ran"] == ["autograd"]


KERNEL = """
    folder, body = args
    import sys
    sys.path.insert(0, folder)
    import feature
    kernel = md.default_registry().dispatcher.entry("m::f").kernels[md.DispatchKey.AutogradCPU][0]
    # CPython finds attributes by the version of a class, and each interpreter counts versions from
    # the same number on. So the class of this kernel needs a version that no class of the other
    # interpreter ever had. A class that changes gets a higher one, and from CPython 3.13 on none
    # after 1,000 changes.
    for _ in range(10_000):
        type(kernel).changed = True
        del type(kernel).changed
        kernel.definition
    body = f"address = {id(kernel)}\\n" + body + "\\nreport(**result)"
    done(**results(start("shared-gil", body, 1, Path(folder)))[0])
"""

REACHED = """
import ctypes
import feature
import mdispatch as md
from mdispatch import errors

# What two interpreters under one GIL can do to each other: a pointer of one used by the other.
foreign = ctypes.cast(address, ctypes.py_object).value
md.default_registry().dispatcher.entry("m::f").callables = (foreign,)
try:
    md.ops.m.f(feature.Array())
except errors.ForeignObjectError as error:
    home = f"interpreter 0 of process {__import__('os').getpid()}"
    result = {"told": error.home == home and home in str(error), "operator": error.operator}
result["ran"] = feature.ran
"""


@pytest.mark.shared
def test_a_kernel_of_another_interpreter_is_not_called(tmp_path):
    (tmp_path / "feature.py").write_text(FOREIGN)
    values = run_main(KERNEL, str(tmp_path), REACHED)
    assert (values["told"], values["operator"], values["ran"]) == (True, "m::f", [])


def test_what_is_at_home_is_opened(ops):
    seen = []
    push_mode(SafeObject(Log(seen)))
    assert ops.f(SafeObject(X), 2) == ("cpu", 2, "")
    assert ops.many([SafeObject(X), X], SafeObject(X)) == "cpu"
    assert isinstance(modes.pop_mode(), Log)
    assert seen == ["mode", "mode"]
    with pytest.raises(errors.ArgumentError, match="takes Tensor for 'x', not SafeObject"):
        ops.f(SafeObject(3))


def test_a_mode_is_no_value_of_a_call(ops):
    assert not md.key_set_of(Decline())
    with pytest.raises(errors.ArgumentError, match="takes Tensor for 'x', not Decline"):
        ops.f(Decline())
