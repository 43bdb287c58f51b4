"""An operator that writes has one gradient: eager, compiled, exported and loaded. PyTorch's own
operator of the same form is beside it.
"""

from __future__ import annotations

import io

import pytest

import mdispatch as md

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")


def act(out, x):
    out.copy_(torch.nn.functional.silu(x))


def act_and_more(out, x):
    out.copy_(torch.nn.functional.silu(x))
    return x * 3


@pytest.fixture(scope="module")
def pairs():
    """The operators by form: ours and PyTorch's. All are exported from their first call on."""
    tensor = torch.Tensor
    act.__annotations__ = {"out": tensor, "x": tensor, "return": None}
    act_and_more.__annotations__ = {"out": tensor, "x": tensor, "return": tensor}
    made = {}
    with md.Registry.create() as registry:
        for function in (act, act_and_more):
            name = function.__name__
            writes = ("out",)
            ours = md.custom_op(
                f"one_here::{name}", function, mutates_args=writes, registry=registry
            )
            theirs = torch.library.custom_op(f"one_there::{name}", function, mutates_args=writes)
            if name == "act_and_more":
                ours.register_fake(lambda out, x: torch.empty_like(x))
                theirs.register_fake(lambda out, x: torch.empty_like(x))
            made[name] = ours, theirs
        lib = md.Library("one_lib", "DEF", registry=registry, torch=True)
        lib.define("act(Tensor(a!) out, Tensor x) -> ()")
        lib.impl("act", act, "CPU")
        made["library"] = registry.ops.one_lib.act, made["act"][1]
        yield made


def outcome(op, how):
    """The result and the gradient of a program that calls it, or the class of the error."""

    def program(a):
        out = torch.empty_like(a)
        more = op(out, a)
        return (out * a).sum() if more is None else (out * a).sum() + more.detach().sum()

    torch._dynamo.reset()
    if how == "exported":
        saved = io.BytesIO()
        torch.export.save(torch.export.export(Program(program), (torch.tensor([1.0, 2.0]),)), saved)
        saved.seek(0)
        run = torch.export.load(saved).module()
    elif how == "eager":
        run = program
    else:
        run = torch.compile(program, backend=how.removeprefix("compiled by "), fullgraph=True)
    a = torch.tensor([1.0, 2.0], requires_grad=True)
    result = run(a)
    result.backward()
    return result.item(), a.grad.tolist()


class Program(torch.nn.Module):
    def __init__(self, program):
        super().__init__()
        self.program = program

    def forward(self, a):
        return self.program(a)


HOW = ["eager", "compiled by eager", "compiled by aot_eager", "exported"]
HOW += [pytest.param("compiled by inductor", marks=pytest.mark.long)]


@pytest.mark.parametrize("form", ["act", "act_and_more", "library"])
@pytest.mark.parametrize("how", HOW)
def test_a_write_has_the_gradient_of_torch_library(pairs, form, how):
    ours, theirs = pairs[form]
    assert outcome(ours, how) == outcome(theirs, how) == outcome(theirs, "eager")


def test_the_gradient_of_a_new_tensor_is_an_error_in_words(pairs):
    for op, error in zip(
        pairs["act_and_more"], (md.errors.AutogradError, RuntimeError), strict=True
    ):
        x = torch.ones(2, requires_grad=True)
        result = op(torch.empty(2), x)
        assert result.requires_grad
        with pytest.raises(error, match=r"writes to an argument|no autograd formula"):
            result.sum().backward()
        with torch.no_grad():
            assert not op(torch.empty(2), x).requires_grad
    ours, out = pairs["act_and_more"][0], torch.zeros(2)
    with pytest.raises(md.errors.AutogradError, match="writes to an argument"):
        torch.func.grad(lambda x: ours(out, x).sum())(torch.ones(2))
    assert out.tolist() == [0, 0]  # refused before the kernel ran


@pytest.mark.parametrize("form", ["act", "act_and_more", "library"])
def test_a_write_raises_the_version_and_changes_no_graph(pairs, form):
    versions = []
    for op in pairs[form]:
        leaf = torch.zeros(2, requires_grad=True)
        middle = leaf * 1
        square = middle * middle
        node = middle.grad_fn
        op(middle, torch.ones(2))
        assert middle.grad_fn is node
        versions.append(middle._version)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            square.sum().backward()
        with torch.inference_mode():
            op(torch.zeros(2), torch.ones(2))
    assert versions[0] > 0
