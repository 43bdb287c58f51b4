"""An operator object stands for one definition and is gone for ever when that ends. But when the
module is run again and makes the same definition, the object goes on.
"""

from __future__ import annotations

import itertools
import sys
import threading

import pytest
from kinds import until
from runs import in_another_run

import mdispatch as md
from mdispatch import errors

Keys = md.DispatchKeySet


class Array:
    __dispatch_keys__ = "CPU"


CPU = Array()


def says(word):
    return lambda *args: word


def opened(registry):
    return md.Library("s", "DEF", registry=registry)


def open_again(registry):
    """Each time in another run of this module, so it is always the same library."""
    return in_another_run(opened)(registry)


def elsewhere(registry, kind="FRAGMENT"):
    return md.Library("s", kind, registry=registry)


@pytest.fixture
def library(registry):
    """Opens the library, or opens it again, with definitions and with kernels that return a
    word.
    """

    def open_with(*schemas, word="first", **attributes):
        lib = open_again(registry)
        for schema in schemas:
            lib.impl(lib.define(schema, **attributes), says(word), "CPU")
        return lib

    return open_with


@pytest.fixture(autouse=True)
def every_test_leaves_a_sound_registry(registry):
    yield
    registry.check_invariants()


USES = {
    "call": lambda f: f(CPU),
    "call of nothing": lambda f: f(),
    "call_with_keyset": lambda f: f.call_with_keyset(Keys("CPU"), CPU),
    "redispatch": lambda f: f.redispatch(Keys("CPU"), CPU),
    "call_for_dispatch_key": lambda f: f.call_for_dispatch_key("CPU", CPU),
    "call_boxed": lambda f: f.call_boxed([CPU]),
    "redispatch_boxed": lambda f: f.redispatch_boxed(Keys("CPU"), [CPU]),
    "schema": lambda f: f.schema,
    "tags": lambda f: f.tags,
}


def is_gone(operator):
    """Whether every use says that the operator is gone; False when none does."""
    outcomes = set()
    for use in USES.values():
        try:
            use(operator)
        except errors.OperatorGoneError as error:
            outcomes.add((True, error.operator))
        except errors.ArgumentError:
            outcomes.add((False, operator.name))
        else:
            outcomes.add((False, operator.name))
    assert outcomes == {(operator.is_gone, operator.name)}
    return operator.is_gone


# --- gone for ever --------------------------------------------------------------------------------


def test_what_was_closed_is_gone_in_every_use_and_still_has_its_name(registry, library):
    lib = library("f.out(Tensor x) -> str")
    f = registry.ops.s.f.out
    assert not is_gone(f)
    lib.close()
    assert is_gone(f)
    assert f.name == f.__name__ == "s::f.out"
    assert "s::f.out" in repr(f)
    with pytest.raises(errors.OperatorGoneError, match="look the operator up again"):
        f(CPU)


@pytest.mark.parametrize("schema", ["f(Tensor x) -> str", "f(Tensor x, int n=0) -> str"])
def test_it_stays_gone_when_the_name_is_defined_again_even_with_the_same_schema(
    registry, library, schema
):
    library("f(Tensor x) -> str").close()
    f = md.OpOverload(registry.dispatcher, "s::f")  # a name that is not defined
    lib = library("f(Tensor x) -> str")
    held = registry.ops.s.f.default
    lib.close()
    library(schema, word="another")
    assert is_gone(f)
    assert is_gone(held)
    with pytest.raises(errors.OperatorGoneError) as caught:
        held(CPU)
    words = f"another operator has since been defined under its name\n  defined at {__file__}:"
    assert words in str(caught.value)
    assert registry.ops.s.f(CPU) == registry.ops.s.f.default(CPU) == "another"


def test_kernels_outlive_a_definition_and_serve_the_next_one_but_not_the_held_operator(
    registry, library
):
    elsewhere(registry, "IMPL").impl("f", says("kernel"), "CUDA")
    lib = library("f(Tensor x) -> str")
    held = registry.ops.s.f.default
    assert held.redispatch(Keys("CUDA"), CPU) == "kernel"
    lib.close()
    with pytest.raises(errors.OperatorGoneError, match="kernels, but nobody defined its schema"):
        held(CPU)
    library("f(Tensor x) -> str")
    assert is_gone(held)
    assert registry.ops.s.f.default.redispatch(Keys("CUDA"), CPU) == "kernel"


@pytest.mark.dear
def test_of_a_thousand_definitions_each_is_itself_and_only_the_last_is_there(registry):
    first = elsewhere(registry)
    first.define("f(Tensor x) -> int")
    held = [md.OpOverload(registry.dispatcher, "s::f")]
    for number in range(1000):
        first.close()
        first = elsewhere(registry)
        first.define("f(Tensor x) -> int")
        first.impl("f", lambda x, number=number: number, "CPU")
        held.append(md.OpOverload(registry.dispatcher, "s::f"))
        assert held[-1](CPU) == number
        for other in (held[0], held[number // 2], held[-2]):
            assert other.is_gone
    for operator in held[:-1]:
        with pytest.raises(errors.OperatorGoneError):
            operator(CPU)
    assert held[-1](CPU) == 999


@pytest.mark.thorough
def test_libraries_may_close_in_any_order_from_the_middle_of_their_stacks(registry):
    for order in itertools.permutations(range(4)):
        libraries, held = [], []
        for i in range(4):
            fragment = elsewhere(registry)
            fragment.define(f"f{i}(Tensor x) -> Any")
            for j in range(i + 1):  # on top of the kernels that are there
                fragment.impl(f"f{j}", lambda x, i=i, j=j: (i, j), "CPU")
            libraries.append(fragment)
            held.append(md.OpOverload(registry.dispatcher, f"s::f{i}"))
        left = {0, 1, 2, 3}
        for i in order:
            libraries[i].close()
            left.remove(i)
            for j in range(4):
                assert is_gone(held[j]) is (j not in left)
                if j in left:
                    assert held[j](CPU) == (max(left), j)
            registry.check_invariants()


# --- a library that is opened again ---------------------------------------------------------------


def test_what_is_defined_as_before_goes_on_with_the_new_kernels(registry, library):
    library("f(Tensor x) -> str", "f.o(Tensor x) -> str")
    held = [registry.ops.s.f.default, registry.ops.s.f.o]
    for word in ("second", "third", "fourth"):
        library("f(Tensor x) -> str", "f.o( Tensor   x )->str", word=word)
        assert [f(CPU) for f in held] == [word, word]
        assert registry.ops.s.f.default(CPU) == word
        assert [is_gone(f) for f in held] == [False, False]


@pytest.mark.parametrize(
    ("changed", "attributes"),
    [
        ("f(Tensor x, int n=0) -> str", {"tags": "a"}),
        ("f(Tensor y) -> str", {"tags": "a"}),
        ("f(Tensor x) -> Any", {"tags": "a"}),
        ("f(Tensor x) -> str", {"tags": "b"}),
        ("f(Tensor x) -> str", {"tags": ["a", "b"]}),
        ("f(Tensor x) -> str", {}),
        ("f(Tensor x) -> str", {"tags": "a", "alias_analysis": "CONSERVATIVE"}),
    ],
)
def test_what_is_defined_otherwise_is_another_operator(registry, library, changed, attributes):
    library("f(Tensor x) -> str", "same(Tensor x) -> str", tags="a")
    held, same = registry.ops.s.f.default, registry.ops.s.same.default
    lib = open_again(registry)
    lib.define("same(Tensor x) -> str", tags="a")
    lib.impl("same", says("goes on"), "CPU")
    lib.impl(lib.define(changed, **attributes), says("new"), "CPU")
    assert is_gone(held)
    assert not is_gone(same)
    assert (same(CPU), registry.ops.s.f.default(CPU)) == ("goes on", "new")
    # It does not come back with the old schema, either.
    library("f(Tensor x) -> str", "same(Tensor x) -> str", tags="a")
    assert is_gone(held)


def test_what_is_not_defined_again_is_gone_also_when_it_is_later(registry, library):
    library("f(Tensor x) -> str", "g(Tensor x) -> str")
    f, g = registry.ops.s.f.default, registry.ops.s.g.default
    library("g(Tensor x) -> str")
    assert is_gone(f)
    library("f(Tensor x) -> str", "g(Tensor x) -> str")
    assert is_gone(f)
    assert not is_gone(g)


def test_what_was_closed_on_purpose_does_not_go_on(registry, library):
    library("f(Tensor x) -> str").close()
    library("f(Tensor x) -> str")
    held = registry.ops.s.f.default
    library("f(Tensor x) -> str").close()
    library("f(Tensor x) -> str")
    assert is_gone(held)


def test_what_another_library_defines_does_not_go_on(registry, library):
    library("f(Tensor x) -> str")
    held = registry.ops.s.f.default
    open_again(registry)
    elsewhere(registry).define("f(Tensor x) -> str")
    assert is_gone(held)


def test_in_the_middle_of_opening_again_it_is_gone_and_then_it_goes_on(registry, library):
    library("f(Tensor x) -> str", "g(Tensor x) -> str")
    f, packet = registry.ops.s.f.default, registry.ops.s.f
    lib = open_again(registry)
    assert is_gone(f)
    with pytest.raises(errors.OperatorGoneError):
        packet(CPU)
    early = md.OpOverload(registry.dispatcher, "s::f")  # looked up before it existed
    lib.define("f(Tensor x) -> str")
    assert not f.is_gone
    lib.impl("f", says("again"), "CPU")
    assert f(CPU) == packet(CPU) == packet.default(CPU) == "again"
    assert is_gone(early)


def test_when_opening_again_fails_what_came_before_the_failure_goes_on(registry, library):
    library("f(Tensor x) -> str", "g(Tensor x) -> str")
    f, g = registry.ops.s.f.default, registry.ops.s.g.default
    with pytest.raises(errors.SchemaSyntaxError):
        library("f(Tensor x) -> str", "g(", word="second")
    assert f(CPU) == "second"
    assert is_gone(g)
    library("f(Tensor x) -> str", "g(Tensor x) -> str", word="third")
    assert f(CPU) == registry.ops.s.g(CPU) == "third"
    assert is_gone(g)


# --- packets and namespaces: names, which follow --------------------------------------------------


def test_packets_follow_their_name_through_every_definition(registry, library):
    lib = library("f(Tensor x) -> str")
    f = registry.ops.s.f
    for schemas, overloads in (
        (["f(Tensor x) -> str"], ["default"]),
        (["f.b(Tensor x) -> str", "f.a(Tensor x, int n) -> str"], ["b", "a"]),
        (["f.a(Tensor x) -> str", "f(Tensor x, int n) -> str"], ["a", "default"]),
    ):
        lib.close()
        assert f.overloads() == []
        with pytest.raises(errors.OperatorGoneError, match="s::f is not defined"):
            f(CPU)
        lib = library(*schemas, word=f"{overloads}")
        assert f is registry.ops.s.f
        assert f.overloads() == overloads
        assert f(CPU) == f"{overloads}"
        assert not set(overloads) - set(dir(f))


def test_an_overload_that_went_and_came_back_is_another_one_for_the_packet_too(registry, library):
    library("f(Tensor x) -> str")
    other = elsewhere(registry)
    other.define("f.o(Tensor x, int n) -> str")
    packet, held = registry.ops.s.f, registry.ops.s.f.o
    other.close()
    assert packet.overloads() == ["default"]
    with pytest.raises(errors.OperatorNotFoundError, match="it has default"):
        packet.o  # noqa: B018
    with pytest.raises(errors.ArgumentError):
        packet(CPU, 1)
    other = elsewhere(registry)
    other.define("f.o(Tensor x, int n) -> str")
    other.impl("f.o", says("o"), "CPU")
    assert packet(CPU, 1) == packet.o(CPU, 1) == "o"
    assert packet.o is not held
    assert is_gone(held)


# --- threads --------------------------------------------------------------------------------------


def hammer(change, *calls, rounds=300):
    """Calls from threads while the definitions change. Returns the outcomes of each thread's
    calls.
    """
    outcomes = [set() for _ in calls]
    stop = []

    def run(i):
        while not stop:
            try:
                outcomes[i].add(calls[i]())
            except Exception as error:
                outcomes[i].add(type(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    try:
        until(lambda: all(outcomes))  # each thread has called before anything changes
        for number in range(rounds):
            change(number)
    finally:
        stop.append(True)
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    return outcomes


@pytest.mark.dear
def test_while_a_library_is_opened_again_calls_run_a_kernel_or_say_that_it_is_gone(
    registry, library
):
    library("f(Tensor x) -> str", word="0")
    held, packet = registry.ops.s.f.default, registry.ops.s.f
    outcomes = hammer(
        lambda number: library("f(Tensor x) -> str", word=f"{number}"),
        lambda: held(CPU),
        lambda: packet(CPU),
        lambda: packet.default(CPU),
    )
    allowed = {errors.OperatorGoneError, errors.MissingKernelError, errors.OperatorNotFoundError}
    for found in outcomes:
        assert {outcome for outcome in found if isinstance(outcome, type)} <= allowed
        assert any(isinstance(outcome, str) for outcome in found)
    assert held(CPU) == packet(CPU) == "299"


@pytest.mark.dear
def test_while_a_name_is_defined_again_and_again_what_was_held_never_runs(registry, library):
    lib = library("f(Tensor x) -> str", word="mine")
    held = registry.ops.s.f.default
    lib.close()
    outcomes = hammer(
        lambda number: library("f(Tensor x) -> str", word="another").close(),
        lambda: held(CPU),
        lambda: held.redispatch(Keys("CPU"), CPU),
        lambda: is_gone(held),
    )
    assert outcomes == [{errors.OperatorGoneError}, {errors.OperatorGoneError}, {True}]
