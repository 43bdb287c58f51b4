"""Formulas for PyTorch's tensors: its own graph keeps the calls, its own checks look at them."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys
import weakref

import pytest
from kinds import SUPPORT
from patience import limit

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import torch
from tapes import Tape
from torch.autograd import gradcheck, gradgradcheck

import mdispatch as md
from mdispatch import errors
from mdispatch.authoring.autograd import register_autograd

pytestmark = pytest.mark.either_binding


@pytest.fixture
def lib(registry):
    return md.Library("t", "DEF", registry=registry)


def define(lib, schema, kernel, backward, setup_context=None):
    name = lib.define(schema)
    lib.impl(name, kernel, "CPU")
    register_autograd(name, backward, setup_context=setup_context, lib=lib)
    return getattr(lib.registry.ops.t, name.partition("::")[2])


def keep_inputs(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def leaf(*items):
    return torch.tensor(items, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def mul(lib):
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return mul(g, b), mul(g, a)

    mul = define(
        lib,
        "mul(Tensor a, Tensor b) -> Tensor",
        lambda a, b: torch.from_numpy(a.detach().numpy() * b.detach().numpy()),
        backward,
        keep_inputs,
    )
    return mul


def test_pytorch_finds_first_and_second_gradients_right(mul):
    a, b = leaf(0.5, -1.25, 2.0), leaf(3.0, 0.75, -0.5)
    assert gradcheck(mul, (a, b))
    assert gradgradcheck(mul, (a, b))
    assert gradcheck(lambda x: mul(mul(x, x), x), (a,))
    assert gradgradcheck(lambda x: mul(mul(x, x), x), (a,))


def test_lists_of_tensors_are_differentiated_in_both_directions(lib):
    seen = []

    def setup_context(ctx, inputs, output):
        seen.append(ctx.needs_input_grad)
        ctx.factor = inputs[1]

    def backward(ctx, gradients, number, last):
        seen.append(ctx.needs_input_grad)
        assert number is None
        return [g * ctx.factor + last for g in gradients], None, None

    f = define(
        lib,
        "f(Tensor?[] xs, float factor, Tensor? y=None) -> (Tensor[], int, Tensor)",
        lambda xs, factor, y: (
            [factor * x.detach() for x in xs if x is not None],
            7,
            sum(x.detach() for x in xs if x is not None),
        ),
        backward,
        setup_context,
    )
    a, b, c = leaf(0.5, -1.25), torch.tensor([1.0, 2.0], dtype=torch.float64), leaf(3.0, 0.75)
    (first, second, third), number, total = f([a, b, c], 3.0)
    assert number == 7
    assert all(each.requires_grad for each in (first, second, third, total))
    assert gradcheck(lambda a, c: (*f([a, b, c], 3.0)[0], f([a, b, c], 3.0)[2]), (a, c))
    assert seen[0] == ([True, False, True], False, False)
    assert set(map(str, seen)) == {str(seen[0])}


def test_only_what_needs_a_gradient_takes_the_way_through_the_graph(mul):
    a, plain = leaf(1.0), torch.ones(1, dtype=torch.float64)
    assert mul(a, plain).grad_fn is not None
    assert mul(plain, plain).grad_fn is None
    with torch.no_grad():
        assert not mul(a, a).requires_grad
    # The formula gives a gradient for the other one, too, which goes nowhere.
    assert torch.autograd.grad(mul(a, plain), a)[0].item() == 1.0


def test_what_is_saved_is_pytorch_s_to_keep(lib):
    def backward(ctx, g):
        x, word, y, nothing = ctx.saved_tensors
        assert (word, nothing) == ("word", None)
        return g * x * y

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], "word", output, None)

    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.detach() ** 2, backward, setup_context)
    x = leaf(2.0)
    y = f(x)
    (found,) = torch.autograd.grad(y, x, retain_graph=True)
    assert found.item() == 8.0
    torch.autograd.grad(y, x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)
    y = f(x)
    with torch.no_grad():
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="inplace"):
        torch.autograd.grad(y, x)


def test_no_output_is_kept_alive_by_its_own_graph(lib):
    f = define(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: x.detach() ** 2,
        lambda ctx, g: g,
        lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    y = f(leaf(2.0))
    gc.collect()
    gc.disable()
    try:
        ref = weakref.ref(y)
        del y
        assert ref() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("materialize", [True, False])
def test_outputs_that_no_gradient_has_reached_have_zeros_or_none(lib, materialize):
    seen = []

    def backward(ctx, first, second):
        seen.append(second if second is None else second.tolist())
        return first

    f = define(
        lib,
        "f(Tensor x) -> (Tensor, Tensor)",
        lambda x: (x.detach() * 1, x.detach() * 1),
        backward,
        lambda ctx, inputs, output: ctx.set_materialize_grads(materialize),
    )
    x = leaf(1.0, 2.0)
    torch.autograd.grad(f(x)[0].sum(), x)
    assert seen == [[0.0, 0.0] if materialize else None]


def test_an_output_that_is_marked_needs_no_gradient(lib):
    f = define(
        lib,
        "f(Tensor x) -> (Tensor, Tensor)",
        lambda x: (x.detach() * 1, x.detach() * 1),
        lambda ctx, g, h: g,
        lambda ctx, inputs, output: ctx.mark_non_differentiable(output[1]),
    )
    first, second = f(leaf(1.0))
    assert (first.requires_grad, second.requires_grad) == (True, False)


def test_lists_and_optional_returns_may_be_empty(lib):
    f = define(
        lib,
        "f(Tensor x) -> (Tensor[], Tensor?)",
        lambda x: ([], None),
        lambda ctx, gradients, g: None,
    )
    assert f(leaf(1.0)) == ([], None)


def test_a_wrong_count_of_gradients_names_the_operator(lib):
    f = define(
        lib,
        "f(Tensor a, Tensor b) -> Tensor",
        lambda a, b: (a + b).detach(),
        lambda ctx, g: g,
    )
    a = leaf(1.0)
    with pytest.raises(errors.AutogradError, match="a tuple of 2") as caught:
        torch.autograd.grad(f(a, a), a)
    assert caught.value.operator == "t::f"
    assert __file__ in str(caught.value)


def test_what_a_formula_raises_comes_out_of_pytorch_s_backward_pass(lib):
    def backward(ctx, g):
        raise ZeroDivisionError("by the formula")

    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.detach() * 1, backward)
    with pytest.raises(ZeroDivisionError, match="by the formula"):
        f(leaf(1.0)).backward()


def test_an_operator_made_of_others_is_differentiated_through_them(lib, mul):
    lib.define("cube(Tensor x) -> Tensor")
    lib.impl("cube", lambda x: mul(mul(x, x), x) + 1.0)
    assert gradcheck(lib.registry.ops.t.cube, (leaf(0.5, 2.0),))


def test_a_tape_may_watch_tensors_that_need_no_gradient_of_pytorch(mul):
    x = torch.tensor([2.0, 3.0])
    with Tape(ones_like=torch.ones_like) as outer:
        outer.watch(x)
        with Tape(ones_like=torch.ones_like) as inner:
            inner.watch(x)
            y = mul(mul(x, x), x)
        first = inner.gradient(y, x)
    assert first.tolist() == [12.0, 27.0]
    assert outer.gradient(first, x).tolist() == [12.0, 18.0]


def test_tensors_of_a_tape_and_of_pytorch_s_graph_do_not_mix(mul):
    x, y = leaf(1.0), torch.ones(1, dtype=torch.float64)
    with Tape() as tape:
        tape.watch(y)
        with pytest.raises(errors.AutogradError, match="TapeEngine and TorchEngine"):
            mul(x, y)


def test_the_backward_pass_of_another_thread_runs_the_formula_too(mul):
    # PyTorch runs a backward pass of the CPU in the calling thread; here that is one of a pool.
    from concurrent.futures import ThreadPoolExecutor

    x = leaf(3.0)
    y = mul(x, x)
    with ThreadPoolExecutor(2) as pool:
        passes = [pool.submit(torch.autograd.grad, y, x, retain_graph=True) for _ in range(8)]
    assert [each.result()[0].item() for each in passes] == [6.0] * 8


def test_nothing_imports_torch_to_find_out_whether_it_is_there(tmp_path):
    text = """
import sys
import mdispatch as md
from mdispatch import register_autograd
from tapes import Tape

class Number(float):
    __dispatch_keys__ = "CPU"

with md.Registry.create() as registry:
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: Number(2 * x), "CPU")
    register_autograd("t::f", lambda ctx, g: 2 * g, lib=lib)
    x = Number(1.0)
    with Tape() as tape:
        tape.watch(x)
        y = registry.ops.t.f(x)
    assert tape.gradient(y, x) == 2.0
from mdispatch.authoring.autograd import engines
assert "torch" not in sys.modules
assert engines._torch_engine is None
"""
    text = f"import sys\nsys.path.insert(0, {SUPPORT!r})\n{text}"
    subprocess.run([sys.executable, "-c", text], check=True, timeout=limit(60))


def test_calls_go_on_while_torch_is_being_imported():
    text = """
import sys
import mdispatch as md

class Value:
    __dispatch_keys__ = ("CPU", "AutogradCPU")

lib = md.Library("t", "DEF")
lib.define("f(Tensor x) -> int")
lib.impl("f", lambda x: 1, "CPU")
md.register_autograd("t::f", lambda ctx, g: None, lib=lib)
answers = set()

class Meanwhile:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torch."):  # not what a call imports
            answers.add(md.ops.t.f(Value()))

sys.meta_path.insert(0, Meanwhile())
import torch
assert answers == {1}
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=limit(60))


class Claims:
    """Not a tensor, whatever it says: PyTorch would read other memory than a tensor's."""

    __class__ = torch.Tensor


def test_what_only_claims_to_be_a_tensor_stays_a_constant_of_the_graph(lib):
    md.register_type(Claims, "CPU")
    claims, seen = Claims(), []

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, *output)
        seen.append(ctx.needs_input_grad)

    def backward(ctx, g, of_claims):
        assert ctx.saved_tensors[1] is claims
        assert ctx.saved_tensors[3] is claims
        return g * 2, None

    both = define(
        lib,
        "both(Tensor x, Tensor y) -> (Tensor, Tensor)",
        lambda x, y: (x.detach() * 2, y),
        backward,
        setup_context,
    )
    x = leaf(1.0, 2.0)
    doubled, other = both(x, claims)
    assert other is claims
    assert seen == [(True, False)]
    doubled.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_gradient_that_only_claims_to_be_a_tensor_is_refused(lib):
    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.detach() * 2, lambda ctx, g: Claims())
    with pytest.raises(errors.AutogradError, match="t::f returned a Claims"):
        f(leaf(1.0)).sum().backward()
