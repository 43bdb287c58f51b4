"""A call in C and the same call in Python give the same result; and a plain call is made in C."""

from __future__ import annotations

import contextlib
import decimal
import enum
import fractions
import gc
import operator
import os
import random
import subprocess
import sys
import threading
import weakref

import pytest
from both_ways import both, frames, same
from both_ways import outcome as outcome_of

import mdispatch as md
from mdispatch import errors
from mdispatch.context import (
    AutoDispatchBelowAutograd,
    DispatchMode,
    DispatchModeKey,
    ForceDispatchKeyGuard,
    disable_md_dispatch,
    excluded_keys,
    included_keys,
    keys_on_entry,
    mode_stack,
    restore_keys_on_entry,
)
from mdispatch.dispatch.call_c import turn
from mdispatch.facts.native import _call

pytestmark = pytest.mark.shared


class Array:
    """Its type is registered."""

    def __repr__(self):
        return "Array()"


class Other:
    def __repr__(self):
        return "Other()"


class Carries:
    """Carries its keys in an attribute."""

    def __init__(self, keys):
        self.__dispatch_keys__ = keys

    def __repr__(self):
        return f"Carries({self.__dispatch_keys__!r})"


class Index:
    """Can stand for an int."""

    def __index__(self):
        return 5

    def __repr__(self):
        return "Index()"


class Measured(Array):
    """A tensor that is also a number."""

    def __float__(self):
        return 0.5


class Proxy:
    """Claims to be an int."""

    @property
    def __class__(self):
        return int

    def __index__(self):
        return 6

    def __repr__(self):
        return "Proxy()"


class Number(int):
    """An int with a way of its own to be an index, which Python's operator.index does not use."""

    def __index__(self):
        return 9


class Word(str):
    """A str with something added."""


class Level(enum.IntEnum):
    low = 1


class Half:
    """Can stand for a float; its objects can have no attributes."""

    __slots__ = ()

    def __float__(self):
        return 0.5

    def __repr__(self):
        return "Half()"


class Broken:
    """Says that it can stand for numbers, and cannot."""

    def __float__(self):
        raise OverflowError("too large")

    def __index__(self):
        return "five"

    def __repr__(self):
        return "Broken()"


class OnDevice:
    """Says by DLPack where its memory is."""

    def __init__(self, *device):
        self.device = device

    def __dlpack_device__(self):
        return self.device

    def __repr__(self):
        return f"OnDevice{self.device}"


class Sizes(tuple):
    """A tuple with something added."""


md.register_type(Array, "CPU")
md.register_type(Other, ("CUDA", "AutogradCUDA"))


@pytest.fixture(autouse=True)
def back_to_c():
    yield
    turn(True)


# --- what takes the way in C ----------------------------------------------------------------------

SCALE = "Tensor x, float y=2.0, *, Tensor? out=None, str mode='a', int[] axes=[1, 2]"
PLAIN = {
    "all by position": ("Tensor x, int y", (Array(), 3), {}),
    "a keyword": ("Tensor x, int y", (Array(),), {"y": 3}),
    "keywords out of order": ("Tensor x, int y, str z", (), {"z": "", "x": Array(), "y": 1}),
    "a default": ("Tensor x, int y=3", (Array(),), {}),
    "a default that is a list": ("Tensor x, int[] y=[1]", (Array(),), {}),
    "keyword-only ones": (SCALE, (Array(),), {"mode": "b", "out": Array()}),
    "None": ("Tensor x, Tensor? y, int? z", (Array(), None, None), {}),
    "a list of tensors": ("Tensor[] x", ([Array(), Other()],), {}),
    "a tuple for a list": ("Tensor[] x, int[] y", ((Array(),), (1, 2)), {}),
    "a list with None": ("Tensor?[] x", ([None, Array()],), {}),
    "a name as attribute": ("Tensor x", (Carries("CPU"),), {}),
    "names as attribute": ("Tensor x", (Carries(("CPU", "AutogradCPU")),), {}),
    "a set as attribute": ("Tensor x", (Carries(md.DispatchKeySet("CPU")),), {}),
    "a number": ("Tensor x, Scalar y, complex z", (Array(), True, 1j), {}),
    "anything": ("Tensor x, Any y, Device z", (Array(), None, "cpu"), {}),
    "no tensors": ("int x", (3,), {}),
}


def recording(got, answer=None, takes=""):
    """A kernel that notes its arguments and where it was called from."""

    def kernel(*args, **kwargs):
        got.append((frames(), args, kwargs))
        return answer

    return kernel


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("with_keyset", [False, True])
@pytest.mark.parametrize("by", ["operator", "packet", "redispatch"])
def test_a_plain_call_comes_to_its_kernel_without_a_frame_of_ours(
    registry, lib, case, with_keyset, by
):
    arguments, args, kwargs = PLAIN[case]
    got = []
    lib.define(f"f({arguments}) -> ()")
    for key in ("CPU", "CUDA", "CompositeExplicitAutograd"):
        lib.impl("f", recording(got), key, with_keyset=with_keyset)
    packet = registry.ops.s.f
    f = {"operator": packet.default, "packet": packet, "redispatch": packet.default.redispatch}[by]
    first = (md.DispatchKeySet("CPU"),) if by == "redispatch" else ()
    for _ in range(2):
        assert both(lambda: f(*first, *args, **kwargs)) == [None, None]
    ours = [each[0] for each in got]
    assert ours == [False, True] * 2
    assert got[0][1:] == got[1][1:]
    assert got[0][1:] == got[2][1:]
    if case == "a default that is a list":
        assert got[0][1][-1] is not got[2][1][-1]


RESULTS = {
    "()": None,
    "Tensor": Array(),
    "Tensor?": None,
    "int": 3,
    "float": 3.0,
    "Tensor[]": [Array(), Array()],
    "(Tensor, int)": (Array(), 3),
    "Any": object(),
}


@pytest.mark.parametrize("type_", RESULTS)
def test_a_plain_result_comes_back_as_it_is(registry, lib, type_):
    answer = RESULTS[type_]
    lib.define(f"f(Tensor x) -> {type_}")
    lib.impl("f", lambda x: answer, "CPU")
    f = registry.ops.s.f.default
    assert f(Array()) is answer
    assert both(lambda: f(Array())) == [answer, answer]


def test_a_function_of_c_is_called_without_a_frame_of_ours(registry, lib):
    seen = []
    lib.define("f(Tensor x, Any y) -> bool")
    lib.impl("f", operator.is_, "CPU")
    a, f = Array(), registry.ops.s.f.default
    assert f(a, a) is True
    sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_globals["__name__"])))
    try:
        f(a, None)
    finally:
        sys.setprofile(None)
    assert not [each for each in seen if each[1].startswith("mdispatch")]


@pytest.mark.parametrize("keys", ["CPU", ("CPU", "AutogradCPU"), md.DispatchKeySet("CPU")])
def test_python_is_asked_once_how_the_values_of_a_type_carry_their_keys(registry, lib, keys):
    seen = []
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", operator.pos, "CPU")
    f, value = registry.ops.s.f.default, Carries(keys)
    with pytest.raises(TypeError):
        f(value)  # the first call asks
    sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_globals["__name__"])))
    try:
        f(value)
    except TypeError:
        pass
    finally:
        sys.setprofile(None)
    assert not [each for each in seen if each[1].startswith("mdispatch")]


def test_a_backend_fallback_gets_the_operator_first(registry, lib):
    got = []
    lib.define("f(Tensor x) -> ()")
    wild = md.Library("_", "IMPL", registry=registry)
    wild.fallback(recording(got), "CPU", with_keyset=True)
    f, a = registry.ops.s.f.default, Array()
    both(lambda: f(a))
    assert [each[0] for each in got] == [False, True]
    assert got[0][1] == got[1][1] == (md.DispatchKeySet("CPU"), f, a)


def test_with_calls_in_python_asked_for_there_is_always_a_frame():
    code = (
        "import sys, mdispatch as md\n"
        "lib = md.Library('s', 'DEF')\n"
        "lib.define('f(int x) -> str')\n"
        "lib.impl('f', lambda x: sys._getframe(1).f_globals['__name__'])\n"
        "print(md.ops.s.f(1))"
    )

    def run(asked):
        # Without this process's registry, in which it would wait for operators of this process.
        environment = {**os.environ, "MDISPATCH_CALLS": asked, "MDISPATCH_REGISTRY": ""}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )

    for asked, name in (
        ("", "__main__"),
        ("c", "__main__"),
        ("python", "mdispatch.dispatch.call_py"),
    ):
        assert run(asked).stdout.strip() == name
    assert "InvalidArgumentError: MDISPATCH_CALLS='fast'" in run("fast").stderr


# --- any call by both ways ------------------------------------------------------------------------

CONVERTED = ("int[2]", "float[3]", "SymInt[2]", "bool[2]", "complex[2]")
TYPES = ("Tensor", "int", "float", "bool", "str", "Scalar", "Any", "complex", "SymInt", "Device")
DEFAULTS = {"int": "3", "float": "2.5", "bool": "True", "str": "'a'", "SymInt": "4"}
VALUES = (
    *(Array(), Other(), Carries("CPU"), Carries(("CUDA", "AutogradCUDA")), Carries("Meta")),
    *(Carries(md.DispatchKeySet("XLA")), Carries("Nothing"), object()),
    *(0, 1, -7, True, False, 1.5, 2, "a", "", None, 1j, b"b", Index(), Measured(), Proxy()),
    *([], [1, 2], [Array()], (Other(), None), [Array(), 1], (1, True), [1.5, 2]),
    *(Number(3), Word("w"), Level.low, Half(), Broken(), 10**400, float("nan"), -(2**70)),
    *(fractions.Fraction(1, 2), decimal.Decimal("1.5"), Sizes((1, 2)), [Level.low, Half()]),
    *(OnDevice(1, 0), OnDevice(2, 0), OnDevice(99, 0), OnDevice("cpu"), OnDevice()),
    *([Half(), 1, True], [Number(1), Index()], [10**400], (Broken(),), [1, "a"]),
)
KEYS = ("CPU", "CUDA", "Meta", "AutogradCUDA", "Autograd", "CompositeExplicitAutograd", "XLA")
KEYS += ("BackendSelect", "Python")
REDISPATCHED = (*KEYS[:4], "Python", "PythonTLSSnapshot")
RETURNS = ("()", "Tensor", "int", "float", "bool", "complex", "str", "Any", "Tensor[]", "Tensor?")
RETURNS += ("(int, Tensor)", "int[]")


def random_type(rng):
    if rng.random() < 0.1:
        return rng.choice(CONVERTED)
    type_ = rng.choice(TYPES)
    form = rng.random()
    return f"{type_}?" if form < 0.15 else f"{type_}[]" if form < 0.3 else type_


def random_schema(rng):
    """An operator's arguments, and the kind of value for each name."""
    parts, keyword_only = [], rng.random() < 0.3
    count = rng.randint(0, 4)
    star = rng.randint(0, count) if keyword_only else count
    for i in range(count):
        if i == star:
            parts.append("*")
        type_ = random_type(rng)
        default = DEFAULTS.get(type_, "None" if type_.endswith("?") else "")
        has_default = default and (rng.random() < 0.4 or any("=" in part for part in parts[-1:]))
        if not has_default and any("=" in part for part in parts) and i < star:
            type_, default, has_default = "int", "3", True
        parts.append(f"{type_} a{i}" + (f"={default}" if has_default else ""))
    return ", ".join(parts)


def random_arguments(rng, schema):
    """Mostly arguments that fit."""
    args, kwargs = [], {}
    by_keyword = False
    for argument in schema.arguments:
        if argument.has_default and rng.random() < 0.4:
            by_keyword = True
            continue
        value = rng.choice(VALUES)
        for _ in range(8):
            if rng.random() < 0.1 or plainly_fits(str(argument.type), value):
                break
            value = rng.choice(VALUES)
        by_keyword = by_keyword or argument.kwarg_only or rng.random() < 0.2
        if by_keyword:
            kwargs[argument.name] = value
        else:
            args.append(value)
    if rng.random() < 0.05:
        args.append(1)
    if rng.random() < 0.05:
        kwargs[rng.choice(["a0", "b"])] = 1
    return tuple(args), kwargs


def plainly_fits(type_, value):
    if value is None:
        return type_.endswith("?") or type_ == "Any"
    if type_.endswith("[]"):
        return isinstance(value, (list, tuple)) and all(plainly_fits(type_[:-2], v) for v in value)
    type_ = type_.removesuffix("?")
    if type_ == "Tensor":
        return isinstance(value, (Array, Other, Carries, Typed))
    return type(value).__name__ == type_ or type_ in ("Any", "Device", "Scalar")


def outcome(call, got):
    """The same, with the records of classes and modes."""
    got.clear()
    TOLD.clear()
    return outcome_of(call, got, TOLD)


class Typed:
    """Its class answers calls, in one way or another."""

    __dispatch_keys__ = "CPU"

    def __repr__(self):
        return type(self).__name__

    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        told(cls, op, types, args, kwargs)
        return kwargs.get("result", args[0] if args else 3)


class Declines(Typed):
    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        told(cls, op, types, args, kwargs)
        return NotImplemented


class CallsBelow(Array):
    """A registered class, whose handler calls on below modes and types."""

    def __repr__(self):
        return "CallsBelow"

    @classmethod
    def __md_dispatch__(cls, op, types, args, kwargs):
        told(cls, op, types, args, kwargs)
        with disable_md_dispatch():
            return op(*args, **kwargs)


class Answers(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        told(Answers, op, types, args, kwargs)
        return 2.0


class CallsOn(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        told(CallsOn, op, types, args, kwargs)
        return op(*args, **kwargs)


class CallsFromTheTop(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        told(CallsFromTheTop, op, types, args, kwargs)
        with restore_keys_on_entry():
            return op(*args, **kwargs)


class DeclinesAll(DispatchMode):
    def __md_dispatch__(self, op, types, args, kwargs):
        told(DeclinesAll, op, types, args, kwargs)
        return NotImplemented


class Fake(CallsOn):
    mode_key = DispatchModeKey.FAKE


VALUES += (Typed(), Declines(), CallsBelow(), [Typed(), Array()], (CallsBelow(), Declines()))
TOLD = []


def told(who, op, types, args, kwargs):
    """Notes what a handler gets, and what is around it."""
    around = (keys_on_entry(), mode_stack(), included_keys(), excluded_keys())
    TOLD.append((who, op, types, args, kwargs, around))


@contextlib.contextmanager
def both_of(first, second):
    with first(), second():
        yield


GUARDS = (
    lambda: md.context.ExcludeDispatchKeyGuard("AutogradCPU"),
    lambda: md.context.IncludeDispatchKeyGuard("XLA"),
    lambda: md.context.ExcludeDispatchKeyGuard("CUDA"),
    lambda: md.context.IncludeDispatchKeyGuard("PythonDispatcher"),
    AutoDispatchBelowAutograd,
    lambda: ForceDispatchKeyGuard(("AutogradCPU", "BackendSelect"), ()),
    disable_md_dispatch,
    Answers,
    CallsOn,
    CallsFromTheTop,
    DeclinesAll,
    lambda: both_of(Answers, CallsOn),
    lambda: both_of(CallsOn, Fake),
    lambda: both_of(CallsFromTheTop, DeclinesAll),
    lambda: both_of(CallsOn, lambda: md.context.ExcludeDispatchKeyGuard("PythonTLSSnapshot")),
    lambda: both_of(CallsOn, disable_md_dispatch),
    lambda: md.observe_calls(before=lambda call: TOLD.append(repr(call.key_set))),
    lambda: both_of(CallsOn, lambda: md.observe_calls(after=lambda call: TOLD.append(call.how))),
)


def compare(seed, calls):
    """Calls operators with any kernels in any way. Returns how many of the calls C made."""
    rng = random.Random(seed)
    in_c = 0
    with md.Registry.create(capacity=1 << 20) as registry:
        lib = md.Library("s", "DEF", registry=registry)
        got, returns = [], rng.choice(RETURNS)
        lib.define(f"f({random_schema(rng)}) -> {returns}")
        f = registry.ops.s.f.default

        def kernel(name):
            answer = rng.choice(VALUES if rng.random() < 0.3 else list(RESULTS.values()))

            def run(*args, **kwargs):
                got.append((sys._getframe(1).f_globals["__name__"], name, args, kwargs))
                return answer

            return run

        for key in rng.sample(KEYS, rng.randint(1, 4)):
            lib.impl("f", kernel(key), key, with_keyset=rng.random() < 0.2)
        if rng.random() < 0.3:
            wild = md.Library("_", "IMPL", registry=registry)
            wild.fallback(kernel("fallback"), "Meta", with_keyset=rng.random() < 0.5)
        schema = f.schema
        for _ in range(calls):
            args, kwargs = random_arguments(rng, schema)
            call = f
            if rng.random() < 0.2:
                call = f.redispatch
                args = (md.DispatchKeySet(*rng.sample(REDISPATCHED, rng.randint(0, 2))), *args)
            with rng.choice(GUARDS)() if rng.random() < 0.4 else contextlib.nullcontext():
                found = both(
                    lambda call=call, a=args, k=kwargs: outcome(lambda: call(*a, **k), got)
                )
            assert same(*found), (seed, str(schema), args, kwargs)
            assert all(name.startswith("mdispatch.") for name in found[1][2])
            in_c += any(not name.startswith("mdispatch.") for name in found[0][2])
    return in_c


@pytest.mark.thorough
@pytest.mark.dear
def test_any_call_gives_the_same_by_both_ways(request):
    rounds = 4000 if request.config.getoption("--long") else 150
    in_c = sum(compare(seed, 12) for seed in range(rounds))
    assert in_c > rounds  # otherwise this compares Python with Python


def compare_overloads(seed, calls):
    """Calls several operators of one name. Returns how many of the calls that reached another
    operator than the first C made.
    """
    rng = random.Random(seed)
    in_c = 0
    with md.Registry.create(capacity=1 << 20) as registry:
        lib = md.Library("s", "DEF", registry=registry)
        got, schemas = [], []

        def kernel(name):
            def run(*args, **kwargs):
                got.append((sys._getframe(1).f_globals["__name__"], name, args, kwargs))

            return run

        for number in range(rng.randint(2, 10)):
            name = lib.define(f"f.o{number}({random_schema(rng)}) -> ()")
            lib.impl(name, kernel(number), "CompositeExplicitAutograd")
            schemas.append(registry.ops.s.f._operator(f"o{number}").schema)
        for _ in range(calls):
            args, kwargs = random_arguments(rng, rng.choice(schemas))
            f = registry.ops.s.f
            found = both(lambda f=f, a=args, k=kwargs: outcome(lambda: f(*a, **k), got))
            assert same(*found), (seed, list(map(str, schemas)), args, kwargs)
            in_c += any(
                number and not name.startswith("mdispatch.")
                # Behind the calls of kernels are those that modes and types were told of.
                for (number, *_), name in zip(found[0][0], found[0][2], strict=False)
            )
    return in_c


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("type_", [*TYPES, *(f"{each}?" for each in TYPES), "Tensor[]", "int[2]"])
def test_an_overload_refuses_the_same_values_by_both_ways(registry, lib, type_, keyword):
    lib.define(f"g.first({type_} x) -> str")
    lib.define("g.second(Any x, bool y=True) -> str")
    lib.impl("g.first", lambda x: f"first {x!r}", "CompositeExplicitAutograd")
    lib.impl("g.second", lambda x, y: f"second {x!r}", "CompositeExplicitAutograd")
    g = registry.ops.s.g
    assert g(1, True) == "second 1"
    for value in VALUES:
        args, kwargs = ((), {"x": value}) if keyword else ((value,), {})
        in_c, in_python = both(lambda a=args, k=kwargs: outcome(lambda: g(*a, **k), []))
        assert in_c == in_python, value


@pytest.mark.thorough
@pytest.mark.dear
def test_a_packet_comes_to_the_same_overload_by_both_ways(request):
    rounds = 4000 if request.config.getoption("--long") else 150
    in_c = sum(compare_overloads(seed, 12) for seed in range(rounds))
    assert in_c > rounds


# --- what makes a plan out of date ----------------------------------------------------------------


@pytest.fixture
def f(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "CPU", "CPU")
    operator = registry.ops.s.f.default
    assert operator(Array()) == "CPU"
    return operator


def test_a_kernel_that_comes_and_goes(registry, f):
    other = md.Library("s", "IMPL", registry=registry)
    other.impl("f", lambda x: "new", "CPU")
    assert f(Array()) == "new"
    other.close()
    assert f(Array()) == "CPU"


def test_a_fallback_that_comes_and_goes(registry, f):
    with pytest.raises(errors.MissingKernelError):
        f(Other())
    wild = md.Library("_", "IMPL", registry=registry)
    wild.fallback(lambda op, x: "fallback", "CUDA")
    assert f(Other()) == "fallback"
    wild.close()
    with pytest.raises(errors.MissingKernelError):
        f(Other())


def test_the_end_of_the_definition_and_another_of_its_name(registry, lib, f):
    lib.close()
    with pytest.raises(errors.OperatorGoneError):
        f(Array())
    again = md.Library("s", "FRAGMENT", registry=registry)
    again.define("f(Tensor x, int y) -> str")
    again.impl("f", lambda x, y: "again", "CPU")
    assert registry.ops.s.f(Array(), 1) == "again"
    with pytest.raises(errors.OperatorGoneError):
        f(Array())


def test_the_end_of_the_registry(registry, f):
    packet = f.overloadpacket
    assert packet(Array()) == "CPU"
    registry.close()
    for call in (f, packet, lambda x: f.redispatch(md.DispatchKeySet("CPU"), x)):
        with pytest.raises(errors.RegistryClosedError):
            call(Array())


def test_a_type_that_is_registered_again(f):
    class Local:
        pass

    class Derived(Local):
        pass

    with md.register_type(Local, "CPU"):
        assert f(Derived()) == "CPU"
    md.register_type(Local, "CUDA")
    with pytest.raises(errors.MissingKernelError):
        f(Derived())
    md.register_type(Derived, "CPU")
    assert f(Derived()) == "CPU"


@pytest.fixture
def own_collections():
    """CPython collects nothing by itself, so what is new stays in the youngest generation."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)() and sys.version_info < (3, 14),
    reason="free-threaded 3.13 makes every class immortal once a thread was started",
)
def test_a_type_that_comes_where_a_dead_one_was(f, own_collections):
    addresses, met = set(), 0
    for i in range(60):
        cls = type("Passing", (), {})
        met += id(cls) in addresses
        addresses.add(id(cls))
        if i % 2:
            md.register_type(cls, "CPU")
            assert f(cls()) == "CPU"
        else:
            with pytest.raises(errors.ArgumentError):
                f(cls())
        gone = weakref.ref(cls)
        del cls
        gc.collect(0)
        assert gone() is None
    if not met:
        pytest.skip("no class came where another one had been")


def test_a_class_that_gets_a_handler_later(f):
    class Local:
        pass

    md.register_type(Local, "CPU")
    assert f(Local()) == "CPU"
    Local.__md_dispatch__ = classmethod(lambda cls, op, types, args, kwargs: "handled")
    assert f(Local()) == "handled"
    del Local.__md_dispatch__
    assert f(Local()) == "CPU"


def test_guards_of_this_thread_count_and_those_of_others_do_not(registry, lib):
    lib.define("g(Tensor x) -> str")
    lib.impl("g", lambda x: "CPU", "CPU")
    lib.impl("g", lambda x: "XLA", "XLA")
    g, inside, over = registry.ops.s.g.default, threading.Event(), threading.Event()
    found = []

    def other():
        with md.context.IncludeDispatchKeyGuard("XLA"):
            found.append(g(Array()))
            inside.set()
            over.wait()
            found.append(g(Array()))
        found.append(g(Array()))

    before = _call.contexts()
    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    assert g(Array()) == "CPU"
    assert _call.contexts() == before + 1
    over.set()
    thread.join()
    assert found == ["XLA", "XLA", "CPU"]
    assert _call.contexts() == before


BACKENDS = ("CPU", "CUDA", "HIP", "XLA", "MPS", "IPU", "XPU", "HPU", "VE", "Lazy", "MTIA", "Meta")


def test_names_without_end_are_asked_about_in_many_threads(lib, registry):
    lib.define("g(Tensor x) -> str")
    for name in BACKENDS:
        lib.impl("g", lambda x, name=name: name, name)
    g = registry.ops.s.g.default
    start, wrong = threading.Barrier(4), []

    def ask(seed):
        dice = random.Random(seed)
        start.wait()
        for _ in range(4000):
            keys = tuple(dice.choices(BACKENDS, k=3))
            answer = g(Carries(keys))
            if answer != max(keys, key=BACKENDS.index):
                wrong.append((keys, answer))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.dear
def test_a_thread_that_ends_with_changed_sets_is_counted_no_more(f):
    before = _call.contexts()
    thread = threading.Thread(target=lambda: md.context.set_included("XLA", True))
    thread.start()
    thread.join()
    gc.collect()
    assert _call.contexts() == before


def test_observers_see_every_call_while_they_look(f):
    seen = []
    with md.observe_calls(before=lambda call: seen.append(call.operator)):
        f(Array())
        f.overloadpacket(Array())
    f(Array())
    assert seen == ["s::f", "s::f"]


# --- during a call --------------------------------------------------------------------------------


@pytest.mark.dear
def test_a_kernel_may_close_what_it_was_called_by(registry, lib):
    def kernel(x):
        other.close()
        lib.close()
        gc.collect()
        return "closed"

    lib.define("f(Tensor x) -> str")
    other = md.Library("s", "IMPL", registry=registry)
    other.impl("f", kernel, "CPU")
    del kernel
    assert registry.ops.s.f.default(Array()) == "closed"


def test_the_result_is_checked_against_the_schema_of_the_call(registry, lib):
    def kernel(x):
        lib.close()
        again = md.Library("s", "FRAGMENT", registry=registry)
        again.define("f(Tensor x) -> int")
        return "a str"

    lib.define("f(Tensor x) -> str")
    lib.impl("f", kernel, "CPU")
    assert registry.ops.s.f.default(Array()) == "a str"


def test_keys_that_are_asked_for_may_change_the_operator(registry, lib, f):
    class Asks:
        @property
        def __dispatch_keys__(self):
            md.Library("s", "IMPL", registry=registry).impl("f", lambda x: "new", "CPU")
            return "CPU"

    assert f(Asks()) in ("CPU", "new")
    assert f(Array()) == "new"


class Raises:
    """Raises when it is asked for its keys the first time."""

    def __init__(self, error):
        self.left = [error]

    @property
    def __dispatch_keys__(self):
        if self.left:
            raise self.left.pop()
        return "CPU"


INTERRUPTED = {
    "an argument": ("Tensor x", "str", lambda x: ((x,), {}), "ok"),
    "a keyword": ("Tensor y, Tensor x", "str", lambda x: ((Array(),), {"x": x}), "ok"),
    "a list": ("Tensor[] x", "str", lambda x: (([Array(), x],), {}), "ok"),
    "a result": ("Tensor y", "Tensor", lambda x: ((Array(),), {}), None),
    "one of two results": ("Tensor y", "(int, Tensor)", lambda x: ((Array(),), {}), (1, None)),
    "a list of results": ("Tensor y", "Tensor[]", lambda x: ((Array(),), {}), [None]),
}


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("place", INTERRUPTED)
def test_what_a_value_raises_when_it_is_asked_ends_the_call(registry, lib, place, error):
    """The same holds for an error that a signal handler raises meanwhile."""
    takes, gives, given, answer = INTERRUPTED[place]

    def kernel(*args, **kwargs):
        if isinstance(answer, (list, tuple)):
            return type(answer)(x if item is None else item for item in answer)
        return answer or x

    lib.define(f"f({takes}) -> {gives}")
    lib.impl("f", kernel, "CPU")
    f = registry.ops.s.f.default
    for on in (True, False):
        turn(on)
        x = Raises(error(place))
        args, kwargs = given(x)
        with pytest.raises(error, match=place):
            f(*args, **kwargs)
        f(*args, **kwargs)


def test_a_result_may_change_while_it_is_looked_at(registry, lib):
    class Empties:
        @property
        def __dispatch_keys__(self):
            result.clear()
            return "CPU"

    lib.define("f(Tensor x) -> Tensor[]")
    lib.impl("f", lambda x: result, "CPU")
    for on in (True, False):
        turn(on)
        result = [Empties() for _ in range(1000)]
        assert len(registry.ops.s.f.default(Array())) <= 1
        assert result == []


def test_a_kernel_that_calls_its_operator_for_ever_is_stopped(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: registry.ops.s.f.default(x), "CPU")
    with pytest.raises(RecursionError):
        registry.ops.s.f.default(Array())


# --- packets --------------------------------------------------------------------------------------


def test_a_packet_notices_another_overload_and_its_end(registry, lib, f):
    packet = f.overloadpacket
    assert packet(Array()) == "CPU"
    other = md.Library("s", "FRAGMENT", registry=registry)
    other.define("f.number(int x) -> str")
    other.impl("f.number", lambda x: "number")
    assert packet(3) == "number"
    assert packet(Array()) == "CPU"
    other.close()
    with pytest.raises(errors.ArgumentError):
        packet(3)
    assert packet(Array()) == "CPU"


def test_an_overload_by_attribute_is_the_one_that_is_defined_now(registry, lib, f):
    packet = registry.ops.s.f
    assert packet.default is packet.default
    other = md.Library("s", "FRAGMENT", registry=registry)
    with pytest.raises(errors.OperatorNotFoundError):
        packet.number  # noqa: B018
    other.define("f.number(int x) -> str")
    other.impl("f.number", lambda x: "number")
    assert packet.default(Array()) == "CPU"
    number = packet.number
    assert number(3) == packet.number(3) == "number"
    other.close()
    with pytest.raises(errors.OperatorNotFoundError):
        packet.number  # noqa: B018
    again = md.Library("s", "FRAGMENT", registry=registry)
    again.define("f.number(str x) -> str")
    assert packet.number != number
    assert packet.number.schema.arguments[0].type.name == "str"


def test_an_overload_hides_no_attribute_of_the_packet(registry, lib, f):
    packet = registry.ops.s.f
    lib.define("f.schemas(int x) -> str")
    lib.define("f.own(int x) -> str")
    assert packet.own is packet.own
    assert packet.__missing__("schemas").name == "s::f.schemas"
    assert sorted(packet.schemas) == ["default", "own", "schemas"]
    packet.own = 3
    registry.ops.s.f.__missing__("default")
    assert packet.own == 3


def test_an_overload_that_takes_the_arguments_and_has_no_kernel_leaves_the_call_to_no_other(
    registry, lib
):
    lib.define("only.a(Tensor x, *, int n) -> str")
    lib.define("only.b(Tensor x, *, Scalar n) -> str")
    lib.impl("only.a", lambda x, n: "a", "CUDA")
    lib.impl("only.b", lambda x, n: "b", "CompositeExplicitAutograd")
    packet = registry.ops.s.only
    assert both(lambda: (packet(Other(), n=1), packet(Array(), n=1.0))) == [("a", "b")] * 2

    def refused():
        with pytest.raises(errors.MissingKernelError, match=r"s::only\.a"):
            packet(Array(), n=1)

    both(refused)
    both(refused)


@pytest.mark.parametrize("count", [48, 49, 64])
def test_a_call_with_many_arguments_is_the_same_by_both_ways(registry, lib, count):
    names = [f"a{i}" for i in range(count)]
    lib.define(f"wide({', '.join(f'int[] {name}' for name in names)}) -> Any")
    lib.impl("wide", lambda *args: args, "CompositeExplicitAutograd")
    f = registry.ops.s.wide.default
    lists = [(i,) for i in range(count)]
    expected = tuple([i] for i in range(count))
    for _ in range(2):
        assert both(lambda: f(*lists)) == [expected] * 2
        assert (
            both(lambda: f(**dict(zip(reversed(names), reversed(lists), strict=True))))
            == [expected] * 2
        )


@pytest.mark.parametrize("returns", ["Any", "(Any, ...)", "..."])
def test_a_call_with_more_arguments_than_are_named_is_the_same_by_both_ways(registry, lib, returns):
    lib.define(f"more(Tensor x, ...) -> {returns}")
    lib.impl("more", lambda *args: args, "CPU")
    f, x = registry.ops.s.more.default, Array()
    for _ in range(2):
        for extra in ((), (1,), ("a", None)):
            assert both(lambda extra=extra: f(x, *extra)) == [(x, *extra)] * 2


def test_a_value_without_keys_adds_none_by_both_ways(registry, lib):
    lib.define("keyless(Tensor? x, Tensor?[] xs, *, Tensor? y, Tensor?[] ys) -> Any")
    seen = []
    lib.impl("keyless", lambda keys, *args, **kwargs: seen.append(keys), "CUDA", with_keyset=True)
    lib.impl("keyless", md.fallthrough_kernel, "AutogradCUDA")
    f, x = registry.ops.s.keyless.default, Carries("CUDA")
    for call in (
        lambda: f(x, [None], y=None, ys=[None]),
        lambda: f(None, [None, x], y=None, ys=[None]),
        lambda: f(None, [], y=x, ys=[None]),
        lambda: f(None, [], y=None, ys=[x, None]),
    ):
        both(call)
    assert len(seen) == 8
    assert set(seen) == {md.DispatchKeySet("CUDA")}


def test_the_first_of_several_overloads_is_called_where_it_takes_the_arguments(registry, lib):
    seen = []
    lib.define("g.a(Tensor x, float y) -> str")
    lib.define("g.b(Tensor x, str y) -> str")
    lib.impl("g.a", recording(seen, "a"), "CPU")
    lib.impl("g.b", recording(seen, "b"), "CPU")
    packet = registry.ops.s.g
    x = Array()
    assert packet(x, 2.0) == packet(x, 2.0) == "a"
    assert seen.pop()[0] is False
    assert packet(x, 2) == "a"
    assert seen.pop()[1] == (x, 2.0)
    assert packet(x, "") == "b"
    assert seen.pop()[0] is False
    with pytest.raises(errors.ArgumentError):
        packet(x, None)
    with pytest.raises(errors.MissingKernelError):
        packet(Other(), 2.0)


def test_a_packet_goes_on_with_what_is_defined_under_its_name(registry, lib, f):
    packet = f.overloadpacket
    assert packet(Array()) == "CPU"
    lib.close()
    with pytest.raises(errors.OperatorGoneError):
        packet(Array())
    again = md.Library("s", "FRAGMENT", registry=registry)
    again.define("f(Tensor x) -> str")
    again.impl("f", lambda x: "again", "CPU")
    assert packet(Array()) == "again"
    assert f.is_gone


@pytest.mark.dear
def test_operators_and_packets_with_their_kernels_are_collected():
    """A kernel that holds its operator makes a cycle through the plan."""

    def make():
        with md.Registry.create(capacity=1 << 20) as registry:
            lib = md.Library("s", "DEF", registry=registry)
            lib.define("f(Tensor x) -> str")
            held = [registry.ops.s.f, registry.ops.s.f.default]
            lib.impl("f", lambda x, held=held: "CPU", "CPU")
            assert held[0](Array()) == held[1](Array()) == "CPU"
            return weakref.ref(held[1]), weakref.ref(held[0])

    found = make()
    gc.collect()
    assert [each() for each in found] == [None, None]
