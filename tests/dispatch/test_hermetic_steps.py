"""Signal handlers, finalizers and forks in the middle of sending, closing and forgetting."""

from __future__ import annotations

import gc
import itertools
import pickle
import sys
import weakref

import pytest
from kinds import run_main

from mdispatch import errors
from mdispatch.dispatch.context import guards, keeping
from mdispatch.dispatch.context.hermetic import SafeObject, hermetic, is_hermetic
from mdispatch.facts.native import guards_py, which

HERMETIC = sys.modules[SafeObject.__module__].__file__

pytestmark = [pytest.mark.either_binding, pytest.mark.usefixtures("renewed_lock")]


class Thing:
    pass


class AtStep:
    """Runs something at the n-th bytecode of these modules that is executed, as a signal handler or
    a finalizer may.
    """

    FILES = (keeping.__file__, HERMETIC)

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


def run_with(number, action, function):
    """Whether the action ran before the function ended."""
    tracer = AtStep(number, action)
    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # 3.12 reads this when tracing begins
    sys.settrace(tracer)
    try:
        function()
    finally:
        sys.settrace(before)
    return tracer.left < 0


def opened(sent):
    try:
        return pickle.loads(sent).open()
    except errors.ObjectGoneError:
        return None


@pytest.mark.thorough
@pytest.mark.dear
@pytest.mark.parametrize("action", ["send", "close", "collect", "begin and end"])
@pytest.mark.parametrize("path", ["send", "close", "come home", "guarded"])
def test_at_whatever_step_it_comes_the_tables_are_right_afterwards(path, action):
    before = dict(keeping._kept)
    for number in itertools.count():
        parcel = SafeObject(Thing())
        thing = weakref.ref(parcel.open())
        early = pickle.dumps(parcel)
        sent = []

        def send(parcel=parcel, sent=sent):
            sent.append(pickle.dumps(parcel))

        def guarded(parcel=parcel, sent=sent):
            with hermetic():
                sent.append(pickle.dumps(parcel))
                opened(sent[-1])

        def begin_and_end(parcel=parcel):
            with hermetic():
                pickle.dumps(parcel)

        actions = {
            "send": send,
            "close": parcel.close,
            "collect": gc.collect,
            "begin and end": begin_and_end,
        }
        paths = {
            "send": send,
            "close": parcel.close,
            "come home": lambda early=early: opened(early),
            "guarded": guarded,
        }
        came = run_with(number, actions[action], paths[path])
        assert not is_hermetic()
        assert not keeping._keeping
        closed = "close" in (path, action if came else "")
        assert opened(early) is (None if closed else thing()), number
        if path == "send" and not closed:
            assert opened(sent[0]) is thing()
        parcel.close()
        assert thing() is None, (number, "it is kept somewhere")
        assert [opened(each) for each in sent] == [None] * len(sent)
        assert keeping._kept == before, number
        if not came:
            break
    assert number > 5 or which != "none"


@pytest.mark.thorough
@pytest.mark.dear
def test_at_whatever_step_its_guard_ends_a_pickle_is_kept_by_nobody_who_has_ended():
    for number in itertools.count():
        parcel, guard, sent = SafeObject(Thing()), hermetic().__enter__(), []
        thing = weakref.ref(parcel.open())
        came = run_with(number, guard.__exit__, lambda: sent.append(pickle.dumps(parcel)))  # noqa: B023
        if not came:
            guard.__exit__()
        assert not keeping._keeping, number
        assert keeping._kept.get(parcel._number) in (None, parcel._cell)
        parcel.close()
        assert thing() is None, number
        if not came:
            break
    assert number > 5 or which != "none"
    assert not is_hermetic()


@pytest.mark.thorough
def test_a_fork_inside_a_guard_is_inside_it_whoever_held_the_lock():
    main = """
    import pickle, threading, warnings
    from mdispatch.dispatch.context import keeping
    from mdispatch import errors
    from mdispatch.dispatch.context.hermetic import SafeObject, hermetic, is_hermetic

    taken, go = threading.Event(), threading.Event()
    def hold():
        with keeping._lock:
            taken.set()
            go.wait()
    holder = threading.Thread(target=hold)
    read, write = os.pipe()
    value = object()
    parcel = SafeObject(value)
    guard = hermetic().__enter__()
    early = pickle.dumps(parcel)
    holder.start()
    taken.wait()
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
    child = os.fork()
    if child == 0:
        signal.alarm(int(limit(30)))
        seen = [is_hermetic()]
        sent = pickle.dumps(parcel)
        seen.append(pickle.loads(sent).open() is value)
        guard.__exit__()
        seen.append(is_hermetic())
        for each in (sent, early):
            try:
                pickle.loads(each).open()
            except errors.ForeignObjectError as error:
                seen.append(type(error).__name__)
        os.write(write, repr(seen).encode())
        os._exit(0)
    go.set()
    holder.join()
    status = os.waitpid(child, 0)[1]
    done(status=status, seen=os.read(read, 999).decode() if status == 0 else "",
         still=(is_hermetic(), pickle.loads(early).open() is value))
    """
    values = run_main(main)
    assert values["status"] == 0
    assert values["seen"] == repr([True, True, False, "ObjectGoneError", "ForeignObjectError"])
    assert values["still"] == (True, True)


@pytest.mark.thorough
@pytest.mark.dear
def test_a_begin_that_is_interrupted_leaves_nothing_open():
    class OwnError(Exception):
        pass

    def strike():
        raise OwnError

    # Not in _keeping: an exception just where a with statement has taken a lock leaves it taken,
    # from 3.14 on, and where it is a trace function's.
    files, AtStep.FILES = AtStep.FILES, (HERMETIC, guards.__file__, guards_py.__file__)
    try:
        for number in itertools.count():
            guard = hermetic()
            try:
                came = run_with(number, strike, guard.__enter__)
            except OwnError:
                came = True
                del guard
            else:
                guard.__exit__()
            assert not is_hermetic(), number
            assert not keeping._keeping
            if not came:
                break
    finally:
        AtStep.FILES = files
    assert number > 5 or which != "none"
