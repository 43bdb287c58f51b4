"""Operators as Python objects: what they tell about themselves, completion, copies and pickles."""

from __future__ import annotations

import copy
import pickle
import rlcompleter
import sys

import pytest
from kinds import run_main
from places import PLACES, run_at

import mdispatch as md
from mdispatch import errors


class Array:
    __dispatch_keys__ = ("CPU", "AutogradCPU")


@pytest.fixture
def f(registry, lib):
    lib.define("f(Tensor x, int n=1) -> Any", tags=["core"])
    return registry.ops.s.f.default


# --- what an operator tells -----------------------------------------------------------------------


def test_an_operator_tells_its_name_its_schema_and_its_packet(registry, lib, f):
    lib.define("f.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    assert (f.name, f.namespace, f.tags) == ("s::f", "s", ("core",))
    assert str(f.schema) == "s::f(Tensor x, int n=1) -> Any"
    packet = f.overloadpacket
    assert packet.out.overloadpacket.overloads() == packet.overloads() == ["default", "out"]
    assert {name: str(each) for name, each in packet.schemas.items()} == {
        "default": "s::f(Tensor x, int n=1) -> Any",
        "out": "s::f.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
    }


@pytest.mark.parametrize(
    ("schema", "is_view"),
    [
        ("v(Tensor(a) x) -> Tensor(a)", True),
        ("v(Tensor(a) x, Tensor y) -> (Tensor, Tensor(a))", True),
        ("v(Tensor(a!) x) -> Tensor(a!)", False),
        ("v(Tensor x) -> Tensor", False),
        ("v(Tensor(a) x, Tensor(b!) y) -> Tensor(b!)", False),
    ],
)
def test_a_view_shares_memory_with_what_it_does_not_write(registry, lib, schema, is_view):
    lib.define(schema)
    assert registry.ops.s.v.default.is_view is is_view


def test_kernels_are_told_by_exactly_their_key(registry, lib, f):
    lib.impl("f", lambda x, n: None, "CPU")
    lib.impl("f", lambda x, n: None)
    f.py_impl("CUDA")(lambda x, n: None)
    for key in ("CPU", "CompositeImplicitAutograd", "CUDA"):
        assert f.has_kernel_for_dispatch_key(key)
    for key in ("AutogradCPU", "XLA", "Autograd"):
        assert not f.has_kernel_for_dispatch_key(key)
    for keys, there in ((["CPU", "XLA"], True), (["CUDA"], True), (["XLA"], False), ([], False)):
        assert f.has_kernel_for_any_dispatch_key(md.DispatchKeySet(keys)) is there
    with pytest.raises(errors.InvalidKeyError):
        f.has_kernel_for_dispatch_key("nothing")


def test_decompose_runs_the_composite_kernel_whatever_the_keys_are(registry, lib, f):
    lib.impl("f", lambda x, n: "cpu", "CPU")
    assert f.decompose(Array()) is NotImplemented
    lib.impl("f", lambda x, n: ("parts", n))
    assert f.decompose(Array()) == ("parts", 1)
    f.py_impl("CompositeImplicitAutograd")(lambda x, n=2: ("python", n))
    assert f.decompose(Array()) == ("python", 1)  # bound to the schema, like those of every kernel
    with pytest.raises(errors.ArgumentError, match="'n'"):
        f.decompose(Array(), "a")


# --- as a value -----------------------------------------------------------------------------------


def test_two_objects_of_one_definition_are_equal_and_of_two_are_not(registry, lib, f):
    same = registry.ops.find("s::f")
    assert same == f
    assert hash(same) == hash(f)
    assert copy.copy(f) is copy.deepcopy(f) is f
    assert f != "s::f"
    lib.close()
    md.Library("s", "FRAGMENT", registry=registry).define("f(Tensor x, int n=1) -> Any")
    assert registry.ops.s.f.default != f


def test_an_operator_is_found_by_its_full_name(registry, lib, f):
    lib.define("f.out(Tensor x) -> Any")
    assert registry.ops.find("s::f.out") == registry.ops.s.f.out
    for name, near in (("s::ff", ("f",)), ("s::f.other", ()), ("t::f", ())):
        with pytest.raises(errors.OperatorNotFoundError) as caught:
            registry.ops.find(name)
        assert caught.value.nearest == near
    with pytest.raises(errors.InvalidNameError):
        registry.ops.find("s::f::g")


def test_an_operator_of_a_registry_of_one_s_own_does_not_travel(f):
    with pytest.raises(TypeError, match="send its name"):
        pickle.dumps(f)


TRAVELS = """
import mdispatch as md
class Array:
    __dispatch_keys__ = "CPU"
lib = md.Library("p", "DEF")
lib.define("f.a(Tensor x) -> str")
lib.impl("f.a", lambda x: "ran", "CPU")
"""


@pytest.mark.parametrize("place", PLACES)
def test_an_operator_of_the_default_registry_travels_by_its_name(place, tmp_path):
    body = """
    import pickle, mdispatch as md
    from feature import Array
    f = pickle.loads(pickle.dumps(md.ops.p.f.a))
    result = {"same": f == md.ops.p.f.a, "ran": f(Array())}
    """
    assert run_at(place, TRAVELS, body, tmp_path) == {"same": True, "ran": "ran"}


@pytest.mark.shared
def test_an_operator_is_the_job_of_a_process_pool(tmp_path):
    (tmp_path / "feature.py").write_text(TRAVELS)
    main = """
    import sys, concurrent.futures as futures, multiprocessing
    sys.path.insert(0, args[0])
    import feature
    pool = futures.ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), md.warm_up, (["feature"],)
    )
    with pool:
        done(ran=pool.submit(md.ops.p.f.a, feature.Array()).result())
    """
    assert run_main(main, str(tmp_path))["ran"] == "ran"


# --- names ----------------------------------------------------------------------------------------


def test_dir_tells_what_can_be_called(registry, lib, f):
    lib.define("f.out(Tensor x) -> Any")
    lib.define("_hidden(Tensor x) -> Any")
    assert {"s", "import_module", "find"} <= set(dir(registry.ops))
    assert dir(registry.ops.s) == ["_hidden", "f"]
    assert {"default", "out", "overloads"} <= set(dir(registry.ops.s.f))


def test_names_are_completed(registry, lib, f):
    lib.define("f.out(Tensor x) -> Any")
    complete = rlcompleter.Completer({"ops": registry.ops}).complete
    assert complete("ops.s", 0) == "ops.s"
    assert complete("ops.s.", 0).startswith("ops.s.f")
    assert complete("ops.s.f.ou", 0).startswith("ops.s.f.out")


@pytest.mark.parametrize("name", ["_names", "_registry", "_name", "find", "import_module"])
def test_an_operator_may_be_called_like_something_of_ours(registry, lib, name):
    lib.define(f"{name}(Tensor x) -> str")
    lib.impl(name, lambda x: "ran", "CPU")
    assert getattr(registry.ops.s, name)(Array()) == "ran"


def test_import_module_imports_for_the_operators(registry, tmp_path, monkeypatch):
    package = tmp_path / "of_operators"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("here = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert registry.ops.import_module("of_operators.inner").here
    finally:
        for name in ("of_operators", "of_operators.inner"):
            sys.modules.pop(name, None)
    with pytest.raises(ModuleNotFoundError):
        registry.ops.import_module("of_operators.nothing")
