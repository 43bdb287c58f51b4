"""What every test relies on: a registry of its own, and no trace of another test or of a user."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import bytecode  # noqa: F401  # before the package
import figures
import pytest
import tiers
from hypothesis import given, settings, strategies
from kinds import INTERPRETERS, PROCESSES
from patience import PATIENCE, limit

import mdispatch as md
from mdispatch.dispatch import call_c
from mdispatch.dispatch.context import values
from mdispatch.dispatch.own_types import own_types
from mdispatch.facts import living, native
from mdispatch.facts.local import LocalRegistry
from mdispatch.facts.native import guards_py
from mdispatch.facts.opening import ENVIRONMENT
from mdispatch.facts.shared import SharedRegistry
from mdispatch.registry import registry as registries
from mdispatch.workers.pytest_plugin import own_folder

os.environ.pop(ENVIRONMENT, None)


@pytest.hookimpl(tryfirst=True)  # pytest-timeout reads it when it is configured
def pytest_configure(config: pytest.Config) -> None:
    own_folder(config)
    # A shell's background jobs ignore it, and so would this process and all that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.timeout is None:
        config.option.timeout = limit(float(config.getini("timeout")))
    # A deadline for each example would be an assert on seconds. Only the long form is random: there
    # is nobody whose change could be red for a mistake of another one.
    settings.register_profile(
        "mdispatch", deadline=None, database=None, derandomize=not config.getoption("--long")
    )
    settings.load_profile("mdispatch")
    config.pluginmanager.register(figures.Meter())
    config.pluginmanager.register(tiers.Choice(config))
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist tell their reports to this one
        config.pluginmanager.register(figures.Record(config))
        config.pluginmanager.register(tiers.Ending(config))


def pytest_report_header() -> str:
    return (
        f"mdispatch {md.__version__}, binding {native.which}, interpreter {native.interpreter_id}"
    )


def pytest_xdist_auto_num_workers() -> int:
    """Three workers for two processors: some tests wait for others, or for time to pass."""
    return (os.cpu_count() or 1) * 3 // 2 or 1


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run every test: see support/tiers.py")
    parser.addoption("--long", action="store_true", help="run every test in its long form")
    parser.addoption("--record", metavar="FILE", help="write a line of JSON for each test")
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


def marks_of(path: Path) -> set[str]:
    """The marks that a file gives to all its tests, or a conftest.py to those of its folder: the
    names in its ``pytestmark``. Read from the text, since importing takes seconds.
    """
    found = re.search(r"^pytestmark = (\[[^]]*\]|.*)$", path.read_text(), re.MULTILINE)
    return set(re.findall(r"pytest\.mark\.(\w+)", found[1])) if found else set()


@cache
def marks_of_folder(folder: Path) -> set[str]:
    """Applies the ``pytestmark`` of a conftest.py, which pytest itself ignores."""
    file = folder / "conftest.py"
    return marks_of(file) if file.exists() else set()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import files whose tests would all be deselected: importing takes seconds."""
    unwanted = {
        word.removeprefix("not ")
        for word in config.getoption("markexpr").split(" and ")
        if word.startswith("not ")
    }
    if not unwanted or collection_path.suffix != ".py":
        return None
    marks = marks_of(collection_path) | marks_of_folder(collection_path.parent)
    return True if marks & unwanted else None


_OTHERS = {*INTERPRETERS, *PROCESSES}
#: Fixtures with a second member of a registry, or with a program that joins one.
_OF_SHARED = {"fill", "hold", "mine", "worker"}


def _needs_sharing(item: pytest.Item) -> bool:
    """Whether a second member takes part: a fixture, or another interpreter or process, which the
    parameters name. Other tests say so by the mark.
    """
    if _OF_SHARED & set(getattr(item, "fixturenames", ())):
        return True
    call = getattr(item, "callspec", None)
    return call is not None and any(
        isinstance(value, str) and value in _OTHERS for value in call.params.values()
    )


def _deselect(config: pytest.Config, items: list[pytest.Item], mark: str) -> None:
    unwanted = [item for item in items if item.get_closest_marker(mark)]
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = [item for item in items if not item.get_closest_marker(mark)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if _needs_sharing(item):
            item.add_marker("shared")
        for mark in marks_of_folder(item.path.parent):
            item.add_marker(mark)
        marked = item.get_closest_marker("timeout")
        if marked is not None and PATIENCE != 1:
            item.add_marker(pytest.mark.timeout(limit(marked.args[0])), append=False)
    if native.which == "none":
        _deselect(config, items, "shared")
    absent = {item for item in items if not _has_features(item)}
    if absent:
        config.hook.pytest_deselected(items=list(absent))
        items[:] = [item for item in items if item not in absent]
    tiers.mark_dear(items)


@cache
def _is_installed(feature: str) -> bool:
    return find_spec(f"mdispatch.{feature}") is not None


def _has_features(item: pytest.Item) -> bool:
    """Whether the features that a test needs are here: see .ci/without."""
    return all(map(_is_installed, (f for mark in item.iter_markers("needs") for f in mark.args)))


@given(strategies.none())
def an_example(_: None) -> None:
    """By its first one hypothesis registers its generator of random numbers, and looks who has it.
    From Python 3.14 on it does not see those who are frozen.
    """


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spares the collections of tests, which are many, what is there to the end: the tests and what
    they import.
    """
    an_example()
    gc.collect()
    gc.freeze()


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(autouse=True)
def a_failed_test_leaves_no_registry(request: pytest.FixtureRequest):
    """Its traceback refers to the registries that it has opened. A process has room for 64 of them,
    so a hypothesis that fails would make every later test fail, too.
    """
    before = set(living._live)
    yield
    if request.node.stash.get(_failed, False):
        default = registries.default and registries.default.dispatcher.facts
        for opened, registry in list(living._live.items()):
            if opened not in before and registry is not default:
                registry.close()


@pytest.fixture(autouse=True)
def nothing_is_left_locked():
    """A lock that a test leaves taken in this thread would stop the threads of other tests."""
    yield
    sets = guards_py._thread.sets
    assert sets is None or not sets.lock._is_owned()


@pytest.fixture(autouse=True)
def no_address_is_left():
    """A test that opens the default registry publishes it for children. Children of the next test
    must not find it. The end of a fixture that several tests share may open it, too; and so may a
    sub-interpreter, whose change the os.environ of this one does not know.
    """
    _forget_the_address()
    yield
    _forget_the_address()


def _forget_the_address() -> None:
    os.environ.pop(ENVIRONMENT, None)
    os.unsetenv(ENVIRONMENT)


@pytest.fixture(autouse=True)
def no_types_of_other_tests():
    """What test modules register when they are imported is in no registry of a test."""
    before: list[type] = []
    values._types.each(lambda cls, oldest: before.append(cls))
    known = {id(cls) for cls in before}

    def each(tell):
        values._types.each(lambda cls, oldest: id(cls) in known or tell(cls, oldest))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(own_types, "each", each)
        yield


@pytest.fixture
def renewed_lock():
    """For tests that raise at every step. When a trace function raises right after a with statement
    has taken a lock, the lock stays taken; Python never runs a signal handler there.
    """
    yield
    guards_py._numbering = guards_py.new_lock()
    if guards_py._thread.sets is not None:
        guards_py._thread.sets.lock = guards_py.new_lock()
        guards_py._thread.sets.renew()


@pytest.fixture(params=["c", "python"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Calls made by C, and by Python."""
    call_c.turn(request.param == "c")
    yield
    call_c.turn(call_c._wanted())


@pytest.fixture
def long_form(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--long"))


@pytest.fixture(params=["local", pytest.param("shared", marks=pytest.mark.shared)])
def facts(request: pytest.FixtureRequest):
    """A registry of registrations in the main role, once for each implementation."""
    registry = LocalRegistry() if request.param == "local" else SharedRegistry.create(None, 1 << 22)
    yield registry
    if request.param == "shared" and not registry._closed:
        assert registry.check() == ""
    registry.close()


@pytest.fixture
def registry(mdispatch_registry: md.Registry) -> md.Registry:
    """A shared registry in which this interpreter registers: the plugin's, by a shorter name. Its
    invariants are checked when the test ends.
    """
    return mdispatch_registry


@pytest.fixture
def lib(registry: md.Registry) -> md.Library:
    """The library that defines the operators of ``s``."""
    return md.Library("s", "DEF", registry=registry)


@pytest.fixture
def wild(registry: md.Registry) -> md.Library:
    """The library of fallbacks."""
    return md.Library("_", "IMPL", registry=registry)


@pytest.fixture
def worker(registry: md.Registry) -> Iterator[md.Registry]:
    """A second membership of this interpreter: it verifies."""
    with md.Registry.attach(registry.address, timeout=0) as attached:
        assert not attached.is_main
        yield attached
        with suppress(md.errors.RegistryClosedError):
            attached.check_invariants()


@pytest.fixture
def mine(worker: md.Registry) -> md.Library:
    """The worker's library."""
    return md.Library("s", "FRAGMENT", registry=worker, timeout=0)


def _driver(name: str, folder: Path) -> str:
    native = Path(__file__).parent.parent / "native"
    program = str(folder / name)
    sources = [native / "tests" / f"{name}.c", *sorted((native / "core").rglob("*.c"))]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-pthread"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", program, *sources], check=True)
    return program


@pytest.fixture(scope="session")
def hold(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that attaches to a registry, takes its lock, reports it and waits to be killed."""
    return _driver("hold", tmp_path_factory.mktemp("hold"))


@pytest.fixture(scope="session")
def fill(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that takes every process slot a registry has left, then gives some back."""
    return _driver("fill", tmp_path_factory.mktemp("fill"))
