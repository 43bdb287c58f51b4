"""Operators of mdispatch in PyTorch's hands: its modes, its graph, its transforms, its compiler."""

from __future__ import annotations

import importlib.util
import itertools

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.call_c import turn

pytestmark = pytest.mark.either_binding

numbers = itertools.count()


@pytest.fixture(params=["C", "Python"], autouse=True)
def both_ways(request):
    turn(request.param == "C")
    yield
    turn(True)


@pytest.fixture
def ns():
    """A namespace that PyTorch has not seen: what it knows of a name stays in this process."""
    return f"export{next(numbers)}"


@pytest.fixture
def sin(ns, registry):
    @md.custom_op(f"{ns}::sin", mutates_args=(), registry=registry)
    def sin(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    return sin


def with_fake(op):
    op.register_fake(lambda x: torch.empty_like(x))
    return op


def with_formula(op):
    op.register_autograd(
        lambda ctx, g: g * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return op


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


# --- who decides ----------------------------------------------------------------------------------


def test_a_plain_call_does_not_go_to_pytorch(ns, sin):
    x = torch.ones(2)
    assert torch.allclose(sin(x), x.sin())
    assert not hasattr(getattr(torch.ops, ns), "sin")


def test_a_write_raises_the_version(ns, registry):
    @md.custom_op(f"{ns}::fill", mutates_args={"x"}, registry=registry)
    def fill(x: torch.Tensor, value: float) -> None:
        x.detach().numpy()[:] = value

    weight = torch.ones(2, requires_grad=True)
    b = weight * 1
    y = (b * b).sum()
    fill(b.detach(), 10.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_write_to_each_tensor_of_a_list_raises_its_version(ns, registry):
    @md.custom_op(f"{ns}::clear", mutates_args={"xs"}, registry=registry)
    def clear(xs: list[torch.Tensor]) -> None:
        for x in xs:
            x.numpy()[:] = 0

    xs = [torch.ones(2), torch.ones(3)]
    clear(xs)
    assert [each._version for each in xs] == [1, 1]


def test_a_gradient_without_a_formula_is_told(sin):
    x = torch.ones(3, requires_grad=True)
    y = sin(x)
    assert y.requires_grad
    with pytest.raises(errors.AutogradError, match="has no formula") as caught:
        y.sum().backward()
    assert caught.value.operator == sin.name


def test_without_gradients_enabled_none_is_recorded(sin):
    with torch.no_grad():
        assert not sin(torch.ones(3, requires_grad=True)).requires_grad


def test_a_formula_that_comes_later_is_used(sin):
    x = torch.ones(3, requires_grad=True)
    sin(x)  # exported without one
    with_formula(sin)
    sin(x).sum().backward()
    assert torch.allclose(x.grad, torch.ones(3).cos())


def test_fake_tensors_run_the_fake_kernel(sin):
    with_fake(sin)
    with FakeTensorMode() as mode:
        inside = sin(mode.from_tensor(torch.ones(4)))
    assert type(inside).__name__ == "FakeTensor"
    assert inside.shape == (4,)
    assert sin(inside).shape == (4,)  # outside of its mode, too


def test_a_fake_kernel_gets_pytorchs_dynamic_sizes(ns, registry):
    @md.custom_op(f"{ns}::nonzero", mutates_args=(), registry=registry)
    def nonzero(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero()

    @nonzero.register_fake
    def _(x):
        return x.new_empty((md.get_ctx().new_dynamic_size(), x.dim()), dtype=torch.int64)

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        found = nonzero(mode.from_tensor(torch.ones(4)))
    assert isinstance(found.shape[0], torch.SymInt)


def test_a_fake_kernel_may_return_meta_values(sin):
    sin.register_fake(lambda x: md.MetaTensor((3, 2), "float32"))
    with FakeTensorMode() as mode:
        found = sin(mode.from_tensor(torch.ones(4)))
    assert found.shape == (3, 2)
    assert found.dtype is torch.float32


def test_without_a_fake_kernel_it_is_named(sin):
    with FakeTensorMode() as mode, pytest.raises(errors.FakeKernelMissingError):
        sin(mode.from_tensor(torch.ones(4)))


def test_a_mode_of_pytorch_sees_the_call(ns, sin):
    with Seen() as seen:
        sin(torch.ones(2))
    assert f"{ns}.sin.default" in seen.calls


def test_a_mode_that_is_turned_off_does_not(sin, ns):
    with Seen() as seen, torch._C._DisableTorchDispatch():
        sin(torch.ones(2))
    assert seen.calls == []


def test_a_subclass_with_torch_dispatch_is_asked(sin):
    asked = []

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            asked.append(str(func))
            return func(*(each.inner if isinstance(each, cls) else each for each in args))

    assert torch.allclose(sin(Wrapped(torch.ones(2))), torch.ones(2).sin())
    assert len(asked) == 1


def test_a_mode_of_mdispatch_is_asked_first(sin):
    order = []

    class Mine(md.context.DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            order.append("mdispatch")
            return op(*args, **kwargs)

    class Theirs(Seen):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            order.append("PyTorch")
            return super().__torch_dispatch__(func, types, args, kwargs)

    x = torch.ones(2)
    with Theirs(), Mine():
        sin(x)
    assert order[:2] == ["mdispatch", "PyTorch"]


def test_an_observer_sees_that_pytorch_had_the_call(ns, sin):
    seen = []
    with md.observe_calls(seen.append), Seen():
        sin(torch.ones(2))
    assert f"torch.ops.{ns}.sin" in [each.kernel for each in seen]


def test_in_inference_mode_and_autocast_calls_stay_here(ns, sin):
    with torch.inference_mode(), torch.autocast("cpu"):
        assert torch.allclose(sin(torch.ones(2)), torch.ones(2).sin())
    assert not hasattr(getattr(torch.ops, ns), "sin")


# --- export ---------------------------------------------------------------------------------------


@pytest.fixture
def square(ns, registry):
    lib = md.Library(ns, "DEF", registry=registry)
    lib.define("square(Tensor x) -> Tensor")
    lib.impl("square", lambda x: x * x, "CompositeImplicitAutograd")
    lib.define("half(Tensor x, *, float by=2.0) -> Tensor", tags=("pointwise",))
    lib.impl("half", lambda x, *, by: torch.from_numpy(x.detach().numpy() / by), "CPU")
    assert md.torch.export(ns, registry=registry) == (f"{ns}::square", f"{ns}::half")
    return getattr(registry.ops, ns)


def test_an_exported_operator_is_one_of_pytorchs(ns, square):
    theirs = getattr(torch.ops, ns)
    assert torch.equal(theirs.half(torch.ones(2), by=4.0), torch.full((2,), 0.25))
    assert torch.Tag.pointwise in theirs.half.default.tags
    assert str(theirs.half.default._schema) == f"{ns}::half(Tensor x, *, float by=2.) -> Tensor"


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_go_through_an_operator_that_is_made_of_others(square):
    x = torch.tensor([1.0, 2.0, 3.0])
    assert torch.equal(torch.func.grad(lambda t: square.square(t).sum())(x), 2 * x)
    assert torch.equal(torch.vmap(square.square)(x), x * x)


def test_export_names_what_is_missing(registry):
    with pytest.raises(errors.OperatorNotFoundError, match="no operator in nowhere"):
        md.torch.export("nowhere", registry=registry)


def test_a_name_that_pytorch_has_already_is_refused_when_pytorch_wants_the_call(ns, sin):
    theirs = torch.library.Library(ns, "FRAGMENT")
    theirs.define("sin(Tensor x) -> Tensor")
    assert torch.allclose(sin(torch.ones(2)), torch.ones(2).sin())
    with Seen(), pytest.raises(errors.TorchExportError) as caught:
        sin(torch.ones(2))
    assert caught.value.operator == f"{ns}::sin"
    theirs._destroy()
    with Seen() as seen:  # tried again
        sin(torch.ones(2))
    assert seen.calls


def test_an_operator_that_is_made_again_is_exported_again(ns, registry):
    source = (
        "import mdispatch as md, torch\n"
        "@md.custom_op(name, mutates_args=(), registry=registry)\n"
        "def f(x: torch.Tensor) -> torch.Tensor:\n    return x + number\n"
    )
    for number in (1, 2):
        scope = {"name": f"{ns}::f", "registry": registry, "number": number, "__name__": ns}
        exec(compile(source, "cell", "exec"), scope)
        with Seen():
            assert scope["f"](torch.zeros(1)).item() == number


def test_an_autograd_kernel_of_ones_own_is_used(ns, registry):
    lib = md.Library(ns, "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x.detach() * 3, "CPU")
    lib.impl("f", lambda x: x * 5, "Autograd")
    md.torch.export(ns, registry=registry)
    x = torch.ones(2, requires_grad=True)
    getattr(torch.ops, ns).f(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 5.0))


# --- the compiler ---------------------------------------------------------------------------------


def test_compile_in_one_graph(sin):
    with_formula(with_fake(sin))
    x = torch.ones(3, requires_grad=True)
    compiled = torch.compile(lambda t: sin(t) * 2, fullgraph=True, backend="aot_eager")
    y = compiled(x)
    y.sum().backward()
    assert torch.allclose(y, x.sin() * 2)
    assert torch.allclose(x.grad, x.detach().cos() * 2)


def test_the_compiler_follows_calls_by_name(ns, registry):
    @md.custom_op(f"{ns}::twice", mutates_args=(), registry=registry)
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2)

    @md.custom_op(f"{ns}::twice.more", mutates_args=(), registry=registry)
    def more(x: torch.Tensor, times: int) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2 * times)

    twice.register_fake(lambda x: torch.empty_like(x))
    more.register_fake(lambda x, times: torch.empty_like(x))
    packet = getattr(registry.ops, ns).twice
    overload = packet.more

    def program(x):
        return packet(x) + packet(x, 3) + overload(x, 5)

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 18.0))


@pytest.mark.filterwarnings("default:Dynamo does not know")
def test_what_is_not_exported_breaks_the_graph(ns, registry):
    lib = md.Library(ns, "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: torch.from_numpy(x.numpy() * 2), "CPU")
    lib.register_fake("f", lambda x: torch.empty_like(x))
    f = getattr(registry.ops, ns).f
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(lambda x: f(x) + 1, fullgraph=True, backend="eager")(torch.ones(1))
    torch._dynamo.reset()
    md.torch.export(ns, registry=registry)
    compiled = torch.compile(lambda x: f(x) + 1, fullgraph=True, backend="eager")
    assert compiled(torch.ones(1)).item() == 3


def test_an_overload_that_somebody_kept_never_dangles(ns, registry):
    """PyTorch frees the entry of an operator with its last registration, and reads it again."""
    lib = md.Library(ns, "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x * 2, "CPU")
    md.torch.export(ns, registry=registry)
    kept = getattr(torch.ops, ns).f.default
    lib.impl("f", lambda x: x * 5, "Autograd")
    md.torch.export(ns, registry=registry)  # made again, for the sake of its gradients
    assert getattr(torch.ops, ns).f.default is not kept
    assert kept(torch.ones(1)).item() == 5
    lib.close()
    with pytest.raises(errors.OperatorGoneError):
        kept(torch.ones(1))
    lib = md.Library(ns, "DEF", registry=registry)
    lib.define("f(Tensor x, int by) -> Tensor")
    lib.impl("f", lambda x, by: x * by, "CPU")
    md.torch.export(ns, registry=registry)
    with pytest.raises(RuntimeError, match="missing value for argument 'by'"):
        kept(torch.ones(1))


def test_torch_export(ns, sin):
    with_fake(sin)

    class Model(torch.nn.Module):
        def forward(self, t):
            return sin(t) * 2

    program = torch.export.export(Model(), (torch.ones(3),))
    assert f"{ns}.sin.default" in str(program.graph)
    assert torch.allclose(program.module()(torch.ones(3)), torch.ones(3).sin() * 2)


# --- what PyTorch takes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("float", torch.tensor(2.5), 2.5),
        ("float", torch.tensor(2), 2.0),
        ("int", torch.tensor(3), 3),
        ("Scalar", torch.tensor(1.5), 1.5),
    ],
)
def test_a_tensor_of_one_value_is_taken_for_a_number(ns, registry, kind, value, wanted):
    lib = md.Library(ns, "DEF", registry=registry)
    lib.define(f"f({kind} n) -> Any")
    lib.impl("f", lambda n: n, "CompositeExplicitAutograd")
    found = getattr(registry.ops, ns).f(value)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("float", torch.ones(1)),
        ("float", torch.tensor(1.0, requires_grad=True)),
        ("int", torch.tensor(2.5)),
    ],
)
def test_other_tensors_are_no_numbers(ns, registry, kind, value):
    lib = md.Library(ns, "DEF", registry=registry)
    lib.define(f"f({kind} n) -> Any")
    lib.impl("f", lambda n: n, "CompositeExplicitAutograd")
    with pytest.raises(errors.ArgumentError, match=f"takes {kind} for 'n', not Tensor"):
        getattr(registry.ops, ns).f(value)


def test_pytorchs_tags_are_tags(ns, registry):
    lib = md.Library(ns, "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor", tags=(torch.Tag.pointwise, "core"))
    lib.define("g(Tensor x) -> Tensor", tags=torch.Tag.pointwise)
    ops = getattr(registry.ops, ns)
    assert (ops.f.default.tags, ops.g.default.tags) == (("core", "pointwise"), ("pointwise",))
