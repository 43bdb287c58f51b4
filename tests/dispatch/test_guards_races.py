"""Guards while other code runs: threads, interpreters, signal handlers, finalizers, forks."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
import sys
import threading
import types

import pytest
from kinds import INTERPRETERS, run_main

from mdispatch import errors
from mdispatch.dispatch.context import guards
from mdispatch.dispatch.context.guards import (
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    PreserveDispatchKeyGuard,
    excluded_keys,
    included_keys,
    set_excluded,
    set_included,
)
from mdispatch.dispatch.context.hermetic import hermetic
from mdispatch.dispatch.context.modes import disable_md_dispatch
from mdispatch.facts.native import calls, guards_py, which
from mdispatch.keys import BACKEND_BITS, DispatchKey, DispatchKeySet
from mdispatch.keys.numbers import FULL
from mdispatch.torch_compat import _DisableTorchDispatch

INCLUDED, EXCLUDED = guards.DEFAULT_INCLUDED, guards.DEFAULT_EXCLUDED

pytestmark = pytest.mark.usefixtures("renewed_lock")

#: Whether the steps of a change are those of Python.
IN_PYTHON = which == "none"


def sets():
    """The bits of both sets of this thread. The sets that calls read have to be the same."""
    tracer = sys.gettrace()
    sys.settrace(None)
    included, excluded = included_keys().raw, excluded_keys().raw
    assert calls.now() == (included, FULL & ~(excluded & ~BACKEND_BITS))
    sys.settrace(tracer)
    return included, excluded


DEFAULTS = INCLUDED.raw, EXCLUDED.raw


def excluding(*keys):
    return INCLUDED.raw, (EXCLUDED | DispatchKeySet(keys)).raw


@pytest.fixture(autouse=True)
def whatever_happens_the_thread_ends_as_it_began():
    assert sets() == DEFAULTS
    yield
    assert sets() == DEFAULTS


class Turns:
    """A second thread. The first one gives it one thing after another to do, and waits each
    time.
    """

    def __enter__(self):
        self._wanted, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self):
        while True:
            self._wanted.acquire()
            if self._function is None:
                return
            try:
                self._result = True, self._function()
            except BaseException as error:
                self._result = False, error
            self._done.release()

    def do(self, function):
        self._function = function
        self._wanted.release()
        self._done.acquire()
        well, result = self._result
        if not well:
            raise result
        return result

    def __exit__(self, *exc):
        self._function = None
        self._wanted.release()
        self._thread.join()


# --- threads --------------------------------------------------------------------------------------


def test_a_new_thread_begins_with_the_defaults_and_threads_do_not_see_each_others_guards():
    with ForceDispatchKeyGuard("Python", "Negative"), Turns() as other:
        assert other.do(sets) == DEFAULTS
        guard = ExcludeDispatchKeyGuard("Python")
        other.do(guard.__enter__)
        assert other.do(sets) == excluding("Python")
        assert sets() == (DispatchKeySet("Python").raw, DispatchKeySet("Negative").raw)
        other.do(guard.__exit__)
        assert other.do(sets) == DEFAULTS


def test_a_guard_that_ends_in_another_thread_ends_where_it_began():
    with Turns() as other:
        other.do(ExcludeDispatchKeyGuard("Negative").__enter__)
        mine, its = ExcludeDispatchKeyGuard("Python"), ExcludeDispatchKeyGuard("Conjugate")
        mine.__enter__()
        other.do(its.__enter__)
        other.do(mine.__exit__)
        assert sets() == DEFAULTS
        assert other.do(sets) == excluding("Conjugate")
        its.__exit__()
        assert other.do(sets) == DEFAULTS


def test_threads_that_share_a_guard_each_end_their_own():
    shared = ExcludeDispatchKeyGuard("Python")
    with Turns() as other:
        with shared:
            other.do(shared.__enter__)
        assert sets() == DEFAULTS
        assert other.do(sets) == excluding("Python")
        with shared:
            other.do(shared.__exit__)
            assert sets() == excluding("Python")
            assert other.do(sets) == DEFAULTS


def test_a_guard_outlives_its_thread():
    guard = ExcludeDispatchKeyGuard("Python")
    with Turns() as other:
        other.do(guard.__enter__)
    with ExcludeDispatchKeyGuard("Negative"):
        guard.__exit__()
        assert sets() == excluding("Negative")


def test_each_of_many_threads_sees_its_own_guards_alone():
    shared = [ExcludeDispatchKeyGuard("Python"), IncludeDispatchKeyGuard("Negative")]
    wrong = []

    def run(seed):
        rng = random.Random(seed)
        opened = []
        for _ in range(400):
            if opened and rng.random() < 0.5:
                opened.pop(rng.randrange(len(opened))).__exit__()
            else:
                own = [ExcludeDispatchKeyGuard("Conjugate"), IncludeDispatchKeyGuard("Batched")]
                guard = rng.choice(shared + own)
                opened.append(guard.__enter__())
            included, excluded = DispatchKeySet(), DispatchKeySet()
            for guard in opened:
                if isinstance(guard, ExcludeDispatchKeyGuard):
                    excluded |= DispatchKeySet("Python" if guard in shared else "Conjugate")
                else:
                    included |= DispatchKeySet("Negative" if guard in shared else "Batched")
            if sets() != ((INCLUDED | included).raw, (EXCLUDED | excluded).raw):
                wrong.append((seed, opened, sets()))
        while opened:
            opened.pop().__exit__()
        if sets() != DEFAULTS:
            wrong.append((seed, sets()))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


def test_guards_that_others_end_meanwhile_leave_the_threads_own_ones_standing():
    """One thread ends guards that another one has begun, while that one goes on beginning and
    ending.
    """
    handed, stop, wrong = [], [], []

    def end_what_is_handed():
        while not stop or handed:
            if handed:
                handed.pop().__exit__()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    ender = threading.Thread(target=end_what_is_handed)
    ender.start()
    try:
        for _ in range(1500):
            handed.append(ExcludeDispatchKeyGuard("Negative").__enter__())
            with ExcludeDispatchKeyGuard("Python"):
                if calls.now()[1] & DispatchKey.Python.raw:
                    wrong.append(excluded_keys())
    finally:
        stop.append(True)
        ender.join()
        sys.setswitchinterval(interval)
    assert wrong == []


# --- interpreters and processes -------------------------------------------------------------------


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_interpreter_on_the_same_thread_has_sets_of_its_own(kind):
    """The interpreter that creates another one keeps its guards; neither sees those of the
    other.
    """
    got = run_main(
        """
        kind, = args
        def seen():
            both = md.context.excluded_keys(), md.context.included_keys()
            return [[key.name for key in keys] for keys in both]
        inner = md.create_interpreter(own_gil=kind == "own-gil")
        read, write = os.pipe()
        text = '''
        import os, sys
        sys.path[:] = %r
        from mdispatch.context import ForceDispatchKeyGuard, excluded_keys, included_keys
        def tell():
            names = [key.name for keys in (excluded_keys(), included_keys()) for key in keys]
            os.write(%d, (" ".join(names) + ";").encode())
        ''' % (sys.path, write)
        defaults = seen()
        with md.context.ForceDispatchKeyGuard("Python", "Negative"):
            inner.exec(textwrap.dedent(text) + "tell()")
            inner.exec("held = ForceDispatchKeyGuard('Conjugate', ()).__enter__(); tell()")
            between = seen()
        after = seen()
        # Not what it excludes now: since 3.13 each exec() is like a thread of its own.
        inner.exec("held.__exit__(); tell()")
        inner.close()
        done(defaults=defaults, between=between, after=after, told=os.read(read, 9999).decode())
        """,
        kind,
    )
    defaults = " ".join(got["defaults"][0] + got["defaults"][1])
    assert got["told"] == f"{defaults};Conjugate;{defaults};"
    assert got["between"] == [["Negative"], ["Python"]]
    assert got["after"] == got["defaults"]


def test_a_fork_inside_a_guard_is_inside_it_whoever_held_its_lock():
    got = run_main(
        """
        import threading
        from mdispatch.facts.native import guards_py
        read, write = os.pipe()
        with md.context.ExcludeDispatchKeyGuard("Python") as guard:
            lock = guards_py._own().lock
            taken, go = threading.Event(), threading.Event()
            def hold():
                with lock:
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
                inside = "Python" in md.context.excluded_keys()
                guard.__exit__()
                os.write(write, repr([inside, "Python" in md.context.excluded_keys()]).encode())
                os._exit(0)
            go.set()
            holder.join()
            status = os.waitpid(child, 0)[1]
        done(status=status, child=os.read(read, 99).decode() if status == 0 else "")
        """
    )
    assert (got["status"], got["child"]) == (0, "[True, False]")


# --- in the middle of a change --------------------------------------------------------------------


class AtStep:
    """Runs something at the n-th bytecode of guards.py and its twin of C that is executed, as a
    signal handler or a finalizer may. C takes its steps in one.
    """

    FILES = (guards.__file__, guards_py.__file__)

    def __init__(self, number, action):
        self.left, self.action = number, action

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename not in self.FILES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == -1:
                self.action()
        return self


def at_every_step(action, run):
    """Runs ``run`` once for each of its bytecodes, with ``action`` at that bytecode."""
    for number in itertools.count():
        tracer = AtStep(number, action)
        sys._getframe().f_trace_opcodes = True  # 3.12 reads this when tracing begins
        sys.settrace(tracer)
        try:
            run()
        finally:
            sys.settrace(None)
        if tracer.left >= 0:
            break
    assert number > (30 if IN_PYTHON else 10), "it never happened"


CHANGES = {
    "guard": lambda: ForceDispatchKeyGuard("Conjugate", "Conjugate").__enter__().__exit__(),
    "dropped guard": lambda: ExcludeDispatchKeyGuard("Conjugate").__enter__() and None,
    "setter": lambda: set_excluded("Conjugate", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_handler_may_use_guards_in_the_middle_of_a_change(change):
    def run():
        with PreserveDispatchKeyGuard():
            with ExcludeDispatchKeyGuard("Python"):
                set_included("Negative", True)
                set_included("Negative", False)
                expected = excluding("Python")
                assert sets() in (expected, excluding("Python", "Conjugate"))
            assert sets() in (DEFAULTS, excluding("Conjugate"))
        # Only a setter lasts, and only one that came before or after everything else.
        if sets() != DEFAULTS:
            assert change == "setter"
            set_excluded("Conjugate", False)

    at_every_step(CHANGES[change], run)


def test_a_finalizer_may_end_a_guard_in_the_middle_of_a_change():
    held = []

    def run():
        held.append(ExcludeDispatchKeyGuard("Conjugate").__enter__())
        with ExcludeDispatchKeyGuard("Python"):
            set_excluded("Negative", True)
            if not held:
                assert sets() == excluding("Python", "Negative")
        while held:
            held.pop().__exit__()
        assert sets() == DEFAULTS

    at_every_step(lambda: held and held.pop().__exit__(), run)


def interrupt():
    raise KeyboardInterrupt


def interrupted(number, run):
    """Whether an interrupt came before the end."""
    try:
        sys._getframe().f_trace_opcodes = True
        sys.settrace(AtStep(number, interrupt))
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_an_interrupt_while_a_guard_begins_leaves_it_as_if_it_had_not():
    guard = ForceDispatchKeyGuard("Python", "Negative")
    begun = []
    for number in itertools.count():
        if not interrupted(number, guard.__enter__):
            break
        if sets() != DEFAULTS:
            begun.append(number)
            guard.__exit__()
        assert sets() == DEFAULTS
    assert number > 30 or not IN_PYTHON
    # The last bytecode is the return, at which Python does not look for signals.
    assert begun in ([], [number - 1])
    guard.__exit__()
    assert sets() == DEFAULTS
    with pytest.raises(errors.InvalidArgumentError):
        guard.__exit__()


def test_an_interrupt_at_any_time_leaves_no_key_switched():
    """Ctrl-C may come anywhere. Then a guard has ended, or ends when it is collected."""

    def enter(first, second):
        with first, second:
            return

    for number in itertools.count():
        with PreserveDispatchKeyGuard():
            first = ForceDispatchKeyGuard("Python", "Negative")
            second = ExcludeDispatchKeyGuard("Python")
            came = interrupted(number, lambda one=first, two=second: enter(one, two))
            del first, second
            assert sets() == DEFAULTS
            came |= interrupted(number, lambda: set_excluded("Python", True))
            assert sets() in (DEFAULTS, excluding("Python"))
        assert sets() == DEFAULTS
        if not came:
            break
    assert number > (100 if IN_PYTHON else 10)


# --- guards that isolate --------------------------------------------------------------------------

ISOLATING = pytest.mark.parametrize("guard", [hermetic, disable_md_dispatch])


def isolated():
    assert calls.sets() == sets()
    return excluded_keys().has("Python")


@contextlib.contextmanager
def refused():
    before = sets()
    with pytest.raises(errors.ModeStackError, match="is open in another thread, and not in this"):
        yield
    assert sets() == before


@ISOLATING
def test_a_guard_that_isolates_is_ended_by_the_thread_that_entered_it(guard):
    shared = guard()
    with Turns() as other:
        with shared:
            pass
        other.do(shared.__enter__)
        other.do(shared.__enter__)
        with refused():
            shared.__exit__()
        with shared:
            assert isolated()
        assert not isolated()
        with refused():
            shared.__exit__(None, None, None)
        assert other.do(isolated)
        other.do(shared.__exit__)
        assert other.do(isolated)
        other.do(shared.__exit__)
        assert not other.do(isolated)
        with pytest.raises(errors.InvalidArgumentError, match="was not entered"):
            shared.__exit__()


def test_torchs_guard_that_disables_modes_is_ended_by_its_thread():
    with Turns() as other:
        its = other.do(_DisableTorchDispatch)
        with refused():
            its.__exit__()
        assert other.do(isolated)
        other.do(its.__exit__)
        assert not other.do(isolated)
        mine = _DisableTorchDispatch()
        with refused():
            other.do(mine.__exit__)
        assert isolated()
        mine.__exit__()
        assert not isolated()


def generator(guard):
    with guard:
        yield "within"


@contextlib.contextmanager
def manager(guard):
    with guard:
        yield "within"


def of_a_manager(guard):
    with manager(guard) as word:
        yield word


async def asynchronous(guard):
    with guard:
        yield "within"


@types.coroutine
def pause():
    yield "within"


async def coroutine(guard):
    with guard:
        await pause()


def begun(kind, guard):
    """Begins a generator or a coroutine of the kind here; returns what has it go on."""
    running = kind(guard)
    if kind is asynchronous:
        with pytest.raises(StopIteration):
            running.__anext__().send(None)

        def go_on():
            with pytest.raises(StopAsyncIteration):
                running.__anext__().send(None)

        return go_on

    def go_on():
        with pytest.raises(StopIteration):
            running.send(None)

    assert running.send(None) == "within"
    return go_on


RESUMED = pytest.mark.parametrize("kind", [generator, of_a_manager, asynchronous, coroutine])


@ISOLATING
@RESUMED
def test_a_generator_ends_its_guard_wherever_it_goes_on(guard, kind):
    shared = guard()
    with Turns() as other:
        go_on = begun(kind, shared)
        other.do(shared.__enter__)
        with shared:
            assert isolated()
            other.do(go_on)  # ends what it has entered, and nobody else's
            assert other.do(isolated)
            assert isolated()
        assert not isolated()
        go_on = other.do(lambda: begun(kind, shared))
        go_on()
        assert other.do(isolated)
        other.do(shared.__exit__)
        assert not other.do(isolated)
        assert not shared.is_open


@ISOLATING
def test_a_guard_that_is_dropped_ends_without_a_word(guard, capfd):
    opened = guard()
    opened.__enter__()
    assert isolated()
    del opened
    gc.collect()
    assert not isolated()
    assert capfd.readouterr().err == ""


@ISOLATING
def test_a_generator_that_is_collected_elsewhere_has_ended_its_guard(guard, monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with Turns() as other:
        held = [generator(guard())]
        next(held[0])
        assert isolated()
        other.do(held.clear)
        assert not isolated()
    assert ignored == []


@ISOLATING
def test_what_goes_on_elsewhere_otherwise_is_refused_and_the_guard_ends_with_its_owner(guard):
    with Turns() as other:
        stack = contextlib.ExitStack()
        stack.enter_context(guard())

        def close():
            with refused():
                stack.close()

        other.do(close)
        gc.collect()  # the error's traceback had the guard
        assert not isolated()
