"""Operators that are registered twice, in torch.library and in mdispatch, with the same functions.

Each has a schema, a kernel, sample arguments and, some of them, a fake kernel and a formula. How it
is registered is one of: ``custom``, by custom_op; else by Library.define, and a kernel at that key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

__all__ = ["OPERATORS", "Twin"]


@dataclass
class Twin:
    """One operator. ``args`` makes the sample arguments anew for each call."""

    schema: str
    how: str
    kernel: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]] = dict
    fake: Callable[..., Any] | None = None
    backward: Callable[..., Any] | None = None
    setup: Callable[..., Any] | None = None
    #: What is written to, for custom_op.
    written: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        arguments = self.schema.partition("(")[2].rpartition("->")[0].split(",")
        self.written = tuple(a.split("=")[0].split()[-1].strip(")") for a in arguments if "!" in a)

    @property
    def name(self) -> str:
        return self.schema.partition("(")[0]


OPERATORS: dict[str, Twin] = {}


def op(how, schema, kernel, *args, **more):
    made = Twin(schema, how, kernel, *args, **more)
    assert OPERATORS.setdefault(made.name, made) is made


def x():
    return torch.tensor([[1.0, 2.0], [3.0, 4.0]])


def y():
    return torch.tensor([[0.5, 1.5], [2.5, 0.5]])


def one():
    return (x(),)


def two():
    return x(), y()


def like(x, *rest, **named):
    return torch.empty_like(x)


def likes(x, *rest):
    return torch.empty_like(x), torch.empty_like(x)


def nothing(*args, **kwargs):
    return None


def save(ctx, inputs, output):
    ctx.save_for_backward(*(each for each in inputs if isinstance(each, torch.Tensor)))
    ctx.rest = [each for each in inputs if not isinstance(each, torch.Tensor)]


def by_numpy(function):
    def kernel(x, *rest):
        rest = [each.detach().numpy() if isinstance(each, torch.Tensor) else each for each in rest]
        return torch.from_numpy(np.asarray(function(x.detach().numpy(), *rest)))

    return kernel


def times_cosine(ctx, gradient):
    return gradient * ctx.saved_tensors[0].cos()


def raising(error):
    def function(*args, **kwargs):
        raise error

    return function


# --- one value for each --------------------------------------------------------------------------

op(
    "custom",
    "sin(Tensor x) -> Tensor",
    by_numpy(np.sin),
    one,
    fake=like,
    backward=times_cosine,
    setup=save,
)
op(
    "CPU",
    "sin_at_cpu(Tensor x) -> Tensor",
    by_numpy(np.sin),
    one,
    fake=like,
    backward=times_cosine,
    setup=save,
)
op("custom", "exp(Tensor x) -> Tensor", torch.exp, one)
op("CPU", "exp_at_cpu(Tensor x) -> Tensor", torch.exp, one)
op("CompositeExplicitAutograd", "exp_everywhere(Tensor x) -> Tensor", torch.exp, one)
op("CompositeImplicitAutograd", "exp_of_others(Tensor x) -> Tensor", torch.exp, one)
op("CompositeImplicitAutograd", "silu(Tensor x) -> Tensor", lambda x: x * torch.sigmoid(x), one)
op(
    "custom",
    "mul(Tensor x, Tensor y) -> Tensor",
    lambda x, y: x * y,
    two,
    fake=like,
    backward=lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]),
    setup=save,
)
op("custom", "mul_no_formula(Tensor x, Tensor y) -> Tensor", lambda x, y: x * y, two, fake=like)
op(
    "custom",
    "where(Tensor c, Tensor x, Tensor y) -> Tensor",
    torch.where,
    lambda: (x() > y(), x(), y()),
    fake=lambda c, x, y: torch.empty_like(x),
    backward=lambda ctx, g: (None, g * ctx.saved_tensors[0], g * ~ctx.saved_tensors[0]),
    setup=save,
)
op(
    "custom",
    "needs(Tensor x, Tensor y) -> Tensor",
    lambda x, y: x + y,
    two,
    fake=like,
    backward=lambda ctx, g: tuple(g if each else None for each in ctx.needs_input_grad),
    setup=save,
)
op("CPU", "at_autograd(Tensor x) -> Tensor", torch.exp, one, fake=like)

# --- other arguments ------------------------------------------------------------------------------

op(
    "custom",
    "scale(Tensor x, float factor=2.0) -> Tensor",
    lambda x, factor=2.0: x * factor,
    lambda: (x(), 3.0),
    fake=like,
    backward=lambda ctx, g: (g * ctx.rest[0], None),
    setup=save,
)
op("CPU", "add_int(Tensor x, int n) -> Tensor", lambda x, n: x + n, lambda: (x(), 3), fake=like)
op(
    "CPU",
    "pow(Tensor x, *, int n=2) -> Tensor",
    lambda x, *, n=2: x**n,
    one,
    lambda: {"n": 3},
    fake=like,
)
op(
    "custom",
    "by_keyword(Tensor x, *, float factor) -> Tensor",
    lambda x, *, factor: x * factor,
    one,
    lambda: {"factor": 3.0},
    fake=like,
    backward=lambda ctx, g: g * ctx.factor,
    setup=lambda ctx, inputs, keyword_only_inputs, output: setattr(
        ctx, "factor", keyword_only_inputs["factor"]
    ),
)
op(
    "CPU",
    "tensor_by_keyword(Tensor x, *, Tensor y) -> Tensor",
    lambda x, *, y: x + y,
    one,
    lambda: {"y": y()},
    fake=like,
)
op(
    "custom",
    "clamp(Tensor x, float? low=None, float? high=None) -> Tensor",
    lambda x, low=None, high=None: torch.clamp(x, low, high),
    lambda: (x(), 1.5),
    fake=like,
)
op(
    "custom",
    "clamp_to(Tensor x, float? low=None, float? high=None) -> Tensor",
    lambda x, low=None, high=None: torch.clamp(x, low, high),
    lambda: (x(), None, 2.5),
)
op(
    "custom",
    "add_maybe(Tensor x, Tensor? y=None) -> Tensor",
    lambda x, y=None: x.clone() if y is None else x + y,
    one,
    fake=like,
    backward=lambda ctx, g: (g, None),
    setup=save,
)
op(
    "custom",
    "add_given(Tensor x, Tensor? y=None) -> Tensor",
    lambda x, y=None: x.clone() if y is None else x + y,
    two,
    fake=like,
    backward=lambda ctx, g: (g, g),
    setup=save,
)
op(
    "CPU",
    "by_scalar(Tensor x, Scalar s) -> Tensor",
    lambda x, s: x * s,
    lambda: (x(), 2),
    fake=like,
)
op(
    "CPU",
    'named(Tensor x, str how="up") -> Tensor',
    lambda x, how="up": x.ceil() if how == "up" else x.floor(),
    lambda: (x(), "down"),
    fake=like,
)
op(
    "custom",
    "flag(Tensor x, bool back=False) -> Tensor",
    lambda x, back=False: x.flip(0) if back else x.clone(),
    lambda: (x(), True),
    fake=like,
    backward=lambda ctx, g: (g.flip(0) if ctx.rest[0] else g, None),
    setup=save,
)
op(
    "CPU",
    "cast(Tensor x, ScalarType dtype) -> Tensor",
    lambda x, dtype: x.to(dtype, copy=True),
    lambda: (x(), torch.float64),
    fake=lambda x, dtype: torch.empty_like(x, dtype=dtype),
)
op(
    "CPU",
    "floats(Tensor x, float[] ws) -> Tensor",
    lambda x, ws: x * sum(ws),
    lambda: (x(), [1.0, 2.0]),
    fake=like,
)
op(
    "CPU",
    "ints(Tensor x, int[2] ks=1) -> Tensor",
    lambda x, ks=(1, 1): x * ks[0] + ks[1],
    lambda: (x(), [2, 3]),
    fake=like,
)
op(
    "CPU",
    "spread(Tensor x, int[2] ks=1) -> Tensor",
    lambda x, ks=(1, 1): x * ks[0] + ks[1],
    lambda: (x(), 4),
    fake=like,
)
op(
    "CPU",
    "words(Tensor x, str[] names) -> Tensor",
    lambda x, names: x * len(names),
    lambda: (x(), ["a", "b"]),
    fake=like,
)
op(
    "CPU",
    "flags(Tensor x, bool[2] m) -> Tensor",
    lambda x, m: x * m[0] + m[1],
    lambda: (x(), [True, False]),
    fake=like,
)
op(
    "custom",
    "shaped(Tensor x, SymInt[] size) -> Tensor",
    lambda x, size: x.reshape(size).clone(),
    lambda: (x(), [4]),
    fake=lambda x, size: x.new_empty(size),
    backward=lambda ctx, g: (g.reshape(2, 2), None),
    setup=save,
)
op(
    "CompositeExplicitAutograd",
    "full(int[] size, float value) -> Tensor",
    lambda size, value: torch.full(tuple(size), value),
    lambda: ([2, 2], 1.5),
)
op(
    "CompositeExplicitAutograd",
    "on(int n, *, Device device) -> Tensor",
    lambda n, *, device: torch.ones(n, device=device),
    lambda: (3,),
    lambda: {"device": torch.device("cpu")},
)
op("CompositeExplicitAutograd", "plus(int a, int b) -> int", lambda a, b: a + b, lambda: (1, 2))

# --- reductions -----------------------------------------------------------------------------------

op(
    "custom",
    "total(Tensor x) -> Tensor",
    lambda x: x.sum(),
    one,
    fake=lambda x: x.new_empty(()),
    backward=lambda ctx, g: g.expand(ctx.saved_tensors[0].shape),
    setup=save,
)
op(
    "CPU",
    "mean(Tensor x, int[] dim, bool keepdim=False) -> Tensor",
    lambda x, dim, keepdim=False: x.mean(tuple(dim), keepdim),
    lambda: (x(), [0]),
    fake=lambda x, dim, keepdim=False: x.mean(tuple(dim), keepdim),
)
op("CPU", "norm(Tensor x) -> float", lambda x: x.norm().item(), one)
op("CPU", "count(Tensor x) -> int", lambda x: int((x > 1).sum()), one)
op(
    "CPU",
    "any_over(Tensor x, float limit) -> bool",
    lambda x, limit: bool((x > limit).any()),
    lambda: (x(), 2.0),
)
op(
    "custom",
    "argmax(Tensor x) -> Tensor",
    torch.argmax,
    one,
    fake=lambda x: x.new_empty((), dtype=torch.int64),
)

# --- views, and what is not one -------------------------------------------------------------------

op("CompositeImplicitAutograd", "t(Tensor(a) x) -> Tensor(a)", lambda x: x.t(), one)
op("CPU", "t_at_cpu(Tensor(a) x) -> Tensor(a)", lambda x: x.t(), one, fake=lambda x: x.t())
op(
    "CompositeExplicitAutograd",
    "row(Tensor(a) x, int i) -> Tensor(a)",
    lambda x, i: x[i],
    lambda: (x(), 1),
)
op("CPU", "same(Tensor x) -> Tensor", lambda x: x, one, fake=lambda x: x)
op("custom", "same_custom(Tensor x) -> Tensor", lambda x: x, one, fake=lambda x: x)
op("CPU", "half(Tensor x) -> Tensor", lambda x: x[0], one, fake=lambda x: x[0])

# --- what is written to ---------------------------------------------------------------------------


def sine_in_place(x):
    np.sin(x.detach().numpy(), out=x.detach().numpy())


def fill_all(xs, value):
    for each in xs:
        each.fill_(value)


def swap(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def double_into(x, out=None):
    if out is not None:
        out.copy_(x * 2)


def add_to(x, y):
    x.add_(y)
    return x + 1


op(
    "CPU",
    "add_(Tensor(a!) x, float n=1.0) -> Tensor(a!)",
    lambda x, n=1.0: x.add_(n),
    lambda: (x(), 2.0),
)
op("CPU", "zero_(Tensor(a!) x) -> ()", lambda x: (x.zero_(), None)[1], one)
op("custom", "sin_(Tensor(a!) x) -> ()", sine_in_place, one)
op(
    "custom",
    "sin_out(Tensor x, Tensor(a!) out) -> ()",
    lambda x, out: (out.copy_(x.sin()), None)[1],
    two,
)
op(
    "CPU",
    "add_out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
    lambda x, *, out: out.add_(x),
    one,
    lambda: {"out": y()},
)
op("CPU", "fill_(Tensor(a!)[] xs, float value) -> ()", fill_all, lambda: ([x(), y()], 7.0))
op("custom", "swap(Tensor(a!) x, Tensor(b!) y) -> ()", swap, two)
op("custom", "maybe_out(Tensor x, Tensor(a!)? out=None) -> ()", double_into, two)
op("custom", "accumulate(Tensor(a!) x, Tensor y) -> Tensor", add_to, two, fake=like)
op(
    "CompositeImplicitAutograd",
    "relu_(Tensor(a!) x) -> Tensor(a!)",
    lambda x: x.clamp_(min=2.0),
    one,
)
op("CPU", "undeclared(Tensor x) -> Tensor", lambda x: x.add_(1).clone(), one, fake=like)

# --- several results, and lists -------------------------------------------------------------------

op(
    "custom",
    "twice(Tensor x) -> (Tensor, Tensor)",
    lambda x: (x * 2, x * 3),
    one,
    fake=likes,
    backward=lambda ctx, g, h: g * 2 + h * 3,
    setup=save,
)
op(
    "CPU",
    "extremes(Tensor x) -> (Tensor, Tensor)",
    lambda x: (x.amin(), x.amax()),
    one,
    fake=lambda x: (x.new_empty(()), x.new_empty(())),
)


def save_order(ctx, inputs, output):
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


op(
    "custom",
    "sort(Tensor x, int dim=0) -> (Tensor, Tensor)",
    lambda x, dim=0: tuple(x.sort(dim, descending=True)),
    lambda: (x(), 0),
    fake=lambda x, dim=0: (torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)),
    backward=lambda ctx, g, h: (torch.zeros_like(g).scatter(0, ctx.saved_tensors[0], g), None),
    setup=save_order,
)
op(
    "CPU",
    "with_count(Tensor x) -> (Tensor, int)",
    lambda x: (x + 1, x.numel()),
    one,
    fake=lambda x: (torch.empty_like(x), x.numel()),
)
op(
    "CPU",
    "maybe(Tensor x, bool yes) -> Tensor?",
    lambda x, yes: x.clone() if yes else None,
    lambda: (x(), True),
)
op(
    "custom",
    "cat(Tensor[] xs, int dim=0) -> Tensor",
    lambda xs, dim=0: torch.cat(xs, dim),
    lambda: ([x(), y()], 1),
    fake=lambda xs, dim=0: torch.cat(xs, dim),
    backward=lambda ctx, g: (list(g.split(2, 1)), None),
    setup=nothing,
)
op(
    "CPU",
    "sum_of(Tensor?[] xs) -> Tensor",
    lambda xs: sum(each for each in xs if each is not None),
    lambda: ([x(), None, y()],),
)
op(
    "custom",
    "parts(Tensor x, int n) -> Tensor[]",
    lambda x, n: [each.clone() for each in x.chunk(n)],
    lambda: (x(), 2),
    fake=lambda x, n: [each.clone() for each in x.chunk(n)],
    backward=lambda ctx, gs: (torch.cat(gs), None),
    setup=save,
)
op(
    "CPU",
    "each_times(Tensor[] xs, float s) -> Tensor[]",
    lambda xs, s: [x * s for x in xs],
    lambda: ([x(), y()], 2.0),
    fake=lambda xs, s: [torch.empty_like(x) for x in xs],
)

# --- what goes wrong ------------------------------------------------------------------------------

op("custom", "raises(Tensor x) -> Tensor", raising(ValueError("not today")), one, fake=like)
op(
    "custom",
    "formula_raises(Tensor x) -> Tensor",
    torch.exp,
    one,
    fake=like,
    backward=raising(ValueError("not back")),
    setup=save,
)
op(
    "custom",
    "too_many_gradients(Tensor x) -> Tensor",
    torch.exp,
    one,
    fake=like,
    backward=lambda ctx, g: (g, g),
    setup=save,
)
op(
    "custom",
    "no_gradient(Tensor x) -> Tensor",
    torch.exp,
    one,
    fake=like,
    backward=lambda ctx, g: None,
    setup=save,
)
op(
    "custom",
    "gradient_of_another_shape(Tensor x) -> Tensor",
    torch.exp,
    one,
    fake=like,
    backward=lambda ctx, g: g[0, 0].expand(3, 3),
    setup=save,
)
op("CPU", "no_result(Tensor x) -> Tensor", nothing, one, fake=like)
