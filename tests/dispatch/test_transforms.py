"""Transforms: their stack, the calls that reach them, and rules for a key, a mode and a
transform.
"""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
from places import PLACES, run_at
from runs import in_another_run

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context import guards, modes
from mdispatch.dispatch.context.modes import DispatchMode, DispatchModeKey, mode_stack
from mdispatch.dispatch.context.transforms import (
    FunctionalMode,
    Transform,
    TransformType,
    are_transforms_active,
    transform_stack,
)
from mdispatch.keys import DispatchKey

pytestmark = pytest.mark.either_binding

FRONT = "FuncTorchDynamicLayerFrontMode"


class Array:
    __dispatch_keys__ = ("CPU", "AutogradCPU")


X = Array()


class Log(Transform):
    """Notes each call that it sees, and goes on with it."""

    def __init__(self, seen, name="transform"):
        self.seen = seen
        self.name = name

    def process(self, op, args, kwargs):
        self.seen.append(self.name)
        return op(*args, **kwargs)


class Vmap(Log):
    transform_type = TransformType.Vmap


class LogMode(DispatchMode):
    def __init__(self, seen):
        self.seen = seen

    def __md_dispatch__(self, op, types, args, kwargs):
        self.seen.append("mode")
        return op(*args, **kwargs)


@pytest.fixture
def ops(registry):
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("f(Tensor x, int n=1, *, str how='') -> Any")
    lib.impl("f", lambda x, n, how: ("cpu", n, how), "CPU")
    lib.define("none(int n) -> int")
    lib.impl("none", lambda n: n + 1)
    return registry.ops.t


def assert_as_before():
    assert transform_stack() == ()
    assert not are_transforms_active()
    assert guards.included_keys() == guards.DEFAULT_INCLUDED
    assert guards.excluded_keys() == guards.DEFAULT_EXCLUDED


# --- the stack ------------------------------------------------------------------------------------


def test_a_transform_sees_every_call_in_its_block_and_none_after_it(ops):
    seen = []
    with Log(seen) as transform:
        assert transform_stack() == (transform,)
        assert are_transforms_active()
        assert guards.included_keys().has(FRONT)
        assert ops.f(X, 2, how="a") == ("cpu", 2, "a")
        assert ops.none(1) == 2
    assert ops.f(X) == ("cpu", 1, "")
    assert seen == ["transform"] * 2
    assert_as_before()


def test_process_gets_the_operator_and_every_argument_and_gives_the_result(ops):
    class Show(Transform):
        def process(self, op, args, kwargs):
            return op, args, kwargs

    with Show():
        assert ops.f(X) == (ops.f.default, (X, 1), {"how": ""})


def test_the_innermost_transform_is_asked_first_and_its_calls_go_to_the_next(ops):
    seen = []
    with Log(seen, "outer"), Log(seen, "inner"):
        ops.f(X)
    assert seen == ["inner", "outer"]


def test_a_transform_can_be_there_twice(ops):
    seen = []
    twice = Log(seen)
    with twice, twice:
        assert transform_stack() == (twice, twice)
        ops.f(X)
    assert seen == ["transform"] * 2
    assert_as_before()


def test_a_transform_is_off_the_stack_while_it_works_and_back_also_after_an_error(ops):
    stacks = []

    class Fail(Transform):
        def process(self, op, args, kwargs):
            stacks.append((transform_stack(), guards.included_keys().has(FRONT)))
            raise KeyError("on purpose")

    outer, inner = Log([]), Fail()
    with outer, inner:
        for _ in range(2):
            with pytest.raises(KeyError, match="on purpose"):
                ops.f(X)
        assert transform_stack() == (outer, inner)
    with inner, pytest.raises(KeyError):
        ops.f(X)
    assert stacks == [((outer,), True)] * 2 + [((), False)]
    assert_as_before()


def test_blocks_that_end_out_of_order_leave_the_transforms_that_are_still_open(ops):
    seen = []
    first, second = Log(seen, "first"), Log(seen, "second")
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert transform_stack() == (second,)
    ops.f(X)
    second.__exit__()
    assert seen == ["second"]
    assert_as_before()


def test_what_a_transform_pushes_while_it_works_sees_its_calls(ops):
    seen = []

    class Deeper(Transform):
        def process(self, op, args, kwargs):
            with Log(seen, "pushed"):
                return op(*args, **kwargs)

    with Deeper():
        assert ops.f(X) == ("cpu", 1, "")
    assert seen == ["pushed"]
    assert_as_before()


def test_a_block_that_was_not_begun_here_is_refused(ops):
    transform = Log([])
    with pytest.raises(errors.ModeStackError, match="Log is not on this thread's stack"):
        transform.__exit__()
    with transform:
        raised = in_thread(lambda: transform.__exit__())
        assert isinstance(raised, errors.ModeStackError)
        assert transform_stack() == (transform,)


def in_thread(function):
    """Its result, or the error that it raises, in a thread of its own."""
    result = []

    def run():
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


def test_a_thread_has_a_stack_of_its_own(ops):
    seen = []
    with Log(seen):
        assert in_thread(lambda: (transform_stack(), ops.f(X))) == ((), ("cpu", 1, ""))
        assert seen == []


def test_a_transform_without_process_says_so(ops):
    with Transform(), pytest.raises(NotImplementedError, match="Transform does not define process"):
        ops.f(X)
    assert_as_before()


def test_a_type_of_transform_that_is_none_is_refused_before_anything_changed():
    class Wrong(Transform):
        transform_type = "Vmap"

    with pytest.raises(
        errors.InvalidArgumentError, match="transform_type is Vmap: give a member of"
    ):
        Wrong().__enter__()
    assert_as_before()


# --- its place among the others -------------------------------------------------------------------


def test_transforms_come_before_autograd_and_modes(ops, registry):
    seen = []

    def autograd(key_set, x, n, how):
        seen.append("autograd")
        below = key_set & md.DispatchKeySet.full_after("AutogradCPU")
        return ops.f.default.redispatch(below, x, n, how=how)

    lib = md.Library("t", "IMPL", registry=registry)
    lib.impl("f", autograd, "AutogradCPU", with_keyset=True)
    with LogMode(seen), Log(seen):
        assert ops.f(X) == ("cpu", 1, "")
    with Log(seen), LogMode(seen):
        assert ops.f(X) == ("cpu", 1, "")
    assert seen == ["transform", "autograd", "mode"] * 2
    assert_as_before()


def test_calls_of_a_modes_handler_do_not_come_to_transforms_again(ops):
    seen = []
    with LogMode(seen), Log(seen), Log(seen):
        ops.f(X)
    assert seen == ["transform", "transform", "mode"]


def test_modes_stay_on_their_stack_while_a_transform_works(ops):
    stacks = []

    class Look(Transform):
        def process(self, op, args, kwargs):
            stacks.append((mode_stack(), modes.keys_on_entry() is not None))
            return op(*args, **kwargs)

    with LogMode([]) as mode, Look():
        ops.f(X)
    assert stacks == [((mode,), True)]
    assert modes.keys_on_entry() is None


def test_without_a_transform_calls_pass_its_key_by(ops):
    with guards.IncludeDispatchKeyGuard(FRONT):
        assert ops.f(X) == ("cpu", 1, "")


# --- rules ----------------------------------------------------------------------------------------


def test_a_rule_for_the_type_of_transform_runs_in_place_of_process(ops):
    seen = []

    @ops.f.default.py_impl(TransformType.Vmap)
    def rule(transform, x, n, *, how):
        return transform, transform_stack(), ops.f(x, n + 1, how=how)

    with Vmap(seen) as outer, Vmap(seen) as vmap:
        assert ops.f(X) == (vmap, (outer,), (outer, (), ("cpu", 3, "")))
        ops.none(1)
    assert seen == ["transform"] * 2  # the other operator's
    with Log(seen):
        assert ops.f(X) == ("cpu", 1, "")  # without a type there is no rule
    assert_as_before()


def test_one_function_can_be_for_keys_classes_and_transforms_at_once(ops):
    @ops.f.default.py_impl("CPU", LogMode, TransformType.Vmap, TransformType.Grad)
    def rule(*args, **kwargs):
        return len(args)

    with guards.enable_python_dispatcher():
        assert ops.f(X) == 2
    with LogMode([]):
        assert ops.f(X) == 3
    with Vmap([]):
        assert ops.f(X) == 3


def test_rules_that_are_refused_leave_everything_as_it_was(ops):
    op = ops.f.default

    def register(*places):
        return op.py_impl(*places)(lambda *args, **kwargs: places)

    register("CPU", TransformType.Vmap)
    before = op.py_kernels, dict(op.rules.by_transform)
    with pytest.raises(errors.InvalidArgumentError, match="a TransformType, or a class of modes"):
        in_another_run(register)("CPU", TransformType.Vmap, TransformType.Grad, 3)
    # Also the rule of the earlier run, which would have been replaced.
    assert (op.py_kernels, op.rules.by_transform) == before
    with Vmap([]):
        assert ops.f(X) == ("CPU", TransformType.Vmap)


def test_a_second_rule_from_another_place_is_refused(ops):
    ops.f.default.py_impl(TransformType.Jvp)(lambda *args: 1)
    with pytest.raises(errors.DuplicateRegistrationError, match=r"for TransformType\.Jvp already"):
        ops.f.default.py_impl(TransformType.Jvp)(lambda *args: 2)


def test_there_is_one_object_of_each_type_of_transform():
    for name in ("Grad", "Jvp", "Vmap", "Functionalize"):
        kind = getattr(TransformType, name)
        assert repr(kind) == f"TransformType.{name}"
        assert pickle.loads(pickle.dumps(kind)) is copy.deepcopy(kind) is kind


# --- functionalize --------------------------------------------------------------------------------


class Functionalize(Transform):
    transform_type = TransformType.Functionalize


def functionalized(op):
    """Registers a rule that goes on, and returns what it was called by."""

    @op.py_functionalize_impl
    def rule(ctx, x, n, *, how):
        with ctx.redispatch_to_next():
            return ctx.kind, ctx.mode, ctx.transform, op(x, n, how=how)

    return rule


def test_one_rule_serves_the_key_the_mode_and_the_transform(ops):
    functionalized(ops.f.default)
    below = ("cpu", 1, "")
    with guards.enable_python_dispatcher(), guards.IncludeDispatchKeyGuard("Functionalize"):
        assert ops.f(X) == ("key", None, None, below)
    with FunctionalMode() as mode:
        assert ops.f(X) == ("mode", mode, None, below)
    with Functionalize() as transform:
        assert ops.f(X) == ("transform", None, transform, below)
    with mode, transform:
        assert ops.f(X) == ("transform", None, transform, ("mode", mode, None, below))
    with guards.IncludeDispatchKeyGuard("Functionalize"), pytest.raises(errors.MissingKernelError):
        ops.f(X)  # at its key it is a Python kernel
    assert_as_before()


def test_the_function_is_given_back_and_what_cannot_be_called_is_refused(ops):
    op = ops.f.default
    with pytest.raises(errors.InvalidArgumentError, match="must be callable"):
        op.py_functionalize_impl(3)
    rule = functionalized(op)
    assert rule.__name__ == "rule"
    assert set(op.py_kernels) == {DispatchKey.Functionalize}


def test_a_rule_for_all_three_is_registered_at_all_or_at_none(ops):
    op = ops.f.default
    op.py_impl(TransformType.Functionalize)(lambda *args: 1)
    with pytest.raises(errors.DuplicateRegistrationError):
        functionalized(op)
    assert op.py_kernels == {}
    assert op.rules.by_class == {}


def test_the_functional_mode_lets_operators_without_a_rule_be(ops):
    with FunctionalMode(), LogMode(seen := []):
        assert ops.f(X) == ("cpu", 1, "")
        assert [type(mode) for mode in mode_stack()] == [FunctionalMode, LogMode]
    assert seen == ["mode"]
    assert FunctionalMode.mode_key == DispatchModeKey.FUNCTIONAL


# --- four places ----------------------------------------------------------------------------------

MODULE = """
import mdispatch as md
from mdispatch.context import Transform, TransformType

class Array:
    __dispatch_keys__ = "CPU"

class Count(Transform):
    transform_type = TransformType.Vmap
    calls = 0

    def process(self, op, args, kwargs):
        self.calls += 1
        return op(*args, **kwargs)

lib = md.Library("t", "DEF")
lib.define("f(Tensor x) -> str")
lib.define("g(Tensor x) -> str")
for name in "fg":
    lib.impl(name, lambda x: "cpu", "CPU")
md.ops.t.g.default.py_impl(TransformType.Vmap)(lambda transform, x: "rule " + md.ops.t.g(x))
"""

BODY = """
import threading
import mdispatch as md
from feature import Array, Count
from mdispatch.context import transform_stack

seen = []
with Count() as outer, Count() as inner:
    calls = md.ops.t.f(Array()), md.ops.t.g(Array())
    thread = threading.Thread(target=lambda: seen.append(len(transform_stack())))
    thread.start()
    thread.join()
result = {"calls": calls, "counts": (outer.calls, inner.calls), "elsewhere": seen,
          "left": transform_stack()}
"""


@pytest.mark.parametrize("place", PLACES)
def test_transforms_work_in_every_kind_of_interpreter(place, tmp_path):
    assert run_at(place, MODULE, BODY, tmp_path) == {
        "calls": ("cpu", "rule rule cpu"),
        "counts": (1, 1),
        "elsewhere": [0],
        "left": (),
    }
