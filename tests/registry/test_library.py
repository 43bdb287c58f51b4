"""The promises of a library: what it registers, what it refuses, what ends with it."""

from __future__ import annotations

import gc
import importlib
import itertools
import sys
import types
import weakref
from contextlib import suppress

import pytest

import mdispatch as md
from mdispatch import errors
from mdispatch import facts as kinds
from mdispatch.facts.differing import DIFFERS
from mdispatch.facts.shared import SharedRegistry


class Array:
    """A value on the devices that it was made with."""

    def __init__(self, *keys):
        self.__dispatch_keys__ = keys or ("CPU",)


def there(registry):
    """The kind, name and key of every registration."""
    _, _, found = registry.dispatcher.facts.registrations()
    return sorted((kinds.kind_of(f.kind).name, f.name, md.DispatchKey(f.key).name) for f in found)


def everything(registry):
    """All registrations; a worker that differs tells so in a note."""
    _, _, found = registry.dispatcher.facts.registrations()
    found = [fact for fact in found if fact.name != DIFFERS]
    return found, {f.name: registry.dispatcher.facts.registrations(f.name)[:2] for f in found}


def says(word):
    return lambda *args, **kwargs: word


@pytest.fixture
def f(registry, lib):
    """The operator s::f, defined and without kernels."""
    lib.define("f(Tensor x) -> str")
    return registry.ops.s.f


# --- registering ----------------------------------------------------------------------------------


def test_what_a_library_registers_is_in_the_registry(registry, lib):
    assert lib.define("f(Tensor x) -> str") == "s::f"
    assert lib.define("f.out(Tensor x, *, Tensor(a!) out) -> ()") == "s::f.out"
    lib.impl("f", says("cpu"), "CPU")
    lib.impl("s::f.out", says("any"))
    assert there(registry) == [
        ("def", "s::f", "Undefined"),
        ("def", "s::f.out", "Undefined"),
        ("impl", "s::f", "CPU"),
        ("impl", "s::f.out", "CompositeImplicitAutograd"),
        ("library", "s", "Undefined"),
    ]


def test_a_definition_is_kept_as_its_canonical_text_with_its_place(registry, lib):
    lib.define("f( Tensor   x,float y = 2 )->Tensor")
    line = sys._getframe().f_lineno - 1
    fact = registry.dispatcher.facts.find(kinds.DEF, 0, "s::f")
    assert fact.body == "s::f(Tensor x, float y=2.) -> Tensor"
    assert fact.where == f"{__file__}:{line}"


def test_a_kernel_is_kept_with_its_name_and_place(registry, lib):
    @lib.impl("f", dispatch_key="CPU")
    def kernel(x):
        return x

    fact = registry.dispatcher.facts.find(kinds.IMPL, md.DispatchKey.CPU, "s::f")
    assert fact.body.endswith("kernel")
    assert fact.where.startswith(f"{__file__}:")


def test_impl_returns_the_function_as_it_is(lib):
    def kernel(x):
        return x

    assert lib.impl("f", kernel, "CPU") is kernel
    assert lib.impl("f", dispatch_key="CUDA")(kernel) is kernel
    assert lib.impl("f")(kernel) is kernel


def test_an_operator_object_names_itself(lib, f):
    lib.impl(f.default, says("by object"))
    assert f(Array()) == "by object"


@pytest.mark.parametrize("kind", ["DEF", "FRAGMENT", "IMPL"])
def test_every_kind_of_library_takes_kernels(registry, f, kind):
    other = md.Library("s" if kind != "DEF" else "t", kind, registry=registry)
    if kind == "DEF":
        other.define("g(Tensor x) -> str")
    other.impl("g" if kind == "DEF" else "f", says(kind), "CPU")
    call = registry.ops.t.g if kind == "DEF" else f
    assert call(Array()) == kind


def test_fragments_define_beside_the_owner_of_the_namespace_and_without_one(registry, lib):
    md.Library("s", "FRAGMENT", registry=registry).define("g(Tensor x) -> ()")
    md.Library("s", "FRAGMENT", registry=registry).define("h(Tensor x) -> ()")
    md.Library("nobodys", "FRAGMENT", registry=registry).define("f(Tensor x) -> ()")
    assert dir(registry.ops.s)[-2:] == ["g", "h"]
    assert registry.ops.nobodys.f.overloads() == ["default"]


def test_a_kernel_may_come_before_the_definition(registry):
    early = md.Library("s", "IMPL", registry=registry)
    early.impl("f", says("early"), "CPU")
    with pytest.raises(errors.OperatorNotFoundError):
        registry.ops.s.f  # noqa: B018
    md.Library("s", "FRAGMENT", registry=registry).define("f(Tensor x) -> str")
    assert registry.ops.s.f(Array()) == "early"


def test_a_kernel_without_a_definition_says_so_when_it_is_called(registry, lib, f):
    md.Library("s", "IMPL", registry=registry).impl("f", says("kernel"), "CPU")
    operator = f.default
    lib.close()
    with pytest.raises(errors.OperatorGoneError, match="nobody defined its schema"):
        operator(Array())


def test_a_library_with_a_key_gives_it_to_its_kernels(registry, f):
    cuda = md.Library("s", "IMPL", "CUDA", registry=registry)
    cuda.impl("f", says("bare"))
    assert there(registry)[1] == ("impl", "s::f", "CUDA")
    cuda.impl("f", says("the same"), "CUDA")
    cuda.impl("f", says("undefined"), "Undefined")
    cuda.impl("f", says("key"), md.DispatchKey.Undefined)
    assert [f"{k}{key}" for k, _, key in there(registry)].count("implCUDA") == 4
    assert f(Array("CUDA")) == "key"


def test_a_kernel_without_any_key_serves_every_backend(lib, f):
    lib.impl("f", says("all"))
    assert [f(Array(key)) for key in ("CPU", "CUDA", "Meta", "AutogradCPU")] == ["all"] * 4


def test_a_kernel_with_keyset_gets_the_key_set_first(registry, lib):
    lib.define("g(Tensor x) -> (Any, Tensor)")
    lib.impl("g", lambda keys, x: (keys, x), "CPU", with_keyset=True)
    value = Array("CPU", "AutogradCPU")
    keys, x = registry.ops.s.g(value)
    assert x is value
    assert keys == md.DispatchKeySet("CPU", "AutogradCPU") - md.DispatchKeySet("AutogradCPU")


def test_any_callable_is_a_kernel(registry, lib):
    lib.define("any(Tensor x) -> Any")
    f = registry.ops.s.any

    class Callable:
        def __call__(self, x):
            return "object"

    for kernel, expected in (
        (Callable(), "object"),
        (type, Array),
        (id, None),
        ("{}".format, None),
    ):
        lib.impl("any", kernel, "CPU")
        value = Array()
        assert f(value) == (expected or kernel(value))


# --- several kernels at one key -------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 5))
def test_whichever_kernels_go_the_newest_left_serves(registry, f, count):
    value = Array()
    for order in itertools.permutations(range(count)):
        libraries = {}
        for i in range(count):
            libraries[i] = md.Library("s", "FRAGMENT", registry=registry)
            libraries[i].impl("f", says(str(i)), "CPU")
            assert f(value) == str(i)
        for i in order:
            libraries.pop(i).close()
            if libraries:
                assert f(value) == str(max(libraries))
        with pytest.raises(errors.MissingKernelError):
            f(value)


def test_two_kernels_of_one_library_at_one_key_go_together(registry, lib, f):
    other = md.Library("s", "IMPL", registry=registry)
    lib.impl("f", says("old"), "CPU")
    other.impl("f", says("middle"), "CPU")
    other.impl("f", says("new"), "CPU")
    assert f(Array()) == "new"
    other.close()
    assert f(Array()) == "old"


# --- ending ---------------------------------------------------------------------------------------


def test_closing_takes_everything_of_this_library_and_nothing_else(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("cpu"), "CPU")
    before = there(registry)
    other = md.Library("s", "FRAGMENT", registry=registry)
    other.define("g(Tensor x) -> str")
    other.impl("g", says("g"))
    other.impl("f", says("cuda"), "CUDA")
    other.close()
    assert there(registry) == before
    lib.close()
    assert there(registry) == []


def test_closing_twice_is_harmless(registry, lib):
    lib.close()
    md.Library("s", "DEF", registry=registry)
    lib.close()
    assert there(registry) == [("library", "s", "Undefined")]


def test_a_closed_library_refuses_everything_and_says_where_it_was(registry):
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> str")
    lib.close()
    wild = md.Library("_", "IMPL", registry=registry)
    wild.close()
    for call in (
        lambda: lib.define("g(Tensor x) -> ()"),
        lambda: lib.impl("f", says(1)),
        lambda: lib.impl("f")(says(1)),
        lambda: wild.fallback(says(1), "CPU"),
    ):
        with pytest.raises(
            errors.LibraryClosedError, match=r"test_library\.py:\d+ is closed"
        ) as caught:
            call()
        assert caught.value.namespace in ("s", "_")
    assert there(registry) == []
    assert "closed" in repr(lib)


def test_a_block_that_ends_well_keeps_everything(registry):
    with md.Library("s", "DEF", registry=registry) as lib:
        lib.define("f(Tensor x) -> str")
    assert len(there(registry)) == 2
    assert not lib.closed


def test_a_block_that_raises_leaves_nothing(registry):
    def block():
        with md.Library("s", "DEF", registry=registry) as lib:
            lib.define("f(Tensor x) -> str")
            lib.impl("f", says(1), "CPU")
            lib.define("f(")

    with pytest.raises(errors.SchemaSyntaxError):
        block()
    assert there(registry) == []


@pytest.mark.dear
def test_a_library_that_nobody_holds_keeps_its_operators(registry):
    def open_and_forget():
        lib = md.Library("s", "FRAGMENT", registry=registry)
        lib.define("f(Tensor x) -> str")
        lib.impl("f", says("kept"))
        return weakref.ref(lib)

    gone = open_and_forget()
    gc.collect()
    assert gone() is None or gone().closed is False
    assert registry.ops.s.f(Array()) == "kept"


@pytest.mark.dear
def test_in_whatever_order_libraries_close_the_rest_stays_registered_and_works(registry):
    for order in itertools.permutations(range(5)):
        libraries = [
            md.Library("s", "DEF", registry=registry),
            md.Library("s", "IMPL", "CPU", registry=registry),
            md.Library("s", "IMPL", "CUDA", registry=registry),
            md.Library("s", "FRAGMENT", registry=registry),
            md.Library("_", "IMPL", registry=registry),
        ]
        libraries[0].define("f(Tensor x) -> str")
        libraries[1].impl("f", says("cpu"))
        libraries[2].impl("f", says("cuda"))
        libraries[3].define("g(Tensor x) -> str")
        libraries[3].impl("f", says("any"), "CompositeExplicitAutograd")
        libraries[4].fallback(says("fallback"), "Meta")
        operator = registry.ops.s.f.default
        left = set(range(5))
        for i in order:
            libraries[i].close()
            left.remove(i)
            assert len(there(registry)) == sum((2, 1, 1, 2, 1)[j] for j in left)
            if 0 not in left:
                with pytest.raises(errors.OperatorGoneError):
                    operator(Array())
                continue
            default = "any" if 3 in left else None
            for key, expected in (
                ("CPU", "cpu" if 1 in left else default),
                ("CUDA", "cuda" if 2 in left else default),
                ("Meta", default or ("fallback" if 4 in left else None)),
            ):
                if expected:
                    assert operator(Array(key)) == expected
                else:
                    with pytest.raises(errors.MissingKernelError):
                        operator(Array(key))
        assert there(registry) == []


# --- opening again --------------------------------------------------------------------------------

MODULE = """
import mdispatch as md
from the_registry import registry

lib = md.Library("s", "DEF", registry=registry)
lib.define("f(Tensor x) -> str")
lib.impl("f", lambda x: {answer!r}, "CPU")

impls = md.Library("s", "IMPL", "CUDA", registry=registry)
impls.impl("f", lambda x: {answer!r} + " on CUDA")

@md.register_op("s::one(Tensor x) -> str", registry=registry)
def one(x):
    return {answer!r}
"""


@pytest.fixture
def module(tmp_path, monkeypatch, registry):
    """Writes a module of this name that gives this answer, and leaves no stale bytecode."""
    monkeypatch.setitem(sys.modules, "the_registry", types.SimpleNamespace(registry=registry))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(name, answer):
        (tmp_path / f"{name}.py").write_text(MODULE.format(answer=answer))
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()
        return name

    return write


def test_a_reloaded_module_replaces_what_it_registered(registry, module):
    first = importlib.import_module(module("replaced_ops", "before"))
    registered = there(registry)
    operator = registry.ops.s.f
    assert operator(Array()) == "before"
    old = first.lib, first.impls
    path = first.__file__
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace("before", "after"))
    again = importlib.reload(first)
    assert there(registry) == registered
    assert operator(Array()) == registry.ops.s.one(Array()) == "after"
    assert operator(Array("CUDA")) == "after on CUDA"
    assert [lib.closed for lib in old] == [True, True]
    assert [lib.closed for lib in (again.lib, again.impls)] == [False, False]
    again.lib.close()
    again.impls.close()
    assert len(there(registry)) == 2  # register_op's


def test_a_cell_that_is_run_again_replaces_what_it_registered(registry, module):
    module("unused", "")
    cell = compile(MODULE.format(answer="cell"), "<cell 1>", "exec")
    scope = {"__name__": "__main__"}
    exec(cell, scope)
    registered = there(registry)
    for _ in range(3):
        exec(cell, scope)
        assert there(registry) == registered
        assert registry.ops.s.f(Array()) == "cell"


def test_the_same_module_from_another_place_is_refused_with_both_places(registry, module):
    importlib.import_module(module("first_ops", "first"))
    before = everything(registry)
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        importlib.import_module(module("second_ops", "second"))
    error = caught.value
    assert (error.kind, error.name) == ("library", "s")
    assert error.first.endswith("first_ops.py:5")
    assert error.second.endswith("second_ops.py:5")
    assert error.first in str(error)
    assert error.second in str(error)
    assert everything(registry) == before
    assert registry.ops.s.f(Array()) == "first"


def test_libraries_opened_by_one_line_of_a_function_are_not_each_other(registry, lib):
    fragments = [md.Library("s", "FRAGMENT", registry=registry) for _ in range(3)]
    for i, fragment in enumerate(fragments):
        fragment.define(f"f{i}(Tensor x) -> str")
    assert [fragment.closed for fragment in fragments] == [False] * 3
    assert len(there(registry)) == 4


def test_a_second_definition_shows_both_places_and_changes_nothing(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("first"))
    other = md.Library("s", "FRAGMENT", registry=registry)
    before = everything(registry)
    for again in (lib, other):
        for schema in ("f(Tensor x) -> str", "s::f(Tensor x, Tensor y) -> ()"):
            with pytest.raises(errors.DuplicateRegistrationError) as caught:
                again.define(schema)
            error = caught.value
            assert (error.kind, error.name, error.key) == ("def", "s::f", "")
            assert error.first.startswith(f"{__file__}:")
            assert error.second.startswith(f"{__file__}:")
            assert error.first != error.second
            assert error.first in str(error)
            assert error.second in str(error)
    assert everything(registry) == before
    other.close()
    assert registry.ops.s.f(Array()) == "first"


def test_overloads_are_definitions_of_their_own(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.define("f.two(Tensor x, Tensor y) -> str")
    assert registry.ops.s.f.overloads() == ["default", "two"]


# --- fallbacks ------------------------------------------------------------------------------------


def test_a_fallback_serves_every_operator_without_a_kernel_there(registry, lib, f, wild):
    lib.define("g(Tensor x, int y=3) -> Any")
    lib.impl("f", says("own"), "CPU")
    wild.fallback(lambda op, *args: (op.name, len(args)), "CPU")
    assert f(Array()) == "own"
    assert registry.ops.s.g(Array()) == ("s::g", 2)


def test_a_fallback_ends_with_its_library(lib, f, wild):
    wild.fallback(says("fallback"), "CPU")
    assert f(Array()) == "fallback"
    wild.close()
    with pytest.raises(errors.MissingKernelError):
        f(Array())


def test_a_fallback_with_keyset_gets_it_first(f, wild):
    wild.fallback(lambda keys, op, x: f"{keys} {op.name}", "CPU", with_keyset=True)
    assert f(Array()) == "DispatchKeySet(CPU) s::f"


def test_a_fallback_takes_its_librarys_key(registry, f):
    md.Library("_", "IMPL", "CUDA", registry=registry).fallback(says("fallback"))
    assert f(Array("CUDA")) == "fallback"


def test_a_second_fallback_is_refused_with_both_places_and_the_first_goes_on(registry, f, wild):
    wild.fallback(says("first"), "CPU")
    assert f(Array()) == "first"
    before = everything(registry)
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        wild.fallback(says("second"), "CPU")
    error = caught.value
    assert (error.kind, error.key) == ("fallback", "CPU")
    assert error.first in str(error)
    assert error.second in str(error)
    assert everything(registry) == before
    assert f(Array()) == "first"
    wild.close()
    again = md.Library("_", "IMPL", registry=registry)
    again.fallback(says("third"), "CPU")
    assert f(Array()) == "third"


@pytest.mark.parametrize("name", ["s::f", "f"])
def test_a_wildcard_library_takes_fallbacks_and_no_kernels(registry, f, wild, name):
    """In PyTorch a bare name reads memory that is not its own there, and sometimes crashes."""
    with pytest.raises(errors.InvalidNameError, match="takes fallbacks only"):
        wild.impl(name, says("from outside"), "CPU")
    assert registry.registrations("s::f")[1:] == []


# --- what is refused ------------------------------------------------------------------------------


def refusals():
    """The name, library, call and class of each refusal that is not about duplicates."""
    argument, name, key = (
        errors.InvalidArgumentError,
        errors.InvalidNameError,
        errors.InvalidKeyError,
    )
    syntax = errors.SchemaSyntaxError
    open_ = md.Library
    kernel = says(1)
    return {
        "kind": (lambda r, _: open_("s", "LIB", registry=r), argument),
        "kind of another type": (lambda r, _: open_("s", None, registry=r), argument),
        "kind in lower case": (lambda r, _: open_("s", "def", registry=r), argument),
        "DEF of all": (lambda r, _: open_("_", "DEF", registry=r), name),
        "FRAGMENT of all": (lambda r, _: open_("_", "FRAGMENT", registry=r), name),
        "DEF with a key": (lambda r, _: open_("t", "DEF", "CPU", registry=r), argument),
        "FRAGMENT with a key": (lambda r, _: open_("t", "FRAGMENT", "CPU", registry=r), argument),
        "unknown key of a library": (lambda r, _: open_("s", "IMPL", "GPU", registry=r), key),
        "namespace with a part": (lambda r, _: open_("a::b", "DEF", registry=r), name),
        "namespace with a blank": (lambda r, _: open_(" t", "DEF", registry=r), name),
        "namespace with a line end": (lambda r, _: open_("t\n", "FRAGMENT", registry=r), name),
        "no namespace": (lambda r, _: open_("", "FRAGMENT", registry=r), name),
        "define in IMPL": (
            lambda r, _: open_("s", "IMPL", registry=r).define("g() -> ()"),
            argument,
        ),
        "define of another namespace": (lambda r, lib: lib.define("t::g() -> ()"), name),
        "define without a name": (lambda r, lib: lib.define("() -> ()"), name),
        "define without returns": (lambda r, lib: lib.define("g(Tensor x)"), syntax),
        "define without arguments": (lambda r, lib: lib.define("g"), syntax),
        "overload default": (lambda r, lib: lib.define("g.default() -> ()"), name),
        "overload with underscores": (lambda r, lib: lib.define("g.__iter__() -> ()"), name),
        "kernel": (lambda r, lib: lib.impl("f", 5), argument),
        "kernel, decorated": (lambda r, lib: lib.impl("f")("kernel"), argument),
        "kernel of another namespace": (lambda r, lib: lib.impl("t::f", kernel), argument),
        "kernel of no operator": (lambda r, lib: lib.impl("", kernel), name),
        "kernel of a type": (lambda r, lib: lib.impl(int, kernel), name),
        "kernel of a packet": (lambda r, lib: lib.impl(r.ops.s.f, kernel), name),
        "unknown key": (lambda r, lib: lib.impl("f", kernel, "cpu"), key),
        "key by number": (lambda r, lib: lib.impl("f", kernel, 49), key),
        "no key at all": (lambda r, lib: lib.impl("f", kernel, None), key),
        "key without a slot": (lambda r, lib: lib.impl("f", kernel, "Sparse"), key),
        "key of another library": (
            lambda r, _: open_("s", "IMPL", "CPU", registry=r).impl("f", kernel, "CUDA"),
            key,
        ),
        "bare name for all": (lambda r, _: open_("_", "IMPL", registry=r).impl("f", kernel), name),
        "fallback of a namespace": (
            lambda r, _: open_("s", "IMPL", registry=r).fallback(kernel, "CPU"),
            argument,
        ),
        "fallback in DEF": (lambda r, lib: lib.fallback(kernel, "CPU"), argument),
        "fallback": (lambda r, _: open_("_", "IMPL", registry=r).fallback(None, "CPU"), argument),
        "fallback without key": (lambda r, _: open_("_", "IMPL", registry=r).fallback(kernel), key),
        "fallback at an alias": (
            lambda r, _: open_("_", "IMPL", registry=r).fallback(kernel, "Autograd"),
            key,
        ),
        "fallback without slot": (
            lambda r, _: open_("_", "IMPL", registry=r).fallback(kernel, "Dense"),
            key,
        ),
        "register_op without namespace": (
            lambda r, _: md.register_op("g() -> ()", registry=r)(kernel),
            name,
        ),
        "register_op with a bad key": (
            lambda r, _: md.register_op("t::g() -> ()", "GPU", registry=r)(kernel),
            key,
        ),
        "register_op without function": (
            lambda r, _: md.register_op("t::g() -> ()", registry=r)(None),
            argument,
        ),
        "register_op of a function": (lambda r, _: md.register_op(kernel), argument),
        "register_op of a bad schema": (
            lambda r, _: md.register_op("t::g(", registry=r)(kernel),
            syntax,
        ),
    }


REFUSALS = refusals()


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_call_leaves_nothing_registered(registry, lib, f, case):
    call, cls = REFUSALS[case]
    lib.impl("f", says("still"), "CPU")
    before = everything(registry)
    with pytest.raises(cls) as caught:
        call(registry, lib)
    assert type(caught.value) is cls
    assert everything(registry) == before
    assert f(Array()) == "still"
    assert registry.dispatcher.entry("s::f").kernels.keys() == {md.DispatchKey.CPU}
    assert registry.dispatcher.fallbacks.kernels.get(md.DispatchKey.CPU, []) == []


def test_the_nearest_keys_are_named(registry, lib):
    with pytest.raises(errors.InvalidKeyError, match="CUDA") as caught:
        lib.impl("f", says(1), "CUDAA")
    assert caught.value.key == "CUDAA"
    assert "CUDA" in caught.value.nearest


@pytest.mark.shared
def test_a_full_registry_refuses_and_the_library_goes_on():
    with md.Registry.create(capacity=466944) as registry:
        lib = md.Library("s", "DEF", registry=registry)

        def fill():
            for i in range(10_000):
                lib.define(f"f{i}(Tensor x, str y='{'y' * 500}') -> str")

        with pytest.raises(errors.RegistryFullError):
            fill()
        before = everything(registry)
        wild = md.Library("_", "IMPL", registry=registry)
        kernel = says(1)
        kernel.__qualname__ = "k" * 60_000
        for call in (
            lambda: lib.impl("f0", kernel, "CPU"),
            lambda: wild.fallback(kernel, "CPU"),
            lambda: lib.define(f"g(str y='{'y' * 60_000}') -> str"),
        ):
            with pytest.raises(errors.RegistryFullError):
                call()
        assert everything(registry) == before
        assert registry.dispatcher.entry("s::f0").kernels.get(md.DispatchKey.CPU, []) == []
        assert registry.dispatcher.fallbacks.kernels.get(md.DispatchKey.CPU, []) == []
        assert len(before[0]) > 10
        lib.close()
        assert there(registry) == []
        assert registry.dispatcher.facts.check() == ""


@pytest.mark.shared
def test_a_definition_refused_after_its_module_was_registered_takes_the_module_back(monkeypatch):
    """A definition with a module is two registrations: there is room for the first, not for the
    second."""
    seen = []
    register = SharedRegistry.register

    def watched(self, kind, *rest):
        seen.append([kind, False])
        fact = register(self, kind, *rest)
        seen[-1][1] = True
        return fact

    with md.Registry.create(capacity=466944) as registry:
        lib = md.Library("s", "DEF", registry=registry)
        with suppress(errors.RegistryFullError):
            for i in range(10_000):
                lib.define(f"f{i}(Tensor x, str y='{'y' * 500}') -> str")
        before = everything(registry)
        lib.set_python_module("shop.fakes")
        monkeypatch.setattr(SharedRegistry, "register", watched)
        with pytest.raises(errors.RegistryFullError):
            lib.define(f"g(str y='{'y' * 60_000}') -> str")
        assert seen == [[kinds.PYSTUB, True], [kinds.DEF, False]]
        assert everything(registry) == before
        lib.define("g() -> ()")


# --- define and impl in one line ------------------------------------------------------------------


def test_register_op_defines_and_implements_in_one_line(registry):
    @md.register_op("s::scale(Tensor x, float factor=2.0) -> str", "CPU", registry=registry)
    def scale(x, factor):
        return f"times {factor}"

    assert scale(None, 3) == "times 3"
    assert registry.ops.s.scale(Array()) == "times 2.0"
    assert there(registry) == [("def", "s::scale", "Undefined"), ("impl", "s::scale", "CPU")]


def test_register_op_without_key_serves_every_key(registry):
    md.register_op("s::f(Tensor x) -> str", registry=registry)(says("any"))
    assert registry.ops.s.f(Array("Meta")) == "any"


def test_register_op_leaves_nothing_when_the_operator_is_there_already(registry, lib, f):
    lib.impl("f", says("first"))
    before = everything(registry)
    with pytest.raises(errors.DuplicateRegistrationError):
        md.register_op("s::f(Tensor x) -> str", registry=registry)(says("second"))
    assert everything(registry) == before
    assert f(Array()) == "first"


# --- in a worker: verifying -----------------------------------------------------------------------


def test_a_worker_keeps_its_own_kernels_once_they_are_verified(registry, lib, f, worker):
    lib.impl("f", says("main"), "CPU")
    mine = md.Library("s", "DEF", registry=worker)
    mine.define("f( Tensor x)->str")  # the same schema, spelled otherwise
    mine.impl("f", says("worker"), "CPU")
    assert worker.ops.s.f(Array()) == "worker"
    assert f(Array()) == "main"


def test_a_worker_that_differs_hears_how_and_keeps_nothing(registry, lib, f, worker):
    lib.impl("f", says("main"), "CPU")
    before = everything(registry)
    mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
    wild = md.Library("_", "IMPL", registry=worker, timeout=0)
    for call, cls, expected in (
        (
            lambda: mine.define("f(Tensor x, int y) -> str"),
            errors.SchemaMismatchError,
            {
                "schema_here": "s::f(Tensor x, int y) -> str",
                "schema_there": "s::f(Tensor x) -> str",
            },
        ),
        (
            lambda: mine.define("ff(Tensor x) -> str"),
            errors.NameMismatchError,
            {"nearest": ("s::f",)},
        ),
        (
            lambda: mine.impl("f", says(1), "CUDA"),
            errors.KeyMismatchError,
            {"key": "CUDA", "keys_there": ("CPU",)},
        ),
        (lambda: mine.impl("g", says(1), "CPU"), errors.NameMismatchError, {"kind": "impl"}),
        (
            lambda: md.Library("t", "DEF", registry=worker, timeout=0),
            errors.MainNeverArrivedError,
            {"kind": "library", "name": "t"},
        ),
        (lambda: wild.fallback(says(1), "CPU"), errors.NotRegisteredError, {"kind": "fallback"}),
    ):
        with pytest.raises(cls) as caught:
            call()
        assert {name: getattr(caught.value, name) for name in expected} == expected
        assert caught.value.here.startswith(f"{__file__}:")
    assert everything(registry) == before
    assert worker.dispatcher.overloads("s::f") == [""]
    assert not any(worker.dispatcher.entry("s::f").kernels.values())
    assert not any(worker.dispatcher.fallbacks.kernels.values())


def test_a_kernel_the_main_interpreter_registered_once_is_verified_once(registry, lib, f, worker):
    lib.impl("f", says("main"), "CPU")
    mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
    mine.impl("f", says("first"), "CPU")
    with pytest.raises(errors.KeyMismatchError, match="register 2 kernels"):
        mine.impl("f", says("second"), "CPU")
    assert worker.ops.s.f(Array()) == "first"


def test_closing_a_workers_library_leaves_the_facts_to_the_main_interpreter(
    registry, lib, f, worker
):
    lib.impl("f", says("main"), "CPU")
    before = everything(registry)
    mine = md.Library("s", "FRAGMENT", registry=worker)
    mine.define("f(Tensor x) -> str")
    mine.impl("f", says("worker"), "CPU")
    mine.close()
    assert everything(registry) == before
    with pytest.raises(errors.LocalKernelMissingError):
        worker.ops.s.f(Array())


REGISTERS = {
    "define": lambda lib: lib.define("g(Tensor x) -> str"),
    "impl": lambda lib: lib.impl("f", lambda x: "again", "CPU"),
    "fallback": lambda lib: lib.fallback(lambda op, x: "fallback", "FPGA"),
    "name": lambda lib: lib.register_name("named"),
    "module": lambda lib: lib.register_python_module("f", "shop.fakes"),
}


@pytest.mark.parametrize("local", [True, pytest.param(False, marks=pytest.mark.shared)])
@pytest.mark.parametrize("what", REGISTERS)
def test_what_is_interrupted_before_it_is_held_is_not_registered(what, local, monkeypatch):
    """As by Ctrl-C: tests/project/test_storm.py comes at any moment."""
    with (md.Registry.local if local else md.Registry.create)() as registry:
        lib = md.Library("s", "DEF", registry=registry)
        lib.define("f(Tensor x) -> str")
        lib.impl("f", lambda x: "first", "CPU")
        before = registry.dispatcher.facts.registrations()[2]
        space, kind = "_" if what == "fallback" else "s", "FRAGMENT" if what == "define" else "IMPL"
        other = md.Library(space, kind, registry=registry)

        def interrupted(handle):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(other, "hold", interrupted)
            with pytest.raises(KeyboardInterrupt):
                REGISTERS[what](other)
        dispatcher = registry.dispatcher
        assert dispatcher.facts.registrations()[2] == before
        assert not dispatcher.listeners.is_defined("s::g")
        assert not any(dispatcher.fallbacks.kernels.values())
        registry.check_invariants()
        REGISTERS[what](other)  # no duplicate
        registry.check_invariants()
        other.close()
        assert registry.dispatcher.facts.registrations()[2] == before
