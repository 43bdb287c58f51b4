"""A call that C begins and Python makes leaves nothing behind."""

from __future__ import annotations

import gc
import sys
import threading

import pytest

import mdispatch as md
from mdispatch import errors
from mdispatch.context import (
    AutoDispatchBelowAutograd,
    DispatchMode,
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
)
from mdispatch.dispatch.context import modes
from mdispatch.dispatch.context.guards import DEFAULT_EXCLUDED, DEFAULT_INCLUDED
from mdispatch.dispatch.context.hermetic import hermetic
from mdispatch.facts.native import calls

MARK = 10**30  # no other code holds it


class Index:
    def __index__(self):
        return 7


class Handled:
    __dispatch_keys__ = "CPU"

    @classmethod
    def __md_dispatch__(cls, operator, types, args, kwargs):
        return "handled"


class Array:
    __dispatch_keys__ = "CPU"


@pytest.mark.parametrize(
    ("schema", "rest", "answer"),
    [
        ("f(int[] xs, Tensor x, int i) -> str", (Array(), Index()), "ran"),
        ("f(int[] xs, Tensor x) -> str", (Handled(),), "handled"),
        ("f(int[] xs, int[] ys, Tensor x, int i) -> str", ((MARK,), Array(), Index()), "ran"),
    ],
    ids=["an argument that is not plain", "a value that answers itself", "two lists"],
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_the_lists_of_a_call_that_goes_on_to_python_are_given_back(
    schema, rest, answer, kind, registry, lib
):
    lib.define(schema)
    lib.impl("f", lambda *args: "ran", "CPU")
    f, xs = registry.ops.s.f.default, kind([MARK, MARK])
    assert f(xs, *rest) == answer
    before = sys.getrefcount(MARK)
    for _ in range(100):
        assert f(xs, *rest) == answer
    assert sys.getrefcount(MARK) < before + 100


def test_the_default_lists_of_such_a_call_are_given_back(registry, lib):
    lib.define("f(Tensor x, int[] xs=[1, 2], *, int i) -> str")
    lib.impl("f", lambda *args, **kwargs: "ran", "CPU")
    f, x, i = registry.ops.s.f.default, Array(), Index()
    for _ in range(50):
        assert f(x, i=i) == "ran"
    before = sys.getallocatedblocks()
    for _ in range(1000):
        f(x, i=i)
    assert sys.getallocatedblocks() < before + 900


class Answers(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return "answered"


class CallsOn(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return op(*args, **kwargs)


class Declines(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return NotImplemented


class Raises(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        raise ValueError


def tried(call):
    try:
        return call()
    except (ValueError, errors.MdispatchError):
        return None


CONTEXTS = {
    "a guard": lambda: ExcludeDispatchKeyGuard(md.DispatchKeySet("AutogradCPU")),
    "a guard by name": lambda: IncludeDispatchKeyGuard("BackendSelect"),
    "a guard below autograd": AutoDispatchBelowAutograd,
    "a guard of both sets": lambda: ForceDispatchKeyGuard("BackendSelect", "AutogradCPU"),
    "a hermetic guard": hermetic,
    "a mode that answers": Answers,
    "a mode that calls on": CallsOn,
    "a mode that declines": Declines,
    "a mode that raises": Raises,
}


def leaves_nothing(run, rounds=300):
    """Whether blocks of memory are as many after many rounds as after some. What leaks does so each
    time; CPython without a GIL frees some hundred blocks later than others, once.
    """
    counts = []
    for _ in range(3):
        for _ in range(rounds):
            run()
        gc.collect()
        counts.append(sys.getallocatedblocks())
    return min(counts[1] - counts[0], counts[2] - counts[1]) < rounds // 3


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.parametrize("value", [Array(), Handled()], ids=["a value", "one that answers"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_a_call_inside_leaves_nothing_behind(context, value, registry, lib):
    lib.define("f(Tensor x, *, int[] ys=[1, 2]) -> str")
    lib.impl("f", lambda x, ys: "ran", "CPU")
    f, block = registry.ops.s.f.default, CONTEXTS[context]

    def run():
        with block():
            tried(lambda: f(value))
            tried(lambda: f.redispatch(md.DispatchKeySet("CPU", "Python"), value, ys=(3,)))

    assert leaves_nothing(run)


@pytest.mark.alone
@pytest.mark.thorough
def test_guards_that_are_dropped_nested_and_moved_leave_nothing_behind():
    shared = ExcludeDispatchKeyGuard("Negative")

    def run():
        ExcludeDispatchKeyGuard("AutogradCPU").__enter__()
        opened = [IncludeDispatchKeyGuard("Python").__enter__() for _ in range(20)]
        for guard in opened[::2]:
            guard.__exit__()
        for _ in range(9):
            shared.__enter__()
        thread = threading.Thread(target=shared.__enter__)
        thread.start()
        thread.join()
        while shared.is_open:
            shared.__exit__()

    assert leaves_nothing(run, 100)
    assert calls.sets() == (DEFAULT_INCLUDED.raw, DEFAULT_EXCLUDED.raw)


@pytest.mark.thorough
@pytest.mark.alone
@pytest.mark.dear
def test_calls_of_a_custom_op_and_key_sets_leave_nothing_behind(registry):
    made = md.custom_op(
        "s::made",
        lambda x, ys: [*ys, x] if ys else Array(),
        mutates_args=(),
        schema="(Tensor x, Tensor[] ys) -> Any",
        registry=registry,
    )
    x, keys = Array(), md.DispatchKeySet("CPU", "Python")

    def run():
        made(x, [])
        tried(lambda: made(x, [x]))
        assert (keys & keys | keys) - keys == md.DispatchKeySet("CPU") - md.DispatchKeySet("Dense")

    assert leaves_nothing(run)


@pytest.mark.alone
@pytest.mark.thorough
def test_threads_with_guards_and_modes_leave_nothing_behind(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "ran", "CPU")
    f, x = registry.ops.s.f.default, Array()

    def work():
        modes.push_mode(Answers())  # never taken off
        ExcludeDispatchKeyGuard("AutogradCPU").__enter__()
        with CallsOn():
            assert f(x) == "answered"

    def run():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert leaves_nothing(run, 100)
