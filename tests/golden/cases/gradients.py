"""Golden errors: gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from golden_stage import Stage, case, kernel
from tapes import Tape

import mdispatch as md


class Number:
    """A value that can be differentiated: it can be added."""

    __dispatch_keys__ = md.DispatchKeySet("CPU", "AutogradCPU")

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def __add__(self, other: Number) -> Number:
        return Number(self.value + other.value)


def one(x: object) -> Number:
    return Number(1.0)


def formula(stage: Stage, backward: Callable[..., Any], **more: Any) -> None:
    """An operator with two arguments, and this formula."""
    stage.lib.define("mul(Tensor x, Tensor y, int n=1) -> Tensor")
    stage.lib.impl("mul", lambda x, y, n: Number(x.value * y.value), "CPU")
    md.register_autograd("shop::mul", backward, lib=stage.lib, **more)


def differentiate(stage: Stage) -> None:
    x, y = Number(3.0), Number(4.0)
    with Tape(ones_like=one) as tape:
        tape.watch(x, y)
        product = stage.shop.mul(x, y)
    tape.gradient(product, [x, y])


@case("AutogradError: a formula for an operator that writes to its argument")
def _(stage: Stage) -> None:
    stage.lib.define("scale_(Tensor(a!) x, float factor) -> Tensor(a!)")
    md.register_autograd("shop::scale_", kernel, lib=stage.lib)


@case("AutogradError: a formula for Tensors by keyword only")
def _(stage: Stage) -> None:
    md.register_autograd("shop::scale", kernel, lib=stage.lib)


@case("AutogradError: too few gradients")
def _(stage: Stage) -> None:
    formula(stage, lambda ctx, gradient: (gradient, gradient))
    differentiate(stage)


@case("AutogradError: one gradient where several are wanted")
def _(stage: Stage) -> None:
    formula(stage, lambda ctx, gradient: gradient)
    differentiate(stage)


@case("AutogradError: a gradient for a number")
def _(stage: Stage) -> None:
    formula(stage, lambda ctx, gradient: (gradient, gradient, gradient))
    differentiate(stage)


@case("AutogradError: a gradient for a list that is none")
def _(stage: Stage) -> None:
    stage.lib.define("sum(Tensor[] xs) -> Tensor")
    stage.lib.impl("sum", lambda xs: xs[0] + xs[1], "CPU")
    md.register_autograd("shop::sum", lambda ctx, gradient: gradient, lib=stage.lib)
    xs = [Number(), Number()]
    with Tape(ones_like=one) as tape:
        tape.watch(*xs)
        total = stage.shop.sum(xs)
    tape.gradient(total, xs)


@case("AutogradError: an output marked that is none")
def _(stage: Stage) -> None:
    def mark(ctx: md.AutogradContext, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(inputs[0])

    formula(stage, kernel, setup_context=mark)
    differentiate(stage)


@case("AutogradError: what was saved, after the backward pass")
def _(stage: Stage) -> None:
    kept = []

    def backward(ctx: md.AutogradContext, gradient: Any) -> Any:
        kept.append(ctx)
        return gradient, gradient, None

    formula(stage, backward)
    differentiate(stage)
    kept[0].saved_tensors  # noqa: B018


@case("AutogradError: tensors of two engines")
def _(stage: Stage) -> None:
    class Ledger:
        """Keeps the graph of one object."""

        def needs_grad(self, value: object) -> bool:
            return value is y

        def apply(self, call: object) -> object:
            raise NotImplementedError

    formula(stage, kernel)
    x, y = Number(), Number()
    handle = md.register_autograd_engine(Ledger())
    try:
        with Tape() as tape:
            tape.watch(x)
            stage.shop.mul(x, y)
    finally:
        handle.close()


@case("InvalidArgumentError: a formula that cannot be called")
def _(stage: Stage) -> None:
    md.register_autograd("shop::scale", None, lib=stage.lib)  # type: ignore[arg-type]


@case("InvalidArgumentError: an engine that is none")
def _(stage: Stage) -> None:
    md.register_autograd_engine(Number())  # type: ignore[arg-type]


@case("OperatorNotFoundError: a formula for an operator misspelled")
def _(stage: Stage) -> None:
    md.register_autograd("shop::scael", kernel, lib=stage.lib)
