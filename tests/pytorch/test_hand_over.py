"""Calls of an operator that writes go from C straight to PyTorch's operator, if no mode, rule or
observer comes first. Each program runs in both ways, and comes to the same.
"""

from __future__ import annotations

import pytest

import mdispatch as md
from mdispatch.dispatch.call_c import turn

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")


@pytest.fixture
def fill(registry):
    lib = md.Library("over", "DEF", registry=registry, torch=True)
    lib.define("fill(Tensor(a!) out, Tensor? x, int n=1, *, float by=1.0) -> Tensor(a!)")

    def kernel(out, x, n, *, by):
        return out.copy_(x * n * by) if x is not None else out.zero_()

    lib.impl("fill", kernel, "CPU")
    return registry.ops.over.fill


@pytest.fixture(params=[True, False], ids=["C", "Python"])
def way(request):
    turn(request.param)
    yield request.param
    turn(True)


def given():
    return torch.zeros(2), torch.ones(2)


def test_each_form_of_a_call_comes_to_the_same(fill, way):
    for _ in range(3):
        out, x = given()
        assert fill(out, x) is out
        assert (out.tolist(), out._version) == ([1, 1], 2)
        assert fill(out, x, 3).tolist() == [3, 3]
        assert fill(out, x, 3, by=2).tolist() == [6, 6]
        assert fill(x=x, out=out, n=True, by=0.5).tolist() == [0.5, 0.5]
        assert fill(out, None).tolist() == [0, 0]
        with torch.inference_mode():
            out, x = given()
            assert fill(out, x).tolist() == [1, 1]
            assert out.is_inference()
        for wrong in ((out,), (out, x, "a"), (out, x, 1, 2), (out, 3)):
            with pytest.raises(md.errors.ArgumentError):
                fill(*wrong)


def test_modes_and_fake_tensors_see_it(fill, way):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    for _ in range(3):
        seen = []
        with Seen():
            fill(*given())
        assert "over.fill.default" in map(str, seen)
    md.register_fake("over::fill", lambda out, x, n, *, by: out, registry=registry_of(fill))
    for _ in range(3):
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(each) for each in given()]
            assert type(fill(*fake)).__name__ == "FakeTensor"


def registry_of(packet):
    return packet.default.dispatcher.holder


def test_those_that_are_asked_here_come_first(fill, way):
    class Mode(md.context.DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            asked.append(op)
            return op(*args, **kwargs)

    for _ in range(2):
        fill(*given())
    asked, told = [], []
    with Mode():
        fill(*given())
    assert asked == [fill.default]
    with md.observe_calls(lambda call: told.append(call.operator)):
        fill(*given())
    assert "over::fill" in told


def test_it_is_exported_again_after_a_change(registry, way):
    op = md.custom_op(
        "over::act", lambda out, x: None, schema="(Tensor(a!) out, Tensor x) -> ()",
        mutates_args=("out",), registry=registry,
    )  # fmt: skip
    for _ in range(3):
        op(*given())
    first = op.operator.entry.peer.overload
    ran = []
    lib = md.Library("over", "IMPL", registry=registry)
    lib.impl("act", lambda out, x: ran.append("own"), "Autograd")
    for _ in range(3):
        op(torch.zeros(2), torch.ones(2, requires_grad=True))
    assert op.operator.entry.peer.overload is not first
    assert ran == ["own"] * 3
    lib.close()
    for _ in range(3):
        op(torch.zeros(2), torch.ones(2, requires_grad=True))
    assert ran == ["own"] * 3


def test_other_values_stay_here(registry, way):
    class Here:
        __dispatch_keys__ = "CPU"

    lib = md.Library("over", "DEF", registry=registry, torch=True)
    lib.define("mix(Tensor(a!) out, Tensor x) -> ()")
    lib.impl("mix", lambda out, x: seen.append((type(out), type(x))), "CPU")
    seen = []
    for _ in range(3):
        for pair in ((torch.zeros(1), Here()), (Here(), torch.zeros(1)), (Here(), Here())):
            seen.clear()
            registry.ops.over.mix(*pair)
            assert seen == [tuple(map(type, pair))]


def test_calls_in_c_do_not_come_by_python(fill, way, monkeypatch):
    from mdispatch.torch.exported import Exported

    out, x = given()
    fill(out, x)
    came, slot = [], Exported.slot
    monkeypatch.setattr(Exported, "slot", lambda *asked: came.append(1) or slot(*asked))
    for _ in range(3):
        fill(out, x)
        fill(out, x, by=2.0)
    assert len(came) == (0 if way else 6)
