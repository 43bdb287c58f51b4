"""``mdispatch diff``: its rules, each in both directions; its kinds of sources; damaged files; and
the page about it is true.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import mdispatch, on_terminal, without_style
from commands import environment
from hypothesis import given
from hypothesis import strategies as st
from json_keys import strangers
from patience import limit

import mdispatch as md
from mdispatch import facts
from mdispatch.cli.ls import Listing
from mdispatch.dispatch.explain import computed, rows_of
from mdispatch.editions.comparing import ALL_RULES, RULES, compared, verdict_of
from mdispatch.editions.reading import Damaged, read, snapshot_in
from mdispatch.editions.snapshot import (
    Fallback,
    Kernel,
    Operator,
    Other,
    Snapshot,
    snapshot_of,
)
from mdispatch.facts import Registration
from mdispatch.keys.numbers import DispatchKey
from mdispatch.registry.catalogue import catalogue
from mdispatch.schema import parse_schema
from mdispatch.schema.compatible import BREAKING, COMPATIBLE, SAME, VERDICTS, worst
from mdispatch.schema.compatible import RULES as OF_SCHEMAS

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "diff.md"

# --- the rules ------------------------------------------------------------------------------------


def kernel(*args: Any, **kwargs: Any) -> None: ...
def other(*args: Any, **kwargs: Any) -> None: ...


class Base: ...


class Tok:
    def encode(self, text: str) -> str:
        return text

    def decode(self, text: str) -> str:
        return text


def version(*lines: str) -> Snapshot:
    """The snapshot of a registry in which these lines have registered. "f(int a)" alone is a
    definition.
    """
    with md.Registry.create(capacity=1 << 20) as registry:
        lib = md.Library("shop", "DEF", registry=registry)
        for line in lines:
            if re.match(r"(?!lib\.|md\.)[\w.]+\(.*\) -> ", line):
                lib.define(line)
            else:
                names = {"md": md, "lib": lib, "registry": registry}
                exec(line, {**globals(), **names})
        there = registry.dispatcher.facts.registrations()[2]
        found = catalogue(registry)
    answer = Listing(found.registry, found.operators, found.fallbacks, found.others).answer()
    saved = read(json.dumps(answer))
    assert snapshot_of(there) == saved  # a registry and its file are the same
    return saved


def impl(key: str, *more: str, name: str = "f", function: str = "kernel") -> str:
    return f"lib.impl({name!r}, {function}, {key!r}{''.join(f', {each}' for each in more)})"


def typed(methods: str, more: str = "") -> str:
    return f"md.register_class('shop.Tok', methods={methods}, registry=registry{more})(Tok)"


F = "f(Tensor x) -> Tensor"
X, Y, Z = "g.x(int a) -> ()", "g.y(int a, int b) -> ()", "g.z(str a) -> ()"
HIGH, LOW = impl("CPU", "provider='high', order=2"), impl("CPU", "provider='low', order=1")
ENCODE, BOTH = '{"encode": "(str a) -> str"}', '{m: "(str a) -> str" for m in ("encode", "decode")}'
COMPOSITE = impl("CompositeImplicitAutograd")

#: Two versions, the rules by which the second differs from the first, and those of the exchange.
PAIRS: list[tuple[list[str], list[str], str, str]] = [
    # Operators and overloads.
    ([F], [F, "h() -> ()"], "operator-added", "operator-removed"),
    ([F], [F, "h() -> ()", impl("CPU", name="h")], "operator-added", "operator-removed"),
    ([X], [X, Z], "overload-added", "overload-removed"),
    ([X], ["g() -> ()", X], "overload-before", "overload-removed"),
    ([X, Y], [X, Z, Y], "overload-before", "overload-removed"),
    ([X, Y], [Y, X], "overloads-moved", "overloads-moved"),
    ([X, Y, Z], [Z, X, Y], "overloads-moved overloads-moved", "overloads-moved"),
    ([X, Y], [Y], "overload-removed", "overload-before"),
    # Definitions, and overloads beside them.
    (["f(float tax=0.19) -> ()"], ["f(float tax=0.16) -> ()"], *["default-changed"] * 2),
    (["f() -> ()"], ["f(int a=1) -> ()"], "argument-added", "argument-removed"),
    (["f() -> ()"], ["f(*, int a=1) -> ()"], "keyword-added", "argument-removed"),
    (["f(int a) -> ()"], ["f(int a=1) -> ()"], "default-added", "default-removed"),
    (["f(int a) -> ()"], ["f(int b) -> ()"], *["argument-renamed"] * 2),
    (["f(Tensor a) -> ()"], ["f(Tensor(a!) a) -> ()"], *["argument-alias"] * 2),
    (["f() -> int"], ["f() -> str"], *["return-changed"] * 2),
    (
        [X, Y],
        ["g.x(int a, int b=1) -> ()", Y],
        "argument-added overload-takes-calls",
        "argument-removed",
    ),
    ([X, Z], ["g.x(int a, int b=1) -> ()", Z], "argument-added", "argument-removed"),
    ([Y, X], [Y, "g.x(int a, int b=1) -> ()"], "argument-added", "argument-removed"),
    ([F], [f"lib.define({F!r}, tags=['core'])"], "tags", "tags"),
    ([F], [f"lib.define({F!r}, alias_analysis='PURE_FUNCTION')"], *["alias-analysis"] * 2),
    (
        [F],
        ["lib.set_python_module('shop.fakes')", F],
        "python-module-added",
        "python-module-changed",
    ),
    (
        ["lib.set_python_module('a')", F],
        ["lib.set_python_module('b')", F],
        *["python-module-changed"] * 2,
    ),
    ([F], [F, "lib.register_name('held')"], "name-added", "name-removed"),
    (
        ["h() -> ()", "lib.register_name('f')"],
        ["h() -> ()", F],
        "operator-added",
        "operator-removed name-added",
    ),
    # Kernels.
    ([F], [F, impl("CPU")], "kernel-added", "kernel-removed"),
    ([F, impl("CPU")], [F, impl("CPU"), impl("CUDA")], "kernel-added", "kernel-removed"),
    ([F, impl("CPU")], [F, impl("CUDA")], *["kernel-removed kernel-added"] * 2),
    ([F, impl("CPU")], [F, impl("CPU", function="other")], *["kernel-moved"] * 2),
    ([F, impl("CPU")], [F, impl("CPU"), impl("CPU")], "", ""),
    (
        [F, impl("CPU")],
        [F, impl("CPU", function="md.fallthrough_kernel")],
        *["kernel-passes"] * 2,
    ),
    ([F, COMPOSITE], [F, COMPOSITE, impl("CPU")], "kernel-takes-calls", "kernel-removed"),
    (
        [F, impl("CompositeExplicitAutograd")],
        [F, impl("CompositeExplicitAutograd"), impl("AutogradCPU")],
        "kernel-added",
        "kernel-removed",
    ),
    (
        [F, impl("CPU")],
        [F, impl("CPU"), impl("CompositeExplicitAutograd")],
        "kernel-added",
        "kernel-removed",
    ),
    ([F, impl("CPU")], [F, impl("CPU"), impl("Meta")], "kernel-added", "kernel-removed"),
    (  # by itself the implicit one would take calls of the autograd kernel
        [F, impl("CPU"), impl("Autograd")],
        [F, impl("CPU"), impl("Autograd"), COMPOSITE, impl("CompositeExplicitAutograd")],
        "kernel-added " * 2,
        "kernel-removed " * 2,
    ),
    (
        ["lib_ = md.Library('_', 'IMPL', registry=registry); lib_.fallback(kernel, 'CPU')", F],
        [
            "lib_ = md.Library('_', 'IMPL', registry=registry); lib_.fallback(kernel, 'CPU')",
            F,
            impl("CPU"),
        ],
        "kernel-takes-calls",
        "kernel-removed",
    ),
    ([F, "lib.impl('nobody', kernel, 'CPU')"], [F], "kernel-removed", "kernel-added"),
    # By type.
    (
        [F, impl("CPU")],
        [F, impl("CPU"), impl("CPU", "types=Base")],
        "kernel-takes-calls",
        "kernel-removed",
    ),
    (
        [F, impl("CPU", "types=Base")],
        [F, impl("CPU", "types=Base"), impl("CPU", "types=Tok")],
        "kernel-added",
        "kernel-removed",
    ),
    (
        [F, impl("CPU", "types=Base")],
        [F, impl("CPU", "types=Base"), impl("CPU")],
        "kernel-added",
        "kernel-removed",
    ),
    (
        [F, COMPOSITE, impl("CPU", "types=Base")],
        [F, COMPOSITE, impl("CPU", "types=Base"), impl("CPU", "types=Tok")],
        "kernel-takes-calls",
        "kernel-removed",
    ),
    # Providers.
    ([F, HIGH], [F, HIGH, LOW], "kernel-added", "kernel-removed"),
    ([F, LOW], [F, HIGH, LOW], "kernel-takes-calls", "kernel-removed"),
    ([F, impl("CPU")], [F, impl("CPU"), LOW], "kernel-takes-calls", "kernel-removed"),
    ([F, LOW], [F, LOW, impl("CPU")], "kernel-added", "kernel-removed"),
    ([F, LOW], [F, LOW.replace("1", "2")], "provider-order", "provider-order"),
    (
        [F, LOW],
        [F, LOW, LOW.replace("low", "new")],  # the newer of one order comes first
        "kernel-takes-calls",
        "kernel-removed",
    ),
    ([F, LOW], [F, LOW.replace("order=1", "order=1, types=Base")], *["kernel-removed"] * 2),
    (
        [F, "md.set_priority('shop::f', ['low'], registry=registry)"],
        [F, "md.set_priority('shop::f', ['high'], registry=registry)"],
        *["priority-changed"] * 2,
    ),
    ([F], [F, "md.set_priority('shop::f', ['x'], registry=registry)"], *["priority-changed"] * 2),
    # Fallbacks.
    (
        [F],
        [F, "md.Library('_', 'IMPL', registry=registry).fallback(kernel, 'CPU')"],
        "fallback-added",
        "fallback-removed",
    ),
    # Classes.
    ([F], [F, typed(ENCODE)], "class-added", "class-removed"),
    ([F, typed(ENCODE)], [F, typed(BOTH)], "method-added", "method-removed"),
    (
        [F, typed(ENCODE)],
        [F, typed(ENCODE.replace("a)", "b)"))],
        *["argument-renamed"] * 2,
    ),
    (
        [F, typed(ENCODE)],
        [F, typed(ENCODE, ", codec=(str, str)")],
        *["class-changed"] * 2,
    ),
    (
        [F, typed(ENCODE)],
        [F, typed(ENCODE), "Tok.extra(int a) -> ()"],
        "overload-added",
        "overload-removed",
    ),
    # Choices are made while programs run: they are no part of a version.
    ([F], [F, "md.choose('shop::f', 1, [1], lambda: 1, registry=registry)"], "", ""),
    ([F], [F], "", ""),
]


def rules(old: Snapshot, new: Snapshot) -> list[str]:
    return [each.rule for each in compared(old, new)]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0][-1]} | {pair[1][-1]}"[:90])
def test_a_difference_has_its_rule_in_each_direction(pair: Any) -> None:
    old, new = version(*pair[0]), version(*pair[1])
    assert sorted(rules(old, new)) == sorted(pair[2].split())
    assert sorted(rules(new, old)) == sorted(pair[3].split())
    for rules_of, found in ((pair[2], compared(old, new)), (pair[3], compared(new, old))):
        assert verdict_of(found) == worst(ALL_RULES[each].verdict for each in rules_of.split())


ALONE = Operator("shop::f", parse_schema("shop::f() -> ()"), 0, "", (), "", (), "f.py:1", False)

#: Values, where a registry of a test does not show the same as easily.
VALUES: list[tuple[Any, Any, str, str]] = [
    (None, Other("type", "T", "CPU", ""), "type-added", "type-changed"),
    (Other("type", "T", "CPU", ""), Other("type", "T", "CUDA", ""), *["type-changed"] * 2),
    (None, Other("strange", "s", "1", ""), *["other-changed"] * 2),
    (Other("strange", "s", "1", ""), Other("strange", "s", "1\n2", ""), *["other-changed"] * 2),
    (None, Other("value", "v", "1", ""), *["value-added"] * 2),
    (Other("value", "v", "1", ""), Other("value", "v", '{"a":1}', ""), *["value-changed"] * 2),
    (Other("value", "v", '{"#t":1}', ""), Other("value", "v", "2", ""), *["value-changed"] * 2),
    (Other("choice", "s", "1", ""), Other("choice", "s", "2", ""), "", ""),
    (Fallback("CPU", "a", False, ""), Fallback("CPU", "b", False, ""), *["fallback-moved"] * 2),
    (Fallback("CPU", "a", False, ""), Fallback("CPU", "a", True, ""), *["fallback-passes"] * 2),
    (
        Other("class", "shop.A", "shop::A.m(shop.A self) -> ()", ""),
        Other("class", "shop.A", "shop::A.m(shop.A self) -> int", ""),
        *["class-changed"] * 2,
    ),
]


@pytest.mark.parametrize(("one", "other", "forth", "back"), VALUES)
def test_a_value_has_its_rule_in_each_direction(
    one: Any, other: Any, forth: str, back: str
) -> None:
    old, new = (
        Snapshot(
            (ALONE,),
            (each,) if isinstance(each, Fallback) else (),
            (each,) if isinstance(each, Other) else (),
        )
        for each in (one, other)
    )
    assert (rules(old, new), rules(new, old)) == (forth.split(), back.split())


def test_there_are_forty_pairs_and_one_for_each_rule() -> None:
    assert len(PAIRS) >= 40
    told = {each for pair in [*PAIRS, *VALUES] for text in pair[2:] for each in text.split()}
    assert RULES.keys() <= told
    assert not RULES.keys() & OF_SCHEMAS.keys()


def test_what_is_compatible_is_a_closed_list() -> None:
    assert {name for name, rule in RULES.items() if rule.verdict == COMPATIBLE} == {
        *("operator-added", "overload-added", "kernel-added", "class-added", "method-added"),
        *(
            "value-added",
            "type-added",
            "name-added",
            "python-module-added",
            "kernel-moved",
            "fallback-moved",
        ),
    }


def test_locations_are_told_and_not_compared() -> None:
    old, new = Snapshot((ALONE,)), Snapshot((ALONE._replace(where="other.py:9"),))
    assert compared(old, new) == []
    (found,) = compared(old, Snapshot((ALONE._replace(tags=("t",), where="other.py:9"),)))
    assert (found.old, found.new) == ("f.py:1", "other.py:9")


def test_the_words_say_which_kernel_ran_the_calls() -> None:
    (found,) = compared(version(F, COMPOSITE), version(F, COMPOSITE, impl("CPU")))
    assert found.words == (
        "the kernel at CPU is only in NEW, and takes calls that "
        f"{__name__}.kernel at CPU runs in OLD"
    )
    (found,) = compared(version(F, LOW), version(F, LOW, HIGH))
    assert found.words == (
        "the provider 'high' at CPU is only in NEW, and takes calls that the provider 'low' at CPU "
        "runs in OLD"
    )


# --- properties -----------------------------------------------------------------------------------

_SCHEMAS = ["()", "(int a)", "(int a=1)", "(int a=2)", "(int a, int b=1)", "(Tensor x, *, int k=1)"]
_kernels = st.builds(
    Kernel,
    st.sampled_from(["CPU", "CUDA", "Autograd", "CompositeImplicitAutograd", "12345"]),
    st.sampled_from([(), ("a.T",), ("a.T", "a.U")]),
    st.sampled_from(["", "fast", "slow"]),
    st.integers(0, 2),
    st.sampled_from(["m.f", "m.g", "fallthrough"]),
    st.booleans(),
    st.just("k.py:1"),
)


@st.composite
def snapshots(draw: Any, space: str = "shop") -> Snapshot:
    names = draw(st.permutations(["f", "f.x", "f.y", "g"]))[: draw(st.integers(0, 4))]
    operators = []
    for position, name in enumerate(names):
        name = f"{space}::{name}"
        text = draw(st.sampled_from([None, *_SCHEMAS]))
        kernels = {each.variant: each for each in draw(st.lists(_kernels, max_size=3))}
        operators.append(
            Operator(
                name,
                None if text is None else parse_schema(f"{name}{text} -> ()"),
                None if text is None else position,
                draw(st.sampled_from(["FROM_SCHEMA", "PURE_FUNCTION"])),
                draw(st.sampled_from([(), ("core",)])),
                draw(st.sampled_from(["", "fakes"])),
                tuple(kernels.values()),
                f"{position}.py:1",
                draw(st.booleans()),
            )
        )
    others = [
        Other(kind, f"{space}.T", draw(st.sampled_from(["one", "two"])), "o.py:1")
        for kind in draw(st.lists(st.sampled_from(["class", "type", "strange"]), unique=True))
    ]
    return Snapshot(tuple(operators), (), tuple(others))


@given(snapshots())
def test_a_snapshot_is_the_same_as_itself(one: Snapshot) -> None:
    assert compared(one, one) == []
    assert verdict_of([]) == SAME


@given(snapshots(), snapshots())
def test_snapshots_whose_schemas_differ_are_never_the_same(old: Snapshot, new: Snapshot) -> None:
    texts = [{str(each.schema) for each in one.operators if each.schema} for one in (old, new)]
    forth, back = compared(old, new), compared(new, old)
    if texts[0] != texts[1]:
        assert forth
        assert back
    # What is removed or changed in one direction is in the other one, too.
    assert {each.name for each in forth} == {each.name for each in back}
    assert all(each.verdict in VERDICTS[1:] for each in forth)


_PLAIN = [
    "CPU CUDA AutogradCPU SparseCPU BackendSelect Autograd CompositeImplicitAutograd Meta",
    "CompositeExplicitAutograd CompositeExplicitAutogradNonFunctional Python FuncTorchBatched",
]
_keys = st.lists(st.sampled_from(" ".join(_PLAIN).split()), max_size=4, unique=True)
_passing = st.sets(st.sampled_from(" ".join(_PLAIN).split()), max_size=1)


def rows(one: Snapshot) -> list[Any]:
    """The table of the one operator, from all of its kernels."""
    there = [
        Registration(
            0, 0, facts.IMPL, int(DispatchKey.__members__[each.key]), "f", each.label, "", 0, 0
        )
        for each in one.operators[0].kernels
    ]
    return rows_of(computed(there, []))


@given(_keys, _keys, _passing)
def test_where_no_kernel_difference_is_breaking_every_call_runs_the_kernel_that_it_ran(
    before: list[str], more: list[str], passing: set[str]
) -> None:
    """Several kernels come at once, and each was looked at alone."""

    def snapshot(keys: list[str]) -> Snapshot:
        labels = {key: "fallthrough" if key in passing else f"at_{key}" for key in keys}
        kernels = [Kernel(key, (), "", 0, labels[key], key in passing, "") for key in keys]
        return Snapshot((ALONE._replace(kernels=tuple(kernels)),))

    old, new = snapshot(before), snapshot(list(dict.fromkeys([*before, *more])))
    taken = [
        (one.key.name, one.kernel)
        for one, other in zip(rows(old), rows(new), strict=True)
        if one.kernel and not one.is_fallthrough and one.kernel != other.kernel
    ]
    found = compared(old, new)
    assert (verdict_of(found) == BREAKING) == bool(taken)


@given(snapshots(), snapshots(), snapshots("more"), snapshots("more"))
def test_more_differences_never_make_the_verdict_better(
    old: Snapshot, new: Snapshot, old_more: Snapshot, new_more: Snapshot
) -> None:
    both = [
        Snapshot(one.operators + more.operators, (), one.others + more.others)
        for one, more in ((old, old_more), (new, new_more))
    ]
    found = compared(*both)
    verdicts = [verdict_of(compared(old, new)), verdict_of(compared(old_more, new_more))]
    assert verdict_of(found) == worst(verdicts)


# --- damaged files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """An answer of ls --json."""
    with md.Registry.create(capacity=1 << 20) as registry:
        lib = md.Library("shop", "DEF", registry=registry)
        lib.define("f(Tensor x, int a=1) -> Tensor", tags=["core"])
        lib.impl("f", kernel, "CPU", provider="fast")
        md.Library("_", "IMPL", registry=registry).fallback(kernel, "Conjugate")
        md.set_priority("shop::f", ["fast"], registry=registry)
        found = catalogue(registry)
    whole = Listing(found.registry, found.operators, found.fallbacks, found.others).answer()
    made: dict[str, Any] = json.loads(json.dumps(whole))
    return made


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The location of every value in an answer."""
    if path:
        yield path
    if isinstance(value, dict):
        items = [*value.items()]
    else:
        items = [*enumerate(value)] if isinstance(value, list) else []
    for key, each in items:
        yield from places(each, (*path, key))


#: Keys that say nothing of the version.
IGNORED = {"mdispatch", "registry", "namespace", "overload", "dangling", "alias", "active"}
IGNORED |= {"signature", "pid", "interpreter"}


def test_any_value_of_another_kind_is_refused_by_its_name(answer: dict[str, Any]) -> None:
    tried = 0
    for path in places(answer):
        if path[-1] in IGNORED:
            continue
        for wrong in (1.5, "\ud800\x1b[31m", -7, {"a": []}, [None], True, None):
            changed = json.loads(json.dumps(answer))
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            if inner[path[-1]] is None or type(wrong) is type(inner[path[-1]]):
                continue
            inner[path[-1]] = wrong
            tried += 1
            try:
                snapshot_in(changed)
            except Damaged:
                continue
            assert wrong is None or path[-1] == "order", path
    assert tried > 100


def test_any_key_that_is_missing_is_refused_or_not_needed(answer: dict[str, Any]) -> None:
    for path in places(answer):
        if isinstance(path[-1], str) and path[-1] not in IGNORED:
            changed = json.loads(json.dumps(answer))
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            del inner[path[-1]]
            with pytest.raises(Damaged, match=r"missing|no answer of"):
                snapshot_in(changed)


DAMAGED = {
    "empty": (b"", "no JSON"),
    "no text": (b"\xff\xfe\x00\xd8", "no JSON"),
    "cut off": (b'{"format": 2, "operators": [', "no JSON"),
    "deep": (b"[" * 1_000_000, "nested too deep|no JSON"),
    "long number": (b'{"operators": ' + b"1" * 10_000 + b"}", "no JSON"),
    "a list": (b"[]", "no answer of mdispatch ls"),
    "another answer": (b'{"format": 2, "verdict": "same"}', "no answer of mdispatch ls"),
    "another format": (b'{"format": 3, "complete": true, "operators": []}', "its format is 3"),
    "older": (b'{"format": 2, "operators": []}', "complete is missing"),
    "a part": (b'{"format": 2, "complete": false, "operators": []}', "without patterns"),
    "nothing": (
        b'{"format": 2, "complete": true, "operators": [], "fallbacks": [], "others": []}',
        "no operators",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_status_2_with_words(tmp_path: Path, name: str) -> None:
    data, words = DAMAGED[name]
    (tmp_path / "old.json").write_bytes(data)
    done = mdispatch("diff", "old.json", "old.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(f"^mdispatch: OLD, the file old.json: .*({words})", done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("schema", "shop::f(", "operators[0].schema is 'shop::f(', and no schema"),
        ("schema", "shop::g() -> ()", "operators[0].schema is of shop::g, and not of shop::f"),
        ("position", None, "operators[0].position is None, which is none of this operator"),
        ("position", -1, "operators[0].position is -1"),
        ("tags", ["a", 1], "operators[0].tags has 1, and not texts alone"),
        ("kernels", [7], "operators[0].kernels[0] is 7, and not an object"),
    ],
)
def test_what_is_wrong_is_named(answer: dict[str, Any], key: str, value: Any, words: str) -> None:
    changed = json.loads(json.dumps(answer))
    changed["operators"][0][key] = value
    with pytest.raises(Damaged, match=re.escape(words)):
        snapshot_in(changed)


def test_an_operator_that_is_there_twice_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(Damaged, match="shop::f is in 'operators' twice"):
        snapshot_in({**answer, "operators": answer["operators"] * 2})


def test_names_that_would_steer_a_terminal_do_not(tmp_path: Path, answer: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(answer))
    changed["operators"][0]["kernels"][0]["location"]["where"] = "\x1b[31mred\ud800\n"
    changed["operators"][0]["kernels"][0]["provider"] = "\x1b[2J"
    (tmp_path / "old.json").write_text(json.dumps(answer))
    (tmp_path / "new.json").write_text(json.dumps(changed))
    done = mdispatch("diff", "old.json", "new.json", cwd=tmp_path)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "\\x1b[31mred" in done.stdout


# --- the command ----------------------------------------------------------------------------------

OLD = """
import mdispatch as md
lib = md.Library("shop", "DEF")
lib.define("price(float amount, float tax=0.19) -> float")
lib.define("scale(Tensor x) -> Tensor")
print("said by a module")
"""
BROKEN = OLD.replace("0.19", "0.16")
MORE = OLD.replace("Tensor x)", "Tensor x, *, int k=1)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions")
    for name, text in (("shop_old", OLD), ("shop_broken", BROKEN), ("shop_more", MORE)):
        (folder / f"{name}.py").write_text(text)
        done = mdispatch("ls", "--json", "--import", name, cwd=folder)
        (folder / f"{name}.json").write_text(done.stdout)
    (folder / "fails.py").write_text("raise RuntimeError('never works')\n")
    (folder / "nothing.py").write_text("import mdispatch\n")
    (folder / "tax.py").write_text('import mdispatch as md\nmd.define("tax::f", "() -> ()")\n')
    return folder


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[str]:
    """The name of a registry in which a process of its own has registered OLD, and nothing else."""
    name = f"d{secrets.token_hex(5)}"
    with subprocess.Popen(
        [sys.executable, "-c", "import shop_old; print('there', flush=True); input()"],
        cwd=folder,
        env=environment(MDISPATCH_REGISTRY=f"elect:{name}"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "said by a module\n"
        assert process.stdout.readline() == "there\n"
        yield name
        process.communicate("\n", timeout=limit(60))


@pytest.mark.parametrize(
    ("new", "status", "verdict", "texts"),
    [
        ("shop_old", 0, "same", []),
        ("shop_more", 0, "compatible", ["argument 'int k=1' is only in NEW, by keyword"]),
        ("shop_broken", 1, "breaking", ["the default of 'tax' is 0.19 in OLD, 0.16 in NEW"]),
    ],
)
@pytest.mark.parametrize("kind", ["registry", "modules", "file"])
def test_each_kind_of_source(
    folder: Path,
    running: str,
    kind: str,
    new: str,
    status: int,
    verdict: str,
    texts: list[str],
) -> None:
    old = {"registry": running, "modules": "shop_old", "file": "shop_old.json"}[kind]
    done = mdispatch("diff", old, f"{new}.json", "--json", cwd=folder)
    answer = json.loads(done.stdout)
    assert strangers("diff", answer) == []
    assert (done.returncode, answer["verdict"], answer["fails"]) == (status, verdict, status == 1)
    assert [each["text"] for each in answer["differences"]] == texts
    assert answer["old"] == {"kind": kind, "name": old, "operators": 2}
    assert answer["new"] == {"kind": "file", "name": f"{new}.json", "operators": 2}
    for each in answer["differences"]:
        assert re.search(r"shop_old\.py:\d", each["old"])
        assert re.search(rf"{new}\.py:\d", each["new"])
    assert ("said by a module" in done.stderr) == (kind == "modules")


def test_modules_on_both_sides_have_a_process_and_a_registry_each(folder: Path) -> None:
    """They define the same names, and a registry would refuse the second ones."""
    done = mdispatch("diff", "shop_old", "shop_broken", cwd=folder, process=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("Breaking: 1 difference breaks what works with OLD.\n")
    done = mdispatch("diff", "shop_old,tax", "shop_old", "--json", cwd=folder)
    assert [each["rule"] for each in json.loads(done.stdout)["differences"]] == ["operator-removed"]


@pytest.mark.parametrize(
    ("new", "fail", "status"),
    [
        ("shop_old", "compatible", 0),
        ("shop_old", "breaking", 0),
        ("shop_more", "compatible", 1),
        ("shop_more", "breaking", 0),
        ("shop_broken", "compatible", 1),
        ("shop_broken", "breaking", 1),
    ],
)
def test_fail_is_the_gate(folder: Path, new: str, fail: str, status: int) -> None:
    done = mdispatch("diff", "shop_old.json", f"{new}.json", "--fail", fail, cwd=folder)
    assert done.returncode == status
    assert done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("nowhere", "shop_old.json"),
            "there is no registry, no module and no file called nowhere",
        ),
        (("shop_olt.json", "shop_old.json"), "OLD, the file shop_olt.json: No such file"),
        (("shop_old.json", "fails"), "NEW, the module fails: the import failed in a process"),
        (("shop_old.json", "shop_old,lost"), "NEW, the modules shop_old, lost: the import failed"),
        (("nothing", "shop_old.json"), "OLD, the module nothing: it registers nothing"),
        (("shop_old.py", "shop_old.json"), "the source of a module. Is it 'shop_old'?"),
        (("./shop_old.py", "shop_old.json"), "the source of a module. Is it 'shop_old'?"),
        (("shm:no-such", "shop_old.json"), "there is no registry 'shm:no-such'"),
        (("shop_old,a-b", "shop_old.json"), "'a-b' is not the name of a module"),
        (("shop_old.json",), "Missing argument 'NEW'"),
        (("shop_old.json", "shop_old.json", "--fail", "same"), "'same' is not one of"),
        (("shop_old.json", "shop_old.json", "--only", "tax"), "no operator fits tax in OLD"),
        ((".", "shop_old.json"), "there is no registry, no module and no file called ."),
        (("./", "shop_old.json"), "Is a directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_without_an_answer_the_status_is_2_with_words(
    folder: Path, words: tuple[str, ...], told: str
) -> None:
    done = mdispatch("diff", *words, cwd=folder, COLUMNS="300")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in " ".join(done.stderr.split())


def test_a_word_that_can_be_two_things_has_to_say_which(folder: Path) -> None:
    name = f"both{secrets.token_hex(4)}"
    (folder / f"{name}.py").write_text(BROKEN)
    shutil.copy(folder / "shop_more.json", folder / name)
    with md.Registry.create(name, capacity=1 << 20) as registry:
        md.Library("shop", "DEF", registry=registry).define("price(float amount) -> float")
        done = mdispatch("diff", name, "shop_old.json", cwd=folder, COLUMNS="300")
        assert done.returncode == 2
        ways = [f"shm:{name}", f"module:{name}", f"./{name}"]
        assert f"is a registry and a module and a file. Say {' or '.join(ways)}." in done.stderr
        kinds = []
        for way in ways:
            answer = json.loads(mdispatch("diff", way, way, "--json", cwd=folder).stdout)
            assert answer["verdict"] == "same"
            kinds.append(answer["old"]["kind"])
        assert kinds == ["registry", "modules", "file"]


def test_only_some_operators_are_compared(folder: Path) -> None:
    for pattern, status in (("shop::price", 1), ("shop::scale", 0), ("sh*", 1), ("shop", 1)):
        words = ("shop_old.json", "shop_broken.json", "--only", pattern)
        assert mdispatch("diff", *words, cwd=folder).returncode == status
    words = ("shop_old,tax", "shop_old", "--only", "shop")
    assert mdispatch("diff", *words, "--fail", "compatible", cwd=folder).returncode == 0


def test_only_keeps_what_is_about_a_namespace() -> None:
    others = [Other("class", "shop.T", "", ""), Other("class", "text.T", "", "")]
    others += [Other("priority", "shop::*", "x", ""), Other("type", "shop.X", "CPU", "")]
    found = Snapshot((ALONE,), (Fallback("CPU", "f", False, ""),), tuple(others)).only(["shop"])
    assert found == Snapshot((ALONE,), (), (others[0], others[2]))


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_the_text_is_as_wide_as_a_terminal(folder: Path, columns: int) -> None:
    done = on_terminal(
        "diff", "shop_old.json", "shop_broken.json", columns=columns, cwd=folder, apart=True
    )
    text = without_style(done.stdout)
    assert max(map(len, text.splitlines())) <= columns
    lines = text.splitlines()
    assert lines[0].startswith("Breaking: 1 difference")
    assert "in OLD, 0.16 in NEW" in " ".join(text.split())
    assert [line for line in lines if line.startswith("    OLD")] == ["    OLD  shop_old.py:4"]
    assert [line for line in lines if line.startswith("    NEW")] == ["    NEW  shop_broken.py:4"]


def test_breaking_differences_come_first(folder: Path) -> None:
    (folder / "mixed.py").write_text(MORE.replace("0.19", "0.16") + 'lib.define("a() -> ()")\n')
    told = mdispatch("diff", "shop_old", "mixed", cwd=folder)
    text = told.stdout
    order = ["Breaking: 1 ", "2 more are compatible", "\nBreaking\n  shop::price", "\nCompatible\n"]
    order += ["  shop::a: ", "  shop::scale: ", "elect:NAME@{env:RELEASE}"]
    found = [" ".join(text.split()).find(" ".join(each.split())) for each in order]
    assert -1 not in found, told.stderr
    assert found == sorted(found)


def test_an_interrupt_is_status_130_and_ends_the_import(folder: Path) -> None:
    (folder / "hangs.py").write_text(
        "import os, time\nprint('begun', file=open('alive', 'w'), flush=True)\ntime.sleep(600)\n"
    )
    os.mkfifo(folder / "alive")
    process = subprocess.Popen(
        [sys.executable, "-m", "mdispatch", "diff", "hangs", "shop_old.json"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    with open(folder / "alive") as alive:
        assert alive.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=limit(60))
        assert (process.returncode, out) == (130, "")
        assert alive.read() == ""  # nobody has it open any more


# --- the page -------------------------------------------------------------------------------------


def test_the_page_has_the_tables() -> None:
    """If this fails, run python docs/rules.py."""
    spec = importlib.util.spec_from_file_location("rules_page", ROOT / "docs" / "rules.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    assert page.page(PAGE.read_text()) == PAGE.read_text()
    for name in ALL_RULES:
        assert PAGE.read_text().count(f"| `{name}` |") == 1


def test_rules_are_sentences() -> None:
    for rule in RULES.values():
        assert re.fullmatch(r"[a-z][^|\n]*[^.]", rule.change)
        assert re.fullmatch(r"[A-Z][^|\n]*\.", rule.why)
        assert rule.verdict in (COMPATIBLE, BREAKING)


def versions_of_the_page(folder: Path) -> None:
    """Writes shop.py, and next/shop.py as the page changes it."""
    text = PAGE.read_text()
    (code,) = re.findall(r"^```python\n(# shop\.py\n.*?)^```", text, re.M | re.S)
    (change,) = re.findall(r"^```diff\n(.*?)^```", text, re.M | re.S)
    (folder / "shop.py").write_text(code)
    for old, new in re.findall(r"^-(.*\n)((?:^\+.*\n)+)", change, re.M):
        assert code.count(old) == 1
        code = code.replace(old, re.sub(r"^\+", "", new, flags=re.M))
    (folder / "next").mkdir()
    (folder / "next" / "shop.py").write_text(code)


def test_the_examples_of_the_page_are_what_comes_out(tmp_path: Path) -> None:
    versions_of_the_page(tmp_path)
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    commands = [
        each
        for block in blocks
        for each in re.findall(r"^\$ (.*?)\n(.*?)^\[(\d+)\]$", block, re.M | re.S)
    ]
    assert len(commands) >= 3
    cwd = tmp_path
    for line, expected, status in commands:
        if line.startswith("cd "):
            cwd = cwd / line.removeprefix("cd ")
            continue
        words, _, file = line.removeprefix("mdispatch ").partition(" > ")
        done = mdispatch(*words.split(), cwd=cwd)
        assert done.returncode == int(status), done.stderr
        if file:
            (cwd / file).write_text(done.stdout)
        else:
            assert done.stdout.replace(f"{tmp_path}/", "/home/ann/") == expected


@pytest.mark.needs("choices")
@pytest.mark.shared
def test_agreements_of_two_registries_are_compared(tmp_path: Path) -> None:
    names = f"diff-a-{os.getpid()}", f"diff-b-{os.getpid()}"
    with contextlib.ExitStack() as stack:
        for at, name in enumerate(names):
            registry = stack.enter_context(md.Registry.create(name, capacity=1 << 22))
            md.Library("own", "DEF", registry=registry).define("f(int a) -> int")
            md.agree("engine", {"tokens": 4096 + at, "same": 1}, keep=True, registry=registry)
            md.agree("flags", (1, 2), follow=True, registry=registry)
            with md.agreeing("steps", registry=registry) as steps:
                steps.agree(at, at)
            md.roll_call(expected=1, registry=registry)
        saved = mdispatch("ls", "--json", "--registry", names[0]).stdout
        (tmp_path / "old.json").write_text(saved)
        told = "engine: tokens is 4096 in OLD, 4097 in NEW\n"
        for old in (names[0], str(tmp_path / "old.json")):
            done = mdispatch("diff", old, names[1])
            assert (done.returncode, done.stdout.count("NEW  ")) == (1, 1)
            assert told in done.stdout
        assert mdispatch("diff", names[0], str(tmp_path / "old.json")).returncode == 0
