"""Providers: which of several named kernels at one key runs, against a plain model and in every
order of registering, closing and reprioritising; and that all members have the same.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref

import pytest
from kinds import INTERPRETERS, run_main
from orders import orders

import mdispatch as md
from mdispatch import errors
from mdispatch import facts as kinds_of_facts
from mdispatch.dispatch import call_py
from mdispatch.dispatch.call_c import turn
from mdispatch.dispatch.pairing import AbsentKernel
from mdispatch.facts.native.binding import which
from mdispatch.providers import chain as providers
from mdispatch.providers import order as priorities
from mdispatch.providers.kind import PRIORITY


class A:
    pass


class B(A):
    pass


class Z:
    pass


class Cuda:
    pass


for each in (A, Z):
    md.register_type(each, "CPU")
md.register_type(Cuda, "CUDA")

VALUES = [(cls(), number) for cls in (A, B, Z) for number in (1, 9)]


def says(word):
    return lambda *args, **kwargs: word


def small(x, n):
    return n < 5


def broken(x, n):
    raise ValueError("no idea")


# --- the plain model ------------------------------------------------------------------------------

# Name ("" for a kernel without one), order, types, predicate, whether it is available.
POOLS = {
    "orders": [("a", 0, None, None, True), ("b", 5, None, None, True), ("c", 0, None, None, True)],
    "predicates": [
        ("a", 2, None, small, True),
        ("b", 1, None, broken, True),
        ("", 0, None, None, True),
    ],
    "types": [("a", 0, A, None, True), ("b", 1, B, None, True), ("", 0, Z, None, True)],
    "not available": [
        ("a", 3, None, None, False),
        ("b", 1, A, small, True),
        ("", 0, A, None, True),
    ],
}
#: What is set, one after the other: names, and whether it is strict.
PRIORITIES = [(("a",), False), (("c", "b"), False), (("b", "a"), True)]
GUARDS = [
    (),
    (("c",), False),
    (("b", "c", "a"), False),
    (("a",), True),
    (("nobody",), True),
]
FIVE = [
    ("a", 0, None, None, True),
    ("b", 0, A, small, True),
    ("c", -1, None, small, True),
    ("d", 7, B, None, True),
    ("e", 0, Z, broken, True),
]


def expected(live, settings, guard, value, number):
    """``live`` are the kernels, ``settings`` the priorities that were set, oldest first."""
    kernels = [each for each in live if each[0] and each[4]]
    has_names = any(each[0] for each in live)
    order = sorted(kernels, key=lambda each: each[1])[::-1]
    wanted, only = [], False
    for names, strict in [*([guard] if guard else []), *settings[-1:]]:
        wanted += names
        if strict:
            only = True
            break
    named = [k for name in dict.fromkeys(wanted) for k in order if k[0] == name]
    order = named if only else named + [k for k in order if k not in named]
    if not kernels and not only:
        order = []
    for kernel in order:
        if kernel[2] is not None and not isinstance(value, kernel[2]):
            continue
        if kernel[3] is broken or (kernel[3] is small and number >= 5):
            continue
        return kernel[0]
    rest = [each for each in live if not each[0]]
    if rest and not (only and has_names):
        fits = rest[-1][2] is None or isinstance(value, rest[-1][2])
        if fits:
            return "without a name"
    return errors.MissingKernelError


def both_ways(f, *args):
    """What a call gives: the word that a kernel says, or MissingKernelError. In C and in Python."""
    found = []
    for way in (f, lambda *given: call_py.call(f, given, {})):
        try:
            found.append(way(*args))
        except errors.MissingKernelError as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]
    return found[0] if isinstance(found[0], str) else errors.MissingKernelError


def walk(registry, f, pool, order, known=0):
    """The first ``known`` steps are those of an order that was walked before."""
    opened, live, settings = {}, [], []
    for step, unit in enumerate(order):
        kernel = pool[unit]
        is_kernel = len(kernel) == 5
        if unit in opened:
            opened[unit].close()
            (live if is_kernel else settings).remove(kernel)
        elif is_kernel:
            name, number, types, supports, available = kernel
            opened[unit] = library = md.Library("s", "IMPL", registry=registry)
            more = {}
            if name:
                more = {"provider": name, "order": number, "supports": supports}
                more["available"] = available
            library.impl("f", says(name or "without a name"), "CPU", types=types, **more)
            live.append(kernel)
        else:
            names, strict = kernel
            opened[unit] = md.set_priority("s::f", names, strict=strict, registry=registry)
            settings.append(kernel)
        for guard in GUARDS if step >= known else ():
            opener = md.priority(f, guard[0], strict=guard[1]) if guard else None
            for value, number in VALUES:
                got = both_ways(f, value, number)
                assert got == expected(live, settings, guard, value, number), (
                    order,
                    live,
                    settings,
                    guard,
                    type(value),
                    number,
                )
            if opener is not None:
                opener.close()
    registry.check_invariants("s::f")


def walk_all(pool, of_all=1, first=None):
    """Every order, or those that begin with one unit."""
    before: tuple[int, ...] = ()
    # Calls in C are made in registries that are shared.
    with (md.Registry.local if which == "none" else md.Registry.create)() as registry:
        md.Library("s", "DEF", registry=registry).define("f(Tensor x, int n) -> str")
        f = registry.ops.s.f.default
        for order in orders(len(pool), step=of_all):
            if first in (None, order[0]):
                same = itertools.takewhile(
                    lambda pair: pair[0] == pair[1], zip(before, order, strict=False)
                )
                walk(registry, f, pool, order, known=sum(1 for _ in same))
                before = order


@pytest.mark.dear
@pytest.mark.parametrize("pool", POOLS)
def test_every_order_of_three_kernels_gives_what_the_model_says(pool, long_form):
    walk_all(POOLS[pool], of_all=1 if long_form else 7)


@pytest.mark.thorough
@pytest.mark.parametrize("pool", ["orders", "predicates"])
def test_every_order_of_kernels_and_priorities_gives_what_the_model_says(pool, long_form):
    walk_all([*POOLS[pool][:2], *PRIORITIES[1:]], of_all=1 if long_form else 97)
    walk_all([*POOLS[pool], *PRIORITIES[:2]], of_all=97 if long_form else 9001)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(5))
def test_every_order_of_five_providers_gives_what_the_model_says(first, long_form):
    walk_all(FIVE, of_all=1 if long_form else 4001, first=first)


# --- one operator ---------------------------------------------------------------------------------


@pytest.fixture
def f(registry, lib):
    """Three providers: one for small numbers, one in between, one for any call."""
    lib.define("f(Tensor x, int n) -> str")
    lib.impl("f", says("fast"), "CPU", provider="fast", order=10, supports=small)
    lib.impl("f", says("middle"), "CPU", provider="middle", order=5)
    lib.impl("f", says("slow"), "CPU", provider="slow")
    return registry.ops.s.f.default


def test_the_highest_order_that_takes_the_call_runs(f):
    assert [f(A(), 1), f(A(), 9)] == ["fast", "middle"]


def test_guards_belong_to_their_thread_and_end_in_any_order(f):
    outer = md.priority(f, ["slow"])
    inner = md.priority("s::f", ["middle"], registry=f.dispatcher.holder)
    found = []
    thread = threading.Thread(target=lambda: found.append(f(A(), 1)))
    thread.start()
    thread.join()
    assert found == ["fast"]
    assert f(A(), 1) == "middle"
    outer.close()
    assert f(A(), 1) == "middle"
    inner.close()
    inner.close()
    assert f(A(), 1) == "fast"


def test_a_guard_ends_with_the_last_reference_to_it(f):
    guard = md.priority(f, ["slow"])
    assert both_ways(f, A(), 1) == "slow"
    del guard
    gc.collect()
    assert both_ways(f, A(), 1) == "fast"
    md.priority(f, ["slow"])
    gc.collect()
    assert both_ways(f, A(), 1) == "fast"


def test_a_guard_counts_before_the_environment_and_that_before_what_is_set(f, monkeypatch):
    registry = f.dispatcher.holder
    md.set_priority("s::*", ["middle"], registry=registry)
    assert f(A(), 1) == "middle"
    md.set_priority("s::f", ["fast"], registry=registry)  # the nearest pattern
    assert f(A(), 1) == "fast"
    monkeypatch.setenv("MDISPATCH_PRIORITY", "other::*=fast; s::f = slow, fast")
    with md.set_priority("*", ["middle"], registry=registry):  # has the tables computed anew
        assert f(A(), 1) == "slow"
        with md.priority(f, ["middle"]):
            assert f(A(), 1) == "middle"


def test_the_environment_is_refused_in_words(f, monkeypatch):
    monkeypatch.setenv("MDISPATCH_PRIORITY", "s::f")
    with (
        md.set_priority("*", ["slow"], registry=f.dispatcher.holder),
        pytest.raises(errors.InvalidArgumentError, match="write 'ns::name=first, second'"),
    ):
        f(A(), 1)


def test_a_priority_ends_whole_though_a_signal_handler_raises_meanwhile(f, monkeypatch):
    fallbacks, facts = f.dispatcher.fallbacks, f.dispatcher.facts
    handle = md.set_priority("s::f", ["slow"], registry=f.dispatcher.holder)
    assert both_ways(f, A(), 1) == "slow"
    changed = fallbacks.when_changed

    def interrupted():
        monkeypatch.setattr(fallbacks, "when_changed", changed)
        raise KeyboardInterrupt

    monkeypatch.setattr(fallbacks, "when_changed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handle.close()
    assert facts.find(PRIORITY, 0, "s::f") is None
    assert both_ways(f, A(), 1) == "fast"


def test_a_strict_priority_never_falls_back(f):
    with md.priority(f, ["fast", "gone"], strict=True):
        assert f(A(), 1) == "fast"
        with pytest.raises(errors.ProviderRefusedError) as caught:
            f(A(), 9)
    assert "small said no" in caught.value.reasons["fast"]
    assert "not there" in caught.value.reasons["gone"]
    assert isinstance(caught.value, NotImplementedError)


def test_a_refusal_names_the_guard_that_is_open_and_not_another_one_with_its_text(f):
    for way in (f, lambda *args: call_py.call(f, args, {})):
        told = []
        for _ in range(2):  # from then on all is known
            first = md.priority(f, ["fast"], strict=True)
            first_line = sys._getframe().f_lineno - 1
            told.append((refusal(way, A(), 9), first_line))
            with md.priority(f, ["fast"]):
                told.append((refusal(way, A(), 9), first_line))
            second = md.priority(f, ["fast"], strict=True)
            told.append((refusal(way, A(), 9), first_line + 5))
            first.close()
            told.append((refusal(way, A(), 9), first_line + 5))
            second.close()
        for text, line in told:
            assert f"(the guard at {__file__}:{line} is strict)" in text


def test_a_refusal_under_a_guard_names_what_else_is_strict(f):
    with md.set_priority("s::f", ["fast"], strict=True, registry=f.dispatcher.holder):
        for way in (f, lambda *args: call_py.call(f, args, {})):
            with md.priority(f, ["fast"]):
                assert "(set_priority at " in refusal(way, A(), 9)


def test_a_refusal_names_no_guard_where_that_has_ended_meanwhile(registry, lib):
    def ends_it(x):
        guard.close()

    lib.define("g(Tensor x) -> str")
    lib.impl("g", says("a"), "CPU", provider="a", supports=ends_it)
    g = registry.ops.s.g.default
    for way in (g, lambda *args: call_py.call(g, args, {})):
        guard = md.priority(g, ["a"], strict=True)
        assert "(a guard that has ended meanwhile is strict)" in refusal(way, A())


def refusal(way, *args):
    with pytest.raises(errors.ProviderRefusedError) as caught:
        way(*args)
    return str(caught.value)


def test_what_no_provider_takes_is_refused_with_each_reason(registry, lib):
    lib.define("g(Tensor x, int n) -> str")
    lib.impl("g", says("fast"), "CPU", provider="fast", supports=small)
    lib.impl("g", says("odd"), "CPU", provider="odd", supports=broken)
    g = registry.ops.s.g
    assert g(A(), 1) == "fast"
    with pytest.raises(errors.ProviderRefusedError) as caught:
        g(A(), 9)
    assert caught.value.reasons["fast"].endswith("small said no")
    assert caught.value.reasons["odd"].endswith("broken raised ValueError: no idea")


def test_what_a_kernel_raises_is_no_refusal(registry, lib):
    lib.define("g(Tensor x, int n) -> str")
    lib.impl("g", broken, "CPU", provider="fast", order=1, supports=small)
    lib.impl("g", says("slow"), "CPU", provider="slow")
    with pytest.raises(ValueError, match="no idea"):
        registry.ops.s.g(A(), 1)


def test_a_provider_that_is_not_available_counts_as_no_kernel(registry, lib):
    asked = []
    lib.define("g(Tensor x, int n) -> str")
    lib.impl("g", says("composite"), "CompositeExplicitAutograd")
    lib.impl("g", says("gpu"), "CPU", provider="gpu", available=lambda: asked.append(1))
    g = registry.ops.s.g
    assert [g(A(), 1), g(A(), 9)] == ["composite"] * 2
    assert asked == [1]  # once
    assert "not available (" in registry.why("s::g", "CPU").providers[0][1]


def test_a_kernel_calls_the_next_provider(registry, lib):
    lib.define("g(Tensor x, int n) -> str")
    op = []

    def doubling(x, n):
        return "twice " + md.next_provider(op[0], "first", x, n * 2)

    lib.impl("g", doubling, "CPU", provider="first", order=9)
    lib.impl("g", says("small"), "CPU", provider="second", order=5, supports=small)
    lib.impl("g", says("any"), "CPU")
    op.append(registry.ops.s.g.default)
    assert [op[0](A(), 1), op[0](A(), 3)] == ["twice small", "twice any"]
    with md.priority(op[0], ["second"]):
        assert op[0](A(), 3) == "small"
        assert op[0](A(), 9) == "twice any"
    with pytest.raises(errors.InvalidArgumentError, match="no provider 'third'"):
        md.next_provider(op[0], "third", A(), 1)


def test_functions_that_register_kernels_register_providers(registry, lib):
    lib.define("g(Tensor x, int n) -> str")
    asked = []

    def available():
        return not asked.append(1)

    md.impl("s::g", ["cpu", "cuda"], says("fast"), registry=registry, provider="fast", order=9,
            supports=small, available=available)  # fmt: skip
    assert asked == [1]
    register = md.register_kernel("s::g", "cpu", registry=registry, provider="slow", required=False)
    register(says("slow"))
    g = registry.ops.s.g.default
    assert [both_ways(g, A(), 1), both_ways(g, A(), 9)] == ["fast", "slow"]
    assert [name for name, _ in registry.why("s::g", "CUDA").providers] == ["fast"]
    with pytest.raises(errors.InvalidArgumentError, match="name it"):
        md.impl("s::g", "cpu", says("no"), registry=registry, order=3)
    with pytest.raises(errors.DuplicateRegistrationError):
        md.impl("s::g", ["xpu", "cpu"], says("no"), registry=registry, provider="fast")
    assert not registry.why("s::g", "XPU").providers


def test_a_custom_operator_has_providers(registry):
    @md.custom_op("s::norm", mutates_args=(), schema="(Tensor x, int n) -> str", registry=registry)
    def norm(x, n):
        return "own"

    norm.register_kernel(None, says("any"), provider="any", supports=small)
    norm.register_kernel("cpu", provider="fast", order=1, supports=small)(says("fast"))
    norm.register_kernel("cpu", says("slow"), provider="slow")
    f = norm.operator
    assert [both_ways(f, A(), 1), both_ways(f, A(), 9)] == ["fast", "slow"]
    assert [both_ways(f, Cuda(), 1), both_ways(f, Cuda(), 9)] == ["any", "own"]
    with md.priority(f, ["slow"]):
        assert both_ways(f, A(), 1) == "slow"
    with pytest.raises(errors.InvalidArgumentError, match="name it"):
        norm.register_kernel("cpu", says("no"), supports=small)


def test_the_key_set_goes_to_the_kernels_that_want_it(registry, lib):
    lib.define("g(Tensor x, int n) -> str")
    lib.impl("g", lambda keys, x, n: str(keys), "CPU", provider="a", supports=small,
             with_keyset=True)  # fmt: skip
    lib.impl("g", says("plain"), "CPU", provider="b", order=-1)
    assert "CPU" in registry.ops.s.g(A(), 1)
    assert registry.ops.s.g(A(), 9) == "plain"


def test_an_optional_provider_counts_only_where_it_is():
    def there(text):
        text = kinds_of_facts.impl_text("shop.fast", "", "", text)
        key = int(md.DispatchKey.CPU)
        return AbsentKernel(
            kinds_of_facts.Registration(0, 1, kinds_of_facts.IMPL, key, "s::f", text, "", 1, 0)
        )

    assert providers.may_run(there("fast 9 required -"))
    assert not providers.may_run(there("fast 9 optional -"))
    assert providers.at_key("s::f", [there("fast 9 optional -")], (), None) is None


def test_the_namespace_is_nearer_than_all(f):
    registry = f.dispatcher.holder
    md.set_priority("s::*", ["slow"], registry=registry)
    md.set_priority("*", ["middle"], registry=registry)
    assert both_ways(f, A(), 1) == "slow"
    with md.priority("*", ["middle"], registry=registry):
        assert both_ways(f, A(), 1) == "middle"


def test_the_next_provider_comes_in_the_order_that_is_set(registry, lib):
    lib.define("g(Tensor x) -> str")

    def first(x):
        return md.next_provider(registry.ops.s.g.default, "first", x)

    lib.impl("g", first, "CPU", provider="first", order=9)
    lib.impl("g", says("second"), "CPU", provider="second", order=5)
    lib.impl("g", says("third"), "CPU", provider="third")
    assert registry.ops.s.g(A()) == "second"
    with md.set_priority("s::g", ["first", "third"], registry=registry):
        assert registry.ops.s.g(A()) == "third"
    strict = md.set_priority("s::g", ["first"], strict=True, registry=registry)
    with strict, pytest.raises(errors.ProviderRefusedError):
        registry.ops.s.g(A())


@pytest.mark.parametrize("error", [KeyError, ArithmeticError, StopIteration, OSError])
def test_a_predicate_refuses_by_any_exception(registry, lib, error):
    def supports(x):
        raise error("no")

    lib.define("g(Tensor x) -> str")
    lib.impl("g", says("a"), "CPU", provider="a", order=1, supports=supports)
    lib.impl("g", says("b"), "CPU", provider="b")
    assert both_ways(registry.ops.s.g.default, A()) == "b"


def test_the_number_of_guards_is_right_when_another_thread_ends_one_meanwhile(f, monkeypatch):
    first, original = md.priority(f, ["slow"]), priorities.number_of

    def number_of(guards):
        found = original(guards)
        if len(guards) == 2:  # the second one has begun, and its number is not noted yet
            other = threading.Thread(target=first.close)
            other.start()
            other.join()
        return found

    monkeypatch.setattr(priorities, "number_of", number_of)
    with md.priority(f, ["middle"]):
        opened = tuple(priorities.guards.open)
        assert len(opened) == 1
        assert priorities.guards.stack.priority == original(opened)


def test_a_guard_whose_end_is_interrupted_has_ended(f, monkeypatch):
    interrupts, original = [KeyboardInterrupt], priorities.number_of

    def number_of(guards):
        if interrupts:
            raise interrupts.pop()
        return original(guards)

    guard = md.priority(f, ["slow"])
    assert both_ways(f, A(), 1) == "slow"
    monkeypatch.setattr(priorities, "number_of", number_of)
    with pytest.raises(KeyboardInterrupt):
        guard.close()
    assert both_ways(f, A(), 1) == "fast"
    interrupts.append(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) as caught:  # whose traceback keeps the guard
        md.priority(f, ["slow"])
    assert caught.traceback
    assert (priorities.guards.open, priorities.guards.stack.priority) == ([], 0)


# --- in C and in Python ---------------------------------------------------------------------------


@pytest.mark.shared
def test_c_asks_predicates_by_itself(registry, lib):
    lib.define("g(Tensor x, int n) -> str")
    callers = []

    def who_calls(x, n):
        callers.append(sys._getframe(1).f_code.co_name)
        return n < 5

    lib.impl("g", lambda x, n: who_calls(x, n) and "a", "CPU", provider="a", supports=who_calls)
    lib.impl("g", lambda x, n: who_calls(x, 0) and "b", "CPU", provider="b", order=-1)
    g, own = registry.ops.s.g.default, sys._getframe().f_code.co_name
    for _ in range(3):
        assert [g(A(), 1), g(A(), 9)] == ["a", "b"]
    assert callers == [own, "<lambda>", own, "<lambda>"] * 3
    with md.priority(g, ["b"]):
        assert g(A(), 1) == "b"
    assert [g(A(), 1), callers[-2]] == ["a", own]
    callers.clear()
    assert both_ways(g, A(), 1) == "a"
    assert own not in callers[2:]  # the second way


class NoTruth:
    def __bool__(self):
        raise ValueError("neither")


@pytest.mark.parametrize(
    ("answer", "which_runs"), [(0, "b"), ([], "b"), ("yes", "a"), (NoTruth(), "b"), (None, "b")]
)
def test_the_truth_of_what_a_predicate_returns_counts(registry, lib, answer, which_runs):
    lib.define("g(Tensor x) -> str")
    lib.impl("g", says("a"), "CPU", provider="a", supports=lambda x: answer)
    lib.impl("g", says("b"), "CPU")
    assert both_ways(registry.ops.s.g.default, A()) == which_runs


@pytest.mark.parametrize("on", [True, False])
def test_no_predicate_holds_up_what_ends_the_program(registry, lib, on):
    class Stop(BaseException):
        pass

    def stops(x):
        raise Stop

    lib.define("g(Tensor x) -> str")
    lib.impl("g", says("a"), "CPU", provider="a", supports=stops)
    lib.impl("g", says("b"), "CPU")
    turn(on)
    try:
        with pytest.raises(Stop):
            registry.ops.s.g(A())
    finally:
        turn(True)


def test_predicates_get_what_the_kernel_gets(registry, lib):
    lib.define("g(Tensor x, int[] n=[1, 2], *, float scale=2) -> Any")
    seen = []

    def notes(*args, **keywords):
        seen.append((args[1:], keywords))
        return len(args[1]) == 2

    lib.impl("g", lambda keys, x, n, *, scale: ("a", n, scale), "CPU", provider="a",
             supports=notes, with_keyset=True)  # fmt: skip
    lib.impl("g", lambda x, n, *, scale: ("b", n, scale), "CPU", provider="b", order=-1)
    g = registry.ops.s.g.default
    for way in (g, lambda *args, **keywords: call_py.call(g, args, keywords)):
        seen.clear()
        assert way(A()) == ("a", [1, 2], 2.0)
        assert way(A(), (7,), scale=3) == ("b", [7], 3.0)
        assert seen == [(([1, 2],), {"scale": 2.0}), (([7],), {"scale": 3.0})]


@pytest.mark.parametrize("numbered", [3, 100])  # fewer and more than C keeps for one operator
def test_more_guards_than_are_kept_lead_where_they_should(f, monkeypatch, numbered):
    monkeypatch.setattr(priorities, "_MOST_NUMBERED", len(priorities._numbered) + numbered)
    names = ["fast", "middle", "slow", *(f"other{i}" for i in range(20))]
    for first in names * 2:
        with md.priority(f, [first, *({"slow"} - {first})]):
            assert both_ways(f, A(), 1) == (first if first in names[:3] else "slow")
            with md.priority("*", ["middle"], registry=f.dispatcher.holder):
                assert both_ways(f, A(), 1) == "middle"
    assert both_ways(f, A(), 1) == "fast"


def test_a_guard_that_another_thread_ends_has_ended_here(f):
    guard = md.priority(f, ["slow"])
    assert both_ways(f, A(), 1) == "slow"
    thread = threading.Thread(target=guard.close)
    thread.start()
    thread.join()
    assert both_ways(f, A(), 1) == "fast"


def test_a_guard_counts_in_its_own_registry(f):
    with md.Registry.local() as other:
        library = md.Library("s", "DEF", registry=other)
        library.define("f(Tensor x, int n) -> str")
        for name in ("slow", "fast"):  # the newest is first
            library.impl("f", says(f"other {name}"), "CPU", provider=name)
        g = other.ops.s.f.default
        for opened, word, there in ((f, "slow", "other fast"), (g, "fast", "other slow")):
            with md.priority(opened, ["slow"]):
                assert [both_ways(f, A(), 1), both_ways(g, A(), 1)] == [word, there]


@pytest.mark.thorough
@pytest.mark.dear
@pytest.mark.parametrize("on", [True, False])
def test_a_provider_that_a_predicate_closes_runs_to_its_end(registry, lib, on):
    lib.define("g(Tensor x) -> str")
    closing = md.Library("s", "IMPL", registry=registry)

    def kernel(x):
        return "a"

    def closes(x):
        closing.close()
        gc.collect()
        return True

    gone = [weakref.ref(kernel), weakref.ref(closes)]
    closing.impl("g", kernel, "CPU", provider="a", supports=closes)
    lib.impl("g", says("b"), "CPU")
    g = registry.ops.s.g.default
    del kernel, closes
    turn(on)
    try:
        assert [g(A()), g(A())] == ["a", "b"]
    finally:
        turn(True)
    for _ in range(4):  # without a GIL, what a call used is let go when later plans are replaced
        lib.impl("g", says("b"), "CPU")
        assert g(A()) == "b"
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.parametrize("on", [True, False])
def test_observers_are_told_of_the_provider(f, on):
    told = []
    turn(on)
    try:
        with md.observe_calls(after=lambda c: told.append((c.how, c.provider, c.depth))):
            f(A(), 9)
            with md.priority(f, ["slow"]):
                f(A(), 9)
    finally:
        turn(True)
    assert told[:2] == [("provider", "middle", 1), ("call", "", 0)]
    assert ("provider", "slow", 1) in told


@pytest.mark.parametrize("on", [True, False])
def test_runs_of_providers_are_counted_in_all_threads(f, lib, on):
    lib.define("plain(Tensor x) -> str")
    lib.impl("plain", says("no provider"), "CPU")

    def calls():
        for number in (1, 9, 9):
            f(A(), number)
        with md.priority(f, ["slow"], strict=True):
            f(A(), 1)
        f.dispatcher.holder.ops.s.plain(A())

    turn(on)
    try:
        with md.count_providers() as counts:
            threads = [threading.Thread(target=calls) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        calls()
    finally:
        turn(True)
    assert counts.runs() == (
        ("s::f", "CPU", "fast", 4, 0),
        ("s::f", "CPU", "middle", 8, 8),
        ("s::f", "CPU", "slow", 4, 0),
    )
    assert "s::f at CPU: middle ran 8 times, 8 of them after others had refused" in str(counts)


def test_runs_of_what_comes_after_all_providers_are_counted(registry, lib):
    lib.define("g(Tensor x, int n) -> str")
    lib.impl("g", says("a"), "CPU", provider="a", supports=small)
    lib.impl("g", says("b"), "CPU")
    with md.count_providers() as counts:
        assert [registry.ops.s.g(A(), n) for n in (1, 9, 9)] == ["a", "b", "b"]
    assert counts.runs() == (("s::g", "CPU", "", 2, 2), ("s::g", "CPU", "a", 1, 0))


def test_counts_stop_and_stay_where_the_handle_is_closed(f):
    counts = md.count_providers()
    f(A(), 1)
    counts.close()
    counts.close()
    f(A(), 1)
    assert counts.runs() == (("s::f", "CPU", "fast", 1, 0),)


def test_the_child_of_a_fork_counts_from_zero():
    got = run_main(
        """
lib = md.Library("s", "DEF")
lib.define("f(int n) -> int")
lib.impl("f", lambda n: n, "CompositeExplicitAutograd", provider="one")
with md.count_providers() as counts:
    md.ops.s.f(1)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        before = counts.runs()
        md.ops.s.f(1)
        md.ops.s.f(1)
        os.write(write, repr((before, [tuple(each) for each in counts.runs()])).encode())
        os._exit(0)
    os.waitpid(child, 0)
    done(child=eval(os.read(read, 1000)), parent=[tuple(each) for each in counts.runs()])
"""
    )
    one = "s::f", "Undefined", "one"
    assert (got["child"], got["parent"]) == (((), [(*one, 2, 0)]), [(*one, 1, 0)])


def test_without_predicates_the_kernel_itself_is_in_the_table(registry, lib):
    lib.define("g(Tensor x) -> str")
    for order, word in enumerate("abc"):
        lib.impl("g", says(word), "CPU", provider=word, order=order)
    with md.observe_calls(after=lambda call: told.append(call.provider)):
        told: list[str] = []
        assert registry.ops.s.g(A()) == "c"
    assert told == ["c"]


def test_why_lists_every_provider(f):
    registry = f.dispatcher.holder
    assert registry.why("s::f", "CPU").providers == (
        ("fast", "asked: its predicate decides for each call; order 10"),
        ("middle", "accepted; order 5"),
        ("slow", "not asked: one before it takes every call; order 0"),
    )
    with md.priority(f, ["middle"], strict=True):
        why = registry.why("s::f", "CPU")
    assert [name for name, _ in why.providers] == ["middle", "fast", "slow"]
    assert dict(why.providers)["fast"].startswith("skipped: the guard at ")
    assert why.row.kernel.endswith(" of middle")
    assert "order 10" in registry.dump("s::f")
    assert "fast, or middle" in registry.dump_table("s::f")


# --- what is refused ------------------------------------------------------------------------------


def test_a_name_is_unique_at_its_key(f, lib):
    before = f.dispatcher.facts.registrations()
    with pytest.raises(errors.DuplicateRegistrationError, match="provider 'slow'"):
        lib.impl("f", says("again"), "CPU", provider="slow")
    assert f.dispatcher.facts.registrations() == before
    lib.impl("f", says("elsewhere"), "CUDA", provider="slow")


def test_allow_override_means_any_kernel_for_the_same_types(f, lib):
    with pytest.raises(errors.DuplicateRegistrationError):
        lib.impl("f", says("again"), "CPU", provider="new", allow_override=False)
    lib.impl("f", says("for A"), "CPU", provider="new", types=A, allow_override=False, order=99)
    assert f(A(), 1) == "for A"


@pytest.mark.parametrize(
    "given",
    [
        {"provider": "a b"},
        {"provider": ""},
        {"provider": 5},
        {"provider": "a", "order": 1.5},
        {"provider": "a", "order": True},
        {"provider": "a", "supports": 5},
        {"provider": "a", "available": "yes"},
        {"provider": "a", "required": 1},
        {"order": 5},
        {"supports": small},
        {"available": True},
        {"required": False},
    ],
)
def test_what_is_no_provider_is_refused_and_nothing_changed(f, lib, given):
    before = f.dispatcher.facts.registrations()
    with pytest.raises(errors.InvalidArgumentError):
        lib.impl("f", says("bad"), "CPU", **given)
    assert f.dispatcher.facts.registrations() == before


def test_a_fallthrough_is_no_provider(f, lib):
    with pytest.raises(errors.InvalidArgumentError, match="fallthrough_kernel is no provider"):
        lib.impl("f", md.fallthrough_kernel, "CPU", provider="none")


def test_a_predicate_has_to_take_the_arguments(registry, lib):
    lib.define("g(Tensor x, int n) -> str")
    with pytest.raises(errors.SignatureMismatchError, match="the predicate of the provider 'a'"):
        lib.impl("g", says("a"), "CPU", provider="a", supports=lambda x: True)
    lib.impl("later", says("a"), "CPU", provider="a", supports=lambda x: True)
    with pytest.raises(errors.SignatureMismatchError, match="the predicate of the provider 'a'"):
        lib.define("later(Tensor x, int n) -> str")


@pytest.mark.parametrize("pattern", ["", "s", "s::", "s::f.", "*::f", 5, None, "s::f*"])
def test_what_is_no_pattern_is_refused(f, pattern):
    registry = f.dispatcher.holder
    with pytest.raises(errors.InvalidArgumentError):
        md.set_priority(pattern, ["a"], registry=registry)
    with pytest.raises(errors.InvalidArgumentError):
        md.priority(pattern, ["a"], registry=registry)


@pytest.mark.parametrize("names", [[], "fast", ["a", "a"], ["a b"], [5], None])
def test_what_are_no_names_is_refused(f, names):
    with pytest.raises(errors.InvalidArgumentError):
        md.set_priority("s::f", names, registry=f.dispatcher.holder)
    with pytest.raises(errors.InvalidArgumentError):
        md.priority(f, names)


# --- the same everywhere --------------------------------------------------------------------------

MODULE = """
import mdispatch as md
main = md.is_main_interpreter()
md.register_type(bytearray, "CPU")
lib = md.Library("shop", "DEF")
lib.define("norm(Tensor x) -> str")
orders = [1, 2] if main or {same} else [2, 1]
lib.impl("norm", lambda x: "a", "CPU", provider="a", order=orders[0])
lib.impl("norm", lambda x: "b", "CPU", provider="b", order=orders[1])
lib.impl("norm", lambda x: "gpu", "CPU", provider="gpu", order=9, required={required},
         available=lambda: main or {same} and not {lacks})
if main or {same}:
    lib.impl("norm", lambda x: "c", "CPU", provider="c", order=-1)
else:
    lib.impl("norm", lambda x: "d", "CPU", provider="d", order=-1)
md.set_priority("shop::norm", ["a"] if main or {same} else ["b"], timeout=1)
"""

WORKER = """
import mdispatch as md
try:
    md.warm_up(["provided_ops"], timeout=1)
except md.errors.WarmUpError as error:
    found = [(type(e).__name__, str(e)) for e in error.differences]
else:
    found = []
report(found=found, runs=None if found else md.ops.shop.norm(bytearray()))
"""

MAIN = """
kind, folder, worker = args
sys.path.insert(0, folder)
if kind == "fork":
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.environ["MDISPATCH_REGISTRY"] = os.read(read, 300).decode()
        import kinds
        kinds.run_source(worker, 0, folder, sys.path)
        os._exit(0)
md.warm_up(["provided_ops"])
runs = md.ops.shop.norm(bytearray())
if kind == "fork":
    os.write(write, md.default_registry().address.encode())
    os.waitpid(child, 0)
    result = eval((Path(folder) / "0").read_text())
else:
    result = results(start(kind, worker, 1, Path(folder)))[0]
done(main=runs, **result)
"""

EVERYWHERE = pytest.mark.parametrize("kind", [*INTERPRETERS, "fork", "spawn"])


def warmed_up(kind, folder, **how):
    (folder / "provided_ops.py").write_text(MODULE.format(**how))
    return ran(MAIN, kind, folder, WORKER)


def ran(text, kind, folder, *more):
    got = run_main(text, kind, str(folder), *more)
    return {name: got[name] for name in got if name not in ("returncode", "stderr", "stdout")}


@pytest.mark.shared
@EVERYWHERE
def test_a_worker_that_has_the_same_runs_the_same(kind, tmp_path):
    got = warmed_up(kind, tmp_path, same=True, required=True, lacks=False)
    assert got == {"main": "a", "runs": "a", "found": []}


@pytest.mark.waits
@pytest.mark.shared
@EVERYWHERE
def test_a_worker_is_told_of_all_that_its_providers_differ_in(kind, tmp_path):
    got = warmed_up(kind, tmp_path, same=False, required=True, lacks=True)
    names = sorted(name for name, _ in got["found"])
    assert names.count("PriorityMismatchError") == 3  # two orders, and what is set
    assert names.count("ProviderMissingError") == 2  # not available, and not registered there
    text = "\n".join(text for _, text in got["found"])
    assert (
        "available in the main interpreter and not in this one: provided_ops.<lambda> said no"
        in text
    )
    assert "the provider 'a' at CPU with order 2 here, and with order 1" in text
    assert "the priority for shop::norm is b here, and a in the main interpreter" in text
    assert "CPU of the provider 'd'" in text


@pytest.mark.thorough
@pytest.mark.shared
@EVERYWHERE
def test_what_is_not_required_a_worker_may_lack(kind, tmp_path):
    got = warmed_up(kind, tmp_path, same=True, required=False, lacks=False)
    assert got["found"] == []
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    text = MODULE.format(same=True, required=False, lacks="not main").replace('["a"]', '["gpu"]')
    (lacking / "provided_ops.py").write_text(text)
    got = ran(MAIN, kind, lacking, WORKER)
    assert got == {"main": "gpu", "runs": "b", "found": []}


@pytest.mark.shared
@EVERYWHERE
def test_the_main_interpreters_priority_holds_in_workers_at_once(kind, tmp_path):
    got = run_main(
        """
        kind, folder = args
        worker = '''
        import mdispatch as md
        from pathlib import Path
        lib = md.Library("shop", "FRAGMENT")
        md.register_type(bytearray, "CPU")
        lib.define("norm(Tensor x) -> str")
        for name in "ab":
            lib.impl("norm", lambda x, name=name: name, "CPU", provider=name)
        norm, found = md.ops.shop.norm, []
        for turn in range(3):
            found.append(norm(bytearray()))
            arrived(turn)
            if turn < 2:
                md.wait_for_def(f"shop::turn{turn}", timeout=limit(30))
        report(found=found)
        '''
        lib = md.Library("shop", "FRAGMENT")
        lib.define("norm(Tensor x) -> str")
        for name in "ab":
            lib.impl("norm", lambda x, name=name: name, "CPU", provider=name)
        workers = start(kind, textwrap.dedent(worker), 1, Path(folder))
        until_arrived(workers, 0)
        handle = md.set_priority("*", ["a"])
        lib.define("turn0(Tensor x) -> str")
        until_arrived(workers, 1)
        handle.close()
        lib.define("turn1(Tensor x) -> str")
        done(**results(workers)[0])
        """,
        kind if kind != "fork" else "subprocess",
        str(tmp_path),
    )
    assert got["found"] == ["b", "a", "b"]


VERSIONED = """
import mdispatch as md
main = md.is_main_interpreter()


def at_least(wanted, here):
    if here < wanted:
        raise ImportError(f"tiles {wanted} is needed, and {here} is here")
    return True


md.register_type(bytearray, "CPU")
lib = md.Library("shop", "DEF")
lib.define("norm(Tensor x) -> str")
lib.impl("norm", lambda x: "a", "CPU", provider="a", order=1 if main else 2)
lib.impl("norm", lambda x: "tiles", "CPU", provider="tiles", order=3,
         available=lambda: at_least("1.2", "1.3" if main else "1.1"))
md.set_priority("shop::norm", ["a" if main else "tiles"], timeout=1)
"""

TASK = """
import mdispatch as md


def told(folder):
    try:
        md.warm_up(["versioned_ops"], [folder], timeout=1)
    except md.errors.WarmUpError as error:
        return sorted((type(each).__name__, str(each)) for each in error.differences)
"""

IN_POOLS = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
folder, pool = args
import pool_task
md.warm_up(["versioned_ops"])
with eval(pool) as pool:
    if hasattr(pool, "submit"):
        done(told=pool.submit(pool_task.told, folder).result())
    else:
        done(told=pool.apply(pool_task.told, (folder,)))
"""


@pytest.mark.shared
@pytest.mark.parametrize(
    "pool",
    [
        "md.InterpreterPool(1)",
        "ProcessPoolExecutor(1, get_context('spawn'))",
        "get_context('forkserver').Pool(1)",
    ],
)
def test_every_pool_tells_of_another_order_priority_and_version(pool, tmp_path, monkeypatch):
    # CPython's own pool of interpreters gives them the path that the process began with.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "versioned_ops.py").write_text(VERSIONED)
    (tmp_path / "pool_task.py").write_text(TASK)
    order, priority, missing = run_main(IN_POOLS, str(tmp_path), pool)["told"]
    assert order[0] == priority[0] == "PriorityMismatchError"
    assert "order 2 here, and with order 1" in order[1] + priority[1]
    assert "the priority for shop::norm is tiles here, and a in the" in order[1] + priority[1]
    assert missing[0] == "ProviderMissingError"
    assert "<lambda> raised ImportError: tiles 1.2 is needed, and 1.1 is here" in missing[1]


def test_a_kernel_that_takes_the_keys_gets_them_behind_a_provider_that_does_not(registry):
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x, int n) -> str")
    lib.impl("f", lambda keys, x, n: str(keys.has("CPU")), "CPU", with_keyset=True)
    lib.impl("f", says("a"), "CPU", provider="a", supports=small)
    assert [registry.ops.s.f(A(), n) for n in (1, 9)] == ["a", "True"]


def test_the_function_of_a_custom_operator_comes_after_the_providers_of_a_device(registry):
    class Here:
        __dispatch_keys__ = "CPU"

    op = md.custom_op(
        "s::own", says("own"), schema="(Tensor x) -> str", mutates_args=(), registry=registry
    )
    op.register_kernel("cpu", says("fast"), provider="fast", supports=lambda x: takes[0])
    op.register_kernel("cpu", says("even"), provider="even", supports=lambda x: False)
    for takes in ([True], [False]):
        for call in (op, lambda x: call_py.call(op.operator, (x,), {})):
            assert call(Here()) == ("fast" if takes[0] else "own")
    op.register_kernel("cpu", says("plain"))
    takes = [False]
    assert op(Here()) == "plain"
