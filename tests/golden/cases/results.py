"""Golden errors: results of kernels, their use of memory, and what opcheck finds about both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from golden_stage import Array, Stage, case, kernel

import mdispatch as md
from cases.gradients import Number, formula


def custom(stage: Stage, function: Callable[..., Any], schema: str) -> md.CustomOpDef:
    return md.custom_op(
        "shop::made", function, mutates_args=(), schema=schema, registry=stage.registry
    )


@case("AliasingError: a kernel returns its argument")
def _(stage: Stage) -> None:
    custom(stage, lambda x: x, "(Tensor x) -> Tensor")(Array())


@case("AliasingError: a kernel returns an element of its argument")
def _(stage: Stage) -> None:
    made = custom(stage, lambda xs: (Array(), xs[1]), "(Tensor[] xs) -> (Tensor, Tensor)")
    made([Array(), Array()])


@case("AliasingError: a kernel returns one object twice")
def _(stage: Stage) -> None:
    custom(stage, lambda x: (Array(),) * 2, "(Tensor x) -> (Tensor, Tensor)")(Array())


@case("AliasingError: a kernel returns a list with one object twice")
def _(stage: Stage) -> None:
    custom(stage, lambda x: [Array()] * 2, "(Tensor x) -> Tensor[]")(Array())


# --- opcheck --------------------------------------------------------------------------------------


class Vector:
    """An array that describes itself."""

    __dispatch_keys__ = "CPU"
    dtype = "float32"

    def __init__(self, *items: float) -> None:
        self.items = list(items)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.items),)


def check(stage: Stage, function: Callable[..., Any], test: str) -> None:
    """Checks an operator with this kernel."""
    stage.lib.define("late(Tensor x, Tensor? y=None) -> Tensor")
    stage.lib.impl("late", function, "CPU")
    stage.lib.register_fake("late", lambda x, y: x.new_empty((1, *x.shape)))
    md.opcheck(stage.shop.late, (Vector(1.0, 2.0), Vector(3.0)), test_utils=test)


@case("OpCheckError: a write that is not declared")
def _(stage: Stage) -> None:
    def write(x: Vector, y: Vector) -> Vector:
        x.items[0] = 0.0
        return Vector()

    check(stage, write, "test_schema")


@case("OpCheckError: an alias that is not declared")
def _(stage: Stage) -> None:
    check(stage, lambda x, y: y, "test_schema")


@case("OpCheckError: another shape without data")
def _(stage: Stage) -> None:
    check(stage, lambda x, y: Vector(*x.items), "test_faketensor")


@case("OpCheckError: a shape that nobody tells")
def _(stage: Stage) -> None:
    check(stage, lambda x, y: Array(), "test_faketensor")


@case("OpCheckError: a kernel that fails")
def _(stage: Stage) -> None:
    check(stage, lambda x, y: 1 / 0, "test_schema")


@case("OpCheckError: no fake kernel")
def _(stage: Stage) -> None:
    stage.lib.impl("scale", lambda x, factor, out: Vector(), "CPU")
    md.opcheck(stage.shop.scale, (Vector(1.0),), test_utils="test_faketensor")


@case("OpCheckError: no Tensor that could need a gradient")
def _(stage: Stage) -> None:
    stage.lib.define("count(int n) -> int")
    stage.lib.impl("count", lambda n: n, "CompositeExplicitAutograd")
    md.opcheck(stage.shop.count, (3,), test_utils="test_autograd_registration")


@case("OpCheckError: a gradient by what a kernel calls")
def _(stage: Stage) -> None:
    formula(stage, lambda ctx, gradient: (gradient, gradient, None))
    stage.lib.define("square(Tensor x) -> Tensor")

    def square(x: Number) -> Any:
        return stage.shop.mul(x, x)

    stage.lib.impl("square", square, "CompositeExplicitAutograd")
    md.opcheck(stage.shop.square, (Number(),), test_utils="test_autograd_registration")


@case("InvalidArgumentError: a test that opcheck has not")
def _(stage: Stage) -> None:
    md.opcheck(stage.shop.scale, (Array(),), test_utils="test_shema")


@case("InvalidArgumentError: something to check that is no operator")
def _(stage: Stage) -> None:
    md.opcheck(kernel, ())  # type: ignore[arg-type]


@case("ReturnValueError: a value of another type")
def _(stage: Stage) -> None:
    stage.lib.impl("scale", lambda x, factor, out: factor, "CUDA")
    stage.shop.scale(Array("CUDA"))


@case("ReturnValueError: an element of another type")
def _(stage: Stage) -> None:
    stage.lib.impl("split", lambda x, parts: (x, None), "CUDA")
    stage.shop.split(Array("CUDA"), 2)


@case("ReturnValueError: something from a kernel that is to return nothing")
def _(stage: Stage) -> None:
    stage.lib.define("print(Tensor x) -> ()")
    stage.lib.impl("print", lambda x: "printed", "CPU")
    stage.shop.print(Array())
