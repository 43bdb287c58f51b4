"""Calls from a stack: the last elements are the arguments, and the results replace them."""

from __future__ import annotations

import pytest

import mdispatch as md
from mdispatch import errors


class Array:
    def __init__(self, *keys):
        self.__dispatch_keys__ = keys or ("CPU",)


CPU, CUDA = Array("CPU"), Array("CUDA")
Keys = md.DispatchKeySet


@pytest.fixture
def define(registry, lib):
    """Defines s::f with one kernel at CPU. Returns the operator."""

    def make(schema, kernel, key="CPU"):
        name = lib.define(schema)
        lib.impl(name, kernel, key)
        packet, _, overload = name.removeprefix("s::").partition(".")
        return getattr(getattr(registry.ops.s, packet), overload or "default")

    return make


@pytest.fixture(params=["call_boxed", "redispatch_boxed"])
def run(request):
    """Calls the operator from a stack in either way. Returns the stack."""

    def boxed(operator, stack, keys=("CPU",)):
        if request.param == "call_boxed":
            operator.call_boxed(stack)
        else:
            operator.redispatch_boxed(Keys(keys), stack)
        return stack

    return boxed


def test_the_last_elements_are_the_arguments_and_what_lies_below_stays(define, run):
    f = define("f(Tensor x, int n) -> int", lambda x, n: n + 1)
    below = object()
    assert run(f, [below, CPU, 3]) == [below, 4]
    assert run(f, [CPU, 3]) == [4]


@pytest.mark.parametrize(
    ("returns", "result", "pushed"),
    [
        ("()", None, []),
        ("int", 5, [5]),
        ("Any", (1, 2), [(1, 2)]),
        ("int?", None, [None]),
        ("float", 1, [1.0]),
        ("int[]", [1, 2], [[1, 2]]),
        ("(int, str)", (1, "a"), [1, "a"]),
        ("(int, str)", [1, "a"], [1, "a"]),
        ("...", (), []),
        ("...", [1, 2, 3], [1, 2, 3]),
        ("(int, ...)", (1,), [1]),
        ("(int, ...)", (1, 2, 3), [1, 2, 3]),
    ],
)
def test_as_many_values_are_pushed_as_the_schema_returns(define, run, returns, result, pushed):
    f = define(f"f(Tensor x) -> {returns}", lambda x: result)
    assert run(f, ["below", CPU]) == ["below", *pushed]


@pytest.mark.parametrize(
    ("returns", "result", "words"),
    [
        ("()", 5, "returned 5, not None"),
        ("()", (), "0 values, not None"),
        ("(int, int)", 5, "5, not a tuple of 2"),
        ("(int, int)", None, "None, not a tuple of 2"),
        ("(int, int)", (1,), "1 values, not a tuple of 2"),
        ("(int, int)", (1, 2, 3), "3 values, not a tuple of 2"),
        ("(int, ...)", (), "0 values, not a tuple of at least 1"),
        ("...", 5, "5, not a tuple of at least 0"),
    ],
)
def test_another_number_of_values_is_refused_with_the_schema(define, run, returns, result, words):
    f = define(f"f(Tensor x) -> {returns}", lambda x: result)
    stack = ["below", CPU]
    with pytest.raises(errors.ReturnValueError) as caught:
        run(f, stack)
    assert stack == ["below", CPU]
    assert words in str(caught.value)
    assert f"s::f(Tensor x) -> {returns}" in str(caught.value)
    assert caught.value.operator == "s::f"
    assert str(caught.value.schema) == f"s::f(Tensor x) -> {returns}"
    assert isinstance(caught.value, TypeError)


def test_keyword_only_arguments_lie_where_the_schema_has_them(define, run):
    f = define(
        "f(Tensor x, int a=1, *, int b=2, str c) -> Any", lambda *args, **kwargs: (args, kwargs)
    )
    assert run(f, [CPU, 5, 6, "c"]) == [((CPU, 5), {"b": 6, "c": "c"})]


def test_arguments_are_converted_and_lists_are_the_kernels_own(define, run):
    def kernel(x, ys, n, f):
        ys.append("mine")
        return ys, n, f

    g = define("g(Tensor x, Tensor[] ys, int[2] n, float f) -> (Any, int[], float)", kernel)
    given = [CPU]
    (ys, n, f) = run(g, [CPU, given, 7, 2])
    assert (ys, n, f, type(f)) == ([CPU, "mine"], [7, 7], 2.0, float)
    assert given == [CPU]


def test_an_operator_without_arguments_takes_none_and_pushes(define, run):
    f = define("f() -> int", lambda: 7, "CompositeExplicitAutograd")
    assert run(f, [1, 2]) == [1, 2, 7]
    assert run(f, []) == [7]


def test_the_keys_of_the_arguments_or_those_given_choose_the_kernel(define, lib):
    f = define("f(Tensor x, Tensor?[] ys, *, Tensor? z) -> str", lambda x, ys, z: "CPU")
    lib.impl("f", lambda x, ys, z: "CUDA", "CUDA")
    for arguments in ([CUDA, [], None], [CPU, [None, CUDA], None], [CPU, [], CUDA]):
        called, redispatched = list(arguments), list(arguments)
        f.call_boxed(called)
        f.redispatch_boxed(Keys("CPU"), redispatched)
        assert (called, redispatched) == (["CUDA"], ["CPU"])


def test_an_operator_calls_another_on_the_same_stack(define, run):
    """Elements that a kernel pushes are above its arguments, and stay above its results."""
    stack = []

    def outer(x):
        stack.append(20)
        inner.call_boxed(stack)
        return "outer"

    inner = define("inner(int n) -> (int, int)", lambda n: (n, n + 1), "CompositeExplicitAutograd")
    f = define("f(Tensor x) -> str", outer)
    stack += ["below", CPU]
    assert run(f, stack) == ["below", "outer", 20, 21]


# --- what fails leaves the stack as it was --------------------------------------------------------


class OwnError(Exception):
    pass


def raises(*args):
    raise OwnError


@pytest.mark.parametrize(
    ("stack", "error", "words"),
    [
        ([], errors.ArgumentError, "takes 2 arguments, but the stack holds 0"),
        ([CPU], errors.ArgumentError, "takes 2 arguments, but the stack holds 1"),
        ([CPU, "3"], errors.ArgumentError, "takes int for 'n', not str"),
        ([CPU, None], errors.ArgumentError, "takes int for 'n', not NoneType"),
        ([3, CPU], errors.ArgumentError, "takes Tensor for 'x', not int"),
        ((CPU, 3), errors.ArgumentError, "takes its arguments from a list, not from a tuple"),
        (None, errors.ArgumentError, "takes its arguments from a list, not from a NoneType"),
        (["below", CPU, 3], OwnError, ""),
    ],
)
def test_what_fails_leaves_the_stack_as_it_was(define, run, stack, error, words):
    f = define("f(Tensor x, int n) -> int", raises)
    before = list(stack) if isinstance(stack, list) else stack
    with pytest.raises(error) as caught:
        run(f, stack)
    assert stack == before
    assert words in str(caught.value)
    if words:
        assert "s::f(Tensor x, int n) -> int" in str(caught.value)
        assert caught.value.operator == "s::f"


def test_a_missing_kernel_or_operator_leaves_the_stack_as_it_was(define, run, lib):
    f = define("f(Tensor x) -> int", raises, "CUDA")
    stack = ["below", CPU]
    with pytest.raises(errors.MissingKernelError):
        run(f, stack)
    lib.close()
    with pytest.raises(errors.OperatorGoneError):
        run(f, stack)
    assert stack == ["below", CPU]


def test_of_any_number_of_arguments_a_stack_cannot_tell_which_are_meant(define, run):
    f = define("f(Tensor x, ...) -> int", raises)
    stack = [CPU, CPU]
    with pytest.raises(errors.ArgumentError, match="cannot know how many to take"):
        run(f, stack)
    assert stack == [CPU, CPU]
