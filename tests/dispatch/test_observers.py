"""Watching operators run: what observers are told, when, and what happens when they fail."""

from __future__ import annotations

import sys
from time import perf_counter_ns

import pytest
from kinds import run_main

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.call_c import turn
from mdispatch.dispatch.context import observers
from mdispatch.facts.native.calls import local

Keys = md.DispatchKeySet


class Array:
    def __init__(self, *keys):
        self.__dispatch_keys__ = keys or ("CPU",)


CPU, GRAD = Array("CPU"), Array("CPU", "AutogradCPU")


@pytest.fixture
def f(registry, lib):
    """s::f, with a kernel at CPU that returns its number."""
    lib.define("f(Tensor x, int n=3, *, str word='w') -> Any")

    @lib.impl("f", dispatch_key="CPU")
    def kernel(x, n, *, word):
        return n

    return registry.ops.s.f.default


@pytest.fixture
def observe():
    """Adds observers, and closes them after the test."""
    handles = []

    def start(*args, **kwargs):
        handles.append(md.observe_calls(*args, **kwargs))
        return handles[-1]

    yield start
    for handle in handles:
        handle.close()
    assert observers.observing.now == ()
    assert (local.stack.depth, local.stack.is_observer) == (0, False)


# --- what is told ---------------------------------------------------------------------------------


def call_boxed(f):
    f.call_boxed(stack := [CPU, 3, "w"])
    return stack[0]


def redispatch_boxed(f):
    f.redispatch_boxed(Keys("CPU"), stack := [CPU, 3, "w"])
    return stack[0]


WAYS = {
    "call": lambda f: f(CPU),
    "redispatch": lambda f: f.redispatch(Keys("CPU"), CPU),
    "call_for_dispatch_key": lambda f: f.call_for_dispatch_key("CPU", CPU),
    "call_boxed": call_boxed,
    "redispatch_boxed": redispatch_boxed,
    "call ": lambda f: f.call_with_keyset(Keys("CPU"), CPU),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_run_of_a_kernel_is_told_before_and_after_with_how_it_was_reached(f, observe, way):
    seen = []
    observe(lambda call: seen.append(("before", call)), lambda call: seen.append(("after", call)))
    assert WAYS[way](f) == 3
    (before, call), (after, same) = seen
    assert (before, after, same) == ("before", "after", call)
    assert (call.operator, call.how, call.key) == ("s::f", way.strip(), md.DispatchKey.CPU)
    assert (call.key_set, call.reason, call.depth) == (Keys("CPU"), "kernel", 0)
    assert call.kernel.endswith("f.<locals>.kernel")
    assert (call.error, call.arguments, call.keywords) == (None, None, None)
    assert repr(call) == f"<{way.strip()} of s::f at CPU, number {call.sequence_number}>"


def test_the_key_set_is_the_one_that_was_dispatched_on(f, lib, observe):
    seen = []
    observe(lambda call: seen.append((call.key.name, call.key_set, call.reason)))
    lib.impl("f", lambda x, n, word: n, "CompositeExplicitAutograd")
    with md.context.ExcludeDispatchKeyGuard("Conjugate"):
        f(Array("CUDA", "Conjugate", "AutogradCUDA"))
    f.redispatch(Keys("Meta", "CPU"), CPU)
    assert seen == [
        ("CUDA", Keys("CUDA"), "default backend kernel"),
        ("Meta", Keys("CPU", "Meta"), "default backend kernel"),
    ]


def test_fallbacks_are_told_as_such_and_packets_as_the_overload_that_runs(registry, lib, observe):
    seen = []
    observe(lambda call: seen.append((call.operator, call.reason, call.kernel)))
    lib.define("g.out(Tensor x) -> Any")

    def fallback(op, *args):
        return op.name

    md.Library("_", "IMPL", registry=registry).fallback(fallback, "CPU")
    assert registry.ops.s.g(CPU) == "s::g.out"
    (said,) = seen
    assert said[:2] == ("s::g.out", "backend fallback")
    assert said[2].endswith("<locals>.fallback")


def test_the_time_is_that_of_the_kernel(f, lib, observe):
    def slow(x, n, *, word):
        began = perf_counter_ns()
        while perf_counter_ns() - began < 200_000:
            pass

    lib.impl("f", slow, "CPU")
    seen = []
    observe(lambda call: seen.append(call.duration_ns), lambda call: seen.append(call.duration_ns))
    f(CPU)
    assert seen[0] == 0
    assert seen[1] >= 200_000


def test_arguments_are_told_as_the_kernel_gets_them_if_somebody_asks(f, lib, observe):
    seen = []
    plain = observe(lambda call: seen.append((call.arguments, call.keywords)))
    f(CPU)
    asking = observe(lambda call: seen.append((call.arguments, call.keywords)), with_arguments=True)
    plain.close()
    f(CPU, True)
    lib.impl("f", lambda keys, x, n, word: None, "CPU", with_keyset=True)
    f(word="v", x=CPU)
    asking.close()
    assert seen == [(None, None), ((CPU, 1), {"word": "w"}), ((CPU, 3), {"word": "v"})]


# --- nesting --------------------------------------------------------------------------------------


def test_calls_inside_calls_are_deeper_and_numbered_in_the_order_of_their_beginnings(
    f, lib, observe
):
    @lib.impl("f", dispatch_key="AutogradCPU", with_keyset=True)
    def graded(keys, x, n, *, word):
        below = keys & Keys.full_after("AutogradCPU")
        return f.redispatch(below, x, n) + f.redispatch(below, x, n)

    began, ended = [], []
    observe(
        lambda call: began.append((call.sequence_number, call.depth, call.how, call.key.name)),
        lambda call: ended.append((call.sequence_number, call.depth)),
    )
    assert f(GRAD) == 6
    first = began[0][0]
    assert began == [
        (first, 0, "call", "AutogradCPU"),
        (first + 1, 1, "redispatch", "CPU"),
        (first + 2, 1, "redispatch", "CPU"),
    ]
    assert ended == [(first + 1, 1), (first + 2, 1), (first, 0)]


def test_of_several_observers_the_first_is_told_first_before_and_last_after(f, observe):
    seen = []
    for name in "abc":
        observe(
            lambda call, name=name: seen.append(f"{name} before"),
            lambda call, name=name: seen.append(f"{name} after"),
        )
    observe(before=lambda call: seen.append("only before"))
    observe(after=lambda call: seen.append("only after"))
    f(CPU)
    assert seen == [
        *("a before", "b before", "c before", "only before"),
        *("only after", "c after", "b after", "a after"),
    ]


@pytest.mark.parametrize(
    "error", [ValueError("own"), KeyboardInterrupt(), StopIteration()], ids=repr
)
def test_what_a_kernel_raises_is_told_and_comes_out_as_it_is(f, lib, observe, error):
    def raises(x, n, *, word):
        if n:
            f(x, n - 1)
        raise error

    lib.impl("f", raises, "CPU")
    seen = []
    observe(
        lambda call: seen.append((call.depth, call.error)),
        lambda call: seen.append((call.depth, call.error)),
    )
    with pytest.raises(type(error)) as caught:
        f(CPU, 1)
    assert caught.value is error
    assert seen == [(0, None), (1, None), (1, error), (0, error)]


def test_a_missing_kernel_is_told_and_what_never_comes_to_a_kernel_is_not(f, lib, observe):
    seen = []
    observe(after=seen.append)
    with pytest.raises(errors.ArgumentError):
        f()
    with pytest.raises(errors.ArgumentError):
        f.redispatch("CPU", CPU)
    with pytest.raises(errors.MissingKernelError):
        f.call_for_dispatch_key("CUDA", CPU)
    assert seen == []
    with pytest.raises(errors.MissingKernelError) as caught:
        f(Array("CUDA"))
    (call,) = seen
    assert (call.kernel, call.reason, call.key.name) == ("(none here)", "missing", "CUDA")
    assert call.error is caught.value
    lib.close()
    with pytest.raises(errors.OperatorGoneError):
        f(CPU)
    assert len(seen) == 1


# --- coming and going -----------------------------------------------------------------------------


def test_observers_are_told_from_their_beginning_to_their_end(f, observe):
    seen = []
    f(CPU, 0)
    with observe(lambda call: seen.append(call.arguments[1]), with_arguments=True) as handle:
        f(CPU, 1)
        assert isinstance(handle, observers.ObserverHandle)
    f(CPU, 2)
    handle.close()
    other = observe(lambda call: seen.append("other"))
    f(CPU, 3)
    handle.close()  # again, while there is another one
    f(CPU, 4)
    other.close()
    f(CPU, 5)
    assert seen == [1, "other", "other"]


@pytest.mark.parametrize("arguments", [(), (None, None), (5,), (None, "after"), (print, 5)])
def test_what_cannot_be_called_is_refused(observe, arguments):
    with pytest.raises(errors.InvalidArgumentError, match="give a function"):
        observe(*arguments)
    assert observers.observing.now == ()


def test_who_comes_during_a_call_hears_of_the_next_who_goes_hears_its_end(f, lib, observe):
    seen = []

    def changes(x, n, *, word):
        first.close()
        observe(lambda c: seen.append(("second", c.how)), lambda c: seen.append(("second", "end")))
        return f.redispatch(Keys("Meta"), x, n)

    lib.impl("f", changes, "CPU")
    lib.impl("f", lambda x, n, word: n, "Meta")
    first = observe(
        lambda call: seen.append(("first", call.how)), lambda call: seen.append(("first", "end"))
    )
    assert f(CPU) == 3
    assert seen == [
        ("first", "call"),
        ("second", "redispatch"),
        ("second", "end"),
        ("first", "end"),
    ]


def test_an_observer_may_close_itself_and_others(f, observe):
    seen = []

    def once(call):
        seen.append("once")
        mine.close()
        other.close()

    mine = observe(before=once)
    other = observe(lambda call: seen.append("other"), lambda call: seen.append("other's end"))
    f(CPU)
    f(CPU)
    assert seen == ["once", "other", "other's end"]


# --- mistakes of observers ------------------------------------------------------------------------


def fails(call):
    raise ValueError("a mistake")


def test_an_observer_that_raises_is_reported_and_harms_nobody(f, observe, monkeypatch):
    reported, seen = [], []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    observe(lambda call: seen.append("before"), lambda call: seen.append("after"))
    observe(fails, fails)
    observe(lambda call: seen.append("before"), lambda call: seen.append("after"))
    assert f(CPU) == 3
    assert seen == ["before", "before", "after", "after"]
    for report in reported:
        assert (report.exc_type, str(report.exc_value)) == (ValueError, "a mistake")
        assert report.exc_traceback.tb_next.tb_frame.f_code is fails.__code__
        assert report.object is fails
        assert "observes operators" in report.err_msg
    assert len(reported) == 2


def test_what_the_hook_raises_harms_nobody_either(f, observe, monkeypatch, capsys):
    class Unspeakable:
        def __call__(self, call):
            raise ValueError("a mistake")

        def __repr__(self):
            raise OSError

    def hook(unraisable):
        repr(unraisable.object)

    monkeypatch.setattr(sys, "unraisablehook", hook)
    observe(Unspeakable())
    assert f(CPU) == 3
    assert "ValueError: a mistake" in capsys.readouterr().err


def test_without_a_hook_of_ones_own_the_mistake_goes_to_standard_error():
    got = run_main(
        """
        def mistaken(call):
            if sys.stderr is None:
                raise ValueError("a mistake")
            raise ValueError("a mistake")
        lib = md.Library("s", "DEF")
        lib.define("f(int n) -> int")
        lib.impl("f", lambda n: n)
        with md.observe_calls(mistaken):
            first = md.ops.s.f(7)
            sys.stderr = None
            done(first=first, second=md.ops.s.f(8))
        """
    )
    assert (got["first"], got["second"]) == (7, 8)
    lines = got["stderr"].splitlines()
    assert lines[0].startswith("Exception ignored in what observes operators (")
    assert "): <function main." in lines[0]
    assert lines[-1] == "ValueError: a mistake"
    assert lines.count("ValueError: a mistake") == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_in_an_observer_comes_out_when_all_have_heard_the_end(f, observe, when):
    seen = []

    def interrupted(call):
        raise KeyboardInterrupt

    observe(lambda call: seen.append("first before"), lambda call: seen.append("first after"))
    observe(**{when: interrupted})
    observe(lambda call: seen.append("last before"), lambda call: seen.append("last after"))
    with pytest.raises(KeyboardInterrupt):
        f(CPU)
    unheard = ["first before", "first after"]
    everything = ["first before", "last before", "last after", "first after"]
    assert seen == (unheard if when == "before" else everything)


def test_what_observers_call_is_not_observed(registry, f, lib, observe):
    seen = []
    lib.define("g(Tensor x) -> Any")
    lib.impl("g", lambda x: f(x), "CPU")

    def looks(call):
        seen.append((call.operator, call.depth))
        seen.append(registry.ops.s.g(CPU))

    observe(looks, looks)
    assert registry.ops.s.g(CPU) == 3
    g, inner = ("s::g", 0), ("s::f", 1)
    assert seen == [g, 3, inner, 3, inner, 3, g, 3]


# --- an observer that goes on raising -------------------------------------------------------------


def messages(reported):
    """What was reported: exception, and the first words."""
    return [(str(each.exc_value), each.err_msg.partition(" ")[0]) for each in reported]


@pytest.fixture(params=["in C", "in Python"])
def way(request):
    """How calls are made: in C, where that is to be had, or in Python."""
    turn(request.param == "in C")
    yield request.param
    turn(True)


@pytest.fixture
def reported(monkeypatch):
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_is_reported_once_for_its_class_and_place_and_then_counted(
    f, observe, reported, way, when
):
    def mistaken(call):
        number = call.sequence_number % 3
        if number == 0:
            raise ValueError("first")
        if number == 1:
            raise KeyError("second")
        raise ValueError("third")

    handle = observe(**{when: mistaken})
    for _ in range(60):
        assert f(CPU) == 3
    assert sorted(messages(reported)) == [
        ("'second'", "Exception"),
        ("first", "Exception"),
        ("third", "Exception"),
    ]
    assert all("only counted" in each.err_msg for each in reported)
    assert handle.failures == 60


def test_calls_in_c_and_in_python_count_the_same_failures(f, observe, reported):
    handle = observe(fails)
    for _ in range(5):
        for in_c in (True, False):
            turn(in_c)
            f(CPU)
    turn(True)
    assert (len(reported), handle.failures) == (1, 10)


def test_what_c_code_raises_is_one_kind_however_the_call_is_made(f, observe, reported):
    handle = observe({}.__getitem__)  # no frame of its own
    for in_c in (True, False, True):
        turn(in_c)
        f(CPU)
    turn(True)
    assert (len(reported), handle.failures) == (1, 3)


def test_failures_of_many_kinds_are_reported_for_the_first_kinds_only(f, observe, reported, way):
    def mistaken(call):
        raise type(f"E{call.sequence_number}", (Exception,), {})

    observe(mistaken)
    for _ in range(50):
        f(CPU)
    assert len(reported) == 16


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_100_failures_in_a_row_an_observer_is_left_out_and_that_is_told_once(
    f, observe, reported, way, when
):
    seen = []
    other = {"before": "after", "after": "before"}[when]
    handle = observe(**{when: fails, other: lambda call: seen.append(call.operator)})
    kept = observe(lambda call: seen.append("kept"))
    for _ in range(99):
        f(CPU)
    assert observers.observing.now == (handle, kept)
    assert len(reported) == 1
    for _ in range(50):
        assert f(CPU) == 3
    assert observers.observing.now == (kept,)
    assert (seen.count("s::f"), seen.count("kept"), handle.failures) == (100, 149, 100)
    last = reported[1]
    assert len(reported) == 2
    assert last.exc_type is ValueError
    assert last.object is fails
    for words in ("left out", "100 times in a row (100 in all)", "mend it", "observe_calls"):
        assert words in last.err_msg


def test_a_call_that_goes_well_begins_the_row_anew(f, observe, reported, way):
    calls = []

    def mistaken(call):
        calls.append(call)
        if len(calls) % 100:
            raise ValueError("a mistake")

    handle = observe(mistaken)
    for _ in range(450):
        f(CPU)
    assert observers.observing.now == (handle,)
    assert (len(reported), handle.failures) == (1, 446)
    assert not any("left out" in each.err_msg for each in reported)


def test_a_row_is_of_one_function_whatever_the_other_does(f, observe, reported, way):
    """An exporter that fails at the end has begun well each time."""
    observe(lambda call: None, fails)
    for _ in range(100):
        f(CPU)
    assert observers.observing.now == ()


def test_a_row_ends_though_the_other_function_has_gone_well_before(f, observe, reported, way):
    ended = []

    def mistaken(call):
        ended.append(call)
        if len(ended) != 61:
            raise ValueError("a mistake")

    handle = observe(lambda call: None, mistaken)
    for _ in range(121):
        f(CPU)
    assert observers.observing.now == (handle,)


def test_who_was_left_out_hears_the_end_of_the_calls_that_it_heard_begin(f, observe, lib, reported):
    ended = []
    lib.define("outer(Tensor x) -> int")
    lib.impl("outer", lambda x: sum(f(CPU) for _ in range(200)), "CPU")
    observe(lambda call: call.operator == "s::f" and fails(call), lambda call: ended.append(call))
    lib.registry.ops.s.outer(CPU)
    assert [call.operator for call in ended] == ["s::f"] * 100 + ["s::outer"]


def test_whoever_mended_it_observes_again_and_is_told_of_new_mistakes(f, observe, reported, way):
    observe(fails)
    for _ in range(120):
        f(CPU)
    again = observe(fails)
    f(CPU)
    assert observers.observing.now == (again,)
    assert [each.err_msg.split()[0] for each in reported] == ["Exception", "An", "Exception"]


def test_an_interrupt_is_no_failure(f, observe, reported, way):
    def interrupted(call):
        raise KeyboardInterrupt

    handle = observe(interrupted)
    for _ in range(120):
        with pytest.raises(KeyboardInterrupt):
            f(CPU)
    assert (observers.observing.now, handle.failures, reported) == ((handle,), 0, [])


def test_a_hook_that_calls_operators_may_do_so_while_a_failure_is_told(f, observe, monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", lambda said: told.append(f(CPU)))
    observe(fails)
    for _ in range(130):
        f(CPU)
    assert told == [3, 3]
