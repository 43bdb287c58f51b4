"""Which tests a run has: each test belongs to a tier, and says so by a mark.

- ``pytest`` runs every cheap test and, of each dear function, one instance.
- ``pytest --all`` runs every test.
- ``pytest --long`` runs the long forms as well (``long``).

A test is *dear* if it starts a process or an interpreter. No author has to remember that: this
module follows the code of each test and of its fixtures, and where that comes to one of
``STARTERS``, the test gets the mark ``dear``. Tests that cost much for another reason have the mark
in their file. No tier depends on how long a test took on some day.

Of a dear function one instance runs by default. The function's name decides which one, so that over
the whole suite every kind of worker has its turn. A test that is too dear even for that is marked
``thorough``. A test that the command line names (``file.py::test``) runs, whatever its tier.
"""

from __future__ import annotations

import functools
import inspect
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TypeVar

import pytest

Helper = TypeVar("Helper")

TESTS = Path(__file__).resolve().parents[1]

#: Helpers may have this parameter, and start a process only for callers that pass it: see
#: :func:`only_with_keyword`.
KEYWORD = "process"

#: What starts a process or an interpreter, by the names that code has for it.
STARTERS = frozenset(
    {
        "InterpreterPool",
        "ProcessPoolExecutor",
        "_interpreters",
        "_xxsubinterpreters",
        "create_interpreter",
        "fork",
        "forkpty",
        "interpreter_pool",
        "multiprocessing",
        "posix_spawn",
        KEYWORD,
        "runpytest_subprocess",
        "subprocess",
    }
)

#: CPU seconds of a test and its children: what an instance of each tier may use.
BUDGETS = {"cheap": 0.15, "dear": 1.0, "thorough": 10.0}

#: The helpers with the parameter KEYWORD.
QUIET: set[object] = set()

#: How many tests this process left out.
LEFT_OUT = pytest.StashKey[int]()


def only_with_keyword(helper: Helper) -> Helper:
    """Decorates a helper that starts a process only for callers that pass KEYWORD."""
    QUIET.add(helper)
    return helper


class Reach:
    """Whether the code of a function or a class of the tests comes to one of STARTERS."""

    def __init__(self) -> None:
        self._known: dict[object, bool] = {}

    def __call__(self, what: object) -> bool:
        what = getattr(what, "__func__", what)
        what = what.func if isinstance(what, functools.partial) else what
        if callable(what):
            what = inspect.unwrap(what)
        if not isinstance(what, FunctionType | type) or not is_ours(what):
            return False
        if what in QUIET:
            return False
        if what not in self._known:
            self._known[what] = False  # while it is followed: functions may call each other
            self._known[what] = (
                any(map(self, vars(what).values()))
                if isinstance(what, type)
                else not STARTERS.isdisjoint(names(what.__code__)) or any(map(self, used(what)))
            )
        return self._known[what]


def is_ours(what: object) -> bool:
    """Whether it is from a file of the tests."""
    module = what if isinstance(what, ModuleType) else sys.modules.get(str(what.__module__))
    file = getattr(module, "__file__", None)
    return file is not None and file.startswith(f"{TESTS}/")


def names(code: CodeType) -> set[str]:
    """The names of globals and attributes in a piece of code, functions inside it included; and the
    keyword, which is a constant or in one.
    """
    found = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= names(each)
        elif each == KEYWORD or (isinstance(each, tuple) and KEYWORD in each):
            found.add(KEYWORD)
    return found


def used(function: FunctionType) -> Iterator[object]:
    """The objects that the names in a function's code mean there."""
    inside = names(function.__code__)
    for name in inside:
        found = function.__globals__.get(name, sys.modules.get(name))
        if isinstance(found, ModuleType) and is_ours(found):
            yield from (vars(found).get(attribute) for attribute in inside)
        else:
            yield found


def mark_dear(items: list[pytest.Item]) -> None:
    """Marks the tests that start a process. What a fixture of a wider scope starts serves many
    tests, and makes none of them dear.
    """
    reach = Reach()
    dear: dict[object, bool] = {}
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        parts = [item.function]
        for fixtures in item._fixtureinfo.name2fixturedefs.values():
            parts += [each.func for each in fixtures if each.scope == "function"]
        for part in parts:
            if part not in dear:
                dear[part] = reach(part)
        if any(dear[part] for part in parts):
            item.add_marker("dear")


def tier(item: pytest.Item) -> str:
    for name in ("long", "thorough", "dear"):
        if item.get_closest_marker(name):
            return name
    return "cheap"


def left_out(config: pytest.Config, items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests whose tier is not asked for."""
    if config.getoption("--long"):
        return []
    unwanted = {"long"} if config.getoption("--all") else {"long", "thorough"}
    out = [item for item in items if tier(item) in unwanted]
    if not config.getoption("--all"):
        functions = defaultdict(list)
        for item in items:
            if tier(item) == "dear":
                functions[item.nodeid.partition("[")[0]].append(item)
        for name, instances in functions.items():
            del instances[zlib.crc32(name.encode()) % len(instances)]
            out += instances
    named = tuple(word for word in config.args if "::" in word)
    return [item for item in out if not is_named(item, named, config)]


def is_named(item: pytest.Item, words: tuple[str, ...], config: pytest.Config) -> bool:
    for word in words:
        path, _, rest = word.partition("::")
        start = item.nodeid.partition("::")[2]
        if (config.invocation_params.dir / path).resolve() == item.path and (
            start == rest or start.startswith((f"{rest}[", f"{rest}::"))
        ):
            return True
    return False


class Choice:
    """Takes the tests out of a run whose tier is not asked for."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(trylast=True)  # after what -m and -k take out
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        out = set(left_out(self.config, items))
        if out:
            self.config.hook.pytest_deselected(items=list(out))
            items[:] = [item for item in items if item not in out]
        self.config.stash[LEFT_OUT] = len(out)
        if hasattr(self.config, "workeroutput"):  # in a worker of pytest-xdist
            self.config.workeroutput["left_out"] = len(out)


class Ending:
    """Says at the end of a run how many tests it left out, and the command for them."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        told = getattr(node, "workeroutput", {}).get("left_out", 0)
        self.config.stash[LEFT_OUT] = max(told, self.config.stash.get(LEFT_OUT, 0))

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after the line that counts the results
    def pytest_sessionfinish(self) -> Iterator[None]:
        result = yield
        count = self.config.stash.get(LEFT_OUT, 0)
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if count and terminal is not None:
            option = "--long" if self.config.getoption("--all") else "--all"
            terminal.write_line(f"{count} dearer tests were left out. This runs them, too:")
            terminal.write_line(f"  python -m pytest -n auto {option}")
        return result  # type: ignore[no-any-return]
