"""The names by which programs for torch.library know an operator, a library, an operator made from
a function and the context of a fake kernel; and the module that stands in for ``torch``.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.util import find_spec

import pytest
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch import torch_compat as C


class Array:
    __dispatch_keys__ = "CPU"
    dtype = "float32"
    shape = (2,)


@pytest.fixture(autouse=True)
def using(registry):
    with C.using(registry):
        yield


@pytest.fixture
def lib(registry):
    lib = C.Library("shop", "DEF")
    lib.define("twice(Tensor x, int n=2) -> Tensor")
    lib.define("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    lib.impl("twice", lambda x, n: (x, n), "CPU")
    return lib


# --- operators ------------------------------------------------------------------------------------


def test_an_operator_has_pytorchs_names(lib, registry):
    op, out = C.ops.shop.twice.default, C.ops.shop.twice.out
    assert (op.name(), op._name, op._opname, op._overloadname, op.namespace) == (
        *("shop::twice", "shop::twice", "twice", "default", "shop"),
    )
    assert (out.name(), out._opname, out._overloadname) == ("shop::twice.out", "twice", "out")
    assert (str(op), repr(op)) == ("shop.twice.default", repr(op))
    assert repr(out) == "<OpOverload(op='shop.twice', overload='out')>"
    assert op._schema.arguments[1].default_value == 2
    assert out._schema.overload_name == "out"
    assert type(op._op) is md.OpOverload


def test_it_is_the_operator_of_mdispatch(lib, registry):
    op, ours = C.ops.shop.twice.default, registry.ops.shop.twice.default
    assert isinstance(op, md.OpOverload)
    assert op == ours == op._op
    assert {op: 1}[ours] == 1
    assert op.name == ours.name
    assert op.overloadpacket.out == C.ops.shop.twice.out
    assert md.get_kernel(op, "CPU").operator == ours


def test_a_call_comes_to_the_kernel(registry):
    lib = C.Library("shop", "DEF")
    lib.define("count(Tensor x, int n=2) -> int")
    lib.impl("count", lambda x, n: n, "CPU")
    x = Array()
    packet = C.ops.shop.count
    assert packet(x) == packet.default(x) == packet.default._op(x) == 2
    assert packet.default.redispatch(md.DispatchKeySet("CPU"), x, n=5) == 5


def test_a_packet_has_pytorchs_names(lib):
    packet = C.ops.shop.twice
    assert packet._qualified_op_name == "shop::twice"
    assert (str(packet), repr(packet)) == ("shop.twice", "<OpOverloadPacket(op='shop.twice')>")
    assert packet.overloads() == ["default", "out"]
    assert [*packet._schemas] == ["", "out"]
    assert packet._schemas["out"].arguments[1].is_out
    assert C.ops.shop.twice is packet
    assert type(packet.out) is C.OpOverload


def test_an_operator_that_ends_is_not_found_and_a_new_one_is(lib):
    op = C.ops.shop.twice.default
    lib._destroy()
    assert op.is_gone
    assert not hasattr(C.ops.shop, "twice")
    C.Library("shop", "DEF").define("twice(Tensor x) -> Tensor")
    assert str(C.ops.shop.twice.default._schema) == "shop::twice(Tensor x) -> Tensor"
    with pytest.raises(errors.OperatorGoneError):
        op._schema  # noqa: B018


def test_operators_are_listed(lib):
    assert list(C.ops) == ["shop"]
    assert "shop" in dir(C.ops)
    assert list(C.ops.shop) == dir(C.ops.shop) == ["twice"]
    assert repr(C.ops) == "<mdispatch.torch_compat.ops>"
    assert repr(C.ops.shop) == "<namespace shop of mdispatch.torch_compat.ops>"
    assert C.ops.loaded_libraries == set()
    with pytest.raises(AttributeError, match="did you mean twice"):
        C.ops.shop.twize  # noqa: B018


def test_another_registry_has_other_operators(lib):
    with md.Registry.create() as other, C.using(other):
        assert not hasattr(C.ops.shop, "twice")
        C.Library("shop", "DEF").define("twice() -> int")
        assert C.ops.shop.twice.overloads() == ["default"]
    assert C.ops.shop.twice.overloads() == ["default", "out"]


def test_what_is_pickled_comes_back_with_pytorchs_names():
    code = """
import pickle
from mdispatch import torch_compat as C
C.Library("shop", "DEF").define("twice(Tensor x) -> Tensor")
op = C.ops.shop.twice.default
for each in (op, op.overloadpacket.default):
    again = pickle.loads(pickle.dumps(each))
    assert (again, again.name()) == (op, "shop::twice")
assert pickle.loads(pickle.dumps(C.ops.shop.twice)).default == op
assert type(pickle.loads(pickle.dumps(C.ops.shop.twice))) is C.OpOverloadPacket
assert pickle.loads(pickle.dumps(C.ops)) is C.ops
assert type(pickle.loads(pickle.dumps(op.name))) is str
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=limit(60))


# --- libraries ------------------------------------------------------------------------------------


def test_a_library_has_pytorchs_names(lib):
    assert (lib.ns, lib.kind, lib.dispatch_key) == ("shop", "DEF", "")
    assert repr(lib) == "Library(kind=DEF, ns=shop, dispatch_key=)"
    assert lib.define("shop::g.two(Tensor x) -> Tensor", tags="pure") == "shop::g"
    assert C.ops.shop.g.two.tags == ("pure",)
    kernels = C.Library("shop", "IMPL", "CUDA")
    assert (kernels.dispatch_key, kernels.impl("twice", lambda x, n: n)) == ("CUDA", None)


def test_a_kernel_gets_pytorchs_class_of_key_sets(lib):
    got = []
    lib.define("set_of(Tensor x) -> ()")
    lib.impl("set_of", lambda keys, x: got.append(keys), "CPU", with_keyset=True)
    C.ops.shop.set_of(Array())
    assert got[0].highestPriorityTypeId() is md.DispatchKey.CPU


def test_a_fake_kernel_and_a_rule_are_registered_by_their_names(lib):
    class Mode(md.context.DispatchMode):
        pass

    lib._register_fake("twice", lambda x, n: "fake")
    assert C._dispatch_has_kernel_for_dispatch_key("shop::twice", "Meta")
    lib.define("ruled(Tensor x) -> Any")
    lib._register_torch_dispatch_rule("ruled", Mode, lambda *args: "rule")
    with Mode():
        assert C.ops.shop.ruled(Array()) == "rule"


def test_a_library_ends_by_destroy_only(lib):
    lib._destroy()
    lib._destroy()
    assert not hasattr(C.ops, "shop") or not hasattr(C.ops.shop, "twice")
    with pytest.raises(RuntimeError, match="closed"):
        lib.define("h(Tensor x) -> Tensor")
    with C._scoped_library("shop", "FRAGMENT") as scoped:
        scoped.define("h(Tensor x) -> Tensor")
        assert C.ops.shop.h.overloads() == ["default"]
    assert not hasattr(C.ops.shop, "h")


@pytest.mark.parametrize("args", [("shop", "NOPE"), ("prim", "DEF"), ("a.b", "DEF")])
def test_a_library_that_cannot_be_is_a_value_error(args):
    with pytest.raises(ValueError, match=r"."):
        C.Library(*args)


def test_other_refusals_are_runtime_errors(lib):
    for call in (
        lambda: C.Library("shop", "DEF"),
        lambda: C.Library("shop", "IMPL", "Nope"),
        lambda: lib.define("twice(Tensor x) -> Tensor"),
        lambda: lib.define("f(set[int] x) -> Tensor"),
        lambda: lib.define("f(Dict(str[], int) x) -> Tensor"),
        lambda: lib.impl("twice", None, "CPU"),
        lambda: lib.fallback(lambda *args: None, "CPU"),
        lambda: lib._register_fake("nope::f", lambda x: x),
        lambda: C.get_ctx(),
    ):
        with pytest.raises(RuntimeError):
            call()


# --- functions ------------------------------------------------------------------------------------


@pytest.fixture
def scale():
    @C.custom_op("shop::scale", mutates_args=(), device_types="cpu")
    def scale(x: md.Tensor, factor: float = 2.0) -> md.Tensor:
        return Array()

    return scale


def test_an_operator_made_from_a_function_has_pytorchs_names(scale):
    assert (scale._qualname, scale._namespace, scale._name) == ("shop::scale", "shop", "scale")
    assert scale._opoverload == C.ops.shop.scale.default
    assert scale._opoverload._schema.arguments[1].default_value == 2.0
    assert isinstance(scale, md.CustomOpDef)
    assert type(scale(Array())) is Array


def test_functions_find_the_name_in_the_registry_that_is_used(scale):
    @C.register_fake("shop::scale")
    def fake(x, factor):
        return md.empty_like(x)

    C.register_kernel("shop::scale", "cuda", lambda x, factor: x)
    C.register_vmap("shop::scale", lambda x, factor: x)
    C.register_autograd(scale, lambda ctx, g: (g, None))
    C.register_autocast("shop::scale", "cpu", "float16")
    for key in ("Meta", "CUDA", "FuncTorchBatched", "Autograd", "AutocastCPU"):
        assert C._dispatch_has_kernel_for_dispatch_key("shop::scale", key)
    assert C.get_kernel("shop::scale", "CUDA").operator.name == "shop::scale"
    assert C.opcheck(scale, (Array(),), test_utils="test_faketensor")

    class Mode(md.context.DispatchMode):
        pass

    C.register_torch_dispatch("shop::scale", Mode, lambda *args: None)
    scale.register_torch_dispatch(type("Other", (Mode,), {}), lambda *args: None)
    assert len(scale._opoverload.rules.by_class) == 2


def test_operators_are_defined_without_a_library(registry):
    assert C.define("shop::f", "(Tensor x) -> int", tags="pure") == "shop::f"

    @C.impl("shop::f", "cpu")
    def f(x):
        return 1

    assert C.ops.shop.f(Array()) == 1
    assert C.ops.shop.f.default.tags == ("pure",)


def test_the_old_name_of_a_dynamic_size_warns_and_is_two_or_more(scale):
    found = []

    @scale.register_fake
    def _(x, factor):
        ctx = C.get_ctx()
        found.append(ctx.new_dynamic_size())
        with pytest.warns(FutureWarning, match="call new_dynamic_size"):
            found.append(ctx.create_unbacked_symint(max=9))
        return md.empty_like(x)

    scale(md.MetaTensor([2], "float32"))
    assert [(each.min, each.max) for each in found] == [(0, None), (2, 9)]


def test_a_definition_lasts_in_pytorch_without_a_kernel(lib, registry):
    """The library keeps the object that leads there."""
    lib.define("bare(Tensor x) -> Tensor")
    assert registry.dispatcher.entry("shop::bare").peer is not None


# --- in place of torch ----------------------------------------------------------------------------


def test_the_dispatchers_names_are_ours_in_place_of_torch(lib):
    from mdispatch.torch_compat import torch

    assert torch.library.Library is C.Library
    assert torch.library.custom_op is C.custom_op
    assert torch.ops.shop.twice is C.ops.shop.twice
    assert torch._ops.OpOverload is C.OpOverload
    assert torch._C.parse_schema is C.parse_schema
    assert torch._C._dispatch_dump is C._dispatch_dump
    assert torch._custom_op.impl.get_ctx is C.get_ctx
    assert torch.DispatchKeySet is C.DispatchKeySet


PROGRAM = """
import sys
from mdispatch.torch_compat import torch
lib = torch.library.Library("shop", "DEF")
lib.define("twice(Tensor x) -> Tensor")
assert torch.ops.shop.twice.default.name() == "shop::twice"
assert "torch" not in sys.modules
"""


def test_a_program_with_the_dispatchers_names_only_imports_no_torch():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=limit(60))


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed here")
def test_all_other_names_are_pytorchs():
    import torch as theirs

    from mdispatch.torch_compat import torch

    assert torch.Tensor is theirs.Tensor
    assert torch.library.triton_op is theirs.library.triton_op
    assert torch._C.FunctionSchema is C.FunctionSchema
    assert torch.utils._pytree is theirs.utils._pytree
    assert not hasattr(torch, "no_such_name")
    assert not hasattr(torch.library, "no_such_name")


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed here")
def test_an_operator_that_pytorch_has_is_beside_it():
    from mdispatch.torch_compat import torch

    lib = torch.library.Library("aten", "FRAGMENT")
    lib.define("bmm(Tensor self, Tensor mat2) -> Tensor")
    lib.impl("bmm", lambda x, y: -x, "CPU")
    x = torch.ones(1, 1, 1)
    assert (torch.ops.aten.bmm(x, x).item(), torch.bmm(x, x).item()) == (-1, 1)
    with pytest.raises(errors.TorchExportError, match="aten::bmm"):
        torch.ops.aten.bmm(x.requires_grad_(), x)


def test_without_pytorch_its_names_cannot_be_imported(monkeypatch):
    from mdispatch.torch_compat import torch

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="torch"):
        torch.Tensor  # noqa: B018


def test_views_can_be_pickled_as_values(lib):
    schema = C.ops.shop.twice.default._schema
    assert pickle.loads(pickle.dumps(schema)) == schema
