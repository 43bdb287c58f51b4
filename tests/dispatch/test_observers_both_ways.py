"""What observers are told, when, and what comes of their mistakes: calls in C and in Python do the
same.
"""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mdispatch as md
from mdispatch.context import DispatchMode
from mdispatch.dispatch.call_c import turn
from mdispatch.facts.native.calls import local

pytestmark = pytest.mark.shared

Keys = md.DispatchKeySet


class Array:
    pass


class Other(Array):
    pass


class Carries:
    def __init__(self, *keys):
        self.__dispatch_keys__ = keys


class Index:
    def __index__(self):
        return 7


class Handled:
    __dispatch_keys__ = "CPU"

    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        return "handled"


class CallsOn(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return op(*args, **kwargs)


class Own(BaseException):
    """Not for unraisablehook."""


md.register_type(Array, "CPU")
ARRAY, OTHER, HANDLED = Array(), Other(), Handled()
GRADED, META = Carries("CPU", "AutogradCPU"), Carries("Meta")
CUDA = Carries("CUDA", "AutogradCUDA")
BELOW = Keys.full_after("AutogradCPU")


def define(lib, ops):
    """Kernels of every kind."""

    def kernel(*args, **kwargs):
        return (args, kwargs)

    def nested(x, n):
        return n and ops.nested.default(x, n - 1) + 1

    def raises(error):
        raise error("said")

    def graded(keys, x, n):
        return ops.graded.default.redispatch(keys & BELOW, x, n=n) + 1

    lib.define("f(Tensor x, int n=3, *, str word='w', Tensor? y=None) -> Any")
    lib.impl("f", kernel, "CPU")
    lib.define("f.other(int n) -> Any")
    lib.impl("f.other", kernel, "CompositeExplicitAutograd")
    lib.define("plain(Tensor x) -> Any")
    lib.impl("plain", kernel, "CompositeImplicitAutograd")
    lib.define("lists(Tensor[] xs, float[] ys) -> Any")
    lib.impl("lists", kernel, "CPU")
    lib.define("nested(Tensor x, int n) -> int")
    lib.impl("nested", nested, "CPU")
    lib.define("raises(Any error) -> Any")
    lib.impl("raises", raises, "CompositeExplicitAutograd")
    lib.define("graded(Tensor x, int n) -> int")
    lib.impl("graded", graded, "AutogradCPU", with_keyset=True)
    lib.impl("graded", lambda x, n: n, "CPU")
    lib.define("typed(Tensor x) -> str")
    lib.impl("typed", lambda x: "any", "CPU")
    lib.impl("typed", lambda x: "other", "CPU", types=Other)
    lib.define("real(float x) -> float")
    lib.impl("real", lambda x: x, "CompositeExplicitAutograd")
    lib.define("wrong(Tensor x) -> int")
    lib.impl("wrong", lambda x: "no int", "CPU")
    lib.define("missing(Tensor x) -> Any")


def guarded(call):
    with md.context.ExcludeDispatchKeyGuard("AutogradCPU"):
        return call()


def in_mode(call):
    with CallsOn():
        return call()


def boxed(operator, *args):
    operator.call_boxed(stack := list(args))
    return stack


CALLS = {
    "plain": lambda ops: ops.plain.default(ARRAY),
    "by keyword": lambda ops: ops.f.default(x=ARRAY, word="v"),
    "defaults": lambda ops: ops.f.default(ARRAY),
    "converted": lambda ops: ops.f.default(ARRAY, True, y=META),
    "converted by Python": lambda ops: ops.f.default(ARRAY, Index()),
    "a packet": lambda ops: ops.f(ARRAY, 1),
    "the other overload": lambda ops: ops.f(5),
    "carried keys": lambda ops: ops.plain.default(CUDA),
    "lists": lambda ops: ops.lists.default([ARRAY, GRADED], (1, 2.5)),
    "nested": lambda ops: ops.nested.default(ARRAY, 3),
    "graded": lambda ops: ops.graded.default(GRADED, 2),
    "below": lambda ops: guarded(lambda: ops.graded.default(GRADED, 2)),
    "redispatch": lambda ops: ops.f.default.redispatch(Keys("CPU", "Negative"), ARRAY, 1),
    "redispatch plainly": lambda ops: ops.plain.default.redispatch(Keys("Meta"), ARRAY),
    "redispatch to a mode": lambda ops: ops.plain.default.redispatch(Keys("Python"), ARRAY),
    "boxed": lambda ops: boxed(ops.plain.default, ARRAY),
    "typed": lambda ops: (ops.typed.default(OTHER), ops.typed.default(ARRAY)),
    "real": lambda ops: ops.real.default(2),
    "a fallback": lambda ops: ops.missing.default(META),
    "in a mode": lambda ops: in_mode(lambda: ops.plain.default(ARRAY)),
    "a type that answers": lambda ops: ops.f.default(HANDLED),
    "a missing kernel": lambda ops: ops.missing.default(ARRAY),
    "a refused argument": lambda ops: ops.real.default("a"),
    "a refused result": lambda ops: ops.wrong.default(ARRAY),
    **{
        f"raises {error.__name__}": lambda ops, error=error: ops.raises.default(error)
        for error in (ValueError, StopIteration, KeyboardInterrupt, Own)
    },
}


def told(error):
    """An error, and those that it came of."""
    found = []
    while error is not None:
        found.append((type(error), str(error)))
        error = error.__context__
    return found


class Play:
    """Runs calls with observers of some kinds, and notes all that is heard."""

    def __init__(self, ops, library, monkeypatch):
        self.ops, self.library, self.log, self.handles = ops, library, [], []
        self.first, self.calls = None, {}
        monkeypatch.setattr(sys, "unraisablehook", self.report)

    def report(self, said):
        handled = sys.exc_info()[1]
        place = said.exc_traceback.tb_next.tb_frame.f_code.co_name
        self.log.append(
            ("report", told(said.exc_value), said.err_msg, handled is said.exc_value, place)
        )
        assert said.object.__self__ is self

    def note(self, when, call):
        self.first = self.first or call.sequence_number
        self.calls.setdefault(call.sequence_number, call)
        assert self.calls[call.sequence_number] is call
        keywords = call.keywords and list(call.keywords.items())
        assert call.duration_ns >= 0
        self.log.append(
            (
                *(when, call.operator, call.how, call.key, call.key_set, call.kernel, call.reason),
                *(call.sequence_number - self.first, call.depth, call.arguments, keywords),
                *(call.duration_ns > 0, told(call.error), told(sys.exc_info()[1])),
                *(type(call), local.stack.depth, local.stack.is_observer),
            )
        )

    def before(self, call):
        self.note("before", call)

    def after(self, call):
        self.note("after", call)

    def fails(self, call):
        self.note("fails", call)
        raise ValueError("a mistake")

    def interrupted(self, call):
        self.note("interrupted", call)
        raise Own("interrupted")

    def calling(self, call):
        self.log.append(("called", self.ops.nested.default(ARRAY, 1)))

    def changing(self, call):
        self.library.impl(call.operator.removeprefix("s::"), self.other, "CPU")
        if call.keywords:
            call.keywords.clear()

    def other(self, *args, **kwargs):
        self.log.append(("another kernel", kwargs))

    def opening(self, call):
        if len(self.handles) < 6:
            self.observe("before", "after", True)

    def closing(self, call):
        self.handles[0].close()

    def observe(self, before, after, with_arguments):
        found = [each and getattr(self, each) for each in (before, after)]
        self.handles.append(md.observe_calls(*found, with_arguments=with_arguments))

    def call(self, name):
        try:
            self.log.append((name, CALLS[name](self.ops)))
        except (Exception, KeyboardInterrupt, Own) as error:
            self.log.append((name, told(error)))
        assert (local.stack.depth, local.stack.is_observer) == (0, False)


def played(in_c, observers, calls, monkeypatch):
    turn(in_c)
    with md.Registry.create() as registry, monkeypatch.context() as patch:
        library = md.Library("s", "DEF", registry=registry)
        define(library, registry.ops.s)
        fallbacks = md.Library("_", "IMPL", registry=registry)
        fallbacks.fallback(lambda op, *args: (op.name, args), "Meta")
        play = Play(registry.ops.s, library, patch)
        try:
            for name in calls:
                play.call(name)
            for each in observers:
                play.observe(*each)
            for name in calls * 2:
                play.call(name)
        finally:
            for handle in play.handles:
                handle.close()
            turn(True)
        play.call("plain")
    return play.log


def compared(observers, calls, monkeypatch):
    found = [played(in_c, observers, calls, monkeypatch) for in_c in (True, False)]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("name", CALLS)
def test_each_kind_of_call_is_told_alike(name, monkeypatch):
    asking = ("before", "after", True)
    for observers in ([("before", "after", False)], [asking, ("fails", "fails", False), asking]):
        log = compared(observers, [name], monkeypatch)
        heard = any(each[0] == "before" for each in log)
        assert heard == (name != "a refused argument")


KINDS = ["before", "after", "fails", "interrupted", "calling", "changing", "opening", "closing"]
observers = st.tuples(st.sampled_from(KINDS), st.sampled_from([None, *KINDS]), st.booleans())


@pytest.mark.thorough
@pytest.mark.dear
def test_whatever_observers_do_is_done_alike(request, monkeypatch):
    seen = set()

    @settings(
        max_examples=1000 if request.config.getoption("--long") else 60,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(
        st.lists(observers, min_size=1, max_size=3),
        st.lists(st.sampled_from(list(CALLS)), min_size=1, max_size=4),
    )
    def compare(observers, calls):
        log = compared(observers, calls, monkeypatch)
        seen.update(each[0] for each in log)

    compare()
    assert {"before", "fails", "interrupted", "report", "called", "another kernel"} <= seen


def is_ours():
    """Whether the function that calls this was called from a frame of ours."""
    return sys._getframe(2).f_globals["__name__"].startswith("mdispatch.")


def test_observers_and_kernels_are_called_without_a_frame_of_ours(registry, lib):
    seen = []
    lib.define("f(Tensor x, *, str word='w') -> bool")
    lib.impl("f", lambda x, *, word: seen.append(is_ours()) or False, "CPU")
    lib.define("g(Tensor x) -> bool")
    lib.impl("g", lambda x: seen.append(is_ours()) or False, "CPU")

    def note(call):
        seen.append(is_ours())

    with md.observe_calls(note, note, with_arguments=True):
        for operator in (registry.ops.s.f, registry.ops.s.g):
            for _ in range(3):
                assert operator(ARRAY) is False
            assert operator.default.redispatch(Keys("CPU"), ARRAY) is False
    assert seen == [False] * 24


def test_an_error_of_a_kernel_has_no_frame_of_ours(registry, lib):
    lib.define("f(Tensor x) -> Any")

    def raises(x):
        raise ValueError("said")

    lib.impl("f", raises, "CPU")
    for note in ({"before": id}, {"after": id}):
        with md.observe_calls(**note), pytest.raises(ValueError, match="said") as caught:
            registry.ops.s.f(ARRAY)
        assert [each.name for each in caught.traceback] == [
            "test_an_error_of_a_kernel_has_no_frame_of_ours",
            "raises",
        ]
        assert caught.value.__context__ is None


def test_observed_calls_leave_nothing_behind(registry, lib):
    lib.define("f(Tensor x, Any error, *, str word='w') -> Any")

    def kernel(x, error, *, word):
        if error:
            raise error

    lib.impl("f", kernel, "CPU")
    f, error = registry.ops.s.f.default, ValueError("said")

    def some():
        for _ in range(300):
            f(ARRAY, None)
            try:
                f(ARRAY, error)
            except ValueError:
                error.__traceback__ = None

    with md.observe_calls(id, id), md.observe_calls(before=id, with_arguments=True):
        some()
        before = sys.getallocatedblocks()
        some()
        after = sys.getallocatedblocks()
    assert after < before + 250
