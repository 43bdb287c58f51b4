"""What every test relies on: a registry of its own, and no trace of anybody else's."""

from __future__ import annotations

import os

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


#: Long comparisons with a model or with recordings, which no version of Python changes.
SPECIFICATION = files("guards_models", "machine", "oracle", "orders", "privateuse", "schema")

#: What these show does not depend on the binding: once per Python is enough.
EITHER_BINDING = SPECIFICATION + files(
    *("autograd", "bad_input", "bind.", "coming_from", "conformance", "custom_op", "docs"),
    *("explain_command", "fake", "functions", "golden_errors", "hermetic", "higher_order", "homes"),
    *("keys", "meta", "modes", "opcheck", "pystub", "readme", "safe_objects", "stubs", "structure"),
    *("table", "tape", "torch_compat", "transforms", "tutorial", "value_checks", "verify_command"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith(EITHER_BINDING):
            item.add_marker("either_binding")
        if item.path.name.startswith(SPECIFICATION):
            item.add_marker("specification")
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
def registry():
    """A shared registry in which this interpreter registers."""
    with md.Registry.create() as created:
        yield created
        if not created._facts._closed:
            assert created._facts.check() == ""
