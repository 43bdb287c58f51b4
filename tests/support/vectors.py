"""Small vectors to differentiate, operators on them, and gradients by finite differences."""

from __future__ import annotations

import math

from tapes import Tape

import mdispatch as md
from mdispatch.authoring.autograd import register_autograd


class Vec:
    """Numbers with ``+`` and ``*``. It carries the key CPU and knows nothing of gradients."""

    __dispatch_keys__ = "CPU"

    def __init__(self, *items: float) -> None:
        self.items = items

    def __add__(self, other: Vec) -> Vec:
        return Vec(*(a + b for a, b in zip(self.items, other.items, strict=True)))

    def __mul__(self, other: Vec) -> Vec:
        return Vec(*(a * b for a, b in zip(self.items, other.items, strict=True)))

    def map(self, function) -> Vec:
        return Vec(*map(function, self.items))

    def __repr__(self) -> str:
        return f"Vec{self.items}"


def ones(x: Vec) -> Vec:
    return x.map(lambda item: 1.0)


def zeros(x: Vec) -> Vec:
    return x.map(lambda item: 0.0)


def close(one: Vec, other: Vec) -> bool:
    return len(one.items) == len(other.items) and all(
        math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-7)
        for a, b in zip(one.items, other.items, strict=True)
    )


def differences(function, inputs: list[Vec]) -> list[Vec]:
    """The gradients of the sum of ``function(*inputs)``, by central differences."""
    step = 1e-6

    def total(which: int, at: int, by: float) -> float:
        moved = list(inputs)
        items = list(inputs[which].items)
        items[at] += by
        moved[which] = Vec(*items)
        return math.fsum(function(*moved).items)

    return [
        Vec(
            *(
                (total(which, at, step) - total(which, at, -step)) / (2 * step)
                for at in range(len(x.items))
            )
        )
        for which, x in enumerate(inputs)
    ]


def gradients(function, inputs: list[Vec], **options) -> list[Vec | None]:
    """The gradients of the sum of ``function(*inputs)``, by a tape."""
    with Tape(ones_like=ones, **options) as tape:
        tape.watch(*inputs)
        y = function(*inputs)
    return tape.gradient(y, inputs)


def operators(registry: md.Registry):
    """The namespace "vec": add, mul, sin, cos, scale, total (a list), halves (two outputs)."""
    lib = md.Library("vec", "DEF", registry=registry)
    ops = registry.ops.vec

    def define(schema, kernel, backward, setup_context=None):
        name = lib.define(schema)
        lib.impl(name, kernel, "CPU")
        register_autograd(name, backward, setup_context=setup_context, lib=lib)

    def keep_inputs(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def mul_backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return ops.mul(gradient, b), ops.mul(gradient, a)

    def sin_backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return ops.mul(gradient, ops.cos(x))

    def cos_backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return ops.scale(ops.mul(gradient, ops.sin(x)), factor=-1.0)

    def scale_setup(ctx, inputs, keyword_only_inputs, output):
        ctx.factor = keyword_only_inputs["factor"]

    def total_setup(ctx, inputs, output):
        ctx.count = len(inputs[0])

    def total(xs):
        return Vec(*(math.fsum(column) for column in zip(*(x.items for x in xs), strict=True)))

    def halves_backward(ctx, first, second):
        return Vec(*(first.items if first else ()), *(second.items if second else ()))

    define("add(Tensor a, Tensor b) -> Tensor", lambda a, b: a + b, lambda ctx, g: (g, g))
    define("mul(Tensor a, Tensor b) -> Tensor", lambda a, b: a * b, mul_backward, keep_inputs)
    define("sin(Tensor x) -> Tensor", lambda x: x.map(math.sin), sin_backward, keep_inputs)
    define("cos(Tensor x) -> Tensor", lambda x: x.map(math.cos), cos_backward, keep_inputs)
    define(
        "scale(Tensor x, *, float factor=2.0) -> Tensor",
        lambda x, factor: x.map(lambda item: item * factor),
        lambda ctx, g: ops.scale(g, factor=ctx.factor),
        scale_setup,
    )
    define(
        "total(Tensor[] xs) -> Tensor",
        total,
        lambda ctx, g: ([g] * ctx.count,),
        total_setup,
    )
    define(
        "halves(Tensor x) -> (Tensor, Tensor)",
        lambda x: (
            Vec(*x.items[: len(x.items) // 2]),
            Vec(*x.items[len(x.items) // 2 :]),
        ),
        halves_backward,
    )
    return ops
