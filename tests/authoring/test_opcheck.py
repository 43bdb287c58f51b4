"""opcheck: an operator does what its registrations say."""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from places import PLACES, run_at
from tapes import Tape

import mdispatch as md
from mdispatch import errors
from mdispatch.authoring.autograd import engines, register_autograd
from mdispatch.authoring.meta import MetaTensor
from mdispatch.authoring.opcheck.check import TESTS, opcheck
from mdispatch.dispatch.context.guards import included_keys
from mdispatch.fake import get_ctx, register_fake


class Vector:
    """An array without a library: it tells its shape and its dtype, and can be copied."""

    __dispatch_keys__ = "CPU"

    def __init__(self, items: list[float], dtype: str = "f8", device: str = "cpu") -> None:
        self.items = items
        self.dtype = dtype
        self.device = device

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.items),)

    def __add__(self, other: Vector) -> Vector:
        return Vector([a + b for a, b in zip(self.items, other.items, strict=True)])


class Shapeless:
    __dispatch_keys__ = "CPU"

    def __init__(self) -> None:
        self.item = 1


class Make:
    """Defines operators in a registry of its own."""

    def __init__(self, registry: md.Registry) -> None:
        self.registry = registry
        self.lib = md.Library("t", "DEF", registry=registry)

    def __call__(
        self,
        schema: str,
        kernel: Callable[..., Any],
        key: str = "CPU",
        fake: Callable[..., Any] | None = None,
    ) -> md.OpOverload:
        name = self.lib.define(schema)
        self.lib.impl(name, kernel, key)
        if fake is not None:
            register_fake(name, fake, lib=self.lib)
        return self.registry.ops.find(name)


@pytest.fixture
def make(registry: md.Registry) -> Make:
    return Make(registry)


def fault(op: Any, *args: Any, test: str = "test_schema") -> str:
    """The message of the test without its head; "" if the operator passes."""
    result = opcheck(op, args, test_utils=test, raise_exception=False)
    assert list(result) == [test]
    if result[test] == "SUCCESS":
        return ""
    error = result[test]
    assert isinstance(error, errors.OpCheckError), error
    assert (error.operator, error.test) == (op.name, test)
    head, _, rest = str(error).partition(f"\n  declared as {op.schema}\n  ")
    assert head == f"{op.name}: {test} failed"
    return rest


# --- the schema -----------------------------------------------------------------------------------


def doubled(x: Vector, *rest: Any) -> Vector:
    return Vector([2 * item for item in x.items])


def double_in_place(x: Vector, *rest: Any) -> Vector:
    x.items[:] = [2 * item for item in x.items]
    return x


def test_an_operator_that_does_what_it_says_passes(make: Make) -> None:
    assert fault(make("new(Tensor x) -> Tensor", doubled), Vector([1.0])) == ""
    in_place = make("in_place(Tensor(a!) x) -> Tensor(a!)", double_in_place)
    assert fault(in_place, Vector([1.0])) == ""


def test_a_write_that_is_not_declared_is_found_and_the_declaration_shown(make: Make) -> None:
    def kernel(x: Vector, y: Vector) -> Vector:
        y.items[0] = 7.0
        return doubled(x)

    op = make("f(Tensor x, Tensor y) -> Tensor", kernel)
    assert fault(op, Vector([1.0]), Vector([2.0])) == (
        "'y' was written to, but is declared as 'Tensor y': declare 'Tensor(a!) y', or write to a "
        "copy"
    )


def test_a_write_to_one_of_a_list_is_found(make: Make) -> None:
    def kernel(x: list[Vector]) -> None:
        x[1].items[0] = 7.0

    assert "'Tensor(a!)[] x'" in fault(
        make("f(Tensor[] x) -> ()", kernel), [Vector([1]), Vector([2])]
    )
    declared = make("g(Tensor(a!)[] x) -> ()", kernel)
    assert fault(declared, [Vector([1]), Vector([2])]) == ""


def test_a_declared_write_need_not_happen(make: Make) -> None:
    assert fault(make("f(Tensor(a!) x) -> Tensor", doubled), Vector([1.0])) == ""


def test_an_argument_that_shares_memory_with_one_written_to_is_written_to_with_it(
    make: Make,
) -> None:
    op = make("f(Tensor(a!) x, Tensor y) -> Tensor(a!)", double_in_place)
    x = Vector([1.0])
    assert fault(op, x, x) == ""
    assert fault(op, x, Vector(x.items)) == ""


def test_a_return_value_that_is_an_argument_is_found(make: Make) -> None:
    op = make("f(Tensor x, Tensor y) -> Tensor", lambda x, y: y)
    assert fault(op, Vector([1.0]), Vector([1.0])).startswith("the return value is 'y', but is ")
    declared = make("g(Tensor x, Tensor(a) y) -> Tensor(a)", lambda x, y: y)
    assert fault(declared, Vector([1.0]), Vector([1.0])) == ""
    wrong = make("h(Tensor(b) x, Tensor(a) y) -> Tensor(a)", lambda x, y: x)
    assert "alias set b for both" in fault(wrong, Vector([1.0]), Vector([1.0]))


def test_a_return_value_that_shares_the_memory_of_an_argument_is_found(make: Make) -> None:
    op = make("f(Tensor x) -> Tensor", lambda x: Vector(x.items))
    assert fault(op, Vector([1.0])).startswith("the return value shares memory with 'x'")
    in_list = make("g(Tensor x) -> Tensor[]", lambda x: [doubled(x), Vector(x.items)])
    assert fault(in_list, Vector([1.0])).startswith("the return value shares memory with 'x'")
    declared = make("h(Tensor(a) x) -> Tensor(a)[]", lambda x: [Vector(x.items)])
    assert fault(declared, Vector([1.0])) == ""


def test_the_wildcard_may_be_an_alias_of_what_has_a_set(make: Make) -> None:
    op = make("f(Tensor(*) x) -> Tensor(a)", lambda x: x)
    assert fault(op, Vector([1.0])) == ""


def test_return_values_that_are_aliases_of_each_other_are_found(make: Make) -> None:
    def kernel(x: Vector) -> tuple[Vector, Vector]:
        made = doubled(x)
        return made, Vector(made.items)

    op = make("f(Tensor x) -> (Tensor, Tensor)", kernel)
    assert fault(op, Vector([1.0])).startswith("return values 0 and 1 share memory")
    declared = make("g(Tensor x) -> (Tensor(a), Tensor(a))", kernel)
    assert fault(declared, Vector([1.0])) == ""


def test_what_nobody_can_change_is_returned_as_it_is(make: Make) -> None:
    op = make(
        "f(str x, int y) -> (str, str, int)", lambda x, y: (x, x, y), "CompositeExplicitAutograd"
    )
    assert fault(op, "text", 300) == ""


def test_what_only_describes_a_tensor_is_returned_as_it_is(make: Make) -> None:
    class Name:
        """One object for each, like dtypes and devices."""

    class Colour(enum.Enum):
        RED = 1

    name = Name()
    for declared, value in (("ScalarType", name), ("Device?", "cpu"), ("Any", Colour.RED)):
        op = make(f"of{declared[:3]}(Tensor x, {declared} y) -> {declared}", lambda x, y: y)
        assert fault(op, Vector([1.0]), value) == ""
    held = make("held(Tensor x, Any y) -> Any", lambda x, y: y)
    assert "the return value is 'y'" in fault(held, Vector([1.0]), name)


def test_every_fault_is_told_at_once(make: Make) -> None:
    op = make("f(Tensor x) -> Tensor", double_in_place)
    told = fault(op, Vector([1.0])).splitlines()
    assert [line.strip()[:14] for line in told] == ["'x' was writte", "the return val"]


def test_the_caller_s_arguments_stay_as_they_are(make: Make) -> None:
    def kernel(x: Vector, y: list[Vector]) -> None:
        for each in (x, *y):
            double_in_place(each)

    op = make("f(Tensor(a!) x, Tensor(b!)[] y) -> ()", kernel)
    x, y = Vector([1.0]), [Vector([2.0])]
    assert opcheck(op, (x,), {"y": y}, test_utils="test_schema") == {"test_schema": "SUCCESS"}
    assert (x.items, y[0].items) == ([1.0], [2.0])


def test_what_one_argument_holds_twice_is_copied_once(make: Make) -> None:
    seen = []
    op = make("f(Tensor x, Tensor[] y) -> ()", lambda x, y: seen.append(x is y[0]))
    x = Vector([1.0])
    opcheck(op, (x, [x]), test_utils="test_schema")
    assert seen == [True]


def test_what_cannot_be_copied_is_used_as_it_is(make: Make) -> None:
    class Uncopied(Vector):
        def __deepcopy__(self, memo: object) -> Uncopied:
            raise TypeError("one of a kind")

    x = Uncopied([1.0])
    op = make("f(Tensor x, Tensor y) -> ()", lambda x, y: x.items.append(1.0))
    assert fault(op, x, Vector([1.0])).startswith("'x' was written to")
    assert x.items == [1.0, 1.0]


def test_a_value_of_which_nothing_can_be_told_is_no_success(make: Make) -> None:
    op = make("f(Any x) -> ()", lambda x: None, "CompositeExplicitAutograd")
    assert fault(op, threading.Lock()).startswith("whether 'x' was written to cannot be told: a ")
    declared = make("g(Any(a!) x) -> ()", lambda x: None, "CompositeExplicitAutograd")
    assert fault(declared, threading.Lock()) == ""


def test_a_generator_may_advance(make: Make) -> None:
    op = make("f(Generator? g) -> float", lambda g: g.random(), "CompositeExplicitAutograd")
    assert fault(op, random.Random(1)) == ""
    other = make("g(Any g) -> float", lambda g: g.random(), "CompositeExplicitAutograd")
    assert fault(other, random.Random(1)).startswith("'g' was written to")


# --- autograd -------------------------------------------------------------------------------------


def graded(make: Make) -> md.OpOverload:
    op = make("graded(Tensor x) -> Tensor", doubled)
    register_autograd(op, lambda ctx, gradient: gradient, lib=make.lib)
    return op


def autograd_fault(op: Any, *args: Any) -> str:
    return fault(op, *args, test="test_autograd_registration")


def test_a_formula_at_an_autograd_key_or_a_composite_kernel_passes(make: Make) -> None:
    inner = graded(make)
    assert autograd_fault(inner, Vector([1.0])) == ""
    composite = make("composite(Tensor x) -> Tensor", inner, "CompositeImplicitAutograd")
    assert autograd_fault(composite, Vector([1.0])) == ""
    own = make("own(Tensor x) -> Tensor", inner)
    make.lib.impl("own", inner, "AutogradCPU")
    assert autograd_fault(own, Vector([1.0])) == ""


def test_a_gradient_from_inside_a_kernel_of_a_backend_is_found(make: Make) -> None:
    inner = graded(make)
    op = make("outer(Tensor x) -> (int, Tensor)", lambda x: (1, inner(x)))
    told = autograd_fault(op, Vector([1.0]))
    assert told.startswith("return value 1 came to require a gradient, but there is no kernel at")
    assert "CompositeImplicitAutograd" in told
    make.lib.impl("outer", lambda x: (1, inner(x)), "AutogradCUDA")
    assert autograd_fault(op, Vector([1.0])) == told  # another backend's


def test_an_operator_without_gradients_passes(make: Make) -> None:
    assert autograd_fault(make("f(Tensor x) -> Tensor", doubled), Vector([1.0])) == ""
    same = make("g(Tensor(a) x) -> Tensor(a)", lambda x: x)
    assert autograd_fault(same, Vector([1.0])) == ""  # the argument itself


def test_no_tensor_no_gradient(make: Make) -> None:
    op = make("f(int x) -> int", lambda x: x, "CompositeExplicitAutograd")
    assert autograd_fault(op, 1) == "no argument is a Tensor, so none can require a gradient"


def test_what_a_tape_of_the_caller_watches_is_used_as_it_is(make: Make) -> None:
    inner = graded(make)
    op = make("outer(Tensor x) -> Tensor", lambda x: inner(x))
    x = Vector([1.0])
    with Tape() as tape:
        tape.watch(x)
        assert autograd_fault(op, x).startswith("the return value came to require a gradient")


def test_nothing_of_the_test_stays(make: Make) -> None:
    inner = graded(make)
    before = engines._engines
    for kernel in (inner, lambda x: 1 / 0):
        op = make(f"f{id(kernel)}(Tensor x) -> Tensor", kernel)
        opcheck(op, (Vector([1.0]),), raise_exception=False)
        assert "AutogradFunctionality" not in included_keys()
        assert engines._engines == before


def test_what_depends_on_an_argument_by_several_calls_is_found_and_what_is_marked_is_not(
    make: Make,
) -> None:
    inner = graded(make)
    twice = make("twice(Tensor x) -> Tensor", lambda x: inner(inner(x)))
    assert autograd_fault(twice, Vector([1.0])).startswith("the return value came to require")
    marked = make("marked(Tensor x) -> Tensor", doubled)

    def mark(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    register_autograd(marked, lambda ctx, gradient: None, setup_context=mark, lib=make.lib)
    after = make("after(Tensor x) -> Tensor", lambda x: inner(marked(x)))
    assert autograd_fault(after, Vector([1.0])) == ""


def test_what_another_thread_computes_meanwhile_is_none_of_it(make: Make) -> None:
    class Leaf(Vector):
        __dispatch_keys__ = ("CPU", "AutogradCPU")

    inner = graded(make)
    made: list[Vector] = []

    def kernel(x: Vector) -> Vector:
        thread = threading.Thread(target=lambda: made.append(inner(x)))
        thread.start()
        thread.join()
        return made[-1]

    op = make("outer(Tensor x) -> Tensor", kernel)
    assert autograd_fault(op, Leaf([1.0])) == ""
    assert made[-1].items == [2.0]


def test_tensors_of_pytorch_that_require_gradients(make: Make) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    x = torch.ones(2, requires_grad=True)
    op = make("f(Tensor x) -> Tensor", lambda x: x * 2)
    assert autograd_fault(op, x).startswith("the return value came to require a gradient")
    below = make("g(Tensor x) -> Tensor", lambda x: x.detach() * 2)
    assert autograd_fault(below, x) == ""

    def write(x: Any) -> None:
        x.detach().add_(1)

    written = make("h(Tensor x) -> ()", write)
    assert fault(written, x).startswith("'x' was written to")
    assert torch.equal(x, torch.ones(2))
    view = make("i(Tensor x) -> Tensor", lambda x: x.view(1, 2))
    assert fault(view, x).startswith("the return value shares memory with 'x'")


# --- fake kernels ---------------------------------------------------------------------------------


def fake_fault(op: Any, *args: Any) -> str:
    return fault(op, *args, test="test_faketensor")


def test_a_fake_kernel_that_is_right_passes(make: Make) -> None:
    op = make("f(Tensor x) -> Tensor", doubled, fake=lambda x: x.new_empty(x.shape))
    assert fake_fault(op, Vector([1.0, 2.0])) == ""
    composite = make("g(Tensor x) -> Tensor", lambda x: op(x), "CompositeImplicitAutograd")
    assert fake_fault(composite, Vector([1.0, 2.0])) == ""


@pytest.mark.parametrize(
    ("fake", "told"),
    [
        (
            lambda x: x.new_empty((3,)),
            "the return value has shape (2,), but the fake kernel's has (3)",
        ),
        (
            lambda x: x.new_empty((2, 1)),
            "the return value has shape (2,), but the fake kernel's has (2, 1)",
        ),
        (
            lambda x: x.new_empty((2,), dtype="f4"),
            "the return value has dtype f8, but the fake kernel's has f4",
        ),
        (
            lambda x: x.new_empty((2,), device="cuda"),
            "the return value is on device 'cpu', but the fake kernel's is on 'cuda'",
        ),
        (
            lambda x: Vector([0.0, 0.0]),
            "the return value of the fake kernel is a Vector, not a MetaTensor: a fake kernel says "
            "what the result looks like, and does not make it",
        ),
    ],
)
def test_what_a_fake_kernel_has_wrong_is_told(make: Make, fake: Any, told: str) -> None:
    op = make("f(Tensor x) -> Tensor", doubled, fake=fake)
    assert fake_fault(op, Vector([1.0, 2.0])) == told


def test_lists_numbers_and_none_are_compared_too(make: Make) -> None:
    def kernel(x: Vector) -> tuple[list[Vector], int, str, None, float]:
        return [doubled(x)], 2, "a", None, 0.5

    schema = "(Tensor x) -> (Tensor[], int, str, Tensor?, float)"
    right = make("f" + schema, kernel, fake=lambda x: ([x.new_empty((2,))], 2, "a", None, 0.0))
    assert fake_fault(right, Vector([1.0, 2.0])) == ""
    wrong = make("g" + schema, kernel, fake=lambda x: ([], 3, "b", x, 0.0))
    assert fake_fault(wrong, Vector([1.0, 2.0])).split("\n  ") == [
        "return value 0 has 1 values, but the fake kernel's is 0 values",
        "return value 1 is 2, but the fake kernel's is 3",
        "return value 2 is a, but the fake kernel's is b",
        "return value 3 is a NoneType, but the fake kernel's is a MetaTensor",
    ]


def test_a_size_that_depends_on_data_admits_what_is_in_its_bounds(make: Make) -> None:
    def kernel(x: Vector) -> Vector:
        return Vector([item for item in x.items if item])

    def fake(x: MetaTensor) -> MetaTensor:
        return x.new_empty((get_ctx().new_dynamic_size(max=1),))

    op = make("nonzero(Tensor x) -> Tensor", kernel, fake=fake)
    assert fake_fault(op, Vector([0.0, 1.0])) == ""
    assert "<dynamic size u0, from 0 to 1>" in fake_fault(op, Vector([2.0, 1.0]))


def test_a_size_that_depends_on_data_is_the_same_wherever_it_stands(make: Make) -> None:
    def fake(x: MetaTensor) -> tuple[MetaTensor, int]:
        size: Any = get_ctx().new_dynamic_size()
        return x.new_empty((size,)), size

    right = make("f(Tensor x) -> (Tensor, SymInt)", lambda x: (doubled(x), 2), fake=fake)
    assert fake_fault(right, Vector([0.0, 1.0])) == ""
    wrong = make("g(Tensor x) -> (Tensor, SymInt)", lambda x: (doubled(x), 3), fake=fake)
    assert fake_fault(wrong, Vector([0.0, 1.0])).startswith("return value 1 is 3, but the")


def test_without_a_fake_kernel_the_error_of_the_call_is_told(make: Make) -> None:
    op = make("f(Tensor x) -> Tensor", doubled)
    results = opcheck(op, (Vector([1.0]),), raise_exception=False)
    assert isinstance(results["test_faketensor"], errors.FakeKernelMissingError)


def test_an_operator_that_makes_tensors_of_none_is_asked_with_the_key_meta(make: Make) -> None:
    op = make(
        "zeros(int n) -> Tensor",
        lambda n: Vector([0.0] * n),
        "CompositeExplicitAutograd",
        fake=lambda n: MetaTensor((n,), "f8"),
    )
    assert fake_fault(op, 3) == ""


def test_values_without_a_shape_cannot_be_checked_and_are_no_success(make: Make) -> None:
    op = make("f(Tensor x) -> Tensor", lambda x: Shapeless(), fake=lambda x: x)
    assert fake_fault(op, Shapeless()).startswith("it cannot be checked: ")
    assert fake_fault(op, Vector([1.0])).startswith("it cannot be checked: ")
    none = make("g(int x) -> int", lambda x: x, "CompositeExplicitAutograd")
    assert fake_fault(none, 1) == "it cannot be checked: there is no Tensor that could be fake"


# --- the call -------------------------------------------------------------------------------------


def test_all_tests_run_in_their_order_unless_some_are_named(make: Make) -> None:
    op = make("f(Tensor x) -> Tensor", doubled, fake=lambda x: x.new_empty(x.shape))
    args = (Vector([1.0]),)
    assert list(opcheck(op, args).items()) == [(test, "SUCCESS") for test in TESTS]
    assert opcheck(op, args, test_utils=["test_faketensor"]) == {"test_faketensor": "SUCCESS"}


def test_the_first_test_that_fails_raises_and_what_a_kernel_raised_is_the_cause(make: Make) -> None:
    def kernel(x: Vector) -> Vector:
        raise LookupError("broken")

    op = make("f(Tensor x) -> Tensor", kernel)
    with pytest.raises(
        errors.OpCheckError, match="t::f: test_schema ended with LookupError: broken"
    ) as info:
        opcheck(op, (Vector([1.0]),))
    assert (info.value.operator, info.value.test) == ("t::f", "test_schema")
    assert isinstance(info.value.__cause__, LookupError)
    results = opcheck(op, (Vector([1.0]),), raise_exception=False)
    assert {type(each) for each in results.values()} == {LookupError}


def test_a_packet_of_one_overload_a_definition_and_a_name_stand_for_the_operator(
    make: Make,
) -> None:
    op = make("f.only(Tensor x) -> Tensor", doubled)

    class Definition:
        operator = op

    # An overload may be named like an attribute of definitions or packets.
    make("g.operator(Tensor x) -> Tensor", doubled)
    make("h.overloads(Tensor x) -> Tensor", doubled)
    t = make.registry.ops.t
    for each in (op, t.f, t.g, t.h, Definition()):
        assert opcheck(each, (Vector([1.0]),), test_utils="test_schema")
    make("f.more(Tensor x) -> Tensor", doubled)
    with pytest.raises(errors.InvalidArgumentError, match=r"has 2 overloads: .*called only"):
        opcheck(make.registry.ops.t.f, (Vector([1.0]),))


def test_a_name_is_one_of_the_default_registry() -> None:
    with md.Library("opcheck_by_name", "DEF") as lib:
        lib.define("f(Tensor x) -> Tensor")
        lib.impl("f", doubled, "CPU")
        assert opcheck("opcheck_by_name::f", (Vector([1.0]),), test_utils="test_schema")
        with pytest.raises(errors.OperatorNotFoundError, match="did you mean f"):
            opcheck("opcheck_by_name::ff", (Vector([1.0]),))
        lib.close()


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("test_shcema", "did you mean test_schema"),
        (["test_schema", "nothing_like_it"], "there are test_schema, "),
        ("test_aot_dispatch_dynamic", "compares with what a compiler makes of the operator"),
    ],
)
def test_a_test_that_does_not_exist_is_refused_before_any_runs(
    make: Make, wanted: Any, told: str
) -> None:
    ran: list[Vector] = []
    op = make("f(Tensor x) -> ()", ran.append)
    for raises in (True, False):
        with pytest.raises(errors.InvalidArgumentError, match=told):
            opcheck(op, (Vector([1.0]),), test_utils=wanted, raise_exception=raises)
    assert not ran


def test_what_is_no_operator_or_does_not_fit_is_refused(make: Make) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="opcheck takes an operator"):
        opcheck(len, ())  # type: ignore[arg-type]
    make("operator(Tensor x) -> Tensor", doubled)
    for given in (make.registry.ops, make.registry.ops.t):
        with pytest.raises(errors.InvalidArgumentError, match="or a name, not <mdispatch "):
            opcheck(given, (Vector([1.0]),))  # type: ignore[arg-type]
    op = make("f(Tensor x) -> Tensor", doubled)
    with pytest.raises(errors.ArgumentError, match="takes Tensor for 'x', not int"):
        opcheck(op, (1,), raise_exception=False)


# --- everywhere -----------------------------------------------------------------------------------

FEATURE = """
import mdispatch as md
from mdispatch import register_autograd
from mdispatch.fake import register_fake

class Vector:
    __dispatch_keys__ = "CPU"
    def __init__(self, items):
        self.items = items
    @property
    def shape(self):
        return (len(self.items),)

def scale(x, factor):
    return Vector([item * factor for item in x.items])

def in_place(x):
    x.items[0] = 7.0
    return x

lib = md.Library("vec", "DEF")
lib.define("scale(Tensor x, float factor) -> Tensor")
lib.impl("scale", scale, "CPU")
register_fake("vec::scale", lambda x, factor: x.new_empty(x.shape), lib=lib)
register_autograd("vec::scale", lambda ctx, gradient: (gradient, None), lib=lib)
lib.define("wrong(Tensor x) -> Tensor")
lib.impl("wrong", in_place, "CPU")
"""

BODY = """
from mdispatch import ops
from mdispatch.authoring.opcheck.check import opcheck
good = opcheck(ops.vec.scale, (feature.Vector([1.0]), 2.0))
x = feature.Vector([1.0])
bad = opcheck(ops.vec.wrong, (x,), raise_exception=False)
result = {
    "good": good,
    "bad": {test: type(found).__name__ for test, found in bad.items()},
    "told": str(bad["test_schema"]).count("'x'"),
    "kept": x.items,
}
"""


@pytest.mark.parametrize("place", PLACES)
def test_opcheck_tells_the_same_everywhere(place: str, tmp_path: Path) -> None:
    body = BODY.replace("feature.", "__import__('feature').")
    assert run_at(place, FEATURE, body, tmp_path) == {
        "good": dict.fromkeys(TESTS, "SUCCESS"),
        "bad": {
            "test_schema": "OpCheckError",
            "test_autograd_registration": "str",
            "test_faketensor": "FakeKernelMissingError",
        },
        "told": 2,
        "kept": [1.0],
    }
