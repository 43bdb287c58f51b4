"""The recording locks of tests/support/debug_locks.py behave like CPython's, and lose no edge."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import lock_table
import pytest

import mdispatch

PACKAGE = Path(mdispatch.__file__).parent
RECORDER = Path(__file__).parents[1] / "support" / "debug_locks.py"

#: While .ci/locks runs the tests, the Python that starts has done the first step.
BEGIN = """
import _thread, sys
if isinstance(_thread.RLock, type):
    with open(sys.argv[1]) as file:
        exec(file.read(), {"__name__": "debug_locks"})
sys.path[:] = eval(sys.argv[2])
from mdispatch.dispatch.context import observers
from mdispatch.facts.local import LocalRegistry
from mdispatch.facts.native.calls import noted
from mdispatch.across import sharing
from mdispatch.registry import library
"""


def recorded(folder: Path, code: str, status: int = 0) -> set[tuple[str, str]]:
    """Runs code in a process that records. Returns the pairs of locks of its edges."""
    done = subprocess.run(
        [sys.executable, "-c", f"{BEGIN}BEGIN = {BEGIN!r}\n{code}", RECORDER, repr(sys.path)],
        env=os.environ | {"MDISPATCH_LOCK_EDGES": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return {(edge.held, edge.wanted) for edge in lock_table.edges(folder, PACKAGE)}


ORDER = ("library._lock", "observers._lock")
CASES = {
    "one under the other": (
        "with library._lock:\n    with observers._lock: pass",
        {ORDER},
    ),
    "one after the other": (
        "with library._lock: pass\nwith observers._lock: pass",
        set(),
    ),
    "again by its holder": (
        "with library._lock, observers._lock, library._lock: pass",
        {ORDER},
    ),
    "by acquire": (
        "library._lock.acquire()\nobservers._lock.acquire()",
        {ORDER},
    ),
    "an attempt that does not wait": (
        "from mdispatch.across import sharing\n"
        "sharing._dropped.append(0)\nwith library._lock: sharing._drop_noted()",
        set(),
    ),
    "by a thread that holds nothing": (
        "import threading\n"
        "def take():\n    with observers._lock: pass\n"
        "with library._lock:\n"
        "    thread = threading.Thread(target=take); thread.start(); thread.join()",
        set(),
    ),
    "a plain lock again": (
        "lock = sharing._Far()._lock\nlock.acquire()\n"
        "assert not noted([], lock.acquire, False) or True",
        {("_Far._lock", "_Far._lock")},
    ),
    "after a wait of a Condition": (
        "store = LocalRegistry()\n"
        "with store._lock:\n"
        "    library._lock.acquire(); store._changed.wait(0.001); library._lock.release()",
        {("LocalRegistry._lock", "library._lock"), ("library._lock", "LocalRegistry._lock")},
    ),
    "a Condition that is made under another lock": (
        "with library._lock:\n    LocalRegistry()",
        set(),
    ),
    "in the child of a fork that ends at once": (
        "import os\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    with library._lock:\n        with observers._lock: pass\n"
        "    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0",
        {ORDER},
    ),
    "in another interpreter": (
        "try: import _interpreters as all\n"
        "except ImportError: import _xxsubinterpreters as all\n"
        "more = 'with library._lock:\\n    with observers._lock: pass'\n"
        "code = f'import sys; sys.argv = {sys.argv!r}\\n{BEGIN}\\n{more}'\n"
        "run = getattr(all, 'run_string', None) or all.exec\n"
        "failed = run(all.create(), code)\n"
        "assert not failed, failed",
        {ORDER},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_edge_is_there_where_a_thread_takes_a_lock_under_another(name, tmp_path):
    code, pairs = CASES[name]
    assert recorded(tmp_path, code) == pairs


@pytest.mark.thorough
def test_a_process_that_is_killed_loses_no_edge(tmp_path):
    code = "import os\nlibrary._lock.acquire()\nobservers._lock.acquire()\nos.kill(os.getpid(), 9)"
    assert recorded(tmp_path, code, -signal.SIGKILL) == {ORDER}


def test_an_edge_has_both_places(tmp_path):
    recorded(tmp_path, "with library._lock:\n    with observers._lock: pass")
    (edge,) = lock_table.edges(tmp_path, PACKAGE)
    begin = BEGIN.count("\n") + 1
    assert (edge.held_at, edge.at) == (f"<string>:{begin + 1}", f"<string>:{begin + 2}")
    assert edge.stack == (f"{edge.at} <module>",)
    assert not edge.is_of_package


def test_a_recording_lock_is_taken_by_cpython_itself(tmp_path):
    code = (
        "import _thread, threading, types\n"
        "lock = library._lock\n"
        "assert isinstance(lock, type(threading.RLock()))\n"
        "for each in (lock.acquire, lock.__enter__, lock.release, lock.__exit__):\n"
        "    assert isinstance(each, (types.BuiltinMethodType, types.MethodWrapperType)), each\n"
        "with lock as taken: assert taken is True and lock._is_owned()\n"
        "assert not lock._is_owned()\n"
        # Locks of others are left as they are.
        "assert type(threading.RLock()) is not type(lock)\n"
        "assert type(threading.Lock()) is type(_thread.allocate_lock()) is not type(lock)"
    )
    assert recorded(tmp_path, code) == set()
