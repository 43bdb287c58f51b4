"""The promises of parsing, printing and comparing schemas."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdispatch.errors import InvalidArgumentError, InvalidNameError, SchemaSyntaxError
from mdispatch.schema import (
    AliasInfo,
    Argument,
    OperatorName,
    Type,
    compare,
    parse_schema,
    split_name,
)

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

RECORDED = json.loads(
    gzip.decompress((Path(__file__).parents[1] / "oracle" / "schemas.json.gz").read_bytes())
)["schemas"]

# Where mdispatch decides differently from PyTorch 2.13, and why: the text that it prints, or None
# when it refuses.
DECISIONS = {
    # PyTorch stores a value that is not of the type.
    "foo(int x = 0x10) -> int": None,
    "foo(int x=1e3) -> int": None,
    "foo(bool x=1) -> bool": None,
    "foo(int[2] x=[1,2,3]) -> Tensor": None,
    # PyTorch cannot parse its own output.
    "foo(Tensor! x) -> Tensor!": "foo(Tensor! x) -> Tensor!",
    "foo(Tensor(a|b) x) -> Tensor(a|b)": "foo(Tensor(a|b) x) -> Tensor(a|b)",
    'foo(Device d="cpu") -> Tensor': 'foo(Device d="cpu") -> Tensor',
    'foo(Device? d="cpu") -> Tensor': 'foo(Device? d="cpu") -> Tensor',
    'foo(Tensor x, str y="unicode é") -> Tensor': 'foo(Tensor x, str y="unicode é") -> Tensor',
    # Types of Python have defaults, too, and a class has a name of any number of words.
    "foo(str[] x=[]) -> Tensor": "foo(str[] x=[]) -> Tensor",
    "foo(__torch__.torch.classes.nosuch.Cls p) -> Tensor": (
        "foo(__torch__.torch.classes.nosuch.Cls p) -> Tensor"
    ),
}
# PyTorch refuses 65 arguments only where the operator is registered, and has no limit for nesting.
TOO_LARGE = [r["schema"] for r in RECORDED if r["accept"] and len(r["schema"]) > 200]


def expected_text(recorded):
    text = recorded["schema"]
    if text in TOO_LARGE:
        return None
    return DECISIONS.get(text, recorded["define"]["str"] if recorded["accept"] else None)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: r["schema"][:60])
def test_a_schema_is_accepted_and_printed_as_recorded(recorded):
    expected = expected_text(recorded)
    if expected is None:
        with pytest.raises(SchemaSyntaxError):
            parse_schema(recorded["schema"])
    else:
        assert str(parse_schema(recorded["schema"])) == expected


ACCEPTED = [r for r in RECORDED if expected_text(r) is not None and r["accept"]]


def value_of(recorded):
    """A default as the recording writes it."""
    if isinstance(recorded, dict):
        return complex(*recorded["complex"]) if "complex" in recorded else recorded["device"]
    return tuple(recorded) if isinstance(recorded, list) else recorded


@pytest.mark.parametrize("recorded", ACCEPTED, ids=lambda r: r["schema"][:60])
def test_a_schema_has_the_recorded_arguments(recorded):
    schema, parsed = parse_schema(recorded["schema"]), recorded["define"]
    name = schema.name
    assert (name.qualified, name.overload) == (parsed["name"], parsed["overload"])
    assert schema.is_mutable == parsed["is_mutable"]
    assert len(schema.returns) == len(parsed["returns"])
    for argument, expected in zip(schema.arguments, parsed["args"], strict=True):
        assert argument.name == expected["name"]
        assert argument.has_default == expected["has_default"]
        assert argument.kwarg_only == expected["kwarg_only"]
        sized = argument.type.elements[0] if argument.type.name == Type.OPTIONAL else argument.type
        assert sized.size == expected["N"]
        if argument.has_default:
            assert argument.default == value_of(expected["default"])
        # PyTorch invents a name for the alias set of "Tensor!".
        if expected["alias"] is not None and str(argument.alias_info) != "!":
            alias = argument.alias_info
            assert list(alias.before) == sorted(expected["alias"]["before"])
            assert list(alias.after) == sorted(expected["alias"]["after"])
            assert alias.is_write == expected["alias"]["write"]
        else:
            assert (argument.alias_info is None) == (expected["alias"] is None)


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda r: r["schema"][:60])
def test_type_variables_are_allowed_on_request(recorded):
    if "allow_typevars" in recorded:
        schema = parse_schema(recorded["schema"], allow_typevars=True)
        assert str(schema) == recorded["allow_typevars"]["str"]


# --- what is printed parses back ------------------------------------------------------------------


@pytest.mark.parametrize("recorded", ACCEPTED, ids=lambda r: r["schema"][:60])
def test_the_printed_text_of_a_recorded_schema_parses_back(recorded):
    schema = parse_schema(recorded["schema"])
    again = parse_schema(str(schema))
    assert again == schema
    assert str(again) == str(schema)
    assert hash(again) == hash(schema)
    assert compare(again, schema) is None


LEAVES = [
    "Tensor",
    "int",
    "float",
    "str",
    "Any",
    "Device",
    "Tensor(a!)",
    "Tensor(b -> *)",
    "SymInt",
]
types = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map("{}[]".format),
        inner.map("{}?".format),
        st.tuples(inner, inner).map("({0[0]}, {0[1]})".format),
        st.tuples(inner, inner).map("Dict({0[0]}, {0[1]})(c)".format),
        inner.map("Future({})".format),
        inner.map("Union({}, bool)".format),
    ),
    max_leaves=6,
)
numbers = st.floats(allow_nan=False, allow_infinity=False)
imaginaries = st.complex_numbers(allow_nan=False, allow_infinity=False)
integers = st.integers(-(1 << 63), (1 << 63) - 1)
strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
defaults = st.one_of(
    integers.map(lambda v: (Type("int"), v)),
    numbers.map(lambda v: (Type("float"), v)),
    st.booleans().map(lambda v: (Type("bool"), v)),
    strings.map(lambda v: (Type("str"), v)),
    imaginaries.map(lambda v: (Type("complex"), v)),
    st.one_of(integers, numbers, imaginaries, st.booleans()).map(lambda v: (Type("Scalar"), v)),
    st.lists(numbers, max_size=4).map(lambda v: (Type("[]", (Type("float"),)), tuple(v))),
    st.lists(integers, max_size=4).map(lambda v: (Type("[]", (Type("int"),)), tuple(v))),
    integers.map(lambda v: (Type("[]", (Type("int"),), 3), (v,) * 3)),
    integers.map(lambda v: (Type("?", (Type("[]", (Type("SymInt"),), 2),)), (v,) * 2)),
)


@pytest.mark.dear
@given(types)
def test_the_printed_text_of_any_type_parses_back(text):
    schema = parse_schema(f"f({text} x, *, {text}[3]? y) -> ({text}, {text}[2] z)")
    assert parse_schema(str(schema)) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


@pytest.mark.dear
@given(defaults)
def test_the_printed_text_of_any_default_parses_back(default):
    written = str(Argument("x", default[0], default[1], has_default=True))
    argument = parse_schema(f"f({written}) -> ()").arguments[0]
    assert str(argument) == written
    assert repr(argument.default) == repr(default[1]) or argument.default == default[1]
    assert type(argument.default) is type(default[1])


# --- refusing -------------------------------------------------------------------------------------


LONG = (
    "ns::f.out(Tensor(a! -> a|b) self, (int, Dict(str, Tensor?[])) y, Future(int) z, int[2] w=1,"
    ' float v=-1.5e-3, *, str mode=\'a\\n\\101"\', Device? d="cuda:1", ScalarType t=float32,\n'
    "  complex c=1.+2.j, int[]? e=None, bool[3] m=[True, False]  # a comment\n"
    ") -> (Tensor(a!), Tensor[] b, ...)"
)


@pytest.mark.parametrize("length", range(len(LONG)))
def test_a_schema_cut_off_anywhere_is_refused_with_a_place_in_it(length):
    text = LONG[:length]
    with pytest.raises(SchemaSyntaxError) as caught:
        parse_schema(text)
    assert caught.value.text == text
    assert 0 <= caught.value.position <= length


def refused_or_parses_back(text):
    try:
        schema = parse_schema(text)
    except SchemaSyntaxError:
        return
    assert parse_schema(str(schema)) == schema


@pytest.mark.dear
@given(
    st.integers(0, len(LONG)),
    st.integers(0, 5),
    st.text("()[]!?*.=,|'\"\\#- \n9ej+aT\x00é", max_size=4),
)
def test_a_damaged_schema_is_refused_or_parses_back(position, removed, put):
    refused_or_parses_back(LONG[:position] + put + LONG[position + removed :])


@pytest.mark.parametrize(
    ("type", "word", "number"),
    [
        ("int", "Mean", 1),
        ("Layout", "strided", 0),
        ("MemoryFormat", "contiguous_format", 0),
        *(("int", "long", 4), ("int", "float", 6), ("int", "complex", 9)),
        *(("ScalarType", "uint8", 0), ("ScalarType", "short", 2), ("ScalarType", "bool", 11)),
    ],
)
def test_a_word_stands_for_the_number_that_pytorch_gives_it(type, word, number):
    assert parse_schema(f"f({type} x={word}) -> ()").arguments[0].default == number


@given(st.text())
def test_any_text_is_refused_or_parses_back(text):
    for schema_text in (text, f"f({text}) -> ()", f"f(int x={text}) -> ()", f"f() -> {text}"):
        refused_or_parses_back(schema_text)


REFUSED = [
    ('foo(int x="a") -> int', 10),
    ("foo(int x=1.5) -> int", 10),
    ("foo(int x=True) -> int", 10),
    ("foo(int x=0x10) -> int", 10),
    ("foo(bool x=1) -> bool", 11),
    ("foo(str x=Mean) -> str", 10),
    ("foo(Tensor x, Tensor x) -> Tensor", 21),
    ("foo(int[2] x=[1, 2, 3]) -> int", 13),
    ("foo(int[] x=[1, None]) -> int", 16),
    ("foo(int[0] x) -> int", 8),
    ("foo(int[2.5] x) -> int", 9),
    ("foo(int[99999999999] x=1) -> int", 8),
    ("foo(int x=9223372036854775808) -> int", 10),
    ("foo(int x=" + "9" * 5000 + ") -> int", 10),
    ("foo(float x=1e999) -> int", 12),
    ("foo(float x=1e) -> int", 12),
    ("foo(complex x=1.+2.) -> int", 14),
    ('foo(Device d="nosuch") -> int', 13),
    ('foo(str s="a\nb") -> int', 12),
    ('foo(str s="\\x41") -> int', 11),
    ('foo(str s="\\400") -> int', 11),
    ("foo(int x=1, int y) -> int", 13),
    ("foo.default() -> int", 4),
    ("foo.__x() -> int", 4),
    ("a::b::c() -> int", 0),
    ("fo\x00o() -> int", 0),
    ("föö() -> int", 0),
    ("foo(Tensor\x00 x) -> int", 10),
    ("foo(Tensor \ud800) -> int", 11),
    ("foo(Union(int, int) x) -> int", 9),
    ("foo(Future(int, int) x) -> int", 10),
    ("foo(" + "(" * 50 + "int" + ")" * 50 + " x) -> int", None),
    ("foo(int" + "[]" * 50 + " x) -> int", None),
    ("foo(" + ", ".join(f"int a{i}" for i in range(65)) + ") -> int", None),
    ("n" * 256 + "() -> int", 0),
    ("foo(Tensor " + "n" * 256 + ") -> int", 11),
]


@pytest.mark.parametrize(("text", "position"), REFUSED, ids=lambda v: str(v)[:40])
def test_a_schema_is_refused_with_the_place_of_its_fault(text, position):
    with pytest.raises(SchemaSyntaxError) as caught:
        parse_schema(text)
    if position is not None:
        assert caught.value.position == position


@pytest.mark.parametrize(
    ("largest", "made"),
    [
        (32, lambda n: "f(int" + "[]" * n + " x) -> ()"),
        (32, lambda n: "f() -> " + "Future(" * n + "int" + ")" * n),
        (64, lambda n: "f(" + ", ".join(f"int a{i}" for i in range(n)) + ") -> ()"),
        (1024, lambda n: f"f(int[{n}] x) -> ()"),
        (255, lambda n: "n" * n + "() -> ()"),
        (255, lambda n: f"f(int {'n' * n}) -> ()"),
        (255, lambda n: f"f(int({'n' * n}) x) -> ()"),
    ],
    ids=["lists", "parts", "arguments", "size", "operator", "argument", "alias set"],
)
def test_a_limit_admits_its_number_and_refuses_the_next(largest, made):
    assert str(parse_schema(made(largest))) == made(largest)
    with pytest.raises(SchemaSyntaxError):
        parse_schema(made(largest + 1))


def test_a_list_of_a_size_takes_a_default_of_so_many_elements():
    schema = parse_schema("f(int[2] x=[1, 2], bool[1] y=[True]) -> ()")
    assert [argument.default for argument in schema.arguments] == [(1, 2), (True,)]
    with pytest.raises(SchemaSyntaxError, match="3 elements, the list 2"):
        parse_schema("f(int[2] x=[1, 2, 3]) -> ()")


def test_a_schema_of_more_than_64_kib_is_refused():
    with pytest.raises(SchemaSyntaxError):
        parse_schema("f(str x='" + "x" * (1 << 16) + "') -> ()")
    sizes = ", ".join(f"bool[1024] x{i}=True" for i in range(64))
    with pytest.raises(SchemaSyntaxError):
        parse_schema(f"f({sizes}) -> ()")


@pytest.mark.parametrize(("given", "meant"), [("Tensr", "Tensor"), ("double", "float")])
def test_an_unknown_type_is_refused_with_the_one_that_was_meant(given, meant):
    with pytest.raises(SchemaSyntaxError, match=f"did you mean {meant}"):
        parse_schema(f"f({given} x) -> ()")


def test_a_message_stays_short_whatever_the_text():
    for text in (
        "f(" + "x" * 9000 + " y) -> ()",
        "f(int x=" + "y" * 9000 + ") -> ()",
        "f(" + "9" * 9000,
    ):
        with pytest.raises(SchemaSyntaxError) as caught:
            parse_schema(text)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", [None, b"f() -> ()", 5])
def test_a_schema_is_a_str(text):
    with pytest.raises(InvalidArgumentError):
        parse_schema(text)


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ns::f.out", ("ns", "f", "out")),
        ("ns::f", ("ns", "f", "")),
        ("f.out", ("", "f", "out")),
        (" __and__ ", ("", "__and__", "")),
        ("_::_", ("_", "_", "")),
    ],
)
def test_a_name_has_its_parts(text, parts):
    name = OperatorName.parse(text)
    assert (name.namespace, name.name, name.overload) == parts
    assert str(name) == text.strip()
    assert OperatorName.parse(str(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "::f", "ns::", "ns::.x", "f.", ".x", "a::b::c", "f.a.b", "ns:f", "f-g", "1f"),
        *("f g", "n s::f", "if", "ns::import", "f.default", "f.__x", "f\x00", "f\x1f", "föö"),
        *("n" * 256, "n" * 256 + "::f", "f." + "n" * 256),
        *(None, 5, b"f", "f" * 10**6 + "::", "\n" + "f" * 10**6),
    ],
    ids=lambda t: repr(t)[:20],
)
def test_what_is_no_name_is_refused(text):
    with pytest.raises(InvalidNameError) as caught:
        OperatorName.parse(text)
    assert len(str(caught.value)) < 300


def test_the_namespace_of_the_library_is_supplied_or_verified():
    for text in ("f(Tensor x) -> Tensor", "ns::f(Tensor x) -> Tensor"):
        assert str(parse_schema(text, "ns")) == "ns::f(Tensor x) -> Tensor"
        assert split_name(text, "ns") == "ns::f"
    for parse in (parse_schema, split_name):
        with pytest.raises(InvalidNameError, match="'mine'"):
            parse("theirs::f(Tensor x) -> Tensor", "mine")
        with pytest.raises(InvalidNameError):
            parse("f(Tensor x) -> Tensor", "no name")


@pytest.mark.parametrize("recorded", ACCEPTED, ids=lambda r: r["schema"][:60])
def test_the_name_is_found_without_parsing_the_rest(recorded):
    assert split_name(recorded["schema"]) == str(parse_schema(recorded["schema"]).name)
    assert split_name(recorded["schema"].partition("(")[0] + "(nonsense") != ""


def test_a_text_without_arguments_has_no_name_to_find():
    with pytest.raises(SchemaSyntaxError):
        split_name("ns::f")
    with pytest.raises(InvalidNameError):
        split_name("n-s::f()")


# --- values ---------------------------------------------------------------------------------------


def test_values_cannot_be_changed():
    schema = parse_schema("ns::f.o(Tensor(a!) x, int y=1) -> Tensor(a!)")
    for value, field in (
        (schema, "name"),
        (schema.name, "overload"),
        (schema.arguments[0], "type"),
        (schema.arguments[0].type, "name"),
        (schema.arguments[0].alias_info, "is_write"),
    ):
        with pytest.raises(AttributeError):
            setattr(value, field, None)
        with pytest.raises(AttributeError):
            delattr(value, field)
        with pytest.raises(AttributeError):
            value.other = 1
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
        assert hash(copy.copy(value)) == hash(value)


def test_defaults_that_are_equal_numbers_are_different_defaults():
    one, other = (parse_schema(f"f(Scalar x={d}) -> ()") for d in ("1", "1."))
    assert one != other
    assert compare(one, other) == "the default of 'x' is 1 in the first, 1.0 in the second"


@pytest.mark.parametrize(
    ("type_", "dispatched"),
    [
        *(("Tensor", True), ("Tensor?", True), ("Tensor[]", True), ("Tensor?[]", True)),
        *(("Tensor[2]", True), ("Tensor(a!)", True), ("Tensor[]?", False), ("Tensor[][]", False)),
        *(("Dict(str, Tensor)", False), ("(Tensor, Tensor)", False), ("Any", False)),
    ],
)
def test_only_tensors_and_lists_of_them_decide_on_the_kernel(type_, dispatched):
    schema = parse_schema(f"f(int i, {type_} x, *, {type_} y) -> ()")
    assert schema.dispatch_arguments == ((1, 2) if dispatched else ())


@pytest.mark.parametrize(
    ("text", "writes"),
    [("Tensor(a!)", True), ("Tensor(a!)[]", True), ("Tensor!", True), ("Tensor(a)", False)],
)
def test_a_write_is_seen_wherever_it_is_declared(text, writes):
    assert parse_schema(f"f({text} x) -> ()").is_mutable == writes


def test_an_annotation_inside_a_type_belongs_to_that_type():
    alias = parse_schema("f((Tensor(a!), int) x) -> ()").arguments[0].alias_info
    assert alias == AliasInfo(contained=(AliasInfo(("a",), ("a",), True), None))
    assert alias.writes
    assert not alias.is_write


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("f() -> ()", "g() -> ()", "the name is f in the first, g in the second"),
        ("f(int x) -> ()", "f() -> ()", "argument 1, 'int x', is only in the first"),
        (
            "f(int x) -> ()",
            "f(int y) -> ()",
            "argument 1 is 'int x' in the first, 'int y' in the second",
        ),
        (
            "f(int x) -> ()",
            "f(*, int x) -> ()",
            "argument 1, 'int x', is keyword-only in the second",
        ),
        ("f() -> int", "f() -> str", "return 1 is 'int' in the first, 'str' in the second"),
        ("f(...) -> ()", "f() -> ()", "only in the first it takes more arguments ('...')"),
        ("f() -> ...", "f() -> ()", "only in the first it has more returns ('...')"),
    ],
)
def test_the_first_difference_is_told_in_words(one, other, words):
    assert compare(parse_schema(one), parse_schema(other)) == words


def test_how_a_schema_is_laid_out_makes_no_difference():
    spread = "ns::f( Tensor  x,# comment (\n\t int [ ] y = [ 1 ,2 ] , * ) ->( Tensor , int )  \n"
    assert str(parse_schema(spread)) == "ns::f(Tensor x, int[] y=[1, 2]) -> (Tensor, int)"


def test_a_word_for_a_number_is_that_number():
    text = "f(int r=Mean, Layout l=strided, ScalarType t=bfloat16, ScalarType? d=long) -> ()"
    assert [a.default for a in parse_schema(text).arguments] == [1, 0, 15, 4]
