"""Kernels that call operators while they run, also their own; or register, close, raise."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest
from kinds import run_main

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context.guards import AutoDispatchBelowAutograd


class Array:
    def __init__(self, *keys):
        self.__dispatch_keys__ = keys or ("CPU",)


CPU, GRAD = Array("CPU"), Array("CPU", "AutogradCPU")
Keys = md.DispatchKeySet


@pytest.fixture
def f(registry, lib):
    """The operator s::f, defined and without kernels."""
    lib.define("f(Tensor x, int n=0) -> Any")
    return registry.ops.s.f.default


@pytest.fixture(autouse=True)
def every_test_leaves_a_sound_registry(registry):
    yield
    registry.check_invariants()


WAYS = {
    "call": lambda f, n: f(CPU, n),
    "call_with_keyset": lambda f, n: f.call_with_keyset(Keys("CPU"), CPU, n),
    "redispatch": lambda f, n: f.redispatch(Keys("CPU"), CPU, n),
    "call_for_dispatch_key": lambda f, n: f.call_for_dispatch_key("CPU", CPU, n),
    "call_boxed": lambda f, n: pushed(lambda stack: f.call_boxed(stack), CPU, n),
    "redispatch_boxed": lambda f, n: pushed(
        lambda stack: f.redispatch_boxed(Keys("CPU"), stack), CPU, n
    ),
}


def pushed(run, *arguments):
    stack = list(arguments)
    run(stack)
    return stack[0]


# --- operators in operators -----------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_may_call_its_own_operator_to_any_depth(f, lib, way):
    lib.impl("f", lambda x, n: n if n == 0 else 1 + WAYS[way](f, n - 1), "CPU")
    assert WAYS[way](f, 50) == 50


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("observed", [False, True], ids=["unobserved", "observed"])
def test_endless_recursion_ends_as_it_does_in_python_and_harms_nothing(
    registry, f, lib, way, observed
):
    seen = []
    lib.impl("f", lambda x, n: WAYS[way](f, n + 1), "CPU")
    watch = lambda call: seen.append(call.depth)  # noqa: E731
    with md.observe_calls(watch) if observed else contextlib.nullcontext():
        with pytest.raises(RecursionError):
            WAYS[way](f, 0)
        lib.impl("f", lambda x, n: n, "CPU")
        seen.clear()
        assert WAYS[way](f, 7) == 7
        assert seen == ([0] if observed else [])


def test_a_kernel_that_calls_its_operator_again_comes_back_to_itself(f, lib):
    """Nothing excludes the key of the running kernel: redispatch is the way to go on below it."""
    lib.impl("f", lambda x, n: ["below"], "CPU")

    @lib.impl("f", dispatch_key="AutogradCPU", with_keyset=True)
    def graded(keys, x, n):
        if n < 3:
            return [n, *f(x, n + 1)]
        return ["last", *f.redispatch(keys & Keys.full_after("AutogradCPU"), x, n)]

    assert f(GRAD) == [0, 1, 2, "last", "below"]


def test_a_kernel_goes_below_autograd_for_all_that_it_calls(registry, f, lib):
    lib.define("g(Tensor x) -> Any")
    for key in ("CPU", "AutogradCPU"):
        lib.impl("g", lambda x, key=key: key, key)
    lib.impl("f", lambda x, n: registry.ops.s.g(x), "CPU")

    @lib.impl("f", dispatch_key="AutogradCPU")
    def graded(x, n):
        before = registry.ops.s.g(x)
        with AutoDispatchBelowAutograd():
            return before, f(x), registry.ops.s.g(x)

    assert f(GRAD) == ("AutogradCPU", "CPU", "CPU")
    assert registry.ops.s.g(GRAD) == "AutogradCPU"


def test_each_key_hands_on_to_the_next_one(f, lib):
    order = ["PythonDispatcher", "FuncTorchBatched", "AutogradCPU", "Conjugate", "BackendSelect"]
    for key in order:

        def kernel(keys, x, n, key=key):
            return [key, *f.redispatch(keys & below[key], x, n)]

        lib.impl("f", kernel, key, with_keyset=True)
    # The keys after a key include PythonDispatcher; its own kernel has to take that out.
    below = {key: Keys.full_after(key).remove("PythonDispatcher") for key in order}
    lib.impl("f", lambda x, n: ["CPU"], "CPU")
    assert f(Array("CPU", *order)) == [*order, "CPU"]


def test_operators_call_each_other(registry, f, lib):
    lib.define("g(Tensor x, int n) -> Any")
    lib.impl("f", lambda x, n: ["f", *registry.ops.s.g(x, n - 1)] if n else [], "CPU")
    lib.impl("g", lambda x, n: ["g", *registry.ops.s.f(x, n - 1)] if n else [], "CPU")
    assert f(CPU, 5) == ["f", "g", "f", "g", "f"]


# --- registering and closing while a kernel runs --------------------------------------------------


def test_a_kernel_that_is_replaced_while_it_runs_runs_to_its_end(registry, f, lib):
    def old(x, n):
        lib.impl("f", lambda x, n: "new", "CPU")
        return "old", f(x)

    lib.impl("f", old, "CPU")
    assert f(CPU) == ("old", "new")
    assert f(CPU) == "new"


@pytest.mark.parametrize("way", WAYS)
def test_an_operator_that_is_closed_while_it_runs_runs_to_its_end(f, lib, way):
    def kernel(x, n):
        lib.close()
        with pytest.raises(errors.OperatorGoneError):
            WAYS[way](f, n)
        return "done"

    lib.impl("f", kernel, "CPU")
    assert WAYS[way](f, 1) == "done"
    with pytest.raises(errors.OperatorGoneError):
        WAYS[way](f, 1)


def test_a_fallback_may_register_the_kernel_it_stands_in_for(registry, f, lib):
    wild = md.Library("_", "IMPL", registry=registry)

    def fallback(op, x, n):
        lib.impl(op, lambda x, n: "made", "CPU")
        return "fallback", op(x, n)

    wild.fallback(fallback, "CPU")
    assert f(CPU) == ("fallback", "made")
    assert f(CPU) == "made"


# --- what kernels raise ---------------------------------------------------------------------------


class OwnError(Exception):
    pass


@pytest.mark.parametrize(
    "error", [OwnError("own"), StopIteration(3), KeyboardInterrupt(), SystemExit(2), OSError(5, "")]
)
@pytest.mark.parametrize("way", WAYS)
def test_what_a_kernel_raises_comes_out_as_it_is(f, lib, way, error):
    def kernel(x, n):
        raise error from OwnError("cause")

    lib.impl("f", kernel, "CPU")
    with pytest.raises(type(error)) as caught:
        WAYS[way](f, 1)
    assert caught.value is error
    assert isinstance(caught.value.__cause__, OwnError)


def test_a_typeerror_of_the_kernel_itself_is_not_taken_for_one_of_the_call(f, lib):
    def one(x):
        return x

    lib.impl("f", lambda *args: one(*args), "CPU")  # one argument less than the schema has
    with pytest.raises(TypeError, match="positional argument") as caught:
        f(CPU)
    assert not isinstance(caught.value, errors.MdispatchError)


def test_a_failing_call_leaves_nothing_alive(f, lib):
    """The error makes no cycle with the frames that it passed through: arguments can be large."""
    lib.impl("f", lambda x, n: 1 // n, "CPU")
    for watch in (None, md.observe_calls(after=lambda call: None, with_arguments=True)):
        value = Array("CPU")
        kept = weakref.ref(value)
        gc.disable()
        try:
            with contextlib.suppress(ZeroDivisionError):
                f(value, 0)
            del value
            assert kept() is None
        finally:
            gc.enable()
            if watch:
                watch.close()


# --- in the middle of our own code ----------------------------------------------------------------


def test_a_handler_may_call_the_operator_whose_table_is_being_computed():
    """A signal handler or a finalizer that runs anywhere while a table is computed."""
    got = run_main(
        """
        from mdispatch.dispatch import entry
        class Array:
            __dispatch_keys__ = "CPU"
        lib = md.Library("s", "DEF")
        lib.define("f(Tensor x) -> str")
        lib.impl("f", lambda x: "done", "CPU")
        f = md.ops.s.f.default

        def trace(frame, event, arg):
            global left
            if frame.f_code.co_filename != entry.__file__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                left -= 1
                if left == -1:
                    outcomes.append(f(Array()))
            return trace

        global left
        outcomes, left = [], -1
        for number in range(10_000):
            left = number
            f.entry._changed()
            sys._getframe().f_trace_opcodes = True
            sys.settrace(trace)
            outcomes.append(f(Array()))
            sys.settrace(None)
            if left >= 0:
                break
        md.default_registry().check_invariants()
        done(outcomes=sorted(set(outcomes)), count=len(outcomes))
        """,
        timeout=30,  # when it waits for a lock that its own thread holds
    )
    assert got["outcomes"] == ["done"]
    assert got["count"] > 50
