"""Kernels with a signature of their own: it has to fit the schema, whichever comes first, in the
main interpreter and in workers.
"""

from __future__ import annotations

import itertools
import sys
import threading

import pytest
from patience import limit

import mdispatch as md
from mdispatch import errors


class Array:
    __dispatch_keys__ = "CPU"


CPU = Array()


def kernel(*args, **kwargs):
    """A kernel whose label is known."""


LABEL = f"{__name__}.kernel"


def everything(registry):
    """All that a refused registration leaves unchanged: registrations, versions, and this
    interpreter's state.
    """
    _, _, found = registry.dispatcher.facts.registrations()
    versions = {fact.name: registry.dispatcher.facts.registrations(fact.name)[:2] for fact in found}
    entries = {name: (entry, entry._state) for name, entry in registry.dispatcher.entries.items()}
    kernels = {
        name: {key: list(here) for key, here in entry.kernels.items()}
        for name, entry in registry.dispatcher.entries.items()
    }
    overloads = {
        name: list(known) for name, known in registry.dispatcher._overloads.items() if known
    }
    return (
        found,
        versions,
        entries,
        kernels,
        overloads,
        set(registry.dispatcher.names_with_signatures),
    )


FITTING = [
    ("(Tensor x, int n) -> Tensor", "(Tensor x, int n) -> Tensor"),
    ("(Tensor x, int n=3) -> Tensor", "(Tensor self, int other) -> Tensor"),
    ("(Tensor(a!) x, *, int n) -> Tensor(a!)", "(Tensor x, int n) -> Tensor"),
    ("(Tensor x) -> (Tensor a, int b)", "(Tensor x) -> (Tensor, int)"),
    ("() -> ()", "() -> ()"),
    ("(Tensor?[] x, int[2] n) -> ()", "(Tensor?[] x, int[2] n) -> ()"),
]
MISFITS = [
    ("(Tensor x, int n) -> Tensor", "(Tensor x) -> Tensor"),
    ("(Tensor x) -> Tensor", "(Tensor x, int n=0) -> Tensor"),
    ("(Tensor x, int n) -> Tensor", "(Tensor x, float n) -> Tensor"),
    ("(Tensor x) -> Tensor", "(Tensor? x) -> Tensor"),
    ("(Tensor[] x) -> Tensor", "(Tensor x) -> Tensor"),
    ("(Tensor x) -> Tensor", "(Tensor x) -> ()"),
    ("(Tensor x) -> Tensor", "(Tensor x) -> (Tensor, Tensor)"),
    ("(Tensor x) -> (Tensor, int)", "(Tensor x) -> (int, Tensor)"),
]


@pytest.mark.parametrize(("schema", "signature"), FITTING)
def test_what_fits_is_taken_in_either_order_names_and_defaults_do_not_count(
    registry, lib, schema, signature
):
    for name, order in (("f", "di"), ("g.o", "id")):
        for step in order:
            if step == "d":
                lib.define(name + schema)
            else:
                lib.impl(name, kernel, "CPU", signature=signature)
        _, fact = sorted(registry.registrations(f"s::{name}"), key=lambda fact: fact.kind)
        assert (fact.body, fact.signature) == (LABEL, signature)
        assert signature in registry.dump(f"s::{name}")


def told(error, schema, signature):
    """Checks what each error has to say: operator, key, kernel, both texts, both locations,
    remedy."""
    assert (error.operator, error.signature) == ("s::f", signature)
    assert error.schema == f"s::f{schema}"
    for words in ("s::f", "CUDA", LABEL, schema, signature, "Change one of them"):
        assert words in str(error)
    assert str(error).count(f"({__file__}:") == 2
    return True


@pytest.mark.parametrize(("schema", "signature"), MISFITS)
def test_a_kernel_that_does_not_fit_is_refused_and_changes_nothing(
    registry, lib, schema, signature
):
    lib.define(f"f{schema}")
    lib.define("other() -> ()")
    registry.dispatcher.entry("s::other").current_table()
    before = everything(registry)
    with pytest.raises(errors.SignatureMismatchError) as caught:
        lib.impl("f", kernel, "CUDA", signature=signature)
    assert told(caught.value, schema, signature)
    assert everything(registry) == before
    assert lib.impl("f", kernel, "CUDA") is kernel  # without one nothing is compared


@pytest.mark.parametrize(("schema", "signature"), MISFITS)
def test_a_definition_that_a_kernel_does_not_fit_is_refused_and_changes_nothing(
    registry, lib, schema, signature
):
    lib.impl("f", kernel, "CPU")
    lib.impl("f", kernel, "CUDA", signature=signature)
    lib.define("other() -> ()")
    registry.dispatcher.entry("s::other").current_table()
    before = everything(registry)
    with pytest.raises(errors.SignatureMismatchError) as caught:
        lib.define(f"f{schema}")
    assert told(caught.value, schema, signature)
    assert everything(registry) == before
    assert registry.dangling_implementations() == ["s::f"]


@pytest.mark.parametrize("signature", ["Tensor x", "(Tensr x) -> Tensor", "(Tensor x)", "-> ()"])
@pytest.mark.parametrize("defined", [True, False])
def test_what_is_no_signature_is_refused_with_or_without_a_definition(
    registry, lib, defined, signature
):
    if defined:
        lib.define("f(Tensor x) -> Tensor")
    before = everything(registry)
    with pytest.raises(errors.SchemaSyntaxError):
        lib.impl("f", kernel, "CPU", signature=signature)
    assert everything(registry) == before


def test_who_goes_no_longer_counts(registry, lib):
    kernels = md.Library("s", "IMPL", "CUDA", registry=registry)
    kernels.impl("f", kernel, signature="(int n) -> int")
    kernels.impl("f", kernel, signature="(int m) -> int")
    with pytest.raises(errors.SignatureMismatchError):
        lib.define("f(Tensor x) -> int")
    kernels.close()
    definition = md.Library("s", "FRAGMENT", registry=registry)
    definition.define("f(Tensor x) -> int")
    with pytest.raises(errors.SignatureMismatchError):
        lib.impl("f", kernel, "CUDA", signature="(int n) -> int")
    definition.close()
    lib.impl("f", kernel, "CUDA", signature="(int n) -> int")
    lib.define("f(int n) -> int")


def test_of_two_kernels_the_one_that_does_not_fit_is_named(lib):
    lib.impl("f", kernel, "CPU", signature="(Tensor x) -> Tensor")
    lib.impl("f", kernel, "CUDA", signature="(Tensor x) -> int")
    with pytest.raises(errors.SignatureMismatchError) as caught:
        lib.define("f(Tensor x) -> Tensor")
    assert told(caught.value, "(Tensor x) -> Tensor", "(Tensor x) -> int")


def test_a_second_definition_is_refused_as_such_whether_or_not_it_fits(registry, lib):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", kernel, "CUDA", signature="(Tensor x) -> Tensor")
    for schema in ("f(Tensor x) -> Tensor", "f(int n) -> int"):
        before = everything(registry)
        with pytest.raises(errors.DuplicateRegistrationError, match="defined already"):
            lib.define(schema)
        assert everything(registry) == before


@pytest.mark.thorough
@pytest.mark.dear
def test_of_a_definition_and_a_kernel_that_do_not_fit_one_is_refused_whatever_the_threads_do(
    registry, lib
):
    """Neither of the two may miss the other."""
    outcomes = []
    barrier = threading.Barrier(2)

    def run(step):
        for number in range(150):
            barrier.wait(limit(60))
            try:
                if step == "define":
                    lib.define(f"f{number}(Tensor x) -> Tensor")
                else:
                    lib.impl(f"f{number}", kernel, "CPU", signature="(int n) -> int")
            except errors.SignatureMismatchError:
                outcomes.append((number, step))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(step,)) for step in ("define", "impl")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert sorted(number for number, _ in outcomes) == list(range(150))
    for number, refused in outcomes:
        (fact,) = registry.registrations(f"s::f{number}")
        assert bool(fact.signature) is (refused == "define")


# --- in workers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("schema", "signature"), FITTING)
def test_in_a_worker_what_fits_is_taken_in_either_order(registry, lib, worker, schema, signature):
    lib.define(f"f{schema}")
    lib.impl("f", kernel, "CPU")
    for order in itertools.permutations("di"):
        mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
        for step in order:
            if step == "d":
                mine.define(f"f{schema}")
            else:
                mine.impl("f", kernel, "CPU", signature=signature)
        mine.close()


@pytest.mark.parametrize(("schema", "signature"), MISFITS)
def test_in_a_worker_a_kernel_that_does_not_fit_is_refused_and_not_kept(
    registry, lib, worker, schema, signature
):
    lib.define(f"f{schema}")
    lib.impl("f", kernel, "CUDA")
    mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
    here, there = everything(worker), everything(registry)
    with pytest.raises(errors.SignatureMismatchError) as caught:
        mine.impl("f", kernel, "CUDA", signature=signature)
    assert told(caught.value, schema, signature)
    assert (everything(worker), everything(registry)) == (here, there)


def test_in_a_worker_a_kernel_before_the_definition_is_compared_when_that_comes(
    registry, lib, worker
):
    """The main interpreter registered its kernel first, the worker's came with a signature, then
    both define.
    """
    lib.impl("f", kernel, "CUDA")
    mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
    mine.impl("f", kernel, "CUDA", signature="(int n) -> int")
    lib.define("f(Tensor x) -> Tensor")
    with pytest.raises(errors.SignatureMismatchError) as caught:
        mine.define("f(Tensor x) -> Tensor")
    error = caught.value
    assert (error.operator, error.signature) == ("s::f", "(int n) -> int")
    for words in ("CUDA", LABEL, "(Tensor x) -> Tensor", f"({__file__}:"):
        assert words in str(error)
    assert worker.ops.s.f.default.is_gone is False  # it exists, and the worker has no part in it


@pytest.mark.parametrize("signature", ["Tensor x", "(Tensr x) -> Tensor", "(Tensor x)"])
def test_in_a_worker_what_is_no_signature_is_refused_at_once(registry, lib, worker, signature):
    lib.impl("f", kernel, "CPU")
    mine = md.Library("s", "FRAGMENT", registry=worker, timeout=None)
    for key in ("CPU", "CUDA"):  # also where the main interpreter has none, without a wait
        with pytest.raises(errors.SchemaSyntaxError):
            mine.impl("f", kernel, key, signature=signature)
    assert not worker.dispatcher.entry("s::f").kernels
