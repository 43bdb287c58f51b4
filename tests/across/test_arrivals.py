"""What an owner does with values of another process that do not fit its schema: it refuses them
before the kernel runs, whatever the other process took for a call.
"""

from __future__ import annotations

import pytest
from kinds import run_main

import mdispatch as md
from mdispatch.across import arrivals
from mdispatch.across.routing import error_of
from mdispatch.across.transports.transport import NO_KERNEL, RAISED
from mdispatch.dispatch.arguments import Binder
from mdispatch.dispatch.context.homes import here
from mdispatch.dispatch.placement import as_tensor
from mdispatch.dispatch.shape import shape_of
from mdispatch.errors import ArgumentError, RoutedError
from mdispatch.facts.native import c_kernels, calls
from mdispatch.schema import parse_schema

pytestmark = pytest.mark.shared

#: The main part serves, its worker sends what it likes, without any binder.
OWNER = """
import tempfile
lib = md.Library("shop", "DEF")
ran = []
def served(schema, **options):
    def kernel(*args, **kwargs):
        ran.append([repr(args), repr(kwargs)])
        return "ran"
    name = lib.define(schema + " -> str", forward=True)
    lib.impl(name, kernel, "CompositeExplicitAutograd", serve="host", **options)
    return kernel
FORGED = '''
import sys
import mdispatch as md
from mdispatch.across.transports import transport_named
from mdispatch.across.offers import offer_of
md.wait_for_def("shop::ready", timeout=limit(60.0))
facts = md.default_registry().dispatcher.facts
def offer(name):
    return next(o for o in map(offer_of, facts.registrations("shop::" + name)[2]) if o)
def send(name, *args, _as=1, **named):
    its = offer(name)
    call = [_as * its.ticket, 0, [], list(args), list(named), list(named.values())]
    why, told, _ = transport_named("host").call(its.address, call, (), 0)
    return [why, told]
'''
def forged(text):
    worker = Worker("subprocess", textwrap.dedent(FORGED) + textwrap.dedent(text), 0,
                    Path(tempfile.mkdtemp(dir=Path(__file__).parent)))
    lib.define("ready() -> ()")
    return results([worker])[0]
"""


def owner(text: str, *args: object) -> dict:
    return run_main(OWNER + text, *args)


#: Of each type: what fits, and what does not. What a caller's binder leaves fits.
VALUES = {
    "int": ("[5, -1]", "[True, 1.0, 'x', b'x', None, [], [1], memoryview(b'a'), handle]"),
    "SymInt": ("[5]", "[True, 1.0, 'x', None]"),
    "float": ("[1.5]", "[1, True, 'x', None, [1.5]]"),
    "bool": ("[True]", "[1, 0.0, 'x', None]"),
    "str": ("['x', '']", "[b'x', 1, None, ['x']]"),
    "complex": ("[]", "[1, 1.0, 'x', None]"),
    "Scalar": ("[1, 1.5, True, memoryview(b'a')]", "['x', b'x', None, [1], handle]"),
    "Tensor": (
        "[memoryview(b'abc'), made]",
        "[1, True, 1.0, 'x', None, [b'x'], array, array_there]",
    ),
    "Any": ("[1, 'x', None, [1], memoryview(b'a'), handle]", "[]"),
    "Device": ("['cpu', 1]", "[None]"),
    "int?": ("[1, None]", "[1.0, 'x', True]"),
    "str?": ("[None, 'x']", "[1]"),
    "Tensor x": ("[]", "[b'x', handle, False]"),
    "Tensor?": ("[None, memoryview(b'a')]", "[1]"),
    "int[]": ("[[], [1, 2]]", "[1, [1, 2.0], [True], [None], ['x'], 'x', None, memoryview(b'a')]"),
    "int[2]": ("[[1, 2]]", "[1, ['x']]"),
    "int[]?": ("[None, [1]]", "[['x'], 1]"),
    "int?[]": ("[[None, 1], []]", "[[1.0], None]"),
    "float[]": ("[[1.5]]", "[[1], [1.5, 1]]"),
    "bool[2]": ("[[True, False]]", "[[1, 0], True]"),
    "str[]": ("[['x', 'y'], []]", "['xy', [b'x']]"),
    "Tensor[]": ("[[memoryview(b'a')], []]", "[[1], memoryview(b'a'), [None]]"),
    "Tensor?[]": ("[[None, memoryview(b'a')]]", "[[1]]"),
    "int[][]": ("[[[1], []]]", "[[1], [['x']]]"),
    "(int, str)": ("[[1, 'x']]", "[[1], [1, 'x', 2], ['x', 1], 1, None]"),
    "(int, str)?": ("[None, [1, 'x']]", "[[1]]"),
    "(int, str)[]": ("[[[1, 'x']], []]", "[[1, 'x'], [['x', 1]]]"),
    "Union(int, str)": ("[1, 'x']", "[1.5, None, b'x', [1]]"),
    "Union(int, str)[]": ("[[1, 'x'], []]", "[1, [1.5]]"),
    "Dict(str, int)": ("[]", "[['x', 1], 1, None, [['x', 1]]]"),
    "far.Point": ("[point, made]", "[1, 'x', None, handle, memoryview(b'a')]"),
    "far.Counter": ("[counter, counter_there]", "[1, point, handle, None, shelf_there]"),
    "far.Unknown": ("[]", "[1, point, handle, counter, counter_there, None]"),
    "int x=3": ("[1]", "[None, 'x']"),
    "int? x=None": ("[1, None]", "['x']"),
    "str x=None": ("['x', None]", "[1]"),
}

#: Classes that both processes have.
FAR = """
class Shelf:
    pass
class Array:
    pass
md.register_type(Array, "CPU")
class Point:
    pass
md.register_class("far.Point", codec=(lambda point: [], lambda told: Point()))(Point)
class Made(Point):
    pass
md.register_class("far.Made", codec=(lambda made: [], lambda told: Made()))(Made)
md.register_type(Made, "CPU")
class Counter:
    def count(self):
        return 1
md.register_class("far.Counter", methods={"count": "() -> int"})(Counter)
"""

ALL_VALUES = """
exec(FAR, globals())
types, values = args
for number, wanted in enumerate(types):
    argument = wanted if " x" in wanted else wanted + " x"
    served(f"first{number}({argument})")
    served(f"named{number}(int n, *, {argument})")
    served(f"keyed{number}({argument})", with_keyset=True)
handles = [md.share(cls(), serve="host") for cls in (Shelf, Array, Counter)]
lib.impl(lib.define("handles() -> Any"), lambda: handles, "CompositeExplicitAutograd", serve="host")
got = forged(FAR + SENDS.replace("VALUES", repr(values)))
done(found=got["found"], ran=len(ran))
"""

SENDS = """
with md.routing("shop", "far", timeout=limit(60.0)):
    handle, array, counter = md.ops.shop.handles()
shelf_there, array_there, counter_there = (
    md.share(cls(), serve="host") for cls in (Shelf, Array, Counter))
point, made = Point(), Made()
found = []
for number, (good, bad) in enumerate(VALUES):
    each = [(value, True) for value in eval(good)] + [(value, False) for value in eval(bad)]
    for value, fits in each:
        for way in (
            send(f"first{number}", value),
            send(f"named{number}", 1, x=value),
            send(f"keyed{number}", 0, value),
            send(f"first{number}", 0, 0, [], value, _as=-1),
            send(f"keyed{number}", 0, 0, [], 0, value, _as=-1),
        ):
            found.append((number, repr(value), fits, way))
report(found=found)
"""


@pytest.mark.thorough
def test_values_that_do_not_fit_the_owners_schema_never_reach_its_kernel():
    """In all ways in which a value comes: by position, by keyword, beside a key set, with keys of
    the caller's thread.
    """
    begin = f"FAR, SENDS = {FAR!r}, {SENDS!r}"
    got = owner(begin + ALL_VALUES, list(VALUES), list(VALUES.values()))
    fitting = 0
    for number, value, fits, (why, told) in got["found"]:
        case = list(VALUES)[number], value, told
        fitting += fits
        if fits:
            assert (why, told) == (0, "ran"), case
        else:
            assert why == RAISED, case
            assert told[:2] == ["mdispatch.errors", "ArgumentError"], case
            assert "declared as shop::" in told[2], case
    assert got["ran"] == fitting > 0
    assert len(got["found"]) > 2 * fitting


#: Calls of "five(int a, str b="x", *, float c, int[] d=[1])", as another process sends them.
GOOD = {"whole": ([1, "y"], ["c", "d"], [1.5, [2]]), "turned": ([1, "y"], ["d", "c"], [[2], 1.5])}
BAD = {
    "no arguments": ([], [], []),
    "one too few": ([1], ["c", "d"], [1.5, [2]]),
    "one too many": ([1, "y", 2], ["c", "d"], [1.5, [2]]),
    "all by position": ([1, "y", 1.5, [2]], [], []),
    "all by keyword": ([], ["a", "b", "c", "d"], [1, "y", 1.5, [2]]),
    "one name too few": ([1, "y"], ["c"], [1.5]),
    "one name too many": ([1, "y"], ["c", "d", "e"], [1.5, [2], 1]),
    "another name": ([1, "y"], ["c", "x"], [1.5, [2]]),
    "a name twice": ([1, "y"], ["c", "d", "d"], [1.5, [2], [2]]),
    "one name for both": ([1, "y"], ["c", "c"], [1.5, 1.5]),
    "a name of a positional one": ([1, "y"], ["c", "b"], [1.5, "y"]),
    "no name": ([1, "y"], ["c", ""], [1.5, [2]]),
}
#: What is in front of the arguments: of a kernel with a key set, of a call with a thread's keys.
FRONTS = {
    "keyed": ([0], [[], ["x"], [None], [True], [1.5]]),
    "-plain": (
        [0, 0, ["traceparent", "x"]],
        [[], [0, 0], [0, "x", []], [None, 0, []], [0, 0, None], [0, 0, [1]], [0, True, []]],
    ),
    "-keyed": ([0, 0, [], 0], [[0, 0, []], [0, 0, 0, []], [0, 0, [], []], [0, 0, [None], 0]]),
}

SHAPES = """
served('plain(int a, str b="x", *, float c, int[] d=[1])')
served('keyed(int a, str b="x", *, float c, int[] d=[1])', with_keyset=True)
served('any(int a, ...)')
good, bad, fronts = args
got = forged(f"GOOD, BAD, FRONTS = {good!r}, {bad!r}, {fronts!r}\\n" + CALLS)
done(told=got["told"], ran=len(ran))
"""

CALLS = """
def called(name, front, args, names, values):
    its = offer(name.lstrip("-"))
    ticket = -its.ticket if name.startswith("-") else its.ticket
    call = [ticket, 0, [], front + args, names, values]
    return list(transport_named("host").call(its.address, call, (), 0)[:2])
told = {}
for name, (front, odd) in {"plain": ([], []), **FRONTS}.items():
    for case, call in {**GOOD, **BAD}.items():
        told[name, case] = called(name, front, *call)
    for each in odd:
        told[name, repr(each)] = called(name, each, *GOOD["whole"])
for case, args in {"one": [1], "more": [1, "x", None], "none": [], "unfit": ["x", 1]}.items():
    told["any", case] = called("any", [], args, [], [])
told["any", "a name"] = called("any", [], [1], ["x"], [1])
report(told=told)
"""


def test_calls_of_another_shape_never_reach_the_kernel():
    got = owner(f"CALLS = {CALLS!r}" + SHAPES, GOOD, BAD, FRONTS)
    fitting = {(name, case) for name in ("plain", *FRONTS) for case in GOOD}
    fitting |= {("any", "one"), ("any", "more")}
    for case, (why, told) in got["told"].items():
        if case in fitting:
            assert (why, told) == (0, "ran"), case
        else:
            assert (why, *told[:2]) == (RAISED, "mdispatch.errors", "ArgumentError"), case
            assert "The kernel was not called." in told[2], case
    assert got["ran"] == len(fitting)
    odd = sum(len(odd) for _, odd in FRONTS.values())
    assert len(got["told"]) == 4 * (len(GOOD) + len(BAD)) + odd + 5


AGAIN = """
first = md.Library("far", "DEF")
first.define("f(int x) -> str")
md.Library("far", "IMPL").impl("f", lambda x: ran.append(x) or "ran", "CompositeExplicitAutograd",
                               serve="host")
def change():
    first.close()
    second.append(md.Library("far", "DEF"))
    second[0].define("f(str x) -> str")
def end():
    second[0].close()
second = []
for each in (change, end):
    lib.impl(lib.define(each.__name__ + "() -> ()"), each, "CompositeExplicitAutograd",
             serve="host")
got = forged(CALLS)
done(told=got["told"], ran=ran)
"""

CALLS_AGAIN = """
its = next(o for o in map(offer_of, facts.registrations("far::f")[2]) if o)
def told(value):
    call = [its.ticket, 0, [], [value], [], []]
    return list(transport_named("host").call(its.address, call, (), 0)[:2])
found = [told(1), told("x")]
with md.routing("shop", timeout=limit(60.0)):
    md.ops.shop.change()
    found += [told(1), told("x")]
    md.ops.shop.end()
    found.append(told("x"))
report(told=found)
"""


def test_a_call_fits_the_definition_that_is_in_effect_when_it_arrives():
    got = owner(f"CALLS = {CALLS_AGAIN!r}" + AGAIN)
    ran, unfit, unfit_now, ran_now, over = got["told"]
    assert ran == ran_now == [0, "ran"]
    assert unfit[1][1] == unfit_now[1][1] == "ArgumentError"
    assert "declared as far::f(int x)" in unfit[1][2]
    error = error_of("far::f", here(), RAISED, unfit_now[1])  # what the caller raises
    assert isinstance(error, ArgumentError)
    assert isinstance(error, RoutedError)
    assert "far::f() was sent int (1) for 'x', not str" in str(error)
    assert "declared as far::f(str x)" in unfit_now[1][2]
    assert over == [NO_KERNEL, None]
    assert got["ran"] == [1, "x"]


OTHERS = """
first = md.Library("far", "DEF")
first.define("share(int x, int by) -> int")
first.impl("share", lambda x, by: x // by, "CompositeExplicitAutograd")
worker = Worker("subprocess", OWNS, 0, Path(tempfile.mkdtemp(dir=Path(__file__).parent)))
from mdispatch.across.transports import transport_named
from mdispatch.across.offers import offer_of
facts = md.default_registry().dispatcher.facts
def offers():
    return [o for o in map(offer_of, facts.registrations("far::share")[2]) if o]
until(offers)
[its] = offers()
def told():
    call = [its.ticket, 0, [], [8, 2], [], []]
    return transport_named("host").call(its.address, call, (), 0)[:2]
before = told()
first.close()
second = md.Library("far", "DEF")
second.define("share(int by, int x) -> int")
after = told()
second.close()
third = md.Library("far", "DEF")
third.define("share(int x, int by) -> int")
back = told()
lib.define("end() -> ()")
results([worker])
done(told=[before, after, back])
"""

OWNS = """
import mdispatch as md
lib = md.Library("far", "DEF")
lib.define("share(int x, int by) -> int")
lib.impl("share", lambda x, by: x // by, "CompositeExplicitAutograd", serve="host")
md.wait_for_def("shop::end", timeout=limit(60.0))
report()
"""


def test_a_worker_runs_a_kernel_for_others_under_the_definition_that_it_verified_only():
    """The types fit under both, so only the text tells that the arguments are turned."""
    got = owner(f"OWNS = {OWNS!r}" + OTHERS)
    assert got["told"] == [(0, 4), (NO_KERNEL, None), (0, 4)]


def test_a_kernel_whose_registry_is_being_closed_is_served_no_more():
    """A call may arrive between the end of the registry and the end of its libraries."""
    got = run_main(
        """
        from mdispatch.across.transports import transport_named
        from mdispatch.across.offers import offer_of
        registry = md.Registry.create()
        lib = md.Library("far", "DEF", registry=registry)
        lib.define("f(int x) -> int")
        lib.impl("f", abs, "CompositeExplicitAutograd", serve="host")
        facts = registry.dispatcher.facts
        [its] = [o for o in map(offer_of, facts.registrations("far::f")[2]) if o]
        def told():
            call = [its.ticket, 0, [], [-8], [], []]
            return transport_named("host").call(its.address, call, (), 0)[:2]
        before = told()
        facts.close()
        after = told()
        registry.close()
        done(told=[before, after, told()])
        """
    )
    assert got["told"] == [(0, 8), (NO_KERNEL, None), (NO_KERNEL, None)]


#: What a user may give. The binder of a caller refuses most for most types.
GIVEN = [True, 1, 1.5, "x", b"x", None, (1, "x"), [1], [1.5], (1, 2), [], [[1], (2,)], [True]]
GIVEN += [[None, 1], ["x"], 2**62, -1, bytearray(b"a"), [bytearray(b"a"), None], [b""], 1j, {}]


def test_whatever_a_binder_leaves_fits_when_it_arrives():
    """So an owner refuses no call that a caller has made, and C is sure of nothing else."""
    fitting = 0
    with md.register_type(bytearray, "CPU"):
        for wanted in VALUES:
            argument = wanted if " x" in wanted else f"{wanted} x"
            for text in (f"s::f({argument}) -> ()", f"s::f(*, {argument}) -> ()"):
                schema = parse_schema(text)
                kinds = [[value] for value in GIVEN] + [[]]
                for given in kinds:
                    is_bound, sent = _sent(schema, given, "*" in text)
                    fits = _takes(schema, sent)
                    assert fits or not is_bound, (text, given)
                    certain = calls.arrived(shape_of(schema), 0, *sent)
                    assert fits or not certain, (text, given)
                    fitting += is_bound
    assert fitting > 200


def _sent(schema, given, by_name):
    """Whether a caller binds a call, and what arrives of it; else of the values as they are."""
    args, names = ((), {"x": given[0]} if given else {}) if by_name else (given, {})
    try:
        args, names = Binder(schema, as_tensor).bind(args, names)
        is_bound = True
    except ArgumentError:
        is_bound = False
    message = c_kernels.pack(
        [list(args), list(names), list(names.values())], -2, (), (), [], None, 1 << 16
    )
    if isinstance(message, str):  # it cannot travel
        return False, ([], [], [])
    return is_bound, c_kernels.unpack(message, (), [], 0)


def _takes(schema, sent):
    try:
        arrivals._check(schema, *sent)
    except ArgumentError:
        return False
    return True
