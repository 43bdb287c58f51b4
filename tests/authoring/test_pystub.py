"""The promises of an operator's Python module: where fake kernels come from, and what to import."""

from __future__ import annotations

import importlib
import pickle
import sys
import textwrap

import pytest
from kinds import run_main
from places import PLACES, run_at

import mdispatch as md
from mdispatch import errors
from mdispatch import facts as kinds
from mdispatch.authoring.meta import MetaTensor
from mdispatch.facts.modules import missing_fake
from mdispatch.fake import python_module, register_fake, require_python_modules

X = MetaTensor((2,))


@pytest.fixture
def lib(registry):
    return md.Library("p", "DEF", registry=registry)


@pytest.fixture
def ops(registry, lib):
    """Three operators: f and g name the module somewhere.fakes, h names none."""
    lib.define("h(Tensor x) -> Tensor")
    lib.set_python_module("somewhere.fakes", "It is in the package somewhere.")
    lib.define("f(Tensor x) -> Tensor")
    lib.define("g(Tensor x) -> Tensor")
    return registry.ops.p


@pytest.fixture
def strict():
    before = require_python_modules(True)
    yield before
    require_python_modules(before)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module and imports it."""
    made = []
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    yield write
    for name in made:
        sys.modules.pop(name, None)


# --- reading --------------------------------------------------------------------------------------


def test_an_operator_tells_its_module_and_context(registry, lib, ops):
    named = ("somewhere.fakes", "It is in the package somewhere.")
    assert python_module("p::f", registry=registry) == named
    assert python_module(" p::f ", registry=registry) == named
    assert python_module(ops.f.default) == named
    assert python_module("p::h", registry=registry) is None
    assert python_module("p::unknown", registry=registry) is None
    lib.close()
    assert python_module("p::f", registry=registry) is None


def test_an_overload_has_a_module_of_its_own(registry, lib):
    lib.set_python_module("one")
    lib.define("f(Tensor x) -> Tensor")
    lib.set_python_module("two", "line one\nline two")
    lib.define("f.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    assert python_module("p::f", registry=registry) == ("one", "")
    assert python_module("p::f.out", registry=registry) == ("two", "line one\nline two")


def test_the_newest_is_in_effect_and_the_earlier_one_returns(registry, ops):
    second, third = (md.Library("p", "FRAGMENT", registry=registry) for _ in "ab")
    with pytest.warns(errors.PystubOverrideWarning):
        second.register_python_module("p::f", "second")
    with pytest.warns(errors.PystubOverrideWarning):
        third.register_python_module("p::f", "third", "say it")
    assert python_module("p::f", registry=registry) == ("third", "say it")
    third.close()
    assert python_module("p::f", registry=registry) == ("second", "")
    second.close()
    assert python_module("p::f", registry=registry)[0] == "somewhere.fakes"


@pytest.mark.parametrize("name", [None, 3, "", "p::", "p::f.", "a b"])
def test_what_names_no_operator_is_refused(registry, name):
    with pytest.raises(errors.InvalidNameError):
        python_module(name, registry=registry)


# --- the check ------------------------------------------------------------------------------------


def test_a_fake_kernel_from_the_named_module_runs(registry, lib, module):
    lib.set_python_module("right_fakes")
    lib.define("f(Tensor x) -> Tensor")
    found = module("right_fakes", "def register(f, lib): f('p::f', lambda x: x, lib=lib)")
    found.register(register_fake, lib)
    assert registry.ops.p.f(X) is X


def test_a_fake_kernel_from_another_module_is_refused_when_it_runs(registry, lib, ops):
    ran = []
    register_fake("p::f", ran.append, lib=lib)
    for _ in range(2):
        with pytest.raises(errors.WrongModuleError) as caught:
            ops.f(X)
    error = caught.value
    assert (error.operator, error.expected) == ("p::f", "somewhere.fakes")
    assert error.found == __name__
    text = str(error)
    place = registry.dispatcher.facts.find(kinds.PYSTUB, 0, "p::f").where
    for part in ("'somewhere.fakes'", repr(__name__), place, f"set_python_module({__name__!r})"):
        assert part in text
    assert "register the fake kernel in 'somewhere.fakes'" in text
    assert ran == []
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.expected, again.found) == (text, error.expected, error.found)


def test_it_is_checked_once_for_each_registered_function(registry, lib, ops):
    lib.set_python_module(__name__)
    lib.define("mine(Tensor x) -> Tensor")
    register_fake("p::mine", lambda x: x, lib=lib)
    assert ops.mine(X) is X
    with pytest.warns(errors.PystubOverrideWarning):
        lib.register_python_module("p::mine", "elsewhere")
    assert ops.mine(X) is X, "checked already"
    register_fake("p::mine", lambda x: x, lib=lib)
    with pytest.raises(errors.WrongModuleError, match="'elsewhere'"):
        ops.mine(X)


def test_a_stub_that_comes_after_the_fake_kernel_counts(registry, lib):
    register_fake("p::f", lambda x: x, lib=lib)
    lib.set_python_module("elsewhere")
    lib.define("f(Tensor x) -> Tensor")
    with pytest.raises(errors.WrongModuleError, match="'elsewhere'"):
        registry.ops.p.f(X)


def test_when_the_stub_is_put_right_the_kernel_runs(registry, lib, ops):
    register_fake("p::f", lambda x: x, lib=lib)
    with pytest.raises(errors.WrongModuleError):
        ops.f(X)
    with pytest.warns(errors.PystubOverrideWarning):
        lib.register_python_module("p::f", __name__)
    assert ops.f(X) is X


def test_code_that_nobody_can_import_is_not_asked(registry, lib, ops):
    text = "register_fake(name, lambda x: x, lib=lib)"
    for space in ({"__name__": "__main__"}, {}, {"__name__": "no.such.module"}):
        exec(text, {"register_fake": register_fake, "name": "p::f", "lib": lib, **space})
        assert ops.f(X) is X


def test_an_operator_that_names_no_module_takes_any(lib, ops):
    register_fake("p::h", lambda x: x, lib=lib)
    assert ops.h(X) is X


# --- teams that want every module named -----------------------------------------------------------


def test_where_modules_are_required_an_operator_of_another_file_has_to_name_one(
    registry, lib, strict, module
):
    assert strict is False
    text = """
        from mdispatch.fake import register_fake
        def define(lib):
            lib.define("f(Tensor x) -> Tensor")
            lib.define("g(Tensor x) -> Tensor")
            register_fake("p::g", lambda x: x, lib=lib)
    """
    module("defines_it", text).define(lib)
    register_fake("p::f", lambda x: x, lib=lib)
    assert registry.ops.p.g(X) is X, "defined in the same file"
    with pytest.raises(errors.WrongModuleError) as caught:
        registry.ops.p.f(X)
    error = caught.value
    assert (error.operator, error.expected, error.found) == ("p::f", "", __name__)
    assert f"Call set_python_module({__name__!r})" in str(error)
    assert "defines_it.py:" in str(error)
    assert require_python_modules(False) is True
    assert registry.ops.p.f(X) is X


def test_whether_modules_are_required_is_true_or_false():
    with pytest.raises(errors.InvalidArgumentError):
        require_python_modules(1)


# --- no fake kernel -------------------------------------------------------------------------------


def test_without_a_module_the_error_says_that_register_fake_is_missing(registry, ops):
    error = missing_fake(registry.dispatcher.facts, "p::h", ["CPU"], "CPU")
    assert isinstance(error, NotImplementedError)
    assert (error.operator, error.key, error.available) == ("p::h", "Meta", ("CPU",))
    assert (error.module, error.context) == ("", "")
    assert "kernels at: CPU" in str(error)
    assert "register_fake('p::h'" in str(error)


def test_with_a_module_the_error_says_what_to_import_and_the_context(registry, ops):
    error = missing_fake(registry.dispatcher.facts, "p::f")
    assert error.module == "somewhere.fakes"
    assert error.context == "It is in the package somewhere."
    text = str(error)
    assert "Import the module 'somewhere.fakes'" in text
    assert text.endswith("\nIt is in the package somewhere.")
    assert registry.dispatcher.facts.find(kinds.PYSTUB, 0, "p::f").where in text
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.module, again.context) == (text, error.module, error.context)


def test_a_module_that_is_imported_already_is_not_to_be_imported_again(registry, lib):
    lib.set_python_module(__name__)
    lib.define("f(Tensor x) -> Tensor")
    text = str(missing_fake(registry.dispatcher.facts, "p::f"))
    assert f"The module {__name__!r} is imported here, but has registered no fake kernel" in text
    assert "Import" not in text


def test_a_fake_kernel_that_is_elsewhere_is_told_with_its_place(registry, ops):
    facts = registry.dispatcher.facts
    absent = facts.register(kinds.IMPL, md.DispatchKey.Meta, "p::h", "fakes.h", "fakes.py:7")
    text = str(missing_fake(facts, "p::h", absent=absent))
    assert f"(fakes.h), registered at fakes.py:7 by pid {absent.pid}" in text
    assert text.endswith("Import the module that registers it here too.")


# --- in every place -------------------------------------------------------------------------------

MODULE = """
    import mdispatch as md
    from mdispatch import errors
    from mdispatch.facts.modules import missing_fake
    from mdispatch.fake import register_fake
    from mdispatch import MetaTensor, python_module

    library = md.Library("p", "DEF")
    library.set_python_module("feature")
    library.define("right(Tensor x) -> Tensor")
    library.set_python_module("other.fakes", "Ask for it.")
    library.define("wrong(Tensor x) -> Tensor")
    library.define("none(Tensor x) -> Tensor")

    @register_fake("p::right")
    @register_fake("p::wrong")
    def fake(x):
        return x
"""


@pytest.mark.parametrize("place", PLACES)
def test_modules_are_known_and_checked_everywhere(place, tmp_path):
    body = textwrap.dedent("""
        import feature
        from feature import *
        x = MetaTensor((2,))
        try:
            md.ops.p.wrong(x)
        except errors.WrongModuleError as error:
            wrong = (error.operator, error.expected, error.found)
        missing = missing_fake(md.default_registry().dispatcher.facts, "p::none")
        result = {
            "named": [python_module(f"p::{name}") for name in ("right", "wrong", "none")],
            "right": md.ops.p.right(x) is x,
            "wrong": wrong,
            "missing": (missing.operator, missing.module, missing.context),
        }
    """)
    assert run_at(place, MODULE, body, tmp_path) == {
        "named": [("feature", ""), ("other.fakes", "Ask for it."), ("other.fakes", "Ask for it.")],
        "right": True,
        "wrong": ("p::wrong", "other.fakes", "feature"),
        "missing": ("p::none", "other.fakes", "Ask for it."),
    }


@pytest.mark.parametrize("place", PLACES)
def test_an_earlier_module_returns_when_the_later_one_is_closed(place, tmp_path):
    module = """
        import warnings
        import mdispatch as md
        from mdispatch import python_module

        library = md.Library("p", "DEF")
        library.set_python_module("first", "1")
        library.define("f(Tensor x) -> Tensor")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            later = md.Library("p", "FRAGMENT")
            later.register_python_module("p::f", "second", "2")
    """
    body = """
import feature
before = feature.python_module("p::f")
feature.later.close()
result = {"before": before, "after": feature.python_module("p::f")}
"""
    found = run_at(place, module, body, tmp_path)
    assert found["before"] == ("second", "2")
    # Only the main interpreter ends a registration for all.
    assert found["after"] == (("first", "1") if place == "main" else ("second", "2"))


@pytest.mark.parametrize("place", [place for place in PLACES if place != "main"])
def test_operators_that_another_process_defined_tell_their_module_without_an_import(
    place, tmp_path
):
    """The module that the worker imports registers in the registrar only."""
    module = """
        import mdispatch as md
        if md.default_registry().is_main:
            library = md.Library("p", "DEF")
            library.set_python_module("their.fakes", "pip install theirs")
            library.define("f(Tensor x) -> Tensor")
    """
    body = textwrap.dedent("""
        import sys
        import mdispatch as md
        from mdispatch.facts.modules import missing_fake
        from mdispatch import python_module
        error = missing_fake(md.default_registry().dispatcher.facts, "p::f")
        result = {
            "named": python_module("p::f"),
            "by operator": python_module(md.ops.p.f.default),
            "error": (error.module, error.context, "Import the module" in str(error)),
        }
    """)
    named = ("their.fakes", "pip install theirs")
    assert run_at(place, module, body, tmp_path) == {
        "named": named,
        "by operator": named,
        "error": (*named, True),
    }


def test_a_call_with_meta_values_that_finds_no_fake_kernel_says_what_to_import(ops):
    wanted = r"Import the module 'somewhere\.fakes'"
    with pytest.raises(errors.FakeKernelMissingError, match=wanted):
        ops.f(X)
    with pytest.raises(errors.FakeKernelMissingError, match="register_fake"):
        ops.h(X)


@pytest.mark.parametrize("place", [place for place in PLACES if place != "main"])
def test_a_call_of_an_operator_that_another_process_defined_says_what_to_import(place, tmp_path):
    module = """
        import mdispatch as md
        if md.default_registry().is_main:
            library = md.Library("p", "DEF")
            library.set_python_module("their.fakes", "pip install theirs")
            library.define("f(Tensor x) -> Tensor")
    """
    body = textwrap.dedent("""
        import mdispatch as md
        from mdispatch import MetaTensor
        try:
            md.ops.p.f(MetaTensor((2,)))
        except md.errors.FakeKernelMissingError as error:
            result = {"error": (error.operator, error.module, error.context)}
    """)
    found = run_at(place, module, body, tmp_path)
    assert found == {"error": ("p::f", "their.fakes", "pip install theirs")}


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_worker_that_names_no_module_where_main_does_hears_it_of_a_warm_up(place, tmp_path):
    module = """
        import mdispatch as md
        library = md.Library("p", "DEF")
        if md.is_main_interpreter():
            library.set_python_module("their.fakes", "pip install theirs")
        library.define("f(Tensor x) -> Tensor")
    """
    (tmp_path / "feature.py").write_text(textwrap.dedent(module))
    body = """
import mdispatch as md
try:
    md.warm_up(["feature"])
    found = []
except md.errors.WarmUpError as error:
    found = [(type(e).__name__, e.kind, e.name, "their.fakes" in str(e)) for e in error.differences]
report(found=found)
"""
    main = """
        import sys
        place, folder, body = args
        sys.path.insert(0, folder)
        import feature
        done(**results(start(place, body, 1, Path(folder)))[0])
    """
    found = run_main(main, place, str(tmp_path), body)["found"]
    assert found == [("MissingInWorkerError", "pystub", "p::f", True)]
