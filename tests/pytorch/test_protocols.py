"""PyTorch's own protocols: proxies of torch.fx, rules of vmap in PyTorch's form, generators."""

from __future__ import annotations

import pytest

import mdispatch as md

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")


@pytest.fixture
def twice(registry):
    lib = md.Library("proto", "DEF", registry=registry)
    lib.define("twice(Tensor x, *, int n=1) -> Tensor")
    lib.impl("twice", lambda x, n: x * 2 * n, "CPU")
    return registry.ops.proto.twice


def test_fx_traces_a_call(twice):
    graph = torch.fx.symbolic_trace(lambda x: twice(x, n=3) + 1)
    calls = [node for node in graph.graph.nodes if node.op.startswith("call")]
    assert calls[0].target is torch.ops.proto.twice.default
    assert len(calls) == 2
    assert graph(torch.ones(2)).tolist() == [7, 7]
    assert twice.default.entry.peer is not None


def test_arguments_without_an_answer_are_refused_as_ever(twice):
    class NoTensor:
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return NotImplemented

    class Other:
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return function, args, kwargs

    with pytest.raises(TypeError, match="__torch_function__"):
        twice(NoTensor())
    with pytest.raises(md.errors.ArgumentError):
        twice(object())
    with pytest.raises(md.errors.ArgumentError):
        twice(torch.ones(1), n="a")
    other = Other()
    assert twice(other, n=2) == (torch.ops.proto.twice.default, (other,), {"n": 2})


def rule(info, in_dims, x):
    assert info.batch_size == 2
    return x * 3, in_dims[0]


@pytest.mark.parametrize("how", ["custom_op", "function", "library"])
def test_a_rule_of_pytorchs_form_serves_vmap(registry, how):
    op = md.custom_op(
        f"proto::by_{how}", lambda x: x * 2, schema="(Tensor x) -> Tensor", mutates_args=(),
        registry=registry,
    )  # fmt: skip
    name = op.name
    if how == "custom_op":
        assert op.register_vmap(rule) is rule
    elif how == "function":
        assert md.register_vmap(name, registry=registry)(rule) is rule
    else:
        lib = md.Library("proto", "FRAGMENT", registry=registry)
        assert md.register_vmap(name, rule, lib=lib) is rule
    x = torch.arange(6.0).reshape(2, 3)
    for batched, dim in ((x, 0), (x.T, 1)):
        assert torch.vmap(op, in_dims=dim)(batched).tolist() == (x * 3).tolist()
    assert op(x).tolist() == (x * 2).tolist()


def test_a_rule_of_pytorchs_form_is_for_its_tensors_only(registry):
    class Batched:
        __dispatch_keys__ = ("FuncTorchBatched", "CPU")

    op = md.custom_op(
        "proto::own", lambda x: x, schema="(Tensor x) -> Any", mutates_args=(), registry=registry
    )
    op.register_vmap(rule)
    with pytest.raises(md.errors.InvalidArgumentError, match="a rule for PyTorch's vmap"):
        op(Batched())


def test_a_generator_is_an_argument_that_pytorch_knows(registry):
    def draw(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return torch.empty_like(x).uniform_(generator=generator)

    draw.__annotations__ = {
        "x": torch.Tensor,
        "generator": torch.Generator,
        "return": torch.Tensor,
    }
    op = md.custom_op("proto::draw", draw, mutates_args=(), registry=registry)
    assert str(op.operator.schema) == "proto::draw(Tensor x, Generator generator) -> Tensor"
    op.register_fake(lambda x, generator: torch.empty_like(x))
    md.torch.export(op.operator, registry=registry)
    same = [
        call(torch.ones(3), torch.Generator().manual_seed(5)).tolist()
        for call in (op, draw, torch.ops.proto.draw)
    ]
    assert same[0] == same[1] == same[2]
