"""The pytest plugin of mdispatch: fixtures, and options for a whole run. See docs/pools.md.

pytest imports this file in every run where mdispatch is installed, so it imports nothing of
mdispatch, and sees to it that pytest does not rewrite what others import of it. It lies beside the
package because importing a module of the package would import the package. The work is done in
mdispatch/workers/pytest_plugin.py.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor
    from importlib.machinery import ModuleSpec

    from mdispatch import Registry
    from mdispatch.workers.pytest_plugin import Snapshot


class _AsInstalled:
    """Finds the modules of mdispatch before pytest does. pytest rewrites the assert statements of
    all modules of a distribution that has a plugin: those of mdispatch would be compiled anew for
    it, and are nobody's tests.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path) if name.partition(".")[0] == "mdispatch" else None


def pytest_addhooks() -> None:
    # The first that pytest asks of a plugin, before it imports a file of the user.
    sys.meta_path.insert(0, _AsInstalled)


def pytest_unconfigure() -> None:
    if _AsInstalled in sys.meta_path:
        sys.meta_path.remove(_AsInstalled)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mdispatch")
    group.addoption(
        "--mdispatch-warm-up",
        metavar="MODULES",
        action="append",
        help="import these operator modules (a,b,c) before the tests; with -n, all workers verify "
        "against the first",
    )
    group.addoption(
        "--mdispatch-entry-points",
        metavar="GROUPS",
        action="append",
        help="import the plug-ins of these groups of entry points (a,b) likewise",
    )
    parser.addini("mdispatch_entry_points", "as --mdispatch-entry-points has them", "args")
    parser.addini("mdispatch_warm_up", "operator modules, as --mdispatch-warm-up has them", "args")
    parser.addini("mdispatch_snapshot", "registry_snapshot for every test", "bool", default=False)
    parser.addini("mdispatch_interpreters", "workers of the fixture interpreters", default="2")


def pytest_configure(config: pytest.Config) -> None:
    options = ("mdispatch_warm_up", "mdispatch_entry_points")
    if any(config.getoption(each) or config.getini(each) for each in options):
        from mdispatch.workers.pytest_plugin import WarmUpOfRun

        config.pluginmanager.register(WarmUpOfRun(config), "mdispatch-warm-up")
    if config.getini("mdispatch_snapshot"):
        from mdispatch.workers.pytest_plugin import SnapshotOfAll

        config.pluginmanager.register(SnapshotOfAll(), "mdispatch-snapshot")


@pytest.fixture
def mdispatch_registry() -> Iterator[Registry]:
    """A registry of the test's own, in which it registers. After the test its invariants hold, and
    it is closed.
    """
    from mdispatch.workers.pytest_plugin import own_registry

    with own_registry() as registry:
        yield registry


@pytest.fixture(scope="session")
def mdispatch_shared_registry(request: pytest.FixtureRequest) -> Iterator[Registry]:
    """One registry for the whole run, a team: with -n all workers of pytest-xdist share it."""
    from mdispatch.workers.pytest_plugin import shared_registry

    with shared_registry(request.config) as registry:
        yield registry


@pytest.fixture
def interpreters(request: pytest.FixtureRequest) -> Iterator[Executor]:
    """An InterpreterPool for the test. Its interpreters have sys.path, the default registry, and
    what --mdispatch-warm-up and --mdispatch-entry-points name.

    ``@pytest.mark.parametrize("interpreters", [4], indirect=True)`` makes it one of four.
    """
    from mdispatch.workers.pytest_plugin import interpreter_pool

    with interpreter_pool(request.config, getattr(request, "param", None)) as pool:
        yield pool


@pytest.fixture
def registry_snapshot(request: pytest.FixtureRequest) -> Iterator[Snapshot]:
    """Fails a test that leaves registrations behind. The failure lists them with their
    locations."""
    from mdispatch.workers.pytest_plugin import snapshot

    with snapshot(request.config) as taken:
        yield taken
