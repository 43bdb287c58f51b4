"""The ways to call a kernel: which key set each takes, what the kernel gets, what the caller
gets.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from kinds import run_main

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context.guards import AutoDispatchBelowAutograd


class Array:
    def __init__(self, *keys):
        self.__dispatch_keys__ = keys or ("CPU",)


CPU, CUDA, GRAD = Array("CPU"), Array("CUDA"), Array("CPU", "AutogradCPU")
Keys = md.DispatchKeySet


def says(word):
    return lambda *args, **kwargs: word


def takes(*args, **kwargs):
    return args, kwargs


@pytest.fixture
def define(registry, lib):
    """Defines s::f, with a kernel at each of the keys that returns its key. Returns the
    operator.
    """

    def make(arguments, *keys, returns="Any", name="f"):
        lib.define(f"{name}({arguments}) -> {returns}")
        for key in keys:
            lib.impl(name, says(key), key)
        return getattr(registry.ops.s, name).default

    return make


@pytest.fixture(autouse=True)
def every_test_leaves_a_sound_registry(registry):
    yield
    if not registry.dispatcher.facts._closed:
        registry.check_invariants()


# --- which key set --------------------------------------------------------------------------------


def test_a_call_with_a_key_set_takes_it_in_place_of_the_arguments_keys(define):
    f = define("Tensor? x", "CPU", "CUDA", "CompositeExplicitAutograd")
    assert f.call_with_keyset(Keys("CUDA"), CPU) == f.call_with_keyset(Keys("CUDA"), None) == "CUDA"
    assert f.call_with_keyset(Keys("CPU"), CUDA) == f.call_with_keyset(Keys("CPU"), x=CUDA) == "CPU"
    assert f.call_with_keyset(Keys(), CPU) == "CompositeExplicitAutograd"


def test_calls_heed_the_threads_sets_and_redispatches_do_not(define):
    f = define("Tensor x", "CPU", "Negative", "Conjugate", "AutocastCPU")
    ways = {
        "call": lambda *keys: f(Array(*keys)),
        "call_boxed": lambda *keys: boxed(f, Array(*keys)),
        "call_with_keyset": lambda *keys: f.call_with_keyset(Keys(*keys), CPU),
        "redispatch": lambda *keys: f.redispatch(Keys(*keys), CPU),
        "redispatch_boxed": lambda *keys: boxed(f, CPU, keys=Keys(*keys)),
    }
    for name, way in ways.items():
        heeds = name.startswith("call")
        assert way("CPU", "AutocastCPU") == ("CPU" if heeds else "AutocastCPU")
        with (
            md.context.IncludeDispatchKeyGuard("Negative"),
            md.context.ExcludeDispatchKeyGuard("Conjugate"),
        ):
            assert way("CPU") == ("Negative" if heeds else "CPU")
            assert way("CPU", "Conjugate") == ("Negative" if heeds else "Conjugate")


def test_calls_pass_by_what_falls_through_and_redispatches_stop_there(define, lib):
    f = define("Tensor x", "CPU")
    lib.impl("f", md.fallthrough_kernel, "Conjugate")
    for key in ("Conjugate", "AutogradCPU", "BackendSelect"):
        both = Keys("CPU", key)
        assert f(Array("CPU", key)) == f.call_with_keyset(both, CPU) == "CPU"
        for redispatch in (f.redispatch, lambda keys, x: f.redispatch_boxed(keys, [x])):
            with pytest.raises(errors.MissingKernelError, match="falls through") as caught:
                redispatch(both, CPU)
            assert caught.value.key == key
            assert f"remove('{key}')" in str(caught.value)
        assert f.redispatch(both.remove(key), CPU) == "CPU"


def test_a_key_that_is_included_falls_through_too(define, lib):
    f = define("Tensor x", "CPU")
    lib.impl("f", md.fallthrough_kernel, "Negative")
    with md.context.IncludeDispatchKeyGuard("Negative"):
        assert f(CPU) == f.call_with_keyset(Keys("CPU"), CUDA) == "CPU"


def test_an_alias_that_falls_through_does_so_for_what_it_stands_for(define, lib):
    f = define("Tensor x", "CPU", "AutogradCUDA")
    lib.impl("f", md.fallthrough_kernel, "Autograd")
    assert f(GRAD) == "CPU"
    assert f(Array("CUDA", "AutogradCUDA")) == "AutogradCUDA"


def test_where_everything_falls_through_there_is_no_kernel(define, lib):
    f = define("Tensor x")
    lib.impl("f", md.fallthrough_kernel)
    for call in (f, lambda x: f.redispatch(Keys("CPU"), x), lambda x: f.redispatch(Keys(), x)):
        with pytest.raises(errors.MissingKernelError):
            call(CPU)


@pytest.mark.parametrize(
    "keys",
    ["CPU", None, 1, ("CPU",), md.DispatchKey.CPU, CPU],
    ids=lambda keys: type(keys).__name__,
)
@pytest.mark.parametrize("way", ["call_with_keyset", "redispatch", "redispatch_boxed"])
def test_what_is_no_key_set_is_refused_by_name(define, way, keys):
    f = define("Tensor x", "CPU")
    arguments = [CPU]
    with pytest.raises(errors.ArgumentError, match=f"{way} takes a DispatchKeySet") as caught:
        getattr(f, way)(keys, arguments if way.endswith("boxed") else CPU)
    assert caught.value.operator == "s::f"
    assert arguments == [CPU]


# --- the kernel at exactly one key ----------------------------------------------------------------


def test_by_key_the_kernel_at_exactly_that_key_runs_whatever_the_thread_excludes(define):
    f = define("Tensor x", "CPU", "CUDA", "BackendSelect")
    with md.context.ForceDispatchKeyGuard("Negative", ("CPU", "BackendSelect")):
        for key in ("CPU", "CUDA", "BackendSelect", md.DispatchKey.CUDA):
            assert f.call_for_dispatch_key(key, GRAD) == str(key)


def test_by_key_the_fallback_of_the_key_serves_and_no_alias_does(define, wild):
    f = define("Tensor x", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "Autograd")
    wild.fallback(lambda keys, op, x: (keys, op, x), "CUDA", with_keyset=True)
    keys, op, x = f.call_for_dispatch_key("CUDA", CPU)
    assert (keys, op, x) == (Keys("CUDA"), f, CPU)
    for key in ("CPU", "Undefined", "SparseCUDA"):
        with pytest.raises(errors.MissingKernelError, match=f"neither .* at exactly {key}\n"):
            f.call_for_dispatch_key(key, CPU)


def test_by_key_a_kernel_that_falls_through_is_none_even_above_a_fallback(define, lib, wild):
    f = define("Tensor x", "CPU")
    wild.fallback(says("fallback"), "CUDA")
    lib.impl("f", md.fallthrough_kernel, "CUDA")
    for key in ("CUDA", "AutogradCPU"):
        with pytest.raises(errors.MissingKernelError, match=f"falls through at exactly {key}\n"):
            f.call_for_dispatch_key(key, CPU)


@pytest.mark.parametrize("key", ["Autograd", "CompositeExplicitAutograd", "Sparse", "GPU", 7, None])
def test_by_key_only_keys_that_have_a_slot_are_taken(define, key):
    with pytest.raises(errors.InvalidKeyError) as caught:
        define("Tensor x", "CPU", "Autograd").call_for_dispatch_key(key, CPU)
    assert caught.value.key == key or str(caught.value.key) == key


@pytest.mark.shared
def test_by_key_a_kernel_that_is_not_loaded_here_is_told_with_its_place(registry, define, wild):
    define("Tensor x", "CPU")
    wild.fallback(says("fallback"), "CUDA")
    with md.Registry.attach(registry.address, timeout=0) as worker:
        for key in ("CPU", "CUDA"):
            with pytest.raises(
                errors.LocalKernelMissingError, match="did not register it"
            ) as found:
                worker.ops.s.f.default.call_for_dispatch_key(key, CPU)
            assert found.value.where.startswith(f"{__file__}:")
            assert found.value.key == key


# --- what kernels and fallbacks get ---------------------------------------------------------------


def test_a_kernel_gets_the_key_set_that_was_dispatched_on(define, lib):
    f = define("Tensor x")
    for key in ("CPU", "AutogradCPU", "Negative"):
        lib.impl("f", lambda keys, x: keys, key, with_keyset=True)
    lib.impl("f", md.fallthrough_kernel, "Conjugate")
    value = Array("CPU", "AutogradCPU", "Conjugate", "AutocastCPU")
    assert f(value) == Keys("CPU", "AutogradCPU")
    with md.context.IncludeDispatchKeyGuard("Negative"), AutoDispatchBelowAutograd():
        assert f(value) == f.call_with_keyset(Keys("CPU"), value) == Keys("CPU", "Negative")
    assert f.redispatch(Keys("AutogradCPU"), value) == Keys("AutogradCPU")
    assert f.call_for_dispatch_key("CPU", value) == Keys("CPU")


def test_in_every_way_a_fallback_gets_the_operator_first(define, wild):
    f = define("Tensor x, int n=3, *, str word='w'", returns="Any")
    wild.fallback(lambda op, *args, **kwargs: (op, args, kwargs), "CPU")
    expected = (f, (CPU, 3), {"word": "w"})
    assert f(CPU) == f.redispatch(Keys("CPU"), CPU) == expected
    assert f.call_with_keyset(Keys("CPU"), CPU) == f.call_for_dispatch_key("CPU", CPU) == expected
    assert boxed(f, CPU, 3, "w") == boxed(f, CPU, 3, "w", keys=Keys("CPU")) == expected
    assert expected[0].name == "s::f"


def test_arguments_may_be_called_as_parameters_of_ours_in_every_way(registry, lib):
    names = ("self", "key_set", "key", "args", "kwargs", "operator", "stack")
    lib.define(f"f({', '.join(f'int {name}' for name in names)}) -> Any")
    lib.impl("f", takes, "CPU")
    f, given = registry.ops.s.f.default, dict(zip(names, range(7), strict=True))
    expected = tuple(range(7)), {}
    assert f.redispatch(Keys("CPU"), **given) == expected
    assert f.call_with_keyset(Keys("CPU"), **given) == expected
    assert f.call_for_dispatch_key("CPU", **given) == expected


class Pair(NamedTuple):
    """A tensor that is also a tuple."""

    first: object
    second: object
    __dispatch_keys__ = ("CUDA",)


class Row(list):
    """A tensor that is also a list."""

    __dispatch_keys__ = ("CUDA",)


@pytest.mark.parametrize("value", [Pair(CPU, CPU), Row([CPU])], ids=["tuple", "list"])
def test_a_tensor_of_a_class_derived_from_tuple_or_list_carries_its_own_keys(define, value):
    f = define("Tensor x, *, Tensor? y=None", "CPU", "CUDA")
    assert f(value) == f(CPU, y=value) == "CUDA"
    g = define("Tensor[] xs", "CPU", "CUDA", name="g")
    assert g([value]) == "CUDA"


def test_a_plain_list_may_be_registered_as_a_tensor():
    got = run_main(
        """
        md.register_type(list, "CUDA")
        md.register_type(bytes, "Meta")
        lib = md.Library("s", "DEF")
        lib.define("f(Tensor x, *, Tensor? y=None) -> str")
        lib.define("g(Tensor[] xs, *, Tensor?[] ys) -> str")
        for key in ("CUDA", "Meta", "CompositeExplicitAutograd"):
            for name in "fg":
                lib.impl(name, lambda *args, key=key, **kwargs: key, key)
        f, g = md.ops.s.f, md.ops.s.g
        done(f=[f([1.0]), f([b""]), f(b""), f([], y=b""), f([], y=[])],
             g=[g([], ys=[]), g([[1.0]], ys=[]), g([[], b""], ys=[]), g([], ys=[[], None])])
        """
    )
    assert got["f"] == ["CUDA", "CUDA", "Meta", "Meta", "CUDA"]
    assert got["g"] == ["CompositeExplicitAutograd", "CUDA", "Meta", "CUDA"]


# --- operators without tensors --------------------------------------------------------------------


def test_an_operator_that_makes_tensors_selects_its_backend(define, lib, registry):
    """How factories do it: a kernel at BackendSelect goes on with the key of a device."""
    f = define("int n, *, str device", "CPU", "CUDA")

    @lib.impl("f", dispatch_key="BackendSelect", with_keyset=True)
    def select(keys, n, *, device):
        assert keys.highest_priority() is md.DispatchKey.BackendSelect
        below = registry.ops.s.f.default.redispatch(Keys(device.upper()), n, device=device)
        return f"selected {below}"

    assert f(1, device="cuda") == "selected CUDA"
    assert f.call_with_keyset(Keys("CPU"), 1, device="cuda") == "selected CUDA"
    assert boxed(f, 1, "cpu") == "selected CPU"
    with md.context.ExcludeDispatchKeyGuard("BackendSelect"):
        with pytest.raises(errors.MissingKernelError) as caught:
            f(1, device="cpu")
        assert caught.value.key == "Undefined"
        assert f.call_with_keyset(Keys("CPU"), 1, device="cuda") == "CPU"


def test_what_carries_no_key_leaves_the_choice_to_the_thread(define):
    f = define("Tensor? x, Tensor[] xs, Tensor?[] ys", "CPU", "CompositeExplicitAutograd")
    for arguments in ((None, [], []), (None, (), [None, None])):
        assert f(*arguments) == "CompositeExplicitAutograd"
        with md.context.IncludeDispatchKeyGuard("CPU"):
            assert f(*arguments) == "CPU"


def test_an_undefined_kernel_is_one_for_all_keys(define, lib):
    f = define("int n")
    lib.impl("f", says("all"), "Undefined")
    assert f(1) == f.redispatch(Keys("CUDA"), 1) == "all"
    with pytest.raises(errors.MissingKernelError):
        f.call_for_dispatch_key("Undefined", 1)


def boxed(operator, *arguments, keys=None):
    """The only value that a call from a stack returns."""
    stack = ["below", *arguments]
    if keys is None:
        operator.call_boxed(stack)
    else:
        operator.redispatch_boxed(keys, stack)
    below, result = stack
    assert below == "below"
    return result
