"""Where registries belong to one process: other systems, ``MDISPATCH_BINDING=none``,
``Registry.local()``. The promises that both registries keep are in test_registry.py.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from alarms import end_alarms
from alone import program, ran
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.facts import DEF, FALLBACK, IMPL, native
from mdispatch.facts.local import LocalRegistry
from mdispatch.facts.native import system
from mdispatch.facts.registration import kinds

ROOT = Path(__file__).resolve().parents[2]
SECONDS = limit(60)


# --- other systems --------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["darwin", "win32"])
def test_the_package_serves_one_process_without_what_only_linux_has(other):
    assert f"alone: {other}" in ran(ROOT / ".ci" / "alone.py", other, MDISPATCH_BINDING="")


def test_on_linux_it_does_so_when_it_is_asked_to():
    assert "alone: linux" in ran(ROOT / ".ci" / "alone.py")


def test_linux_with_glibc_alone_can_share(monkeypatch):
    assert system.problem() == ""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert "Linux with the GNU C library only, and this is darwin" in system.problem()
    for answer in (OSError(22, "Invalid argument"), ValueError("unrecognized name")):

        def confstr(name: str, answer: Exception = answer) -> str:
            raise answer

        with monkeypatch.context() as patch:
            patch.setattr(os, "confstr", confstr)
            assert "musl" in system.problem()
    monkeypatch.delattr(os, "confstr")
    assert "musl" in system.problem()


@pytest.mark.parametrize(
    ("asked", "why_not", "expected"),
    [("none", "", "none"), ("none", "this is darwin", "none"), ("", "this is darwin", "none")],
)
def test_there_is_no_binding_where_it_is_asked_for_and_on_other_systems(asked, why_not, expected):
    assert native.choose(asked, 0, False, (3, 11), why_not) == expected


@pytest.mark.parametrize("asked", ["cffi", "ext"])
def test_a_binding_that_cannot_be_there_is_refused_with_the_reason(asked):
    with pytest.raises(errors.BindingError, match="this is darwin"):
        native.choose(asked, 0, False, (3, 11), "this is darwin")


def test_a_sub_interpreter_is_refused_when_it_needs_the_default_registry():
    words = program(
        """
        import sys
        code = "import mdispatch as md\\n"
        code += "try:\\n    md.Library('s', 'DEF')\\n"
        code += "except md.errors.NotSharedError as e:\\n    print('refused:', e, flush=True)\\n"
        md.default_registry()
        if sys.version_info >= (3, 13):
            import _interpreters as interpreters
            failed = interpreters.exec(interpreters.create("legacy"), code)
            assert failed is None, failed
        else:
            import _xxsubinterpreters as interpreters
            interpreters.run_string(interpreters.create(isolated=False), code)
        """
    )
    assert "refused: Sub-interpreter 1, which verifies" in words
    assert "MDISPATCH_BINDING=none in the environment" in words


@pytest.mark.parametrize("address", ["shop", "elect:shop", "fd:1:2:3", "local:x"])
def test_an_address_in_the_environment_is_refused(address):
    words = program(
        """
        try:
            md.Library("s", "DEF")
        except md.errors.NotSharedError as error:
            print(error.registry, error)
        """,
        MDISPATCH_REGISTRY=address,
    )
    assert words.startswith(f"{address} MDISPATCH_REGISTRY={address} needs a registry")


@pytest.mark.parametrize(
    "command", [["doctor"], ["top"], ["ls", "--registry", "x"], ["verify", "json"]]
)
def test_commands_that_look_at_others_say_that_they_cannot(command):
    pytest.importorskip("click")
    assert "docs/other-systems.md" in ran("-m", "mdispatch", *command, status=2)


# --- children -------------------------------------------------------------------------------------

REGISTER = """
import os, warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    lib = md.Library("s", "DEF")
    lib.define("f(int x) -> int")
    lib.define("g(int x) -> int")
print(*(f"{w.category.__name__} {w.filename}:{w.lineno} {w.message}" for w in told), sep="\\n")
"""


def test_a_child_is_warned_once_and_registers_for_itself():
    words = program(REGISTER, MDISPATCH_REGISTRY="local:1")
    assert words.count("NotSharedWarning") == 1
    assert "NotSharedWarning <string>:6 process" in words
    assert "the registry of its parent, process 1, is not shared with it" in words
    assert program(REGISTER).strip() == ""  # nobody's child


def test_where_the_warning_is_an_error_nothing_is_registered():
    words = program(
        """
        import warnings
        warnings.simplefilter("error", md.errors.NotSharedWarning)
        try:
            md.Library("s", "DEF")
        except md.errors.NotSharedWarning:
            print(md.default_registry().dispatcher.facts.registrations())
        """,
        MDISPATCH_REGISTRY="local:1",
    )
    assert words == "(0, 0, [])\n"


@pytest.mark.parametrize("binding", ["none", ""])
def test_the_child_of_a_fork_goes_on_with_a_copy(binding):
    words = program(
        """
        import os, sys, threading, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        registry = md.Registry.local()
        backing = registry.dispatcher.facts
        lib = md.Library("s", "DEF", registry=registry)
        lib.define("f(int x) -> int")
        lib.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
        f = registry.ops.s.f
        # One thread waits, another holds the lock: neither comes along.
        threads = [threading.Thread(target=md.wait_for_def, args=("s::g",),
                   kwargs={"timeout": None, "registry": registry})]
        holds, go = threading.Event(), threading.Event()
        def hold():
            with backing._changed:
                holds.set()
                go.wait()
        threads.append(threading.Thread(target=hold))
        for thread in threads:
            thread.start()
            while not (backing._waits if thread is threads[0] else holds.is_set()):
                pass
        pid = os.fork()
        if pid == 0:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                lib.define("h(int x) -> int")
                lib.define("i(int x) -> int")
            assert [w.category for w in told] == [md.errors.NotSharedWarning], told
            assert (f(1), registry.is_main, backing.members()[0][4]) == (2, True, 0)
            lib.close()
            assert registry.operators() == []
            registry.check_invariants()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        go.set()
        assert registry.operators() == ["s::f"], registry.operators()
        lib.define("g(int x) -> int")
        for thread in threads:
            thread.join()
        registry.check_invariants()
        print(status, f(1))
        """,
        MDISPATCH_BINDING=binding,
    )
    assert words == "0 2\n"


# --- waits ----------------------------------------------------------------------------------------


def test_a_process_ends_although_its_threads_wait():
    words = program(
        """
        import threading
        def wait():
            try:
                md.wait_for_def("s::never", timeout=None)
            except md.errors.WaitCancelledError:
                print("cancelled")
        thread = threading.Thread(target=wait)
        thread.start()
        while not md.default_registry().dispatcher.facts.members()[0][4]:
            pass
        """
    )
    assert words == "cancelled\n"


def test_ctrl_c_ends_a_wait_of_the_main_thread():
    words = program(
        """
        import _thread, os, signal, threading
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored by inheritance
        backing = md.default_registry().dispatcher.facts
        def interrupt():
            while not backing.members()[0][4]:
                pass
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            md.wait_for_def("s::never", timeout=None)
        except KeyboardInterrupt:
            print("interrupted", backing.members()[0][4])
        """
    )
    assert words == "interrupted 0\n"


def test_a_wake_that_a_signal_handler_prevented_is_made_good():
    """A change is told after it was made; a handler may raise in between."""
    registry = LocalRegistry()
    registry._changed.notify_all = lambda: None
    found = []
    thread = threading.Thread(
        target=lambda: found.append(registry.await_fact(DEF, 0, "s::f", 1, None))
    )
    thread.start()
    while not registry.members()[0][4]:
        os.sched_yield()
    made = registry.register(DEF, 0, "s::f", "s::f() -> ()", "a.py:1")
    thread.join(SECONDS)
    assert [fact for fact, _ in found] == [made]
    registry.close()


# --- changes --------------------------------------------------------------------------------------


def test_handlers_that_register_in_the_midst_of_a_registration_lose_nothing():
    """Note [Commits] in facts/local.py. The handler runs wherever Python runs handlers, but not
    during an import, where any handler that imports may find half a module.
    """
    registry = LocalRegistry()
    list(kinds())  # imported
    made: list[int] = []
    refused = 0

    def register(kind: int, name: str) -> None:
        nonlocal refused
        try:
            made.append(registry.register(kind, 0, name, "body", "a.py:1").seq)
        except errors.DuplicateRegistrationError:
            refused += 1

    turn = depth = 0

    def handler(*ignored: object) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            signal.setitimer(signal.ITIMER_REAL, 1e-5)  # one handler within another, never a third
        register(IMPL, "s::f")
        register(DEF, f"s::d{turn}")
        register(FALLBACK, "_")
        depth -= 1
        if depth == 0:  # at fixed times, slow ones would pile up
            signal.setitimer(signal.ITIMER_REAL, 1e-4)

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 1e-4)
    try:
        while turn < 400:
            register(IMPL, "s::f")
            register(DEF, f"s::d{turn}")
            turn += 1
    finally:
        end_alarms()
    there = registry.registrations()[2]
    assert sorted(fact.seq for fact in there) == sorted(made)
    assert len(set(made)) == len(made)
    for name in {fact.name for fact in there}:
        numbers = [fact.seq for fact in registry.registrations(name)[2]]
        assert numbers == sorted(numbers)
        if name.startswith("s::d"):
            assert len(numbers) == 1
    assert refused > 0
    assert registry.check() == ""
    registry.close()


def test_a_handler_that_registers_while_the_kinds_are_imported_leaves_all_of_them_known():
    """Its own import ends before the one that it interrupts has begun to run the module."""
    words = program(
        """
        import sys
        from importlib.machinery import PathFinder
        from mdispatch.facts.local import LocalRegistry
        from mdispatch.facts.registration import DEF, IMPL, kinds
        registry = LocalRegistry()

        class Handler:
            @staticmethod
            def find_spec(name, path=None, target=None):
                if name == "mdispatch.facts.kinds":
                    sys.meta_path.remove(Handler)
                    registry.register(DEF, 0, "s::f", "s::f() -> ()", "a.py:1")
                    return PathFinder.find_spec(name, path)

        sys.meta_path.insert(0, Handler)
        registry.register(IMPL, 0, "s::f", "", "a.py:2")
        print(len(registry.registrations()[2]), DEF in [kind.number for kind in kinds()])
        assert Handler not in sys.meta_path
        """
    )
    assert words == "2 True\n"


@pytest.mark.parametrize("text", ["half \udc80", "ä" * 600, ""])
def test_names_are_looked_up_as_they_are_kept(text):
    registry = LocalRegistry()
    try:
        made = registry.register(DEF, 0, text, "", "")
    except errors.InvalidArgumentError:
        assert not 0 < len(text.encode(errors="replace")) <= 1023
    else:
        assert registry.find(DEF, 0, text) == made
        made.name.encode()
    registry.close()


def test_a_wait_that_did_not_sleep_counts_nothing():
    registry = LocalRegistry()
    seq, _ = registry.await_change(0, None)
    now, waited = registry.await_change(seq, 0.0)
    assert (now, waited.sleeps) == (seq, 0)
    assert (waited.seconds, waited.wakes, waited.slices, waited.by_lease) == (0.0, 0, 0, 0)
    registry.close()


# --- beside a shared one --------------------------------------------------------------------------


def test_a_local_registry_is_apart_from_all_others():
    with md.Registry.local() as one, md.Registry.local() as other:
        lib = md.Library("s", "DEF", registry=one)
        lib.define("f(int x) -> int")
        lib.impl("f", lambda x: 2 * x, "CompositeExplicitAutograd")
        assert one.ops.s.f(4) == 8
        assert other.operators() == []
        assert (one.is_main, one.is_worker, one.elects) == (True, False, False)
        one.check_invariants()
    with pytest.raises(errors.RegistryClosedError):
        lib.define("g(int x) -> int")


@pytest.mark.shared
def test_nobody_attaches_to_a_local_registry():
    with md.Registry.local() as registry, pytest.raises(errors.InvalidNameError):
        md.Registry.attach(registry.address)
