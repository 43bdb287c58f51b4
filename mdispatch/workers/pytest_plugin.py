"""The working half of the pytest plugin; pytest_mdispatch.py is the half that pytest finds.

pytest imports pytest_mdispatch.py in every run, with or without operators. So that file only
declares options and fixtures, and imports this one when a run uses one of them. Here are:

- a folder of the run's own for named registries (``own_folder``, which this project's own suite
  calls);
- the registries and the interpreter pool behind the fixtures;
- the check that a test leaves no registrations behind;
- the warm-up of a whole run, also under pytest-xdist.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import contextmanager, suppress
from functools import partial

import pytest

from .. import facts
from .. import registry as registries
from ..errors import RegistryClosedError
from ..facts import interpreter_id, outside
from ..facts.backing import alone_because
from ..facts.opening import ENVIRONMENT, named_registries
from ..pool import InterpreterPool
from ..registry import Registry, default_registry
from ..registry.differences import key_name
from .warm_up import warm_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from ..facts import Registration

#: The beginning of the name of each registry that the processes of a run share.
_PREFIX = "pytest-"
_SHARED = pytest.StashKey[Registry]()

#: The variable that says where named registries lie (mdispatch.h, NAMES).
_FOLDER = "MDISPATCH_FOLDER"
_OWN = pytest.StashKey[str]()


# --- a folder -------------------------------------------------------------------------------------


def own_folder(config: pytest.Config) -> None:
    """Gives a run of pytest its own folder for named registries, apart from other runs and from
    everything else that this user does. Call it in pytest_configure.

    The process that begins the run makes the folder, and removes it at its end; workers of
    pytest-xdist and other children inherit it. A run that is killed leaves it in /dev/shm. Where
    registries are not shared, there are none with names, and there is no folder.
    """
    if hasattr(config, "workerinput") or _OWN in config.stash or alone_because:
        return
    before = os.environ.get(_FOLDER)
    folder = config.stash[_OWN] = tempfile.mkdtemp(prefix="mdispatch-tests-", dir="/dev/shm")

    def end() -> None:
        os.environ.pop(_FOLDER)
        if before is not None:
            os.environ[_FOLDER] = before
        shutil.rmtree(folder, ignore_errors=True)

    os.environ[_FOLDER] = folder
    config.add_cleanup(end)
    os.chmod(folder, 0o1777)  # as /dev/shm, for tests that act as other users
    if not outside.folder().startswith(folder):
        raise pytest.UsageError(f"{_FOLDER} was read before it was set: {outside.folder()}")


# --- registries -----------------------------------------------------------------------------------


@contextmanager
def own_registry() -> Iterator[Registry]:
    with Registry.create() as registry:
        yield registry
        with suppress(RegistryClosedError):  # the test did that
            registry.check_invariants()


@contextmanager
def shared_registry(config: pytest.Config) -> Iterator[Registry]:
    """The team of a run, by the run's own name. It ends with the run's last process; the next run
    removes what a killed one left.
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
    for name in named_registries():
        if name.startswith(_PREFIX):
            outside.remove_unused(name)  # refuses where anybody lives


# --- a pool ---------------------------------------------------------------------------------------


def _modules(config: pytest.Config) -> list[str]:
    """The modules to warm up with: those of the command line, else those of the ini file."""
    return _named(config, "mdispatch_warm_up")


def _groups(config: pytest.Config) -> list[str]:
    """The groups of entry points, likewise."""
    return _named(config, "mdispatch_entry_points")


def _named(config: pytest.Config, option: str) -> list[str]:
    given = config.getoption(option) or config.getini(option)
    names = (name for text in given for name in text.replace(",", " ").split())
    return list(dict.fromkeys(names))


def interpreter_pool(config: pytest.Config, workers: int | None) -> Executor:
    count = int(config.getini("mdispatch_interpreters")) if workers is None else workers
    default_registry()  # opened here, so that this interpreter is the main one
    begin = partial(warm_up, entry_points=_groups(config))
    return InterpreterPool(
        count, "interpreters", initializer=begin, initargs=(_modules(config), sys.path)
    )


# --- registrations left behind --------------------------------------------------------------------


class Snapshot:
    """The registrations that this interpreter had made before the test, in the registries that it
    watches: the default one, the run's shared one, and those that :meth:`watch` adds.
    """

    def __init__(self) -> None:
        self._before: dict[Registry, set[int]] = {}

    def watch(self, registry: Registry) -> None:
        """Looks at another registry, from now on."""
        self._before[registry] = {fact.seq for fact in _registered_here(registry)}

    def left(self) -> list[Registration]:
        """The registrations that the test has added and not ended."""
        default = registries.opened_default()
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
        _, _, there = registry.dispatcher.facts.registrations()
    except RegistryClosedError:
        return []
    mine = os.getpid(), interpreter_id
    return [
        fact
        for fact in there
        if (fact.pid, fact.interpreter) == mine and not facts.kind_of(fact.kind).by_any
    ]


@contextmanager
def snapshot(config: pytest.Config) -> Iterator[Snapshot]:
    taken = Snapshot()
    for registry in (registries.opened_default(), config.stash.get(_SHARED, None)):
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
    return f"{facts.kind_of(fact.kind).name} {what}{f' at {key}' if key else ''}"


class SnapshotOfAll:
    """The plugin that the ini option mdispatch_snapshot adds: a snapshot around every test."""

    @pytest.fixture(autouse=True)
    def _mdispatch_snapshot(self, registry_snapshot: Snapshot) -> None:
        pass


# --- a run that is warmed up ----------------------------------------------------------------------


class WarmUpOfRun:
    """Imports the modules in each process that runs tests, before any test is collected.

    Where pytest-xdist spreads the tests, its controlling process runs none; it names a team for its
    workers. The first worker that joins registers, the others verify. Where registries are not
    shared, each worker registers for itself.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._differs: Exception | None = None
        self._named = False

    @pytest.hookimpl(tryfirst=True)  # before xdist's own hook, which starts its workers
    def pytest_sessionstart(self) -> None:
        is_worker = hasattr(self._config, "workerinput")
        if not is_worker and self._config.getoption("dist", "no") != "no":
            if alone_because:
                return  # each worker registers for itself
            _remove_leftovers()
            if ENVIRONMENT not in os.environ:
                os.environ[ENVIRONMENT] = f"elect:{_PREFIX}{os.urandom(16).hex()}"
                self._named = True
            return
        try:
            warm_up(_modules(self._config), entry_points=_groups(self._config))
        except Exception as error:
            if not is_worker:
                notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
                text = f"{type(error).__name__}: {error}{notes}"
                given = "warm-up" if _modules(self._config) else "entry-points"
                raise pytest.UsageError(f"--mdispatch-{given}: {text}") from error
            # xdist shows no reason for a worker that ends here, but it shows the errors of tests.
            self._differs = error

    def pytest_runtest_setup(self) -> None:
        if self._differs is not None:
            raise self._differs

    def pytest_unconfigure(self) -> None:
        if self._named:
            os.environ.pop(ENVIRONMENT, None)
