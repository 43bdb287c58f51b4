"""For every text, the canonical text that a registration puts together is the parser's; and it
refuses what the parser refuses, in the same way.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from mdispatch import MdispatchError
from mdispatch.schema import FunctionSchema, canonical, parse_schema, split_name
from mdispatch.schema.canonical import canonical_schema, schema_of

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

ORACLE = Path(__file__).parents[1] / "oracle" / "schemas.json.gz"
RECORDED = json.loads(gzip.decompress(ORACLE.read_bytes()))

# Texts that are one argument, or one list of returns, and texts that are not.
ARGUMENTS = [
    "Tensor x",
    "Tensor y",
    "Tensor(a!) out",
    "Tensor(a -> *) v",
    "Tensor?[] l",
    "int n",
    "int n=1",
    "int[2] size=1",
    "int[2] size=[1, 2]",
    "float f=2.0",
    "float f=2.",
    "bool b=False",
    'str s="a, b"',
    "str s='#'",
    'str s=") -> ("',
    "Scalar? s=None",
    "Dict(str, Tensor) d",
    "*",
    "...",
    "",
    " Tensor  x",
    "Tensor x ",
    "int x,int y",
    "*,int k",
    "Tensor x,...",
    "Tensor x # c",
    "Tensor x) -> () #",
    "Tensor x) -> Tensor(a",
    "Tensor x) -> (Tensor",
    "(int, int) t",
    "x",
    "if if",
    "float[1024] w=1.5",
    "int[3] i=[1, 1, 1]",
    "float[2] f=[1.0, 1.0]",
    "Tensor x\n",
    "Future(int) w",
]
RETURNS = [
    "Tensor",
    "()",
    "(Tensor, int)",
    "(Tensor a, Tensor b)",
    "Tensor(a!)",
    "Tensor[]",
    "",
    "(Tensor)",
    "((int, int))",
    "Tensor\n",
    "Tensor # c",
    "Tensor x",
    "Tensor -> int",
    " Tensor ",
    "...",
    "(...)",
    "(Tensor, ...)",
    "Tensor, Tensor",
    "nothing",
]
NAMES = ["f", "s::f", "f.out", "t::f", "f.default", "if", " f ", "f.__x", "", "ü", "f f", "s::f.a"]


CACHES = (canonical._arguments, canonical._returns, canonical._rests, canonical._parts)


def outcome(function, *args):
    try:
        return function(*args)
    except MdispatchError as error:
        return type(error), str(error)


def the_long_way(text, namespace):
    return split_name(text, namespace), str(parse_schema(text, namespace))


@pytest.fixture(autouse=True)
def nothing_known():
    for known in CACHES:
        known.clear()


def same(text):
    for _ in range(2):  # not known yet, and known
        assert outcome(canonical_schema, text, "s") == outcome(the_long_way, text, "s"), text
        for any_text in (text, *outcome(the_long_way, text, "s")[1:]):
            made, parsed = outcome(schema_of, any_text), outcome(parse_schema, any_text)
            assert made == parsed, any_text
            if isinstance(parsed, FunctionSchema):
                assert values_of(made) == values_of(parsed), any_text


def values_of(schema):
    """All that a schema consists of. (Schemas are compared by their texts.)"""
    both = [[each._fields() for each in some] for some in (schema.arguments, schema.returns)]
    return repr((schema.name._fields(), both, schema.is_vararg, schema.is_varret, str(schema)))


@pytest.mark.parametrize("case", RECORDED["schemas"], ids=lambda case: case["schema"][:40])
def test_what_pytorch_was_asked_is_answered_as_by_the_parser(case):
    same(case["schema"])


@pytest.mark.thorough
def test_pieces_in_any_company_are_what_the_parser_makes_of_the_whole():
    rng = random.Random(20)
    for _ in range(3000):
        arguments = ", ".join(rng.choices(ARGUMENTS, k=rng.choice((0, 1, 1, 2, 2, 3, 4))))
        same(f"{rng.choice(NAMES)}({arguments}){rng.choice((' -> ',) * 9 + ('->', ' ->  '))}"
             f"{rng.choice(RETURNS)}")  # fmt: skip


@pytest.mark.thorough
def test_a_text_cut_off_or_changed_anywhere_is_refused_or_read_as_by_the_parser():
    text = 's::f.out(Tensor self, int[2] n=1, *, str s="x, y", Tensor(a!) out) -> Tensor(a!)'
    for at in range(len(text)):
        same(text[:at])
        for letter in ("", "#", "\n", ")", ",", " "):
            same(text[:at] + letter + text[at + 1 :])


@pytest.mark.dear
def test_no_more_is_kept_than_is_said(monkeypatch):
    monkeypatch.setattr(canonical, "_PIECES", 10)
    for i in range(100):
        same(f"f(Tensor x{i}) -> (Tensor y{i}, int)")
        for known in CACHES:
            assert len(known) <= 10
    canonical._rests.clear()
    same(f"f(Tensor {'x' * 200}) -> Tensor")
    same(
        f"f({', '.join(f'float[1024] w{i}=1.5' for i in range(20))}) -> Tensor"
    )  # too large, written out
    same(f"f({', '.join(f'int x{i}' for i in range(65))}) -> Tensor")
    same(f"f({' ' * 5000}) -> Tensor")
