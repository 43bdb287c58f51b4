"""What surrounds calls is the same in C and in Python: guards, modes, custom_op, key sets."""

from __future__ import annotations

import gc
import random
import sys
import sysconfig
import threading

import pytest

import mdispatch as md
from mdispatch import errors
from mdispatch.context import (
    AutoDispatchBelowAutograd,
    DispatchMode,
    ExcludeDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    excluded_keys,
    included_keys,
)
from mdispatch.dispatch.context import guards
from mdispatch.facts.native import calls, guards_py
from mdispatch.keys import DispatchKey, DispatchKeySet
from mdispatch.keys.numbers import BACKEND_BITS, FULL, PER_BACKEND_BITS

KEYS = [key for key in DispatchKey if key.raw]


class Array:
    pass


md.register_type(Array, "CPU")


def in_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    assert results, "the function raised"
    return results[0]


def is_ours(depth=2):
    """Whether the function that calls this was called from a frame of ours."""
    return sys._getframe(depth).f_globals["__name__"].startswith("mdispatch.")


# --- without a frame of ours ----------------------------------------------------------------------


@pytest.mark.shared
def test_modes_and_types_are_asked_without_a_frame_of_ours(registry, lib):
    seen = []

    class Log(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            seen.append(("mode", is_ours(), types))
            return NotImplemented if self is declines else op(*args, **kwargs)

    class Typed:
        @classmethod
        def __md_dispatch__(cls, op, types, args, kwargs):
            seen.append(("type", is_ours(), types))
            return "answered"

    lib.define("f(Tensor x, *, Tensor[] ys) -> str")
    lib.impl("f", lambda x, *, ys: seen.append(("kernel", is_ours(), ())) or "ran", "CPU")
    f, declines = registry.ops.s.f.default, Log()
    with Log(), Log():
        assert f(Array(), ys=[]) == "ran"
    assert seen == [("mode", False, ()), ("mode", False, ()), ("kernel", False, ())]
    seen.clear()
    with declines:
        assert f(Array(), ys=[Array(), Typed()]) == "answered"
    assert seen == [("mode", False, (Typed,)), ("type", False, (Typed,))]


@pytest.mark.shared
def test_a_kernel_of_a_custom_op_is_called_without_a_frame_of_ours(registry):
    seen = []

    def run(x):
        seen.append(is_ours())
        return Array()

    made = md.custom_op(
        "s::made", run, mutates_args=(), schema="(Tensor x) -> Tensor", registry=registry
    )
    assert isinstance(made(Array()), Array)
    assert seen == [False]


def test_a_rule_for_a_class_is_asked_as_soon_as_it_is_there(registry, lib):
    class Log(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            return "mode"

    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "ran", "CPU")
    f = registry.ops.s.f.default
    with Log():
        assert f(Array()) == "mode"
        f.py_impl(Log)(lambda mode, x: "rule")
        assert f(Array()) == "rule"


# --- custom operators -----------------------------------------------------------------------------


RETURNED = {
    "an argument": lambda x, ys: x,
    "an item": lambda x, ys: ys[0],
    "a list with an argument": lambda x, ys: [Array(), x],
}
SHARING = {
    "a view": lambda x, ys: x[1:],
    "the base": lambda x, ys: ys[0].base,
    "a view of one base": lambda x, ys: ys[0].base[:2],
}


def refused(registry, function, x, ys):
    made = md.custom_op(
        "s::made",
        function,
        mutates_args=(),
        schema="(Tensor x, Tensor[] ys) -> Any",
        registry=registry,
    )
    with pytest.raises(errors.AliasingError):
        made(x, ys)


@pytest.mark.parametrize("what", RETURNED)
def test_a_custom_op_returns_no_argument(registry, what):
    refused(registry, RETURNED[what], Array(), [Array()])


@pytest.mark.parametrize("what", SHARING)
def test_a_custom_op_returns_no_memory_of_an_array(registry, what):
    numpy = pytest.importorskip("numpy")
    refused(registry, SHARING[what], numpy.ones(4), [numpy.ones(8)[1:]])


@pytest.mark.parametrize("what", ["an argument", "a view"])
def test_a_custom_op_returns_no_memory_of_a_tensor(registry, what):
    torch = pytest.importorskip("torch")
    refused(registry, {**RETURNED, **SHARING}[what], torch.ones(4), [])


def test_a_custom_op_returns_what_shares_nothing(registry):
    made = md.custom_op(
        "s::made",
        lambda x, ys: x if type(x) in (int, type(None)) else x + 1,
        mutates_args=(),
        schema="(Any x, Any ys) -> Any",
        registry=registry,
    )
    assert [made(1, [1]), made(None, None)] == [1, None]
    numpy = pytest.importorskip("numpy")
    assert made(numpy.ones(3), [numpy.ones(3), "a"]).tolist() == [2.0] * 3


# --- key sets -------------------------------------------------------------------------------------


def test_key_sets_are_combined_as_the_methods_of_their_class_do_it():
    rng = random.Random(5)
    sets = [DispatchKeySet(*rng.sample(KEYS, rng.randint(0, 6))) for _ in range(60)]
    sets += [DispatchKeySet.full(), DispatchKeySet.full_after("AutogradCPU")]
    for a in sets:
        for b in sets:
            for found, method in ((a & b, "__and__"), (a | b, "__or__"), (a - b, "__sub__")):
                assert found == getattr(DispatchKeySet, method)(a, b)
                assert type(found) is DispatchKeySet


KEEPS = (
    not sysconfig.get_config_var("Py_GIL_DISABLED") and calls.Guard.__module__ != guards_py.__name__
)


@pytest.mark.thorough
@pytest.mark.dear
def test_a_set_keeps_what_was_made_of_it_last_and_no_set_keeps_itself():
    kept, other = DispatchKeySet("CPU", "AutogradCPU"), DispatchKeySet("CUDA")
    for below in (DispatchKeySet("CPU"), other, kept, DispatchKeySet("CPU"), other):
        for _ in range(3):
            made = kept & below
            assert made == DispatchKeySet.__dict__["__and__"](kept, below)
            assert made.raw == kept.raw & below.raw
            assert (kept & below is made) is KEEPS
        assert below & kept == made == made & kept
    while gc.collect():  # one leaves what is garbage because of it
        pass
    gc.disable()
    try:
        del kept, other, below, made
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_subclass_of_key_sets_and_what_is_none_are_left_to_the_methods():
    class Sub(DispatchKeySet):
        __slots__ = ()

    a, b = DispatchKeySet("CPU", "Python"), Sub("CPU")
    assert [type(found) for found in (a & b, b & a, b | b, b - a)] == [
        DispatchKeySet,
        Sub,
        Sub,
        Sub,
    ]
    for other in (1, None, "CPU"):
        for combine in (lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x - y):
            for pair in ((a, other), (other, a)):
                with pytest.raises(TypeError):
                    combine(*pair)


# --- guards ---------------------------------------------------------------------------------------


MADE = ((IncludeDispatchKeyGuard, included_keys), (ExcludeDispatchKeyGuard, excluded_keys))


def test_guards_that_c_makes_are_those_that_python_makes():
    for _ in range(2):  # the second time all of them are known
        for key in KEYS:
            for given in (key, key.name, DispatchKeySet(key), [key], (key.name,)):
                for cls, now in MADE:
                    with cls(given):
                        found = now()
                    with cls(keys=DispatchKeySet(key)):
                        assert found == now()


def test_what_guards_refuse_is_refused_again():
    for given in ("GPU", "Autograd", 3, None):
        for _ in range(2):
            with pytest.raises(errors.InvalidKeyError):
                ExcludeDispatchKeyGuard(given)
    for wrong in ((), ("CPU", "CUDA")):
        with pytest.raises(TypeError):
            IncludeDispatchKeyGuard(*wrong)
    with pytest.raises(TypeError):
        AutoDispatchBelowAutograd("CPU")


def test_a_subclass_of_a_guard_has_its_own_way_to_be_made():
    class Both(ExcludeDispatchKeyGuard):
        def __init__(self, key):
            super().__init__([key, "Negative"])

    with Both("Python"):
        assert {"Python", "Negative"} <= {key.name for key in excluded_keys()}


def random_bits(rng):
    raw = 0
    for _ in range(rng.randint(0, 3)):
        raw |= rng.choice(KEYS).raw
    return raw


@pytest.mark.parametrize("seed", range(30))
def test_guards_of_c_and_those_of_python_change_the_sets_alike(seed):
    """Any steps, in any order, by both: calls.Guard, and its twin."""
    rng = random.Random(seed)
    before = guards_py._defaults, guards_py._functionalities
    guards_py.start(
        guards.DEFAULT_INCLUDED.raw, guards.DEFAULT_EXCLUDED.raw, PER_BACKEND_BITS, DispatchKey
    )

    def run():
        opened = []
        for _ in range(300):
            what = rng.random()
            if what < 0.4:
                own = rng.choice(KEYS).raw if rng.random() < 0.3 else 0
                steps = [
                    (rng.randint(0, 1), rng.choice((0, FULL, FULL & ~own)), random_bits(rng), own)
                    for _ in range(rng.randint(0, 3))
                ]
                both = calls.Guard(*steps), guards_py.Guard(*steps)
                opened.append([guard.__enter__() for guard in both])
            elif what < 0.7 and opened:
                for guard in opened.pop(rng.randrange(len(opened))):
                    guard.__exit__()
            elif what < 0.8 and opened:
                opened.pop(rng.randrange(len(opened)))  # nobody holds it: it has ended
            else:
                key = rng.choice(KEYS)
                change = rng.randint(0, 1), key.raw, *guards._switch(key, rng.random() < 0.5)
                calls.change(*change)
                guards_py.change(*change)
            assert calls.sets() == guards_py.sets()
            assert calls.changed_sets() == guards_py.changed_sets()
            assert calls.now() == guards_py.now()
            included, excluded = calls.sets()
            assert calls.now() == (included, FULL & ~(excluded & ~BACKEND_BITS))
        return True

    try:
        assert in_thread(run)
    finally:
        guards_py._defaults, guards_py._functionalities = before


@pytest.mark.shared  # elsewhere guards are Python
@pytest.mark.parametrize("keys", ["AutogradCPU", DispatchKey.AutogradCPU])
def test_python_is_asked_once_which_keys_a_guard_is_given(keys):
    seen = []
    with ExcludeDispatchKeyGuard(keys):
        pass  # the first guard asks
    sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_globals["__name__"])))
    try:
        ExcludeDispatchKeyGuard(keys)
    finally:
        sys.setprofile(None)
    assert not [each for each in seen if each[1].startswith("mdispatch")]
