"""Observers in several threads, interpreters and forks; and the trace of a process."""

from __future__ import annotations

import collections
import subprocess
import sys
import threading

import pytest
from kinds import INTERPRETERS, run_main
from patience import limit

import mdispatch as md
from mdispatch.dispatch.call_c import turn
from mdispatch.dispatch.context import observers
from mdispatch.dispatch.entry import OperatorEntry


class Array:
    __dispatch_keys__ = "CPU"


CPU = Array()


@pytest.fixture
def f(registry):
    """s::f, which calls itself n times, each call inside the one before."""
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x, int n=0) -> int")
    lib.impl("f", lambda x, n: n and f(x, n - 1), "CPU")
    f = registry.ops.s.f.default
    return f


def in_threads(count, function):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=function, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


# --- threads --------------------------------------------------------------------------------------


def test_the_calls_of_all_threads_are_told_each_with_its_own_depth_and_number(f):
    seen = collections.defaultdict(list)

    def note(call):
        seen[threading.current_thread()].append(call)  # idents are reused

    with md.observe_calls(note):
        in_threads(4, lambda i: [f(CPU, 2) for _ in range(200)])
    assert len(seen) == 4
    numbers = set()
    for calls in seen.values():
        assert [call.depth for call in calls] == [0, 1, 2] * 200
        own = [call.sequence_number for call in calls]
        assert own == sorted(own)
        numbers |= set(own)
    assert len(numbers) == 4 * 600
    assert max(numbers) - min(numbers) == 4 * 600 - 1


def test_while_observers_come_and_go_each_hears_the_end_of_what_it_heard_begin(f):
    heard, results, ended, met = [], set(), [], []

    def call():
        calls = 0
        while calls < 500 or not met:  # a busy machine may start the observers late
            results.add(f(CPU, 1))
            calls += 1
        ended.append(True)

    def come_and_go():
        while len(ended) < 2:
            began, done = [], []
            with md.observe_calls(began.append, done.append):
                f(CPU, 1)
            heard.append((began, done))
            if len(began) > 2:
                met.append(True)

    in_threads(4, lambda i: call() if i % 2 else come_and_go())
    assert results == {0}
    for began, done in heard:
        assert len(began) >= 2
        assert sorted(map(id, began)) == sorted(map(id, done))
    assert any(len({call.depth for call in began}) == 2 for began, _ in heard)
    assert observers.observing.now == ()


@pytest.mark.shared
def test_who_begins_to_look_on_while_a_plan_is_made_misses_no_call(f, monkeypatch):
    """As another thread may do it, after a call has looked for observers and before it makes its
    plan.
    """
    heard, handles = [], []
    real = OperatorEntry.renew

    def renew(entry, generation):
        if not handles:
            handles.append(md.observe_calls(heard.append))
        real(entry, generation)

    monkeypatch.setattr(OperatorEntry, "renew", renew)
    f(CPU)
    del heard[:]  # the observer may have heard of that call itself or not: it was under way
    f(CPU)
    handles.pop().close()
    assert len(heard) == 1


def test_another_thread_may_close_an_observer_in_the_middle_of_a_call(registry):
    inside, closed, seen = threading.Event(), threading.Event(), []
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> int")
    lib.impl("f", lambda x: inside.set() or closed.wait(limit(30)) or 1, "CPU")
    handle = md.observe_calls(lambda call: seen.append("began"), lambda call: seen.append("ended"))
    caller = threading.Thread(target=registry.ops.s.f, args=(CPU,))
    caller.start()
    assert inside.wait(limit(30))
    handle.close()
    closed.set()
    caller.join()
    assert seen == ["began", "ended"]


@pytest.mark.parametrize("in_c", [True, False])
def test_the_failures_of_all_threads_are_counted_together_and_told_once(f, monkeypatch, in_c):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    def mistaken(call):
        raise ValueError("a mistake")

    turn(in_c)
    try:
        for _ in range(5):
            del reported[:]
            barrier = threading.Barrier(4)
            handle = md.observe_calls(mistaken, mistaken)

            def calls(i, barrier=barrier):
                barrier.wait(limit(30))
                for _ in range(100):
                    f(CPU)

            in_threads(4, calls)
            assert observers.observing.now == ()
            words = [each.err_msg.split()[0] for each in reported]
            assert sorted(words) == ["An", "Exception", "Exception"]
            # Those that were under way when it was left out have told of their ends.
            assert 199 <= handle.failures <= 200 + 2 * 4
    finally:
        turn(True)


def test_threads_that_fail_and_threads_that_do_not_leave_no_row_behind(f, monkeypatch):
    """Each failure is counted, though others call the same observer well at the same time."""
    monkeypatch.setattr(sys, "unraisablehook", lambda said: None)
    fails, failed = threading.local(), []

    def mistaken(call):
        if fails.now:
            failed.append(None)
            raise ValueError("a mistake")

    def calls(i):
        for number in range(300):
            fails.now = number % 2 == i % 2
            f(CPU)

    with md.observe_calls(mistaken) as handle:
        in_threads(4, calls)
        fails.now = False
        f(CPU)
        assert handle.failures == len(failed)
        assert not handle.is_failing


def test_a_handler_may_call_operators_while_an_observer_comes(f):
    """Something that a signal handler does in the middle of it, on the same thread."""
    seen = []
    with md.observe_calls(seen.append), observers._lock:
        assert f(CPU) == 0
        md.observe_calls(seen.append).close()
    assert len(seen) == 1


# --- interpreters and processes -------------------------------------------------------------------


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_observers_are_those_of_their_interpreter(kind):
    got = run_main(
        """
        kind, = args
        md.default_registry()
        text = textwrap.dedent(f'''
        import sys
        sys.path[:] = {sys.path!r}
        import mdispatch as md
        lib = md.Library("s", "DEF")
        lib.define("f(int n) -> int")
        lib.impl("f", lambda n: n)
        seen = []
        handle = md.observe_calls(lambda call: seen.append(call.arguments[0]), with_arguments=True)
        md.ops.s.f(NUMBER)
        ''')
        scope = {"__name__": "ops"}
        exec(text.replace("NUMBER", "1"), scope)
        inner = md.create_interpreter(own_gil=kind == "own-gil")
        inner.exec(text.replace("NUMBER", "2"))
        between = list(scope["seen"])
        md.ops.s.f(3)
        inner.exec("assert seen == [2], seen")
        inner.close()
        done(between=between, seen=scope["seen"])
        """,
        kind,
    )
    assert (got["between"], got["seen"]) == ([1], [1, 3])


def test_a_forked_child_observes_whoever_held_the_lock():
    got = run_main(
        """
        import threading
        from mdispatch.dispatch.context import observers
        lib = md.Library("s", "DEF")
        lib.define("f(int n) -> int")
        lib.impl("f", lambda n: n)
        seen = []
        md.observe_calls(seen.append)
        md.ops.s.f(1)
        taken, go = threading.Event(), threading.Event()
        def hold():
            with observers._lock:
                taken.set()
                go.wait()
        holder = threading.Thread(target=hold)
        holder.start()
        taken.wait()
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        child = os.fork()
        if child == 0:
            signal.alarm(int(limit(30)))
            md.ops.s.f(2)
            md.observe_calls(seen.append)
            md.ops.s.f(3)
            os._exit(len(seen))
        go.set()
        holder.join()
        status = os.waitpid(child, 0)[1]
        done(status=os.waitstatus_to_exitcode(status), here=len(seen))
        """
    )
    assert (got["status"], got["here"]) == (4, 1)


# --- the trace ------------------------------------------------------------------------------------

TRACED = """
import mdispatch as md, sys
class Array:
    __dispatch_keys__ = ("CPU", "AutogradCPU")
with md.Registry.create() as registry:
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> int")
    def cpu(x):
        return 1
    def graded(keys, x):
        return f.redispatch(keys.remove("AutogradCPU"), x)
    cpu.__module__ = graded.__module__ = "ops"
    lib.impl("f", cpu, "CPU")
    lib.impl("f", graded, "AutogradCPU", with_keyset=True)
    f = registry.ops.s.f.default
    assert f(Array()) == 1
    assert f.call_for_dispatch_key("CPU", Array()) == 1
    try:
        f.redispatch(md.DispatchKeySet("Meta"), Array())
    except md.errors.MissingKernelError:
        pass
    lib.impl("f", cpu, "CPU")
    sys.stderr = None  # nobody to show it to
    assert f(Array()) == 1
    print("done")
"""


def trace(value):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", TRACED],
        env={"PATH": "", **({} if value is None else {"MDISPATCH_SHOW_DISPATCH_TRACE": value})},
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    return ran.stderr.splitlines()


def test_asked_by_the_environment_a_process_shows_every_dispatch_indented_by_its_depth():
    assert trace("1") == [
        "[call] op=[s::f], key=[AutogradCPU], kernel=[ops.graded]",
        " [redispatch] op=[s::f], key=[CPU], kernel=[ops.cpu]",
        "[call_for_dispatch_key] op=[s::f], key=[CPU], kernel=[ops.cpu]",
        "[redispatch] op=[s::f], key=[Meta], kernel=[(none here)]",
    ]


@pytest.mark.parametrize("value", [None, "", "0"])
def test_not_asked_it_shows_nothing(value):
    assert trace(value) == []
