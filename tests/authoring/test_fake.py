"""The promises of fake kernels."""

from __future__ import annotations

import importlib
import sys
import textwrap
import threading

import pytest
from patience import limit
from places import PLACES, run_at

import mdispatch as md
from mdispatch import errors
from mdispatch import facts as kinds
from mdispatch.authoring.custom_op import custom_op
from mdispatch.authoring.meta import MetaTensor, empty_like
from mdispatch.fake import FakeContext, get_ctx, register_fake
from mdispatch.schema.sizes import DynamicSize


@pytest.fixture
def lib(registry):
    library = md.Library("k", "DEF", registry=registry)
    library.define("f(Tensor x) -> Tensor")
    library.define("nonzero(Tensor x) -> Tensor")
    return library


@pytest.fixture
def ops(registry, lib):
    return registry.ops.k


X = MetaTensor((2, 3), "f4")


def facts_of(registry):
    return [(f.name, f.key, f.body) for f in registry.dispatcher.facts.registrations()[2]]


# --- registering ----------------------------------------------------------------------------------


def test_a_fake_kernel_runs_for_meta_values_and_no_others(registry, lib, ops):
    class Array:
        __dispatch_keys__ = ("CPU",)

    real = Array()
    lib.impl("f", lambda x: real, "CPU")
    register_fake("k::f", lambda x: x.new_empty((1,)), lib=lib)
    assert ops.f(X) == MetaTensor((1,), "f4")
    assert ops.f(real) is real


def test_it_is_a_function_and_a_decorator_and_returns_what_it_registered(registry, lib, ops):
    def fake(x):
        return x

    assert register_fake("k::f", fake, lib=lib) is fake
    assert register_fake("k::nonzero", lib=lib)(fake) is fake
    assert ops.f(X) is X
    assert ops.nonzero(X) is X


def test_an_operator_is_named_by_its_text_or_itself(registry, lib, ops):
    register_fake(ops.f.default, lambda x: x, registry=registry)
    register_fake(" k::nonzero ", lambda x: x, registry=registry)
    assert ops.f(X) is X
    assert ops.nonzero(X) is X


def test_without_a_library_it_stays(registry, lib, ops):
    def register():
        register_fake("k::f", lambda x: x, registry=registry)

    register()
    assert ops.f(X) is X


def test_the_newest_is_in_effect_and_the_earlier_one_returns(registry, lib, ops):
    for number in (1, 2, 3):
        made = md.Library("k", "FRAGMENT", registry=registry)
        register_fake("k::f", lambda x, number=number: x.new_empty((number,)), lib=made)
        if number == 2:
            second = made
    assert ops.f(X).shape == (3,)
    made.close()
    assert ops.f(X).shape == (2,)
    second.close()
    assert ops.f(X).shape == (1,)


def test_the_registry_knows_it_by_the_name_of_the_users_function(registry, lib):
    def fake(x):
        return x

    register_fake("k::f", fake, lib=lib)
    fact = registry.dispatcher.facts.find(kinds.IMPL, md.DispatchKey.Meta, "k::f")
    assert fact.body == f"{__name__}.{fake.__qualname__}"
    assert fact.where.rpartition(":")[0] == __file__


def test_an_operator_of_custom_op_registers_its_own(registry):
    @custom_op("k::own", mutates_args=(), registry=registry)
    def own(x: md.Tensor) -> md.Tensor:
        return x

    assert register_fake(own, empty_like) is empty_like
    assert own(X) == X
    with pytest.raises(errors.InvalidArgumentError, match="leave allow_override out"):
        register_fake(own, empty_like, allow_override=False)
    with md.Library("k", "FRAGMENT", registry=registry) as late:
        register_fake(own, lambda x: x.new_empty((7,)), lib=late)
    assert own(X).shape == (7,)
    late.close()
    assert own(X) == X


# --- refusing -------------------------------------------------------------------------------------


def test_a_second_one_is_refused_where_it_may_not_override(registry, lib, ops):
    register_fake("k::f", lambda x: x, lib=lib, allow_override=False)
    before = facts_of(registry)
    with pytest.raises(errors.DuplicateRegistrationError, match="kernel at Meta already") as caught:
        register_fake("k::f", lambda x: None, lib=lib, allow_override=False)
    error = caught.value
    assert (error.kind, error.name, error.key) == ("impl", "k::f", "Meta")
    assert error.first.startswith(__file__)
    assert error.second.startswith(__file__)
    assert facts_of(registry) == before
    assert ops.f(X) is X
    lib.impl("nonzero", lambda x: x, "Meta")
    with pytest.raises(errors.DuplicateRegistrationError):
        register_fake("k::nonzero", lambda x: None, lib=lib, allow_override=False)


def test_it_is_refused_where_a_composite_kernel_serves_meta_already(registry, lib, ops):
    lib.impl("f", lambda x: "composite", "CompositeImplicitAutograd")
    before = facts_of(registry)
    with pytest.raises(errors.InvalidKeyError, match="which serves meta values"):
        register_fake("k::f", lambda x: x, lib=lib)
    with pytest.raises(errors.InvalidKeyError, match="which serves meta values"):
        register_fake("k::f", lambda x: x, registry=registry)
    assert facts_of(registry) == before


@pytest.mark.parametrize(
    ("op", "arguments", "error"),
    [
        ("f", {"lib": None}, errors.InvalidNameError),
        ("k::f.", {}, errors.InvalidNameError),
        (3, {}, errors.InvalidNameError),
        ("k::f", {"function": 3}, errors.InvalidArgumentError),
        ("k::f", {"lib": "k"}, errors.InvalidArgumentError),
        ("other::f", {}, errors.InvalidArgumentError),
    ],
)
def test_bad_input_is_refused_before_anything_changed(registry, lib, op, arguments, error):
    before = facts_of(registry)
    given = {"function": lambda x: x, "lib": lib, **arguments}
    with pytest.raises(error):
        register_fake(op, **given)
    assert facts_of(registry) == before


def test_a_library_that_cannot_take_it_refuses_it(registry, lib):
    with pytest.raises(errors.InvalidKeyError, match="for CPU"):
        register_fake("k::f", len, lib=md.Library("k", "IMPL", "CPU", registry=registry))
    lib.close()
    with pytest.raises(errors.LibraryClosedError):
        register_fake("k::f", len, lib=lib)


def test_an_operator_of_another_registry_is_refused(registry, lib, ops):
    with md.Registry.create() as other:
        with pytest.raises(errors.InvalidArgumentError, match="different registries"):
            register_fake(ops.f.default, len, registry=other)
        with pytest.raises(errors.InvalidArgumentError, match="different registries"):
            register_fake(ops.f.default, len, lib=lib, registry=other)
        assert facts_of(other) == []


# --- the context ----------------------------------------------------------------------------------


def test_a_shape_that_depends_on_data_gets_a_dynamic_size(registry, lib, ops):
    @register_fake("k::nonzero", lib=lib)
    def _(x):
        count = get_ctx().new_dynamic_size(max=x.numel())
        return x.new_empty((count, x.ndim), dtype="i8")

    y = ops.nonzero(X)
    count, width = y.shape
    assert isinstance(count, DynamicSize)
    assert (str(count), count.min, count.max, width, y.dtype) == ("u0", 0, 6, 2, "i8")
    assert ops.nonzero(X).shape[0] != count


def test_the_sizes_of_one_run_are_numbered_and_apart(lib, ops):
    @register_fake("k::f", lib=lib)
    def _(x):
        ctx = get_ctx()
        sizes = [ctx.new_dynamic_size(), ctx.new_dynamic_size(min=2, max=5), ctx.new_dynamic_size()]
        return x.new_empty(sizes)

    first, second = ops.f(X).shape, ops.f(X).shape
    assert list(map(str, first)) == list(map(str, second)) == ["u0", "u1", "u2"]
    assert (first[1].min, first[1].max) == (2, 5)
    assert len({*first, *second}) == 6


@pytest.mark.parametrize(
    "bounds",
    [
        *({"min": -1}, {"min": None}, {"min": 1.0}, {"min": True}, {"max": -1}, {"max": "3"}),
        *({"min": 3, "max": 2}, {"max": 2**63}, {"min": 2**63}),
    ],
)
def test_bounds_that_hold_no_size_are_refused(bounds):
    with pytest.raises(errors.InvalidArgumentError, match="new_dynamic_size"):
        FakeContext("k::f").new_dynamic_size(**bounds)


def test_outside_of_fake_kernels_there_is_no_context(lib, ops):
    with pytest.raises(errors.MdispatchError, match="none is running in this thread"):
        get_ctx()
    register_fake("k::f", lambda x: x, lib=lib)
    ops.f(X)
    with pytest.raises(errors.MdispatchError, match="register_fake"):
        get_ctx()


def test_an_argument_may_have_any_name(lib, ops):
    lib.define("named(Tensor x, *, int self) -> SymInt")
    lib.register_fake("named", lambda x, **arguments: arguments["self"])
    assert ops.named(MetaTensor(()), self=3) == 3


def test_a_size_that_is_made_without_bounds_may_be_0_or_any_number(lib, ops):
    lib.register_fake("f", lambda x: x.new_empty((get_ctx().new_dynamic_size(),)))
    (size,) = ops.f(X).shape
    assert (size.min, size.max) == (0, None)
    assert size.admits(0)
    assert not size.admits(-1)


def test_a_kernel_that_raises_leaves_no_context(lib, ops):
    def fake(x):
        get_ctx().new_dynamic_size()
        raise ZeroDivisionError

    register_fake("k::f", fake, lib=lib)
    with pytest.raises(ZeroDivisionError):
        ops.f(X)
    with pytest.raises(errors.MdispatchError):
        get_ctx()


def test_nested_fake_kernels_have_contexts_of_their_own_and_count_on(lib, ops):
    seen = []

    @register_fake("k::nonzero", lib=lib)
    def _(x):
        seen.append(get_ctx())
        return x.new_empty((get_ctx().new_dynamic_size(),))

    @register_fake("k::f", lib=lib)
    def _(x):
        mine = get_ctx()
        before = mine.new_dynamic_size()
        (inner,) = ops.nonzero(x).shape
        assert get_ctx() is mine
        seen.append(mine)
        return x.new_empty((before, inner, mine.new_dynamic_size()))

    assert list(map(str, ops.f(X).shape)) == ["u0", "u1", "u2"]
    inner, outer = seen
    assert (inner.operator, outer.operator) == ("k::nonzero", "k::f")


def test_each_thread_has_its_own_context(lib, ops):
    both_inside = threading.Barrier(2)
    contexts, results = [], []

    @register_fake("k::f", lib=lib)
    def _(x):
        contexts.append(get_ctx())
        both_inside.wait(limit(60))
        size = get_ctx().new_dynamic_size()
        both_inside.wait(limit(60))
        return x.new_empty((size,))

    def run():
        results.append(ops.f(X).shape[0])

    threads = [threading.Thread(target=run) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit(60))
    assert contexts[0] is not contexts[1]
    assert [str(size) for size in results] == ["u0", "u0"]
    assert results[0] != results[1]
    with pytest.raises(errors.MdispatchError):
        get_ctx()


# --- arguments of every form ----------------------------------------------------------------------


def test_fake_kernels_take_lists_and_optionals(registry, lib, ops):
    lib.define("cat(Tensor[] xs, Tensor? last=None, *, Tensor?[] rest, SymInt n=1) -> Tensor[]")

    @register_fake("k::cat", lib=lib)
    def _(xs, last, *, rest, n):
        rows = sum(x.shape[0] for x in xs)
        return [x.new_empty((rows, n)) for x in (*xs, last, *rest) if x is not None]

    a, b = MetaTensor((2,), "f4"), MetaTensor((3,), "f8")
    assert ops.cat([a, b], rest=[]) == [MetaTensor((5, 1), "f4"), MetaTensor((5, 1), "f8")]
    assert [x.dtype for x in ops.cat([a], b, rest=())] == ["f4", "f8"]
    assert [x.dtype for x in ops.cat([a], None, rest=[None, b])] == ["f4", "f8"]
    size = FakeContext("k::cat").new_dynamic_size()
    assert ops.cat([a], rest=[], n=size) == [a.new_empty((2, size))]


def test_a_dynamic_size_can_be_returned_where_the_schema_says_symint(lib, ops):
    lib.define("count(Tensor x) -> (SymInt, SymInt[])")

    @register_fake("k::count", lib=lib)
    def _(x):
        size = get_ctx().new_dynamic_size()
        return size, [size, 3]

    size, more = ops.count(X)
    assert isinstance(size, DynamicSize)
    assert more == [size, 3]


# --- in every place -------------------------------------------------------------------------------

MODULE = """
    import mdispatch as md
    from mdispatch.fake import get_ctx, register_fake
    from mdispatch import MetaTensor, empty_like

    library = md.Library("k", "DEF")
    library.define("f(Tensor x, Tensor[] more, Tensor? last) -> Tensor")
    library.define("nonzero(Tensor x) -> Tensor")

    @register_fake("k::f")
    def f(x, more, last):
        return empty_like(x)

    @register_fake("k::nonzero", lib=library)
    def nonzero(x):
        return x.new_empty((get_ctx().new_dynamic_size(max=x.numel()), x.ndim))
"""


@pytest.mark.parametrize("place", PLACES)
def test_fake_kernels_run_where_their_module_is_imported(place, tmp_path):
    body = textwrap.dedent("""
        import pickle
        import feature
        from mdispatch import errors
        x = feature.MetaTensor((2, 3), "f4")
        y = feature.md.ops.k.nonzero(x)
        size = y.shape[0]
        again = pickle.loads(pickle.dumps(y))
        try:
            int(size)
        except errors.DataDependentError as error:
            refused = str(error)
        try:
            feature.get_ctx()
        except errors.MdispatchError as error:
            outside = str(error)
        result = {
            "same": feature.md.ops.k.f(x, [x], None) == x,
            "size": (str(size), size.min, size.max),
            "again": again == y,
            "refused": refused,
            "outside": outside,
        }
    """)
    found = run_at(place, MODULE, body, tmp_path)
    assert found["same"] is True
    assert found["size"] == ("u0", 0, 6)
    assert found["again"] is True
    assert "depends on data" in found["refused"]
    assert "none is running" in found["outside"]


@pytest.mark.parametrize("place", [p for p in PLACES if p != "main"])
def test_a_fake_kernel_that_the_main_interpreter_has_not_is_refused(place, tmp_path):
    module = """
        import mdispatch as md
        from mdispatch.fake import register_fake
        library = md.Library("k", "DEF", timeout=0.2)
        library.define("f(Tensor x) -> Tensor")
        if not md.default_registry().is_main:
            try:
                register_fake("k::f", lambda x: x, lib=library)
            except md.errors.KeyMismatchError as error:
                refused = error.name, error.key
    """
    body = "result = {'refused': feature.refused}"
    assert run_at(place, module, body, tmp_path) == {"refused": ("k::f", "Meta")}


@pytest.mark.parametrize("place", PLACES)
def test_allow_override_asks_what_is_here(place, tmp_path):
    module = """
        import mdispatch as md
        from mdispatch.fake import register_fake
        library = md.Library("k", "DEF")
        library.define("f(Tensor x) -> Tensor")
        register_fake("k::f", lambda x: x, lib=library, allow_override=False)
        try:
            register_fake("k::f", lambda x: x, lib=library, allow_override=False)
        except md.errors.DuplicateRegistrationError as error:
            refused = error.name, error.key
    """
    body = "import feature\nresult = {'refused': feature.refused}"
    assert run_at(place, module, body, tmp_path) == {"refused": ("k::f", "Meta")}


def test_a_module_that_is_imported_again_replaces_its_fake_kernels(tmp_path, monkeypatch):
    (tmp_path / "reloaded.py").write_text(
        "import mdispatch as md\n"
        "from mdispatch.fake import register_fake\n"
        "registry = md.Registry.create() if 'registry' not in globals() else registry\n"
        "library = md.Library('k', 'DEF', registry=registry)\n"
        "library.define('f(Tensor x) -> Tensor')\n"
        "@register_fake('k::f', registry=registry)\n"
        "def fake(x):\n    return x\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import reloaded

    try:
        for _ in range(3):
            importlib.reload(reloaded)
            _, _, there = reloaded.registry.dispatcher.facts.registrations("k::f")
            assert [f.kind for f in there].count(kinds.IMPL) == 1
            assert empty_like(X) == reloaded.registry.ops.k.f(X)
    finally:
        reloaded.registry.close()
        sys.modules.pop("reloaded")
