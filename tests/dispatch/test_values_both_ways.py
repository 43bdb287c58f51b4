"""Every kind of value for every kind of type, changing classes, long runs: calls in C and in Python
do the same.
"""

# ruff: noqa: B023 - what a loop makes is called before the loop goes on
from __future__ import annotations

import abc
import contextlib
import decimal
import enum
import fractions
import gc
import importlib.util
import itertools
import sys
import sysconfig

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import mdispatch as md
from mdispatch.dispatch.call_c import turn
from mdispatch.schema.classes import take_class

pytestmark = pytest.mark.shared

numpy = importlib.import_module("numpy") if importlib.util.find_spec("numpy") else None
torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


WITHOUT_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


@pytest.fixture(autouse=True)
def back_to_c():
    yield
    turn(True)


# --- values ---------------------------------------------------------------------------------------


class Array:
    pass


class Carries:
    def __init__(self, keys):
        self.__dispatch_keys__ = keys


class OnDevice:
    def __dlpack_device__(self):
        return (1, 0)


class Hides:
    """Its class has a device, and it has none, or another one."""

    def __init__(self, device):
        self.__dlpack_device__ = device

    def __dlpack_device__(self):
        raise AssertionError


class Fails:
    def __init__(self, error):
        self.error = error

    def __dlpack_device__(self):
        raise self.error


class Level(enum.IntEnum):
    LOW = 1


class Word(str):
    """With a place for attributes."""


class Number(int):
    def __index__(self):
        return 9

    def __float__(self):
        return 9.5


class Real(float):
    def __float__(self):
        return 2.5


class Index:
    __slots__ = ("says",)

    def __init__(self, says):
        self.says = says

    def __index__(self):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    __float__ = __index__


class Half:
    def __float__(self):
        return 0.5


class Turns:
    """Stands for another number each time."""

    def __init__(self):
        self.count = 0

    def __index__(self):
        self.count += 1
        return self.count


class Claims:
    """Says that it is something else."""

    def __init__(self, cls):
        self.cls = cls

    @property
    def __class__(self):
        return self.cls

    def __index__(self):
        return 6

    def __iter__(self):
        return iter((1, 2))

    def __len__(self):
        return 2


class Size:
    """Says that it is a size that depends on data."""

    is_dynamic_size = True

    def __index__(self):
        return 4


class SizeOfInt(int):
    is_dynamic_size = True


class Items(list):
    def __iter__(self):
        return iter((7, 8))


class Pairs(dict):
    def items(self):
        return [("z", 26)]


class Tuple(tuple):
    """With a place for attributes."""


class Moody(abc.ABCMeta):
    def __instancecheck__(cls, value):
        if isinstance(value, Exception):
            raise value
        return type(value) in (int, Half) or super().__instancecheck__(value)


class Picky(metaclass=Moody):
    """Its metaclass decides which objects it has."""


class Virtual:
    """An object of Picky, as it was registered there."""


Picky.register(Virtual)


ARRAY = Array()
SINGLES = {
    **{repr(each): (lambda each=each: each) for each in (0, 1, -7, 2**62, 2**64, -(10**400))},
    **{
        repr(each): (lambda each=each: each)
        for each in (True, False, None, 1.5, -0.0, 1j, "", "ab")
    },
    **{f"float {each}": (lambda each=each: float(each)) for each in ("nan", "inf")},
    "bytes": lambda: b"b",
    "object": object,
    "Array": lambda: ARRAY,
    "Carries CPU": lambda: Carries("CPU"),
    "Carries two": lambda: Carries(("CUDA", "AutogradCUDA")),
    "Carries a set": lambda: Carries(md.DispatchKeySet("Meta")),
    "Carries nonsense": lambda: Carries("Nothing"),
    "OnDevice": OnDevice,
    "Picky": Picky,
    "Virtual": Virtual,
    **{
        error.__name__: (lambda error=error: error("no"))
        for error in (TypeError, KeyError, KeyboardInterrupt, md.errors.MdispatchError)
    },
    "on no known device": lambda: Hides(lambda: (99, 0)),
    "hides it": lambda: Hides(None),
    "hides it by another": lambda: Hides(lambda: (2, 0)),
    **{
        f"device raises {error.__name__}": (lambda error=error: Fails(error("no")))
        for error in (TypeError, AttributeError, KeyError, KeyboardInterrupt)
    },
    "device raises, of a class of now": lambda: type("Now", (Fails,), {})(TypeError("no")),
    "IntEnum": lambda: Level.LOW,
    "Word": lambda: Word("w"),
    "Number": lambda: Number(3),
    "Real": lambda: Real(1.25),
    "Index 5": lambda: Index(5),
    "Index of huge": lambda: Index(10**400),
    "Index of a str": lambda: Index("five"),
    "Index of a bool": lambda: Index(5.5),
    **{
        f"Index raises {error.__name__}": (lambda error=error: Index(error("no")))
        for error in (TypeError, ValueError, OverflowError, KeyError, KeyboardInterrupt)
    },
    "Half": Half,
    "Turns": Turns,
    "Fraction": lambda: fractions.Fraction(1, 2),
    "Decimal": lambda: decimal.Decimal("1.5"),
    "Size": Size,
    "SizeOfInt": lambda: SizeOfInt(3),
    **{f"claims {cls.__name__}": (lambda cls=cls: Claims(cls)) for cls in (int, list, str, dict)},
}
if numpy:
    SINGLES |= {
        "array": lambda: numpy.ones(2),
        "matrix": lambda: numpy.ones((2, 2)).view(type("Sub", (numpy.ndarray,), {})),
        "0-d array": lambda: numpy.array(3),
        **{
            f"numpy.{name}": (lambda name=name: getattr(numpy, name)(1))
            for name in ("float64", "float32", "int64", "int8", "uint64", "bool_", "complex128")
        },
        "numpy.str_": lambda: numpy.str_("n"),
    }
if torch:
    SINGLES |= {
        "tensor": lambda: torch.ones(2),
        "tensor of one": lambda: torch.tensor(3),
        "meta tensor": lambda: torch.ones(2, device="meta"),
        "Parameter": lambda: torch.nn.Parameter(torch.ones(1)),
    }
COMPOSED = {
    "[]": list,
    "()": tuple,
    "{}": dict,
    "set": lambda: {1},
    "frozenset": lambda: frozenset((1,)),
    "range": lambda: range(2),
    "[1, 2]": lambda: [1, 2],
    "(1, True)": lambda: (1, True),
    "[1.5, 2]": lambda: [1.5, 2],
    "[1, 'a']": lambda: [1, "a"],
    "[None, 1]": lambda: [None, 1],
    "[Array]": lambda: [ARRAY, Carries("CPU")],
    "(Array, None)": lambda: (ARRAY, None),
    "(Array, 1)": lambda: (ARRAY, 1),
    "[Level, Half]": lambda: [Level.LOW, Half()],
    "[Broken]": lambda: [Index(TypeError("no"))],
    "Items": lambda: Items([1]),
    "Tuple": lambda: Tuple((1, 2)),
    "[[1], [2]]": lambda: [[1], (2, True)],
    "{'a': 1}": lambda: {"a": 1, "b": 2.5},
    "{'a': Array}": lambda: {"a": ARRAY},
    "{True: 2}": lambda: {True: 2, 5: 3},
    "{Word: True}": lambda: {Word("w"): True},
    "{Level: 1}": lambda: {Level.LOW: 1},
    "{'a': 'b'}": lambda: {"a": "b"},
    "{'a': [1]}": lambda: {"a": [1, True]},
    "Pairs": lambda: Pairs(a=1),
    "{'a': Index}": lambda: {"a": Index(5), "b": Index(6)},
}
VALUES = SINGLES | COMPOSED

PLAIN = ("Tensor", "int", "float", "bool", "str", "Scalar", "Any", "complex", "SymInt", "Device")
COMPOSITIONS = (
    *(f"{each}[]" for each in PLAIN),
    *(f"{each}[2]" for each in ("int", "float", "bool", "complex", "SymInt")),
    *("Tensor?[]", "int?[]", "int[][]", "float[]?", "int[2]?", "Tensor[][]"),
    *("(int, float)", "(Tensor, Tensor)", "(float, Tensor?)", "(int[], str)"),
    *("Dict(str, int)", "Dict(str, float)", "Dict(int, Tensor)", "Dict(str, float[])"),
)
CLASSES = (
    *("bytes", "set[int]", "Sequence[int]", "Mapping[str, int]", "Callable", "Hashable", "tuple"),
    *("Iterable[int]", "object", 'Literal[1, "ab", None]', "own.Array", "own.Word", "own.Picky"),
    *("Union(int, str)", "Union(Sequence[int], bytes, str)", "Union(float, int)"),
    *(
        "Union(own.Array, bool)",
        "Union(Tensor, int)",
        "Union(int[], str)",
        "Union(None, own.Picky)",
    ),
)
COMPOSITIONS += (
    *(
        "bytes[]",
        "own.Array[]",
        "Sequence[int][]",
        "Union(int, str)[]",
        "Dict(str, Union(int, str))",
    ),
    *("(bytes, Union(float, int))", "Dict(Hashable, own.Array)", "own.Picky[]", "object[]"),
)
TYPES = (*PLAIN, *CLASSES, *(f"{each}?" for each in (*PLAIN, *CLASSES)), *COMPOSITIONS)
KEYS = ("CPU", "CUDA", "Meta", "CompositeExplicitAutograd")


def told(value, depth=0):
    """What a value is, so that it can be compared with one that was made again."""
    cls = type(value)
    if cls in (list, tuple) and depth < 4:
        return cls.__name__, [told(each, depth + 1) for each in value]
    if cls is dict:
        return "dict", [(told(k, depth + 1), told(v, depth + 1)) for k, v in value.items()]
    if cls in (int, float, str, bool, complex, bytes, type(None)):
        return cls.__name__, repr(value)
    if issubclass(cls, (int, float, str)):
        return cls.__qualname__, repr(value)
    return cls.__qualname__


def outcome(call):
    try:
        return told(call())
    except (Exception, KeyboardInterrupt) as error:
        return type(error), str(error)


def by_both_ways(call):
    """Three times in C, the last of which by what it remembers; and in Python."""
    found = []
    for on in (True, True, True, False):
        turn(on)
        found.append(outcome(call))
    turn(True)
    return found


md.register_type(Array, "CPU")
for each in (Array, Word, Picky):
    take_class(f"own.{each.__name__}", each)


@pytest.fixture(scope="module")
def operators():
    """By a type: an operator that takes one, and one that returns one."""
    made = {}
    with md.Registry.create(capacity=1 << 24) as registry:
        lib = md.Library("s", "DEF", registry=registry)

        def operator(form, type_):
            if (form, type_) not in made:
                name = lib.define(f"f{len(made)}{form.format(type_)}")
                for key in KEYS:
                    lib.impl(name, lambda *args, **kwargs: kernel(*args, **kwargs), key)
                made[form, type_] = registry.ops.find(name)
            return made[form, type_]

        def kernel(*args, **kwargs):
            return args[0]() if callable(args[0]) else (args, kwargs)

        yield operator


TAKES = "({} x) -> Any"
TAKES_TWO = "({} x, Tensor? y=None) -> Any"
GIVES = "(Any make) -> {}"
GIVES_TWO = "(Any make) -> ({}, Tensor)"


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("type_", TYPES)
def test_every_value_is_taken_by_both_ways_alike(operators, type_, guarded):
    takes, two = operators(TAKES, type_), operators(TAKES_TWO, type_)
    guard = (
        md.context.ExcludeDispatchKeyGuard("AutogradCUDA") if guarded else contextlib.nullcontext()
    )
    with guard:
        for name, make in VALUES.items():
            for call in (
                lambda: takes(make()),
                lambda: takes(x=make()),
                lambda: two(make(), ARRAY),
                lambda: two(make()),
            ):
                found = by_both_ways(call)
                assert found.count(found[0]) == 4, (type_, name, found)


@pytest.mark.parametrize("type_", TYPES)
def test_every_value_is_returned_by_both_ways_alike(operators, type_):
    gives, two = operators(GIVES, type_), operators(GIVES_TWO, type_)
    for name, make in VALUES.items():
        for call in (
            lambda: gives(make),
            lambda: two(lambda: (make(), ARRAY)),
            lambda: two(lambda: [make(), ARRAY]),
            lambda: two(make),
        ):
            found = by_both_ways(call)
            assert found.count(found[0]) == 4, (type_, name, found)


def test_a_list_that_fits_is_returned_itself_and_a_list_that_is_taken_never(operators):
    for type_, made in {
        "int[]": [1, 2],
        "Tensor[]": [ARRAY],
        "float[]": [1.0],
    }.items():
        for on in (True, False):
            turn(on)
            kept = operators(GIVES, type_)(lambda made=made: made)
            assert kept is made
            assert operators(TAKES, type_)(made)[0][0] is not made
    turn(True)


# --- anything together ----------------------------------------------------------------------------

types = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: st.one_of(
        inner.map("{}[]".format),
        inner.map(lambda each: each if each.endswith("?") else f"{each}?"),
        st.tuples(inner, inner).map("({0[0]}, {0[1]})".format),
        inner.map("Dict(str, {})".format),
    ),
    max_leaves=3,
)
makers = st.recursive(
    st.one_of(
        st.sampled_from(list(SINGLES.values())),
        st.integers().map(lambda each: lambda: each),
        st.floats().map(lambda each: lambda: each),
        st.text(max_size=3).map(lambda each: lambda: each),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda made: lambda: [each() for each in made]),
        st.lists(inner, max_size=3).map(lambda made: lambda: tuple(each() for each in made)),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(
            lambda made: lambda: {key: each() for key, each in made.items()}
        ),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def examples(request):
    return 5000 if request.config.getoption("--long") else 150


@pytest.mark.thorough
def test_mixed_arguments_and_results_by_both_ways(operators, examples):
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.data())
    def compare(data):
        type_, other = data.draw(types), data.draw(types)
        takes = operators(f"({{}} x, {other} y, *, int z=1) -> Any", type_)
        gives = operators(f"(Any make) -> ({other}, {{}})", type_)
        for _ in range(4):
            make, second = data.draw(makers), data.draw(makers)
            for call in (
                lambda: takes(make(), second()),
                lambda: takes(make(), y=second()),
                lambda: gives(lambda: (second(), make())),
                lambda: gives(lambda: [second(), make()]),
            ):
                found = by_both_ways(call)
                assert found.count(found[0]) == 4, (type_, other, found)

    compare()


# --- classes that change --------------------------------------------------------------------------


class World:
    """Some classes, and operators that are called with objects of them."""

    def __init__(self, registry):
        self.f = registry.ops.s.f.default
        self.same = registry.ops.s.same.default
        self.classes = {}
        self.handles = {}
        self.guards = []

    def make(self, at, keys):
        self.end(at)
        self.classes[at] = type("Local", (), {})
        if keys:
            self.register(at, keys)

    def end(self, at):
        """The class dies; another may come where it was."""
        for handle in self.handles.pop(at, ()):
            handle.close()
        self.classes.pop(at, None)
        if not WITHOUT_GIL:  # there each collection looks at everything
            gc.collect(0)

    def register(self, at, keys):
        if at in self.classes:
            handle = md.register_type(self.classes[at], keys)
            self.handles.setdefault(at, []).append(handle)

    def unregister(self, at, keys):
        for handle in self.handles.pop(at, ()):
            handle.close()

    def handler(self, at, keys):
        cls = self.classes[at]
        if "__md_dispatch__" in cls.__dict__:
            del cls.__md_dispatch__
        else:
            cls.__md_dispatch__ = classmethod(lambda cls, op, types, args, kwargs: "handled")

    def carries(self, at, keys):
        self.classes[at].__dispatch_keys__ = keys

    def bases(self, at, keys):
        other = self.classes[min(self.classes)]
        if other is not self.classes[at] and not issubclass(other, self.classes[at]):
            self.classes[at].__bases__ = (type("Between", (other,), {}),)

    def guard(self, at, keys):
        if self.guards:
            self.guards.pop().__exit__(None, None, None)
        else:
            self.guards.append(md.context.IncludeDispatchKeyGuard(keys or "XLA"))
            self.guards[-1].__enter__()

    def call(self, at, keys):
        return self.f(self.classes[at](), at)

    def convert(self, at, keys):
        """While the second argument is converted the class of the first one changes."""
        world = self

        class Changes:
            def __index__(self):
                # C may convert it and then leave the call to Python, which converts it again.
                if "__md_dispatch__" not in world.classes[at].__dict__:
                    world.handler(at, keys)
                return 3

        return self.f(self.classes[at](), Changes())

    def result(self, at, keys):
        return self.same(self.classes[at])

    def result_changes(self, at, keys):
        def made():
            self.unregister(at, keys)
            return self.classes[at]()

        return self.same(made)


steps = st.tuples(
    st.sampled_from([name for name in vars(World) if not name.startswith("_")]),
    st.integers(0, 3),
    st.sampled_from(["CPU", "CUDA", "XLA", None]),
)


def played(registry, program):
    world, log = World(registry), []
    try:
        for name, at, keys in program:
            try:
                given = (at,) if name == "end" else (at, keys)
                log.append((name, told(getattr(world, name)(*given))))
            except Exception as error:
                log.append((name, type(error), str(error)))
    finally:
        while world.guards:
            world.guard(0, None)
        for at in range(4):
            world.end(at)
    return log


@pytest.mark.dear
def test_classes_that_change_and_die_between_calls_and_in_them(registry, lib, examples):
    lib.define("f(Tensor x, int y) -> str")
    lib.define("same(Any make) -> Tensor")
    for key in ("CPU", "CUDA", "XLA"):
        lib.impl("f", lambda x, y, key=key: f"{key} {y}", key)
    lib.impl("same", lambda make: make(), "CompositeExplicitAutograd")
    seen = set()

    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.lists(steps, min_size=4, max_size=30))
    @example([("make", 1, "CUDA"), ("call", 1, None), ("handler", 1, None), ("call", 1, None)])
    def compare(program):
        # Each call more than once: what was remembered is used.
        program = [("make", 0, "CPU"), ("call", 0, None)] + [
            each for step in program for each in [step] * (1 + 2 * (step[0] in ("call", "result")))
        ]
        found = []
        for on in (True, False):
            turn(on)
            found.append(played(registry, program))
        turn(True)
        assert found[0] == found[1]
        seen.update(str(each[1]) for each in found[0])

    compare()
    assert any("CUDA" in each for each in seen)
    assert any("handled" in each for each in seen)


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.skipif(WITHOUT_GIL, reason="allocated blocks are counted late there")
def test_nothing_leaks_in_mixed_calls(operators, request):
    """Ten million with --long."""
    calls = []
    for type_, name in itertools.product(TYPES, VALUES):
        for form in (TAKES, GIVES):
            operator, make = operators(form, type_), VALUES[name]
            value = make if form is GIVES else make()
            try:
                for _ in range(3):
                    operator(value)
            except (Exception, KeyboardInterrupt):
                continue
            calls.append((name, operator, value))
    assert len(calls) > 500
    repeats = (10_000_000 if request.config.getoption("--long") else 200_000) // len(calls)
    for name, operator, value in calls:
        # Caches are filled, other threads of the run end: what leaks grows with the calls.
        for times in [repeats << n for n in range(8)]:
            before = sys.getallocatedblocks(), sys.getrefcount(value)
            for _ in range(times):
                operator(value)
            after = sys.getallocatedblocks(), sys.getrefcount(value)
            if all(b - a < times // 2 for a, b in zip(before, after, strict=True)):
                break
        else:
            pytest.fail(f"{operator} of {name}: {before} became {after} in {times} calls")
