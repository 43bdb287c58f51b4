"""What the pytest plugin (pytest_mdispatch.py) does when it is asked for something."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress

import pytest

from . import _registry as facts
from . import registry as registries
from ._differences import key_name
from ._native import interpreter_id, native
from ._registry.opening import ENVIRONMENT
from .errors import RegistryClosedError
from .pool import InterpreterPool
from .registry import Registry, default_registry
from .warming import warm_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from ._registry import Registration

__all__ = ["Snapshot", "SnapshotOfAll", "WarmUpOfRun", "interpreter_pool", "own_registry"]
__all__ += ["shared_registry", "snapshot"]

#: What the names of all registries begin with that runs of pytest share.
_PREFIX = "pytest-"
_SHARED = pytest.StashKey[Registry]()


# --- registries -----------------------------------------------------------------------------------


@contextmanager
def own_registry() -> Iterator[Registry]:
    with Registry.create() as registry:
        yield registry
        with suppress(RegistryClosedError):  # the test did that
            registry.check_invariants()


@contextmanager
def shared_registry(config: pytest.Config) -> Iterator[Registry]:
    """The team of a run, by the run's own name. It goes with the run's last process; what a run
    that was killed has left, the next one removes.
    """
    _remove_leftovers()
    run = getattr(config, "workerinput", {}).get("testrunuid") or os.urandom(16).hex()
    with Registry.elect(f"{_PREFIX}{run}") as registry:
        config.stash[_SHARED] = registry
        try:
            yield registry
        finally:
            del config.stash[_SHARED]


def _remove_leftovers() -> None:
    status, folder = native.folder()
    if status == 0:
        for name in os.listdir(folder.decode()):
            if name.startswith(_PREFIX):
                native.reap(name.encode())  # refuses where anybody lives


# --- a pool ---------------------------------------------------------------------------------------


def _modules(config: pytest.Config) -> list[str]:
    """What is to be warmed up, on the command line or else in the file."""
    given = config.getoption("mdispatch_warm_up") or config.getini("mdispatch_warm_up")
    names = (name for text in given for name in text.replace(",", " ").split())
    return list(dict.fromkeys(names))


def interpreter_pool(config: pytest.Config, workers: int | None) -> Executor:
    count = int(config.getini("mdispatch_interpreters")) if workers is None else workers
    default_registry()  # it is this interpreter's, whoever of its sub-interpreters is first
    return InterpreterPool(
        count, "interpreters", initializer=warm_up, initargs=(_modules(config), sys.path)
    )


# --- what a test leaves behind --------------------------------------------------------------------


class Snapshot:
    """What was registered by this interpreter before the test, in the registries it looks at:
    the default one, the run's shared one, and what :meth:`watch` adds.
    """

    def __init__(self) -> None:
        self._before: dict[Registry, set[int]] = {}

    def watch(self, registry: Registry) -> None:
        """Looks at another registry, from now on."""
        self._before[registry] = {fact.seq for fact in _registered_here(registry)}

    def left(self) -> list[Registration]:
        """What is there that was not there before."""
        default = registries._default
        if default is not None:
            self._before.setdefault(default, set())
        return [
            fact
            for registry, before in self._before.items()
            for fact in _registered_here(registry)
            if fact.seq not in before
        ]


def _registered_here(registry: Registry) -> list[Registration]:
    try:
        _, _, there = registry._facts.registrations()
    except RegistryClosedError:
        return []
    mine = os.getpid(), interpreter_id
    return [
        fact for fact in there if (fact.pid, fact.interpreter) == mine and fact.kind != facts.CLAIM
    ]


@contextmanager
def snapshot(config: pytest.Config) -> Iterator[Snapshot]:
    taken = Snapshot()
    for registry in (registries._default, config.stash.get(_SHARED, None)):
        if registry is not None:
            taken.watch(registry)
    yield taken
    left = taken.left()
    if left:
        lines = "".join(f"\n  {_described(fact)}    ({fact.where})" for fact in left)
        pytest.fail(
            f"the test left {len(left)} registration{'s' * (len(left) > 1)} behind:{lines}\n"
            "Close the library in the test (mdispatch.scoped_library, close()). A module that "
            "registers when it is imported is to be there before: --mdispatch-warm-up MODULES.",
            pytrace=False,
        )


def _described(fact: Registration) -> str:
    key = key_name(fact.kind, fact.key)
    what = fact.body.partition("\n")[0] if fact.kind == facts.DEF else fact.name
    return f"{facts.KIND_NAMES[fact.kind]} {what}{f' at {key}' if key else ''}"


class SnapshotOfAll:
    """The ini option mdispatch_snapshot."""

    @pytest.fixture(autouse=True)
    def _mdispatch_snapshot(self, registry_snapshot: Snapshot) -> None:
        pass


# --- a run that is warmed up ----------------------------------------------------------------------


class WarmUpOfRun:
    """Imports the modules in each process that runs tests, before any test is collected.

    Where pytest-xdist spreads them, the process that runs none gives the others a team: the first
    that comes registers, the rest verify.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._differs: Exception | None = None
        self._named = False

    @pytest.hookimpl(tryfirst=True)  # xdist starts its workers there
    def pytest_sessionstart(self) -> None:
        is_worker = hasattr(self._config, "workerinput")
        if not is_worker and self._config.getoption("dist", "no") != "no":
            _remove_leftovers()
            if ENVIRONMENT not in os.environ:
                os.environ[ENVIRONMENT] = f"elect:{_PREFIX}{os.urandom(16).hex()}"
                self._named = True
            return
        try:
            warm_up(_modules(self._config))
        except Exception as error:
            if not is_worker:
                notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
                text = f"{type(error).__name__}: {error}{notes}"
                raise pytest.UsageError(f"--mdispatch-warm-up: {text}") from error
            # A worker that ends here is only heard of; what its tests raise is shown.
            self._differs = error

    def pytest_runtest_setup(self) -> None:
        if self._differs is not None:
            raise self._differs

    def pytest_unconfigure(self) -> None:
        if self._named:
            os.environ.pop(ENVIRONMENT, None)
