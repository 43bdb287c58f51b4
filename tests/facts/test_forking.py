"""Forks while other threads import a part of the package (most parts load when they are needed),
hold one of its locks, or were handed the lock of an object by CPython.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from kinds import run_main

from mdispatch.facts import WORKER

pytestmark = [pytest.mark.either_binding, pytest.mark.shared]

# A thread is stopped in the middle of importing one of our modules while the process forks.
FORK_IN_AN_IMPORT = """
import sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
module, = args
registry = md.default_registry()
assert f"mdispatch.{module}" not in sys.modules
inside, forking = threading.Event(), threading.Event()

def stand_still(frame, event, arg):
    if frame.f_code.co_filename.endswith("/mdispatch/" + module.replace(".", "/") + ".py"):
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
end = time.monotonic() + limit(20)
while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
    if time.monotonic() > end:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.001)
thread.join()
done(status=os.waitstatus_to_exitcode(ended[1]))
"""


@pytest.mark.waits
@pytest.mark.parametrize(
    "module",
    ["dispatch.explain", "registry.differences", "registry.waiting", "authoring.autograd.engines"],
)
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
    """Everything but the commands and the modules that need optional packages. The binding that
    serves only in other interpreters is not loaded.
    """
    got = run_main(
        """
        import sys, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from mdispatch.facts import native
        md.default_registry()
        bindings = {"mdispatch.facts.native.cffi_binding"} & set(sys.modules)
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
        assert bindings == {"mdispatch.facts.native.cffi_binding"} & set(sys.modules)
        done(others=sorted(loaded & {"asyncio", "click", "rich", "torch"}),
             missing=sorted(set(args[0]) - here))
        """,
        [
            "dispatch.explain",
            "dispatch.entry",
            "registry.differences",
            "registry.fake_kernels",
            "registry.library",
            "schema",
        ],
    )
    assert (got["others"], got["missing"]) == ([], []), got["stderr"]


# A thread stands still in front of a line, mostly with a lock that it has taken, while the process
# forks. The child then does the same and more; it would wait for ever if the lock stayed taken.
FORK_AT_A_LINE = """
import linecache, sys, threading, traceback, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
file, line, before, there, in_child = args
scope = {"md": md, "os": os}
exec(before, scope)
inside, forked = threading.Event(), threading.Event()

def stand_still(frame, event, arg):
    name = frame.f_code.co_filename
    if not name.endswith("/mdispatch/" + file):
        return None
    if event == "line" and linecache.getline(name, frame.f_lineno).strip() == line:
        sys.settrace(None)
        inside.set()
        forked.wait()
        return None
    return stand_still

def run():
    sys.settrace(stand_still)
    exec(there, scope)

thread = threading.Thread(target=run)
thread.start()
assert inside.wait(limit(20)), "no thread came by"
pid = os.fork()
if pid == 0:
    signal.alarm(int(limit(20)))
    try:
        exec(in_child, scope)
        os._exit(7)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
status = os.waitpid(pid, 0)[1]
forked.set()
thread.join()
done(status=os.waitstatus_to_exitcode(status))
"""

OPERATOR = """
lib = md.Library("shop", "DEF")
lib.define("f(int x) -> int")
lib.impl("f", abs, "CompositeImplicitAutograd")
md.ops.shop.f(-1)
"""

JOINED = """
registry = md.default_registry()
assert md.default_registry() is registry and registry.is_worker
facts = registry.dispatcher.facts
assert os.getpid() in [member[1] for member in facts.members()]
registry.check_invariants()
"""

RENAME = "md.rename_privateuse_backend('PrivateUse1', 'npu')"
RENAMED = f"""
from mdispatch.keys.devices import device_key
from mdispatch.keys.numbers import parse_key
{RENAME}
assert device_key("npu:1") is parse_key("PrivateUse1")
assert parse_key("AutogradNPU") is parse_key("AutogradPrivateUse1")
"""

ENGINE = """
class Engine:
    def needs_grad(self, value): return False
    def apply(self, call): raise NotImplementedError
"""
WITH_ENGINE = "with md.register_autograd_engine(Engine()): pass"

CUSTOM_OP = """
@md.custom_op("shop::g", mutates_args=(), device_types="cpu")
def g(x: md.Tensor) -> int:
    return 1
"""
SWITCH = "with g.set_kernel_enabled('cpu', False): pass"

GUARD = """
from mdispatch.context import excluded_keys
guard = md.context.ExcludeDispatchKeyGuard("CPU")
guard.__enter__()
"""
GUARD_ENDED = """
assert "CPU" not in excluded_keys()
with md.context.ExcludeDispatchKeyGuard("CPU"):
    assert "CPU" in excluded_keys()
guard.__enter__()
"""

OBSERVE = "seen = []; handle = md.observe_calls(before=seen.append)"
OBSERVED = """
assert md.ops.shop.f(-2) == 2 and len(seen) == 1
handle = md.observe_calls(before=print)
handle.close()
"""

RULE = "md.ops.shop.f.default.py_impl(md.DispatchKey.CUDA)(print)"
SAFE = "import pickle\nsafe = pickle.dumps(md.SafeObject([]))"

POOL = "pool = md.InterpreterPool(1)"
SUBMIT = "with pool: assert pool.submit(abs, -1).result() == 1"

#: The file, its line, and what runs: before, in the other thread, in the child.
STANDING = {
    "default registry, not yet opened": (
        "registry/registry.py",
        "opened = Registry(_default_backing())",
        "",
        "md.default_registry()",
        OPERATOR + "assert md.ops.shop.f(-2) == 2 and md.is_main_interpreter()",
    ),
    "default registry, joined": (
        "facts/living.py",
        "_live[id(registry)] = registry",
        "",
        "md.default_registry()",
        JOINED,
    ),
    "default registry, not yet stored": (
        "registry/registry.py",
        "self.dispatcher = Dispatcher(facts_, self)",
        "",
        "md.default_registry()",
        JOINED,
    ),
    "library": (
        "registry/library.py",
        "self._handles = []  # nothing is left",
        OPERATOR,
        "lib.close()",
        "lib.close(); assert lib.closed\n"
        "with md.Library('other', 'FRAGMENT') as other: other.close()",
    ),
    "renamed backend": (
        "keys/devices.py",
        'there, first = _given.get(key, ("", ""))',
        "",
        RENAME,
        RENAMED,
    ),
    "renamed backend, half done": ("keys/devices.py", "_publish()", "", RENAME, RENAMED),
    "engines": (
        "authoring/autograd/engines.py",
        "_engines = (registration, *_engines)",
        ENGINE,
        WITH_ENGINE,
        WITH_ENGINE,
    ),
    "kernels of devices": (
        "authoring/device_kernels.py",
        "self._guards = (*self._guards, (token, key, enabled))",
        CUSTOM_OP,
        SWITCH,
        SWITCH,
    ),
    "guard": ("facts/native/guards_py.py", "self.renew()", GUARD, "guard.__exit__()", GUARD_ENDED),
    "guard of the other thread": (
        "facts/native/guards_py.py",
        "self.renew()",
        "guard = md.context.ExcludeDispatchKeyGuard('CPU')",
        "with guard: pass",
        "guard.__exit__(); assert not guard.is_open",
    ),
    "observers": (
        "dispatch/context/observers.py",
        "observing.when_changed()",
        OPERATOR,
        OBSERVE,
        OBSERVED,
    ),
    "rules": ("dispatch/overrides.py", "rules = getattr(self, what)", OPERATOR, RULE, RULE),
    "safe objects": ("dispatch/context/keeping.py", "guards = open_guards()", "", SAFE, SAFE),
    "pool": (
        "pool/before_314.py",
        'name = f"{self._prefix}_{len(self._threads)}"',
        POOL,
        SUBMIT,
        "pool.shutdown()",
    ),
}


@pytest.mark.parametrize("name", STANDING)
def test_a_child_gets_by_where_another_thread_stood_when_it_was_forked(name, monkeypatch) -> None:
    if STANDING[name][0].endswith("/guards_py.py"):
        monkeypatch.setenv("MDISPATCH_BINDING", "none")  # else guards have no lines in Python
    if name == "pool" and sys.version_info >= (3, 14):
        pytest.skip("CPython's own pool from 3.14 on")
    got = run_main(FORK_AT_A_LINE, *STANDING[name])
    assert got["status"] == 7, got["stderr"]


def test_the_thread_that_forks_goes_on_to_hold_its_locks_in_the_child() -> None:
    got = run_main(
        """
        import threading
        from mdispatch.registry import library
        with library._lock:
            pid = os.fork()
            if pid == 0:
                signal.alarm(int(limit(30)))
        if pid == 0:
            other = threading.Thread(target=lambda: library._lock.acquire())
            other.start()
            other.join()
            os._exit(library._lock.acquire(blocking=False))
        assert library._lock.acquire(blocking=False)
        done(status=os.waitpid(pid, 0)[1])
        """
    )
    assert got["status"] == 0


def test_the_package_registers_one_function_for_the_children_of_forks() -> None:
    """See Note [Locks across a fork] in forking.py."""
    code = (
        "import os, sys; real = os.register_at_fork\n"
        "def register_at_fork(**functions):\n"
        "    print(*{function.__module__ for function in functions.values()})\n"
        "    real(**functions)\n"
        "os.register_at_fork = register_at_fork; sys.path[:] = eval(sys.argv[1])\n"
        "import mdispatch as md\n"
        "for name in md.__all__: getattr(md, name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, repr(sys.path)], capture_output=True, text=True, check=True
    )
    ours = [word for word in done.stdout.split() if word.startswith("mdispatch")]
    assert ours == ["mdispatch.facts.living"]


@pytest.mark.skipif("free-threading" not in sys.version, reason="there objects have locks")
def test_a_child_takes_no_lock_for_taken_that_another_thread_was_handed() -> None:
    """That thread was asleep, and the child does not have it."""
    got = run_main(
        """
        import ctypes
        from mdispatch.keys import names, numbers
        from mdispatch.schema.names import OperatorName
        registry = md.default_registry()
        lib = md.Library("shop", "DEF")
        lib.define("f(int x) -> int")
        lib.impl("f", lambda x: x, "CompositeImplicitAutograd")
        # PyObject: the owner's id, 16 bits of flags, the lock.
        taken = [registry, registry.dispatcher.entries.there]
        taken += [numbers._by_name, names.RESERVED]
        locks = [ctypes.c_uint8.from_address(id(each) + 10) for each in taken]
        for lock in locks:
            lock.value = 1
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(limit(30)))  # it would wait for ever
            name = OperatorName.parse("shop::g")
            registry.dispatcher.entries.there.pop(str(name), None)
            os._exit(registry.ops.shop.f(3) != 3)
        for lock in locks:
            lock.value = 0
        done(status=os.waitpid(pid, 0)[1])
        """
    )
    assert got["status"] == 0


def test_a_child_that_has_joined_acts_as_a_member_of_its_own():
    got = run_main(
        """
        registry = md.Registry.create()
        facts = registry.dispatcher.facts
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(limit(20)))
            facts.await_change(0, 0.0)
            own = [member for member in facts.members() if member[1] == os.getpid()]
            os.write(writing, repr((facts._member, facts.role, len(own))).encode())
            os._exit(0)
        os.close(writing)
        told = eval(os.read(reading, 99))
        assert os.waitpid(pid, 0)[1] == 0
        done(parent=facts._member, child=told)
        """
    )
    member, role, members = got["child"]
    assert member != got["parent"]
    assert (role, members) == (WORKER, 1)
