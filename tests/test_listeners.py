"""Listeners: told of every definition and of its end, in order, and nobody's harm."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from kinds import INTERPRETERS, KINDS, run_main, until

from mdispatch import errors
from mdispatch._listeners import Listeners
from mdispatch._registry import DEF, IMPL, Registration, Waited

SECONDS = 60.0


class Recorder:
    """Notes what it hears. ``then`` is called with each name, to do more."""

    def __init__(self, then=None):
        self.heard = []
        self.facts = []
        self.gone = []
        self.then = then

    def on_operator_registered(self, fact):
        self.note("+", fact)

    def on_operator_deregistered(self, fact):
        self.note("-", fact)

    def on_registry_gone(self, error):
        self.gone.append(error)

    def note(self, sign, fact):
        self.heard.append(f"{sign}{fact.name}")
        self.facts.append(fact)
        if self.then is not None:
            self.then(f"{sign}{fact.name}")


@pytest.fixture
def listeners(facts):
    made = Listeners(facts)
    yield made
    made.close()


@pytest.fixture
def ignored(monkeypatch):
    """What came to sys.unraisablehook."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


@contextmanager
def switching_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def define(listeners, name="s::f"):
    """What a library does in the main interpreter."""
    return listeners.registered(
        lambda: listeners._facts.register(DEF, 0, name, f"{name}() -> ()", "ops.py:1")
    )


def end(listeners, fact):
    return listeners.struck(fact, lambda: listeners._facts.strike(fact))


def start(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def ended(thread):
    thread.join(SECONDS)
    return not thread.is_alive()


# --- what is told ---------------------------------------------------------------------------------


def test_a_listener_hears_of_what_is_defined_before_it_is_added_in_the_order_of_definitions(
    listeners,
):
    made = [define(listeners, f"s::f{i}") for i in (3, 1, 2, 0)]
    assert end(listeners, made[1])
    again = define(listeners, "s::f3") if end(listeners, made[0]) else None
    recorder = Recorder()
    listeners.add(recorder)
    assert recorder.heard == ["+s::f2", "+s::f0", "+s::f3"]
    assert recorder.facts == [made[2], made[3], again]


def test_a_listener_hears_of_each_definition_and_each_end_in_the_order_of_the_commits(listeners):
    recorder = Recorder()
    listeners.add(recorder)
    first, second = define(listeners, "s::f"), define(listeners, "s::g")
    end(listeners, first)
    third = define(listeners, "s::f")
    end(listeners, second)
    assert recorder.heard == ["+s::f", "+s::g", "-s::f", "+s::f", "-s::g"]
    assert recorder.facts == [first, second, first, third, second]
    assert (first.body, first.where) == ("s::f() -> ()", "ops.py:1")


def test_the_operator_is_there_when_its_definition_is_told_and_gone_when_its_end_is(listeners):
    there = []
    listeners.add(Recorder(lambda name: there.append(listeners._facts.find(DEF, 0, name[1:]))))
    fact = define(listeners)
    end(listeners, fact)
    assert there == [fact, None]


def test_a_refused_definition_and_an_end_that_is_none_tell_nothing(listeners):
    fact = define(listeners)
    recorder = Recorder()
    listeners.add(recorder)
    with pytest.raises(errors.DuplicateRegistrationError):
        define(listeners)
    assert end(listeners, fact) is True
    assert end(listeners, fact) is False
    listeners._facts.close()
    with pytest.raises(errors.RegistryClosedError):
        define(listeners)
    assert recorder.heard == ["+s::f", "-s::f"]


def test_every_listener_hears_everything(listeners):
    recorders = [Recorder() for _ in range(3)]
    for i, recorder in enumerate(recorders):
        define(listeners, f"s::f{i}")
        listeners.add(recorder)
    expected = ["+s::f0", "+s::f1", "+s::f2"]
    assert [recorder.heard for recorder in recorders] == [expected] * 3


def test_one_method_is_enough(listeners):
    heard = []
    listeners.add(SimpleNamespace(on_operator_registered=lambda f: heard.append("+" + f.name)))
    listeners.add(SimpleNamespace(on_operator_deregistered=lambda f: heard.append("-" + f.name)))
    end(listeners, define(listeners))
    assert heard == ["+s::f", "-s::f"]


@pytest.mark.parametrize(
    "listener",
    [
        None,
        object(),
        len,
        SimpleNamespace(on_registry_gone=print),
        SimpleNamespace(on_operator_registered=3),
        SimpleNamespace(on_operator_registered=print, on_operator_deregistered="no"),
        SimpleNamespace(on_operator_registered=print, on_registry_gone=()),
    ],
    ids=["None", "object", "function", "gone-only", "uncallable", "other", "gone"],
)
@pytest.mark.parametrize("everywhere", [False, True])
def test_what_cannot_be_told_is_refused_and_changes_nothing(listeners, listener, everywhere):
    threads = threading.active_count()
    with pytest.raises(errors.InvalidArgumentError, match="listener"):
        listeners.add(listener, everywhere)
    assert listeners._handles == listeners._watched == ()
    assert threading.active_count() == threads


# --- in a worker ----------------------------------------------------------------------------------


def verified(listeners, fact):
    """What a library does in a worker: the end is the function that it returns."""
    listeners.registered(lambda: fact)
    return lambda: listeners.struck(fact, lambda: True)


def test_what_several_libraries_verify_is_told_once_and_ends_with_the_last_of_them(listeners):
    fact = define(Listeners(listeners._facts))
    recorder = Recorder()
    listeners.add(recorder)
    assert recorder.heard == []  # it is there, but was not verified here
    ends = [verified(listeners, fact) for _ in range(3)]
    later = Recorder()
    listeners.add(later)
    ends[1]()
    ends[0]()
    assert recorder.heard == later.heard == ["+s::f"]
    ends[2]()
    assert recorder.heard == later.heard == ["+s::f", "-s::f"]
    verified(listeners, fact)()
    assert recorder.heard == ["+s::f", "-s::f"] * 2


def test_a_definition_that_takes_anothers_place_ends_it(listeners):
    main = Listeners(listeners._facts)
    recorder = Recorder()
    listeners.add(recorder)
    first = define(main)
    ends = [verified(listeners, first), verified(listeners, first)]
    end(main, first)
    second = define(main)
    ends.append(verified(listeners, second))
    assert recorder.facts == [first, first, second]
    assert recorder.heard == ["+s::f", "-s::f", "+s::f"]
    ends[0]()
    ends[1]()
    assert recorder.heard == ["+s::f", "-s::f", "+s::f"]
    ends[2]()
    assert recorder.heard == ["+s::f", "-s::f", "+s::f", "-s::f"]


# --- closed ---------------------------------------------------------------------------------------


def test_a_closed_handle_hears_nothing_more_and_can_be_closed_again(listeners):
    recorder, other = Recorder(), Recorder()
    handle = listeners.add(recorder)
    listeners.add(other)
    assert (handle.closed, repr(handle)) == (False, "<mdispatch.ListenerHandle listening>")
    define(listeners, "s::f")
    handle.close()
    handle.close()
    assert (handle.closed, repr(handle)) == (True, "<mdispatch.ListenerHandle closed>")
    define(listeners, "s::g")
    assert recorder.heard == ["+s::f"]
    assert other.heard == ["+s::f", "+s::g"]


@pytest.mark.parametrize("everywhere", [False, True])
def test_the_end_of_a_with_block_closes_the_handle(listeners, everywhere):
    def fail():
        with listeners.add(Recorder(), everywhere) as handle:
            handles.append(handle)
            raise KeyError

    handles = []
    with listeners.add(Recorder(), everywhere) as handle:
        assert not handle.closed
    with pytest.raises(KeyError):
        fail()
    assert handle.closed
    assert handles[0].closed


def test_a_handle_closed_while_a_call_is_under_way_hears_nothing_after_that_call(listeners):
    entered, go = threading.Event(), threading.Event()

    def hold(_):
        entered.set()
        go.wait(SECONDS)

    recorder = Recorder(hold)
    handle = listeners.add(recorder)
    definer = start(define, listeners, "s::f")
    assert entered.wait(SECONDS)
    handle.close()  # does not wait for the listener
    define(listeners, "s::g")
    go.set()
    assert ended(definer)
    assert recorder.heard == ["+s::f"]


def test_closing_all_closes_every_handle_and_none_can_be_added(listeners):
    handles = [listeners.add(Recorder(), everywhere) for everywhere in (False, True, False)]
    listeners.close()
    listeners.close()
    assert [handle.closed for handle in handles] == [True] * 3
    for everywhere in (False, True):
        with pytest.raises(errors.RegistryClosedError):
            listeners.add(Recorder(), everywhere)


# --- listeners that raise -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError, KeyboardInterrupt, SystemExit, errors.MdispatchError]
)
@pytest.mark.parametrize("everywhere", [False, True])
def test_a_listener_that_raises_harms_nobody(listeners, ignored, error, everywhere):
    def fail(name):
        raise error(name)

    first, second = Recorder(fail), Recorder()
    fact = define(listeners, "s::f")
    listeners.add(first, everywhere)
    listeners.add(second)
    define(listeners, "s::g")
    end(listeners, fact)
    until(lambda: len(first.heard) == 3 == len(ignored))
    assert sorted(first.heard) == ["+s::f", "+s::g", "-s::f"]
    assert second.heard == ["+s::f", "+s::g", "-s::f"]
    for told, name in zip(ignored, first.heard, strict=True):
        assert (told.exc_type, told.exc_value.args) == (error, (name,))
        assert told.exc_traceback is not None
        assert told.err_msg == (
            f"Exception ignored in a registration listener that was told of {name[1:]}"
        )
        assert told.object.__self__ is first


def test_without_a_hook_of_ones_own_the_error_is_printed(listeners, monkeypatch, capsys):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    listeners.add(SimpleNamespace(on_operator_registered=lambda fact: 1 // 0))
    define(listeners)
    printed = capsys.readouterr().err
    assert (
        "Exception ignored in a registration listener that was told of s::f: <function" in printed
    )
    assert printed.rstrip().endswith("division by zero") or "modulo by zero" in printed
    assert "Traceback" in printed


def test_neither_a_hook_that_raises_nor_a_lost_standard_error_harms_anybody(
    listeners, monkeypatch, capsys
):
    def hook(told):
        raise KeyError("hook")

    listeners.add(SimpleNamespace(on_operator_registered=lambda fact: 1 // 0))
    monkeypatch.setattr(sys, "unraisablehook", hook)
    define(listeners, "s::f")
    assert "KeyError: 'hook'" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stderr", None)
    define(listeners, "s::g")
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    define(listeners, "s::h")


# --- listeners that call back ---------------------------------------------------------------------


def test_what_a_listener_causes_is_told_after_what_it_is_being_told(listeners):
    depth, deepest = [], []

    def cause(name):
        depth.append(name)
        deepest.append(len(depth))
        if name == "+s::f":
            made.append(define(listeners, "s::g"))
            made.append(define(listeners, "s::h"))
            end(listeners, made[0])
        elif name == "+s::g":
            define(listeners, "s::i")
        depth.pop()

    made = []
    before, causing, after = Recorder(), Recorder(cause), Recorder()
    for each in (before, causing, after):
        listeners.add(each)
    define(listeners, "s::f")
    expected = ["+s::f", "+s::g", "+s::h", "-s::g", "+s::i"]
    assert before.heard == causing.heard == after.heard == expected
    assert max(deepest) == 1


def test_what_a_listener_causes_while_it_is_being_added_is_told_after_what_was_there(listeners):
    def cause(name):
        if name == "+s::f":
            define(listeners, "s::h")

    define(listeners, "s::f")
    define(listeners, "s::g")
    other, recorder = Recorder(), Recorder(cause)
    listeners.add(other)
    listeners.add(recorder)
    assert recorder.heard == other.heard == ["+s::f", "+s::g", "+s::h"]


def test_a_listener_may_add_and_close_listeners(listeners):
    late, added = Recorder(), []

    def change(name):
        if name == "+s::g":
            assert late.heard == []
            added.append(listeners.add(late))
            assert late.heard == ["+s::f", "+s::g"]
            victim_handle.close()
        elif name == "+s::h":
            own_handle.close()
            added[0].close()
            added[0].close()

    victim = Recorder()
    define(listeners, "s::f")
    own = Recorder(change)
    own_handle = listeners.add(own)
    victim_handle = listeners.add(victim)
    for name in ("s::g", "s::h", "s::i"):
        define(listeners, name)
    assert own.heard == ["+s::f", "+s::g", "+s::h"]
    assert victim.heard == ["+s::f"]
    assert late.heard == ["+s::f", "+s::g"]


def test_no_listener_is_called_under_a_lock(listeners):
    locked = []

    def look(_):
        locked.append(listeners.is_locked)
        # Another thread has its way meanwhile.
        assert ended(start(lambda: listeners.add(Recorder()).close()))

    listeners.add(Recorder(look))
    end(listeners, define(listeners))
    assert locked == [False, False]


def test_code_that_runs_in_the_middle_of_a_commit_may_define_and_end(listeners):
    """As finalizers and signal handlers do."""
    locked = []

    def commit():
        inner = define(listeners, "s::inner")
        assert locked == []  # not told yet
        end(listeners, inner)
        handle = listeners.add(late)
        handle.close()
        return listeners._facts.register(DEF, 0, "s::outer", "", "")

    late = Recorder()
    recorder = Recorder(lambda name: locked.append((name, listeners.is_locked)))
    listeners.add(recorder)
    listeners.registered(commit)
    assert locked == [("+s::inner", False), ("-s::inner", False), ("+s::outer", False)]


# --- threads --------------------------------------------------------------------------------------


def test_a_thread_that_finds_another_one_telling_leaves_it_to_that_one(listeners):
    entered, go = threading.Event(), threading.Event()

    def hold(name):
        told_by.append(threading.current_thread())
        if name == "+s::f":
            entered.set()
            go.wait(SECONDS)

    told_by = []
    recorder = Recorder(hold)
    listeners.add(recorder)
    definer = start(define, listeners, "s::f")
    assert entered.wait(SECONDS)
    fact = define(listeners, "s::g")  # returns although the listener is held
    end(listeners, fact)
    assert recorder.heard == ["+s::f"]
    late = Recorder()
    listeners.add(late)  # returns, too, and has heard what is there
    assert late.heard == ["+s::f"]
    define(listeners, "s::h")
    go.set()
    assert ended(definer)
    assert recorder.heard == ["+s::f", "+s::g", "-s::g", "+s::h"]
    assert late.heard == ["+s::f", "+s::h"]
    assert set(told_by) == {definer}


def test_what_comes_while_a_listener_is_being_added_is_told_after_what_was_there(listeners):
    entered, go = threading.Event(), threading.Event()

    def hold(name):
        if name == "+s::f":
            entered.set()
            go.wait(SECONDS)

    define(listeners, "s::f")
    define(listeners, "s::g")
    recorder = Recorder(hold)
    adder = start(listeners.add, recorder)
    assert entered.wait(SECONDS)
    end(listeners, define(listeners, "s::h"))
    assert recorder.heard == ["+s::f"]
    go.set()
    assert ended(adder)
    assert recorder.heard == ["+s::f", "+s::g", "+s::h", "-s::h"]


def check_order(heard, facts):
    """Definitions by their numbers; of a name, definition and end take turns."""
    begun = [fact.seq for sign, fact in zip(heard, facts, strict=True) if sign[0] == "+"]
    assert begun == sorted(set(begun))
    live = {}
    for sign, fact in zip(heard, facts, strict=True):
        if sign[0] == "+":
            assert fact.name not in live
            live[fact.name] = fact
        else:
            assert live.pop(fact.name) == fact
    return live


def test_the_order_is_kept_whatever_threads_do(listeners):
    start_line = threading.Barrier(5)
    problems = []

    def work(number):
        try:
            start_line.wait(SECONDS)
            mine = []
            for turn in range(120):
                mine.append(define(listeners, f"s::f{number}_{turn % 7}"))
                if len(mine) > 3:
                    assert end(listeners, mine.pop(turn % 3))
        except BaseException as error:
            problems.append(error)

    first, late = Recorder(), []
    listeners.add(first)
    threads = [start(work, number) for number in range(4)]
    with switching_often():
        start_line.wait(SECONDS)
        while any(thread.is_alive() for thread in threads):
            late.append(Recorder())
            handle = listeners.add(late[-1])
            if len(late) % 3 == 0:
                handle.close()
        assert all(ended(thread) for thread in threads)
    assert problems == []
    define(listeners, "s::last")
    live = {fact.name: fact for fact in listeners._facts.registrations()[2]}
    assert check_order(first.heard, first.facts) == live
    assert len(first.heard) == 4 * (120 + 117) + 1
    for i, recorder in enumerate(late, 1):
        found = check_order(recorder.heard, recorder.facts)
        if i % 3:
            assert found == live


def test_with_threads_that_all_call_back_everything_is_told(listeners):
    """Every definition of a name s::a... is answered by one of a name s::b..."""

    def answer(name):
        if name.startswith("+s::a"):
            define(listeners, name.replace("+s::a", "s::b"))

    recorder = Recorder(answer)
    listeners.add(recorder)

    def work(number):
        for turn in range(60):
            define(listeners, f"s::a{number}_{turn}")

    with switching_often():
        threads = [start(work, number) for number in range(4)]
        assert all(ended(thread) for thread in threads)
    assert check_order(recorder.heard, recorder.facts).keys() == {
        f"s::{letter}{number}_{turn}"
        for letter in "ab"
        for number in range(4)
        for turn in range(60)
    }


class QueueSeenEmpty(list):
    """A queue to which another thread adds just after it was found empty."""

    then = None

    def __bool__(self):
        was_empty = len(self) == 0
        if was_empty and self.then is not None:
            then, self.then = self.then, None
            assert ended(start(then))
        return not was_empty


def test_what_another_thread_leaves_to_one_that_is_about_to_stop_telling_is_told(listeners):
    recorder = Recorder()
    listeners.add(recorder)
    listeners._queue = QueueSeenEmpty()

    def set_trap(name):
        if name == "+s::f":
            listeners._queue.then = lambda: define(listeners, "s::g")

    recorder.then = set_trap
    define(listeners, "s::f")
    assert recorder.heard == ["+s::f", "+s::g"]


# --- without listeners ----------------------------------------------------------------------------


def test_without_a_listener_nothing_is_queued_and_no_threads_are_thought_of():
    code = (
        "import sys, mdispatch as md\n"
        "from mdispatch._listeners import Listeners\n"
        "from mdispatch._registry.shared import SharedRegistry\n"
        "facts = SharedRegistry.create(None, 1 << 20)\n"
        "listeners = Listeners(facts)\n"
        "fact = listeners.registered(lambda: facts.register(2, 0, 's::f', '', ''))\n"
        "assert listeners._queue == []\n"
        "assert listeners.struck(fact, lambda: facts.strike(fact))\n"
        "listeners.add(type('L', (), {'on_operator_registered': print})())\n"
        "assert listeners._live == {} and listeners._queue == []\n"
        "assert 'threading' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=SECONDS)


# --- everywhere -----------------------------------------------------------------------------------


def put(listeners, name):
    """A definition that this interpreter's listeners do not hear of."""
    return listeners._facts.register(DEF, 0, name, f"{name}() -> ()", "elsewhere.py:1")


def test_a_listener_for_everywhere_hears_what_nobody_told_here(listeners):
    first, gone = put(listeners, "s::f"), put(listeners, "s::gone")
    listeners._facts.strike(gone)
    second = put(listeners, "s::e")
    recorder = Recorder()
    listeners.add(recorder, everywhere=True)
    assert recorder.facts == [first, second]  # before add returned, in order
    listeners._facts.register(IMPL, 3, "s::kernel", "k", "k.py:1")
    third = put(listeners, "s::g")
    until(lambda: len(recorder.heard) == 3)
    listeners._facts.strike(first)
    until(lambda: len(recorder.heard) == 4)
    assert recorder.heard == ["+s::f", "+s::e", "+s::g", "-s::f"]
    assert recorder.facts == [first, second, third, first]


def test_an_operator_that_was_defined_anew_ends_first(listeners):
    entered, go = threading.Event(), threading.Event()

    def hold(name):
        if name == "+s::h":
            entered.set()
            go.wait(SECONDS)

    first = put(listeners, "s::f")
    recorder = Recorder(hold)
    listeners.add(recorder, everywhere=True)
    put(listeners, "s::h")
    assert entered.wait(SECONDS)  # what follows lies between two looks
    unseen = put(listeners, "s::unseen")
    listeners._facts.strike(first)
    put(listeners, "s::g")
    again = put(listeners, "s::f")
    listeners._facts.strike(unseen)
    go.set()
    until(lambda: len(recorder.heard) == 5)
    assert recorder.heard == ["+s::f", "+s::h", "-s::f", "+s::g", "+s::f"]
    assert (recorder.facts[2], recorder.facts[4]) == (first, again)


def test_definitions_are_told_in_their_order_whatever_happens_during_a_look(listeners):
    recorders = [Recorder() for _ in range(3)]
    problems = []

    def work(number):
        try:
            mine = []
            for turn in range(100):
                mine.append(put(listeners, f"s::f{number}_{turn % 9}"))
                if len(mine) > 3:
                    assert listeners._facts.strike(mine.pop(turn % 3))
        except BaseException as error:
            problems.append(error)

    with switching_often():
        listeners.add(recorders[0], everywhere=True)
        threads = [start(work, number) for number in range(4)]
        for recorder in recorders[1:]:
            listeners.add(recorder, everywhere=True)
        assert all(ended(thread) for thread in threads)
    assert problems == []
    last = put(listeners, "s::last")
    until(lambda: all(last in recorder.facts for recorder in recorders))
    live = {fact.name: fact for fact in listeners._facts.registrations()[2]}
    for recorder in recorders:
        assert check_order(recorder.heard, recorder.facts) == live


class ScriptedFacts:
    """A registry that has at each look what the script says: a sequence (or the error instead of
    one) and the numbers of the definitions that a list taken then has.
    """

    label = "(scripted)"

    def __init__(self, *looks):
        self.looks = list(looks)
        self.there = []

    def await_change(self, seq, timeout, ticket=0):
        now, numbers = self.looks.pop(0)
        self.there = [Registration(0, n, DEF, 0, f"s::f{n}", "", "", 1, 0) for n in numbers]
        if isinstance(now, Exception):
            raise now
        return now, Waited()

    def registrations_since(self, kind, seq):
        return len(self.there), [fact for fact in self.there if fact.seq >= seq]

    def cancel(self, ticket=0):
        pass


def heard_from(*looks):
    recorder = Recorder()
    handle = Listeners(ScriptedFacts(*looks)).add(recorder, everywhere=True)
    assert ended(handle._watch._thread)
    assert handle.closed
    return recorder


def test_a_list_that_was_taken_while_operators_were_defined_does_not_mix_up_the_order():
    gone = errors.RegistryClosedError("closed")
    # The second list has number 9, which was defined after the look began, and not yet number 8.
    recorder = heard_from((5, [3, 4]), (8, [3, 4, 9]), (10, [3, 4, 8, 9]), (gone, [3, 4, 8, 9]))
    assert recorder.heard == ["+s::f3", "+s::f4", "+s::f8", "+s::f9"]
    assert recorder.gone == [gone]


def test_what_a_dead_main_member_did_not_come_to_tell_is_told_before_its_end():
    gone = errors.MainMemberGoneError("dead")
    recorder = heard_from((5, [3, 4]), (gone, [4, 5]))
    assert recorder.heard == ["+s::f3", "+s::f4", "-s::f3", "+s::f5"]
    assert recorder.gone == [gone]


def test_a_definition_whose_end_and_successor_balance_the_count_is_not_mistaken_for_alive():
    gone = errors.RegistryClosedError("closed")
    recorder = heard_from((5, [3, 4]), (8, [4, 6]), (11, [6, 9, 10]), (gone, []))
    expected = ["+s::f3", "+s::f4", "-s::f3", "+s::f6", "-s::f4", "+s::f9", "+s::f10"]
    assert recorder.heard == [*expected, "-s::f6", "-s::f9", "-s::f10"]


def test_a_cancelled_wait_ends_the_listening_and_is_no_end_of_the_registry():
    recorder = heard_from((5, [3]), (errors.WaitCancelledError("shutdown"), [3]))
    assert (recorder.heard, recorder.gone) == (["+s::f3"], [])


def test_closing_the_handle_ends_its_thread(listeners):
    threads = threading.active_count()
    recorder = Recorder()
    handle = listeners.add(recorder, everywhere=True)
    assert threading.active_count() == threads + 1
    handle.close()
    assert threading.active_count() == threads
    put(listeners, "s::f")
    assert recorder.heard == recorder.gone == []


def test_however_early_a_handle_is_closed_its_thread_ends(listeners):
    threads = threading.active_count()
    with switching_often():
        for _ in range(100):
            handle = listeners.add(Recorder(), everywhere=True)
            put(listeners, f"s::f{_}")
            handle.close()
            # At once, or after the call of the listener that is under way.
            until(lambda: threading.active_count() == threads)


def test_other_waits_of_the_interpreter_go_on_when_a_handle_is_closed(listeners):
    found = []
    wait = listeners._facts.await_fact
    waiting = start(lambda: found.append(wait(DEF, 0, "s::f", 1, SECONDS, 1)[0]))
    handles = [listeners.add(Recorder(), everywhere=True) for _ in range(3)]
    for handle in handles:
        handle.close()
    assert waiting.is_alive()
    assert found == []
    fact = put(listeners, "s::f")
    assert ended(waiting)
    assert found == [fact]


def test_a_listener_for_everywhere_may_close_itself(listeners):
    recorder = Recorder(lambda name: handle.close())
    handle = listeners.add(recorder, everywhere=True)
    put(listeners, "s::f")
    until(lambda: handle.closed)
    assert ended(handle._watch._thread)
    assert recorder.heard == ["+s::f"]


def test_a_listener_for_everywhere_closed_at_its_first_word_has_no_thread(listeners):
    put(listeners, "s::f")
    put(listeners, "s::g")
    threads = threading.active_count()
    recorder = Recorder(lambda name: listeners.close())
    handle = listeners.add(recorder, everywhere=True)
    assert handle.closed
    assert recorder.heard == ["+s::f"]
    assert threading.active_count() == threads


def test_closing_a_handle_does_not_wait_for_a_call_that_is_under_way(listeners):
    entered, go = threading.Event(), threading.Event()

    def hold(_):
        entered.set()
        go.wait(SECONDS)

    recorder = Recorder(hold)
    handle = listeners.add(recorder, everywhere=True)
    put(listeners, "s::f")
    assert entered.wait(SECONDS)
    put(listeners, "s::g")
    handle.close()
    go.set()
    assert ended(handle._watch._thread)
    assert recorder.heard == ["+s::f"]


def test_when_the_registry_is_closed_the_listener_hears_it_last(listeners):
    recorder = Recorder()
    handle = listeners.add(recorder, everywhere=True)
    listeners._facts.close()
    until(lambda: recorder.gone)
    assert ended(handle._watch._thread)
    assert handle.closed
    assert [type(error) for error in recorder.gone] == [errors.RegistryClosedError]


def test_a_listener_that_raises_at_the_end_of_the_registry_harms_nobody(listeners, ignored):
    def fail(error):
        raise ValueError

    listener = SimpleNamespace(on_operator_registered=print, on_registry_gone=fail)
    handle = listeners.add(listener, everywhere=True)
    listeners._facts.close()
    until(lambda: ignored)
    assert ended(handle._watch._thread)
    assert ignored[0].err_msg.endswith("that was told of the registry's end")


def test_who_closes_the_listeners_first_hears_of_no_end(listeners):
    recorder = Recorder()
    listeners.add(recorder, everywhere=True)
    listeners.close()
    listeners._facts.close()
    assert recorder.gone == []


def test_a_listener_for_everywhere_in_a_closed_registry_is_refused(listeners):
    listeners._facts.close()
    threads = threading.active_count()
    with pytest.raises(errors.RegistryClosedError):
        listeners.add(Recorder(), everywhere=True)
    assert listeners._watched == ()
    assert threading.active_count() == threads


# --- interpreters and processes -------------------------------------------------------------------

HEARING = """
import threading
import mdispatch as md
from mdispatch._listeners import Listeners

class Hearing:
    def __init__(self):
        self.heard, self.gone = [], []
        self.enough, self.ended = threading.Event(), threading.Event()
    def on_operator_registered(self, fact):
        self.note("+" + fact.name)
    def on_operator_deregistered(self, fact):
        self.note("-" + fact.name)
    def note(self, name):
        self.heard.append(name)
        if name == "+a::last":
            self.enough.set()
    def on_registry_gone(self, error):
        import time
        self.gone.append((type(error).__name__, getattr(error, "pid", 0), time.monotonic()))
        self.ended.set()

listeners = Listeners(md.default_registry()._facts)
hearing = Hearing()
handle = listeners.add(hearing, everywhere=True)
before = list(hearing.heard)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_workers_of_every_kind_hear_what_the_main_interpreter_defines(kind, tmp_path) -> None:
    text = (
        HEARING + "arrived(1)\nassert hearing.enough.wait(60)\nhandle.close()\n"
        "report(before=before, heard=hearing.heard, gone=hearing.gone)"
    )
    got = run_main(
        """
        kind, text, folder = args
        md.default_registry()
        lib = md.Library("a", "DEF")
        lib.define("f() -> ()")
        workers = start(kind, text, 3, Path(folder))
        until_arrived(workers, 1)
        lib.define("g(Tensor x) -> Tensor")
        lib.impl("g", len, "CPU")
        lib.define("last() -> ()")
        done(heard=results(workers), check=md.default_registry()._facts.check())
        """,
        kind,
        text,
        str(tmp_path),
    )
    assert got["check"] == ""
    for worker in got["heard"]:
        assert worker["before"] == ["+a::f"]
        assert worker["heard"] == ["+a::f", "+a::g", "+a::last"]
        assert worker["gone"] == []


@pytest.mark.parametrize("how", [signal.SIGKILL, 0], ids=["killed", "left"])
@pytest.mark.parametrize("kind", ["fork", "spawn", "subprocess"])
def test_the_end_of_the_main_process_is_heard_after_all_that_it_defined(
    kind, how, tmp_path
) -> None:
    text = (
        HEARING + "arrived(1)\nassert hearing.ended.wait(60)\nhandle._watch._thread.join()\n"
        "report(heard=hearing.heard, gone=hearing.gone, closed=handle.closed)"
    )
    got = run_main(
        """
        kind, text, folder, how = args
        read, write = os.pipe()
        main_pid = os.fork()
        if main_pid == 0:
            lib = md.Library("a", "DEF")
            lib.define("f() -> ()")
            workers = start(kind, text, 3, Path(folder))
            until_arrived(workers, 1)
            lib.define("last() -> ()")
            os.write(write, b"x")
            if not how:
                md.default_registry().close()
                os._exit(0)
            signal.pause()
        assert os.read(read, 1) == b"x"
        ended = time.monotonic()
        if how:
            os.kill(main_pid, how)
        os.waitpid(main_pid, 0)
        until(lambda: all((Path(folder) / str(i)).exists() for i in range(3)), 30)
        heard = [eval((Path(folder) / str(i)).read_text()) for i in range(3)]
        done(main=main_pid, heard=heard, ended=ended)
        """,
        kind,
        text,
        str(tmp_path),
        int(how),
    )
    for worker in got["heard"]:
        assert worker["heard"] == ["+a::f", "+a::last"]
        assert worker["closed"]
        ((error, pid, at),) = worker["gone"]
        if how:
            assert (error, pid) == ("MainMemberGoneError", got["main"])
            assert at - got["ended"] < 30  # a loaded machine may be slow to run us
        else:
            assert error == "RegistryClosedError"


def test_a_process_exits_at_once_with_a_listener_for_everywhere_open() -> None:
    began = time.monotonic()
    got = run_main(
        HEARING.replace("Hearing()", "Hearing()\nhearing.on_registry_gone = print")
        + "done(end='reached')",
        timeout=30,
    )
    assert got["end"] == "reached"
    assert time.monotonic() - began < 30
    assert [line for line in got["stdout"].splitlines() if not line.startswith("DONE")] == []


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="3.11 ends no interpreter that has another thread"
)
@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_interpreter_ends_at_once_with_a_listener_for_everywhere_open(kind) -> None:
    got = run_main(
        """
        kind, text = args
        from mdispatch import host
        registry = md.default_registry()
        interpreter = host.create_interpreter(own_gil=kind == "own-gil")
        interpreter.exec(text)
        until(lambda: any(m[4] for m in registry._facts.members()))
        interpreter.close()
        done(members=len(registry._facts.members()))
        """,
        kind,
        HEARING,
        timeout=30,
    )
    assert got["members"] == 1


@pytest.mark.parametrize("kind", INTERPRETERS)
def test_an_interpreter_can_be_ended_as_soon_as_its_handles_are_closed(kind) -> None:
    got = run_main(
        """
        kind, text = args
        from mdispatch import host
        registry = md.default_registry()
        for _ in range(5):
            interpreter = host.create_interpreter(own_gil=kind == "own-gil")
            interpreter.exec(text)
            interpreter.close()
        done(members=len(registry._facts.members()))
        """,
        kind,
        HEARING + "listeners.close()",
        timeout=30,
    )
    assert got["members"] == 1


def test_no_listener_for_everywhere_is_added_after_the_shutdown_began() -> None:
    got = run_main(
        """
        import atexit, threading
        from mdispatch._listeners import Listeners
        listeners = Listeners(md.default_registry()._facts)
        listeners.add(Heard := type("L", (), {"on_operator_registered": print})(), everywhere=True)
        def late():
            try:
                listeners.add(Heard, everywhere=True)
            except md.errors.WaitCancelledError:
                print("REFUSED", threading.active_count(), flush=True)
        atexit.register(late)
        done(end="reached")
        """,
        timeout=30,
    )
    assert "REFUSED 1" in got["stdout"]


def test_in_the_child_of_a_fork_all_handles_are_closed_and_new_ones_can_be_added() -> None:
    got = run_main(
        """
        import threading, warnings
        from mdispatch._listeners import Listeners
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
        registry = md.default_registry()
        listeners = Listeners(registry._facts)
        registry._facts.after_fork = listeners.forked
        class Hearing:
            def __init__(self, then=None):
                self.heard, self.then = [], then
            def on_operator_registered(self, fact):
                self.heard.append(fact.name)
                if self.then is not None:
                    self.then(fact.name)
        def define(name, inside=lambda: None):
            def commit():
                inside()
                return registry._facts.register(2, 0, name, "", "")
            return listeners.registered(commit)

        # One thread is in a listener, another one holds the lock, a third watches: none of them
        # comes along.
        told, go = threading.Event(), threading.Event()
        def hold(name):
            told.set()
            go.wait(60)
        here, there = Hearing(hold), Hearing()
        handles = [listeners.add(here), listeners.add(there, everywhere=True)]
        threads = [threading.Thread(target=define, args=("s::f",))]
        threads[0].start()
        told.wait(60)
        locked = threading.Event()
        def inside():
            locked.set()
            go.wait(60)
        threads.append(threading.Thread(target=define, args=("s::g", inside)))
        threads[1].start()
        locked.wait(60)
        until(lambda: there.heard == ["s::f"])

        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            closed = [handle.closed for handle in handles]
            for handle in handles:
                handle.close()
            mine = Hearing()
            with listeners.add(mine), listeners.add(Hearing(), everywhere=True):
                fact = registry._facts.find(2, 0, "s::f")
                listeners.struck(fact, lambda: registry._facts.strike(fact))
                listeners.registered(lambda: fact)
            os.write(write, repr((closed, mine.heard, here.heard, there.heard)).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        go.set()
        for thread in threads:
            thread.join()
        until(lambda: there.heard == ["s::f", "s::g"])
        child = eval(os.read(read, 1000))
        done(child=child, parent=here.heard, open=[not handle.closed for handle in handles])
        """
    )
    assert got["child"] == ([True, True], ["s::f"], ["s::f"], ["s::f"])
    assert got["parent"] == ["s::f", "s::g"]
    assert got["open"] == [True, True]
