"""What PyTorch says of operators that are written in Python, said of ours with its own tensors.

There is one statement for each that PyTorch's test of its public interface for custom operators
makes. Those that do not hold are in a table of docs/coming-from-pytorch.md, with the reason and
with what happens instead. The table is held to that: they must fail so, and the others must not.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from pathlib import Path

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import mdispatch as md
from mdispatch import errors

pytestmark = pytest.mark.either_binding

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-pytorch.md"
STATEMENTS = {}
numbers = itertools.count()


def statement(function):
    STATEMENTS[function.__name__] = function
    return function


class Place:
    """A namespace of its own, in a registry of its own."""

    def __init__(self, registry):
        self.registry = registry
        self.ns = f"statement{next(numbers)}"
        self.lib = md.Library(self.ns, "FRAGMENT", registry=registry)

    @property
    def ops(self):
        return getattr(self.registry.ops, self.ns)

    def op(self, name="f", function=None, *, mutates_args=(), **kwargs):
        name = f"{self.ns}::{name}"
        return md.custom_op(
            name, function, mutates_args=mutates_args, registry=self.registry, **kwargs
        )

    def named(self, op):
        """The ways to name an operator for a registration: its name, and itself."""
        found = getattr(self.ops, op.partition(".")[0])
        return [f"{self.ns}::{op}", found.default]

    def defined(self, schema, kernel=None):
        name = self.lib.define(schema)
        if kernel is not None:
            self.lib.impl(name, kernel, "CPU")
        md.torch.export(name, registry=self.registry)
        return getattr(self.ops, name.partition("::")[2])


def by_numpy(function):
    """A kernel that PyTorch cannot look into."""

    def kernel(x, *rest):
        return torch.from_numpy(np.asarray(function(x.detach().numpy(), *rest), "float32"))

    return kernel


def plus(x: Tensor, y: float) -> Tensor:
    return torch.from_numpy(x.detach().numpy() + np.float32(y))


def sine(x: Tensor) -> Tensor:
    return torch.from_numpy(np.sin(x.detach().numpy()))


def sine_in_place(x: Tensor) -> None:
    np.sin(x.detach().numpy(), out=x.detach().numpy())


def keep_x(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])


def times_cosine(ctx, g):
    return g * ctx.saved_tensors[0].cos()


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


# --- kernels, schemas, defaults -------------------------------------------------------------------


@statement
def a_kernel_for_the_device_goes_before_the_function(place):
    f = place.op("f", plus)
    x, ran = torch.randn(3), []
    assert_close(f(x, 3.5), x + 3.5)
    f.register_kernel("cpu", lambda x, y: ran.append(1) or plus(x, y))
    assert_close(f(x, 3.5), x + 3.5)
    assert ran == [1]


@statement
def a_schema_can_be_given(place):
    f = place.op("f", lambda x, y: plus(x, y), schema="(Tensor x, float y) -> Tensor")
    x = torch.randn(3)
    assert_close(f(x, 2.5), x + 2.5)
    g = place.op("g", sine_in_place, schema="(Tensor(a!) x) -> ()", mutates_args=["x"])
    wanted = x.sin()
    g(x)
    assert_close(x, wanted)


@statement
def a_given_schema_and_mutates_args_must_agree(place):
    with pytest.raises(errors.InvalidArgumentError, match="marks x as written to"):
        place.op("f", sine_in_place, schema="(Tensor(a!) x) -> ()")


@statement
def mutates_args_names_arguments_that_there_are(place):
    with pytest.raises(errors.MdispatchError, match="y"):
        place.op("f", sine_in_place, mutates_args={"y"}, device_types="cpu")


@statement
def a_kernel_gets_the_functions_own_defaults(place):
    got = []

    def f(
        x: Tensor,
        a: int | None = None,
        b: float = 3.5,
        c: bool = True,
        d: int = 3,
        e: str = "word",
        g: torch.dtype = torch.float32,
        h: torch.dtype = torch.int,
        i: torch.device = torch.device("cpu:0"),  # noqa: B008
    ) -> Tensor:
        got.extend([a, b, c, d, e, g, h, i])
        return x.clone()

    place.op("f", f)(torch.randn(1))
    wanted = [None, 3.5, True, 3, "word", torch.float32, torch.int, torch.device("cpu:0")]
    assert got == wanted
    assert list(map(type, got)) == list(map(type, wanted))


@statement
def a_schema_is_inferred_with_a_name_or_without(place):
    assert md.infer_schema(sine, mutates_args=()) == "(Tensor x) -> Tensor"
    assert md.infer_schema(sine, mutates_args=(), op_name="f") == "f(Tensor x) -> Tensor"


@statement
def overloads_are_chosen_by_their_arguments(place):
    ran = []
    place.op("f", lambda x: ran.append("one") or x.clone(), schema="(Tensor x) -> Tensor")
    x = torch.randn(2)
    place.ops.f(x)
    two = "(Tensor x, Tensor y) -> Tensor"
    place.op("f.two", lambda x, y: ran.append("two") or x.clone(), schema=two)
    place.ops.f(x, x)
    assert ran == ["one", "two"]


@statement
def an_operator_that_is_made_again_replaces_the_first(place):
    x = torch.randn(3)
    first = place.op("f", sine)
    assert_close(first(x), x.sin())
    again = place.op("f", by_numpy(np.cos), schema="(Tensor x) -> Tensor")
    assert_close(again(x), x.cos())


@statement
def a_result_may_not_share_memory_with_an_argument(place):
    for function in (lambda x: x.view(-1), lambda x: x):
        name = f"f{next(numbers)}"
        with pytest.raises(errors.AliasingError):
            place.op(name, function, schema="(Tensor x) -> Tensor")(torch.randn(3))


@statement
def nor_be_an_argument_that_is_written_to(place):
    def f(x: Tensor) -> Tensor:
        sine_in_place(x)
        return x

    with pytest.raises(errors.AliasingError):
        place.op("f", f, mutates_args={"x"}, device_types="cpu")(torch.randn(3))


@statement
def an_operator_without_tensors_chooses_by_its_argument_device(place):
    def f(device: torch.device) -> Tensor:
        return torch.ones(3)

    made = place.op("f", f, device_types="cpu")
    assert_close(made(device="cpu"), torch.ones(3))
    with pytest.raises(errors.MissingKernelError):
        made("cuda")
    without = "() -> Tensor"
    with pytest.raises(errors.InvalidArgumentError, match="Add an argument 'device'"):
        place.op("g", lambda: torch.ones(3), schema=without, device_types="cpu")
    later = place.op("h", lambda: torch.ones(3), schema=without)
    with pytest.raises(errors.InvalidArgumentError, match="Add an argument 'device'"):
        later.register_kernel("cpu", lambda: torch.zeros(3))


@statement
def a_device_that_has_no_kernel_of_its_own_can_be_disabled_with_a_warning(place):
    f = place.op("f", plus)
    with f.set_kernel_enabled("cuda", enabled=False):
        assert f(torch.ones(1), 1.0).item() == 2


@statement
def a_kernel_is_disabled_and_enabled(place):
    f = place.op("f", lambda x: x + 1, schema="(Tensor x) -> Tensor")
    f.register_kernel("cpu", lambda x: x + 2)
    x = torch.ones(1)
    with f.set_kernel_enabled("cpu", enabled=False):
        assert f(x).item() == 2
        with f.set_kernel_enabled("cpu", enabled=False):
            assert f(x).item() == 2
        assert f(x).item() == 2
    with f.set_kernel_enabled("cpu", enabled=True):
        assert f(x).item() == 3


@statement
def kernels_are_registered_for_what_custom_op_made(place):
    for count, device in itertools.product(range(4), ("cpu", None)):
        name = f"f{next(numbers)}"
        f = place.op(name, plus, device_types="cuda")
        op = [f, *place.named(name)][count % 3]
        ran = []

        def kernel(x, y, ran=ran):
            ran.append(1)
            return plus(x, y)

        if count % 2:
            md.register_kernel(op, device, registry=place.registry)(kernel)
        else:
            md.register_kernel(op, device, kernel, registry=place.registry)
        x = torch.randn(3)
        assert_close(f(x, 2.0), x + 2.0)
        assert ran == [1]


@statement
def kernels_are_registered_in_a_library(place):
    for count, devices in itertools.product(range(2), (("cpu", "cuda"), "cpu", None)):
        name = f"f{next(numbers)}"
        f = place.defined(f"{name}(Tensor x, float y) -> Tensor")
        md.register_kernel(place.named(name)[count], devices, plus, lib=place.lib)
        x = torch.randn(3)
        assert_close(f(x, 2.0), x + 2.0)


@statement
def one_function_serves_two_devices_and_each_may_have_its_own(place):
    ran = []
    f = place.op("f", lambda x: ran.append("cpu") or sine(x), schema="(Tensor x) -> Tensor")
    f.register_kernel("meta", lambda x: ran.append("meta") or torch.empty_like(x))
    f(torch.ones(1))
    assert f(torch.ones(1, device="meta")).is_meta
    devices = ("cpu", "meta")
    both = place.op("g", torch.clone, schema="(Tensor x) -> Tensor", device_types=devices)
    assert not both(torch.ones(1)).is_meta
    assert both(torch.ones(1, device="meta")).is_meta
    assert ran == ["cpu", "meta"]


# --- writes ---------------------------------------------------------------------------------------


def versions(values):
    flat = [each for value in values for each in (value if isinstance(value, list) else [value])]
    return [each._version for each in flat if each is not None]


def several(x: Tensor, y: Tensor | None, z: list[Tensor], w: list[Tensor | None]) -> None:
    pass


def four():
    a = torch.randn
    return [a(3), a(3), [a(3), a(3)], [a(3), None, a(3)]]


@statement
def a_write_raises_the_version_of_what_is_written_to(place):
    f = place.op("f", sine_in_place, mutates_args={"x"}, device_types="cpu")
    x = torch.randn(3)
    wanted, before = x.sin(), x._version
    f(x)
    assert_close(x, wanted)
    assert x._version > before
    g = place.op("g", several, mutates_args={"y", "z", "w"})
    values = four()
    before = versions(values)
    g(*values)
    after = versions(values)
    assert after[0] == before[0]
    assert all(b > a for a, b in zip(before[1:], after[1:], strict=True))


@statement
def unknown_writes_are_writes_to_everything(place):
    f = place.op("f", several, mutates_args="unknown")
    values = four()
    before = versions(values)
    f(*values)
    assert all(b > a for a, b in zip(before, versions(values), strict=True))
    with pytest.raises(errors.InvalidArgumentError, match="mutates_args is the str x"):
        place.op("g", sine_in_place, mutates_args="x")


@statement
def an_optional_argument_that_is_written_to_may_be_left_out(place):
    def f(x: Tensor, out: Tensor | None = None) -> Tensor:
        if out is None:
            return x.clone()
        out.copy_(x)
        return x.new_empty(0)

    made = place.op("f", f, mutates_args={"out"})
    x = torch.randn(3)
    assert_close(made(x), x)
    out = torch.empty(3)
    before = out._version
    assert made(x, out=out).numel() == 0
    assert_close(out, x)
    assert out._version > before


@statement
def a_definition_with_a_write_warns_of_nothing(place, recwarn):
    place.op("f", sine_in_place, mutates_args=("x",))
    assert not recwarn.list


# --- gradients ------------------------------------------------------------------------------------


@statement
def without_gradients_the_formula_is_not_asked(place):
    f = place.op("f", plus)
    kept = []
    f.register_autograd(
        lambda ctx, g: pytest.fail("not reached"),
        setup_context=lambda ctx, inputs, output: kept.append(1),
    )
    x = leaf(3)
    with torch.no_grad():
        f(x, 2.0)
    f(x.detach(), 2.0)
    assert kept == []
    f(x, 2.0)
    assert kept == [1]


@statement
def a_formula_is_registered_in_three_ways(place):
    for count in range(3):
        name = f"f{next(numbers)}"
        f = place.op(name, sine)
        op = [f, *place.named(name)][count]
        md.register_autograd(op, times_cosine, setup_context=keep_x, registry=place.registry)
        x = leaf(3)
        (gradient,) = torch.autograd.grad(f(x).sum(), x)
        assert_close(gradient, x.cos())


@statement
def a_formula_is_registered_in_a_library(place):
    for count in range(2):
        name = f"f{next(numbers)}"
        f = place.defined(f"{name}(Tensor x) -> Tensor", sine)
        op = place.named(name)[count]
        md.register_autograd(op, times_cosine, setup_context=keep_x, lib=place.lib)
        x = leaf(3)
        (gradient,) = torch.autograd.grad(f(x).sum(), x)
        assert_close(gradient, x.cos())


@statement
def a_formula_gets_what_was_given_by_keyword(place):
    f = place.defined("f(Tensor x, *, float y) -> Tensor", lambda x, *, y: x.detach() * y)

    def setup(ctx, inputs, keyword_only_inputs, output):
        assert list(keyword_only_inputs) == ["y"]
        ctx.y = keyword_only_inputs["y"]

    md.register_autograd(f.default, lambda ctx, g: g * ctx.y, setup_context=setup, lib=place.lib)
    x = leaf(3)
    f(x, y=2.5).sum().backward()
    assert_close(x.grad, torch.full((3,), 2.5))


@statement
def a_formula_gets_the_defaults(place):
    f = place.defined(
        "f(Tensor w, int x=2, *, int y=3, int z) -> Tensor",
        lambda w, x, *, y, z: w.detach() * x * y * z,
    )

    def setup(ctx, inputs, keyword_only_inputs, output):
        assert inputs[1:] == (2,)
        assert keyword_only_inputs == {"y": 3, "z": 42}
        ctx.by = 2 * 3 * 42

    backward = lambda ctx, g: (g * ctx.by, None)  # noqa: E731
    md.register_autograd(f.default, backward, setup_context=setup, lib=place.lib)
    w = leaf(3)
    f(w, z=42).sum().backward()
    assert_close(w.grad, torch.full((3,), 252.0))


@statement
def a_formula_may_leave_out_gradients_of_defaults(place):
    f = place.defined(
        "f(Tensor w, int x=2, *, int y=3, int z) -> Tensor",
        lambda w, x, *, y, z: w.detach() * x * y * z,
    )
    md.register_autograd(f.default, lambda ctx, g: g * 252, lib=place.lib)
    w = leaf(3)
    f(w, z=42).sum().backward()
    assert_close(w.grad, torch.full((3,), 252.0))


@statement
def a_formula_that_returns_too_few_gradients_is_told(place):
    f = place.op("f", sine)
    f.register_autograd(lambda ctx, g: ())
    with pytest.raises(errors.AutogradError, match="returned 0 gradients"):
        f(leaf(3)).sum().backward()


@statement
def a_formula_takes_and_gives_lists(place):
    def f(xs: list[Tensor], by: float = 2.0) -> list[Tensor]:
        return [x.detach() * by for x in xs]

    made, needed = place.op("f", f), []

    def backward(ctx, gs):
        needed.append(ctx.needs_input_grad[0])
        return [g * ctx.by for g in gs], None

    made.register_autograd(
        backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1])
    )
    first, second = leaf(3), leaf(3)
    a, b = made([first, second], 3.0)
    (a.sum() + 2 * b.sum()).backward()
    assert_close(first.grad, torch.full((3,), 3.0))
    assert_close(second.grad, torch.full((3,), 6.0))
    assert needed == [[True, True]]


@statement
def a_node_with_lists_goes_back_more_than_once(place):
    f = place.op("f", lambda xs: torch.stack(xs).detach(), schema="(Tensor[] xs) -> Tensor")
    f.register_autograd(lambda ctx, g: list(g.unbind(0)))
    xs = [leaf() for _ in range(3)]
    others = [leaf() for _ in range(4)]
    y, _ = f(xs), f(others)
    for _ in range(3):
        found = torch.autograd.grad(y.sum(), xs, retain_graph=True)
        assert list(map(float, found)) == [1.0, 1.0, 1.0]


@statement
def a_formula_may_call_its_own_operator(place):
    f = place.op("f", lambda xs: [x.detach() * 2 for x in xs], schema="(Tensor[] xs) -> Tensor[]")
    f.register_autograd(lambda ctx, gs: f(gs))
    x = leaf(2)
    (gradient,) = torch.autograd.grad(f([x])[0].sum(), x, create_graph=True)
    assert_close(gradient, torch.full((2,), 2.0))
    assert gradient.requires_grad is False  # the operator is linear


@statement
def the_backward_pass_names_an_operator_without_a_formula(place):
    y = place.op("f", sine)(leaf(3))
    with pytest.raises(errors.AutogradError, match="has no formula"):
        y.sum().backward()


@statement
def tensors_by_keyword_only_have_no_formula(place):
    for schema in ("(Tensor x, *, Tensor y) -> Tensor", "(Tensor x, *, Tensor[] y) -> Tensor"):
        name = f"f{next(numbers)}"
        md.define(f"{place.ns}::{name}", schema, lib=place.lib)
        with pytest.raises(errors.AutogradError, match="keyword only"):
            md.register_autograd(f"{place.ns}::{name}", lambda ctx, g: g, lib=place.lib)


@statement
def custom_op_refuses_tensors_by_keyword_only(place):
    def f(x: Tensor, *, y: Tensor) -> Tensor:
        return x + y

    with pytest.raises(errors.InvalidArgumentError, match="by keyword only"):
        place.op("f", f)
    given = "(Tensor x, *, Tensor? y) -> Tensor"
    with pytest.raises(errors.InvalidArgumentError, match="by keyword only"):
        place.op("f", lambda x, *, y: x + y, schema=given)


@statement
def a_view_has_no_formula_where_sizes_may_be_symbols(place):
    f = place.op("f", lambda x, i: x.view_as(x), schema="(Tensor(a) x, SymInt i) -> Tensor(a)")
    with pytest.raises(errors.AutogradError, match="share memory"):
        f.register_autograd(lambda ctx, g: (g, None))


@statement
def a_view_of_a_subclass_has_a_formula(place):
    f = place.op("f", lambda x, i: x.view_as(x), schema="(Tensor(a) x, int i) -> Tensor(a)")
    f.register_autograd(lambda ctx, g: (g, None))


# --- fake kernels, and the compiler ---------------------------------------------------------------


@statement
def a_fake_kernel_is_registered_in_three_ways(place):
    for count in range(3):
        name = f"f{next(numbers)}"
        f = place.op(name, plus)
        op, ran = [f, *place.named(name)][count], []
        md.register_fake(op, registry=place.registry)(
            lambda x, y, ran=ran: ran.append(1) or torch.empty_like(x)
        )
        with FakeTensorMode():
            assert f(torch.randn(3), 2.0).shape == (3,)
        assert ran == [1]


@statement
def without_a_fake_kernel_the_error_names_the_operator(place):
    f = place.op("f", plus)
    with FakeTensorMode(), pytest.raises(errors.FakeKernelMissingError, match=f.name):
        f(torch.randn(3), 2.0)
    with pytest.raises(Exception, match=f.name):
        torch.compile(lambda x: f(x, 2.0), backend="eager", fullgraph=True)(torch.randn(3))
    torch._dynamo.reset()
    f.register_fake(lambda x, y: torch.empty_like(x))
    with FakeTensorMode():
        assert f(torch.randn(3), 2.0).shape == (3,)


@statement
def a_registered_fake_kernel_has_its_source(place):
    place.op("f", plus).register_fake(lambda x, y: torch.empty_like(x))
    newest = place.registry.registrations(f"{place.ns}::f")[-1]
    assert newest.key == md.DispatchKey.Meta
    assert "test_torch_statements.py" in newest.where


@statement
def the_compiler_runs_the_fake_kernel_then_the_kernel(place):
    ran = []

    def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ran.append("kernel")
        return torch.from_numpy(x.numpy() @ weight.numpy().T + bias.numpy())

    f = place.op("f", linear)
    f.register_fake(
        lambda x, weight, bias: ran.append("fake") or x.new_empty(x.size(0), weight.size(0))
    )
    x, weight, bias = torch.randn(2, 2), torch.randn(2, 2), torch.randn(2)
    found = torch.compile(f, backend="eager", fullgraph=True)(x, weight, bias)
    assert_close(found, torch.nn.functional.linear(x, weight, bias))
    assert ran[0] == "fake"
    assert ran[-1] == "kernel"


# --- modes, subclasses ----------------------------------------------------------------------------


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@statement
def a_rule_answers_for_a_class_of_tensors(place):
    f = place.op("f", lambda x: x.sin(), schema="(Tensor x) -> Tensor")
    asked, x = [], torch.randn(3)

    def rule(cls, func, types, args, kwargs):
        asked.append(cls)
        return x.sin()

    md.register_dispatch_rule(f, TwoTensor, rule)
    z = TwoTensor(x, x)
    f(z)
    z.cos()
    assert asked == [TwoTensor]


@statement
def a_rule_answers_for_a_class_of_modes(place):
    for count in range(3):
        name = f"f{next(numbers)}"
        f = place.op(name, plus)
        op, asked = [f, *place.named(name)][count], []

        def rule(mode, func, types, args, kwargs, asked=asked):
            asked.append(type(mode))
            return func(*args, **kwargs)

        md.register_dispatch_rule(op, Passing, registry=place.registry)(rule)
        x = torch.randn(3)
        with Passing():
            assert_close(f(x, 2.0), x + 2.0)
            x.cos()
        assert asked == [Passing]


@statement
def a_rule_that_is_registered_in_a_library_ends_with_it(place):
    f = place.op("f", plus)
    asked = []
    lib = md.Library(place.ns, "FRAGMENT", registry=place.registry)

    def rule(mode, func, types, args, kwargs):
        asked.append(1)
        return func(*args, **kwargs)

    md.register_dispatch_rule(f, Passing, rule, lib=lib)
    for _ in range(2):
        with Passing():
            f(torch.randn(3), 2.0)
        lib.close()
    assert asked == [1]


# --- autocast, vmap -------------------------------------------------------------------------------


@statement
def autocast_casts_a_tensor(place):
    for count in range(3):
        name = f"f{next(numbers)}"
        f = place.op(name, lambda x: x.clone(), schema="(Tensor x) -> Tensor")
        op = [f, *place.named(name)][count]
        md.register_autocast(op, "cpu", torch.bfloat16, registry=place.registry)
        x = torch.randn(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert f(x).dtype is torch.bfloat16
        assert f(x).dtype is torch.float32


@statement
def autocast_casts_in_a_library(place):
    f = place.defined("f(Tensor x) -> Tensor", lambda x: x.clone())
    md.register_autocast(f.default, "cpu", torch.bfloat16, lib=place.lib)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert f(torch.randn(3)).dtype is torch.bfloat16


@statement
def autocast_casts_the_tensors_of_a_list(place):
    f = place.op("f", lambda xs: xs[0] + xs[1], schema="(Tensor[] xs) -> Tensor")
    f.register_autocast("cpu", torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert f([torch.randn(3), torch.randn(3)]).dtype is torch.bfloat16


@statement
def autocast_may_be_registered_again_and_nested(place):
    f = place.op("f", lambda x: x.clone(), schema="(Tensor x) -> Tensor")
    for _ in range(2):
        f.register_autocast("cpu", torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.autocast("cpu"):
            assert f(torch.randn(3)).dtype is torch.bfloat16


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def batched(info, in_dims, x, y):
    x = x.movedim(in_dims[0], -1) if in_dims[0] is not None else x.unsqueeze(-1)
    y = y.movedim(in_dims[1], -1) if in_dims[1] is not None else y.unsqueeze(-1)
    return (x * y).movedim(-1, 0), 0


@statement
def vmap_runs_the_registered_function(place):
    for count in range(3):
        name = f"f{next(numbers)}"
        f = place.op(name, product)
        op, ran = [f, *place.named(name)][count], []

        def function(x, y, ran=ran):
            ran.append(1)
            return x * y

        md.register_vmap(op, function, registry=place.registry)
        x, y = torch.randn(2, 2), torch.randn(2, 2)
        assert_close(torch.vmap(f)(x, y), x * y)
        assert_close(torch.vmap(f, out_dims=1)(x, y), (x * y).T)
        assert_close(torch.vmap(f, in_dims=1)(x, y), (x * y).T)
        assert len(ran) == 3


@statement
def vmap_in_vmap(place):
    f = place.op("f", product)
    f.register_vmap(lambda x, y: x * y)
    x, y = torch.randn(3), torch.randn(2)
    found = torch.vmap(torch.vmap(f, in_dims=(0, None)), in_dims=(None, 0))(x, y)
    assert_close(found, y.unsqueeze(-1) * x)


@statement
def the_newest_function_for_vmap_is_in_effect(place):
    f = place.op("f", product)
    f.register_vmap(lambda x, y: x * y)
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    assert_close(torch.vmap(f)(x, y), x * y)
    f.register_vmap(lambda x, y: x + y)
    assert_close(torch.vmap(f)(x, y), x + y)


@statement
def vmap_keeps_keywords_and_defaults(place):
    f = place.defined(
        "f(Tensor w, int x=2, *, int y=3, int z) -> Tensor",
        lambda w, x, *, y, z: w * x * y * z,
    )
    md.register_vmap(f.default, lambda w, x, *, y, z: w * x * y * z, lib=place.lib)
    assert_close(torch.vmap(lambda w: f(w, z=42))(torch.ones(3)), torch.full((3,), 252.0))


@statement
def the_function_for_vmap_gets_the_places_of_the_batch(place):
    f = place.op("f", product)
    f.register_vmap(batched)
    x, y = torch.randn(2, 2), torch.randn(2, 2)
    assert_close(torch.vmap(f)(x, y), x * y)


# --- tags, kernels, libraries ---------------------------------------------------------------------


@statement
def tags_are_given_alone_or_as_a_list(place):
    for tags in (torch.Tag.pointwise, [torch.Tag.pointwise], (torch.Tag.pointwise,)):
        name = f"f{next(numbers)}"
        f = place.op(name, sine, tags=tags)
        assert f.operator.tags == ("pointwise",)
        md.torch.export(f.operator, registry=place.registry)
        theirs = getattr(getattr(torch.ops, place.ns), name).default.tags
        assert {torch.Tag.pointwise, torch.Tag.pt2_compliant_tag} <= set(theirs)


@statement
def a_tag_of_the_layout_reaches_the_compiler(place):
    for tag in (torch.Tag.needs_fixed_stride_order, torch.Tag.flexible_layout):
        name = f"f{next(numbers)}"
        f = place.op(name, sine, tags=tag)
        md.torch.export(f.operator, registry=place.registry)
        theirs = getattr(getattr(torch.ops, place.ns), name).default
        assert torch._library.utils.get_layout_constraint_tag(theirs) is tag


@statement
def a_kernel_can_be_had_and_ends_with_its_library(place):
    name = place.lib.define("f(Tensor x) -> Tensor")
    with md.scoped_library(place.ns, "FRAGMENT", registry=place.registry) as own:
        own.impl(name, lambda x: torch.ones(5), "CPU")
        kernel = md.get_kernel(name, "CPU", registry=place.registry)
        assert_close(kernel(torch.ones(1)), torch.ones(5))
    with pytest.raises(errors.MdispatchError):
        kernel(torch.ones(1))


@statement
def a_kernel_that_replaces_another_may_call_it(place):
    f = place.defined("f(Tensor x, int n) -> Tensor", lambda x, n: x * n)
    original = md.get_kernel(f"{place.ns}::f", "CPU", registry=place.registry)
    place.lib.impl("f", lambda x, n: original(x, n) if n % 2 else x.clone(), "CPU")
    assert [f(torch.ones(1), n).item() for n in (2, 3)] == [1, 3]


@statement
def there_is_no_kernel_where_none_is_registered(place):
    place.defined("f(Tensor x) -> Tensor", sine)
    with pytest.raises(errors.MissingKernelError):
        md.get_kernel(f"{place.ns}::f", "CUDA", registry=place.registry)


# --- the statements, and the table ----------------------------------------------------------------


def table():
    """``{statement: (reason, what happens instead)}``"""
    found = {}
    part = PAGE.read_text().partition("## Statements that do not hold")[2].partition("\n## ")[0]
    for line in part.splitlines():
        match = re.fullmatch(r"\| `(\w+)` \| (.+) \| `(.+)` \|", line)
        if match:
            found[match[1]] = match[2], match[3]
    return found


@pytest.fixture
def place(registry):
    return Place(registry)


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:In CPU autocast")
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_holds_or_fails_for_the_reason_in_the_table(name, place, request):
    function = STATEMENTS[name]
    warns = "recwarn" in function.__code__.co_varnames
    more = (request.getfixturevalue("recwarn"),) if warns else ()
    if name not in table():
        function(place, *more)
        return
    _, instead = table()[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the table says which one
        function(place, *more)
    assert instead in f"{type(caught.value).__name__}: {caught.value}"


def test_the_table_names_statements_only():
    assert table().keys() <= STATEMENTS.keys()
    assert all(len(reason) > 20 for reason, _ in table().values())
