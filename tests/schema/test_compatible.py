"""The rules by which one schema can take the place of another: each in both directions."""

from __future__ import annotations

import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdispatch.schema import FunctionSchema, compare, parse_schema
from mdispatch.schema.compatible import (
    BREAKING,
    COMPATIBLE,
    RULES,
    SAME,
    VERDICTS,
    Difference,
    attribute_differences,
    differences,
    takes_calls,
    worst,
)

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]


def rules(old: str, new: str) -> list[str]:
    return [each.rule for each in differences(schema(old), schema(new))]


def schema(text: str) -> FunctionSchema:
    """The schema of a text with or without the returns."""
    return parse_schema(text if "->" in text else f"{text} -> ()")


#: Two schemas, the rules by which the second differs from the first, and those of the exchange.
PAIRS = [
    # An argument more.
    ("f(int a)", "f(int a, int b=1)", "argument-added", "argument-removed"),
    ("f(int a=0)", "f(int a=0, int b=1)", "argument-added", "argument-removed"),
    ("f()", "f(Tensor? b=None)", "argument-added", "argument-removed"),
    ("f(int a, *, int k)", "f(int a, int b=1, *, int k)", "argument-added", "argument-removed"),
    ("f(int a)", "f(int a, str b='', int c=2)", "argument-added " * 2, "argument-removed " * 2),
    ("f(int a)", "f(int a, *, int k=1)", "keyword-added", "argument-removed"),
    ("f(int a, *, int k=1)", "f(int a, *, int j=2, int k=1)", "keyword-added", "argument-removed"),
    ("f(int a, *, int k=1)", "f(int a, *, int k=1, str z='')", "keyword-added", "argument-removed"),
    ("f(int a, ...)", "f(int a, *, int k, ...)", "argument-required", "argument-removed"),
    ("f(int a)", "f(int a, int b)", "argument-required", "argument-removed"),
    ("f(int a)", "f(int a, *, int k)", "argument-required", "argument-removed"),
    ("f(int a)", "f(int b, int a)", "argument-inserted", "argument-removed"),
    ("f(int a=1)", "f(int b=2, int a=1)", "argument-inserted", "argument-removed"),
    ("f(int a, int c=1)", "f(int a, int b=2, int c=1)", "argument-inserted", "argument-removed"),
    # Defaults.
    ("f(int a)", "f(int a=1)", "default-added", "default-removed"),
    ("f(int a, *, int k)", "f(int a, *, int k=1)", "default-added", "default-removed"),
    ("f(float a=0.19)", "f(float a=0.16)", "default-changed", "default-changed"),
    ("f(Scalar a=1)", "f(Scalar a=1.0)", "default-changed", "default-changed"),
    ("f(Scalar a=1)", "f(Scalar a=True)", "default-changed", "default-changed"),
    ("f(int? a=None)", "f(int? a=0)", "default-changed", "default-changed"),
    ("f(str a='x')", "f(str a='x=y')", "default-changed", "default-changed"),
    ("f(int[2] a=1)", "f(int[2] a=[1, 2])", "default-changed", "default-changed"),
    # The name of an argument, and its position.
    ("f(int a)", "f(int b)", "argument-renamed", "argument-renamed"),
    ("f(int a, int b)", "f(int b, int a)", "argument-moved", "argument-moved"),
    ("f(int a, str b)", "f(str b, int a)", "argument-moved", "argument-moved"),
    ("f(*, int a, int b)", "f(*, int b, int a)", "argument-moved", "argument-moved"),
    ("f(int a, int b)", "f(int a, *, int b)", "argument-kind", "argument-kind"),
    ("f(int a, int b=1)", "f(int a, *, int b=1)", "argument-kind", "argument-kind"),
    ("f(int a)", "f(str b)", *["argument-removed argument-required"] * 2),
    ("f(*, int a)", "f(*, int b)", *["argument-removed argument-required"] * 2),
    ("f(int a=1)", "f(int c=2)", *["argument-renamed default-changed"] * 2),
    # Types, and aliases.
    ("f(int a)", "f(int? a)", "argument-retyped", "argument-retyped"),
    ("f(int a)", "f(float a)", "argument-retyped", "argument-retyped"),
    ("f(int a=1)", "f(float a=1)", "argument-retyped", "argument-retyped"),
    ("f(int a=1)", "f(float a=2)", *["argument-retyped default-changed"] * 2),
    ("f(Tensor[] a)", "f(Tensor[2] a)", "argument-retyped", "argument-retyped"),
    ("f(shop.A a)", "f(shop.B a)", "argument-retyped", "argument-retyped"),
    ("f(Tensor a)", "f(Tensor(a!) a)", "argument-alias", "argument-alias"),
    ("f(Tensor(a) a)", "f(Tensor(b) a)", "argument-alias", "argument-alias"),
    ("f(Tensor a)", "f(Tensor(a!)? a)", *["argument-retyped argument-alias"] * 2),
    # Any number of arguments; returns; names.
    ("f(int a)", "f(int a, ...)", "more-arguments", "more-arguments"),
    ("f() -> int", "f() -> float", "return-changed", "return-changed"),
    ("f() -> int", "f() -> (int, int)", "return-changed", "return-changed"),
    ("f() -> ()", "f() -> int", "return-changed", "return-changed"),
    ("f() -> int", "f() -> int total", "return-changed", "return-changed"),
    ("f() -> int", "f() -> (int, ...)", "return-changed", "return-changed"),
    ("f() -> Tensor(a)", "f() -> Tensor", "return-changed", "return-changed"),
    ("f(int a)", "g(int a)", "name-changed", "name-changed"),
    ("f(int a)", "f.more(int a)", "name-changed", "name-changed"),
    ("f(int a)", "shop::f(int a)", "name-changed", "name-changed"),
    # Several at once.
    (
        "f(int a) -> int",
        "f(float a=1, *, int k=1) -> str",
        "argument-retyped default-added keyword-added return-changed",
        "argument-retyped default-removed argument-removed return-changed",
    ),
]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0]} | {pair[1]}")
def test_a_difference_has_its_rule_in_each_direction(pair):
    old, new, there, back = pair
    assert rules(old, new) == there.split()
    assert rules(new, old) == back.split()
    assert worst(RULES[each].verdict for each in back.split()) == BREAKING


def test_there_are_forty_pairs_and_one_for_each_rule():
    assert len(PAIRS) >= 40
    told = {each for pair in PAIRS for text in pair[2:] for each in text.split()}
    # Tests of the others are below.
    assert told == RULES.keys() - {"schema", "alias-analysis", "tags"}


def test_what_is_compatible_is_a_closed_list():
    compatible = {name for name, rule in RULES.items() if rule.verdict == COMPATIBLE}
    assert compatible == {"argument-added", "keyword-added", "default-added"}
    assert {rule.verdict for rule in RULES.values()} == {COMPATIBLE, BREAKING}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("f(float tax=0.19)", "f(float tax=0.16)", "the default of 'tax' is 0.19 OLD, 0.16 NEW"),
        ("f(int a)", "f(int a, int b=1)", "argument 'int b=1' is only NEW"),
        ("f(int a)", "f(int b, int a)", "argument 'int b' is only NEW, before 'a'"),
        ("f(int a)", "f(int a, int b)", "argument 'int b' is only NEW, and has no default"),
        ("f(int a)", "f(int a, *, int k=1)", "argument 'int k=1' is only NEW, by keyword"),
        ("f(int a)", "f()", "argument 'int a' is only OLD"),
        ("f(int a)", "f(int b)", "'a' OLD is called 'b' NEW"),
        ("f(int a, int b)", "f(int b, int a)", "'a' is before 'b' OLD, and after it NEW"),
        ("f(int a)", "f(*, int a)", "'a' is given by keyword only NEW"),
        ("f(*, int a)", "f(int a)", "'a' is given by keyword only OLD"),
        ("f(int a)", "f(int? a)", "the type of 'a' is int OLD, int? NEW"),
        ("f(Tensor a)", "f(Tensor(a!) a)", "'a' is Tensor OLD, Tensor(a!) NEW"),
        ("f(int a)", "f(int a=1)", "'a' has no default OLD, and 1 NEW"),
        ("f(int a=1)", "f(int a)", "'a' has the default 1 OLD, and none NEW"),
        ("f(int a)", "f(int a, ...)", "only NEW it takes more arguments ('...')"),
        ("f() -> int", "f() -> str", "return 1 is 'int' OLD, 'str' NEW"),
        ("f()", "g()", "the name is f OLD, g NEW"),
    ],
)
def test_the_words_name_the_argument(old, new, words):
    (found,) = differences(schema(old), schema(new), ("OLD", "NEW"))
    assert found.words == words


def test_what_has_no_rule_yet_is_breaking(monkeypatch):
    monkeypatch.setattr("mdispatch.schema.compatible._of_arguments", lambda *args: ())
    old, new = schema("f(int a)"), schema("f(int a, int b=1)")
    (found,) = differences(old, new)
    assert (found.rule, found.verdict) == ("schema", BREAKING)
    assert found.words == compare(old, new, ("in OLD", "in NEW"))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (("FROM_SCHEMA", ()), ("FROM_SCHEMA", ()), []),
        (("FROM_SCHEMA", ("a", "b")), ("FROM_SCHEMA", ("b", "a")), []),
        (("FROM_SCHEMA", ()), ("PURE_FUNCTION", ()), ["alias-analysis"]),
        (("FROM_SCHEMA", ()), ("FROM_SCHEMA", ("core",)), ["tags"]),
        (("CONSERVATIVE", ("x",)), ("FROM_SCHEMA", ("y",)), ["alias-analysis", "tags"]),
    ],
    ids=str,
)
def test_attributes_break_in_each_direction(old, new, expected):
    for one, other in ((old, new), (new, old)):
        found = attribute_differences(one, other)
        assert [each.rule for each in found] == expected
        assert {each.verdict for each in found} <= {BREAKING}


def test_a_difference_is_a_value():
    one = Difference("tags", "they differ")
    assert pickle.loads(pickle.dumps(one)) == one == ("tags", "they differ")


def test_rules_are_sentences():
    for rule in RULES.values():
        assert re.fullmatch(r"[a-z][^|\n]*[^.]", rule.change)
        assert re.fullmatch(r"[A-Z][^|\n]*\.", rule.why)


# --- overloads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "later", "takes"),
    [
        ("f(int a)", "f(int a, int b=1)", "f.x(int a, int b)", True),
        ("f(int a)", "f(int a, int b=1)", "f.x(int a, *, int b)", True),  # by keyword
        ("f(int a)", "f(int a, int b=1)", "f.x(int a, int c)", True),  # by position
        ("f(int a)", "f(int a, int b=1)", "f.x(int a, *, int c)", False),
        ("f(int a)", "f(int a, int b=1)", "f.x(int a, ...)", True),
        ("f(int a)", "f(int a, int b=1)", "f.x()", False),
        ("f(int a)", "f(int a, *, int k=1)", "f.x(int a, *, int k)", True),
        ("f(int a)", "f(int a, *, int k=1)", "f.x(int a, *, int j)", False),
        ("f(int a)", "f(int a, *, int k=1)", "f.x(int a, int k)", True),
        ("f(Tensor a)", "f(Tensor a, *, int k=1)", "f.x(int a, *, int k)", False),  # types
        ("f(Tensor a)", "f(Tensor a, *, int k=1)", "f.x(Tensor a, *, str k)", False),
        ("f(Tensor a)", "f(Tensor a, Scalar b=1)", "f.x(Tensor a, Tensor b)", False),
        ("f(Tensor a)", "f(Tensor a, int[2] b=1)", "f.x(Tensor a, int b)", True),  # 1 is [1, 1]
        ("f(Tensor a)", "f(Tensor a, int[] b=[1])", "f.x(Tensor a, int b)", False),
        ("f(int a)", "f(int a=1)", "f.x()", True),
        ("f(int a)", "f(int a=1)", "f.x(int a)", False),
        ("f(int a)", "f(int a=1)", "f.x(*, int k)", False),
        ("f(int a, int b)", "f(int a, int b=1)", "f.x(int a)", True),
        ("f(int a)", "f(int a)", "f.x(int a, int b)", False),
    ],
)
def test_an_overload_may_take_the_calls_of_a_later_one(old, new, later, takes):
    assert takes_calls(schema(old), schema(new), schema(later)) == takes


# --- properties -----------------------------------------------------------------------------------

_TYPES = ["int", "int?", "float", "Tensor", "Tensor(a!)", "Tensor[]", "str", "int[2]", "shop.A"]
_VALUES = {"int": ["0", "1"], "int?": ["None", "1"], "float": ["1.", "2."], "str": ["'x'", "''"]}
_VALUES["int[2]"] = ["1", "[1, 2]"]


@st.composite
def schemas(draw):
    """Schemas of few names, so that two of them often differ in little."""
    names = draw(st.permutations("abcd"))[: draw(st.integers(0, 4))]
    keyword = draw(st.integers(0, len(names)))
    items, defaults = [], False
    for number, name in enumerate(names):
        if number == keyword:
            items.append("*")
            defaults = False
        type = draw(st.sampled_from([*_VALUES] if defaults else _TYPES))
        written = defaults or (type in _VALUES and draw(st.booleans()))
        defaults = written and number < keyword
        default = f"={draw(st.sampled_from(_VALUES[type]))}" if written else ""
        items.append(f"{type} {name}{default}")
    returns = draw(st.sampled_from(["()", "int", "(int, int)", "int total", "(int, ...)"]))
    return parse_schema(f"f({', '.join(items)}) -> {returns}")


@given(schemas())
def test_a_schema_is_the_same_as_itself(one):
    assert differences(one, parse_schema(str(one))) == []


@given(schemas(), schemas())
def test_schemas_that_differ_are_never_the_same_and_all_have_a_rule(old, new):
    found = differences(old, new)
    assert (found == []) == (old == new)
    assert "schema" not in [each.rule for each in found]
    assert worst(each.verdict for each in found) in VERDICTS
    assert len(set(found)) == len(found)


def accepts(schema: FunctionSchema, given: int, names: frozenset[str]) -> bool:
    """Whether a call with so many arguments by position and these by keyword fits, types aside. It
    is written down here once more, so that a mistake would have to be made twice.
    """
    positional = [each.name for each in schema.arguments if not each.kwarg_only]
    taken = set(positional[:given])
    known = {each.name for each in schema.arguments}
    needed = {each.name for each in schema.arguments if not each.has_default}
    return given <= len(positional) and names <= known - taken and needed <= taken | names


def calls(*schemas: FunctionSchema) -> list[tuple[int, frozenset[str]]]:
    names = sorted({each.name for one in schemas for each in one.arguments})
    sets = [
        frozenset(name for bit, name in enumerate(names) if number >> bit & 1)
        for number in range(1 << len(names))
    ]
    return [(given, each) for given in range(6) for each in sets]


def bound(schema: FunctionSchema, given: int) -> list[tuple[str, str]]:
    """The names and types of the arguments by position."""
    positional = [each for each in schema.arguments if not each.kwarg_only]
    return [(each.name, str(each.type)) for each in positional[:given]]


@given(schemas(), schemas())
def test_a_compatible_schema_takes_every_call_of_the_old_one_as_the_old_one_did(old, new):
    if worst(each.verdict for each in differences(old, new)) == BREAKING:
        return
    before = {each.name: each for each in old.arguments}
    after = {each.name: each for each in new.arguments}
    for given_, names in calls(old, new):
        if accepts(old, given_, names):
            assert accepts(new, given_, names)
            assert bound(old, given_) == bound(new, given_)
            left = before.keys() - names - {name for name, _ in bound(old, given_)}
            assert [str(before[name]) for name in left] == [str(after[name]) for name in left]
    assert old.returns == new.returns


@given(schemas(), schemas(), schemas())
def test_no_call_is_taken_from_a_later_overload_unsaid(old, new, later):
    shared = [
        call
        for call in calls(old, new, later)
        if accepts(new, *call) and accepts(later, *call) and not accepts(old, *call)
    ]
    if takes_calls(old, new, later):
        assert shared
    types = {str(each.type) for one in (new, later) for each in one.arguments}
    if len(types) <= 1:
        assert bool(shared) == takes_calls(old, new, later)


@given(schemas(), schemas(), schemas())
def test_more_differences_never_make_the_verdict_better(one, other, third):
    few, more = differences(one, other), differences(other, third)
    verdicts = [each.verdict for each in few]
    both = worst([*verdicts, *(each.verdict for each in more)])
    assert VERDICTS.index(both) >= VERDICTS.index(worst(verdicts))
    assert worst([]) == SAME
