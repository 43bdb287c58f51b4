"""No loop goes back by a condition where a lock is held, or anything else that has to be given
back.

CPython 3.12 and 3.13 compile such a loop with a jump of its own, which the table of exceptions does
not have: what a signal handler raises there (Ctrl-C) passes by the `with` and the `finally` around
it, and the lock stays taken for ever. 3.13 runs handlers at that jump. (flowgraph.c,
normalize_jumps_in_block: the block that it makes gets no handler.) The loops are:

- a comprehension with an `if`: write a generator, ``[*(x for x in ... if ...)]``, which has a frame
  of its own, or call a function;
- ``while condition``: write ``while True``, and leave the loop by an `if` in its middle;
- one that ends with an `if`, `assert` or `match`: ask for the opposite, and `continue`.
"""

from __future__ import annotations

import ast
import dis
from pathlib import Path
from types import CodeType

import pytest

import mdispatch as md

PACKAGE = Path(md.__file__).resolve().parent
FILES = sorted(PACKAGE.rglob("*.py"))

_OTHER_FRAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.GeneratorExp)
_FILTERED = (ast.ListComp, ast.SetComp, ast.DictComp)
_LOOPS = (ast.For, ast.While, *_FILTERED)


def goes_back_by_a_condition(node):
    if isinstance(node, _FILTERED):
        return any(each.ifs for each in node.generators)
    if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
        return True
    return isinstance(node, (ast.For, ast.While)) and ends_with_a_condition(node.body)


def ends_with_a_condition(body):
    """Whether a block may end with a condition that has not held."""
    last = body[-1]
    if isinstance(last, ast.If):
        others = last.orelse
        return not others or ends_with_a_condition(last.body) or ends_with_a_condition(others)
    return isinstance(last, (ast.Assert, ast.Match))


def protected(tree):
    """The statements in each `with`, and in each `try` that has a `finally`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With):
            yield from node.body
        elif isinstance(node, ast.Try) and node.finalbody:
            yield from node.body + [each for one in node.handlers for each in one.body]
            yield from node.orelse


def loops(source):
    """The lines of the loops that are not allowed."""

    def look(node):
        if goes_back_by_a_condition(node):
            found.add(node.lineno)
        if not isinstance(node, _OTHER_FRAMES):
            for each in ast.iter_child_nodes(node):
                look(each)

    found: set[int] = set()
    for statement in protected(ast.parse(source)):
        look(statement)
    return sorted(found)


def codes(code):
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


def uncovered(source):
    """The lines within a `with` where this Python has a jump back that no handler covers."""
    blocks = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.With)
        and any(isinstance(each, _LOOPS) for one in node.body for each in ast.walk(one))
    ]
    if not blocks:
        return []
    lines = set()
    for code in codes(compile(source, "source", "exec")):
        found = set()
        inside = {
            line
            for node in blocks
            if node.lineno >= code.co_firstlineno and code.co_name != "<genexpr>"
            for line in range(node.body[0].lineno, node.body[-1].end_lineno + 1)
        }
        table = dis.Bytecode(code).exception_entries
        for each in dis.Bytecode(code):
            is_covered = any(entry.start <= each.offset < entry.end for entry in table)
            if each.opname == "JUMP_BACKWARD" and not is_covered:
                found.add(each.positions.lineno)
        lines |= found & inside
    return sorted(lines)


@pytest.mark.lint
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_loop_goes_back_by_a_condition_where_something_is_held(path):
    source = path.read_text()
    assert loops(source) == []
    assert uncovered(source) == []


@pytest.mark.lint
@pytest.mark.parametrize(
    "loop",
    [
        "a = [x for x in xs if x]",
        "a = {x for y in xs if y for x in y}",
        "f(1, {x: 1 for x in xs if x})",
        "while xs: f()",
        "while True:\n  if f(): break",
        "for x in xs:\n  if x: f()",
        "for x in xs:\n  if x: f()\n  elif xs: g()",
        "for x in xs:\n  f()\n  assert x",
        "for x in xs:\n  match x:\n   case 1: f()",
        "if xs:\n  for x in xs:\n   if x:\n    f()",
    ],
)
def test_the_rule_finds_such_a_loop(loop):
    for head, end in (("with lock:", ""), ("try:", "finally: f()")):
        text = "\n".join(["def g(lock, xs, f, h):", f" {head}"])
        body = "".join(f"\n  {line}" for line in loop.splitlines())
        assert loops(f"{text}{body}\n {end}") != []
        assert loops(f"def g(lock, xs, f, h):\n if xs:{body}") == []


@pytest.mark.lint
def test_the_rule_allows_what_jumps_back_in_any_case():
    allowed = """
def g(lock, xs, f):
    with lock:
        a = [*(x for x in xs if x)]
        b = [x or 1 for x in xs]
        for x in xs:
            if not x:
                continue
            f(x)
        while True:
            if f():
                break
            f(a, b)
        for x in xs:
            if x:
                f()
            else:
                f(x)
    c = [x for x in xs if x]
    while c:
        c.pop()
"""
    assert loops(allowed) == uncovered(allowed) == []
