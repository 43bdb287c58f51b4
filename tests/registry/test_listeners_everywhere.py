"""Listeners for everywhere: they hear of the definitions of all processes, whatever happens
meanwhile.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from hearing import SECONDS, Recorder, check_order, ended, start, switching_often
from kinds import until

from mdispatch import errors
from mdispatch.facts import DEF, IMPL, Registration
from mdispatch.facts.listeners import Listeners
from mdispatch.facts.waits import Waited


def put(listeners, name):
    """A definition that this interpreter's listeners do not hear of."""
    return listeners._facts.register(DEF, 0, name, f"{name}() -> ()", "elsewhere.py:1")


def test_a_listener_for_everywhere_hears_what_nobody_told_here(listeners):
    first, gone = put(listeners, "s::f"), put(listeners, "s::gone")
    listeners._facts.remove(gone)
    second = put(listeners, "s::e")
    recorder = Recorder()
    listeners.add(recorder, everywhere=True)
    assert recorder.facts == [first, second]  # before add() returned, in order
    listeners._facts.register(IMPL, 3, "s::kernel", "k", "k.py:1")
    third = put(listeners, "s::g")
    until(lambda: len(recorder.heard) == 3)
    listeners._facts.remove(first)
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
    assert entered.wait(SECONDS)  # the next lines come between two looks
    unseen = put(listeners, "s::unseen")
    listeners._facts.remove(first)
    put(listeners, "s::g")
    again = put(listeners, "s::f")
    listeners._facts.remove(unseen)
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
                    assert listeners._facts.remove(mine.pop(turn % 3))
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
    """A registry that follows a script. For each look, the script has a sequence (or an error) and
    the numbers of the definitions in a list that is taken then.
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


def test_what_a_dead_registrar_did_not_come_to_tell_is_told_before_its_end():
    gone = errors.RegistrarGoneError("dead")
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
            # At once, or after the listener's call that is under way.
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
