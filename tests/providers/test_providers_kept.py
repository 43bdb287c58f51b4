"""A kept choice among providers: types that choose the same have one table, and a table that the
registrations do not give is found.
"""

from __future__ import annotations

from invariants import broken

import mdispatch as md
from mdispatch.keys import DispatchKey


class A:
    __dispatch_keys__ = "CPU"


class B(A):
    pass


class C(A):
    pass


class D(B, C):
    """Its two bases are both types of kernels."""


class Z:
    __dispatch_keys__ = "CPU"


CPU = Z()


def says(word):
    return lambda *args, **kwargs: word


def test_types_that_choose_the_same_have_one_table(registry, lib):
    lib.define("g(Tensor x, int n) -> str")
    lib.impl("g", says("a"), "CPU", provider="a", types=B, supports=lambda x, n: n < 5)
    lib.impl("g", says("b"), "CPU", provider="b", types=B, order=-1)
    lib.impl("g", says("c"), "CPU", types=B)
    lib.impl("g", says("d"), "CPU", types=C)
    table = registry.ops.s.g.default.entry.current_table()

    class Another(B):
        pass

    tables = [table.for_types(((cls,),)) for cls in (B, Another, B, D, C, Z)]
    assert tables[0] is tables[1] is tables[2]
    assert len(set(map(id, tables[2:]))) == 4
    lib.impl("g", says("tie"), "CUDA", types=B)
    lib.impl("g", says("tie"), "CUDA", types=C)
    table = registry.ops.s.g.default.entry.current_table()
    assert table.for_types(((D,),)) is table.for_types(((D,),))


def test_a_kept_entry_that_lets_others_serve_than_a_strict_priority_is_found(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("cpu"), "CPU")
    lib.impl("f", says("a"), "CPU", provider="a", supports=lambda x: True)
    asked = md.set_priority("s::f", ["a"], registry=registry)
    assert registry.ops.s.f(CPU) == "a"
    entry = registry.dispatcher.entry("s::f")
    loose = entry._state.table
    asked.close()
    with md.set_priority("s::f", ["a"], strict=True, registry=registry):
        assert registry.ops.s.f(CPU) == "a"
        strict = entry._state.table.at(DispatchKey.CPU)
        loose.at(DispatchKey.CPU).rest = None  # which leaves strictness as the only difference
        assert strict.kernels == loose.at(DispatchKey.CPU).kernels
        registry.check_invariants()
        entry._state.table = loose
        broken(registry, "at CPU calls use", "the registrations give")
        entry._changed()
        registry.check_invariants()
