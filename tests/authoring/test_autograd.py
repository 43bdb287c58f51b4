"""Formulas and engines: what may be registered, what a formula gets and must return, and which
engine serves a call. tests/project/test_tape.py has the tests of tapes.
"""

from __future__ import annotations

import random

import pytest
from places import PLACES, run_at
from tapes import Tape
from vectors import Vec, close, differences, gradients, ones, operators, zeros

import mdispatch as md
from mdispatch import errors
from mdispatch.authoring.autograd import (
    engines,
    needs_grad,
    register_autograd,
    register_autograd_engine,
)


@pytest.fixture
def lib(registry):
    return md.Library("g", "DEF", registry=registry)


@pytest.fixture
def vec(registry):
    return operators(registry)


def define(lib, schema, kernel, backward=None, setup_context=None, key="CPU"):
    """An operator with a kernel and, if there is one, a formula."""
    name = lib.define(schema)
    lib.impl(name, kernel, key)
    if backward is not None:
        register_autograd(name, backward, setup_context=setup_context, lib=lib)
    base, _, overload = name.partition("::")[2].partition(".")
    return getattr(getattr(lib.registry.ops.g, base), overload or "default")


X, Y = Vec(0.5, -1.25, 2.0), Vec(3.0, 0.75, -0.5)


# --- gradients are right --------------------------------------------------------------------------

FUNCTIONS = {
    "product": lambda vec: lambda x, y: vec.mul(x, y),
    "a value used three times": lambda vec: lambda x, y: vec.mul(vec.mul(x, x), vec.add(x, y)),
    "a sum of sines": lambda vec: lambda x, y: vec.add(vec.sin(vec.mul(x, y)), vec.cos(y)),
    "a keyword-only number": lambda vec: lambda x, y: vec.scale(vec.mul(x, y), factor=-3.0),
    "the default of a keyword": lambda vec: lambda x, y: vec.mul(vec.scale(x), y),
    "a list": lambda vec: lambda x, y: vec.mul(vec.total([x, y, x]), y),
    "two outputs": lambda vec: (
        lambda x, y: vec.mul(*vec.halves(vec.total([vec.mul(x, x), y, y, vec.sin(y)])))
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_finite_differences(vec, name):
    function = FUNCTIONS[name](vec)
    inputs = [Vec(0.5, -1.25, 2.0, 1.5), Vec(3.0, 0.75, -0.5, -2.0)]
    found = gradients(function, inputs)
    expected = differences(function, inputs)
    assert all(map(close, found, expected)), (found, expected)


def program(vec, seed):
    """A function of three vectors, made from random operators."""
    choices = random.Random(seed)
    steps = [(choices.randrange(6), choices.random(), choices.random()) for _ in range(7)]

    def run(*inputs):
        values = list(inputs)
        for which, one, other in steps:
            a, b = values[int(one * len(values))], values[int(other * len(values))]
            made = [
                lambda a=a, b=b: vec.add(a, b),
                lambda a=a, b=b: vec.mul(a, b),
                lambda a=a: vec.sin(a),
                lambda a=a: vec.cos(a),
                lambda a=a, other=other: vec.scale(a, factor=other),
                lambda a=a, b=b: vec.total([a, b, a]),
            ][which]()
            values.append(made)
        return vec.total(values[3:])

    return run


@pytest.mark.parametrize("seed", range(25))
def test_programs_at_random_have_first_and_second_gradients_of_finite_differences(vec, seed):
    inputs = [Vec(0.5, -0.25), Vec(1.0, 0.75), Vec(-0.5, 0.25)]
    function = program(vec, seed)

    def first(*inputs):
        with Tape(ones_like=ones, zeros_like=zeros) as tape:
            tape.watch(*inputs)
            y = function(*inputs)
        found = tape.gradient(y, inputs)
        return vec.total([each for each in found if each is not None])

    for each in (function, first):
        found = [
            zeros(x) if g is None else g
            for g, x in zip(gradients(each, inputs), inputs, strict=True)
        ]
        expected = differences(each, inputs)
        assert all(map(close, found, expected)), (found, expected)


def test_an_operator_made_of_others_is_differentiated_through_them(registry, vec, lib):
    lib.define("tower(Tensor x) -> Tensor")
    lib.impl("tower", lambda x: vec.mul(vec.sin(x), x))
    tower = registry.ops.g.tower
    assert close(gradients(tower, [X])[0], differences(tower, [X])[0])


def test_operators_that_a_kernel_calls_below_autograd_are_not_recorded(registry, vec, lib):
    seen = []
    opaque = define(
        lib,
        "opaque(Tensor x) -> Tensor",
        lambda x: vec.mul(vec.sin(x), x),
        lambda ctx, g: seen.append(g) or g,
        key="CompositeExplicitAutograd",
    )
    (found,) = gradients(opaque, [X])
    assert len(seen) == 1
    assert found.items == (1.0, 1.0, 1.0)


# --- where the formula stands in the table --------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "reason", "at_autograd"),
    [
        ("CPU", "autograd kernel", "AutogradCPU"),
        ("CompositeExplicitAutograd", "autograd kernel", "AutogradCPU"),
        ("CompositeImplicitAutograd", "math kernel", "AutogradCPU"),
        ("SparseCPU", "autograd kernel", "AutogradOther"),
    ],
)
def test_the_formula_serves_autograd_keys_unless_the_operator_is_made_of_others(
    registry, lib, key, reason, at_autograd
):
    define(lib, "f(Tensor x) -> Tensor", lambda x: x.map(abs), lambda ctx, g: g, key=key)
    rows = {row.key.name: row for row in registry.table("g::f")}
    assert rows[at_autograd].reason == reason


def test_a_kernel_of_one_autograd_key_goes_before_the_formula(registry, lib):
    define(lib, "f(Tensor x) -> Tensor", lambda x: x, lambda ctx, g: g)
    lib.impl("f", lambda x: x, "AutogradCPU")
    rows = {row.key.name: row.reason for row in registry.table("g::f")}
    assert (rows["AutogradCPU"], rows["AutogradCUDA"]) == ("kernel", "autograd kernel")


def test_the_newest_formula_is_in_effect_and_the_earlier_one_returns(registry, lib):
    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.map(abs), lambda ctx, g: g)
    with md.Library("g", "FRAGMENT", registry=registry) as second:
        register_autograd(f, lambda ctx, g: g + g, lib=second)
    assert gradients(f, [X])[0].items == (2.0, 2.0, 2.0)
    second.close()
    assert gradients(f, [X])[0].items == (1.0, 1.0, 1.0)


def test_a_formula_serves_the_operator_that_is_defined_after_the_first_one_ended(registry):
    first = md.Library("g", "DEF", registry=registry)
    first.define("f(Tensor x) -> Tensor")
    register_autograd("g::f", lambda ctx, g: g + g, registry=registry)
    first.close()
    second = md.Library("g", "DEF", registry=registry)
    f = define(second, "f(Tensor x) -> Tensor", lambda x: x.map(abs))
    assert gradients(f, [X])[0].items == (2.0, 2.0, 2.0)


def test_a_formula_says_so_when_the_operator_came_back_with_a_schema_that_is_not_for_it(registry):
    first = md.Library("g", "DEF", registry=registry)
    first.define("f(Tensor x) -> Tensor")
    register_autograd("g::f", lambda ctx, g: g, registry=registry)
    first.close()
    f = define(
        md.Library("g", "DEF", registry=registry), "f(Tensor(a!) x) -> Tensor(a!)", lambda x: x
    )
    with Tape(), pytest.raises(errors.AutogradError, match="writes to x"):
        f(X)


# --- what may be registered -----------------------------------------------------------------------

NOT_FUNCTIONAL = {
    "f(Tensor(a!) x) -> ()": "writes to x",
    "f(Tensor x, *, Tensor(a!) out) -> Tensor(a!)": "writes to out",
    "f(Tensor(a) x) -> Tensor(a)": "share memory",
    "f(Tensor x) -> ()": "returns nothing",
    "f(Tensor x, *, Tensor y) -> Tensor": r"keyword only \(y\)",
    "f(Tensor x, *, Tensor?[] ys) -> Tensor": r"keyword only \(ys\)",
    "f(Tensor x, ...) -> Tensor": "any number",
    "f(Tensor x) -> ...": "any number",
}


@pytest.mark.parametrize("schema", NOT_FUNCTIONAL)
def test_an_operator_that_no_formula_can_serve_is_refused_and_nothing_changes(
    registry, lib, schema
):
    lib.define(schema)
    before = registry.registrations("g::f")
    with pytest.raises(errors.AutogradError, match=NOT_FUNCTIONAL[schema]) as caught:
        register_autograd("g::f", lambda ctx, g: g, registry=registry)
    assert caught.value.operator == "g::f"
    assert registry.registrations("g::f") == before


def test_bad_input_is_refused_and_nothing_changes(registry, lib):
    lib.define("first(Tensor x) -> Tensor")
    before = registry.registrations("g::first")

    def refused(error, *args, match, **options):
        with pytest.raises(error, match=match):
            register_autograd(*args, **options)

    def formula(ctx, g):
        return g

    refused(errors.InvalidArgumentError, "g::first", None, lib=lib, match="backward must be")
    refused(
        errors.InvalidArgumentError,
        *("g::first", formula),
        lib=lib,
        setup_context=3,
        match="setup_context must be",
    )
    refused(errors.InvalidArgumentError, "g::first", formula, lib="g", match="Library")
    refused(errors.InvalidArgumentError, "h::first", formula, lib=lib, match="not in namespace")
    refused(errors.InvalidNameError, "first", formula, registry=registry, match="namespace too")
    refused(errors.InvalidNameError, 7, formula, registry=registry, match="not 7")
    refused(errors.InvalidNameError, 7, formula, lib=lib, match="not 7")
    keyed = md.Library("g", "IMPL", "CPU", registry=registry)
    refused(errors.InvalidKeyError, "g::first", formula, lib=keyed, match="for CPU")
    with md.Registry.create() as other:
        refused(
            errors.InvalidArgumentError,
            *("g::first", formula),
            lib=lib,
            registry=other,
            match="different registries",
        )
        first = registry.ops.g.first.default
        refused(
            errors.InvalidArgumentError,
            *(first, formula),
            registry=other,
            match="different registries",
        )
    assert registry.registrations("g::first") == before


def test_an_operator_that_is_not_there_is_named_with_those_that_are_nearest(registry, lib):
    lib.define("first(Tensor x) -> Tensor")
    with pytest.raises(errors.OperatorNotFoundError, match="did you mean g::first") as caught:
        register_autograd("g::fist", lambda ctx, g: g, registry=registry)
    assert caught.value.nearest == ("g::first",)
    assert registry.registrations("g::fist") == []


def test_an_operator_that_was_closed_takes_no_formula(registry):
    first = md.Library("g", "DEF", registry=registry)
    f = define(first, "f(Tensor x) -> Tensor", lambda x: x)
    first.close()
    md.Library("g", "DEF", registry=registry).define("f(Tensor x) -> Tensor")
    with pytest.raises(errors.OperatorGoneError):
        register_autograd(f, lambda ctx, g: g, registry=registry)


def test_the_registry_notes_the_formula_by_its_name_and_place(registry, lib):
    def of_scaling(ctx, g):
        return g

    define(lib, "f(Tensor x) -> Tensor", lambda x: x, of_scaling)
    fact = registry.registrations("g::f")[-1]
    assert md.DispatchKey(fact.key).name == "Autograd"
    assert fact.body.endswith("of_scaling")
    assert __file__ in fact.where


def test_a_formula_of_a_module_s_own_code_replaces_itself_when_the_module_runs_again(registry, lib):
    lib.define("f(Tensor x) -> Tensor")
    text = "register_autograd('g::f', lambda ctx, g: g, registry=registry)"
    space = {"__name__": "m", "register_autograd": register_autograd, "registry": registry}
    for _ in range(3):
        exec(compile(text, "m.py", "exec"), space)
    assert [fact.where for fact in registry.registrations("g::f")[1:]] == ["m.py:1"]


# --- what a formula gets --------------------------------------------------------------------------


def test_setup_context_gets_all_arguments_with_their_defaults_and_the_output(lib):
    seen = {}

    def setup_context(ctx, inputs, keyword_only_inputs, output):
        seen.update(inputs=inputs, named=keyword_only_inputs, output=output)

    f = define(
        lib,
        "f(Tensor x, int n=3, *, str how='up') -> Tensor",
        lambda x, n, how: x.map(abs),
        lambda ctx, g: (g, None),
        setup_context,
    )
    with Tape() as tape:
        tape.watch(X)
        y = f(X)
    assert seen["inputs"][0] is X
    assert (seen["inputs"][1:], seen["named"]) == ((3,), {"how": "up"})
    assert seen["output"] is y


def test_operators_that_setup_context_calls_are_not_recorded(lib, vec):
    kept = []

    def setup_context(ctx, inputs, output):
        kept.append(vec.sin(inputs[0]))

    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.map(abs), lambda ctx, g: g, setup_context)
    with Tape() as tape:
        tape.watch(X)
        y = f(X)
    assert [tape.is_watched(each) for each in (*kept, y)] == [False, True]


def test_needs_input_grad_follows_the_structure_of_the_positional_arguments(lib):
    seen = []

    def note(ctx, *args, **kwargs):
        seen.append(ctx.needs_input_grad)
        return (None, None, None, None) if args else None

    f = define(
        lib,
        "f(Tensor a, Tensor?[] b, int c, Tensor? d) -> Tensor",
        lambda a, b, c, d: a.map(abs),
        note,
        note,
    )
    with Tape(ones_like=ones, persistent=True) as tape:
        tape.watch(X, Y)
        y = f(Vec(1.0), [X, None, Vec(2.0), Y], 1, None)
    assert tape.gradient(y, [Y, X]) == [None, None]
    tape.gradient(y, X)
    assert seen[0] == seen[1] == (False, [True, False, False, True], False, False)
    assert seen[2] == (False, [True, False, False, False], False, False)


def test_no_formula_runs_for_what_needs_no_gradient(lib):
    def fail(*args, **kwargs):
        raise AssertionError

    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.map(abs), fail, fail)
    with Tape(ones_like=ones) as tape:
        tape.watch(Y)
        z = f(X)
    assert z.items == (0.5, 1.25, 2.0)
    assert tape.gradient(z, Y) is None


def test_outputs_without_a_gradient_get_zeros_where_there_are_some_and_else_none(lib):
    seen = []

    def backward(ctx, first, middle, second):
        seen.append((first.items, middle, second and second.items))
        return first

    schema = "f(Tensor x) -> (Tensor, int, Tensor)"
    f = define(lib, schema, lambda x: (x.map(abs), 3, x.map(abs)), backward)
    refusing = define(
        lib,
        schema.replace("f(", "f.none("),
        lambda x: (x.map(abs), 3, x.map(abs)),
        backward,
        lambda ctx, inputs, output: ctx.set_materialize_grads(False),
    )
    for function in (f, refusing):
        for options in ({}, {"zeros_like": zeros}):
            gradients(lambda x, function=function: function(x)[0], [Vec(2.0)], **options)
    assert seen == [((1.0,), None, None), ((1.0,), None, (0.0,)), *[((1.0,), None, None)] * 2]


def test_no_gradient_goes_through_an_output_that_is_marked(lib):
    seen = []

    def backward(ctx, first, second):
        seen.append((first, second.items))
        return second

    f = define(
        lib,
        "f(Tensor x) -> (Tensor, Tensor)",
        lambda x: (x.map(abs), x.map(abs)),
        backward,
        lambda ctx, inputs, output: ctx.mark_non_differentiable(output[0]),
    )
    with Tape(ones_like=ones) as tape:
        tape.watch(X)
        first, second = f(X)
        assert (tape.is_watched(first), tape.is_watched(second)) == (False, True)
    assert tape.gradient([first, second], X).items == (1.0, 1.0, 1.0)
    assert seen == [(None, (1.0, 1.0, 1.0))]


def test_only_outputs_can_be_marked(lib):
    f = define(
        lib,
        "f(Tensor x) -> Tensor",
        lambda x: x.map(abs),
        lambda ctx, g: g,
        lambda ctx, inputs, output: ctx.mark_non_differentiable(inputs[0]),
    )
    with Tape() as tape:
        tape.watch(X)
        with pytest.raises(errors.AutogradError, match="marks a Vec as non-differentiable"):
            f(X)


def test_what_was_saved_is_at_hand_inside_of_backward_only(lib):
    kept = []

    def backward(ctx, g):
        kept.append((ctx, ctx.saved_tensors, ctx.word))
        return g

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], 7)
        ctx.word = "free"

    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.map(abs), backward, setup_context)
    gradients(f, [X])
    ((ctx, saved, word),) = kept
    assert (saved, word) == ((X, 7), "free")
    with pytest.raises(errors.AutogradError, match="is over"):
        _ = ctx.saved_tensors


# --- what a formula must give back ----------------------------------------------------------------

WRONG = {
    "too few": (lambda ctx, g: (g,), r"1 gradients, not a tuple of 3.*\(a, b, c\)"),
    "too many": (lambda ctx, g: (g, [g], None, None), "4 gradients"),
    "no tuple": (lambda ctx, g: g, "a Vec, not a tuple of 3"),
    "a list for all": (lambda ctx, g: [g, [g], None], "a list of 3, not a tuple of 3"),
    "one for a list": (lambda ctx, g: (g, g, None), "a Vec for 'b': return a list of 2"),
    "a short list": (lambda ctx, g: (g, [g], None), "a list of 1 for 'b': return a list of 2"),
    "one for a number": (lambda ctx, g: (g, [g, g], g), "a Vec for 'c', which was not a Tensor"),
}


@pytest.mark.parametrize("name", WRONG)
def test_gradients_that_do_not_fit_the_schema_are_refused_with_what_is_wanted(lib, name):
    backward, words = WRONG[name]
    f = define(
        lib, "f(Tensor a, Tensor[] b, int c) -> Tensor", lambda a, b, c: a.map(abs), backward
    )
    with pytest.raises(errors.AutogradError, match=words) as caught:
        gradients(lambda x: f(x, [x, x], 1), [X])
    assert caught.value.operator == "g::f"
    assert __file__ in str(caught.value)
    assert "g::f(Tensor a, Tensor[] b, int c) -> Tensor" in str(caught.value)


def test_a_gradient_may_be_a_tuple_by_its_class(lib):
    class Pair(tuple):
        __dispatch_keys__ = "CPU"

    # It has one value, so it could be taken for a tuple with one gradient.
    x, gradient = Pair([1.0]), Pair([3.0])
    ops = [
        define(
            lib, f"{name} -> Tensor", lambda *args: Pair([2.0]), lambda ctx, g, given=given: given
        )
        for name, given in (
            ("bare(Tensor x)", gradient),
            ("packed(Tensor x)", (gradient,)),
            ("two(Tensor x, float y=1.0)", (gradient, None)),
            ("list(Tensor[] xs)", [gradient]),
        )
    ]
    for op, argument in zip(ops, (x, x, x, [x]), strict=True):
        with Tape() as tape:
            tape.watch(x)
            y = op(argument)
        assert tape.gradient(y, x, Pair([1.0])) is gradient


@pytest.mark.parametrize("backward", [lambda ctx, g: None, lambda ctx, g: (None,)])
def test_none_stands_for_no_gradient(lib, backward):
    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.map(abs), backward)
    assert gradients(f, [X]) == [None]


@pytest.mark.parametrize("backward", [lambda ctx, g: (None, None), lambda ctx, g: ([None, g], g)])
def test_gradients_in_lists_may_be_none(lib, backward):
    f = define(lib, "f(Tensor[] xs, Tensor y) -> Tensor", lambda xs, y: y.map(abs), backward)
    first, second, third = gradients(lambda a, b, c: f([a, b], c), [Vec(1.0), Vec(2.0), Vec(3.0)])
    assert first is None
    assert (second is None) == (third is None)


def test_what_a_formula_raises_comes_out_with_a_note_whose_it_is(lib):
    def backward(ctx, g):
        raise ZeroDivisionError("by the formula")

    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.map(abs), backward)
    with pytest.raises(ZeroDivisionError, match="by the formula") as caught:
        gradients(f, [X])
    assert "the autograd formula of g::f" in caught.value.__notes__[0]
    assert __file__ in caught.value.__notes__[0]


def test_what_setup_context_raises_leaves_the_tape_as_it_was(lib):
    def setup_context(ctx, inputs, output):
        raise ZeroDivisionError

    f = define(lib, "f(Tensor x) -> Tensor", lambda x: x.map(abs), lambda ctx, g: g, setup_context)
    with Tape() as tape:
        tape.watch(X)
        before = repr(tape)
        with pytest.raises(ZeroDivisionError) as caught:
            f(X)
        assert repr(tape) == before
    assert "g::f" in caught.value.__notes__[0]


# --- engines --------------------------------------------------------------------------------------


class Owner:
    """An engine that serves the given values, and only counts."""

    def __init__(self, *values):
        self.values = values
        self.calls = []

    def needs_grad(self, value):
        return any(value is each for each in self.values)

    def apply(self, call):
        self.calls.append(call.name)
        return call.forward([self.needs_grad(each) for each in call.inputs])[0]


class AutogradVec(Vec):
    __dispatch_keys__ = ("CPU", "AutogradCPU")


class Interrupting(tuple):
    """Calls ``handlers`` when it is read, as a signal comes while a thread reads it."""

    def __iter__(self):
        while self.handlers:
            self.handlers.pop()()
        return super().__iter__()


def test_an_engine_that_a_signal_handler_registers_while_another_ends_stays(monkeypatch):
    class Engine:
        needs_grad = apply = len

    monkeypatch.setattr(engines, "_engines", engines._engines)  # as it is afterwards
    first, second = Engine(), Engine()
    handle = register_autograd_engine(first)
    before = Interrupting(engines._engines)
    before.handlers = [lambda: register_autograd_engine(second)]
    monkeypatch.setattr(engines, "_engines", before)
    handle.close()
    there = [each.engine for each in engines._engines]
    assert second in there
    assert first not in there


def test_an_engine_serves_the_calls_with_its_values_until_it_is_closed(vec):
    mine, others = AutogradVec(1.0), AutogradVec(2.0)
    engine = Owner(mine)
    with register_autograd_engine(engine) as handle:
        assert vec.mul(mine, others).items == (2.0,)
        assert vec.mul(others, others).items == (4.0,)
        assert engine.calls == ["vec::mul"]
        assert vec.total([others, mine]).items == (3.0,)
        assert engine.calls == ["vec::mul", "vec::total"]
    handle.close()
    assert vec.mul(mine, others).items == (2.0,)
    assert len(engine.calls) == 2


def test_values_tell_whether_an_engine_would_remember_them(vec):
    x = AutogradVec(1.0)
    with register_autograd_engine(Owner(x)), Tape() as tape:
        tape.watch(X)
        assert [needs_grad(each) for each in (x, X, Y)] == [True, True, False]
        with tape.stop_recording():
            assert not needs_grad(X)
    assert [needs_grad(each) for each in (x, X, Y)] == [False] * 3


def test_the_engine_registered_last_is_asked_first(vec):
    x = AutogradVec(1.0)
    first, second = Owner(x), Owner(x)
    with register_autograd_engine(first):
        with register_autograd_engine(second):
            vec.sin(x)
        vec.cos(x)
    assert (first.calls, second.calls) == (["vec::cos"], ["vec::sin"])


def test_values_of_two_engines_are_refused_before_anything_ran(registry, lib):
    ran = []
    f = define(lib, "f(Tensor[] xs) -> Tensor", lambda xs: ran.append(xs) or X, lambda ctx, g: None)
    mine = AutogradVec(1.0)
    with register_autograd_engine(Owner(mine)), Tape() as tape:
        tape.watch(X)
        with pytest.raises(errors.AutogradError, match=r"Owner and TapeEngine") as caught:
            f([X, mine])
    assert caught.value.operator == "g::f"
    assert not ran


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda call: call.forward([True]), r"1 needs to forward\(\), .* each input: 2 in all"),
        (
            lambda call: call.forward([True, True])[2].with_outputs(X, []),
            r"0 outputs to with_outputs\(\), .* each output: 1 in all",
        ),
        (
            lambda call: call.forward([True, True])[2].gradients([X, Y], [True, True]),
            r"2 gradients to gradients\(\), .* each output: 1 in all",
        ),
        (
            lambda call: call.forward([True, True])[2].gradients([X], [True] * 3),
            r"3 needs to gradients\(\), .* each input: 2 in all",
        ),
    ],
)
def test_an_engine_that_counts_wrong_is_told_by_an_error_of_its_own(vec, wrong, told):
    class Engine:
        def needs_grad(self, value):
            return True

        def apply(self, call):
            return wrong(call)

    mul = vec.mul.default
    with register_autograd_engine(Engine()), pytest.raises(errors.AutogradError, match=told) as e:
        mul(AutogradVec(1.0), AutogradVec(2.0))
    assert e.value.operator == "vec::mul"


@pytest.mark.parametrize("engine", [None, object(), type("E", (), {"needs_grad": bool})()])
def test_what_has_not_the_methods_of_an_engine_is_refused(engine):
    with pytest.raises(errors.InvalidArgumentError, match=r"has no (needs_grad|apply)\(\)"):
        register_autograd_engine(engine)


def test_an_error_of_the_kernel_leaves_this_thread_s_keys_as_they_were(registry, lib):
    def kernel(x):
        raise ZeroDivisionError

    f = define(lib, "f(Tensor x) -> Tensor", kernel, lambda ctx, g: g)
    before = md.context.included_keys(), md.context.excluded_keys()
    for watched in ((), (X,)):
        with Tape() as tape:
            tape.watch(*watched)
            with pytest.raises(ZeroDivisionError):
                f(X)
    assert (md.context.included_keys(), md.context.excluded_keys()) == before


# --- in four places -------------------------------------------------------------------------------

MODULE = """
    import mdispatch as md
    from mdispatch import register_autograd

    class Number:
        __dispatch_keys__ = "CPU"
        def __init__(self, value):
            self.value = value
        def __add__(self, other):
            return Number(self.value + other.value)

    lib = md.Library("feature", "DEF")
    lib.define("mul(Tensor a, Tensor b) -> Tensor")
    lib.impl("mul", lambda a, b: Number(a.value * b.value), "CPU")

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return md.ops.feature.mul(g, b), md.ops.feature.mul(g, a)

    register_autograd("feature::mul", backward, setup_context=keep)
"""


@pytest.mark.parametrize("place", PLACES)
def test_gradients_and_their_gradients_are_the_same_in_every_place(place, tmp_path):
    body = """
        import mdispatch as md
        from feature import Number
        from tapes import Tape

        x, one = Number(5.0), Number(1.0)
        with Tape() as outer:
            outer.watch(x)
            with Tape() as inner:
                inner.watch(x)
                y = md.ops.feature.mul(md.ops.feature.mul(x, x), x)
            first = inner.gradient(y, x, one)
        result = dict(first=first.value, second=outer.gradient(first, x, one).value)
    """
    assert run_at(place, MODULE, body, tmp_path) == {"first": 75.0, "second": 30.0}


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_worker_without_the_formula_is_told_which_module_has_it(place, tmp_path):
    (tmp_path / "formulas.py").write_text(
        "from mdispatch import register_autograd\n"
        "register_autograd('feature::half', lambda ctx, g: g)\n"
    )
    module = """
        import mdispatch as md

        class Number:
            __dispatch_keys__ = "CPU"

        lib = md.Library("feature", "DEF")
        lib.define("half(Tensor x) -> Tensor")
        lib.impl("half", lambda x: x, "CPU")
        if md.default_registry().is_main:
            import formulas
    """
    body = """
        import mdispatch as md
        from feature import Number
        from tapes import Tape

        x = Number()
        with Tape() as tape:
            tape.watch(x)
            try:
                md.ops.feature.half(x)
            except md.errors.LocalKernelMissingError as error:
                result = dict(where=error.where)
        import formulas
        result["y"] = md.ops.feature.half(x) is x
    """
    told = run_at(place, module, body, tmp_path)
    assert told["where"].endswith("formulas.py:2")
    assert told["y"]


@pytest.mark.parametrize("place", PLACES[1:])
def test_a_formula_that_the_main_interpreter_has_not_is_refused_in_a_worker(place, tmp_path):
    module = """
        import mdispatch as md

        lib = md.Library("feature", "DEF", timeout=0.1)
        lib.define("half(Tensor x) -> Tensor")
        lib.impl("half", lambda x: x, "CPU")
    """
    body = """
        import mdispatch as md
        import feature
        from mdispatch import register_autograd

        result = {}
        try:
            register_autograd("feature::half", lambda ctx, g: g, lib=feature.lib)
        except md.errors.KeyMismatchError as error:
            result.update(key=error.key, there=error.keys_there)
    """
    assert run_at(place, module, body, tmp_path) == {"key": "Autograd", "there": ("CPU",)}
