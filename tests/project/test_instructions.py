"""What counts instructions: its operations run, and only what is slower wherever its objects lie is
red. Callgrind itself is not needed here.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [pytest.mark.either_binding, pytest.mark.specification]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def instructions(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return import_module("benchmarks.instructions")


class Counting:
    """Notes what counting.c would tell callgrind."""

    def __init__(self, steps: list[str]) -> None:
        for step in ("begin", "pause", "forget", "write_down"):
            setattr(self, step, partial(steps.append, step))


@pytest.mark.shared
def test_every_operation_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.delitem(sys.modules, "benchmarks.operations", raising=False)
    operations = import_module("benchmarks.operations")
    told = operations.run(Counting([]))
    problems = {name: problem for name, _, problem in told if problem}
    if find_spec("numpy") is None:
        assert problems.pop("call, array of NumPy").startswith("ModuleNotFoundError")
    assert problems == {}
    assert len({name for name, _, _ in told}) == len(operations.OPERATIONS) == 30
    # `Instructions: OPERATION: REASON` has to tell the two apart.
    assert [name for name, _, _ in told if ": " in name] == []


def test_what_cannot_run_is_told_and_the_others_go_on(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    operations = import_module("benchmarks.operations")
    steps: list[str] = []

    def refused():
        raise ValueError("no such thing")

    def fine():
        return lambda: steps.append("work")

    monkeypatch.setattr(
        operations,
        "OPERATIONS",
        [("a", 1, refused, ""), ("b", 2, fine, ""), ("c", 1, fine, "json")],
    )
    told = operations.run(Counting(steps))
    assert told == [("a", 1, "ValueError: no such thing"), ("b", 2, ""), ("c", 1, "")]
    counted = ["forget", "work", "write_down"]
    # What a process does once does not get warm; what it needs is not counted.
    assert steps == ["begin", "work", *counted, "pause", "begin", *counted]


def layouts(*pairs):
    """Counts of both sides, layout by layout, and the layouts and names that were asked for."""
    asked: list[tuple[int, list[str]]] = []

    def pair(layout, names):
        asked.append((layout, [*names]))
        return pairs[layout]

    return pair, asked


def test_what_is_slower_in_both_layouts_of_memory_is_red(instructions):
    pair, asked = layouts(
        ({"a": 100.0, "b": 100.0}, {"a": 103.0, "b": 100.9}),
        ({"a": 110.0}, {"a": 112.0}),
    )
    base, head, over = instructions.slower(pair)
    assert asked == [(0, []), (1, ["a"])]
    lines, red = instructions.compared(base, head, over, {})
    assert red == 1
    assert "+3.0000 %, in another layout of memory +1.8182 %  RED" in lines[1]
    assert "RED" not in lines[2]


def test_what_is_slower_in_one_layout_only_is_shown_and_not_red(instructions):
    pair, asked = layouts(({"a": 100.0}, {"a": 103.0}), ({"a": 103.0}, {"a": 103.5}))
    base, head, over = instructions.slower(pair)
    assert asked == [(0, []), (1, ["a"])]
    lines, red = instructions.compared(base, head, over, {})
    assert red == 0
    assert lines[1].endswith("+3.0000 %, in another layout of memory +0.4854 %")


def test_a_reason_in_the_body_of_a_commit_is_one_for_that_operation(instructions):
    why = instructions.reasons(
        "Faster imports\n\nInstructions: a, with: it checks more\n\nmore\nInstructions: b:\n"
    )
    assert why == {"a, with": "it checks more"}
    base, head = {"a, with": 100.0, "b": 100.0}, {"a, with": 103.0, "b": 103.0}
    lines, red = instructions.compared(base, head, {"a, with": 0.03, "b": 0.03}, why)
    assert red == 1
    assert "because: it checks more" in lines[1]
    assert "RED" in lines[2]


def test_less_is_fine_and_what_the_base_lacks_is_new_and_what_the_head_lacks_is_red(instructions):
    base = {"less": 100.0, "new": "AttributeError: no", "gone": 100.0}
    head = {"less": 50.0, "new": 7.0, "gone": "AttributeError: no"}
    lines, red = instructions.compared(base, head, {}, {})
    assert red == 1
    assert "-50.0000 %" in lines[1]
    assert "new" in lines[2]
    assert "(AttributeError: no)" in lines[2]
    assert "RED: it cannot run: AttributeError: no" in lines[3]
