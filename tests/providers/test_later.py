"""Providers that are registered by the name of their function: the module is imported when a call
first comes to them.
"""

from __future__ import annotations

import sys
import textwrap
import threading
from types import ModuleType

import pytest
from kinds import INTERPRETERS, run_main

import mdispatch as md
from mdispatch import errors

EVERYWHERE = "CompositeImplicitAutograd"


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Writes a module of a name of its own, and gives this name."""
    made = []

    def write(code):
        name = f"later_{request.node.name.partition('[')[0]}_{len(made)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))
        made.append(name)
        return name

    monkeypatch.syspath_prepend(str(tmp_path))
    yield write
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def lib(registry):
    lib = md.Library("n", "DEF", registry=registry)
    lib.define("f(int x) -> str")
    return lib


def providers(registry, key="CPU"):
    return registry.why("n::f", key).providers


def test_the_module_is_imported_by_the_first_call_that_comes_to_it(lib, registry, module):
    asked = []
    name = module("def f(x): return f'late {x}'")
    lib.impl("f", lambda x: f"early {x}", provider="early", order=1, supports=lambda x: x > 9)
    given = lib.impl("f", f"{name}:f", provider="late", available=lambda: asked.append(1) or True)
    assert given == f"{name}:f"
    lib.impl("f", lambda x: "last")
    f = registry.ops.n.f
    assert f(10) == "early 10"
    assert name not in sys.modules
    assert not asked
    assert providers(registry)[1] == ("late", "imported when a call comes to it; order 0")
    assert [f(1), f(2), f(10)] == ["late 1", "late 2", "early 10"]
    assert asked == [1]
    assert providers(registry)[1] == ("late", "accepted; order 0")
    (kernel,) = [k for k in f.default.entry.callables if k.provider_name == "late"]
    assert kernel.function is sys.modules[name].f  # calls come to it directly


def test_its_own_predicate_is_asked_before_the_import_and_after_it(lib, registry, module):
    name = module("def f(x): return 'late'")
    lib.impl("f", f"{name}:f", provider="late", supports=lambda x: x < 5)
    lib.impl("f", lambda x: "last")
    f = registry.ops.n.f
    assert f(7) == "last"
    assert name not in sys.modules
    assert [f(1), f(7)] == ["late", "last"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise OSError('no driver')", "OSError: no driver"),
        ("g = 1", "has no attribute 'f'"),
        ("f = 1", "TypeError"),
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
    ],
)
def test_what_cannot_be_imported_is_not_available_and_says_why(lib, registry, module, code, words):
    name = module(code)
    lib.impl("f", f"{name}:f", provider="late")
    lib.impl("f", lambda x: "last")
    assert registry.ops.n.f(1) == "last"
    ((told, verdict),) = providers(registry)
    assert told == "late"
    assert verdict.startswith(f"skipped: not available (looking up {name}:f raised ")
    assert words in verdict
    sys.modules[name] = ModuleType(name)
    sys.modules[name].f = lambda x: "late"
    assert registry.ops.n.f(1) == "last"  # it is settled


def test_who_says_that_it_is_not_available_is_not_imported(lib, registry, module):
    name = module("def f(x): return 'late'")
    lib.impl("f", f"{name}:f", provider="late", available=lambda: False)
    lib.impl("f", f"{name}:f", provider="never", available=False)
    with pytest.raises(errors.MissingKernelError) as caught:
        registry.ops.n.f(1)
    assert "left out: late at CompositeImplicitAutograd" in str(caught.value)
    assert "never at CompositeImplicitAutograd (available=False)" in str(caught.value)
    assert name not in sys.modules
    assert not registry.ops.n.f.default.has_kernel_for_dispatch_key(EVERYWHERE)


def test_a_question_for_the_kernel_settles_it(lib, registry, module):
    name = module("def f(x): return 'late'")
    lib.impl("f", f"{name}:f", provider="late")
    f = registry.ops.n.f.default
    assert not f.has_kernel_for_dispatch_key("CPU")
    assert name not in sys.modules
    assert f.has_kernel_for_dispatch_key(EVERYWHERE)
    assert name in sys.modules


def test_a_wait_settles_it_in_the_waiter_and_tells_why_it_cannot_serve(lib, registry, module):
    name = module("raise OSError('no driver')")
    lib.impl("f", f"{name}:f", provider="late")
    with pytest.raises(errors.ProviderMissingError) as caught:
        md.wait_for_impl("n::f", timeout=0.01, registry=registry)
    assert caught.value.provider == "late"
    assert caught.value.reason == f"looking up {name}:f raised OSError: no driver"
    other = module("def f(x): return 'late'")
    lib.impl("f", f"{other}:f", provider="later")
    assert md.wait_for_impl("n::f", registry=registry).provider == "later"
    assert other in sys.modules


def test_calls_within_the_import_go_on_to_the_next(lib, registry, module, monkeypatch):
    monkeypatch.setattr(sys, "_registry_of_test", registry, raising=False)
    name = module(
        """
        import sys
        f_of_n = sys._registry_of_test.ops.n.f
        before = f_of_n(1)
        def f(x): return "late"
        after = f_of_n(1)
        """
    )
    lib.impl("f", f"{name}:f", provider="late")
    lib.impl("f", lambda x: "last")
    assert registry.ops.n.f(1) == "late"
    assert sys.modules[name].before == "last"
    assert sys.modules[name].after == "late"


def test_a_function_that_does_not_take_the_arguments_is_told_by_each_call(lib, registry, module):
    name = module("def f(x, y): return 'late'")
    lib.impl("f", f"{name}:f", provider="late")
    lib.impl("f", lambda x: "last")
    for _ in range(2):
        with pytest.raises(errors.SignatureMismatchError, match="needs a value for y"):
            registry.ops.n.f(1)


def test_each_way_to_register_takes_a_name(registry, module):
    name = module(
        """
        def f(x): return "late"
        class K:
            @staticmethod
            def g(x): return "in K"
        """
    )
    op = md.custom_op("n::own", lambda x: "own", schema="(int x) -> str", registry=registry)
    op.register_kernel(None, f"{name}:f", provider="late")
    assert op(1) == "late"
    md.define("n::f", "(int x) -> str", registry=registry)
    md.impl("n::f", "default", f"{name}:K.g", provider="late", registry=registry)
    assert registry.ops.n.f(1) == "in K"
    md.define("n::g", "(int x) -> str", registry=registry)
    md.register_kernel("n::g", None, f"{name}:f", provider="late", registry=registry)
    assert registry.ops.n.g(1) == "late"


class Here:
    __dispatch_keys__ = "CPU"


@pytest.mark.parametrize("how", ["call", "redispatch", "guard", "through"])
def test_the_call_that_finds_it_lacking_goes_on_as_later_calls_do(registry, module, how):
    lib = md.Library("n", "DEF", registry=registry)
    lib.define("f(Tensor x) -> str")
    lib.impl("f", f"{module('raise OSError')}:f", "CPU", provider="late")
    lib.impl("f", lambda x: "everywhere")
    if how == "through":
        lib.impl("f", md.fallthrough_kernel, "CPU")
    f, keys = registry.ops.n.f.default, md.DispatchKeySet("CPU")
    for _ in range(2):
        if how == "redispatch":
            assert f.redispatch(keys, Here()) == "everywhere"
        elif how == "guard":
            with md.priority("n::f", ["late"], registry=registry):
                assert f(Here()) == "everywhere"
        else:
            assert f(Here()) == "everywhere"


def test_after_another_provider_it_is_as_if_it_were_not_there(lib, registry, module):
    lib.impl("f", f"{module('raise OSError')}:f", provider="late")
    f = registry.ops.n.f

    def first(x):
        return md.next_provider(f.default, "first", x)

    lib.impl("f", first, provider="first", order=1)
    for reason in ("late: not available", "takes this call"):
        with pytest.raises(errors.ProviderRefusedError, match=reason):
            f(1)
    lib.impl("f", lambda x: "last")
    assert f(1) == "last"


def test_of_all_providers_those_are_called_that_can_be_imported(lib, registry, module):
    lib.impl("f", f"{module('raise OSError')}:f", provider="lacking")
    lib.impl("f", lambda x: "there", provider="there")
    late = module("def f(x): return 'late'")
    lib.impl("f", f"{late}:f", provider="late")
    for _ in range(2):
        assert md.call_all(registry.ops.n.f, 1) == ["late", "there"]


@pytest.mark.parametrize("name", ["module", "a b:c", ":x", "x:", "x:y z", "x:1"])
def test_other_texts_are_refused(lib, name):
    with pytest.raises(errors.InvalidArgumentError, match=r"package\.module:function"):
        lib.impl("f", name, provider="late")
    with pytest.raises(errors.InvalidArgumentError, match="must be callable"):
        lib.impl("f", name)


def test_threads_that_come_at_once_get_the_same(lib, registry, module):
    name = module("def f(x): return 'late'")
    lib.impl("f", f"{name}:f", provider="late")
    lib.impl("f", lambda x: "last")
    start, got = threading.Barrier(8), []

    def call():
        start.wait()
        got.append(registry.ops.n.f(1))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert got == ["late"] * 8


def test_what_comes_later_and_what_is_there_are_registered_with_one_label(lib, registry, module):
    name = module("def f(x): return 'late'")
    lib.impl("f", f"{name}:f", provider="late")
    (fact,) = [f for f in registry.dispatcher.facts.registrations("n::f")[2] if f.provider]
    assert fact.body == f"{name}.f"
    assert fact.comes_later
    assert fact.lacks == ""


# --- all members ----------------------------------------------------------------------------------

LIBRARY = """
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("norm(int x) -> str")
lib.impl("norm", "later_fast:norm", provider="fast", required=REQUIRED)
lib.impl("norm", lambda x: "slow", provider="slow", order=-1)
"""
FAST = """
import mdispatch as md
if DIFFERS and not md.is_main_interpreter():
    raise OSError("no driver here")
def norm(x):
    return "fast"
"""
WORKER = """
import sys
sys.path.insert(0, FOLDER)
import mdispatch as md
md.warm_up("later_ops")
before = "later_fast" in sys.modules
told = []
for _ in range(2):
    try:
        told.append(md.ops.shop.norm(1))
    except md.errors.DisagreementError as error:
        told.append([each.path for each in error.fields])
report(before=before, told=told)
"""
MAIN = """
kind, folder, library, fast, worker = args
sys.path.insert(0, folder)
Path(folder, "later_ops.py").write_text(library)
Path(folder, "later_fast.py").write_text(fast)
import later_ops
main = md.ops.shop.norm(1)
(told,) = results(start(kind, worker, 1, Path(folder)))
done(main=main, **told)
"""


@pytest.mark.shared
@pytest.mark.needs("choices")
@pytest.mark.parametrize("kind", [*INTERPRETERS, "spawn"])
@pytest.mark.parametrize(
    ("differs", "required", "wanted"),
    [
        (False, True, ["fast", "fast"]),
        (True, True, [["available"]] * 2),  # as long as it differs
        (True, False, ["slow", "slow"]),
    ],
)
def test_members_agree_on_whether_it_is_available(kind, tmp_path, differs, required, wanted):
    got = run_main(
        MAIN,
        kind,
        str(tmp_path),
        LIBRARY.replace("REQUIRED", str(required)),
        FAST.replace("DIFFERS", str(differs)),
        WORKER.replace("FOLDER", repr(str(tmp_path))),
    )
    assert (got["main"], got["before"], got["told"]) == ("fast", False, wanted)


def test_where_nobody_else_can_be_nothing_warns_of_that(module, recwarn):
    name = module("def f(x): return 'late'")
    with md.Registry.local() as registry:
        lib = md.Library("n", "DEF", registry=registry)
        lib.define("f(int x) -> str")
        lib.impl("f", f"{name}:f", provider="late")
        assert registry.ops.n.f(1) == "late"
        md.warm_up("json", entry_points="nobody", registry=registry)
    assert [str(each.message) for each in recwarn] == []
