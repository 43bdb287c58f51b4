"""The table of locks in docs/locks.md, the locations in the package that make locks, and edges.

``docs/locks.md`` has a row for each lock. ``.ci/locks`` records edges: debug_locks.py says how.
This module compares the three. A lock of Python has the name of its class and attribute, such as
``Listeners.lock``, or of its module and variable, such as ``library._lock``.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "locks.md"

_STANDARD = sysconfig.get_path("stdlib") + "/"
#: Both locks are made in the package, whose paths have no spaces.
_EDGE = re.compile(r"(\S+:\d+) (.+:\d+) (\S+:\d+) (.+:\d+)")
_MAKERS = {"RLock", "Lock", "Condition", "allocate_lock", "new_lock"}


@dataclass(frozen=True)
class Lock:
    """A row of the table. ``file`` is relative to the package, or begins with ``native/``.
    ``under`` has the names of the locks that a holder of this one may take.
    """

    name: str
    file: str
    guards: str
    under: frozenset[str]

    @property
    def is_of_finalizers(self) -> bool:
        """Whether a finalizer may take it, and so a thread that holds any other lock."""
        return self.guards.endswith("; finalizers take it, too")


@dataclass(frozen=True)
class Place:
    """A location in the package that makes a lock."""

    name: str
    file: str
    first: int
    last: int


@dataclass(frozen=True)
class Edge:
    """A thread that held one lock, taken at ``held_at``, was about to take another at ``at``.
    ``stack`` has the functions in between, from the last call to the holder.
    """

    held: str
    held_at: str
    wanted: str
    at: str
    stack: tuple[str, ...] = ()

    @property
    def is_of_package(self) -> bool:
        """Whether only the package and the standard library took part. Some tests run code of
        their own under a lock, as signal handlers and finalizers do; see docs/locks.md.
        """
        places = (self.held_at, self.at, *(line.rpartition(" ")[0] for line in self.stack))
        return all(
            not each.startswith(("/", "<")) or each.startswith((_STANDARD, "<frozen "))
            for each in places
        )


def table(text: str | None = None) -> dict[str, Lock]:
    """The rows by the names of their locks. A link or a word in brackets is not part of a name."""
    found: dict[str, Lock] = {}
    for line in (PAGE.read_text() if text is None else text).splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if len(cells) == 4 and (named := re.fullmatch(r"`([\w.]+)`", cells[0])):
            name, file = named[1], cells[1].strip("`")
            if name in found:
                raise ValueError(f"docs/locks.md has two rows for {name}")
            under = frozenset(re.findall(r"`([\w.]+)`", cells[3]))
            found[name] = Lock(name, file, cells[2], under)
    return found


@cache
def places(package: Path) -> tuple[Place, ...]:
    """Where the package makes locks. A Condition around a lock of its own makes none."""
    found = []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        found += _places(ast.parse(path.read_text()), file, path.stem)
    return tuple(found)


def _places(node: ast.AST, file: str, owner: str, target: str = "") -> list[Place]:
    if isinstance(node, ast.ClassDef):
        owner = node.name
    elif isinstance(node, ast.FunctionDef) and node.name in _MAKERS:
        return []  # it makes locks for its callers
    elif isinstance(node, ast.Assign):
        target = ast.unparse(node.targets[0])
    elif isinstance(node, ast.AnnAssign):
        target = ast.unparse(node.target)
    elif (
        isinstance(node, ast.Call)
        and not node.args
        and ast.unparse(node.func).removeprefix("threading.") in _MAKERS
    ):
        name = f"{owner}.{target.removeprefix('self.')}"
        return [Place(name, file, node.lineno, node.end_lineno or node.lineno)]
    return [
        each for child in ast.iter_child_nodes(node) for each in _places(child, file, owner, target)
    ]


def edges(folder: Path, package: Path) -> list[Edge]:
    """The edges that recording locks have written. An attempt that does not wait for the lock
    closes no circle, so it is no edge: ``noted(taken, lock.acquire, False)``.
    """
    found = []
    for file in sorted(folder.iterdir()):
        lines = file.read_text().splitlines()
        if not lines:
            continue  # its process was killed while it wrote
        parts = _EDGE.fullmatch(lines[0])
        if parts is None:
            raise ValueError(f"no edge: {lines[0]}")
        held, held_at, wanted, at = parts.groups()
        if not _is_attempt(package, at):
            names = (_name(package, held), held_at, _name(package, wanted), at)
            # A test that raises at every step may leave a lock taken. Then no caller is its holder,
            # and the test itself is among the functions.
            holder = next((n for n, line in enumerate(lines) if line.startswith("*")), len(lines))
            found.append(Edge(*names, tuple(line[2:] for line in lines[1 : holder + 1])))
    return found


def _name(package: Path, made: str) -> str:
    file, line = made.rsplit(":", 1)
    for place in places(package):
        if place.file == file and place.first <= int(line) <= place.last:
            return place.name
    raise ValueError(f"no place of the package makes a lock at {made}")


def _is_attempt(package: Path, at: str) -> bool:
    file, line = at.rsplit(":", 1)
    path = package / file
    if not path.exists():
        return False
    return ".acquire, False)" in path.read_text().splitlines()[int(line) - 1]


def lacking(found: list[Edge], known: dict[str, Lock]) -> list[Edge]:
    """The first edge of each pair that the table lacks. Code of tests needs no edges."""
    first: dict[tuple[str, str], Edge] = {}
    for edge in found:
        lock, wanted = known.get(edge.held), known.get(edge.wanted)
        if not edge.is_of_package or (wanted and wanted.is_of_finalizers):
            continue
        if lock is None or edge.wanted not in lock.under:
            first.setdefault((edge.held, edge.wanted), edge)
    return list(first.values())


def circle(known: dict[str, Lock]) -> list[str]:
    """The locks of a circle in the table, beginning and ending with the same one, or nothing."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done or name not in known:
            return []
        for other in sorted(known[name].under):
            if found := walk(other, [*path, name]):
                return found
        done.add(name)
        return []

    for name in known:
        if found := walk(name, []):
            return found
    return []
