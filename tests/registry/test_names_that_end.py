"""Operators that are defined, called and closed without end: nothing of them stays, neither in the
shared memory nor in Python.
"""

from __future__ import annotations

import gc
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

import mdispatch as md
from mdispatch.dispatch.entries import Entries
from mdispatch.errors import RegistryFullError

_USED = 2  # its index in the figures of stat
_NAMES = 4


@pytest.fixture(params=[pytest.param("shared", marks=pytest.mark.shared), "local"])
def registry(request: pytest.FixtureRequest) -> Iterator[md.Registry]:
    make: Callable[[], md.Registry] = {"shared": md.Registry.create, "local": md.Registry.local}[
        request.param
    ]
    with make() as registry:
        yield registry


def one_more(registry: md.Registry, number: int) -> None:
    """One operator, as a service has it that makes one for each customer."""
    name = f"f{number}" if number % 2 else f"f{number}.{'o' * (number % 200 + 1)}"
    lib = md.Library("customers", "FRAGMENT", registry=registry)
    lib.define(f"{name}(int x) -> int", doc="of a customer")
    lib.impl(name, lambda x: x + number, "CompositeImplicitAutograd")
    operator = registry.ops.find(f"customers::{name}")
    assert operator(1) == getattr(registry.ops.customers, f"f{number}")(1) == number + 1
    lib.close()
    with pytest.raises(md.errors.OperatorGoneError):
        operator(1)


def one_namespace(registry: md.Registry, number: int) -> None:
    lib = md.Library(f"customer{number}", "DEF", registry=registry)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x, "CPU")
    lib.close()


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("life", [one_more, one_namespace])
def test_operators_that_come_and_go_for_ever_leave_nothing(
    registry: md.Registry, life: Callable[[md.Registry, int], None], long_form: bool
) -> None:
    facts = registry.dispatcher.facts

    def now() -> tuple[int, int, int]:
        gc.collect()
        figures = facts.stat()
        return sys.getallocatedblocks(), figures[_USED], figures[_NAMES]

    times = 50_000 if long_form else 400
    for number in range(times):
        life(registry, number)
    blocks, used, names = now()
    for number in range(times, 2 * times):
        life(registry, number)
    blocks_then, used_then, names_then = now()
    assert (used_then, names_then) == (used, names)
    # What stays for each name is an object or more. (CPython's cache of attributes keeps up to
    # 4,096 names by itself; 3.12, and 3.13 without a GIL, keep every name that was ever asked for
    # as an attribute. Without a GIL blocks are counted late, too.)
    without_gil = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    kept = times if sys.version_info[:2] == (3, 12) or without_gil else 0
    late = times if without_gil and not long_form else 0
    assert blocks_then - blocks < kept + late + (times / 10 if long_form else times)
    assert not list(registry.dispatcher.entries.items())
    registry.check_invariants()


def fill(registry: md.Registry, prefix: str) -> int:
    """How many operators of such names there is room for."""
    lib = md.Library("s", "FRAGMENT", registry=registry)
    number = 0
    with suppress(RegistryFullError):
        while True:
            lib.define(f"{prefix}{number:04}(int x) -> int")
            number += 1
    lib.close()
    return number


@pytest.mark.shared
def test_a_registry_that_was_full_takes_as_many_other_names() -> None:
    with md.Registry.create(capacity=1 << 19) as registry:
        assert fill(registry, "a") == fill(registry, "b") > 100


@pytest.mark.waits
@pytest.mark.dear
def test_a_handle_that_is_kept_meets_those_who_define_the_name_again(registry: md.Registry) -> None:
    """As long as anybody has the entry of a name, it is the one of that name."""
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(int x) -> int")
    kept = registry.ops.s.f.default
    entry = kept.entry
    lib.close()
    gc.collect()
    assert registry.dispatcher.entry("s::f") is entry
    with md.Library("s", "DEF", registry=registry) as again:
        again.define("f(int x) -> int")
        again.impl("f", lambda x: x, "CompositeImplicitAutograd")
        assert registry.ops.s.f.default.entry is entry
        assert registry.ops.s.f(3) == 3
        with pytest.raises(md.errors.OperatorGoneError):
            kept(3)


@pytest.mark.waits
@pytest.mark.dear
def test_an_operator_keeps_its_kernels_though_nobody_refers_to_it(registry: md.Registry) -> None:
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(int x) -> int")
    lib.impl("f", lambda x: x * 2, "CompositeImplicitAutograd")
    assert registry.ops.s.f(3) == 6
    vars(registry.ops.s).clear()
    gc.collect()
    assert registry.ops.s.f(4) == 8
    lib.close()


class Entry:
    def __init__(self, name: str) -> None:
        self.name = name


def test_a_reference_that_has_died_takes_nothing_that_came_since() -> None:
    """Another thread may put an entry, or a reference to one, before the callback has run."""
    entries: Any = Entries()
    entry = entries.get_or_put("s::f", Entry)
    dead = entries.there["s::f"]
    del entry
    assert "s::f" not in entries.there
    for is_kept in (False, True):
        fresh = entries.get_or_put("s::f", Entry, is_kept)
        entries._forget(dead)
        assert entries.get("s::f") is fresh
        del fresh
    assert entries.there.keys() == {"s::f"}  # the last one stays, though nobody refers to it
    entries.let_go(entries.get("s::f"))
    assert not entries.there
