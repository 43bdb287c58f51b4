"""What every test relies on: a registry of its own, and no trace of anybody else's."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import mdispatch as md
from mdispatch import _native, guards
from mdispatch._registry.local import LocalRegistry
from mdispatch._registry.shared import ENVIRONMENT, SharedRegistry

os.environ.pop(ENVIRONMENT, None)


def pytest_report_header() -> str:
    return (
        f"mdispatch {md.__version__}, binding {_native.which}, interpreter {_native.interpreter_id}"
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long form of the slow tests")
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")


def files(*names: str) -> tuple[str, ...]:
    return tuple(f"test_{name}" for name in names)


#: Long comparisons with a model or with recordings, and what commands print: no version of Python
#: changes them.
SPECIFICATION = files(
    *("explain_command", "guards_models", "machine", "oracle", "orders", "privateuse", "report"),
    *("schema", "stubs", "top."),
)

#: What these show does not depend on the binding: once per Python is enough.
EITHER_BINDING = SPECIFICATION + files(
    *("autograd", "bad_input", "bind.", "coming_from", "conformance", "custom_op"),
    *("doctor", "fake", "functions", "golden_errors", "hermetic", "higher_order", "homes"),
    *("keys", "meta", "modes", "opcheck", "pystub", "safe_objects", "structure"),
    *("table", "tape", "torch_compat", "transforms", "value_checks", "verify_command"),
    *("forking", "fuzz", "many_waiters", "pools", "pytest_plugin", "stress_suite"),
)

MARKS = {"either_binding": EITHER_BINDING, "specification": SPECIFICATION}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files whose tests would all be deselected are not imported: it takes seconds."""
    unwanted = config.getoption("markexpr").split(" and ")
    for mark, names in MARKS.items():
        if f"not {mark}" in unwanted and collection_path.name.startswith(names):
            return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark, names in MARKS.items():
            if item.path.name.startswith(names):
                item.add_marker(mark)
    if config.getoption("--long"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(autouse=True)
def nothing_is_left_locked():
    """A lock of this thread's that a test leaves taken would stop another test's threads."""
    yield
    sets = guards.local.__dict__.get("sets")
    assert sets is None or not sets.lock._is_owned()


@pytest.fixture(autouse=True)
def no_address_is_left():
    """A test that opens the default registry publishes it for children; those of the next one would
    find it.
    """
    yield
    os.environ.pop(ENVIRONMENT, None)


@pytest.fixture
def renewed_lock():
    """For tests that raise at every step: a trace function that does so where a with statement has
    just taken a lock leaves it taken. No signal handler is called there.
    """
    yield
    guards._after_fork()


@pytest.fixture
def long_form(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--long"))


@pytest.fixture(params=["local", "shared"])
def facts(request: pytest.FixtureRequest):
    """A registry of facts in the main role, of each implementation."""
    registry = LocalRegistry() if request.param == "local" else SharedRegistry.create(None, 1 << 22)
    yield registry
    if request.param == "shared" and not registry._closed:
        assert registry.check() == ""
    registry.close()


@pytest.fixture
def registry(mdispatch_registry: md.Registry) -> md.Registry:
    """A shared registry in which this interpreter registers: the plugin's, by a shorter name."""
    return mdispatch_registry


@pytest.fixture
def lib(registry: md.Registry) -> Iterator[md.Library]:
    """The library that defines what is in ``s``."""
    yield md.Library("s", "DEF", registry=registry)
    with suppress(md.errors.RegistryClosedError):
        registry.check_invariants()


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


@pytest.fixture(scope="session")
def hold(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program that attaches to a registry, takes its lock, says so and waits to be killed."""
    native = Path(__file__).parent.parent / "native"
    program = str(tmp_path_factory.mktemp("hold") / "hold")
    sources = [native / "tests" / "hold.c", *sorted((native / "core").glob("*.c"))]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-pthread"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", program, *sources], check=True)
    return program
