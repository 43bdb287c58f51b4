"""Objects of registered classes and their handles: calls in C and in Python take the same ones; and
their methods have kernels by type as other operators have.
"""

from __future__ import annotations

import pytest
from both_ways import both, frames, outcome, same

import mdispatch as md

pytestmark = pytest.mark.shared


class A:
    pass


class B(A):
    pass


class Z:
    pass


for each in (A, Z):
    md.register_type(each, "CPU")


def says(word):
    return lambda *args, **kwargs: word


def fresh(call, got):
    got.clear()
    return outcome(call, got)


class Strict(type):
    """Its classes have the instances that they say they have."""

    def __instancecheck__(cls, value):
        return getattr(value, "strict", False)


@pytest.mark.parametrize("metaclass", [type, Strict])
def test_objects_of_a_registered_class_and_their_handles_are_taken_by_both_ways(
    registry, lib, metaclass
):
    Book = md.register_class("s.Book", registry=registry)(metaclass("Book", (), {}))
    page = md.register_class("s.Page", registry=registry)(type("Page", (), {}))()
    derived = type("Derived", (Book,), {"strict": True})()
    backing, gone = Book(), md.share(Book())
    gone.close()
    lib.define("f(s.Book book, s.Book? more=None) -> s.Book")
    lib.define("g(s.Book[] books) -> s.Book[]")
    got = []

    def kernel(*given):
        got.append((frames(), given, {}))
        return md.share(given[0]) if isinstance(given[0], Book) else given[0]

    lib.impl("f", kernel, "CompositeExplicitAutograd")
    lib.impl("g", kernel, "CompositeExplicitAutograd")
    f, g = registry.ops.s.f, registry.ops.s.g
    handles = [md.share(each) for each in (backing, derived, page)]
    for value in [backing, derived, page, None, 3, Book, *handles, gone, md.SafeObject(backing)]:
        for call in (
            lambda v=value: f(v),
            lambda v=value: f(backing, v),
            lambda v=value: g([v, backing]),
        ):
            in_c, in_python = both(lambda a=call: fresh(a, got))
            assert same(in_c, in_python), (metaclass, value)
            assert in_python[2] in ([], [True])
            if value is backing or (metaclass is type and value == handles[0]):
                assert in_c[2] == [False]
                assert not isinstance(in_c[0][0][0][0], md.SafeObject)


def test_kernels_for_types_stand_beside_the_method_of_a_class(registry):
    @md.register_class("s.Tokens", methods={"take": "(Tensor x) -> str"}, registry=registry)
    class Tokens:
        def take(self, x):
            return "the method"

    lib = md.Library("s", "FRAGMENT", registry=registry)
    lib.impl("Tokens.take", says("A"), "CPU", types=A)
    take = registry.ops.s.Tokens.take
    found = both(lambda: [take(Tokens(), each()) for each in (A, Z, B, A)])
    assert found == [["A", "the method", "A", "A"]] * 2
    registry.check_invariants()
