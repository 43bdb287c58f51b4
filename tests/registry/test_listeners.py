"""Listeners: they hear of every definition and of its end, in order, and harm nobody."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from hearing import SECONDS, Recorder, check_order, define, end, ended, start, switching_often
from kinds import until

from mdispatch import errors
from mdispatch.facts import DEF
from mdispatch.facts.listeners import Listeners

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
    """Defines as a library in a worker does. Returns a function that ends the definition."""
    listeners.registered(lambda: fact)
    return lambda: listeners.removed(fact, lambda: True)


def test_what_several_libraries_verify_is_told_once_and_ends_with_the_last_of_them(listeners):
    fact = define(Listeners(listeners._facts))
    recorder = Recorder()
    listeners.add(recorder)
    assert recorder.heard == []  # the definition exists, but was not verified here
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
    handle.close()  # it does not wait for the listener
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
        # Another thread can go on meanwhile.
        assert ended(start(lambda: listeners.add(Recorder()).close()))

    listeners.add(Recorder(look))
    end(listeners, define(listeners))
    assert locked == [False, False]


def test_code_that_runs_in_the_middle_of_a_commit_may_define_and_end(listeners):
    """As finalizers and signal handlers do it."""
    locked = []

    def commit():
        inner = define(listeners, "s::inner")
        assert locked == []  # it was not told yet
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
    fact = define(listeners, "s::g")  # it returns although the listener is held
    end(listeners, fact)
    assert recorder.heard == ["+s::f"]
    late = Recorder()
    listeners.add(late)  # it returns, too, and has heard of the present definitions
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


@pytest.mark.thorough
@pytest.mark.dear
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
        # No more than these: each is told everything, so many of them slow the threads down, and
        # then there is time for more.
        while len(late) < 60 and any(thread.is_alive() for thread in threads):
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
    """Answers every definition of a name s::a... with one of a name s::b..."""

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
    """A queue to which another thread adds right after it was found empty."""

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


@pytest.mark.shared
def test_without_a_listener_nothing_is_queued_and_no_threads_are_thought_of():
    code = (
        "import sys, mdispatch as md\n"
        "from mdispatch.facts.listeners import Listeners\n"
        "from mdispatch.facts.shared import SharedRegistry\n"
        "facts = SharedRegistry.create(None, 1 << 20)\n"
        "listeners = Listeners(facts)\n"
        "fact = listeners.registered(lambda: facts.register(2, 0, 's::f', '', ''))\n"
        "assert listeners._queue == []\n"
        "assert listeners.removed(fact, lambda: facts.remove(fact))\n"
        "listeners.add(type('L', (), {'on_operator_registered': print})())\n"
        "assert listeners._live == {} and listeners._queue == []\n"
        "assert 'threading' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=SECONDS)
