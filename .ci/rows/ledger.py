"""The figures of past runs, in a file beside what .ci/run keeps: rows and tests, with CPU and wall
seconds, the result, and the load of the machine when the row began.
"""

from __future__ import annotations

import ast
import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from judge import Test

#: Runs that count for a median, and the days for which figures are kept.
RUNS, DAYS = 10, 60
TABLE = """
CREATE TABLE IF NOT EXISTS figures (
    moment REAL, row TEXT, test TEXT, cpu REAL, wall REAL, result TEXT, load REAL
);
CREATE INDEX IF NOT EXISTS by_row ON figures (row, test, moment);
"""


def opened(cache: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(cache / "figures.sqlite", timeout=60)
    connection.executescript(TABLE)
    return connection


def keep(
    cache: Path,
    row: str,
    result: str,
    wall: float,
    cpu: float,
    load: float,
    tests: Mapping[str, Test],
) -> None:
    """Appends a row and its tests. The row itself has no name of a test."""
    now = time.time()
    lines = [(now, row, "", cpu, wall, result, load)]
    lines += [(now, row, name, t.cpu, t.wall, t.outcome, load) for name, t in tests.items()]
    with closing(opened(cache)) as connection, connection:
        connection.execute("DELETE FROM figures WHERE moment < ?", (now - DAYS * 86400,))
        connection.executemany("INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?)", lines)


def slower(cache: Path, rows: Iterable[str]) -> str:
    """What used more CPU than the median of the last ten runs: rows by a fifth, tests by half."""
    found = []
    with closing(opened(cache)) as connection:
        for row in rows:
            seconds = defaultdict(list)
            for test, cpu in connection.execute(
                "SELECT test, cpu FROM figures WHERE row = ? AND result IN ('ok', 'passed')"
                " AND moment IN (SELECT moment FROM figures WHERE row = ? AND test = ''"
                f" ORDER BY moment DESC LIMIT {RUNS + 1}) ORDER BY moment DESC",
                (row, row),
            ):
                seconds[test].append(cpu)
            for test, (now, *before) in seconds.items():
                usual = statistics.median(before) if before else now
                factor, least = (1.5, 0.5) if test else (1.2, 5.0)
                if now > usual * factor and now - usual > least:
                    found.append(f"  {row} {test}: {now:.1f} CPU s, usually {usual:.1f}")
    return "\n".join(["slower than the median of the last ten runs:", *(found or ["  nothing"])])


def functions(tests: Path) -> set[str]:
    """The test functions in the files below a folder, by the names that pytest has for them."""
    found = set()
    for file in tests.rglob("test_*.py"):
        for node in ast.parse(file.read_text()).body:
            inside = node.body if isinstance(node, ast.ClassDef) else [node]
            path = f"{file.relative_to(tests.parent)}::"
            path += f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
            found |= {
                path + each.name
                for each in inside
                if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
            }
    return found


def unrun(cache: Path, tests: Path) -> str:
    """The test functions that no run of the last week has executed; a skip executes nothing."""
    with closing(opened(cache)) as connection:
        ran = {
            name.partition("[")[0]
            for (name,) in connection.execute(
                "SELECT DISTINCT test FROM figures WHERE moment > ? AND result != 'skipped'",
                (time.time() - 7 * 86400,),
            )
        }
    missing = sorted(functions(tests) - ran)
    heading = f"{len(missing)} test functions have not been executed for a week:"
    return "\n".join([heading, *(f"  {name}" for name in missing)])
