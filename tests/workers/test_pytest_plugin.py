"""The pytest plugin, in real runs of pytest: alone, with pytest-xdist, and when they are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kinds import until
from patience import limit

from mdispatch.facts.native import native

pytestmark = pytest.mark.either_binding

pytest_plugins = ["pytester"]

OPS = """
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("twice(int x) -> int")
lib.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")

def work(x):
    return md.register_or_verify("shop"), md.ops.shop.twice(x)
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs pytest on a file of tests, in a process of its own."""
    monkeypatch.delenv("MDISPATCH_REGISTRY", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makeini("[pytest]\npythonpath = .\nfilterwarnings = error\n")

    def run(tests, *args, ini="", plugins=("xdist", "pytest_mdispatch")):
        # Other plugins that are installed take longer to import than all the rest.
        if plugins:
            monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p {name}" for name in plugins))
        pytester.makepyfile(test_it=tests)
        if ini:
            pytester.makeini(f"[pytest]\npythonpath = .\nfilterwarnings = error\n{ini}\n")
        return pytester.runpytest_subprocess("test_it.py", *args, timeout=limit(60))

    return run


@pytest.mark.thorough
def test_a_plugin_that_nobody_asks_for_does_not_import_the_package(run) -> None:
    ran = run(
        """
        import sys
        def test_nothing(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("mdispatch")
            assert [name for name in sys.modules if name.startswith("mdispatch")] == []
            for asked in ("mdispatch-warm-up", "mdispatch-snapshot"):
                assert not pytestconfig.pluginmanager.has_plugin(asked)
        """,
        plugins=(),
    )
    ran.assert_outcomes(passed=1)


@pytest.mark.thorough
def test_the_modules_of_the_package_are_not_rewritten(run) -> None:
    ran = run(
        """
        import sys
        from importlib.machinery import SourceFileLoader
        import mdispatch as md
        md.InterpreterPool, md.custom_op

        def test_loaders():
            assert type(__loader__) is not SourceFileLoader  # pytest rewrites this file
            names = [name for name in sys.modules if name.partition(".")[0] == "mdispatch"]
            specs = [sys.modules[name].__spec__ for name in names]
            ours = [spec.loader for spec in specs if spec and str(spec.origin).endswith(".py")]
            assert len(ours) > 20
            assert {type(loader) for loader in ours} == {SourceFileLoader}
        """,
        plugins=(),
    )
    ran.assert_outcomes(passed=1)


@pytest.mark.thorough
def test_each_test_registers_in_a_registry_of_its_own(run) -> None:
    ran = run(
        """
        import mdispatch as md, pytest
        seen = []

        @pytest.mark.parametrize("turn", range(3))
        def test_own(mdispatch_registry, turn):
            assert mdispatch_registry.is_main and mdispatch_registry.operators() == []
            lib = md.Library("shop", "DEF", registry=mdispatch_registry)
            lib.define("twice(int x) -> int")
            seen.append(mdispatch_registry)
            if turn == 1:
                mdispatch_registry.close()

        def test_they_are_closed():
            for each in seen:
                with pytest.raises(md.errors.RegistryClosedError):
                    each.operators()
        """
    )
    ran.assert_outcomes(passed=4)


SHARED = """
import os, pathlib, select
import mdispatch as md

def test_all_workers_meet(mdispatch_shared_registry, worker_id):
    registry = mdispatch_shared_registry
    md.Library(worker_id, "DEF", registry=registry).define("f(int x) -> int")
    md.Library("all", "FRAGMENT", registry=registry)
    for other in ("gw0", "gw1"):
        md.wait_for_def(f"{other}::f", 50, registry=registry)
    claim = registry.registrar("all")
    assert registry.registers("all") == (claim.pid == os.getpid())
    print("\\nMEET", registry.address, claim.pid)
    # Nobody goes before the other has seen it.
    pathlib.Path(worker_id).touch()
    while not all(pathlib.Path(other).exists() for other in ("gw0", "gw1")):
        select.select([], [], [], 0.001)
"""


@pytest.mark.thorough
def test_all_workers_of_xdist_share_one_registry(run) -> None:
    ran = run(SHARED, "--tx", "2*popen", "--dist", "each", "-rP")
    ran.assert_outcomes(passed=2)
    met = [line for line in ran.outlines if line.startswith("MEET")]
    assert len(met) == 2
    assert len(set(met)) == 1, "one address and one registrar"


def test_without_xdist_the_shared_registry_is_that_of_the_process(run) -> None:
    ran = run(
        """
        import mdispatch as md
        def test_first(mdispatch_shared_registry):
            md.Library("shop", "DEF", registry=mdispatch_shared_registry).define("f() -> ()")
        def test_second(mdispatch_shared_registry):
            assert mdispatch_shared_registry.operators() == ["shop::f"]
        """
    )
    ran.assert_outcomes(passed=2)


@pytest.mark.thorough
def test_a_worker_that_is_killed_takes_nothing_from_the_others(run) -> None:
    ran = run(
        """
        import os, signal
        import pytest
        import mdispatch as md

        @pytest.mark.parametrize("turn", range(6))
        def test_shop(mdispatch_shared_registry, turn):
            with md.Library("shop", "FRAGMENT", registry=mdispatch_shared_registry) as lib:
                lib.define("f(int x) -> int")
                lib.impl("f", lambda x: 2 * x, "CompositeExplicitAutograd")
                if turn == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                assert mdispatch_shared_registry.ops.shop.f(turn) == 2 * turn
                lib.close()
        """,
        "-n",
        "2",
    )
    ran.assert_outcomes(passed=5, failed=1)
    ran.stdout.fnmatch_lines(["*worker 'gw*' crashed while running *test_shop?2?*"])


def names():
    status, folder = native.folder()
    return set(os.listdir(folder)) if status == 0 else set()


@pytest.mark.thorough
def test_what_a_killed_run_leaves_the_next_one_removes(run, pytester) -> None:
    """Kills all of its processes at once, in the middle of a test."""
    pytester.makepyfile(
        test_dies="""
        import os, pathlib, signal
        def test_dies(mdispatch_shared_registry):
            pathlib.Path("name.part").write_text(mdispatch_shared_registry.address)
            os.rename("name.part", "name")
            signal.pause()
        """
    )
    killed = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-n", "2", "test_dies.py"],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    with killed:
        try:
            until((pytester.path / "name").exists)
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
    name = (pytester.path / "name").read_text().rpartition(":")[2]
    assert name.encode() in names()

    def is_removed():  # not while one of the killed processes still has it open
        ran = run(
            "def test_next(mdispatch_shared_registry):\n    assert mdispatch_shared_registry\n"
        )
        ran.assert_outcomes(passed=1)
        return name.encode() not in names()

    until(is_removed)


LEAVES = """
import mdispatch as md, pytest

@pytest.fixture
def library(request):
    lib = md.Library("shop", "FRAGMENT")
    yield lib
    lib.close()

def test_closes(registry_snapshot):
    with md.scoped_library("shop", "FRAGMENT") as lib:
        lib.define("f(int x) -> int")

def test_leaves(registry_snapshot):
    lib = md.Library("shop", "FRAGMENT")
    lib.define("g(int x) -> int")
    lib.impl("g", abs, "CPU")

def test_is_not_blamed(registry_snapshot):
    assert "shop::g" in md.default_registry().operators()
    assert registry_snapshot.left() == []

def test_fixtures_that_close_are_fine(registry_snapshot, library):
    library.define("h(int x) -> int")
    assert [fact.name for fact in registry_snapshot.left()] == ["shop::h"]

def test_leaves_elsewhere(registry_snapshot, mdispatch_shared_registry):
    with md.Registry.create() as own:
        registry_snapshot.watch(own)
        md.Library("own", "DEF", registry=own).define("f() -> ()")
        assert len(registry_snapshot.left()) == 2
    registry_snapshot.watch(mdispatch_shared_registry)
    md.Library("team", "DEF", registry=mdispatch_shared_registry)

def test_nobody_looks():
    md.Library("shop", "FRAGMENT").define("k(int x) -> int")
"""


@pytest.mark.thorough
def test_a_test_that_leaves_registrations_behind_fails_and_says_which(run) -> None:
    ran = run(LEAVES)
    ran.assert_outcomes(passed=6, errors=2)
    ran.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_leaves *",
            "the test left 2 registrations behind:",
            "  def shop::g(int x) -> int    (*test_it.py:15)",
            "  impl shop::g at CPU    (*test_it.py:16)",
            "Close the library in the test *",
            "*ERROR at teardown of test_leaves_elsewhere *",
            "the test left 1 registration behind:",
            "  library team    (*test_it.py:32)",
        ]
    )


@pytest.mark.thorough
def test_an_ini_option_looks_after_every_test(run) -> None:
    ran = run(LEAVES.replace("(registry_snapshot)", "()"), ini="mdispatch_snapshot = true")
    # Those that use the value fail without it.
    ran.assert_outcomes(passed=5, failed=1, errors=3)
    ran.stdout.fnmatch_lines(["*ERROR at teardown of test_nobody_looks *"])


@pytest.mark.thorough
def test_interpreters_are_warmed_up_with_what_the_run_names(run, pytester) -> None:
    pytester.makepyfile(shop_ops=OPS)
    ran = run(
        """
        import pytest
        import mdispatch as md
        from shop_ops import work
        from mdispatch.dispatch.context.homes import here

        pools = []

        def test_two(interpreters):
            pools.append(interpreters)
            assert isinstance(interpreters, md.InterpreterPool)
            assert list(interpreters.map(work, [1, 2])) == [("verify", 2), ("verify", 4)]
            assert md.register_or_verify() == "register"

        @pytest.mark.parametrize("interpreters", [1], indirect=True)
        def test_one(interpreters):
            assert interpreters.submit(work, 3).result() == ("verify", 6)

        def test_they_are_closed():
            with pytest.raises(RuntimeError, match="after shutdown"):
                pools[0].submit(work, 1)
        """,
        "--mdispatch-warm-up",
        "shop_ops",
    )
    ran.assert_outcomes(passed=3)


@pytest.mark.thorough
def test_workers_of_xdist_verify_against_the_first(run, pytester) -> None:
    pytester.makepyfile(shop_ops=OPS, more_ops=OPS.replace('"shop"', '"more"'))
    ran = run(
        """
        import sys
        import mdispatch as md

        def test_role():
            assert {"shop_ops", "more_ops"} <= set(sys.modules), "before anybody asks for them"
            registry = md.default_registry()
            print("\\nROLE", registry.address, registry.elects, registry.operators())
            assert md.ops.shop.twice(4) == 8
        """,
        *("--tx", "2*popen", "--dist", "each", "-rP"),
        ini="mdispatch_warm_up = shop_ops\n  more_ops",
    )
    ran.assert_outcomes(passed=2)
    roles = [line for line in ran.outlines if line.startswith("ROLE")]
    assert len(roles) == 2
    assert len(set(roles)) == 1
    assert roles[0].endswith("True ['shop::twice', 'more::twice']")


DIFFERS = """
import os
import mdispatch as md
lib = md.Library("odd", "FRAGMENT", timeout=0.5)
lib.define("f(int x) -> int" if os.environ.get("PYTEST_XDIST_WORKER") == "gw0" else
           "f(int x, int y=2) -> int")
"""


@pytest.mark.thorough
def test_a_module_that_differs_between_workers_fails_the_tests_with_all_that_differs(
    run, pytester
) -> None:
    pytester.makepyfile(odd_ops=DIFFERS)
    ran = run(
        "def test_it(): pass",
        *("--tx", "2*popen", "--dist", "each", "--mdispatch-warm-up=odd_ops"),
    )
    assert ran.ret == 1
    ran.stdout.fnmatch_lines(["E*WarmUpError: 1 difference from the registrar:"])
    ran.stdout.fnmatch_lines(["E*odd::f has another schema in the registrar*"])


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_module_that_is_not_there_is_told(run, workers) -> None:
    ran = run("def test_it(): pass", "--mdispatch-warm-up", "no_such_ops", *workers)
    if workers:
        assert ran.ret == 1
        ran.stdout.fnmatch_lines(["E*ModuleNotFoundError: No module named 'no_such_ops'"])
    else:
        assert ran.ret == pytest.ExitCode.USAGE_ERROR
        ran.stderr.fnmatch_lines(
            ["ERROR: --mdispatch-warm-up: ModuleNotFoundError: No module named 'no_such_ops'"]
        )


@pytest.mark.thorough
def test_the_tests_that_the_documentation_shows_pass(run, pytester) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pools.md").read_text()
    (tests,) = re.findall(
        r"^<!-- pytest: shop_ops -->\n```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE
    )
    pytester.makepyfile(shop_ops=OPS)
    run(tests, "--mdispatch-warm-up", "shop_ops").assert_outcomes(passed=4)
