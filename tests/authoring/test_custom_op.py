"""The promises of an operator that is made from a function: its schema, one kernel per device, fake
kernels, gradients, and results that are its own.
"""

from __future__ import annotations

import ctypes
import enum
import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from patience import limit
from places import PLACES, run_at
from runs import in_another_run
from tapes import Tape

import mdispatch as md
from mdispatch import Tensor, errors
from mdispatch.authoring.custom_op import CustomOpDef, custom_op
from mdispatch.authoring.functions import get_kernel, register_kernel
from mdispatch.authoring.meta import MetaTensor, empty_like
from mdispatch.dispatch.context.guards import SetExcludeDispatchKeyGuard
from mdispatch.dispatch.context.modes import DispatchMode


class Array:
    """A list of numbers on a device."""

    def __init__(self, *values, device="CPU", dtype="float32"):
        self.values = list(values)
        self.dtype = dtype
        self.__dispatch_keys__ = (device,) if isinstance(device, str) else device

    def astype(self, dtype):
        return Array(*self.values, device=self.__dispatch_keys__, dtype=dtype)


def there(registry):
    _, _, found = registry.dispatcher.facts.registrations()
    return found


def keys_there(registry, name="s::scale"):
    found = registry.dispatcher.facts.registrations(name)[2]
    return [md.DispatchKey(fact.key).name for fact in found if fact.key]


def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return Array(*(value * factor for value in x.values))


def says(word):
    """A kernel of ``scale`` whose result tells kernels apart."""
    return lambda *args, **kwargs: Array(word)


@pytest.fixture
def scale(registry):
    yield custom_op("s::scale", scaled, mutates_args=(), registry=registry)
    registry.check_invariants()


def on(*devices):
    return [Array(1.0, device=device) for device in devices]


def which(op, *devices):
    """Which kernel runs for each of these devices."""
    return [op(value).values[0] for value in on(*devices)]


# --- the schema -----------------------------------------------------------------------------------


def test_a_function_becomes_an_operator_with_the_schema_of_its_annotations(registry, scale):
    assert isinstance(scale, CustomOpDef)
    assert isinstance(scale.operator, md.OpOverload)
    assert scale.operator == registry.ops.s.scale.default
    assert str(scale.operator.schema) == "s::scale(Tensor x, float factor=2.) -> Tensor"
    assert scale(Array(1.0, 2.0)).values == [2.0, 4.0]
    assert registry.ops.s.scale(Array(1.0), factor=3).values == [3.0]


def test_it_bears_the_name_and_the_documentation_of_its_function(registry, scale):
    assert (scale.__name__, scale.__module__) == ("scaled", __name__)
    assert (scale.name, scale.namespace) == ("s::scale", "s")
    assert scale.__wrapped__ is scaled
    assert repr(scale) == "<mdispatch custom operator s::scale>"


def test_it_decorates_and_takes_tags_and_an_overload_name(registry):
    @custom_op("s::f.one", mutates_args=(), tags=("pure", "slow"), registry=registry)
    def f(x: Tensor) -> Tensor:
        return Array(*x.values)

    assert registry.ops.s.f.one.tags == ("pure", "slow")
    assert f(Array(1.0)).values == [1.0]


def test_defaults_keyword_only_arguments_and_lists_reach_the_function(registry):
    @custom_op("s::f", mutates_args=["out"], registry=registry)
    def f(
        xs: list[Tensor], sizes: list[int], s: str = "a", *, out: Tensor, flag: bool | None = None
    ) -> tuple[Tensor, list[Tensor], int]:
        out.values.append(s)
        return Array(len(xs)), [Array(*sizes), Array(flag)], len(xs)

    out = Array()
    one, two, three = f(on("CPU", "CPU"), (3, 4), out=out)
    assert (one.values, [each.values for each in two], three) == ([2], [[3, 4], [None]], 2)
    assert out.values == ["a"]
    assert f([], [], "b", out=out, flag=True)[1][1].values == [True]
    assert out.values == ["a", "b"]
    assert "Tensor(a3!) out" in str(f.operator.schema)


class Size(enum.IntEnum):
    SMALL = 3


def test_a_default_that_a_schema_only_describes_reaches_the_kernels_as_it_is(registry):
    got = []

    def f(x: Tensor, n: int = Size.SMALL, *, k: float = 1.0) -> Tensor:
        got.append(n)
        return Array()

    op = custom_op("s::f", f, mutates_args=(), registry=registry)
    assert str(op.operator.schema) == "s::f(Tensor x, SymInt n=3, *, float k=1.) -> Tensor"
    op.register_kernel("cuda", lambda x, n, *, k: got.append(n) or Array())
    op.register_fake(lambda x, n, *, k: got.append(n) or x)
    op.register_vmap(lambda keys, x, n, *, k: got.append(n) or Array(), with_keyset=True)
    for device in ("CPU", "CUDA", "FuncTorchBatched"):
        op(Array(device=device))
    op(MetaTensor(()))
    op(Array(), 4)
    assert [type(each) for each in got] == [Size] * 4 + [int]


def test_defaults_of_torchs_types_reach_the_function_as_it_has_them(registry):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")

    def f(
        x: Tensor,
        dtype: torch.dtype = torch.float32,
        *,
        device: torch.device = torch.device("cpu"),  # noqa: B008
    ) -> Tensor:
        return Array(dtype, device)

    f.__annotations__.update(x=Tensor, dtype=torch.dtype, device=torch.device)
    f.__annotations__["return"] = Tensor
    op = custom_op("s::f", f, mutates_args=(), registry=registry)
    assert op(Array()).values == [torch.float32, torch.device("cpu")]
    assert op(Array(), torch.int8).values == [torch.int8, torch.device("cpu")]


def test_unknown_marks_all_that_could_be_written_to(registry):
    @custom_op("s::f", mutates_args="unknown", registry=registry)
    def f(x: Tensor, n: int, ys: list[Tensor]) -> None:
        x.values.append(n)

    assert str(f.operator.schema) == "s::f(Tensor(a0!) x, SymInt n, Tensor(a2!)[] ys) -> ()"
    x = Array()
    assert f(x, 3, []) is None
    assert x.values == [3]


def unannotated(x, n):
    return None


GIVEN = [
    ("(Tensor(a!) x, int n) -> ()", ["x"]),
    ("(Tensor(a!) x, int n) -> ()", "unknown"),
    (" (Tensor x, int n) -> ()", []),
    ("(Tensor(a!)[] x, int n) -> ()", ("x",)),
    ("(Tensor(a!)[] x, int n) -> ()", iter(["x"])),
]


@pytest.mark.parametrize(("schema", "mutates"), GIVEN)
def test_a_schema_may_be_given(registry, schema, mutates):
    op = custom_op("s::f", unannotated, mutates_args=mutates, schema=schema, registry=registry)
    assert str(op.operator.schema) == "s::f" + schema.strip()


@pytest.mark.parametrize(
    ("schema", "mutates"),
    [
        ("(Tensor(a!) x, int n) -> ()", []),
        ("(Tensor x, int n) -> ()", ["x"]),
        ("(Tensor x, int n) -> ()", "unknown"),
        ("(Tensor(a!) x, Tensor n) -> ()", "unknown"),
        ("(Tensor(a!) x, int n) -> ()", ["x", "n"]),
        ("(Tensor(a!) x, int n) -> ()", "x"),
        ("f(Tensor(a!) x, int n) -> ()", ["x"]),
        (3, []),
        ("(Tensor x", []),
    ],
)
def test_a_schema_and_the_mutated_arguments_have_to_agree(registry, schema, mutates):
    with pytest.raises(errors.InvalidArgumentError):
        custom_op("s::f", unannotated, mutates_args=mutates, schema=schema, registry=registry)
    assert there(registry) == []


def no_device(n: int) -> Tensor:
    return Array(n)


@pytest.mark.parametrize(
    ("name", "function", "options", "error"),
    [
        ("f", scaled, {}, errors.InvalidNameError),
        ("", scaled, {}, errors.InvalidNameError),
        (3, scaled, {}, errors.InvalidNameError),
        ("prim::f", scaled, {}, errors.InvalidNameError),
        ("s::f", "no function", {}, errors.InvalidArgumentError),
        ("s::f", scaled, {"mutates_args": ["y"]}, errors.InvalidArgumentError),
        ("s::f", scaled, {"device_types": "cpux"}, errors.InvalidKeyError),
        ("s::f", scaled, {"device_types": ()}, errors.InvalidArgumentError),
        ("s::f", scaled, {"device_types": ("cpu", "Dense")}, errors.InvalidKeyError),
        ("s::f", scaled, {"tags": "a b"}, errors.InvalidArgumentError),
        ("s::f", no_device, {"device_types": "cpu"}, errors.InvalidArgumentError),
    ],
)
def test_what_is_refused_leaves_nothing_registered(registry, name, function, options, error):
    with pytest.raises(error):
        custom_op(name, function, **{"mutates_args": (), "registry": registry, **options})
    assert there(registry) == []


# --- one kernel per device ------------------------------------------------------------------------


def test_each_of_several_devices_has_a_kernel_of_its_own(registry):
    """In PyTorch all of them share the kernel of the last device."""
    op = custom_op("s::f", scaled, mutates_args=(), device_types=("cpu", "cuda"), registry=registry)
    op.register_kernel("cuda", says("cuda"))
    assert which(op, "CPU", "CUDA") == [2.0, "cuda"]
    op.register_kernel("cpu", says("cpu"))
    assert which(op, "CPU", "CUDA") == ["cpu", "cuda"]
    op.register_kernel(("cuda", "xpu"), says("both"))
    assert which(op, "CPU", "CUDA", "XPU") == ["cpu", "both", "both"]
    op.register_kernel("xpu")(says("xpu"))
    assert which(op, "CPU", "CUDA", "XPU") == ["cpu", "both", "xpu"]


def test_without_devices_the_function_serves_those_without_a_kernel(scale):
    scale.register_kernel("cuda", says("cuda"))
    assert which(scale, "CPU", "CUDA", "MPS") == [2.0, "cuda", 2.0]
    scale.register_kernel(None, says("any"))
    assert which(scale, "CPU", "CUDA") == ["any", "cuda"]


def test_for_some_devices_only_the_others_have_none(registry):
    op = custom_op("s::f", scaled, mutates_args=(), device_types="cpu", registry=registry)
    with pytest.raises(errors.MissingKernelError):
        op(Array(device="CUDA"))


def test_what_is_refused_for_one_device_is_registered_for_none(registry, scale):
    before = there(registry)
    for devices in (("cuda", "no"), ("cuda", "Dense"), ()):
        with pytest.raises(errors.InvalidArgumentError):
            scale.register_kernel(devices, says("f"))
    with pytest.raises(errors.InvalidArgumentError):
        scale.register_kernel("cuda", "no function")
    assert there(registry) == before
    assert which(scale, "CUDA") == [2.0]


def test_the_free_function_registers_with_the_operator(registry, scale):
    register_kernel(scale, "cuda")(says("cuda"))
    register_kernel(scale, None, says("any"))
    assert which(scale, "CPU", "CUDA") == ["any", "cuda"]
    lib = md.Library("s", "FRAGMENT", registry=registry)
    register_kernel(scale, "cuda", says("from a library"), lib=lib)
    assert which(scale, "CUDA") == ["from a library"]
    lib.close()
    assert which(scale, "CUDA") == ["cuda"]


def test_a_device_may_be_passed_by(registry):
    op = custom_op("s::f", scaled, mutates_args=(), device_types="cpu", registry=registry)
    op.register_kernel("AutogradCPU", md.fallthrough_kernel)
    assert op(Array(1.0, device=("CPU", "AutogradCPU"))).values == [2.0]


# --- kernels switched off -------------------------------------------------------------------------


@pytest.fixture
def switched(scale):
    scale.register_kernel("cuda", says("cuda"))
    scale.register_kernel("cpu", says("cpu"))
    return scale


def test_in_place_of_a_disabled_kernel_the_function_runs(switched):
    with switched.set_kernel_enabled("cuda", False):
        assert which(switched, "CPU", "CUDA") == ["cpu", 2.0]
        with switched.set_kernel_enabled("cuda", True):
            assert which(switched, "CUDA") == ["cuda"]
        assert which(switched, "CUDA") == [2.0]
        switched.register_kernel("cuda", says("new"))
        assert which(switched, "CUDA") == [2.0]
    assert which(switched, "CUDA") == ["new"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (0, 2, 1)])
def test_guards_may_end_in_any_order_and_the_newest_decides(switched, order):
    wanted = [False, True, False]
    guards = [switched.set_kernel_enabled("cuda", enabled) for enabled in wanted]
    for guard in guards:
        guard.__enter__()
    left = [0, 1, 2]
    for index in order:
        assert which(switched, "CUDA") == ["cuda" if wanted[left[-1]] else 2.0]
        guards[index].__exit__(None, None, None)
        left.remove(index)
    assert which(switched, "CUDA") == ["cuda"]


def test_a_kernel_is_disabled_in_all_threads(switched):
    with switched.set_kernel_enabled("cuda:0", False):
        found = []
        thread = threading.Thread(target=lambda: found.extend(which(switched, "CUDA")))
        thread.start()
        thread.join()
    assert found == [2.0]


def test_only_a_kernel_that_is_there_can_be_disabled(switched):
    with pytest.raises(errors.InvalidArgumentError, match="no kernel for xpu"):
        switched.set_kernel_enabled("xpu", False)
    for device in ("nothing", None, ("cpu", "cuda")):
        with pytest.raises(errors.InvalidKeyError):
            switched.set_kernel_enabled(device, False)


# --- fake kernels ---------------------------------------------------------------------------------


def test_meta_values_need_a_fake_kernel_and_never_reach_the_others(registry, scale):
    with pytest.raises(errors.FakeKernelMissingError, match="register_fake") as caught:
        scale(MetaTensor((2,)))
    assert caught.value.operator == "s::scale"

    @scale.register_fake
    def fake(x, factor):
        return empty_like(x)

    assert scale(MetaTensor((2, 3))).shape == (2, 3)
    scale.register_kernel(None, says("any"))
    assert scale(MetaTensor((2, 3))).shape == (2, 3)


@pytest.mark.parametrize("with_keyset", [False, True])
@pytest.mark.shared
def test_a_fake_kernel_may_come_before_the_operator(registry, with_keyset):
    def fake(*args):
        return empty_like(args[-1])

    with md.Library("s", "FRAGMENT", registry=registry) as lib:
        lib.impl("f", fake, "Meta", with_keyset=with_keyset)
        with md.Registry.attach(registry.address, timeout=0) as worker:
            mine = md.Library("s", "FRAGMENT", registry=worker)
            mine.impl("f", fake, "Meta", with_keyset=with_keyset)
            for each in (registry, worker):
                assert make(each)(MetaTensor((3,))) == MetaTensor((3,))
    lib.close()
    with pytest.raises(errors.FakeKernelMissingError):
        registry.ops.s.f(MetaTensor((3,)))


def test_what_returns_nothing_needs_no_fake_kernel(registry):
    @custom_op("s::f", mutates_args=["x"], device_types="cpu", registry=registry)
    def f(x: Tensor) -> None:
        x.values.clear()

    assert f(MetaTensor((2,))) is None


# --- what is returned -----------------------------------------------------------------------------


def returning(registry, returns, *, schema=None, mutates_args=()):
    """An operator that calls ``returns`` with its arguments."""

    def f(x, xs=None):
        return returns(x, xs)

    schema = schema or "(Tensor x, Tensor[] xs) -> (Tensor, Tensor[])"
    return custom_op("s::f", f, mutates_args=mutates_args, schema=schema, registry=registry)


@pytest.mark.parametrize(
    ("returns", "what"),
    [
        (lambda x, xs: (x, []), "return value 0 of s::f is argument 'x'"),
        (lambda x, xs: (Array(), [x]), "return value 1 of s::f is argument 'x'"),
        (lambda x, xs: (xs[1], []), "return value 0 of s::f is argument 'xs'"),
        (lambda x, xs: (Array(), [Array(), xs[0]]), "return value 1 of s::f is argument 'xs'"),
        (lambda x, xs: [y := Array(), [y]], "return value 1 of s::f is return value 0"),
        (lambda x, xs: (Array(), [Array()] * 2), "return value 1 of s::f holds one value twice"),
    ],
)
def test_what_is_no_memory_of_its_own_may_not_be_returned(registry, returns, what):
    op = returning(registry, returns)
    with pytest.raises(errors.AliasingError) as caught:
        op(Array(), on("CPU", "CPU"))
    assert str(caught.value).startswith(what)
    assert caught.value.operator == "s::f"


class Memory:
    """Some bytes of an array. Like an array of numpy, it knows whose memory it uses."""

    __dispatch_keys__ = "CPU"

    def __init__(self, memory, start=0, stop=8, base=None):
        self.memory, self.part, self.base = memory, (start, stop), base

    @property
    def __array_interface__(self):
        start, stop = self.part
        address = ctypes.addressof(self.memory) + start
        shape = (stop - start,)
        return {"data": (address, False), "shape": shape, "typestr": "|u1", "version": 3}

    def view(self, start, stop):
        return Memory(self.memory, start, stop, self.base or self)


def test_memory_that_is_shared_is_seen_too(registry):
    schema = "(Tensor x, Tensor[] xs) -> Tensor"
    op = returning(registry, lambda x, xs: x.view(0, 4), schema=schema)
    whole = Memory(ctypes.create_string_buffer(8))
    for x in (whole, whole.view(2, 6)):
        with pytest.raises(errors.AliasingError, match="'x'"):
            op(x, [])
    with pytest.raises(errors.AliasingError, match="'xs'"):
        op(whole.view(4, 8), [whole.view(3, 5)])
    assert op(whole.view(4, 8), [whole.view(5, 8)]).part == (0, 4)


@pytest.mark.parametrize("take", [lambda x: x[1:3], lambda x: x.cast("b"), lambda x: x.obj])
def test_memory_behind_a_view_is_seen(registry, take):
    for cls in (memoryview, bytearray):
        md.register_type(cls, "CPU")

    def op(name, function):
        schema = "(Tensor x) -> Tensor"
        return custom_op(name, function, mutates_args=(), schema=schema, registry=registry)

    data = bytearray(b"abcd")
    with pytest.raises(errors.AliasingError):
        op("s::part", take)(memoryview(data))
    assert op("s::copy", lambda x: memoryview(bytearray(x)))(memoryview(data)) == data
    # Bytes never change, so they may be shared.
    assert op("s::constant", lambda x: x[:])(memoryview(b"abcd")) == data


def test_memory_of_torch_is_seen(registry):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    op = returning(registry, lambda x, xs: x[:1], schema="(Tensor x) -> Tensor")
    with pytest.raises(errors.AliasingError):
        op(torch.ones(2))


@pytest.mark.parametrize(
    ("schema", "returns", "mutates"),
    [
        ("(Tensor(a) x, Tensor[] xs) -> Tensor(a)", lambda x, xs: x, ()),
        ("(Tensor(a!) x, Tensor[] xs) -> Tensor(a!)", lambda x, xs: x, ["x"]),
        ("(Tensor x, Tensor(b)[] xs) -> Tensor(b)[]", lambda x, xs: [xs[1], xs[0]], ()),
        ("(Tensor(*) x, Tensor[] xs) -> Tensor(b)", lambda x, xs: x, ()),
    ],
)
def test_what_the_schema_declares_may_be_returned(registry, schema, returns, mutates):
    op = returning(registry, returns, schema=schema, mutates_args=mutates)
    x, xs = Array(), on("CPU", "CPU")
    assert op(x, xs) in (x, [xs[1], xs[0]])


def test_what_the_schema_declares_for_one_argument_is_not_declared_for_others(registry):
    schema = "(Tensor(a) x, Tensor[] xs) -> Tensor(a)"
    op = returning(registry, lambda x, xs: xs[0], schema=schema)
    with pytest.raises(errors.AliasingError, match="'xs'"):
        op(Array(), on("CPU"))


def test_numbers_are_nobodys_memory(registry):
    op = returning(registry, lambda x, xs: (x, x), schema="(int x) -> (int, int)")
    assert op(1000) == (1000, 1000)


# --- operators without tensors --------------------------------------------------------------------


def factory(registry, **options):
    def make(n, *, device=None):
        return Array(n, device)

    options = {"device_types": "cpu", **options}
    schema = "(int n, *, Device? device=None) -> Tensor"
    return custom_op("s::make", make, mutates_args=(), schema=schema, registry=registry, **options)


def test_without_tensors_the_device_argument_chooses_the_kernel(registry):
    op = factory(registry)
    op.register_kernel(("cuda", "xpu"), lambda n, *, device: Array("other", device))
    assert op(3, device="cpu").values == [3, "cpu"]
    assert op(3, device="cuda:1").values == ["other", "cuda:1"]
    with pytest.raises(errors.MissingKernelError, match="MPS"):
        op(3, device="mps")


def test_without_a_device_runs_what_serves_calls_without_keys(registry):
    op = factory(registry)
    with pytest.raises(errors.MissingKernelError):
        op(3)
    op.register_kernel(None, lambda n, *, device: Array("any", device))
    assert op(3).values == ["any", None]
    assert op(3, device="mps").values == ["any", "mps"]
    assert op(3, device="cpu").values == [3, "cpu"]


def test_the_device_may_be_positional_and_has_to_be_one(registry):
    schema = "(Device device, int n) -> Tensor"
    op = custom_op(
        "s::make",
        lambda device, n: Array(n, device),
        mutates_args=(),
        schema=schema,
        device_types="cpu",
        registry=registry,
    )
    assert op("cpu:0", 2).values == [2, "cpu:0"]
    with pytest.raises(errors.ArgumentError, match="device"):
        op("cpux", 2)


def test_for_every_device_no_argument_is_needed(registry):
    op = custom_op("s::make", no_device, mutates_args=(), registry=registry)
    assert op(3).values == [3]
    with pytest.raises(errors.InvalidArgumentError, match="device"):
        op.register_kernel("cpu", says("cpu"))
    with pytest.raises(errors.InvalidArgumentError, match="device"):
        op.register_kernel("cpu")


# --- the rest -------------------------------------------------------------------------------------


class Mode(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return op(*args, **kwargs)


def test_the_other_registrations_are_made_in_the_operators_own_library(registry, scale):
    @scale.register_vmap
    def vmapped(x, factor):
        return Array("batched")

    scale.register_autocast("cpu", "float16")
    scale.register_kernel("cpu", lambda x, factor: Array(x.dtype))
    scale.register_dispatch_rule(Mode, lambda mode, op, types, args, kwargs: Array("rule"))
    assert scale(Array(device=("FuncTorchBatched", "CPU"))).values == ["batched"]
    with SetExcludeDispatchKeyGuard("AutocastCPU", False):
        assert scale(Array(device=("CPU", "AutocastCPU"))).values == ["float16"]
    with Mode():
        assert scale(Array()).values == ["rule"]
    assert get_kernel(scale, "CPU")(Array()).values == ["float32"]
    scale._library.close()
    assert there(registry) == []


class Number:
    """One number, which can be added."""

    __dispatch_keys__ = "CPU"

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Number(self.value + other.value)


def test_gradients_are_those_of_the_formula(registry):
    @custom_op("s::times", mutates_args=(), registry=registry)
    def times(x: Tensor, factor: float) -> Tensor:
        return Number(x.value * factor)

    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    times.register_autograd(
        lambda ctx, gradient: (times(gradient, ctx.factor), None), setup_context=setup_context
    )
    assert keys_there(registry, "s::times")[-1] == "Autograd"
    x = Number(5.0)
    with Tape(ones_like=lambda value: Number(1.0)) as tape:
        tape.watch(x)
        y = times(times(x, 3.0), 2.0)
    assert (y.value, tape.gradient(y, x).value) == (30.0, 6.0)
    with pytest.raises(errors.AutogradError):
        custom_op(
            "s::g", says("g"), mutates_args=["x"], schema="(Tensor(a!) x) -> ()", registry=registry
        ).register_autograd(says("formula"))


# --- again ----------------------------------------------------------------------------------------


def in_this_run(registry, word="one", schema="(Tensor x) -> Tensor"):
    return custom_op(
        "s::f", lambda x, *rest: Array(word), mutates_args=(), schema=schema, registry=registry
    )


def make(registry, *args, **kwargs):
    return in_another_run(in_this_run)(registry, *args, **kwargs)


def test_the_same_name_in_another_run_of_a_function_replaces_the_operator(registry):
    first = make(registry)
    first.register_kernel("cuda", says("old"))
    count = len(there(registry))
    second = make(registry, "two")
    assert len(there(registry)) == count - 1
    assert which(second, "CPU", "CUDA") == ["two", "two"]
    # The definition is the same, so the operator is. Only the new object takes more kernels.
    assert first.operator == second.operator
    with pytest.raises(errors.LibraryClosedError):
        first.register_kernel("cuda", says("late"))
    third = make(registry, schema="(Tensor x, int n=1) -> Tensor")
    assert second.operator.is_gone
    assert which(third, "CPU") == ["one"]


def test_an_operator_that_was_replaced_before_its_first_call_is_gone(registry):
    first = make(registry)
    make(registry, schema="(Tensor x, int n=1) -> Tensor")
    with pytest.raises(errors.OperatorGoneError):
        first(Array())
    assert first.operator.is_gone


def test_the_same_name_from_another_place_is_refused_with_both(registry, scale):
    before = there(registry)
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        custom_op("s::scale", scaled, mutates_args=(), registry=registry)
    first, second = caught.value.first, caught.value.second
    assert first != second
    assert first.rpartition(":")[0] == second.rpartition(":")[0] == __file__
    assert there(registry) == before
    assert which(scale, "CPU") == [2.0]


CELL = """op = custom_op("s::f", kernel, mutates_args=(), schema=schema, registry=registry)"""


def run(registry, text, name="__main__", schema="(Tensor x) -> Tensor", file="<ipython-input-3>"):
    """Runs code of a module, or of a cell."""
    names = {"custom_op": custom_op, "kernel": says("cell"), "registry": registry}
    names.update(__name__=name, schema=schema)
    exec(compile(text, file, "exec"), names)
    return names["op"]


def test_code_of_a_module_that_runs_again_replaces_the_operator_on_whatever_line(registry):
    first = run(registry, CELL)
    second = run(registry, "\n\n" + CELL, schema="(Tensor x, int n=1) -> Tensor")
    assert first.operator.is_gone
    third = run(registry, CELL, file="<ipython-input-4>")
    assert second.operator.is_gone
    assert which(third, "CPU") == ["cell"]
    with pytest.raises(errors.DuplicateRegistrationError):
        run(registry, CELL, name="another_module")
    assert which(third, "CPU") == ["cell"]
    assert len(there(registry)) == len(keys_there(registry, "s::f")) + 1
    registry.check_invariants()


def test_twice_in_one_run_is_refused_and_the_first_can_still_be_replaced(registry):
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        run(registry, f"{CELL}\n{CELL}")
    assert (caught.value.first, caught.value.second) == (
        "<ipython-input-3>:1",
        "<ipython-input-3>:2",
    )
    assert which(run(registry, "\n\n" + CELL), "CPU") == ["cell"]


@pytest.mark.dear
def test_an_operator_that_nobody_holds_stays(registry):
    make(registry)
    gc.collect()
    assert registry.ops.s.f(Array()).values == ["one"]


@pytest.mark.shared
def test_a_worker_verifies_all_of_it(registry):
    def register(where):
        op = make(where)
        op.register_kernel(("cpu", "cuda"), says("device"))
        op.register_kernel("cuda", says("cuda"))
        op.register_fake(lambda x: empty_like(x))
        return op

    register(registry)
    before = there(registry)
    with md.Registry.attach(registry.address, timeout=0) as worker:
        op = register(worker)
        assert there(registry) == before
        assert which(op, "CPU", "CUDA", "XPU") == ["device", "cuda", "one"]
        assert op(MetaTensor((3,))).shape == (3,)
        with pytest.raises(errors.SchemaMismatchError):
            make(worker, schema="(Tensor y) -> Tensor")
        worker.check_invariants()


# --- everywhere -----------------------------------------------------------------------------------

MODULE = """
    import mdispatch as md
    from mdispatch import MetaTensor, custom_op, empty_like

    class Value:
        def __init__(self, value, device="CPU"):
            self.value = value
            self.__dispatch_keys__ = (device,)

    @custom_op("feature::f", mutates_args=(), device_types=("cpu", "cuda"))
    def f(x: md.Tensor, n: int = 2) -> md.Tensor:
        return x if n == 0 else Value(x.value * n)

    @f.register_kernel("cuda")
    def cuda(x, n):
        return Value("cuda")

    @f.register_fake
    def fake(x, n):
        return empty_like(x)

    @custom_op("feature::make", mutates_args=(), schema="(int n, Device device) -> Tensor",
               device_types="cpu")
    def make(n, device):
        return Value(n)
"""

BODY = """
    import feature
    import mdispatch as md
    f, Value = feature.f, feature.Value
    result = {
        "calls": [f(Value(3)).value, f(Value(3, "CUDA")).value],
        "fake": f(feature.MetaTensor((2, 3))).shape,
        "made": feature.make(5, "cpu").value,
        "same": f.operator is md.ops.feature.f.default or f.operator == md.ops.feature.f.default,
    }
    with f.set_kernel_enabled("cuda", False):
        result["disabled"] = f(Value(3, "CUDA")).value
    try:
        f(Value(3), 0)
    except md.errors.AliasingError as error:
        result["refused"] = error.operator
"""


@pytest.mark.parametrize("place", PLACES)
def test_a_custom_operator_serves_every_place(place, tmp_path):
    assert run_at(place, MODULE, BODY, tmp_path) == {
        "calls": [6, "cuda"],
        "fake": (2, 3),
        "made": 5,
        "same": True,
        "disabled": 6,
        "refused": "feature::f",
    }


def test_a_custom_operator_loads_nothing_that_only_opcheck_needs():
    code = (
        "import sys; sys.path[:] = eval(sys.argv[1]); import mdispatch.authoring.custom_op;"
        "assert not {'copy', 'pickle'} & {*sys.modules}"
    )
    # Without site, which in some installations loads them itself.
    path = repr([str(Path(md.__file__).parents[1]), *sys.path])
    subprocess.run([sys.executable, "-S", "-c", code, path], check=True, timeout=limit(60))
