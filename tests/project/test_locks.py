"""docs/locks.md has a row for each lock, and its last column has no circle."""

from __future__ import annotations

import ast
import re
import runpy
import threading
from pathlib import Path

import lock_table
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mdispatch"
NATIVE = ROOT / "native"
SCRIPT = ROOT / ".ci" / "locks"

pytestmark = [
    pytest.mark.lint,
    pytest.mark.skipif(not PACKAGE.exists(), reason="this is not a checkout"),
]

#: A static mutex, or a field of a struct. Parameters, and pointers to a mutex, declare none.
MUTEX = re.compile(
    r"^ *(?:static |_Alignas\(64\) )*(?:pthread_mutex_t|PyMutex) (\w+)(?: = PTHREAD\w+)?;", re.M
)
#: A mutex that nobody takes: it shows the bytes of one that was initialised.
SAMPLES = {("core/ground/mutex.c", "m")}


def mutexes() -> set[tuple[str, str]]:
    files = [*NATIVE.glob("core/**/*.[ch]"), *NATIVE.glob("bind/**/*.[ch]")]
    return {
        (f"native/{file.relative_to(NATIVE)}", name)
        for file in files
        for name in MUTEX.findall(file.read_text())
        if (str(file.relative_to(NATIVE)), name) not in SAMPLES
    }


def of_native(lock: lock_table.Lock) -> bool:
    return lock.file.startswith("native/")


def test_each_place_that_makes_a_lock_has_a_row_and_each_row_a_place():
    made = {(place.name, place.file) for place in lock_table.places(PACKAGE)}
    rows = {(lock.name, lock.file) for lock in lock_table.table().values() if not of_native(lock)}
    assert made == rows


def test_each_mutex_in_c_has_a_row_and_each_row_a_mutex():
    rows = {
        (lock.file, lock.name.rpartition(".")[2])
        for lock in lock_table.table().values()
        if of_native(lock)
    }
    assert mutexes() == rows


def test_the_last_column_names_locks_of_the_table():
    known = lock_table.table()
    assert len(known) > 30
    for lock in known.values():
        assert lock.guards
        assert lock.under <= known.keys(), lock.name


def test_the_locks_have_an_order():
    assert lock_table.circle(lock_table.table()) == []


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ({"a": "b", "b": "c", "c": ""}, []),
        ({"a": "b", "b": "c", "c": "b"}, ["b", "c", "b"]),
        ({"a": "a"}, ["a", "a"]),
    ],
)
def test_a_circle_is_found(rows, found):
    known = {
        name: lock_table.Lock(name, "x.py", "x", frozenset(under.split()))
        for name, under in rows.items()
    }
    assert lock_table.circle(known) == found


def test_two_rows_for_one_lock_are_refused():
    row = "| `A.lock` | `a.py` | all | `b._lock` |\n"
    assert lock_table.table(row)["A.lock"].under == {"b._lock"}
    with pytest.raises(ValueError, match=r"two rows for A\.lock"):
        lock_table.table(2 * row)


@pytest.mark.skipif(not SCRIPT.exists(), reason="this is not a checkout")
@pytest.mark.parametrize(
    ("held", "wanted", "is_known"),
    [
        ("Listeners.lock", "dispatcher._locks", True),
        ("dispatcher._locks", "Listeners.lock", False),
    ],
)
def test_an_edge_that_the_table_lacks_is_red(held, wanted, is_known, tmp_path, capsys):
    by_name = {place.name: place for place in lock_table.places(PACKAGE)}
    first, second = (f"{by_name[name].file}:{by_name[name].first}" for name in (held, wanted))
    edge = f"{first} some/file.py:7 {second} other/file.py:8"
    lines = f"  other/file.py:8 inner\n* some/file.py:9 outer\n  {ROOT}/tests/test_x.py:1 test"
    (tmp_path / "edge").write_text(f"{edge}\n{lines}\n")
    compare = runpy.run_path(str(SCRIPT))["compare"]
    assert compare(tmp_path, PACKAGE) == is_known
    said = capsys.readouterr().out
    for word in (held, "some/file.py:7", wanted, "other/file.py:8"):
        assert is_known or word in said


def test_a_lock_that_finalizers_take_is_last_and_may_be_under_any_other():
    known = lock_table.table()
    theirs = {name for name, lock in known.items() if lock.is_of_finalizers}
    assert theirs
    for name in theirs:
        assert not known[name].under
        assert not lock_table.lacking([lock_table.Edge("x", "a.py:1", name, "b.py:2")], known)


@pytest.mark.parametrize(
    ("between", "is_of_package"),
    [
        (("b.py:2 inner", "a.py:1 outer"), True),
        (("b.py:2 inner", f"{threading.__file__}:3 run", "a.py:1 outer"), True),
        (("b.py:2 inner", "<frozen importlib._bootstrap>:9 _load", "a.py:1 outer"), True),
        (("b.py:2 inner", f"{__file__}:3 handler", "a.py:1 outer"), False),
        (("b.py:2 inner", "<string>:3 handler", "a.py:1 outer"), False),
        (("b.py:2 inner", "/a folder/x.py:3 handler", "a.py:1 outer"), False),
    ],
)
def test_code_of_a_test_under_a_lock_needs_no_edge(between, is_of_package):
    edge = lock_table.Edge("A.lock", "a.py:1", "B.lock", "b.py:2", between)
    assert edge.is_of_package == is_of_package
    assert bool(lock_table.lacking([edge], {})) == is_of_package


@pytest.mark.skipif(not SCRIPT.exists(), reason="this is not a checkout")
def test_a_run_that_records_nothing_is_red(tmp_path, capsys):
    assert not runpy.run_path(str(SCRIPT))["compare"](tmp_path, PACKAGE)
    assert "nothing was recorded" in capsys.readouterr().out


# --- forks ----------------------------------------------------------------------------------------

LOCKS = ("Condition", "Event", "Lock", "RLock", "Semaphore", "allocate_lock")

#: The modules that make locks in another way, and how the child of a fork frees these.
ELSEWHERE = {
    "forking": "itself: it makes the locks of the others",
    "across.sharing": "itself: a handler must not take the lock of a home again",
    "across.transports.host": "itself: the child has no owner, and so no condition",
    "cluster.bridge": "none: the process of a bridge forks nobody",
    "cluster.leading": "none: the child's registry forgets its publisher, which has them",
    "cluster.memory": "none: an engine for tests, in one process",
    "cli.verify.command": "none: a command, which forks only to run something else",
}


@pytest.mark.thorough
def test_each_lock_of_the_package_is_free_in_a_child() -> None:
    with_locks = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called.removeprefix("threading.") in LOCKS and not node.args:
                    with_locks.add(".".join(file.relative_to(PACKAGE).with_suffix("").parts))
    assert with_locks == ELSEWHERE.keys()
