"""The free functions of registering: what each registers, for which keys, in whose library, and
what it refuses.
"""

from __future__ import annotations

import gc

import pytest
from places import PLACES, run_at

import mdispatch as md
from mdispatch import errors
from mdispatch.authoring.functions import (
    define,
    get_kernel,
    impl,
    register_autocast,
    register_dispatch_rule,
    register_kernel,
    register_vmap,
    scoped_library,
)
from mdispatch.dispatch.context.guards import SetExcludeDispatchKeyGuard
from mdispatch.dispatch.context.modes import DispatchMode
from mdispatch.registry.register import RegistrationHandle


class Array:
    def __init__(self, *keys, dtype="float32"):
        self.__dispatch_keys__ = keys or ("CPU",)
        self.dtype = dtype

    def astype(self, dtype):
        return Array(*self.__dispatch_keys__, dtype=dtype)


CPU, CUDA = Array("CPU"), Array("CUDA")


def says(word):
    return lambda *args, **kwargs: word


def there(registry):
    _, _, found = registry.dispatcher.facts.registrations()
    return found


def keys_there(registry, name="s::f"):
    found = registry.dispatcher.facts.registrations(name)[2]
    return [md.DispatchKey(fact.key).name for fact in found if fact.key]


@pytest.fixture
def f(registry):
    define("s::f", "(Tensor x) -> str", registry=registry)
    yield registry.ops.s.f.default
    registry.check_invariants()


# --- define ---------------------------------------------------------------------------------------


def test_define_takes_the_name_and_the_schema_apart(registry):
    schema = " (Tensor x, *, int n=3) -> Tensor"
    assert define("s::f.out", schema, tags=("pure",), registry=registry) == "s::f.out"
    f = registry.ops.s.f.out
    assert str(f.schema) == "s::f.out(Tensor x, *, int n=3) -> Tensor"
    assert f.tags == ("pure",)
    define("s::g", "() -> ()", alias_analysis="PURE_FUNCTION", registry=registry)
    assert registry.registrations("s::g")[0].alias_analysis == "PURE_FUNCTION"


@pytest.mark.parametrize("name", ["f", "s::f::g", "", 3, None, "s::", "::f", "s:f"])
def test_define_wants_a_namespace_and_a_name(registry, name):
    with pytest.raises(errors.InvalidNameError):
        define(name, "() -> ()", registry=registry)
    assert there(registry) == []


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ("f(Tensor x) -> Tensor", errors.InvalidArgumentError),
        ("", errors.InvalidArgumentError),
        (None, errors.InvalidArgumentError),
        ("(Tensor x)", errors.SchemaSyntaxError),
        ("(Tensor x -> Tensor", errors.SchemaSyntaxError),
    ],
)
def test_define_wants_a_schema_without_a_name(registry, schema, error):
    with pytest.raises(error):
        define("s::f", schema, registry=registry)
    assert there(registry) == []


@pytest.mark.dear
def test_what_is_defined_without_a_library_stays_and_with_one_ends_with_it(registry):
    define("s::stays", "() -> ()", registry=registry)
    lib = md.Library("s", "FRAGMENT", registry=registry)
    define("s::ends", "() -> ()", lib=lib)
    define("ends_too", "() -> ()", lib=lib)
    gc.collect()
    assert registry.operators() == ["s::stays", "s::ends", "s::ends_too"]
    lib.close()
    assert registry.operators() == ["s::stays"]
    with pytest.raises(errors.LibraryClosedError):
        define("s::late", "() -> ()", lib=lib)


def test_defined_from_elsewhere_is_refused_with_both_places(registry, f):
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        define("s::f", "(Tensor x) -> str", registry=registry)
    first, second = caught.value.first, caught.value.second
    assert first != second
    assert first.startswith(__file__)
    assert second.startswith(__file__)


AGAIN = """
    define("s::f", "(Tensor x) -> str", registry=registry)
    for device in ("cpu", "cuda"):
        impl("s::f", device, lambda x, device=device: (word + device), registry=registry)
    register_vmap("s::f", lambda x: word + "vmap", registry=registry)
    register_autocast("s::f", "cpu", "half", registry=registry)
"""


def test_a_module_imported_again_replaces_what_it_registered(registry):
    code = compile("if True:" + AGAIN, "again.py", "exec")
    names = {"__name__": "again", "registry": registry}
    names |= {each.__name__: each for each in (define, impl, register_vmap, register_autocast)}
    exec(code, {**names, "word": "old "})
    before = len(there(registry))
    f = registry.ops.s.f.default
    exec(code, {**names, "word": "new "})
    assert len(there(registry)) == before
    values = [CPU, CUDA, Array("FuncTorchBatched", "CPU")]
    assert [f(value) for value in values] == ["new cpu", "new cuda", "new vmap"]


# --- impl -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "keys"),
    [
        ("cpu", ["CPU"]),
        ("cuda:1", ["CUDA"]),
        ("default", ["CompositeExplicitAutograd"]),
        ("meta", ["Meta"]),
        ("CPU", ["CPU"]),
        ("AutogradCPU", ["AutogradCPU"]),
        (md.DispatchKey.Autograd, ["Autograd"]),
        (("cpu", "cuda", "cuda:1", "CPU"), ["CPU", "CUDA"]),
        ({"xpu": 1}, ["XPU"]),
        (["default", md.DispatchKey.SparseCPU], ["CompositeExplicitAutograd", "SparseCPU"]),
    ],
)
def test_impl_takes_devices_and_keys_one_or_several(registry, f, types, keys):
    kernel = says("f")
    assert impl("s::f", types, kernel, registry=registry) is kernel
    assert keys_there(registry) == keys


@pytest.mark.parametrize(
    "types",
    ["gpu", "Undefined", "Cuda", "", "CPU:1", "cpu:", 3, None, [None], [["cpu"]], ("cpu", "nokey")],
)
def test_impl_refuses_what_is_no_device_and_no_key(registry, f, types):
    before = there(registry)
    with pytest.raises(errors.InvalidKeyError):
        impl("s::f", types, says("f"), registry=registry)
    assert there(registry) == before


def test_impl_says_what_was_probably_meant(registry, f):
    for types, meant in (("cuad", "cuda"), ("CUAD", "CUDA")):
        with pytest.raises(errors.InvalidKeyError) as caught:
            impl("s::f", types, says("f"), registry=registry)
        assert meant in caught.value.nearest


def test_impl_wants_at_least_one(registry, f):
    with pytest.raises(errors.InvalidArgumentError, match="at least one"):
        impl("s::f", [], says("f"), registry=registry)


def test_impl_decorates(registry, f):
    @impl("s::f", ("cpu", "cuda"), registry=registry)
    def kernel(x):
        return "kernel"

    assert kernel(None) == f(CPU) == f(CUDA) == "kernel"


def test_impl_takes_operators_and_gives_the_key_set(registry, f):
    impl(f, "cpu", lambda keys, x: keys.highest_priority().name, with_keyset=True)
    assert f(CPU) == "CPU"
    with pytest.raises(errors.DuplicateRegistrationError):
        impl(f, "cpu", says("second"), allow_override=False)


@pytest.mark.parametrize("given", [True, False], ids=["given library", "own library"])
def test_impl_registers_at_all_keys_or_at_none(registry, f, given):
    lib = md.Library("s", "FRAGMENT", registry=registry)
    impl(f, "cuda", says("first"), lib=lib)
    before = there(registry)
    where = {"lib": lib} if given else {"registry": registry}
    with pytest.raises(errors.DuplicateRegistrationError):
        impl("s::f", ("cpu", "xpu", "cuda"), says("f"), allow_override=False, **where)
    with pytest.raises(errors.InvalidKeyError):
        impl("s::f", ("cpu", "Dense"), says("f"), **where)
    with pytest.raises(errors.InvalidArgumentError):
        impl("s::f", ("cpu", "cuda"), "no function", **where)
    assert there(registry) == before
    assert len(lib._handles) == 1
    lib.close()
    assert keys_there(registry) == []


def test_a_library_of_another_namespace_registry_or_kind_is_refused(registry, f):
    other = md.Library("t", "FRAGMENT", registry=registry)
    with pytest.raises(errors.InvalidArgumentError, match="namespace"):
        impl("s::f", "cpu", says("f"), lib=other)
    with pytest.raises(errors.InvalidArgumentError, match=r"mdispatch\.Library"):
        impl("s::f", "cpu", says("f"), lib="s")
    with md.Registry.create() as another:
        lib = md.Library("s", "FRAGMENT", registry=another)
        for op, where in (
            (f, {"lib": lib}),
            (f, {"registry": another}),
            ("s::f", {"lib": lib, "registry": registry}),
        ):
            with pytest.raises(errors.InvalidArgumentError, match="different registries"):
                impl(op, "cpu", says("f"), **where)
    with pytest.raises(errors.InvalidNameError):
        impl(None, "cpu", says("f"), registry=registry)
    with pytest.raises(errors.InvalidNameError):
        impl("f", "cpu", says("f"), registry=registry)
    assert keys_there(registry) == []


def test_a_kernel_may_come_before_its_definition(registry):
    impl("s::later", "cpu", says("early"), registry=registry)
    define("s::later", "(Tensor x) -> str", registry=registry)
    assert registry.ops.s.later(CPU) == "early"


def test_a_device_of_an_extension_is_one(registry, f):
    impl("s::f", "privateuseone:3", says("npu"), registry=registry)
    assert f(Array("PrivateUse1")) == "npu"


# --- register_kernel, register_vmap ---------------------------------------------------------------


def test_register_kernel_is_for_devices_and_none_is_every_device(registry, f):
    register_kernel(f, None, says("every"))
    register_kernel("s::f", "cuda", registry=registry)(says("cuda"))
    assert (f(CPU), f(CUDA), f(Array("XPU"))) == ("every", "cuda", "every")


def test_a_vmap_kernel_gets_the_batched_values_themselves(registry, f):
    batched = Array("FuncTorchBatched", "CPU")
    got = []

    @register_vmap(f)
    def vmapped(x):
        got.append(x)
        return "batched, " + f(CPU)

    register_kernel(f, "cpu", says("single"))
    assert f(batched) == "batched, single"
    assert got == [batched]


# --- register_autocast ----------------------------------------------------------------------------


@pytest.fixture
def cast_op(registry):
    define("s::c", "(Tensor x, Tensor[] xs, *, Tensor? y=None) -> str", registry=registry)

    @impl("s::c", "default", registry=registry)
    def kernel(x, xs, *, y=None):
        return " ".join(str(each and each.dtype) for each in (x, *xs, y))

    return registry.ops.s.c.default


def on(*keys, dtype="float32"):
    return Array(*keys, "AutocastCPU", dtype=dtype)


def autocasting(key="AutocastCPU"):
    return SetExcludeDispatchKeyGuard(key, False)


def test_autocast_casts_floating_tensors_of_its_device_and_only_while_it_is_on(registry, cast_op):
    register_autocast(cast_op, "cpu", "float16")
    args = (
        on("CPU"),
        [on("CPU", dtype="float64"), on("CPU", dtype="int32"), on("CUDA"), on("CPU")],
    )
    kwargs = {"y": on("CPU", dtype="bfloat16")}
    assert cast_op(*args, **kwargs) == "float32 float64 int32 float32 float32 bfloat16"
    with autocasting():
        assert cast_op(*args, **kwargs) == "float16 float64 int32 float32 float16 float16"
        assert cast_op(on("CPU"), []) == "float16 None"
    assert cast_op(*args, **kwargs).startswith("float32")


def test_autocast_uses_the_cast_that_it_is_given(registry, cast_op):
    def cast(value, dtype):
        return Array(dtype=f"{value.dtype} to {dtype}")

    register_autocast(cast_op, "cpu", "half", cast=cast)
    with autocasting():
        assert cast_op(on("CPU", dtype="int8"), []) == "int8 to half None"


def test_autocast_is_off_inside_and_other_keys_are_as_they_were(registry, cast_op):
    calls = []

    @impl("s::c", "cpu", registry=registry)
    def kernel(x, xs, *, y=None):
        calls.append(md.key_set_of(x).has("AutocastCPU"))
        if len(calls) == 1:
            return cast_op(Array("CPU", "AutocastCPU", dtype="float32"), [])
        return x.dtype

    register_autocast(cast_op, "cpu", "float16")
    with autocasting():
        assert cast_op(on("CPU"), []) == "float32"


def test_autocast_with_numpy_casts_arrays(registry):
    np = pytest.importorskip("numpy")

    class Wrapped:
        __dispatch_keys__ = ("CPU", "AutocastCPU")

        def __init__(self, array):
            self.array = array
            self.dtype = array.dtype

        def astype(self, dtype):
            return Wrapped(self.array.astype(dtype))

    define("s::n", "(Tensor x) -> str", registry=registry)
    impl("s::n", "cpu", lambda x: str(x.dtype), registry=registry)
    register_autocast("s::n", "cpu", np.float16, registry=registry)
    with autocasting():
        found = [registry.ops.s.n(Wrapped(np.ones(2, kind))) for kind in (">f4", "f8", "i4", "f2")]
    assert found == ["float16", "float64", "int32", "float16"]


def test_autocast_wants_a_device_that_has_it_and_a_cast_that_can_be_called(registry, f):
    before = there(registry)
    for device in ("vulkan", "no", 3):
        with pytest.raises(errors.InvalidKeyError):
            register_autocast(f, device, "half")
    with pytest.raises(errors.InvalidArgumentError):
        register_autocast(f, "cpu", "half", cast="half")
    assert there(registry) == before


# --- register_dispatch_rule -----------------------------------------------------------------------


class Counting(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return "mode"


class Typed:
    __dispatch_keys__ = ("Python", "CPU")

    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        return "type"


def test_a_rule_for_a_mode_runs_in_its_place_until_the_handle_is_closed(registry, f):
    register_kernel(f, "cpu", says("kernel"))
    handle = register_dispatch_rule(
        f, Counting, lambda mode, op, types, args, kwargs: (type(mode).__name__, op.name)[0]
    )
    assert isinstance(handle, RegistrationHandle)
    with Counting():
        assert f(CPU) == "Counting"
        handle.close()
        handle.close()
        assert f(CPU) == "mode"
    assert f(CPU) == "kernel"


def test_a_rule_for_a_type_decorates_and_ends_with_its_library(registry, f):
    lib = md.Library("s", "FRAGMENT", registry=registry)

    @register_dispatch_rule("s::f", Typed, lib=lib)
    def rule(cls, op, types, args, kwargs):
        return f"rule for {cls.__name__}"

    assert callable(rule)
    assert f(Typed()) == "rule for Typed"
    lib.close()
    assert f(Typed()) == "type"
    with pytest.raises(errors.LibraryClosedError):
        register_dispatch_rule("s::f", Typed, rule, lib=lib)


def test_a_rule_is_for_an_operator_and_a_class_that_sees_calls(registry, f):
    with pytest.raises(errors.OperatorNotFoundError):
        register_dispatch_rule("s::nobody", Counting, says("f"), registry=registry)
    for cls in (int, "Counting", Array):
        with pytest.raises(errors.InvalidArgumentError):
            register_dispatch_rule(f, cls, says("f"))


# --- get_kernel -----------------------------------------------------------------------------------


def test_a_kernel_can_be_held_while_another_takes_its_place(registry, f):
    register_kernel(f, "cpu", says("original"))
    original = get_kernel(f, "CPU")
    impl(f, "cpu", lambda x: f"not {original(x)}")
    assert f(CPU) == "not original"
    assert get_kernel("s::f", "CPU", registry=registry)(CPU) == "not original"


def test_a_kernel_says_what_it_is(registry, f):
    @impl(f, "default")
    def named(x):
        return "named"

    kernel = get_kernel(f, md.DispatchKey.CUDA)
    fact = registry.dispatcher.facts.registrations("s::f")[2][-1]
    assert (kernel.operator, kernel.key) == (f, md.DispatchKey.CUDA)
    assert kernel.reason == "default backend kernel"
    assert kernel.where == fact.where
    assert kernel.label == fact.body
    assert kernel.label.endswith("named")
    assert "s::f" in repr(kernel)


def test_a_kernel_is_called_with_a_key_set_and_gets_it_if_it_wants(registry, f):
    impl(f, "cpu", lambda keys, x: " ".join(key.name for key in keys), with_keyset=True)
    kernel = get_kernel(f, "CPU")
    assert kernel(CPU) == "CPU"
    assert kernel.call_boxed(md.DispatchKeySet("CPU", "Python"), x=CPU) == "CPU Python"
    with pytest.raises(errors.ArgumentError, match="DispatchKeySet"):
        kernel.call_boxed("CPU", CPU)
    with pytest.raises(errors.ArgumentError):
        kernel(3)


def test_a_fallback_is_a_kernel_too(registry, f):
    with md.Library("_", "IMPL", registry=registry) as fallbacks:
        fallbacks.fallback(lambda op, x: f"fallback of {op.name}", "CUDA")
    kernel = get_kernel(f, "CUDA")
    assert kernel.reason == "backend fallback"
    assert kernel(CUDA) == "fallback of s::f"
    fallbacks.close()
    with pytest.raises(errors.MissingKernelError, match="closed"):
        kernel(CUDA)


def test_a_kernel_that_was_closed_does_not_run(registry, f):
    lib = md.Library("s", "IMPL", registry=registry)
    lib.impl("f", says("old"), "CPU")
    kernel = get_kernel(f, "CPU")
    assert kernel(CPU) == "old"
    impl(f, "cpu", says("new"))
    assert kernel(CPU) == "old"
    lib.close()
    with pytest.raises(errors.MissingKernelError, match="closed") as caught:
        kernel(CPU)
    assert (caught.value.operator, caught.value.key) == ("s::f", "CPU")
    assert f(CPU) == "new"


def test_the_kernel_of_an_operator_that_is_gone_does_not_run(registry):
    with md.Library("s", "FRAGMENT", registry=registry) as lib:
        lib.define("g(Tensor x) -> str")
    impl("s::g", "cpu", says("kept"), registry=registry)
    kernel = get_kernel("s::g", "CPU", registry=registry)
    lib.close()
    with pytest.raises(errors.OperatorGoneError):
        kernel(CPU)


def test_there_is_no_kernel_where_none_would_run(registry, f):
    with pytest.raises(errors.MissingKernelError):
        get_kernel(f, "CPU")
    with pytest.raises(errors.MissingKernelError, match="falls through"):
        get_kernel(f, "AutogradCPU")
    with pytest.raises(errors.InvalidKeyError):
        get_kernel(f, "CompositeExplicitAutograd")
    with pytest.raises(errors.OperatorNotFoundError):
        get_kernel("s::nobody", "CPU", registry=registry)


def test_in_a_worker_a_kernel_ends_with_that_of_the_main_interpreter(registry, f, worker):
    def register(where):
        lib = md.Library("s", "IMPL", registry=where, timeout=0)
        lib.impl("f", says("kernel"), "CPU")
        return lib

    lib = register(registry)
    with pytest.raises(errors.LocalKernelMissingError):
        get_kernel("s::f", "CPU", registry=worker)
    register(worker)
    kernel = get_kernel("s::f", "CPU", registry=worker)
    assert kernel(CPU) == "kernel"
    lib.close()
    with pytest.raises(errors.MissingKernelError, match="closed"):
        kernel(CPU)


# --- scoped_library -------------------------------------------------------------------------------


class Wrong(Exception):
    pass


def leave(registry, how):
    with scoped_library("s", "DEF", registry=registry) as lib:
        lib.define("f(Tensor x) -> str")
        assert registry.operators() == ["s::f"]
        if how == "raise":
            raise Wrong
    assert lib.closed


def test_a_scoped_library_ends_with_its_block_however_that_ends(registry):
    leave(registry, "end")
    assert there(registry) == []
    with pytest.raises(Wrong):
        leave(registry, "raise")
    assert there(registry) == []


def test_a_scoped_library_has_the_kinds_and_the_key_of_any(registry, f):
    with scoped_library("s", "IMPL", "CPU", registry=registry) as lib:
        lib.impl("f", says("scoped"))
        assert f(CPU) == "scoped"
    with pytest.raises(errors.InvalidArgumentError):
        scoped_library("s", "CPU", registry=registry)


# --- everywhere -----------------------------------------------------------------------------------

MODULE = """
    from mdispatch import define, get_kernel, impl, register_autocast, register_dispatch_rule
    from mdispatch import register_kernel, register_vmap
    from mdispatch.context import DispatchMode

    class Value:
        def __init__(self, *keys, dtype="float32"):
            self.__dispatch_keys__ = keys
            self.dtype = dtype

        def astype(self, dtype):
            return Value(*self.__dispatch_keys__, dtype=dtype)

    class Mode(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            return op(*args, **kwargs)

    define("feature::f", "(Tensor x) -> str", tags="shown")
    impl("feature::f", ("cpu", "cuda"), lambda x: f"{x.dtype} on a device")
    register_kernel("feature::f", None, lambda x: "on any device")
    register_vmap("feature::f", lambda x: "batched")
    register_autocast("feature::f", "cpu", "float16")
    register_dispatch_rule("feature::f", Mode, lambda mode, op, types, args, kwargs: "by rule")
"""

BODY = """
    import feature
    import mdispatch as md
    from mdispatch.context import SetExcludeDispatchKeyGuard
    f, Value = md.ops.feature.f, feature.Value
    result = {"calls": [f(Value(key)) for key in ("CPU", "CUDA", "XPU")]}
    result["calls"].append(f(Value("CPU", "FuncTorchBatched")))
    with SetExcludeDispatchKeyGuard("AutocastCPU", False):
        result["calls"].append(f(Value("CPU", "AutocastCPU")))
    with feature.Mode():
        result["calls"].append(f(Value("CPU")))
    result["kernel"] = feature.get_kernel("feature::f", "CPU")(Value("CPU"))
    result["main"] = md.is_main_interpreter()
"""


@pytest.mark.parametrize("place", PLACES)
def test_every_function_serves_every_place(place, tmp_path):
    assert run_at(place, MODULE, BODY, tmp_path) == {
        "calls": [
            "float32 on a device",
            "float32 on a device",
            "on any device",
            "batched",
            "float16 on a device",
            "by rule",
        ],
        "kernel": "float32 on a device",
        "main": place == "main",
    }
