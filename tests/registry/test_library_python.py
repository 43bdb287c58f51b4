"""Registrations of a library beside schemas and kernels: the Python module of an operator's fake
kernel, keys that take one kernel, reserved names; and that all of them end together.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
from patience import limit
from places import PLACES, run_at

import mdispatch as md
from mdispatch import errors, torch_compat
from mdispatch import facts as kinds
from mdispatch.authoring.meta import MetaTensor
from mdispatch.registry.verify import Audit, audits

PYSTUB = kinds.PYSTUB


class Array:
    __dispatch_keys__ = "CPU"


def says(word):
    return lambda *args: word


def there(registry):
    _, _, found = registry.dispatcher.facts.registrations()
    return found


def stubs(registry, name="s::f"):
    return [
        fact.body
        for fact in registry.dispatcher.facts.registrations(name)[2]
        if fact.kind == PYSTUB
    ]


def stub(registry, name="s::f"):
    fact = registry.dispatcher.facts.find(PYSTUB, 0, name)
    return None if fact is None else fact.body


def state(registry):
    facts = there(registry)
    versions = {fact.name: registry.dispatcher.facts.registrations(fact.name)[:2] for fact in facts}
    kernels = {name: dict(entry.kernels) for name, entry in registry.dispatcher.entries.items()}
    overloads = {
        name: list(known) for name, known in registry.dispatcher._overloads.items() if known
    }
    return facts, versions, kernels, overloads, dict(registry.dispatcher.fallbacks.kernels)


# --- set_python_module ----------------------------------------------------------------------------


def test_a_module_is_named_for_what_is_defined_afterwards_and_for_nothing_else(registry, lib):
    lib.define("before(Tensor x) -> str")
    lib.set_python_module("shop.fakes", "pip install shop\nthen import it")
    lib.define("f(Tensor x) -> str")
    lib.define("f.out(Tensor x, *, Tensor(a!) out) -> ()")
    lib.impl("before", says("cpu"), "CPU")
    text = "shop.fakes\npip install shop\nthen import it"
    assert stubs(registry, "s::f") == stubs(registry, "s::f.out") == [text]
    assert stubs(registry, "s::before") == []


def test_the_module_is_state_of_the_library_until_the_next_call(registry, lib):
    assert lib.python_module is None
    lib.set_python_module("one", "with words")
    assert lib.python_module == "one"
    lib.define("f(Tensor x) -> str")
    lib.set_python_module("two")
    lib.define("g(Tensor x) -> str")
    lib.set_python_module(None)
    assert lib.python_module is None
    lib.define("h(Tensor x) -> str")
    assert [stub(registry, f"s::{name}") for name in "fgh"] == ["one\nwith words", "two\n", None]


def test_the_place_of_a_stub_is_that_of_the_definition(registry, lib):
    lib.set_python_module("one")
    lib.define("f(Tensor x) -> str")
    _, _, found = registry.dispatcher.facts.registrations("s::f")
    assert len({fact.where for fact in found}) == 1
    assert found[0].where.startswith(__file__ + ":")


def test_a_stub_is_there_before_its_definition_and_goes_after_it(registry, lib):
    seen = []

    class Listener:
        def on_operator_registered(self, fact):
            seen.append(stub(registry, fact.name))

    registry.add_listener(Listener())
    lib.set_python_module("one")
    lib.define("f(Tensor x) -> str")
    facts = registry.dispatcher.facts.registrations("s::f")[2]
    assert seen == ["one\n"]
    assert [fact.kind for fact in facts] == [PYSTUB, kinds.DEF]
    lib.close()
    assert stub(registry) is None


def test_a_definition_that_is_refused_leaves_no_stub_and_warns_of_none(registry, lib):
    lib.set_python_module("one")
    lib.define("f(Tensor x) -> str")
    other = md.Library("s", "FRAGMENT", registry=registry)
    other.set_python_module("two")
    before = state(registry)
    with pytest.raises(errors.DuplicateRegistrationError):
        other.define("f(Tensor x) -> str")
    with pytest.raises(errors.SchemaSyntaxError):
        other.define("g(Tensor x -> str")
    assert state(registry) == before


@pytest.mark.parametrize("module", ["", ".fakes", "a\nb", 3, b"a", "a\x00b"])
def test_what_is_no_full_name_of_a_module_is_refused(registry, lib, module):
    lib.set_python_module("one")
    with pytest.raises(errors.InvalidArgumentError, match=r"full name|relative"):
        lib.set_python_module(module)
    assert lib.python_module == "one"


def test_a_context_is_a_text_that_the_registry_can_take(registry, lib):
    longest = "x" * (65536 - len("one\n"))
    lib.set_python_module("one", longest)
    lib.define("f(Tensor x) -> str")
    assert stub(registry) == "one\n" + longest
    with pytest.raises(errors.InvalidArgumentError, match="65537 bytes"):
        lib.set_python_module("one", longest + "x")
    with pytest.raises(errors.InvalidArgumentError, match="context"):
        lib.set_python_module("one", None)
    assert lib.python_module == "one"


def test_a_library_that_cannot_define_names_no_module(registry, lib):
    impl = md.Library("s", "IMPL", registry=registry)
    with pytest.raises(errors.InvalidArgumentError, match="IMPL"):
        impl.set_python_module("one")
    lib.close()
    with pytest.raises(errors.LibraryClosedError):
        lib.set_python_module("one")


def test_a_module_imported_again_keeps_its_operators_and_names_the_new_module(registry):
    text = """
        lib = md.Library("s", "DEF", registry=registry)
        lib.set_python_module(module)
        lib.define("f(Tensor x) -> str")
        lib.impl("f", lambda x: module, "CPU")
    """
    code = compile("if True:\n" + text, "again.py", "exec")
    exec(code, {"md": md, "registry": registry, "module": "one", "__name__": "again"})
    f = registry.ops.s.f.default
    exec(code, {"md": md, "registry": registry, "module": "two", "__name__": "again"})
    assert stubs(registry) == ["two\n"]
    assert f(Array()) == "two"


# --- naming another module ------------------------------------------------------------------------


def override(registry, module, context=""):
    library = md.Library("s", "FRAGMENT", registry=registry)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        library.register_python_module("f", module, context)
    return library, [(each.category, str(each.message)) for each in caught]


def test_another_module_for_an_operator_warns_of_both_with_their_places(registry, lib):
    lib.set_python_module("one")
    lib.define("f(Tensor x) -> str")
    _, warned = override(registry, "two")
    [(category, text)] = warned
    assert category is errors.PystubOverrideWarning
    assert "'one'" in text
    assert "'two'" in text
    first, second = (
        registry.dispatcher.facts.registrations("s::f")[2][0],
        registry.dispatcher.facts.find(PYSTUB, 0, "s::f"),
    )
    assert f"first:  {first.where}" in text
    assert f"second: {second.where}" in text


def test_another_context_warns_too_and_the_same_again_does_not(registry, lib):
    lib.set_python_module("one", "here")
    lib.define("f(Tensor x) -> str")
    assert override(registry, "one", "here")[1] == []
    assert "another context" in override(registry, "one", "there")[1][0][1]


@pytest.mark.parametrize("closed", [[2, 1, 0], [0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 0, 1]])
def test_the_newest_module_is_in_effect_and_the_earlier_one_returns(registry, closed):
    first = md.Library("s", "FRAGMENT", registry=registry)
    first.register_python_module("f", "m0")
    libraries = [first, override(registry, "m1")[0], override(registry, "m2")[0]]
    left = ["m0\n", "m1\n", "m2\n"]
    for index in closed:
        assert stub(registry) == [each for each in left if each][-1]
        libraries[index].close()
        left[index] = ""
    assert stub(registry) is None


def test_where_warnings_are_errors_nothing_is_registered(registry, lib):
    lib.register_python_module("f", "one")
    other = md.Library("s", "FRAGMENT", registry=registry)
    other.set_python_module("two")
    before = state(registry)
    with pytest.raises(errors.PystubOverrideWarning):
        other.register_python_module("f", "two")
    with pytest.raises(errors.PystubOverrideWarning):
        other.define("f(Tensor x) -> str")
    assert state(registry) == before


def test_the_warning_stands_at_the_line_of_the_user(registry, lib):
    lib.register_python_module("f", "one")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lib.register_python_module("f", "two")
    assert caught[0].filename == __file__
    assert f"second: {__file__}:{caught[0].lineno}\n" in str(caught[0].message)


def test_the_warning_is_given_where_no_line_of_the_user_is_running():
    code = """if True:
        import atexit
        import mdispatch as md
        lib = md.Library("s", "DEF")
        lib.register_python_module("f", "one")
        atexit.register(lib.register_python_module, "f", "two")
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=limit(60)
    )
    assert done.returncode == 0, done.stderr
    assert "PystubOverrideWarning: s::f has named its Python module 'one'" in done.stderr


# --- modules in workers ---------------------------------------------------------------------------


def named(lib, module="one", context=""):
    lib.set_python_module(module, context)
    return lib.define("f(Tensor x) -> str")


def test_a_worker_that_names_the_same_module_registers_nothing(registry, worker, lib, mine):
    named(lib, "one", "words")
    before = there(registry)
    assert named(mine, "one", "words") == "s::f"
    mine.register_python_module("f", "one", "words")
    assert there(registry) == before


@pytest.mark.parametrize(
    ("module", "context"), [("two", ""), ("one", "words")], ids=["module", "context"]
)
def test_a_worker_that_names_another_module_hears_both(
    registry, worker, lib, mine, module, context
):
    named(lib)
    for way in (named, lambda *args: mine.register_python_module("f", *args[1:])):
        with pytest.raises(errors.PystubMismatchError) as caught:
            way(mine, module, context)
        error = caught.value
        assert (error.kind, error.name) == ("pystub", "s::f")
        assert (error.module_here, error.module_there) == (module, "one")
        assert error.here.startswith(__file__)
        assert error.there == registry.dispatcher.facts.find(PYSTUB, 0, "s::f").where
        assert error.there in str(error)


def test_a_worker_that_names_a_module_where_the_main_one_names_none_hears_so_at_once(
    registry, worker, lib
):
    lib.define("f(Tensor x) -> str")
    patient = md.Library("s", "FRAGMENT", registry=worker, timeout=None)
    with pytest.raises(errors.PystubMismatchError, match="names none") as caught:
        named(patient)
    assert caught.value.module_there == ""


def test_a_worker_may_know_the_module_that_another_library_has_overridden(registry, lib, mine):
    named(lib)
    override(registry, "two")
    assert named(mine) == "s::f"


def test_an_audit_collects_a_module_that_differs_and_goes_on(registry, worker, lib):
    named(lib)
    lib.define("g(Tensor x) -> str")
    mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
    with Audit(0) as audit:
        named(mine, "two")
        mine.define("g(Tensor x) -> str")
    assert [type(each) for each in audit.differences] == [errors.PystubMismatchError] * 2
    assert [each.name for each in audit.differences] == ["s::f", "s::g"]
    assert [fact.name for fact in audit.facts if fact.kind == kinds.DEF] == ["s::f", "s::g"]


def test_both_modules_are_told_with_their_contexts(registry, lib, mine):
    named(lib, "one", "words")
    (place,) = {fact.where for fact in there(registry) if fact.kind == PYSTUB}
    with pytest.raises(errors.PystubMismatchError) as caught:
        named(mine, "two")
    assert "  here:  two    (" in str(caught.value)
    assert f"  there: one, words    ({place})" in str(caught.value)


def test_an_audit_that_has_ended_leaves_nothing_of_its_thread():
    def audit():
        with Audit(0), Audit(0):
            assert threading.get_ident() in audits

    before = dict(audits)
    thread = threading.Thread(target=audit)
    thread.start()
    thread.join()
    assert audits == before


@pytest.mark.dear
@pytest.mark.parametrize("kind", ["DEF", "FRAGMENT"])
def test_nobody_keeps_a_closed_library(registry, kind):
    source = f'lib = md.Library("t", "{kind}", registry=registry)'
    namespace = {"md": md, "registry": registry, "__name__": "shop"}
    exec(compile(source, "shop.py", "exec"), namespace)
    lib = namespace.pop("lib")
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("cpu"), "CPU")
    kept = weakref.ref(lib)
    lib.close()
    del lib
    gc.collect()
    assert kept() is None


MODULE = """
    import mdispatch as md

    def register(module):
        with md.Library("feature", "FRAGMENT") as lib:
            lib.set_python_module(module, "two\\nlines")
            lib.define("f(Tensor x) -> str")
            lib.impl("f", lambda x: "kernel", "CPU", allow_override=False)

    register("feature_fakes")
"""


@pytest.mark.parametrize("place", PLACES)
def test_every_interpreter_reads_the_module_that_an_operator_names(place, tmp_path):
    body = """
        import mdispatch as md
        from mdispatch import facts as kinds
        fact = md.default_registry().dispatcher.facts.find(kinds.PYSTUB, 0, "feature::f")
        result = {"body": fact.body}
    """
    assert run_at(place, MODULE, body, tmp_path) == {"body": "feature_fakes\ntwo\nlines"}


@pytest.mark.parametrize("place", [place for place in PLACES if place != "main"])
def test_every_worker_that_names_another_module_hears_so(place, tmp_path):
    body = """
        from mdispatch import errors, torch_compat
        try:
            feature.register("other_fakes")
        except errors.PystubMismatchError as error:
            result = {"modules": (error.module_here, error.module_there)}
    """
    result = run_at(place, MODULE, body, tmp_path)
    assert result == {"modules": ("other_fakes", "feature_fakes")}


WARMED = """
    import mdispatch as md

    lib = md.Library("feature", "DEF")
    lib.set_python_module("fakes_of_main" if md.is_main_interpreter() else "fakes_of_worker")
    lib.define("f(Tensor x) -> str")
"""


@pytest.mark.parametrize("place", [place for place in PLACES if place != "main"])
def test_a_warm_up_tells_of_a_module_that_differs(place, tmp_path):
    (tmp_path / "warmed.py").write_text("\n".join(line[4:] for line in WARMED.split("\n")))
    module = "import mdispatch as md\nif md.is_main_interpreter(): import warmed\n"
    body = """
        import sys
        import mdispatch as md
        sys.path.insert(0, feature.__file__.rpartition("/")[0])
        try:
            md.warm_up("warmed")
        except md.errors.WarmUpError as error:
            result = {"found": [type(each).__name__ for each in error.differences]}
    """
    assert run_at(place, module, body, tmp_path) == {"found": ["PystubMismatchError"]}


# --- one kernel at a key --------------------------------------------------------------------------


@pytest.fixture
def f(registry, lib):
    lib.define("f(Tensor x) -> str")
    return registry.ops.s.f


def test_without_override_a_key_that_has_a_kernel_takes_no_other(registry, lib, f):
    lib.impl("f", says("first"), "CPU")
    first = registry.dispatcher.facts.find(kinds.IMPL, md.DispatchKey.CPU, "s::f")
    other = md.Library("s", "IMPL", registry=registry)
    before = state(registry)
    with pytest.raises(errors.DuplicateRegistrationError) as caught:
        other.impl("f", says("second"), "CPU", allow_override=False)
    error = caught.value
    assert (error.kind, error.name, error.key, error.first) == ("impl", "s::f", "CPU", first.where)
    assert error.second.startswith(__file__)
    assert error.first in str(error)
    assert error.second in str(error)
    assert state(registry) == before
    assert f(Array()) == "first"


def test_without_override_other_keys_and_what_was_closed_do_not_count(registry, lib, f):
    with md.Library("s", "IMPL", registry=registry) as first:
        first.impl("f", says("first"), "CPU", allow_override=False)
    lib.impl("f", says("cuda"), "CUDA", allow_override=False)
    lib.impl("f", says("any"), "CompositeExplicitAutograd", allow_override=False)
    first.close()
    lib.impl("f", says("second"), "CPU", allow_override=False)
    assert f(Array()) == "second"


def test_with_override_the_second_kernel_takes_the_place_of_the_first(lib, f):
    lib.impl("f", says("first"), "CPU", allow_override=False)
    lib.impl("f", says("second"), "CPU")
    assert f(Array()) == "second"


def test_of_many_threads_that_may_not_override_one_registers(registry, lib, f):
    for _ in range(20):
        library = md.Library("s", "IMPL", registry=registry)
        barrier = threading.Barrier(4)
        refused = []

        def register(word, library=library, barrier=barrier, refused=refused):
            barrier.wait()
            try:
                library.impl("f", says(word), "CPU", allow_override=False)
            except errors.DuplicateRegistrationError:
                refused.append(word)

        threads = [threading.Thread(target=register, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 3
        library.close()


def test_a_worker_is_refused_what_the_main_interpreter_is(registry, lib, mine, f):
    lib.impl("f", says("first"), "CPU")
    mine.impl("f", says("first"), "CPU", allow_override=False)
    with pytest.raises(errors.DuplicateRegistrationError):
        mine.impl("f", says("second"), "CPU", allow_override=False)


# --- kernels at Meta ------------------------------------------------------------------------------


def test_a_composite_operator_takes_no_kernel_at_meta(registry, lib, f):
    lib.impl("f", says("composite"))
    before = state(registry)
    for library in (lib, md.Library("s", "IMPL", "Meta", registry=registry)):
        with pytest.raises(errors.InvalidKeyError, match="CompositeExplicitAutograd"):
            library.impl("f", says("meta"), "Meta")
    assert state(registry) == before
    assert f(MetaTensor((2,))) == "composite"


def test_other_operators_take_one_and_so_does_one_that_becomes_composite_later(registry, lib, f):
    lib.impl("f", says("every"), "CompositeExplicitAutograd")
    lib.impl("f", says("meta"), "Meta")
    lib.impl("f", says("composite"))
    assert f(MetaTensor((2,))) == "meta"


def test_a_worker_may_register_in_the_same_order(registry, lib, mine, f):
    for library in (lib, mine):
        library.impl("f", says("meta"), "Meta")
        library.impl("f", says("composite"))
        with pytest.raises(errors.InvalidKeyError):
            library.impl("f", says("meta"), "Meta")


# --- namespaces that are taken --------------------------------------------------------------------

RESERVED = ["prim", "higher_order", "import_module", "load_library", "loaded_libraries"]


@pytest.mark.parametrize("namespace", RESERVED)
@pytest.mark.parametrize("kind", ["DEF", "FRAGMENT"])
def test_nobody_defines_in_a_reserved_namespace(registry, namespace, kind):
    with pytest.raises(errors.InvalidNameError, match="reserved") as caught:
        md.Library(namespace, kind, registry=registry)
    assert caught.value.name == namespace
    assert there(registry) == []


def test_a_kernel_may_be_registered_in_a_reserved_namespace(registry):
    md.Library("prim", "IMPL", registry=registry).impl("f", says("f"), "CPU")
    assert registry.dangling_implementations() == ["prim::f"]


def test_the_module_of_pytorchs_dispatcher_registers_as_there(registry):
    with torch_compat.using(registry):
        prim = torch_compat._dispatch_library("DEF", "prim", "")
        prim.define("f(Tensor x) -> str")
        prim.impl("f", "CompositeImplicitAutograd", says("composite"))
        prim.impl("f", "Meta", says("meta"))
        assert torch_compat._dispatch_pystub("prim::f", "") is None
        stubs_of = md.Library("prim", "IMPL", registry=registry)
        stubs_of.register_python_module("f", "one", "words")
        assert torch_compat._dispatch_pystub("prim::f", "") == ("one", "words")
        prim.reset()
    assert registry.operators() == []


# --- fake kernels ---------------------------------------------------------------------------------


def test_a_fake_kernel_ends_with_its_library(registry, lib, f):
    lib.impl("f", says("cpu"), "CPU")
    with md.Library("s", "FRAGMENT", registry=registry) as other:

        @other.register_fake("f")
        def fake(x):
            return "fake"

        assert f(MetaTensor((2,))) == "fake"
        assert fake(None) == "fake"
        with pytest.raises(errors.DuplicateRegistrationError):
            other.register_fake("s::f", says("second"), allow_override=False)
        other.register_fake(f.default, says("second"))
        assert f(MetaTensor((2,))) == "second"
    other.close()
    with pytest.raises(errors.MissingKernelError):
        f(MetaTensor((2,)))
    with pytest.raises(errors.LibraryClosedError):
        other.register_fake("f", says("late"))


# --- all or nothing -------------------------------------------------------------------------------


class Wrong(Exception):
    pass


def everything_in(registry):
    """A with block that registers something of every kind, and raises."""
    libraries = (
        md.Library("s", "DEF", registry=registry),
        md.Library("_", "IMPL", registry=registry),
    )
    with libraries[0] as lib, libraries[1] as fallbacks:
        lib.set_python_module("one", "words")
        lib.define("f(Tensor x) -> str", tags="pure", alias_analysis="CONSERVATIVE")
        lib.impl("f", says("cpu"), "CPU")
        lib.impl("there", says("any"), signature="(Tensor x) -> str")
        lib.register_fake("f", says("meta"))
        lib.register_name("held")
        lib.register_python_module("there", "two")
        fallbacks.fallback(says("fallback"), "CUDA")
        every = {kinds.LIBRARY, kinds.DEF, kinds.IMPL, kinds.FALLBACK, kinds.PYSTUB, kinds.NAME}
        assert {fact.kind for fact in there(registry)} == every
        raise Wrong


def test_a_block_that_raises_leaves_nothing_of_any_kind(registry):
    md.Library("s", "FRAGMENT", registry=registry).define("there(Tensor x) -> str")
    before = there(registry)
    with pytest.raises(Wrong):
        everything_in(registry)
    assert there(registry) == before
    assert registry.operators() == ["s::there"]
    registry.check_invariants()


def refused_in(registry, refuse, namespace="s", kind="FRAGMENT"):
    with md.Library(namespace, kind, registry=registry) as library:
        if namespace == "s":
            library.define("f(Tensor x) -> str")
            library.impl("f", says("f"))
        refuse(library)


def two_fallbacks(library):
    library.fallback(says("one"), "CPU")
    library.fallback(says("two"), "CPU")


@pytest.mark.parametrize(
    ("refuse", "error"),
    [
        (lambda lib: lib.impl("f", says("f"), "NoKey"), errors.InvalidKeyError),
        (lambda lib: lib.define("f(Tensor x) -> str"), errors.DuplicateRegistrationError),
        (lambda lib: lib.register_python_module("f", ""), errors.InvalidArgumentError),
        (lambda lib: lib.register_fake("f", says("f")), errors.InvalidArgumentError),
    ],
    ids=["kernel", "definition", "module", "fake"],
)
def test_a_block_that_is_refused_something_leaves_nothing(registry, refuse, error):
    with pytest.raises(error):
        refused_in(registry, refuse)
    assert there(registry) == []


@pytest.mark.shared
def test_a_block_for_which_the_registry_has_no_room_leaves_nothing():
    def many(library):
        for i in range(10_000):
            library.define(f"f{i}(Tensor x, str y='{'y' * 500}') -> str")
            library.impl(f"f{i}", says("f"), "CPU")

    with md.Registry.create(capacity=466944) as registry:
        md.Library("t", "DEF", registry=registry).define("kept(Tensor x) -> str")
        before = there(registry)
        for _ in range(2):  # what was taken back leaves its room to the next one
            with pytest.raises(errors.RegistryFullError):
                refused_in(registry, many)
            assert there(registry) == before
        registry.check_invariants()


def test_a_block_of_fallbacks_that_is_refused_one_leaves_none(registry):
    with pytest.raises(errors.DuplicateRegistrationError):
        refused_in(registry, two_fallbacks, "_", "IMPL")
    assert there(registry) == []


@pytest.mark.dear
def test_a_library_that_nobody_holds_keeps_its_operators(registry):
    def register():
        lib = md.Library("s", "FRAGMENT", registry=registry)
        lib.set_python_module(__name__)
        lib.define("f(Tensor x) -> str")
        lib.impl("f", says("kept"), "CPU")
        lib.register_fake("f", says("fake"))

    register()
    gc.collect()
    assert registry.ops.s.f(Array()) == "kept"
    assert registry.ops.s.f(MetaTensor((2,))) == "fake"
    assert stubs(registry) == [__name__ + "\n"]
