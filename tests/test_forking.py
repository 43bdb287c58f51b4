"""Forks while other threads import parts of the package, most of which is loaded when needed, or
have been handed the lock of an object.
"""

from __future__ import annotations

import sys

import pytest
from kinds import run_main

# A thread stands still in the midst of importing a module of ours while the process forks.
FORK_IN_AN_IMPORT = """
import sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
module, = args
registry = md.default_registry()
assert f"mdispatch.{module}" not in sys.modules
inside, forking = threading.Event(), threading.Event()

def stand_still(frame, event, arg):
    if frame.f_code.co_filename.endswith(f"mdispatch/{module}.py"):
        sys.settrace(None)
        inside.set()
        # Whoever forks waits for this thread, if all is well; and it cannot wait for that.
        forking.wait(1.0)

def load():
    sys.settrace(stand_still)
    __import__(f"mdispatch.{module}")

thread = threading.Thread(target=load)
thread.start()
inside.wait()
pid = os.fork()
if pid == 0:
    __import__(f"mdispatch.{module}")
    os._exit(7)
forking.set()
end = time.monotonic() + 20
while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
    if time.monotonic() > end:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.001)
thread.join()
done(status=os.waitstatus_to_exitcode(ended[1]))
"""


@pytest.mark.parametrize("module", ["_explain", "_differences", "waiting", "tape"])
def test_a_child_can_import_what_another_thread_was_importing_when_it_was_forked(module) -> None:
    assert run_main(FORK_IN_AN_IMPORT, module)["status"] == 7


def test_a_fork_without_other_threads_loads_nothing() -> None:
    got = run_main(
        """
        import sys
        md.default_registry()
        before = set(sys.modules)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        done(more=sorted(name for name in set(sys.modules) - before if "mdispatch" in name))
        """
    )
    assert got["more"] == []


def test_what_is_loaded_before_a_fork_is_what_calls_load_by_themselves() -> None:
    """Everything but commands, and what needs packages that not everybody has."""
    got = run_main(
        """
        import sys, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        md.default_registry()
        go = threading.Event()
        thread = threading.Thread(target=go.wait)
        thread.start()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        go.set()
        thread.join()
        loaded = {name.partition(".")[0] for name in sys.modules}
        here = {name[10:] for name in sys.modules if name.startswith("mdispatch.")}
        done(others=sorted(loaded & {"asyncio", "rich", "torch", "typer"}),
             missing=sorted(set(args[0]) - here))
        """,
        ["_explain", "_explanation", "_differences", "_entry", "_fakes", "library", "schema"],
    )
    assert (got["others"], got["missing"]) == ([], [])


@pytest.mark.skipif("free-threading" not in sys.version, reason="there objects have locks")
def test_a_child_takes_no_lock_for_taken_that_another_thread_was_handed() -> None:
    """That thread was asleep, and did not come along."""
    got = run_main(
        """
        import ctypes
        from mdispatch import _keys, _schema_names
        registry = md.default_registry()
        lib = md.Library("shop", "DEF")
        lib.define("f(int x) -> int")
        lib.impl("f", lambda x: x, "CompositeImplicitAutograd")
        kernels = registry._entries["shop::f"].kernels
        # PyObject: the owner's id, 16 bits of flags, the lock.
        taken = [registry, registry._entries, kernels, *kernels.values()]
        taken += [_keys._by_name, _schema_names._RESERVED]
        locks = [ctypes.c_uint8.from_address(id(each) + 10) for each in taken]
        for lock in locks:
            lock.value = 1
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)  # it would wait for ever
            name = _schema_names.OperatorName.parse("shop::g")
            registry._entries.pop(str(name), None)
            kernels.pop(_keys.parse_key("CUDA"), None)
            os._exit(registry.ops.shop.f(3) != 3)
        for lock in locks:
            lock.value = 0
        done(status=os.waitpid(pid, 0)[1])
        """
    )
    assert got["status"] == 0
