"""A function that cannot be called with the arguments of a schema is refused as its kernel."""

from __future__ import annotations

import functools
import math

import pytest
from kinds import run_main
from places import PLACES, run_at

import mdispatch as md
from mdispatch import errors

pytestmark = pytest.mark.either_binding

SCHEMA = '(Tensor(a!) x, Dict(str, int) d, str s="a, (b", *, int[2] k=[1, 2], float? q=None)'


class Callable:
    def __call__(self, x, d, s, *, k, q):
        return x

    def method(self, x, d, s, *, k, q):
        return x

    def short(self, x):
        return x


FITS = {
    "exactly": lambda x, d, s, *, k, q: x,
    "by name": lambda x, d, s, k, q: x,
    "anything": lambda *args, **kwargs: x,  # noqa: F821
    "any more": lambda x, *rest, k=0, **others: x,
    "more with defaults": lambda x, d, s, k, q, more=1, *, yet=2: x,
    "positional only": lambda x, d, s, /, **named: x,
    "an object": Callable(),
    "a method": Callable().method,
    "a builtin": math.hypot,
    "a partial": functools.partial(lambda x: x, 1),
    "a class": Callable,
}
MISFITS = {
    "too few": (lambda x: x, "it takes 1 by position, and gets 3 (x, d, s)"),
    "no keyword": (lambda x, d, s, *, k: x, "it gets q by keyword, and does not take that"),
    "taken by position": (lambda x, d, q, *, k: x, "it gets q by keyword, and does not take that"),
    "by position only": (lambda x, d, s, k, q, /: x, "gets k by keyword, and does not take that"),
    "too many": (lambda x, d, s, k, q, z: x, "it needs a value for z, and gets none"),
    "a keyword more": (lambda x, d, s, *, k, q, z: x, "it needs a value for z, and gets none"),
    "a method": (Callable().short, "it takes 1 by position, and gets 3 (x, d, s)"),
}


@pytest.mark.parametrize("name", FITS)
def test_a_function_that_can_be_called_is_taken(registry, lib, name):
    lib.define("f" + SCHEMA + " -> Any")
    lib.impl("f", FITS[name], "CPU")


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("first", ["the schema", "the kernel"])
def test_one_that_cannot_is_refused_with_both_places(registry, lib, name, first):
    function, reason = MISFITS[name]
    if first == "the schema":
        lib.define("f" + SCHEMA + " -> Any")
        with pytest.raises(errors.SignatureMismatchError) as caught:
            lib.impl("f", function, "CPU")
        assert registry.ops.s.f.default.has_kernel_for_dispatch_key("CPU") is False
    else:
        lib.impl("f", function, "CPU")
        with pytest.raises(errors.SignatureMismatchError) as caught:
            lib.define("f" + SCHEMA + " -> Any")
        assert registry.operators() == []
    error = caught.value
    assert error.operator == "s::f"
    assert error.schema.startswith("s::f(Tensor(a!) x")
    assert error.signature.startswith("(x")
    assert reason in str(error)
    assert str(error).count(f"{__file__}:") == 2
    registry.check_invariants()


def test_the_key_set_counts(registry, lib):
    lib.define("f(Tensor x) -> Any")
    lib.impl("f", lambda keys, x: x, "CPU", with_keyset=True)
    with pytest.raises(errors.SignatureMismatchError, match=r"gets 2 \(the key set, x\)"):
        lib.impl("f", lambda x: x, "CPU", with_keyset=True)
    with pytest.raises(errors.SignatureMismatchError, match="needs a value for x"):
        lib.impl("f", lambda keys, x: x, "CPU")


def test_a_schema_with_more_arguments_takes_any_function(registry, lib):
    lib.define("f(Tensor x, ...) -> Any")
    lib.impl("f", lambda: 1, "CPU")


@pytest.mark.parametrize(
    "schema",
    [
        "() -> ()",
        "(*, Tensor out) -> Tensor",
        "((int, str) pair, int[] xs=[1, 2], *, str t='x) -> (', Tensor(a -> b) y) -> (Tensor, int)",
        "(Tensor(a|b) x, Union(int, str) u, int lambda=1) -> Tensor(a)",
        "(Tensor x, Dict(str, (int, int)) d, *, float y=1e-5, int[3] w=1) -> Tensor[]",
    ],
)
def test_arguments_are_counted_as_the_parser_counts_them(registry, lib, schema):
    """They are counted by the text, without a parser, where that is sure to be right."""
    lib.define("f" + schema)
    parsed = registry.ops.s.f.default.schema.arguments
    positional = [a.name for a in parsed if not a.kwarg_only]
    named = [a.name for a in parsed if a.kwarg_only]
    plain = ", ".join(f"p{place}" for place, _ in enumerate(positional))
    star = ", *, " if plain and named else "*, " if named else ""
    for more, fits in (("", True), (", z" if plain or named else "z", False)):
        function = eval(f"lambda {plain}{star}{', '.join(named)}{more}: None")
        if fits:
            lib.impl("f", function, "CPU")
        else:
            with pytest.raises(errors.SignatureMismatchError, match="a value for z"):
                lib.impl("f", function, "CUDA")


def test_every_way_to_register_a_function_asks(registry, lib):
    name = lib.define("f(Tensor x, Tensor y) -> Any")

    def wrong(x):
        return x

    def make(name, function):
        schema = "(Tensor x, Tensor y) -> Any"
        return md.custom_op(name, function, mutates_args=(), schema=schema, registry=registry)

    op = make("s::g", lambda x, y: x)
    ways = [
        lambda: md.impl(name, "cpu", wrong, lib=lib),
        lambda: md.register_kernel(name, "cpu", wrong, lib=lib),
        lambda: lib.register_fake("f", wrong),
        lambda: md.register_fake(name, wrong, lib=lib),
        lambda: op.register_kernel("cpu", wrong),
        lambda: op.register_fake(wrong),
        lambda: md.register_op("s::h(Tensor x, Tensor y) -> Any", registry=registry)(wrong),
        lambda: make("s::i", wrong),
    ]
    before = registry.dispatcher.facts.registrations()[2]
    for way in ways:
        with pytest.raises(errors.SignatureMismatchError, match="takes 1 by position, and gets 2"):
            way()
    assert registry.dispatcher.facts.registrations()[2] == before


@pytest.mark.parametrize("place", [place for place in PLACES if place != "main"])
def test_a_worker_s_own_kernel_is_refused_too(place, tmp_path):
    module = """
    import mdispatch as md
    lib = md.Library("fit", "DEF")
    lib.define("f(int x, int y) -> int")
    main = md.is_main_interpreter()
    told = None
    try:
        lib.impl("f", (lambda x, y: x) if main else (lambda x: x), "CompositeExplicitAutograd")
    except md.errors.SignatureMismatchError as error:
        told = str(error)
    """
    body = "import feature\nresult = {'told': feature.told}"
    told = run_at(place, module, body, tmp_path)["told"]
    assert "takes 1 by position, and gets 2 (x, y)" in told
    assert told.count("feature.py:") == 2


@pytest.mark.shared
def test_a_kernel_of_an_operator_that_this_worker_did_not_define_is_asked_of_the_registry(tmp_path):
    main = """
    lib = md.Library("fit", "DEF")
    lib.define("f(int x, int y) -> int")
    lib.impl("f", lambda x, y: x, "CompositeExplicitAutograd")
    folder = Path(args[0])
    text = '''
import mdispatch as md
try:
    md.Library("fit", "IMPL").impl("f", lambda x: x, "CompositeExplicitAutograd")
except md.errors.SignatureMismatchError as error:
    report(told=error.operator)
'''
    done(**results(start("subprocess", text, 1, folder))[0])
    """
    assert run_main(main, str(tmp_path))["told"] == "fit::f"
