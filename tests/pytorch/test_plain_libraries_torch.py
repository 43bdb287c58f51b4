"""An operator of a plain Library in the default registry is PyTorch's as one of custom_op is: each
program runs in a process of its own, whose default registry nobody else has.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from patience import limit

torch = pytest.importorskip("torch", reason="PyTorch is not installed here")

BEGIN = """
import mdispatch as md
lib = md.Library("plain", "DEF")
lib.define("times(Tensor x) -> Tensor")
lib.define("put(Tensor(a!) out) -> ()")
lib.define("said(str x) -> str")
lib.impl("said", lambda x: x * 2, "CompositeExplicitAutograd")
"""


def run(code, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BEGIN + code],
        env={**os.environ, "MDISPATCH_REGISTRY": "", **environment},
        capture_output=True,
        text=True,
        timeout=limit(120),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(params=["c", "python"])
def way(request):
    return {} if request.param == "c" else {"MDISPATCH_CALLS": "python"}


GRADIENTS = """
import torch
lib.impl("times", lambda x: torch.from_numpy(x.detach().numpy() * 5), "CPU")
for _ in range(3):
    x = torch.ones(2, requires_grad=True)
    result = md.ops.plain.times(x)
    assert result.requires_grad and result.tolist() == [5, 5]
    try:
        result.sum().backward()
    except md.errors.AutogradError as error:
        print(str(error).splitlines()[0])
    with torch.no_grad():
        assert not md.ops.plain.times(x).requires_grad
md.register_autograd("plain::times", lambda ctx, grad: grad * 5)
for _ in range(3):
    x = torch.ones(2, requires_grad=True)
    md.ops.plain.times(x).sum().backward()
    assert x.grad.tolist() == [5, 5]
"""


def test_a_gradient_that_would_be_lost_is_an_error_with_the_operators_name(way):
    words = "the backward pass came to plain::times, which has no formula"
    assert run(GRADIENTS, **way) == [words] * 3


def test_a_kernel_that_is_made_of_other_operators_is_differentiated(way):
    code = """
import torch
lib.impl("times", lambda x: x * 5, "CompositeImplicitAutograd")
for _ in range(3):
    x = torch.ones(2, requires_grad=True)
    md.ops.plain.times(x).sum().backward()
    print(x.grad.tolist())
"""
    assert run(code, **way) == ["[5.0, 5.0]"] * 3


def test_calls_from_before_pytorch_was_imported_change_nothing(way):
    """Their plans cannot know which calls PyTorch wants."""
    code = """
class Array:
    __dispatch_keys__ = "CPU"

lib.impl("put", lambda out: None, "CPU")
for _ in range(3):
    md.ops.plain.put(Array())
    md.ops.plain.said("a")
import torch
out = torch.zeros(2)
versions = []
for _ in range(4):
    md.ops.plain.put(out)
    md.ops.plain.put(Array())
    versions.append(out._version)
print(versions, md.ops.plain.said("a"))
"""
    assert run(code, **way) == ["[1, 2, 3, 4] aa"]


def test_modes_and_graphs_see_it(way):
    code = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        print(function)
        return function(*args, **(kwargs or {}))

lib.impl("times", lambda x: torch.from_numpy(x.numpy() * 5), "CPU")
lib.register_fake("times", lambda x: torch.empty_like(x))
x = torch.ones(2)
with Seen():
    md.ops.plain.times(x)
with FakeTensorMode() as mode:
    print(type(md.ops.plain.times(mode.from_tensor(x))).__name__)
compiled = torch.compile(lambda x: md.ops.plain.times(x) + 1, fullgraph=True, backend="eager")
print(compiled(x).tolist(), torch.ops.plain.times(x).tolist())
"""
    assert run(code, **way) == ["plain.times.default", "FakeTensor", "[6.0, 6.0] [5.0, 5.0]"]


def test_a_definition_that_ends_takes_its_twin_along(way):
    code = """
import torch
x = torch.ones(2, requires_grad=True)
for by in (5, 7):
    lib.impl("times", lambda x: x.detach() * by, "CPU")
    print(md.ops.plain.times(x).tolist(), torch.ops.plain.times(x).tolist())
    lib.close()
    lib = md.Library("plain", "DEF")
    lib.define("times(Tensor x) -> Tensor")
"""
    assert run(code, **way) == [f"[{by}.0, {by}.0] [{by}.0, {by}.0]" for by in (5, 7)]


def test_those_of_other_registries_are_exported_by_hand(way):
    code = """
import torch
with md.Registry.create() as registry:
    other = md.Library("other", "DEF", registry=registry)
    other.define("times(Tensor x) -> Tensor")
    other.impl("times", lambda x: torch.from_numpy(x.detach().numpy() * 5), "CPU")
    x = torch.ones(2, requires_grad=True)
    print(registry.ops.other.times(x).requires_grad)
    md.torch.export("other", registry=registry)
    print(registry.ops.other.times(x).requires_grad)
"""
    assert run(code, **way) == ["False", "True"]
