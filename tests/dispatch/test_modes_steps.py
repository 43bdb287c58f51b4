"""Signal handlers, the end of Python's stack and forks in the middle of modes and transforms: what
they leave on the stacks and in the thread's key sets.
"""

from __future__ import annotations

import dis
import itertools
import sys

import pytest
from kinds import run_main

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch import handlers
from mdispatch.dispatch.call_c import turn
from mdispatch.dispatch.context import guards, modes, transforms
from mdispatch.dispatch.context.modes import DispatchMode, DispatchModeKey
from mdispatch.dispatch.context.transforms import Transform
from mdispatch.facts.native import guards_py, which

pytestmark = [pytest.mark.either_binding, pytest.mark.usefixtures("renewed_lock")]


class Array:
    __dispatch_keys__ = ("CPU", "AutogradCPU")


class Typed:
    __dispatch_keys__ = "CPU"

    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        return "typed"


class Log(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        return op(*args, **kwargs)


class Fake(Log):
    mode_key = DispatchModeKey.FAKE


class Proxy(Log):
    mode_key = DispatchModeKey.PROXY


class Step(Transform):
    def process(self, op, args, kwargs):
        return op(*args, **kwargs)


class Own(BaseException):
    """The error that a signal handler raises."""


class BeforeDispatch:
    """A with block for a mode before dispatch, which has none of its own."""

    def __enter__(self):
        modes.push_pre_dispatch_mode(Proxy())

    def __exit__(self, *exc):
        try:
            modes.pop_pre_dispatch_mode()
        except Own:
            if modes.pre_dispatch_modes():
                modes.pop_pre_dispatch_mode()
            raise


def state():
    stack = modes.local.stack
    return (
        [type(mode) for mode in modes.mode_stack()],
        modes.pre_dispatch_modes(),
        transforms.transform_stack(),
        (stack.on_entry, stack.handled),
        guards.included_keys(),
        guards.excluded_keys(),
    )


NOTHING = ([], (), (), (None, None), guards.DEFAULT_INCLUDED, guards.DEFAULT_EXCLUDED)

#: The instructions after which Python looks for signals, unless they called a function that is
#: written in Python: that function looks for them as its first step.
CALLS = {code for name, code in dis.opmap.items() if name.startswith("CALL")}


def in_finalizer(frame):
    """Python swallows errors from there, and finalizers may run at any time."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Strike:
    """Raises Own at the n-th place in these modules at which the interpreter looks for signals.

    But not at the beginning of the ``__exit__`` of a user's with block: an error there comes before
    the block was left, and no Python code can change that.
    """

    FILES = (modes.__file__, transforms.__file__, handlers.__file__, guards.__file__)
    FILES += (guards_py.__file__,)
    BLOCKS = (modes.__file__, transforms.__file__)

    def __init__(self, number):
        self.left = number
        self.was_call = {}

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if event == "call":
            self.was_call[frame.f_back] = False
        if code.co_filename not in self.FILES:
            return None
        frame.f_trace_opcodes = True
        looks = event == "call" and not (
            code.co_name == "__exit__" and code.co_filename in self.BLOCKS
        )
        if event == "opcode":
            looks = self.was_call.get(frame, False)
            self.was_call[frame] = code.co_code[frame.f_lasti] in CALLS
        elif event == "return":
            self.was_call.pop(frame, None)
        if looks and not in_finalizer(frame):
            self.left -= 1
            if self.left == -1:
                self.place = f"{code.co_qualname}:{frame.f_lineno} {event}"
                raise Own
        return self


def struck(number, function):
    """Where the error was raised; None when the function had ended before. Other errors pass
    through.
    """
    strike = Strike(number)
    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # 3.12 reads this when tracing begins
    sys.settrace(strike)
    try:
        function()
    except Own:
        return strike.place
    finally:
        sys.settrace(before)
        strike.was_call.clear()
    assert strike.left >= 0, "the strike was swallowed"
    return None


@pytest.fixture(autouse=True)
def clean():
    """Keeps a test from paying for the one before."""
    yield
    while modes.mode_stack():
        modes.pop_mode()
    while modes.pre_dispatch_modes():
        modes.pop_pre_dispatch_mode()
    while transforms.transform_stack():
        transforms.transform_stack()[-1].__exit__()


@pytest.fixture(params=["c", "python"])
def by(request):
    """Who asks modes and types. Where C does, it takes its steps in one."""
    turn(request.param == "c")
    yield request.param if which != "none" else "python"
    turn(True)


@pytest.fixture
def f(registry, by):
    lib = md.Library("m", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Any")
    lib.impl("f", lambda x: "cpu", "CPU")
    return registry.ops.m.f.default


@pytest.mark.parametrize(
    "enter",
    [
        pytest.param((Log,), id="mode"),
        pytest.param((Log, Log), id="two modes"),
        pytest.param((Log, Fake, Proxy), id="infrastructure"),
        pytest.param((Step,), id="transform"),
        pytest.param((Step, Step, Log), id="transforms and a mode"),
        pytest.param((BeforeDispatch,), id="before dispatch"),
        pytest.param((), id="type"),
    ],
)
def test_wherever_a_signal_handler_raises_nothing_is_left_on_the_stacks(f, by, enter):
    value = Typed() if not enter else Array()

    def nested(blocks):
        if not blocks:
            assert f(value) == ("cpu" if enter else "typed")
            return
        with blocks[0]():
            nested(blocks[1:])

    nested(enter)
    assert state() == NOTHING
    for number in itertools.count():
        came = struck(number, lambda: nested(enter))
        assert state() == NOTHING, came
        if not came:
            break
    assert number > 5 or (by == "c" and not enter)


def test_a_mode_whose_call_is_struck_is_on_the_stack_for_the_rest_of_its_block(f, by):
    with Fake(), Log(), Log():
        before = state()
        for number in itertools.count():
            came = struck(number, lambda: f(Array()))
            assert state() == before, came
            if not came:
                break
    assert number > 20 or by == "c"


@pytest.mark.dear
@pytest.mark.parametrize("block", [Log, Step])
# A guard that could not even be made for lack of stack is finalized there, too.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_recursion_without_end_leaves_the_stacks_as_they_were(f, block):
    class Again(block):
        def process(self, op, args, kwargs):
            with self:
                return op(*args, **kwargs)

        def __md_dispatch__(self, op, types, args, kwargs):
            with self:
                return op(*args, **kwargs)

    again = Again()

    def deeper(levels):
        if levels:
            deeper(levels - 1)
            return
        with pytest.raises((RecursionError, errors.ModeStackError)):
            again.process(f, (Array(),), {})

    limit = sys.getrecursionlimit()
    for levels in range(40):  # so that the stack ends once at each place
        sys.setrecursionlimit(400)
        try:
            deeper(levels)
        finally:
            sys.setrecursionlimit(limit)
        assert state() == NOTHING, levels


def test_an_infrastructure_mode_that_a_handler_leaves_lies_in_its_order(f):
    class Leaves(DispatchMode):
        mode_key = DispatchModeKey.FUNCTIONAL

        def __md_dispatch__(self, op, types, args, kwargs):
            modes.push_mode(Fake())
            return op(*args, **kwargs)

    with Leaves():
        f(Array())
        assert [type(mode) for mode in modes.mode_stack()] == [Fake, Leaves]
        modes.pop_mode(DispatchModeKey.FAKE)
    assert state() == NOTHING


def test_after_a_fork_rules_can_be_registered_whoever_held_the_lock():
    main = """
    import threading, warnings
    from mdispatch.dispatch import overrides
    from mdispatch import HigherOrderOperator

    op = HigherOrderOperator("op")
    taken, go = threading.Event(), threading.Event()
    def hold():
        with overrides.lock:
            taken.set()
            go.wait()
    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads
    child = os.fork()
    if child == 0:
        signal.alarm(int(limit(30)))
        op.py_impl("CPU")(lambda *args: "child")
        os._exit(0 if op.dispatch("CPU", 1) == "child" else 1)
    go.set()
    holder.join()
    done(status=os.waitpid(child, 0)[1])
    """
    assert run_main(main)["status"] == 0


def test_a_fork_in_a_block_is_in_the_block():
    main = """
    import mdispatch as md
    from mdispatch.context import DispatchMode, mode_stack
    class A:
        __dispatch_keys__ = "CPU"
    class Log(DispatchMode):
        def __md_dispatch__(self, op, types, args, kwargs):
            return "mode", os.getpid()
    lib = md.Library("m", "DEF")
    lib.define("f(Tensor x) -> Any")
    read, write = os.pipe()
    with Log() as mode:
        child = os.fork()
        if child == 0:
            signal.alarm(int(limit(30)))
            seen = [mode_stack() == (mode,), md.ops.m.f(A()) == ("mode", os.getpid())]
            mode.__exit__()
            seen.append(mode_stack())
            os.write(write, repr(seen).encode())
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        still = mode_stack() == (mode,)
    done(status=status, seen=os.read(read, 999).decode() if status == 0 else "", still=still)
    """
    values = run_main(main)
    assert (values["status"], values["seen"], values["still"]) == (0, "[True, True, ()]", True)
