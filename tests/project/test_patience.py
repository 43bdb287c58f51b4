"""Limits of time in tests scale by one variable: tests/support/patience.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.lint

TESTS = Path(__file__).resolve().parents[1]
#: Shorter ones are what a test is about, and run_main's is made longer where it is used.
LONG = 10
SCALED = ("run_main",)
WAITS = ("wait", "join", "result", "get", "exception", "communicate", "alarm")
IN_TEXT = re.compile(
    rf"(?:\.(?:{'|'.join(WAITS)})\((?:timeout=)?|\btimeout=|monotonic\(\) \+ )\d\d"
)


def is_long(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | float)
        and node.value >= LONG
    )


def own_limits(source: str) -> list[str]:
    """The limits of time in code, and in the texts that it has other processes run."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            given = [word.value for word in node.keywords if word.arg == "timeout"]
            given += node.args[:1] if name in WAITS else []
            if name not in SCALED and any(map(is_long, given)):
                found.append(ast.unparse(node))
        elif isinstance(node, ast.BinOp) and is_long(node.right):
            found += [text for text in [ast.unparse(node)] if "monotonic() + " in text]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += IN_TEXT.findall(node.value)
    return found


@pytest.mark.parametrize(
    "source",
    [
        "thread.join(30)",
        "subprocess.run(command, timeout=60)",
        "end = time.monotonic() + 20",
        "run_main('assert inside.wait(20)', timeout=30)",
        'run_main(\'with md.Library("shop", "DEF", timeout=30.0): pass\')',
    ],
)
def test_a_limit_of_its_own_is_found(source):
    assert len(own_limits(source)) == 1


@pytest.mark.parametrize("path", sorted(TESTS.rglob("*.py")), ids=lambda path: path.stem)
def test_no_test_has_a_limit_of_time_of_its_own(path):
    """Write ``limit(30)``, which is 30 s, or more where MDISPATCH_TEST_PATIENCE says so."""
    if path != Path(__file__).resolve():
        assert own_limits(path.read_text()) == []
