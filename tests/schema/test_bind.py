"""The promises of binding a call to a schema."""

from __future__ import annotations

import decimal
import enum

import pytest

from mdispatch.dispatch.arguments import Binder, Unfit
from mdispatch.errors import ArgumentError
from mdispatch.schema import parse_schema

pytestmark = pytest.mark.either_binding


class Tensor:
    def __index__(self):
        return 1

    __float__ = __index__

    def __repr__(self):
        return "tensor"


class Integral:
    def __index__(self):
        return 7

    def __repr__(self):
        return "integral"


class Color(enum.IntEnum):
    RED = 1


X, Y = Tensor(), Tensor()


def as_tensor(value):
    if not isinstance(value, Tensor):
        raise Unfit
    return value


def binder(text):
    return Binder(parse_schema(text), as_tensor)


def bound(type_, value):
    """What a kernel gets for one value that is passed for an argument of this type."""
    positional, keywords = binder(f"ns::f({type_} x, *, {type_} y) -> ()").bind(
        (value,), {"y": value}
    )
    assert repr(positional[0]) == repr(keywords["y"])
    return positional[0]


SCHEMA = "ns::f(Tensor x, float y=2.0, int[2] s=1, *, Tensor? out=None, str mode='a') -> Tensor"


def test_a_kernel_gets_every_argument_with_defaults_filled_in():
    call = binder(SCHEMA).bind
    assert call((X,), {}) == ((X, 2.0, [1, 1]), {"out": None, "mode": "a"})
    assert call((X, 1.0, [3]), {"mode": "b"}) == ((X, 1.0, [3]), {"out": None, "mode": "b"})


def test_an_argument_can_be_given_by_position_or_by_keyword():
    call = binder(SCHEMA).bind
    expected = ((X, 1.0, [5, 6]), {"out": Y, "mode": "a"})
    assert call((X, 1.0, [5, 6]), {"out": Y}) == expected
    assert call((X, 1.0), {"out": Y, "s": [5, 6]}) == expected
    assert call((), {"s": (5, 6), "out": Y, "y": 1, "x": X}) == expected


def test_keyword_only_arguments_come_in_the_order_of_the_schema():
    _, keywords = binder(SCHEMA).bind((X,), {"mode": "b", "out": Y})
    assert list(keywords) == ["out", "mode"]


@pytest.mark.parametrize(
    ("type_", "value", "expected"),
    [
        *(("int", 3, 3), ("int", True, 1), ("int", Integral(), 7), ("SymInt", 1 << 80, 1 << 80)),
        *(("float", 1.5, 1.5), ("float", 3, 3.0), ("float", True, 1.0)),
        ("float", decimal.Decimal("0.5"), 0.5),
        *(("bool", True, True), ("bool", 0, False), ("bool", 2, True)),
        *(("complex", 1, 1 + 0j), ("complex", 1.5, 1.5 + 0j), ("complex", 2j, 2j)),
        *(("Scalar", 1, 1), ("Scalar", 1.5, 1.5), ("Scalar", 2j, 2j), ("Scalar", True, True)),
        *(("str", "a", "a"), ("Any", None, None), ("Any", X, X), ("NoneType", None, None)),
        *(("Device", "cuda:1", "cuda:1"), ("ScalarType", "float32", "float32")),
        *(("Tensor", X, X), ("Tensor?", X, X), ("Tensor?", None, None), ("int?", None, None)),
        *(("int[]", [1, True], [1, 1]), ("int[]", (1, 2), [1, 2]), ("int[]", [], [])),
        *(("int[2]", 3, [3, 3]), ("int[2]", [1], [1]), ("int[2]?", 3, [3, 3])),
        *(("float[2]", 3, [3.0, 3.0]), ("bool[3]", True, [True] * 3)),
        *(
            ("float[]", [1, 2.5], [1.0, 2.5]),
            ("str[]", ["a"], ["a"]),
            ("int?[]", [1, None], [1, None]),
        ),
        *(("Tensor[]", [X, Y], [X, Y]), ("Tensor?[]", (X, None), [X, None])),
        *(("int[][]", [[1], (2,)], [[1], [2]]), ("int[][2]", [[1], [2]], [[1], [2]])),
        *(("(int, float)", (1, 2), (1, 2.0)), ("Dict(str, float)", {"a": 1}, {"a": 1.0})),
        *(("Union(int, float)", 3, 3), ("Union(int, float)", 1.5, 1.5)),
        *(("Union(Tensor, float)", 3, 3.0), ("Union(int[], str)", (1,), [1])),
    ],
    ids=repr,
)
def test_a_value_that_fits_is_converted(type_, value, expected):
    got = bound(type_, value)
    assert got == expected
    assert type(got) is type(expected)
    if isinstance(got, (list, tuple)):
        assert [type(item) for item in got] == [type(item) for item in expected]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        *(("int", 1.0), ("int", "1"), ("int", None), ("int", X), ("int", [1])),
        *(("float", "1"), ("float", None), ("float", X), ("float", 1j), ("float", 10**400)),
        *(("bool", 1.0), ("bool", "a"), ("bool", None), ("complex", "1"), ("Scalar", "1")),
        *(("Scalar", None), ("Scalar", X), ("str", 1), ("str", None), ("str", b"a")),
        *(("Tensor", None), ("Tensor", 1), ("Tensor", [X]), ("Tensor?", 1), ("Device", None)),
        *(("int[]", 1), ("int[]", [1.5]), ("int[]", "12"), ("int[]", None), ("int[]", {1})),
        *(("int[2]", 1.5), ("int[2]", None), ("int[2]?", 1.5), ("Tensor[2]", X)),
        *(("Tensor[]", X), ("Tensor[]", [None]), ("Tensor[]", [X, 1]), ("Tensor[]?", [None])),
        *(("(int, int)", (1,)), ("(int, int)", [1, 2]), ("(int, int)", 1), ("NoneType", 1)),
        *(("Dict(str, int)", {1: 1}), ("Dict(str, int)", {"a": "b"}), ("Dict(str, int)", [])),
        *(("Union(int, str)", 1.5), ("Union(int, str)", None), ("RRef(int)", None)),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_is_refused(type_, value):
    with pytest.raises(ArgumentError) as caught:
        bound(type_, value)
    message = str(caught.value)
    words = f"takes {type_} for 'x', not {type(value).__name__}"
    if isinstance(value, list) and "[" in type_:
        words = f"takes {type_} for 'x'; element {len(value) - 1} is {type(value[-1]).__name__}"
    assert words in message or "Union" in message
    assert f"  declared as ns::f({type_} x, *, {type_} y) -> ()" in message or "Union" in message
    assert caught.value.operator == "ns::f"
    assert str(caught.value.schema.name) == "ns::f"


def test_an_int_of_another_class_stays_an_int_of_its_value():
    assert bound("int", Color.RED) == 1
    assert bound("float", Color.RED) == 1.0


def test_none_goes_where_the_default_is_none():
    call = binder("ns::f(Tensor x=None, int[2]? s=None) -> ()").bind
    assert call((None, None), {}) == call((), {}) == ((None, None), {})


def test_a_kernel_gets_a_list_of_its_own():
    call = binder("ns::f(int[] a=[1, 2], Tensor[]? b=None) -> ()").bind
    mine = [X]
    first, second = call((), {"b": mine})[0], call((), {"b": mine})[0]
    assert first == second
    assert first[0] is not second[0]
    assert first[1] is not mine


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "ns::f() needs a value for 'x'"),
        (
            (X, 1, 1, 1),
            {},
            "takes 3 positional arguments, not 4; out, mode must be given by keyword",
        ),
        ((X,), {"x": X}, "got 'x' twice, by position and by keyword"),
        ((X,), {"mod": "b"}, "has no argument mod; did you mean mode?"),
        ((X,), {"zzzzz": 1}, "has no argument zzzzz\n"),
        ((X, "s"), {}, "takes float for 'y', not str (s)"),
        ((X,), {"mode": 5}, "takes str for 'mode', not int (5)"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_words(args, kwargs, words):
    with pytest.raises(ArgumentError) as caught:
        binder(SCHEMA).bind(args, kwargs)
    assert words in str(caught.value)
    assert "declared as ns::f(Tensor x, float y=2., int[2] s=1, *, Tensor? out" in str(caught.value)


def test_a_keyword_only_argument_without_default_must_be_given():
    with pytest.raises(ArgumentError, match="needs a value for 'y'"):
        binder("ns::f(int x=1, *, int y) -> ()").bind((), {})


def test_a_schema_with_dots_takes_more_positional_arguments_as_they_are():
    call = binder("ns::f(int x, ...) -> ...").bind
    assert call((True, "a", None), {}) == ((1, "a", None), {})
    with pytest.raises(ArgumentError):
        call((1,), {"y": 1})


def test_an_error_shows_no_text_that_an_object_makes_of_itself():
    class Rude:
        def __repr__(self):
            raise RuntimeError

    with pytest.raises(ArgumentError, match=r"not .*Rude"):
        bound("int", Rude())


def test_a_message_stays_short_whatever_the_value():
    for value in ("s" * 10**6, 10**5000):
        with pytest.raises(ArgumentError) as caught:
            bound("Tensor", value)
        assert len(str(caught.value)) < 300


def test_a_conversion_that_fails_on_its_own_is_a_value_that_does_not_fit():
    class Odd:
        def __index__(self):
            raise TypeError("not really")

    with pytest.raises(ArgumentError):
        bound("int", Odd())
