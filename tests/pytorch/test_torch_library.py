"""``Library(..., torch=True)``: what it defines is an operator of PyTorch as well."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed here", allow_module_level=True)

import numpy as np
import torch
from commands import environment
from kinds import run_main
from patience import limit

import mdispatch as md
from mdispatch import errors

pytestmark = pytest.mark.either_binding

numbers = itertools.count()


@pytest.fixture
def ns():
    """A namespace that PyTorch has not seen: what it knows of a name stays in this process."""
    return f"library{next(numbers)}"


@pytest.fixture
def lib(ns, registry):
    return md.Library(ns, "DEF", torch=True, registry=registry)


def of_torch(ns):
    return getattr(torch.ops, ns)


def sine(x):
    return torch.from_numpy(np.sin(x.detach().numpy()))


def test_what_it_defines_is_there_for_pytorch(ns, lib):
    lib.define("f(Tensor x) -> Tensor")
    lib.define("f.twice(Tensor x, int n) -> Tensor")
    lib.impl("f", sine, "CPU")
    lib.impl("f.twice", lambda x, n: x * n, "CPU")
    assert torch.allclose(of_torch(ns).f(torch.ones(2)), torch.ones(2).sin())
    assert of_torch(ns).f.twice(torch.ones(1), 3).item() == 3


def test_what_other_libraries_define_is_not(ns, lib, registry):
    other = md.Library(ns, "FRAGMENT", registry=registry)
    other.define("g(Tensor x) -> Tensor")
    assert not hasattr(of_torch(ns), "g")


def test_kernels_that_come_later_reach_pytorchs_side(ns, lib, registry):
    """PyTorch has to know whether an operator is made of others before it calls it."""
    lib.define("f(Tensor x) -> Tensor")
    elsewhere = md.Library(ns, "IMPL", registry=registry)
    elsewhere.impl("f", lambda x: x.sin() * 2, "CompositeImplicitAutograd")
    x = torch.ones(2, requires_grad=True)
    of_torch(ns).f(x).sum().backward()  # no call of ours comes before this
    assert torch.allclose(x.grad, 2 * torch.ones(2).cos())


def test_a_formula_that_comes_later_is_used_by_pytorch(ns, lib, registry):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", sine, "CPU")
    md.register_autograd(
        f"{ns}::f",
        lambda ctx, g: g * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        registry=registry,
    )
    x = torch.ones(2, requires_grad=True)
    of_torch(ns).f(x).sum().backward()
    assert torch.allclose(x.grad, torch.ones(2).cos())


def test_it_compiles_in_one_graph(ns, lib, registry):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", sine, "CPU")
    lib.register_fake("f", lambda x: torch.empty_like(x))
    f = getattr(registry.ops, ns).f
    compiled = torch.compile(lambda x: f(x) + 1, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(torch.ones(2)), torch.ones(2).sin() + 1)


def test_closing_the_library_takes_its_operators_out_of_pytorch(ns, lib, registry):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", sine, "CPU")
    of_torch(ns).f(torch.ones(1))
    kept = of_torch(ns).f.default
    lib.close()
    assert not hasattr(of_torch(ns), "f")
    with pytest.raises(RuntimeError):
        kept(torch.ones(1))
    with torch.library._scoped_library(ns, "DEF") as theirs:
        theirs.define("f(Tensor x, int by) -> Tensor")  # the name is free


def test_closing_the_registry_takes_its_operators_out_of_pytorch(ns):
    for by in (2, 3):  # each time in a registry of its own, as after a restart of the registrar
        with md.Registry.create() as registry:
            lib = md.Library(ns, "DEF", torch=True, registry=registry)
            other = md.Library(ns, "FRAGMENT", registry=registry)
            for each, name in ((lib, "f"), (other, "g")):
                each.define(f"{name}(Tensor x) -> Tensor")
                each.impl(name, lambda x, by=by: x * by, "CPU")
            other.define("h(Tensor x) -> Tensor")  # without a kernel
            assert md.torch.export(f"{ns}::h", registry=registry) == (f"{ns}::h",)
            md.torch.export(f"{ns}::g", registry=registry)
            assert of_torch(ns).f(torch.ones(1)).item() == by
            assert of_torch(ns).g(torch.ones(1)).item() == by
        for name in ("f", "g", "h"):
            assert not hasattr(of_torch(ns), name)
        lib.close()


def test_an_operator_that_ends_while_it_is_exported_is_gone(ns, registry, monkeypatch):
    lib = md.Library(ns, "DEF", registry=registry)
    name = f"{ns}::f"
    lib.define("f(Tensor x) -> Tensor")
    real = torch.library.Library

    def ends(*args):
        lib.close()  # as another thread, or the registrar
        return real(*args)

    monkeypatch.setattr(torch.library, "Library", ends)
    with pytest.raises(errors.OperatorGoneError) as caught:
        md.torch.export(name, registry=registry)
    assert "another name" not in str(caught.value)
    monkeypatch.undo()
    assert not hasattr(of_torch(ns), "f")
    again = md.Library(ns, "DEF", registry=registry)
    again.define("f(Tensor x) -> Tensor")
    again.impl("f", sine, "CPU")
    md.torch.export(name, registry=registry)
    assert torch.allclose(of_torch(ns).f(torch.ones(2)), torch.ones(2).sin())


def test_an_operator_that_is_defined_anew_is_exported_anew(ns, lib, registry):
    lib.define("f(Tensor x) -> Tensor")
    lib.close()
    again = md.Library(ns, "DEF", torch=True, registry=registry)
    again.define("f(Tensor x, int by) -> Tensor")
    again.impl("f", lambda x, by: x * by, "CPU")
    lib.close()  # once more, which is no business of the new one
    assert of_torch(ns).f(torch.ones(1), 4).item() == 4


def test_an_export_after_it_is_the_same_one(ns, lib, registry):
    lib.define("f(Tensor x) -> Tensor")
    there = of_torch(ns).f.default
    assert md.torch.export(ns, registry=registry) == (f"{ns}::f",)
    assert of_torch(ns).f.default is there


def test_a_name_that_pytorch_has_already_is_refused_and_nothing_is_defined(ns, lib, registry):
    with torch.library._scoped_library(ns, "FRAGMENT") as theirs:
        theirs.define("f(Tensor x) -> Tensor")
        with pytest.raises(errors.TorchExportError, match="must have another name"):
            lib.define("f(Tensor x) -> Tensor")
    assert registry.operators() == []
    lib.define("f(Tensor x) -> Tensor")
    assert registry.operators() == [f"{ns}::f"]


def test_a_library_that_defines_nothing_is_refused(ns, registry):
    with pytest.raises(errors.InvalidArgumentError, match="nothing to export: give torch=True"):
        md.Library(ns, "IMPL", torch=True, registry=registry)


def test_without_pytorch_it_is_refused_and_nothing_is_imported():
    program = """
import sys, mdispatch as md
registry = md.Registry.create()
try:
    md.Library("shop", "DEF", torch=True, registry=registry)
except md.errors.InvalidArgumentError as error:
    print(error)
print("torch" in sys.modules, "mdispatch.torch" in sys.modules)
md.Library("shop", "DEF", registry=registry).define("f() -> ()")
print(registry.operators())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(), capture_output=True, text=True, timeout=limit(60), check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "Library('shop', ..., torch=True) needs PyTorch: import torch first",
        "False False",
        "['shop::f']",
    ]


MAIN = """
import tempfile
import textwrap
from pathlib import Path

import mdispatch as md
import torch

lib = md.Library("both", "DEF", torch=True)
lib.define("f(Tensor x, float by=2.0) -> Tensor")
lib.impl("f", lambda x, by: x * by, "CPU")
with tempfile.TemporaryDirectory() as folder:
    text = '''
    import mdispatch as md, torch
    try:
        lib = md.Library("both", "DEF", torch=True)
        lib.define("f(Tensor x, float by=DEFAULT) -> Tensor")
        lib.impl("f", lambda x, by: x * by, "CPU")
        report(role=md.register_or_verify(), gave=torch.ops.both.f(torch.ones(1)).item())
    except md.errors.MdispatchError as error:
        report(refused=type(error).__name__, there=hasattr(torch.ops.both, "f"))
    '''
    text = textwrap.dedent(text).replace("DEFAULT", args[0])
    there = results(start("subprocess", text, 1, Path(folder)))[0]
done(here=torch.ops.both.f(torch.ones(1)).item(), **there)
"""


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.timeout(180)
def test_a_worker_verifies_and_has_an_export_of_its_own():
    got = run_main(MAIN, "2.0")
    assert (got["role"], got["here"], got["gave"]) == ("verify", 2.0, 2.0)


@pytest.mark.thorough
@pytest.mark.shared
@pytest.mark.timeout(180)
def test_a_worker_that_differs_exports_nothing():
    got = run_main(MAIN, "3.0")
    assert (got["refused"], got["here"], got["there"]) == ("SchemaMismatchError", 2.0, False)
