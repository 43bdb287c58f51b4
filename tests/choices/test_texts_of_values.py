"""One text for each value, and the parts in which two values differ."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import math
import pathlib
import random
import subprocess
import sys
import types
import uuid

import pytest
from commands import environment
from hypothesis import assume, given
from hypothesis import strategies as st

from mdispatch.choices import handed
from mdispatch.choices.fields import MISSING, differences, in_python, shorten
from mdispatch.choices.patterns import Rules
from mdispatch.choices.values import TAGS, Damaged, dumps, in_words, plain, read
from mdispatch.errors import InvalidArgumentError


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class Config:
    size: int = 1
    name: str = "x"
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass
class Other:
    size: int = 1
    name: str = "x"


EAST = datetime.timezone(datetime.timedelta(hours=1))


def text(value: object) -> str:
    return dumps(plain(value))


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary(max_size=200)
    | st.sampled_from([*Color, *Flags, Flags.A | Flags.B])
    | st.decimals(allow_nan=False, min_value=-1000, max_value=1000)
    | st.fractions(max_denominator=99)
    | st.dates()
    | st.uuids()
)
keys = (
    st.integers() | st.text(max_size=9) | st.tuples(st.integers(), st.text(max_size=3)) | st.none()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.builds(Config, size=st.integers(), name=st.text(max_size=4))
        | st.frozensets(st.integers() | st.text(max_size=3), max_size=4)
    ),
    max_leaves=20,
)


def same(one: object, other: object) -> bool:
    """The module's rule for two values, said anew: Python's ``==``, but for NaN, lists and
    tuples.
    """
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Config) and isinstance(other, Config):
        return (one.size, one.name) == (other.size, other.name)
    if isinstance(one, (dict, list, tuple, Config)) or isinstance(other, (dict, list, Config)):
        return False
    return one == other


@pytest.mark.thorough
@given(values, values)
def test_two_values_have_one_text_if_they_are_the_same_and_only_then(one, other) -> None:
    assert (text(one) == text(other)) == same(one, other)


@given(values)
def test_the_text_can_be_read_and_the_order_of_a_dict_does_not_count(value) -> None:
    node = plain(value)
    assert read(dumps(node)) == node
    assert dumps(read(dumps(node))) == dumps(node)
    if isinstance(value, dict):
        items = list(value.items())
        random.Random(0).shuffle(items)
        assert text(dict(items)) == text(value)


def part(node, path):
    """The part of a plain value to which the keys lead; MISSING where there is none."""
    for key in path:
        if isinstance(node, dict) and len(node) == 1 and "#object" in node:
            node = node["#object"][1]
        try:
            node = node[key]
        except (KeyError, IndexError):
            return MISSING
    return node


tree = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4)
    ),
    max_leaves=16,
)


def paths(node, path=()):
    yield path
    if isinstance(node, (dict, list)):
        for key, each in node.items() if isinstance(node, dict) else enumerate(node):
            yield from paths(each, (*path, key))


@given(tree, tree)
def test_each_difference_leads_to_both_values(one, other) -> None:
    found = differences(plain(one), plain(other))
    assert (found == []) == (text(one) == text(other))
    by_words = {in_words(path): path for each in (one, other) for path in paths(each)}
    for field in found:
        path = by_words[field.path]
        here, there = part(one, path), part(other, path)
        assert here != there or type(here) is not type(there)
        assert (field.here, field.there) == (in_python(here), in_python(there))


@pytest.mark.thorough
@given(tree, tree, st.integers(240, 600))
def test_a_short_form_still_tells_whether_two_values_differ(one, other, limit) -> None:
    # Wide and deep, so that it has to be short.
    one, other = ({"x" * 40: [each, list(range(200))], "y": each} for each in (one, other))
    short = shorten(plain(other), limit)
    assert len(dumps(short)) <= limit
    assert read(dumps(short)) == short
    assert (differences(plain(one), short) == []) == (text(one) == text(other))


def test_the_field_of_a_large_value_is_named() -> None:
    large = {"cfg": {f"k{at}": {"v": at, "t": "x" * 500} for at in range(60)}, "name": "a"}
    short = shorten(plain(large), 8000)
    changed = {**large, "cfg": {**large["cfg"], "k7": {"v": 8}}}
    assert [field.path for field in differences(plain(changed), short)] == ["cfg.k7"]
    wide = {f"k{at}": at for at in range(50_000)}
    short = shorten(plain(wide), 60_000)
    (field,) = differences(plain({**wide, "k77": 0}), short)
    assert "k77" in field.path
    assert "in all" in field.path
    added = differences(plain({**wide, "new": 0}), short)
    assert added[-1].here == "of 50001 parts"
    assert added[-1].there == "of 50000"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], (1, 2)),
        (1, True),
        (0.0, -0.0),
        (1e22, 10**22),
        (decimal.Decimal("0.5"), 0.5),
        (fractions.Fraction(1, 2), 0.5),
        (complex(2, 0), 2),
        (b"a", bytearray(b"a")),
        (Level.LOW, 1),
        (float("nan"), -float("nan")),
        (Config(note="here"), Config(note="there")),
        (pathlib.Path("/a"), pathlib.PurePosixPath("/a")),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (
            datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC),
            datetime.datetime(
                2026, 1, 1, 13, tzinfo=datetime.timezone(datetime.timedelta(hours=1))
            ),
        ),
        ({1, 2, 3}, frozenset([3, 2, 1])),
    ],
    ids=str,
)
def test_these_are_the_same(one, other) -> None:
    assert text(one) == text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (None, "None"),
        (b"a", "a"),
        ("/a", pathlib.Path("/a")),
        (Color.RED, 1),
        (Color.RED, "RED"),
        (Config(), Other()),
        (Config(), {"size": 1, "name": "x"}),
        ({"#set": [1]}, {1}),
        ({"#object": ["a", {}]}, {"#object": ["b", {}]}),
        ([], {}),
        ({1: 2}, {"1": 2}),
        (argparse.Namespace(a=1), types.SimpleNamespace(a=1)),
        (float("inf"), "inf"),
        (0.1, decimal.Decimal("0.1")),
        (len, "len"),
        (datetime.date(2026, 1, 1), "2026-01-01"),
        (uuid.UUID(int=1), 1),
        ("\ud800", "?"),
        (1 << 2000, (1 << 2000) + 1),
        (datetime.timedelta(1), datetime.timedelta(2)),
    ],
    ids=str,
)
def test_these_are_different(one, other) -> None:
    assert text(one) != text(other)
    assert differences(plain(one), plain(other)) != []
    assert text(one) == text(one)


def cycle():
    its: dict[str, object] = {}
    its["self"] = [its]
    return its


def deep():
    its: object = 1
    for _ in range(100):
        its = [its]
    return its


def shared():
    its: object = 1
    for _ in range(40):
        its = [its, its]
    return its


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            {"a": {"b": object()}},
            r"^a\.b is of type object, which members of other processes could not",
        ),
        ([1, iter([])], r"^\[1\] is of type list_iterator"),
        ({"f": lambda: 1}, r"^f is test_texts_of_values\..*<lambda>, a function that no member"),
        (cycle(), r"^self\[0\] is a part of itself"),
        (deep(), "more than 64 levels deep"),
        (shared(), "too much: more than 1,000,000 parts"),
        ({"n": 1 << 100_000}, r"^n is a number of 100,001 bits"),
        ({"d": decimal.Decimal("1e999999")}, "^d is a number of too many digits"),
        ({(1, 2): object()}, r"^\[\(1, 2\)\] is of type object"),
        ({"a.b": object()}, r"^\['a\.b'\] is of type object"),
        (object(), "^the value is of type object"),
    ],
    ids=[
        "object",
        "iterator",
        "lambda",
        "cycle",
        "deep",
        "shared",
        "int",
        "decimal",
        "key",
        "dot",
        "top",
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_path(value, why) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        plain(value)


@pytest.mark.parametrize(
    "given_text",
    [
        *("", "nul", "[1", "NaN", "[" * 100_000, "9" * 5000, "[1e999]", '{"a":{"#bytes":[1,2]}}'),
        *('{"#set":1}', '{"#what":1}', '{"#object":["a"]}', '{"#dict":[[1]]}'),
    ],
    ids=lambda each: each[:12],
)
def test_a_text_that_nobody_wrote_is_refused(given_text) -> None:
    with pytest.raises(Damaged):
        read(given_text)


@given(st.binary(max_size=60) | st.text(max_size=60) | st.from_regex(r'\{"#[a-z]+":.{0,20}\}'))
def test_any_text_is_read_or_refused_and_can_be_shown(data) -> None:
    data = data.decode("latin-1") if isinstance(data, bytes) else data
    for reader in (read, handed.read):
        try:
            node = reader(data)
        except Damaged:
            continue
        if reader is read:
            in_python(node)
            differences(plain({"a": [1]}), node)
            differences(node, node)


hostile = st.recursive(
    st.none()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2) | st.sampled_from([*TAGS]), inner, max_size=3)
        | st.tuples(st.sampled_from([*TAGS]), inner).map(lambda pair: dict([pair]))
    ),
    max_leaves=12,
)


@given(hostile, hostile)
def test_what_another_program_writes_is_refused_or_can_be_shown(one, other) -> None:
    try:
        one, other = read(dumps(one)), read(dumps(other))
    except Damaged:
        return
    in_python(one)
    for field in differences(plain({"a": [1], "b": {2}}), one) + differences(one, other):
        str(field)
    assert len(dumps(shorten(one, 100))) <= 100


# --- objects of other libraries -------------------------------------------------------------------


def test_arrays_are_compared_by_type_shape_and_content() -> None:
    numpy = pytest.importorskip("numpy", reason="NumPy is not installed")
    ones = numpy.ones((2, 3), "float32")
    assert text(ones) == text(numpy.ones((2, 3), "float32"))
    assert text(ones) == text(numpy.ones((3, 2), "float32").T)  # its order in memory is another
    assert text(ones) == text(ones.astype(">f4"))
    assert (
        len({text(ones), text(ones.astype("float64")), text(ones.reshape(3, 2)), text(ones * 2)})
        == 4
    )
    assert text(numpy.float32(0.5)) == text(0.5)
    assert text(numpy.bool_(True)) == text(1)
    (field,) = differences(plain({"w": ones}), plain({"w": ones * 2}))
    assert field.path == "w"
    assert "float32, shape (2, 3)" in field.here
    assert text(numpy.array([1, "a"], object)) == text([1, "a"])
    assert text(numpy.longdouble(1) / 3) != text(1 / 3)


def test_tensors_are_compared_by_type_shape_and_content() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    ones = torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True)
    assert text(ones) == text(torch.ones(2, 3, dtype=torch.bfloat16))
    assert len({text(ones), text(ones * 2), text(ones.float()), text(ones.reshape(3, 2))}) == 4
    assert text(torch.tensor(1)) != text(torch.tensor(2))
    assert text(torch.float32) == text(torch.float)


def test_models_of_pydantic_and_attrs_are_compared_by_their_fields() -> None:
    attrs = pytest.importorskip("attrs", reason="attrs is not installed")

    @attrs.define
    class Point:
        x: int
        note: str = attrs.field(default="", eq=False)

    assert text(Point(1, "a")) == text(Point(1, "b"))
    assert text(Point(1)) != text(Point(2))


def test_a_secret_of_pydantic_is_never_shown() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Login(pydantic.BaseModel):
        user: str
        pin: pydantic.SecretStr

    def rules() -> Rules:
        return Rules((), (), (), lambda text: str(len(text)))

    node = plain(Login(user="a", pin="1234"), rules())
    assert "1234" not in dumps(node)
    assert dumps(node) != dumps(plain(Login(user="a", pin="12345"), rules()))


# --- patterns -------------------------------------------------------------------------------------

VALUE = {
    "node_rank": 3,
    "hosts": {"a": {"ip": 1}, "b": {"ip": 2}},
    "layers": [{"name": "x", "size": 1}, {"name": "y", "size": 2}],
    "db": {"password": "geheim", "apiKey": "k", "max_num_batched_tokens": 4096, "user": "me"},
    "odd.key": 5,
}


def left(ignore=(), only=(), secret=None):
    rules = Rules(ignore, only, secret, lambda text: f"<{len(text)}>")
    node = plain(VALUE, rules)
    rules.check()
    return node


def test_patterns_leave_out_parts() -> None:
    assert "node_rank" not in left(["node_rank"])
    assert left(["hosts.*"])["hosts"] == {}
    assert left(["hosts.*.ip"])["hosts"] == {"a": {}, "b": {}}
    assert left(["layers[*].size"])["layers"] == [{"name": "x"}, {"name": "y"}]
    assert left(["layers[1].size"])["layers"] == [{"name": "x", "size": 1}, {"name": "y"}]
    assert left(["node_?ank", "db"]).keys() == {"hosts", "layers", "odd.key"}
    assert "odd.key" not in left(["['odd.key']"])
    assert left(only=["hosts.a", "layers[0].name"]) == {
        "hosts": {"a": {"ip": 1}},
        "layers": [{"name": "x"}, {}],
    }
    assert left(only=["db"], ignore=["db.user"])["db"].keys() == {
        "password",
        "apiKey",
        "max_num_batched_tokens",
    }


def test_what_looks_like_a_secret_is_one_unless_told_otherwise() -> None:
    told = left()["db"]
    assert told["password"] == {"#secret": "<8>"}
    assert told["apiKey"] == {"#secret": "<3>"}
    for key in ("tokens", "monkey", "passwordless", "hokey", "keyboard"):
        assert dumps(plain({key: "x"}, Rules((), (), None, len))) == f'{{"{key}":"x"}}'
    for key in ("api_keys", "authTokens", "DB_PASSWORD", "secret", "access-token", "credentials"):
        assert "#secret" in dumps(plain({key: "x"}, Rules((), (), None, str)))
    assert told["max_num_batched_tokens"] == 4096
    assert left(secret=["hosts"])["hosts"] == {"#secret": "<27>"}
    assert left(secret=["hosts"])["db"] == VALUE["db"]
    assert left(secret=())["db"] == VALUE["db"]


@pytest.mark.parametrize(
    ("patterns", "why"),
    [
        ({"ignore": "node_rank"}, r"ignore= takes a list of patterns: \['node_rank'\]"),
        ({"ignore": [""]}, "a pattern is the path"),
        ({"only": ["a..b"]}, "a pattern is the path"),
        ({"ignore": ["layers[0]"]}, "a pattern is the path"),
        ({"secret": [3]}, "secret=3: a pattern is the path"),
        ({"only": ["hosts.c"]}, "only='hosts.c': the value has no such part, so nothing was"),
    ],
    ids=str,
)
def test_a_pattern_that_is_none_or_for_nothing_is_refused(patterns, why) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        left(**patterns)


# --- values that are handed on --------------------------------------------------------------------

exact = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=4)
        | st.sets(st.integers() | st.text(max_size=3))
        | st.frozensets(st.tuples(st.integers()))
    ),
    max_leaves=16,
)


@given(exact)
def test_a_value_that_is_handed_on_arrives_as_it_was(value) -> None:
    assume(abs(value) < 10**4000 if type(value) is int else True)
    read_again = handed.read(handed.write(value))
    assert type(read_again) is type(value)
    if "nan" in repr(value):  # not equal to itself
        assert sorted(repr(read_again)) == sorted(repr(value))
    else:
        assert read_again == value


def test_what_cannot_be_handed_on_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidArgumentError, match=r"follow=: a\[0\] is a Config"):
        handed.write({"a": [Config()]})


def test_the_text_is_the_same_in_a_process_with_another_seed() -> None:
    code = (
        "from mdispatch.choices.values import dumps, plain\n"
        "print(dumps(plain({'s': {'a', 'b', 'c', 'd'}, 1: {'x': {5, 6, 7}}})))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment(PYTHONHASHSEED=str(seed)),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(told) == 1
    assert json.loads(told.pop())
