"""A call that C begins and Python makes leaves nothing behind."""

from __future__ import annotations

import sys

import pytest

MARK = 10**30  # no other code holds it


class Index:
    def __index__(self):
        return 7


class Handled:
    __dispatch_keys__ = "CPU"

    @classmethod
    def __md_dispatch__(cls, operator, types, args, kwargs):
        return "handled"


class Array:
    __dispatch_keys__ = "CPU"


@pytest.mark.parametrize(
    ("schema", "rest", "answer"),
    [
        ("f(int[] xs, Tensor x, int i) -> str", (Array(), Index()), "ran"),
        ("f(int[] xs, Tensor x) -> str", (Handled(),), "handled"),
        ("f(int[] xs, int[] ys, Tensor x, int i) -> str", ((MARK,), Array(), Index()), "ran"),
    ],
    ids=["an argument that is not plain", "a value that answers itself", "two lists"],
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_the_lists_of_a_call_that_goes_on_to_python_are_given_back(
    schema, rest, answer, kind, registry, lib
):
    lib.define(schema)
    lib.impl("f", lambda *args: "ran", "CPU")
    f, xs = registry.ops.s.f.default, kind([MARK, MARK])
    assert f(xs, *rest) == answer
    before = sys.getrefcount(MARK)
    for _ in range(100):
        assert f(xs, *rest) == answer
    assert sys.getrefcount(MARK) < before + 100


def test_the_default_lists_of_such_a_call_are_given_back(registry, lib):
    lib.define("f(Tensor x, int[] xs=[1, 2], *, int i) -> str")
    lib.impl("f", lambda *args, **kwargs: "ran", "CPU")
    f, x, i = registry.ops.s.f.default, Array(), Index()
    for _ in range(50):
        assert f(x, i=i) == "ran"
    before = sys.getallocatedblocks()
    for _ in range(1000):
        f(x, i=i)
    assert sys.getallocatedblocks() < before + 900
