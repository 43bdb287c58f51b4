"""The names of torch_compat for modes, resolution and transforms.

``STACK``, ``KINDS`` and ``GUARDS`` are lists of steps and what each of them gives in PyTorch 2.13.
They are run here, and on PyTorch itself where it is installed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from places import PLACES, run_at

import mdispatch as md
from mdispatch import errors
from mdispatch import torch_compat as C
from mdispatch.dispatch.context.modes import mode_stack, pre_dispatch_modes
from mdispatch.dispatch.context.transforms import FunctionalizeContext, FunctionalMode
from mdispatch.registry.ops import Namespace, Ops

HAS_TORCH = importlib.util.find_spec("torch") is not None


class Mode(md.context.DispatchMode):
    def __init__(self, name, kind=None):
        self.name = name
        self.mode_key = kind and kind.name

    def __md_dispatch__(self, op, types, args, kwargs):
        return self.name


class Array:
    def __init__(self, *keys):
        self.__dispatch_keys__ = md.DispatchKeySet(*keys)


def outcomes(steps, names):
    """Each step's result: a mode as its name, an error as the name of its class."""
    found = []
    for step in steps:
        try:
            result = eval(step, dict(names))
        except RuntimeError:
            result = "RuntimeError"
        if isinstance(result, list):
            found.append([getattr(each, "name", each) for each in result])
        else:
            found.append(getattr(result, "name", result))
    return found


def ours():
    kinds = C._TorchDispatchModeKey
    return {
        "C": C,
        "K": kinds,
        "a": Mode("a"),
        "b": Mode("b"),
        "fake": Mode("fake", kinds.FAKE),
        "proxy": Mode("proxy", kinds.PROXY),
        "functional": Mode("functional", kinds.FUNCTIONAL),
    }


@pytest.fixture
def torch_names():
    if not HAS_TORCH:
        pytest.skip("PyTorch is not installed here")
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Theirs(TorchDispatchMode):
        def __init__(self, name, kind=None):
            self.name = name
            if kind is not None:
                self._mode_key = kind

    kinds = torch._C._TorchDispatchModeKey
    yield {
        "C": torch._C,
        "K": kinds,
        "a": Theirs("a"),
        "b": Theirs("b"),
        "fake": Theirs("fake", kinds.FAKE),
        "proxy": Theirs("proxy", kinds.PROXY),
        "functional": Theirs("functional", kinds.FUNCTIONAL),
    }
    while torch._C._len_torch_dispatch_stack():
        torch._C._pop_torch_dispatch_stack(None)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert mode_stack() == () == pre_dispatch_modes()
    assert md.context.included_keys() == md.DispatchKeySet("BackendSelect", "ADInplaceOrView")


# --- the stack of modes ---------------------------------------------------------------------------

STACK = [
    ("C._len_torch_dispatch_stack()", 0),
    ("C._get_dispatch_stack_at(0)", "RuntimeError"),
    ("C._pop_torch_dispatch_stack(None)", "RuntimeError"),
    ("C._push_on_torch_dispatch_stack(a)", None),
    ("C._dispatch_tls_is_dispatch_key_included('Python')", True),
    ("C._dispatch_tls_is_dispatch_key_included('PythonTLSSnapshot')", True),
    ("C._push_on_torch_dispatch_stack(b)", None),
    ("C._push_on_torch_dispatch_stack(fake)", None),
    ("C._set_dispatch_mode(fake)", "RuntimeError"),
    ("C._set_dispatch_mode(functional)", None),
    ("C._set_dispatch_mode(proxy)", None),
    ("C._set_dispatch_mode(proxy)", "RuntimeError"),
    ("C._set_dispatch_mode(a)", "RuntimeError"),
    ("C._push_on_torch_dispatch_stack(None)", None),
    (
        "[C._get_dispatch_stack_at(i) for i in range(C._len_torch_dispatch_stack())]",
        ["fake", "proxy", "functional", "a", "b"],
    ),
    ("C._get_dispatch_stack_at(5)", "RuntimeError"),
    ("C._get_dispatch_mode(K.FAKE)", "fake"),
    ("C._unset_dispatch_mode(K.FAKE)", "fake"),
    ("C._get_dispatch_mode(K.FAKE)", None),
    ("C._unset_dispatch_mode(K.FAKE)", None),
    ("C._pop_torch_dispatch_stack(K.FAKE)", "RuntimeError"),
    ("C._pop_torch_dispatch_stack(K.PROXY)", "proxy"),
    ("C._get_dispatch_mode(0)", "RuntimeError"),
    ("C._pop_torch_dispatch_stack(None)", "b"),
    ("C._pop_torch_dispatch_stack(None)", "a"),
    ("C._pop_torch_dispatch_stack(None)", "functional"),
    ("C._len_torch_dispatch_stack()", 0),
    ("C._dispatch_tls_is_dispatch_key_included('Python')", False),
]
KINDS = [
    ("[int(each) for each in (K.FAKE, K.PROXY, K.FUNCTIONAL)]", [0, 1, 2]),
    ("[K(1), K.PROXY == K(1)]", ["PROXY", True]),
    ("repr(K.FUNCTIONAL)", "<_TorchDispatchModeKey.FUNCTIONAL: 2>"),
    ("K.FAKE == 0", False),
]

SETS = "[C._dispatch_tls_is_dispatch_key_excluded(k) for k in ('Python', 'PythonTLSSnapshot')]"
GUARDS = [
    (f"[C._DisableTorchDispatch(), *{SETS}][1:]", [True, True]),
    (SETS, [False, False]),
    (
        "[C._EnablePythonDispatcher(), C._dispatch_tls_is_dispatch_key_included("
        "'PythonDispatcher')][1]",
        True,
    ),
    ("C._dispatch_tls_is_dispatch_key_included('PythonDispatcher')", False),
]


@pytest.mark.parametrize("steps", [STACK, KINDS, GUARDS], ids=["stack", "kinds", "guards"])
def test_modes_are_pushed_and_popped_as_recorded(steps):
    expressions = [step for step, _ in steps]
    assert list(zip(expressions, outcomes(expressions, ours()), strict=True)) == steps


@pytest.mark.parametrize("steps", [STACK, KINDS, GUARDS], ids=["stack", "kinds", "guards"])
def test_what_is_recorded_of_modes_is_what_pytorch_does(steps, torch_names):
    expressions = [step for step, _ in steps]
    found = outcomes(expressions, torch_names)
    assert list(zip(expressions, found, strict=True)) == steps


def test_the_place_below_the_lowest_mode_is_refused_where_pytorch_crashes():
    with pytest.raises(RuntimeError, match="no mode at -1"):
        C._get_dispatch_stack_at(-1)


def test_what_is_no_number_of_a_place_is_a_type_error():
    state = C.mode_stack_state_for_pre_dispatch()
    for use in (C._get_dispatch_stack_at, state.get, lambda at: state.set(at, None)):
        with pytest.raises(TypeError):
            use("0")
    with pytest.raises(TypeError):
        C._dispatch_library("FRAGMENT", "places", "", "file", "1")


def test_a_refused_push_leaves_the_mode_alone_where_pytorch_loses_a_reference():
    mode = Mode("fake", C._TorchDispatchModeKey.FAKE)
    C._push_on_torch_dispatch_stack(mode)
    before = sys.getrefcount(mode)
    with pytest.raises(RuntimeError, match="one of each kind"):
        C._push_on_torch_dispatch_stack(mode)
    assert sys.getrefcount(mode) == before
    assert C._pop_torch_dispatch_stack() is mode


def test_what_is_pushed_by_their_names_sees_calls(registry):
    lib = md.Library("t", "DEF", registry=registry)
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "kernel", "CPU")
    f = registry.ops.t.f
    C._push_on_torch_dispatch_stack(Mode("a"))
    try:
        assert C._get_current_dispatch_mode().name == "a"
        assert [mode.name for mode in C._get_current_dispatch_mode_stack()] == ["a"]
        assert f(Array("CPU")) == "a"
        with C._DisableTorchDispatch():
            assert f(Array("CPU")) == "kernel"
    finally:
        C._pop_torch_dispatch_stack()
    assert C._get_current_dispatch_mode() is None
    assert f(Array("CPU")) == "kernel"


# --- modes before dispatch ------------------------------------------------------------------------

# Theirs takes three classes of its own only, so these are not run there. Where it asserts, ours is
# a RuntimeError.
BEFORE = [
    ("C._len_torch_dispatch_stack_pre_dispatch()", 0),
    ("C._pop_mode_from_pre_dispatch()", "RuntimeError"),
    ("C._get_current_dispatch_mode_pre_dispatch()", None),
    ("C._set_mode_pre_dispatch(fake)", "RuntimeError"),
    ("C._get_dispatch_mode_pre_dispatch(K.FAKE)", "RuntimeError"),
    ("C._set_mode_pre_dispatch(functional)", None),
    ("C._dispatch_tls_is_dispatch_key_included('PreDispatch')", True),
    ("C._get_current_dispatch_mode_pre_dispatch()", "functional"),
    ("C._set_mode_pre_dispatch(a)", "RuntimeError"),
    ("C._set_mode_pre_dispatch(functional)", "RuntimeError"),
    ("C._set_mode_pre_dispatch(proxy)", None),
    ("C._get_current_dispatch_mode_pre_dispatch()", "functional"),
    ("C._get_dispatch_mode_pre_dispatch(K.PROXY)", "proxy"),
    ("[C.mode_stack_state_for_pre_dispatch().get(i) for i in (0, 1)]", ["proxy", "functional"]),
    ("C.mode_stack_state_for_pre_dispatch().count()", 2),
    ("C.mode_stack_state_for_pre_dispatch().get(2)", "RuntimeError"),
    ("C.unset_mode_pre_dispatch(K.FUNCTIONAL)", "functional"),
    ("C._get_current_dispatch_mode_pre_dispatch()", "proxy"),
    ("C.unset_mode_pre_dispatch(K.FUNCTIONAL)", None),
    ("C.unset_mode_pre_dispatch(K.FAKE)", "RuntimeError"),
    ("C.unset_mode_pre_dispatch(K.PROXY, schema_check=True)", "RuntimeError"),
    ("C._pop_mode_from_pre_dispatch()", "proxy"),
    ("C._dispatch_tls_is_dispatch_key_included('PreDispatch')", False),
    ("C._set_mode_pre_dispatch(a)", None),
    ("C._set_mode_pre_dispatch(proxy)", "RuntimeError"),
    ("C._len_torch_dispatch_stack_pre_dispatch()", 1),
    ("C.unset_mode_pre_dispatch(None, schema_check=True)", "a"),
    ("C.mode_stack_state_for_pre_dispatch().set(0, proxy)", None),
    ("C.mode_stack_state_for_pre_dispatch().set(1, proxy)", "RuntimeError"),
    ("C.mode_stack_state_for_pre_dispatch().get(0)", "proxy"),
    ("C.mode_stack_state_for_pre_dispatch().set(0, None)", None),
    ("C._len_torch_dispatch_stack_pre_dispatch()", 0),
]


def test_modes_before_dispatch_have_their_slots():
    expressions = [step for step, _ in BEFORE]
    assert list(zip(expressions, outcomes(expressions, ours()), strict=True)) == BEFORE


# --- what a call comes to -------------------------------------------------------------------------


def test_the_key_set_of_a_call_is_that_of_the_values_and_of_the_thread():
    full = C._dispatch_keyset_full()
    values = [Array("CPU"), Array("AutogradCUDA")]
    here = md.DispatchKeySet("BackendSelect", "ADInplaceOrView")
    extracted = C.key_extractor(values, full)
    assert isinstance(extracted, C.DispatchKeySet)
    assert extracted == md.DispatchKeySet("CPU", "AutogradCUDA") | here
    assert C.key_extractor(values, C.DispatchKeySet("AutogradCUDA")).raw_repr() == (
        md.DispatchKeySet("AutogradCUDA").raw
    )
    with md.context.ExcludeDispatchKeyGuard("AutogradCUDA"):
        assert (
            C.key_extractor(values, full).highestPriorityTypeId() is md.DispatchKey.ADInplaceOrView
        )


@pytest.fixture
def lib(registry):
    with C.using(registry):
        yield md.Library("t", "DEF", registry=registry)


def defined(lib, name, *keys):
    lib.define(f"{name}(Tensor x) -> str")
    for key in keys:
        lib.impl(name, lambda x, key=key: f"at {key}", key)
    return lib.registry.ops.find(f"t::{name}")


def test_a_computed_kernel_is_the_one_that_a_call_runs(lib):
    defined(lib, "f", "CompositeExplicitAutograd")
    kernel = C._dispatch_get_computed_kernel_for_dispatch_key("t::f", "CPU")
    assert (
        kernel.call_boxed(md.DispatchKeySet("CPU"), Array("CPU")) == "at CompositeExplicitAutograd"
    )
    for name, key in (("t::nope", "CPU"), ("t::f", "Autograd"), ("t::f", "FuncTorchBatched")):
        with pytest.raises((RuntimeError, AttributeError)):
            C._dispatch_get_computed_kernel_for_dispatch_key(name, key)


def test_what_serves_a_key_is_named_by_the_key_it_was_registered_at(lib):
    key = md.DispatchKey
    f = defined(lib, "f", "CPU", "CompositeExplicitAutograd", "Autograd")
    assert C.resolve_key(f, "CPU") is key.CPU
    assert C.resolve_key(f, key.CUDA) is key.CompositeExplicitAutograd
    assert C.resolve_key(f, "AutogradCPU") is key.Autograd
    assert C.resolve_key(f, "Autograd") is key.Autograd
    assert C.resolve_key(f, "Undefined") is key.CompositeExplicitAutograd
    assert C.resolve_key(f, "ADInplaceOrView") is key.ADInplaceOrView  # a fallback
    with pytest.raises(NotImplementedError, match="t::f has nothing that serves FuncTorchBatched"):
        C.resolve_key(f, "FuncTorchBatched")
    with pytest.raises(NotImplementedError):
        C.resolve_key(f, "CompositeImplicitAutograd")


def test_python_kernels_take_part_in_resolution(lib):
    f = defined(lib, "f", "CPU")
    with pytest.raises(NotImplementedError):
        C.resolve_key(f, "CUDA")
    f.py_impl("CompositeExplicitAutograd")(lambda x: "python")
    assert C.resolve_key(f, "CUDA") is md.DispatchKey.CompositeExplicitAutograd


def test_rules_of_a_higher_order_operator_are_resolved_too():
    op = md.HigherOrderOperator("resolved")
    try:
        op.py_impl("CompositeExplicitAutograd")(lambda *args: "rule")
        assert C.resolve_key(op, "CPU") is md.DispatchKey.CompositeExplicitAutograd
        with pytest.raises(
            NotImplementedError, match="higher_order::resolved has nothing that serves"
        ):
            C.resolve_key(op, "BackendSelect")
    finally:
        op.close()


def test_what_cannot_be_decided_is_a_runtime_error(lib):
    f = defined(lib, "f", "CompositeImplicitAutograd", "SparseCPU")
    with pytest.raises(RuntimeError, match="AutogradOther") as caught:
        C.resolve_key(f, "AutogradOther")
    assert isinstance(caught.value, errors.AmbiguousKernelError)


@pytest.mark.parametrize(
    ("name", "key", "found"),
    [
        ("sin", "CPU", "CPU"),
        ("sin", "AutogradCPU", "Autograd"),
        ("sin", "Undefined", "CompositeExplicitAutogradNonFunctional"),
        ("sin", "ADInplaceOrView", "ADInplaceOrView"),
        ("matmul", "CPU", "CompositeImplicitAutograd"),
        ("ones_like", "CPU", "CompositeExplicitAutograd"),
    ],
)
def test_resolution_is_that_of_pytorch(lib, name, key, found, torch_names):
    """An operator with kernels at the keys at which PyTorch's has them."""
    import torch
    from torch._ops import resolve_key

    theirs = getattr(torch.ops.aten, name).default
    registered = [
        each.name
        for each in md.DispatchKey
        if hasattr(torch._C.DispatchKey, each.name)
        and theirs.has_kernel_for_dispatch_key(getattr(torch._C.DispatchKey, each.name))
    ]
    assert resolve_key(theirs, getattr(torch._C.DispatchKey, key)).name == found
    runtime = [each for each in registered if md.DispatchKey.parse(each).is_alias or each == key]
    assert C.resolve_key(defined(lib, name, *runtime), key).name == found


# --- transforms -----------------------------------------------------------------------------------


def test_transforms_are_seen_by_their_name():
    assert C._are_functorch_transforms_active() is False
    with md.context.Transform():
        assert C._are_functorch_transforms_active() is True
    assert C._are_functorch_transforms_active() is False


# --- what one gets, by the types' names -----------------------------------------------------------


def test_operators_are_found_in_namespaces_of_ops(lib):
    defined(lib, "f", "CPU")
    found = lib.registry.ops
    assert isinstance(found, Ops)
    assert isinstance(found.t, Namespace)
    assert isinstance(found.t.f, md.OpOverloadPacket)
    assert isinstance(found.t.f.default, md.OpOverload)


def test_observers_are_given_an_observed_call(lib):
    f = defined(lib, "f", "CPU")
    told = []
    with md.observe_calls(told.append, told.append):
        f(Array("CPU"))
    before, after = told
    assert isinstance(before, md.ObservedCall)
    assert before is after


def test_a_rule_for_all_that_makes_mutation_functional_is_told_by_which(lib):
    f = defined(lib, "f", "CPU")

    @f.py_functionalize_impl
    def rule(ctx, x):
        assert isinstance(ctx, FunctionalizeContext)
        return ctx.kind

    with FunctionalMode():
        assert f(Array("CPU")) == "mode"
    with md.context.enable_python_dispatcher():
        assert f(Array("CPU", "Functionalize")) == "key"


def test_the_state_before_dispatch_is_one_object_that_asks_the_thread():
    state = C.mode_stack_state_for_pre_dispatch()
    assert isinstance(state, C._ModeStackStateForPreDispatch)
    assert state is C.mode_stack_state_for_pre_dispatch()


def test_a_slot_before_dispatch_keeps_its_mode_when_another_is_refused():
    state = C.mode_stack_state_for_pre_dispatch()
    proxy = Mode("proxy", C._TorchDispatchModeKey.PROXY)
    state.set(0, proxy)
    for wrong in (Mode("fake", C._TorchDispatchModeKey.FAKE), Mode("a"), "proxy"):
        with pytest.raises(RuntimeError):
            state.set(0, wrong)
        assert state.get(0) is proxy
    state.set(0, None)


def test_there_are_as_many_backends_as_in_pytorch():
    assert C._dispatch_num_backends() == 16 == len(C._functionality_to_backend_keys("Sparse"))


def test_the_python_dispatcher_knows_runtime_and_alias_keys(registry):
    dispatcher = md.PythonDispatcher(registry)
    assert dispatcher.keys() == dispatcher.runtime_keys + dispatcher.alias_keys
    assert all(md.DispatchKey.parse(key).is_alias for key in dispatcher.alias_keys)


@pytest.mark.parametrize("place", PLACES)
def test_their_names_serve_every_place(place, tmp_path):
    module = """
        import mdispatch as md

        class Array:
            __dispatch_keys__ = "CPU"

        class Mode(md.context.DispatchMode):
            def __md_dispatch__(self, op, types, args, kwargs):
                return 1 + op(*args, **kwargs)

        lib = md.Library("feature", "DEF")
        lib.define("f(Tensor x) -> int")
        lib.impl("f", lambda x: 1, "CPU")
    """
    body = """
        import feature
        from mdispatch import ops
        from mdispatch import torch_compat as C
        op, x, mode = ops.feature.f.default, feature.Array(), feature.Mode()
        calls = [op(x)]
        C._push_on_torch_dispatch_stack(mode)
        calls.append(op(x))
        with C._DisableTorchDispatch():
            calls.append(op(x))
        popped = C._pop_torch_dispatch_stack() is mode
        result = {
            "calls": calls,
            "popped": popped,
            "left": C._len_torch_dispatch_stack(),
            "serves": [C.resolve_key(op, key).name for key in ("CPU", "ADInplaceOrView")],
            "kernel": C._dispatch_has_kernel_for_dispatch_key("feature::f", "CPU"),
        }
    """
    assert run_at(place, module, body, tmp_path) == {
        "calls": [1, 2, 1],
        "popped": True,
        "left": 0,
        "serves": ["CPU", "ADInplaceOrView"],
        "kernel": True,
    }


@pytest.mark.parametrize("place", PLACES)
def test_a_kernel_of_a_worker_does_not_override_its_own_counterpart(place, tmp_path):
    module = """
        from mdispatch import torch_compat as C
        m = C._dispatch_library("DEF", "feature", "")
        m.def_("f(Tensor x) -> int")
        m.impl("f", "CPU", lambda x: 1)
    """
    body = """
        import mdispatch as md
        class Array:
            __dispatch_keys__ = "CPU"
        result = {"found": md.ops.feature.f(Array())}
    """
    assert run_at(place, module, body, tmp_path) == {"found": 1}


# --- names for registering ------------------------------------------------------------------------


def test_a_library_first_makes_define_and_impl_decorators(registry):
    lib = md.Library("s", "DEF", registry=registry)

    @C.define(lib, "f(Tensor x) -> Tensor")
    def f(x):
        return "f"

    lib.define("g(Tensor x) -> Any")

    @C.impl(lib, "g", "CPU")
    def g(x):
        return "g"

    assert registry.ops.s.g(Array("CPU")) == g(None)
    assert registry.ops.s.f.default.has_kernel_for_dispatch_key("CompositeImplicitAutograd")
    assert C.define("s::h", "(Tensor x) -> Any", lib=lib) == "s::h"
    assert C.impl("s::h", "cpu", lambda x: "h", lib=lib) is not None
    assert registry.ops.s.h(Array("CPU")) == "h"


def test_impl_abstract_warns_and_registers_a_fake_kernel(registry):
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    with pytest.warns(FutureWarning, match="register_fake"):
        C.impl_abstract("s::f", lambda x: "fake", lib=lib)
    assert registry.ops.s.f(md.MetaTensor([2], "float32")) == "fake"


def test_a_schema_has_pytorchs_names(registry):
    md.Library("s", "DEF", registry=registry).define("f.two(int n=3, *, str word) -> int")
    with C.using(registry):
        schema = C._dispatch_find_schema_or_throw("s::f", "two").schema()
    assert schema.overload_name == "two"
    assert [each.default_value for each in schema.arguments] == [3, None]
    assert str(schema) == str(registry.ops.s.f.two.schema)


def test_the_marks_of_the_blocks_of_keys_are_pytorchs():
    assert C.DispatchKey.EndOfSparseBackends is C.DispatchKey.SparseMeta
    assert C.DispatchKey.EndOfDenseBackends is C.DispatchKey.Meta
    assert C.DispatchKey.StartOfQuantizedBackends == C.DispatchKey.QuantizedCPU - 1
    with pytest.raises(AttributeError):
        _ = C.DispatchKey.EndOfPythonBackends
    assert "EndOfDenseBackends" not in C.DispatchKey.__members__


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed here")
def test_pytorch_has_the_same_numbers_for_the_marks():
    import torch

    theirs = torch._C.DispatchKey
    marks = [name for name in dir(theirs) if name.startswith(("StartOf", "EndOf"))]
    assert len(marks) == 12
    for mark in marks:
        assert getattr(C.DispatchKey, mark) == getattr(theirs, mark).value


def test_a_fallthrough_kernel_that_is_called_is_not_implemented():
    with pytest.raises(NotImplementedError, match="nothing to run"):
        C.fallthrough_kernel()


def test_namespaces_and_packets_are_iterated(registry):
    lib = md.Library("s", "DEF", registry=registry)
    for name in ("g", "f", "f.two"):
        lib.define(f"{name}() -> int")
    assert list(registry.ops) == ["s"]
    assert list(registry.ops.s) == ["f", "g"]
    assert list(registry.ops.s.f) == ["default", "two"]


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed here")
def test_the_schemas_that_pytorch_has_itself_are_read():
    """All but one that names two arguments alike."""
    from mdispatch.schema import parse_schema

    # In a process of its own: other tests register what they like.
    code = "import torch; print(*torch._C._jit_get_all_schemas(), sep=chr(10))"
    listed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    refused = []
    for schema in listed.stdout.splitlines():
        try:
            parse_schema(schema, allow_typevars=True)
        except errors.SchemaSyntaxError as error:
            refused.append(str(error))
    assert len(refused) <= 1
    assert all("two arguments are called" in each for each in refused)


@pytest.mark.parametrize("schema", ["f(t[] xs) -> t", "f(int[1] dim=[-2, -1]) -> ()"])
def test_what_only_pytorchs_own_schemas_have_is_read_and_not_defined(registry, schema):
    from mdispatch.schema import parse_schema

    assert str(parse_schema(schema, allow_typevars=True)) == schema
    lib = md.Library("s", "DEF", registry=registry)
    with pytest.raises(errors.SchemaSyntaxError):
        lib.define(schema)
    assert registry.operators() == []


def test_without_a_key_the_wait_is_for_the_kernel_of_every_key(registry):
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    lib.impl("f", lambda x: x, "CPU")
    with pytest.raises(errors.KeyMismatchError):
        md.wait_for_impl("s::f", timeout=0, registry=registry)
    lib.impl("f", lambda x: x)
    found = md.wait_for_impl("s::f", timeout=0, registry=registry)
    assert found.key == md.DispatchKey.CompositeImplicitAutograd
