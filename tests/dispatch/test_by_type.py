"""Kernels by type: which kernel of a key runs, against a plain model and in every order; and what
becomes of a choice that calls in C have kept.
"""

from __future__ import annotations

import abc
import functools
import gc
import itertools
import os
import pickle
import subprocess
import sys
import threading
import weakref

import pytest
from kinds import INTERPRETERS, run_main
from orders import orders

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.call_c import turn
from mdispatch.facts.local import LocalRegistry


class A:
    pass


class B(A):
    pass


class C(A):
    pass


class D(B, C):
    """Its two bases are both types of kernels."""


class Z:
    pass


CLASSES = (A, B, C, D, Z)

CLASSES_DIE = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)() and sys.version_info < (3, 14),
    reason="free-threaded 3.13 makes every class immortal once a thread was started",
)
for each in (A, Z):
    md.register_type(each, "CPU")


def says(word):
    return lambda *args, **kwargs: word


def both(call):
    """What a call comes to, which has to be the same in C (a second time, too) and in Python."""
    found = []
    for on in (True, True, False):
        turn(on)
        try:
            found.append(call())
        except errors.MdispatchError as error:
            found.append((type(error), str(error)))
        finally:
            turn(True)
    assert found[0] == found[1] == found[2]
    return found[0]


def runs(call):
    """The kernel's word, or the class of the error."""
    found = both(call)
    return found if isinstance(found, str) else found[0]


# --- the plain model ------------------------------------------------------------------------------


def spread(types, count):
    return (types,) * count if isinstance(types, type) else types


def is_below(one, other):
    return all(map(issubclass, one, other))


def expected(kernels, given):
    """``kernels`` are (word, types or None), oldest first."""
    newest = {types: word for word, types in kernels}
    fitting = {
        spread(types, len(given)): word
        for types, word in newest.items()
        if types is not None and is_below(given, spread(types, len(given)))
    }
    best = [one for one in fitting if all(is_below(one, other) for other in fitting)]
    if best:
        return fitting[best[0]]
    return errors.AmbiguousTypesError if fitting else newest.get(None, errors.MissingKernelError)


def is_refused(kernels, types, count):
    """Whether the classes alone show a tie: arguments of which each has a class of one of the two
    kernels fit both, neither is more specific, and no kernel is for just these.
    """
    if types is None:
        return False
    mine = spread(types, count)
    there = {spread(other, count) for _, other in kernels if other is not None}
    for its in there:
        if is_below(mine, its) or is_below(its, mine):
            continue
        for meet in itertools.product(*(set(pair) for pair in zip(mine, its, strict=True))):
            if is_below(meet, mine) and is_below(meet, its) and meet not in there:
                return True
    return False


ONE = {
    "a chain": (A, B, None),
    "two that one class has as bases": (B, C, A),
    "the same types twice": (A, A, None),
    "any type": (object, B, None),
}
TWO = {
    "one for each argument": ((A, object), (object, A), (A, A)),
    "one for all, and one for each": (A, (A, B), (B, object)),
    "unlike ones": ((A, Z), (Z, A), None),
}
FOUR = {
    "four of one argument": (1, (A, B, C, None)),
    "four of two arguments": (2, ((A, object), (object, A), A, (B, A))),
}


def walk(registry, name, pool, count, order):
    """Plays one order, and compares with the model after each step."""
    calls = [
        tuple(cls() for cls in classes) for classes in itertools.product(CLASSES, repeat=count)
    ]
    f = registry.ops.find(name)
    opened, live, refused = {}, [], 0
    for unit in order:
        types = pool[unit]
        if unit in opened:
            library, entry = opened[unit]
            library.close()
            if entry in live:
                live.remove(entry)
        else:
            library = md.Library("s", "IMPL", registry=registry)
            entry = (f"kernel {unit}", types)
            opened[unit] = library, entry
            if is_refused(live, types, count):
                refused += 1
                before = registry.dispatcher.facts.registrations()
                with pytest.raises(errors.AmbiguousTypesError):
                    library.impl(name, says(entry[0]), "CPU", types=types)
                assert registry.dispatcher.facts.registrations() == before
            else:
                library.impl(name, says(entry[0]), "CPU", types=types)
                live.append(entry)
        for values in calls:
            wanted = expected(live, tuple(map(type, values)))
            try:
                got = f(*values)
            except errors.MissingKernelError as error:
                got = type(error)
            assert got == wanted, (order, live, values)
    registry.check_invariants(name)
    return refused


def walk_all(registry, lib, pool, count, of_all=1):
    lib.define(f"f({', '.join(f'Tensor x{i}' for i in range(count))}) -> str")
    refused = 0
    for at, order in enumerate(orders(len(pool), step=of_all)):
        turn(at % 4 != 3)  # one in four in Python
        try:
            refused += walk(registry, "s::f", pool, count, order)
        finally:
            turn(True)
    return refused


@pytest.mark.thorough
@pytest.mark.dear
@pytest.mark.parametrize("pool", ONE)
def test_every_order_of_kernels_for_one_argument_gives_what_the_model_says(registry, lib, pool):
    assert walk_all(registry, lib, ONE[pool], 1) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("pool", TWO)
def test_every_order_of_kernels_for_two_arguments_gives_what_the_model_says(registry, lib, pool):
    refused = walk_all(registry, lib, TWO[pool], 2)
    assert (refused > 0) == (pool != "unlike ones")


@pytest.mark.dear
@pytest.mark.parametrize("pool", FOUR)
def test_every_order_of_four_kernels_gives_what_the_model_says(registry, lib, pool, long_form):
    count, units = FOUR[pool]
    walk_all(registry, lib, units, count, of_all=1 if long_form else 60)


@pytest.mark.thorough
@pytest.mark.dear
def test_a_registry_of_one_process_has_kernels_by_type_too():
    with md.Registry.local() as registry:
        assert isinstance(registry.dispatcher.facts, LocalRegistry)
        walk_all(registry, md.Library("s", "DEF", registry=registry), ONE["a chain"], 1)


# --- what fits ------------------------------------------------------------------------------------


@pytest.fixture
def f(registry, lib):
    """An operator whose kernels are for A, for B, and for any type."""
    lib.define("f(Tensor x, Tensor? y=None, *, Tensor? out=None) -> str")
    for word, types in (("A", A), ("B", B), ("any", None)):
        lib.impl("f", says(word), "CPU", types=types)
    return registry.ops.s.f.default


def test_every_tensor_of_a_call_has_to_be_of_the_class(f):
    assert runs(lambda: f(A())) == "A"
    assert runs(lambda: f(B(), B(), out=B())) == "B"
    assert runs(lambda: f(B(), B(), out=A())) == "A"
    assert runs(lambda: f(y=B(), x=D())) == "B"
    assert runs(lambda: f(B(), out=Z())) == "any"


def test_none_fits_every_class(f):
    assert runs(lambda: f(B(), None)) == "B"
    assert runs(lambda: f(A(), out=None)) == "A"


def test_a_kernel_with_a_class_for_each_argument_takes_none_for_any_of_them(registry, lib):
    lib.define("f(Tensor x, Tensor? y=None) -> str")
    lib.impl("f", says("A and Z"), "CPU", types=(A, Z))
    lib.impl("f", says("A and A"), "CPU", types=(A, A))
    f = registry.ops.s.f
    assert runs(lambda: f(A(), Z())) == "A and Z"
    assert runs(lambda: f(A(), A())) == "A and A"
    assert runs(lambda: f(A())) is errors.AmbiguousTypesError  # None tells nothing
    lib.impl("f", says("A and Z, the second"), "CPU", types=(B, B))
    assert runs(lambda: f(B())) is errors.AmbiguousTypesError


def test_a_list_is_looked_into(registry, lib):
    lib.define("f(Tensor?[] x, Tensor? y=None) -> str")
    for word, types in (("A", A), ("Z", Z), ("lists of A with Z", (A, Z))):
        lib.impl("f", says(word), "CPU", types=types)
    f = registry.ops.s.f
    assert runs(lambda: f([A(), B(), A()])) is errors.AmbiguousTypesError
    assert runs(lambda: f([A(), B(), A()], A())) == "A"
    assert runs(lambda: f((Z(), None, Z()), Z())) == "Z"
    assert runs(lambda: f([A(), None], Z())) == "lists of A with Z"
    assert runs(lambda: f([A(), Z()])) is errors.MissingKernelError
    assert runs(lambda: f([], Z())) is errors.AmbiguousTypesError
    several = [type(f"A{i}", (A,), {})() for i in range(12)]
    assert runs(lambda: f(several, A())) == "A"  # of more types than C looks for


def test_a_call_without_tensors_has_no_types(registry, lib):
    lib.define("f(Tensor[] x) -> str")
    lib.impl("f", says("A"), "CompositeExplicitAutograd", types=object)
    f = registry.ops.s.f
    assert runs(lambda: f([])) is errors.MissingKernelError
    lib.impl("f", says("any"), "CompositeExplicitAutograd")
    assert runs(lambda: f([])) == "any"
    assert runs(lambda: f([Z()])) == "A"


def test_a_virtual_subclass_is_none_and_the_error_says_so(registry, lib):
    Sized = abc.ABCMeta("Sized", (), {})
    Sized.register(A)
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("Sized"), "CPU", types=Sized)
    f = registry.ops.s.f
    with pytest.raises(errors.MissingKernelError, match="is a virtual subclass of"):
        f(A())
    derived = type("Derived", (Sized, A), {})()
    assert runs(lambda: f(derived)) == "Sized"


def test_a_value_that_claims_another_class_is_of_its_own(registry, lib):
    class Liar(Z):
        __class__ = A

    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("A"), "CPU", types=A)
    assert isinstance(Liar(), A)
    assert runs(lambda: registry.ops.s.f(Liar())) is errors.MissingKernelError


# --- where none fits ------------------------------------------------------------------------------


def test_a_call_that_none_fits_goes_on_as_if_the_key_had_no_kernel(registry, lib, wild):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("A"), "CPU", types=A)
    f = registry.ops.s.f
    message = both(lambda: f(Z()))[1]
    assert "for tests.dispatch" in message or f"{Z.__module__}.Z" in message
    assert f"CPU for {A.__module__}.A" in message
    wild.fallback(says("fallback"), "CPU")
    assert runs(lambda: f(Z())) == "fallback"
    lib.impl("f", says("implicit"))
    assert runs(lambda: f(Z())) == "implicit"
    lib.impl("f", says("explicit"), "CompositeExplicitAutograd")
    assert runs(lambda: f(Z())) == "explicit"
    assert runs(lambda: f(A())) == "A"


def test_an_alias_key_has_kernels_by_type(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("explicit A"), "CompositeExplicitAutograd", types=A)
    lib.impl("f", says("implicit"), "CompositeImplicitAutograd")
    f = registry.ops.s.f
    assert runs(lambda: f(A())) == "explicit A"
    # An explicit kernel hides the implicit one only where it fits.
    assert runs(lambda: f(Z())) == "implicit"


def test_a_kernel_of_a_backend_hides_the_composite_gradients_only_where_it_fits(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("implicit"))
    lib.impl("f", says("CPU A"), "CPU", types=A)
    f = registry.ops.s.f.default
    keys = md.DispatchKeySet("CPU", "AutogradCPU")
    with md.context.IncludeDispatchKeyGuard("AutogradCPU"):
        assert runs(lambda: f(A())) == "CPU A"  # AutogradCPU falls through
        assert runs(lambda: f(Z())) == "implicit"
    assert runs(lambda: f.redispatch(keys, Z())) == "implicit"
    assert runs(lambda: f.redispatch(keys, A())) is errors.MissingKernelError


def test_a_fallthrough_may_be_for_types(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("CPU"), "CPU")
    lib.impl("f", says("autograd"), "AutogradCPU")
    lib.impl("f", md.fallthrough_kernel, "AutogradCPU", types=B)
    f = registry.ops.s.f
    with md.context.IncludeDispatchKeyGuard("AutogradCPU"):
        assert runs(lambda: f(A())) == "autograd"
        assert runs(lambda: f(B())) == "CPU"


def test_meta_kernels_may_be_for_types(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("A"), "CPU", types=A)
    lib.impl("f", says("meta A"), "Meta", types=A)
    f = registry.ops.s.f.default
    meta = md.DispatchKeySet("Meta")
    assert runs(lambda: f.redispatch(meta, A())) == "meta A"
    assert runs(lambda: f.redispatch(meta, Z())) is errors.FakeKernelMissingError


def test_every_way_of_calling_chooses_by_type(registry, lib, f):
    cpu = md.DispatchKeySet("CPU")
    assert runs(lambda: f.redispatch(cpu, B())) == "B"
    assert runs(lambda: f.call_for_dispatch_key("CPU", B())) == "B"
    assert runs(lambda: f.call_for_dispatch_key("CPU", Z())) == "any"
    assert runs(lambda: f.call_with_keyset(cpu, A())) == "A"
    assert runs(lambda: registry.ops.s.f(B())) == "B"
    stack = [B(), None, None]
    f.call_boxed(stack)
    assert stack == ["B"]
    stack = [A(), None, None]
    f.redispatch_boxed(cpu, stack)
    assert stack == ["A"]
    seen = []
    with md.observe_calls(lambda call: seen.append(call.reason)):
        assert f(B()) == "B"
    assert seen == ["kernel"]


@pytest.mark.dear
def test_a_kernel_that_takes_its_key_set_goes_on_by_type(registry, lib):
    lib.define("f(Tensor x) -> str")
    f = registry.ops.s.f

    def autograd(keys, x):
        below = keys & md.DispatchKeySet.full_after("AutogradCPU")
        return "autograd, " + f.default.redispatch(below, x)

    lib.impl("f", autograd, "AutogradCPU", with_keyset=True, types=A)
    lib.impl("f", says("A"), "CPU", types=A)
    lib.impl("f", says("B"), "CPU", types=B)
    lib.impl("f", says("any"), "CPU")
    with md.context.IncludeDispatchKeyGuard("AutogradCPU"):
        assert runs(lambda: f(B())) == "autograd, B"
        assert runs(lambda: f(Z())) == "any"


def test_a_python_kernel_comes_before_the_types(registry, lib, f):
    f.py_impl("CPU")(says("python"))
    with md.context.enable_python_dispatcher():
        assert runs(lambda: f(B())) == "python"
    assert runs(lambda: f(B())) == "B"


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("types", [3, "A", (), [A, None], type(None), list[int], A | None])
def test_what_is_no_class_is_refused(registry, lib, types):
    lib.define("f(Tensor x, Tensor y) -> str")
    before = registry.dispatcher.facts.registrations()
    with pytest.raises((errors.InvalidArgumentError, errors.SignatureMismatchError)):
        lib.impl("f", lambda x, y: "", "CPU", types=types)
    assert registry.dispatcher.facts.registrations() == before


@pytest.mark.parametrize("defined_first", [True, False])
def test_another_number_of_types_than_of_tensors_is_refused(registry, lib, defined_first):
    def define():
        lib.define("f(Tensor x, int n) -> str")

    def impl():
        lib.impl("f", lambda x, n: "", "CPU", types=(A, B))

    first, second = (define, impl) if defined_first else (impl, define)
    first()
    with pytest.raises(errors.SignatureMismatchError, match="2 Tensor arguments"):
        second()
    lib.define("g(int n) -> str")
    with pytest.raises(errors.SignatureMismatchError, match="no arguments whose classes"):
        lib.impl("g", lambda n: "", types=A)


def test_two_classes_of_one_name_are_refused(registry, lib):
    def make():
        class Grid:
            pass

        return Grid

    first, second = make(), make()
    lib.define("f(Tensor x) -> str")
    with md.Library("s", "IMPL", registry=registry) as other:
        other.impl("f", says("first"), "CPU", types=first)
        with pytest.raises(errors.InvalidArgumentError, match="another class that is called"):
            lib.impl("f", says("second"), "CPU", types=second)
        lib.impl("f", says("elsewhere"), "CUDA", types=second)
        other.close()
    lib.impl("f", says("second"), "CPU", types=second)


def test_a_tie_is_told_with_both_places(registry, lib):
    lib.define("f(Tensor x, Tensor y) -> str")
    lib.impl("f", says("B"), "CPU", types=B)
    lib.impl("f", says("C"), "CPU", types=C)
    with pytest.raises(errors.AmbiguousTypesError) as caught:
        registry.ops.s.f(D(), D())
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.operator == "s::f"
    assert error.key == "CPU"
    assert [each.rpartition(".")[2] for each in error.types] == ["B", "C"]
    assert all(location.startswith(__file__) for location in error.locations)
    lib.impl("f", says("D"), "CPU", types=D)
    assert runs(lambda: registry.ops.s.f(D(), D())) == "D"


def test_one_kernel_for_each_types_without_override(registry, lib):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("A"), "CPU", types=A)
    lib.impl("f", says("any"), "CPU", allow_override=False)
    lib.impl("f", says("B"), "CPU", types=B, allow_override=False)
    with pytest.raises(errors.DuplicateRegistrationError, match=r"CPU for .*\.A already"):
        lib.impl("f", says("A again"), "CPU", types=A, allow_override=False)
    with pytest.raises(errors.DuplicateRegistrationError):
        lib.impl("f", says("any again"), "CPU", allow_override=False)


def test_there_is_no_one_kernel_to_get(registry, lib, f):
    with pytest.raises(errors.MissingKernelError, match="kernels by type"):
        md.get_kernel(f, "CPU")


# --- other members --------------------------------------------------------------------------------


def test_types_are_in_the_fact_by_name(registry, lib, f):
    _, _, there = registry.dispatcher.facts.registrations("s::f")
    module = A.__module__
    assert [fact.types for fact in there[1:]] == [f"{module}.A", f"{module}.B", ""]
    found = f"CPU: {__name__}.says.<locals>.<lambda> for {module}.B"
    assert found in registry.dump("s::f")


def test_a_worker_verifies_the_types(registry, lib, f, worker, mine):
    for word, types in (("A", A), ("B", B), ("any", None)):
        mine.impl("f", says(f"worker's {word}"), "CPU", types=types)
    theirs = worker.ops.s.f
    assert runs(lambda: theirs(A())) == "worker's A"
    assert runs(lambda: theirs(D())) == "worker's B"
    assert runs(lambda: theirs(Z())) == "worker's any"


@pytest.mark.parametrize("types", [Z, (A, B, A)])
def test_a_worker_with_other_types_is_told(registry, lib, f, worker, mine, types):
    before = registry.registrations("s::f")
    with pytest.raises(errors.TypesMismatchError) as caught:
        mine.impl("f", says("Z"), "CPU", types=types)
    assert caught.value.types_there == (f"{A.__module__}.A", f"{A.__module__}.B", "")
    assert "Z" in caught.value.types_here or "B" in caught.value.types_here
    assert registry.registrations("s::f") == before
    assert runs(lambda: worker.ops.s.f(A())) is errors.LocalKernelMissingError


def test_a_worker_without_types_is_told_where_all_kernels_have_some(registry, lib, worker, mine):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("A"), "CPU", types=A)
    with pytest.raises(errors.TypesMismatchError) as caught:
        mine.impl("f", says("any"), "CPU")
    assert caught.value.types_here == ""
    lib.impl("f", says("any"), "CPU")
    mine.impl("f", says("any"), "CPU")
    assert runs(lambda: worker.ops.s.f(Z())) == "any"


def test_a_worker_without_a_callable_knows_by_name_that_it_lacks_it(registry, lib, f, worker, mine):
    mine.impl("f", says("any"), "CPU")
    mine.impl("f", says("A"), "CPU", types=A)
    theirs = worker.ops.s.f
    assert runs(lambda: theirs(Z())) == "any"
    assert runs(lambda: theirs(A())) == "A"
    assert runs(lambda: theirs(B())) is errors.LocalKernelMissingError


@pytest.mark.parametrize("ends_another", [False, True])
def test_a_worker_waits_for_the_kernel_of_its_types(
    registry, lib, worker, monkeypatch, ends_another
):
    lib.define("f(Tensor x) -> str")
    for_z = md.Library("s", "IMPL", registry=registry)
    for_z.impl("f", says("Z"), "CPU", types=Z)
    mine = md.Library("s", "FRAGMENT", registry=worker, timeout=None)
    backing, begun = type(worker.dispatcher.facts), threading.Event()
    original = backing.await_fact

    def noted(self, kind, key, name, at_least, *args, **kwargs):
        if at_least == 2:  # it has seen the kernel for Z, and waits for one more
            begun.set()
        return original(self, kind, key, name, at_least, *args, **kwargs)

    monkeypatch.setattr(backing, "await_fact", noted)
    done = []
    thread = threading.Thread(
        target=lambda: done.append(mine.impl("f", says("worker's B"), "CPU", types=B))
    )
    thread.start()
    begun.wait()
    if ends_another:  # then there is never one more than there was
        for_z.close()
    lib.impl("f", says("B"), "CPU", types=B)
    thread.join()
    assert len(done) == 1
    assert runs(lambda: worker.ops.s.f(B())) == "worker's B"


def test_why_tells_the_kernels_and_chooses_for_given_types(registry, lib, f):
    told = str(registry.why("s::f", "CPU"))
    assert "chosen by type" in told
    assert f"for {A.__module__}.B" in told
    found = registry.why("s::f", "CPU", types=(D, A, B))
    assert found.row.kernel.endswith("<lambda>")
    assert found.row.registration.types == f"{A.__module__}.A"
    assert registry.why("s::f", "CPU", types=D).row.registration.types == f"{A.__module__}.B"
    lib.impl("f", says("C"), "CPU", types=C)
    assert isinstance(registry.why("s::f", "CPU", types=D).error, errors.AmbiguousTypesError)


# --- what C keeps ---------------------------------------------------------------------------------


@pytest.mark.shared
def test_a_choice_is_made_once_and_then_found_in_c(registry, lib, f, monkeypatch):
    from mdispatch.dispatch.table import DispatchTable

    asked = []
    original = DispatchTable.for_types

    def counted(table, given):
        asked.append(given)
        return original(table, given)

    monkeypatch.setattr(DispatchTable, "for_types", counted)
    for _ in range(5):
        assert f(B()) == "B"
        assert f(A(), out=B()) == "A"
    assert asked == [((B,), (), ()), ((A,), (), (B,))]
    lib.impl("f", says("newer"), "CPU", types=B)
    assert f(B()) == "newer"
    assert len(asked) == 3


def test_a_choice_ends_with_the_bases_of_a_class(registry, lib, f):
    class Changing(A):
        pass

    class Derived(Changing):
        pass

    value = Derived()  # called without `both`, after which nothing is kept
    assert f(value) == "A"
    Changing.__bases__ = (B,)
    assert f(value) == "B"
    Changing.__bases__ = (A,)
    assert f(value) == "A"


def test_a_value_may_change_its_class(f):
    value = A()
    assert f(value) == "A"
    value.__class__ = B
    assert f(value) == "B"


@CLASSES_DIE
def test_a_choice_keeps_no_class_alive_and_serves_no_other_at_its_address(f):
    addresses, again = {}, 0
    for i in range(300):
        base, word = ((A, "A"), (B, "B"), (Z, "any"))[i % 3]
        made = type("Made", (base,), {})
        again += addresses.get(id(made), base) is not base
        addresses[id(made)] = base
        assert f(made()) == word
        ended = weakref.ref(made)
        del made
        gc.collect(1)
        assert ended() is None
        if again > 3:
            break
    assert again  # else no class of another kind came to the address of a dead one


def test_more_classes_than_c_keeps_choices_for(f):
    classes = [type(f"Made{i}", ((A, B, Z)[i % 3],), {}) for i in range(400)]
    for _ in range(2):
        for i, cls in enumerate(classes):
            assert f(cls()) == ("A", "B", "any")[i % 3]


def test_threads_that_meet_new_classes_while_kernels_change(registry, lib):
    lib.define("f(Tensor x, Tensor y) -> str")
    lib.impl("f", says("any"), "CPU")
    f = registry.ops.s.f.default
    lib.impl("f", says("A"), "CPU", types=A)
    classes = [type(f"Made{i}", ((A, Z)[i % 2],), {}) for i in range(60)]
    wrong, stop = [], threading.Event()

    def call():
        while not stop.is_set():
            for i, cls in enumerate(classes):
                for other in (cls, classes[i - 2]):
                    got = f(cls(), other())
                    if got not in (("A", "B"), ("any",))[i % 2]:
                        wrong.append((i, got))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        with md.Library("s", "IMPL", registry=registry) as other:
            other.impl("f", says("B"), "CPU", types=classes[0])
            other.close()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.thorough
@pytest.mark.dear
@CLASSES_DIE
def test_kernels_and_classes_go_with_the_registry():
    class Grid:
        pass

    md.register_type(Grid, "CPU")
    with md.Registry.local() as registry:
        lib = md.Library("s", "DEF", registry=registry)
        lib.define("f(Tensor x) -> str")

        def kernel(x):
            return "Grid"

        lib.impl("f", kernel, "CPU", types=Grid)
        f = registry.ops.s.f.default
        assert [f(Grid()), f(Grid())] == ["Grid", "Grid"]
    ended = weakref.ref(Grid), weakref.ref(kernel)
    del f, lib, registry, kernel, Grid
    gc.collect()
    assert [each() for each in ended] == [None, None]


PURE = """
import mdispatch as md
class A: pass
class B(A): pass
md.register_type(A, "CPU")
lib = md.Library("s", "DEF")
lib.define("f(Tensor x, Tensor? y=None) -> str")
lib.impl("f", lambda x, y: "A", "CPU", types=A)
lib.impl("f", lambda x, y: "B", "CPU", types=B)
print([md.ops.s.f(A()), md.ops.s.f(B()), md.ops.s.f(B(), A())])
"""


@pytest.mark.parametrize("binding", ["none", "cffi", "ext"])
def test_every_binding_chooses_by_type(binding):
    if binding == "cffi":
        pytest.importorskip("_cffi_backend", reason="cffi refuses a free-threaded 3.13")
    done = subprocess.run(
        [sys.executable, "-c", PURE],
        env={**os.environ, "MDISPATCH_BINDING": binding},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['A', 'B', 'A']\n"


# --- workers of every kind ------------------------------------------------------------------------

MODULE = """
import sys
import mdispatch as md

class A:
    pass

class B(A):
    pass

md.register_type(A, "CPU")
lib = md.Library("s", "DEF")
lib.define("f(Tensor[] x) -> str")
lib.impl("f", lambda x: "any", "CPU")
lib.impl("f", lambda x: "A", "CPU", types=A)
lib.impl("f", lambda x: "B", "CPU", types=B if getattr(sys, "agrees", True) else object)
"""

WORKER = """
import sys
import mdispatch as md
import typed_ops
f = md.ops.s.f
calls = [f([typed_ops.A(), typed_ops.B()]) for _ in range(3)] + [f([typed_ops.B()])]
del sys.modules["typed_ops"]
sys.agrees = False
difference = ""
try:
    md.warm_up("typed_ops", timeout=0)
except md.errors.WarmUpError as error:
    difference = " ".join(type(each).__name__ for each in error.differences)
report(calls=calls, difference=difference)
"""


@pytest.mark.parametrize("kind", [*INTERPRETERS, "spawn", "subprocess"])
def test_workers_of_every_kind_choose_alike_and_are_told_what_differs(kind, tmp_path):
    (tmp_path / "typed_ops.py").write_text(MODULE)
    got = run_main(
        """
        kind, folder, text = args
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = folder
        import typed_ops
        done(found=results(start(kind, text, 2, Path(folder))))
        """,
        kind,
        str(tmp_path),
        WORKER,
    )
    for found in got["found"]:
        assert found["calls"] == ["A", "A", "A", "B"]
        assert found["difference"] == "TypesMismatchError"


# --- the other ways to register -------------------------------------------------------------------


def test_register_kernel_and_custom_op_take_types(registry):
    @md.custom_op(
        "s::g",
        mutates_args=(),
        device_types="cpu",
        schema="(Tensor x, int n=1) -> str",
        registry=registry,
    )
    def g(x, n):
        return "any"

    @g.register_kernel("cpu", types=A)
    def g_of_a(x, n):
        return "A"

    @md.register_kernel(g, "cpu", types=B)
    def g_of_b(x, n):
        return "B"

    @md.register_kernel("s::g", "cpu", types=D, registry=registry)
    def g_of_d(x, n):
        return "D"

    assert [both(functools.partial(g, cls())) for cls in (Z, A, B, D)] == ["any", "A", "B", "D"]
    with pytest.raises(errors.SignatureMismatchError, match="2 Tensor arguments"):
        g.register_kernel("cpu", says(""), types=(A, B))


@pytest.mark.shared
def test_a_team_registers_and_verifies_kernels_by_type(tmp_path):
    program = """
import sys
import mdispatch as md
sys.path.insert(0, sys.argv[1])
import typed_ops
text = '''
import sys
sys.path.insert(0, {!r})
import typed_ops, mdispatch as md
assert md.ops.s.f([typed_ops.B()]) == "B"
'''.format(sys.argv[1])
worker = md.create_interpreter()
worker.exec(text)
worker.close()
print(md.ops.s.f([typed_ops.A()]))
"""
    (tmp_path / "typed_ops.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "MDISPATCH_REGISTRY": f"elect:by-type-{os.getpid()}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("A\n", "")
