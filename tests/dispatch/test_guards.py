"""What a thread includes and excludes: guards in every order, setters, threads, interpreters."""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading

import pytest

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch.context import guards
from mdispatch.dispatch.context.guards import (
    AutoDispatchBelowADInplaceOrView,
    AutoDispatchBelowAutograd,
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    PreserveDispatchKeyGuard,
    SetExcludeDispatchKeyGuard,
    excluded_keys,
    included_keys,
    set_excluded,
    set_included,
)
from mdispatch.facts.native import calls
from mdispatch.keys import BACKEND_BITS, DispatchKeySet
from mdispatch.keys.numbers import FULL

INCLUDED, EXCLUDED = guards.DEFAULT_INCLUDED, guards.DEFAULT_EXCLUDED


def sets():
    """Both sets of this thread. The sets that calls read have to be the same."""
    included, excluded = included_keys(), excluded_keys()
    kept = FULL & ~(excluded.raw & ~BACKEND_BITS)
    assert calls.now() == (included.raw, kept)
    return included, excluded


def names(keys, default=frozenset()):
    return {key.name for key in keys} - {key.name for key in default}


def changed():
    """The keys that this thread includes and excludes, without those that it began with."""
    included, excluded = sets()
    return names(included, INCLUDED), names(excluded, EXCLUDED)


@pytest.fixture(autouse=True)
def whatever_happens_the_thread_ends_as_it_began():
    assert sets() == (INCLUDED, EXCLUDED)
    yield
    assert sets() == (INCLUDED, EXCLUDED)


def in_thread(function, *args):
    """The result of the function, run in a thread of its own."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join()
    assert results, "the function raised"
    return results[0]


@pytest.fixture
def ran(registry):
    """Calls an operator that has kernels at many keys with a value of these keys. Returns the key
    of the kernel that ran.
    """
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor? x) -> str")
    for key in ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "Conjugate", "AutocastCPU"):
        lib.impl("f", lambda x, key=key: key, key)

    def call(*keys):
        value = type("Value", (), {"__dispatch_keys__": keys})() if keys else None
        return registry.ops.s.f(value)

    return call


# --- what each guard does -------------------------------------------------------------------------


def test_a_thread_begins_with_the_defaults_of_the_original():
    assert names(INCLUDED) == {"BackendSelect", "ADInplaceOrView"}
    assert names(EXCLUDED) == {
        f"Autocast{backend}"
        for backend in ("CPU", "MTIA", "MAIA", "XPU", "IPU", "HPU", "XLA", "MPS", "CUDA")
    } | {"AutocastPrivateUse1"}


def test_included_keys_dispatch_as_if_an_argument_carried_them(ran):
    with IncludeDispatchKeyGuard("Conjugate"):
        assert changed() == ({"Conjugate"}, set())
        assert ran("CPU") == ran() == "Conjugate"
    with IncludeDispatchKeyGuard("CUDA"):
        assert ran("CPU") == ran() == "CUDA"
    assert ran("CPU") == "CPU"


def test_excluded_keys_are_passed_by_and_exclusion_wins(ran):
    with IncludeDispatchKeyGuard("Conjugate"):
        with ExcludeDispatchKeyGuard("Conjugate"):
            assert ran("CPU", "Conjugate") == "CPU"
        assert ran("CPU") == "Conjugate"


def test_excluding_a_key_of_one_backend_excludes_it_for_all_and_leaves_the_backend(ran):
    with ExcludeDispatchKeyGuard("AutogradCPU"):
        assert ran("CUDA", "AutogradCUDA") == "CUDA"
    with ExcludeDispatchKeyGuard("CPU"):
        assert ran("CUDA", "AutogradCUDA") == "AutogradCUDA"


def test_force_makes_the_sets_what_it_says(ran):
    with ForceDispatchKeyGuard((), ()):
        assert sets() == (DispatchKeySet(), DispatchKeySet())
        assert ran("CPU", "AutocastCPU") == "AutocastCPU"
        assert ran("CPU") == "CPU"
        with ForceDispatchKeyGuard("Conjugate", ["Negative", "Sparse"]):
            assert sets() == (DispatchKeySet("Conjugate"), DispatchKeySet("Negative", "Sparse"))
        assert sets() == (DispatchKeySet(), DispatchKeySet())


def test_one_key_can_be_excluded_or_not_whatever_it_was_before(ran):
    with SetExcludeDispatchKeyGuard("AutocastCPU", False):
        assert ran("CPU", "AutocastCPU") == "AutocastCPU"
        with SetExcludeDispatchKeyGuard("AutocastCPU", False):
            assert ran("CPU", "AutocastCPU") == "AutocastCPU"
        with SetExcludeDispatchKeyGuard(md.DispatchKey.AutocastCPU, True):
            assert ran("CPU", "AutocastCPU") == "CPU"
        assert ran("CPU", "AutocastCPU") == "AutocastCPU"


def test_below_autograd_no_autograd_kernel_runs_and_below_views_no_view_kernel_either(
    ran, registry
):
    views = md.Library("s", "IMPL", "ADInplaceOrView", registry=registry)
    views.impl("f", lambda x: "ADInplaceOrView")
    with AutoDispatchBelowAutograd():
        assert ran("CUDA", "AutogradCUDA") == "ADInplaceOrView"
        assert ran("CPU", "AutogradOther", "AutogradCPU") == "ADInplaceOrView"
    with AutoDispatchBelowADInplaceOrView():
        assert ran("CUDA", "AutogradCUDA") == "CUDA"


@pytest.mark.parametrize("cls", [IncludeDispatchKeyGuard, ExcludeDispatchKeyGuard])
def test_keys_come_in_every_form(cls):
    of_one, of_two = DispatchKeySet("Negative"), DispatchKeySet("Negative", "Python")
    for given_keys, expected in (
        ("Negative", of_one),
        (md.DispatchKey.Negative, of_one),
        (of_two, of_two),
        (["Negative", md.DispatchKey.Python], of_two),
        (iter(of_two), of_two),
    ):
        guard = cls(given_keys)
        for _ in range(2):  # an iterator also serves twice
            with guard:
                assert names(expected) in changed()


@pytest.mark.parametrize("key", ["GPU", "negative", "", 49, None], ids=repr)
def test_what_is_no_key_is_refused_and_changes_nothing(key):
    before = sets()
    for call in (
        lambda: IncludeDispatchKeyGuard(key),
        lambda: ExcludeDispatchKeyGuard(key),
        lambda: ForceDispatchKeyGuard("CPU", key),
        lambda: SetExcludeDispatchKeyGuard(key, True),
        lambda: set_included(key, True),
        lambda: set_excluded(key, False),
    ):
        with pytest.raises(errors.InvalidKeyError) as caught:
            call()
        assert caught.value.key == key
        assert sets() == before


@pytest.mark.parametrize("key", ["Undefined", "Autograd", "CompositeImplicitAutograd"])
def test_one_key_that_no_set_can_hold_is_not_switched(key):
    for call in (set_included, set_excluded, SetExcludeDispatchKeyGuard):
        with pytest.raises(errors.InvalidKeyError, match=f"{key} has no bits"):
            call(key, True)


def test_what_a_block_raises_passes_and_the_guard_ends():
    class OwnError(Exception):
        pass

    def block():
        with ExcludeDispatchKeyGuard("Python") as guard:
            assert isinstance(guard, ExcludeDispatchKeyGuard)
            raise OwnError

    with pytest.raises(OwnError):
        block()
    assert changed() == (set(), set())


# --- orders of ending -----------------------------------------------------------------------------

FOUR = {
    "include": lambda: IncludeDispatchKeyGuard(("Python", "Negative")),
    "exclude": lambda: ExcludeDispatchKeyGuard(("Python", "Conjugate")),
    "force": lambda: ForceDispatchKeyGuard("Functionalize", "Conjugate"),
    "switch": lambda: SetExcludeDispatchKeyGuard("Conjugate", False),
}


def alone(names_of_guards):
    """The sets of a thread in which only these guards were begun."""
    with contextlib.ExitStack() as stack:
        for name in names_of_guards:
            stack.enter_context(FOUR[name]())
        return sets()


def test_in_whatever_order_guards_end_those_left_are_as_if_they_were_alone():
    expected = {
        left: in_thread(alone, left) for n in range(5) for left in itertools.permutations(FOUR, n)
    }
    for begun in itertools.permutations(FOUR):
        for ended in itertools.permutations(FOUR):
            opened = {name: FOUR[name]().__enter__() for name in begun}
            assert sets() == expected[begun]
            for name in ended:
                opened.pop(name).__exit__()
                assert sets() == expected[tuple(opened)], (begun, ended, name)


def test_two_guards_of_one_key_hold_it_until_both_have_ended():
    first, second = ExcludeDispatchKeyGuard("Python"), ExcludeDispatchKeyGuard("Python")
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert changed() == (set(), {"Python"})
    second.__exit__()
    assert changed() == (set(), set())


def test_a_guard_can_be_used_again_and_inside_itself():
    guard = IncludeDispatchKeyGuard("Python")
    for _ in range(2):
        with guard, ForceDispatchKeyGuard((), ()), guard:
            assert included_keys() == DispatchKeySet("Python")
        assert changed() == (set(), set())


def test_a_guard_that_was_not_begun_cannot_end():
    guard = ExcludeDispatchKeyGuard("Python")
    for _ in range(2):
        with pytest.raises(
            errors.InvalidArgumentError, match="this ExcludeDispatchKeyGuard was not entered"
        ):
            guard.__exit__()
        with guard:
            pass


@pytest.mark.dear
def test_a_guard_that_nobody_holds_has_ended():
    ExcludeDispatchKeyGuard("Python").__enter__()
    assert changed() == (set(), set())
    cycle = [ExcludeDispatchKeyGuard("Python").__enter__()]
    cycle.append(cycle)
    assert changed() == (set(), {"Python"})
    del cycle
    gc.collect()


@pytest.mark.dear
def test_a_generator_holds_its_guard_until_it_goes_on_or_away():
    def steps():
        with ExcludeDispatchKeyGuard("Python"):
            yield 1
            yield 2

    first, second = steps(), steps()
    with IncludeDispatchKeyGuard("Negative"):
        assert (next(first), next(second)) == (1, 1)
        assert changed() == ({"Negative"}, {"Python"})
        assert list(first) == [2]
        assert changed() == ({"Negative"}, {"Python"})
    assert changed() == (set(), {"Python"})
    second.close()
    assert changed() == (set(), set())
    dropped = steps()
    next(dropped)
    del dropped
    gc.collect()
    # A generator that is finished in another thread ends its guard in this one.
    moved = steps()
    next(moved)
    assert in_thread(lambda: (next(moved), changed())) == (2, (set(), set()))
    assert changed() == (set(), {"Python"})
    assert in_thread(lambda: (list(moved), changed())) == ([], (set(), set()))


# --- setters --------------------------------------------------------------------------------------


def test_a_setter_without_a_guard_is_for_good_in_its_thread_and_in_no_other():
    def switch():
        set_included("Python", True)
        set_excluded("Negative", True)
        set_excluded("AutocastCPU", False)
        set_included("BackendSelect", False)
        with ForceDispatchKeyGuard((), ()):
            pass
        return sets(), in_thread(sets)

    here, elsewhere = in_thread(switch)
    expected = (
        INCLUDED.add("Python").remove("BackendSelect"),
        EXCLUDED.add("Negative").remove("AutocastCPU"),
    )
    assert here == expected
    assert elsewhere == (INCLUDED, EXCLUDED)


@pytest.mark.parametrize(
    ("guard", "sets_undone"),
    [
        (IncludeDispatchKeyGuard(()), "included"),
        (ExcludeDispatchKeyGuard("Sparse"), "excluded"),
        (ForceDispatchKeyGuard((), ()), "included excluded"),
        (PreserveDispatchKeyGuard(), "included excluded"),
        (AutoDispatchBelowAutograd(), "excluded"),
        (SetExcludeDispatchKeyGuard("Sparse", True), ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_guard_undoes_what_setters_did_to_its_set_while_it_was_open(guard, sets_undone):
    def run():
        with guard:
            set_included("Python", True)
            set_excluded("Negative", True)
            assert names(included_keys()) >= {"Python"}
            assert names(excluded_keys()) >= {"Negative"}
        return changed()

    included, excluded = in_thread(run)
    assert included == (set() if "included" in sets_undone else {"Python"})
    assert excluded == (set() if "excluded" in sets_undone else {"Negative"})


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_what_a_setter_does_to_a_guards_own_key_ends_with_the_guard(before, inside):
    def run():
        set_excluded("Python", before)
        with SetExcludeDispatchKeyGuard("Python", inside):
            set_excluded("Python", not inside)
            assert ("Python" in excluded_keys()) is not inside
        return "Python" in excluded_keys()

    assert in_thread(run) is before


def test_taking_out_a_key_that_is_not_there_leaves_those_of_other_backends(ran):
    with IncludeDispatchKeyGuard(["CUDA", "Conjugate"]):
        for key in ("CPU", "SparseCUDA", "AutogradCUDA", "Python"):
            set_included(key, False)
            assert changed() == ({"CUDA", "Conjugate"}, set())
        set_included("Conjugate", False)
        assert ran("CPU") == "CUDA"
    with ExcludeDispatchKeyGuard("AutogradCPU"):
        set_excluded("AutogradMeta", False)
        assert ran("CPU", "AutogradCPU") == "CPU"
        with SetExcludeDispatchKeyGuard("AutogradMeta", False):
            assert ran("CPU", "AutogradCPU") == "CPU"
        set_excluded("AutogradCPU", False)
        assert ran("CPU", "AutogradCPU") == "AutogradCPU"


def test_what_a_guard_switches_stays_so_when_another_ends_that_did_the_same():
    first = ExcludeDispatchKeyGuard("Python").__enter__()
    with SetExcludeDispatchKeyGuard("Python", True):
        first.__exit__()
        assert changed() == (set(), {"Python"})
    assert changed() == (set(), set())


def test_what_a_setter_switches_stays_so_when_a_guard_ends_that_did_the_same():
    first = ExcludeDispatchKeyGuard("Python").__enter__()
    with PreserveDispatchKeyGuard():
        set_excluded("Python", True)
        first.__exit__()
        assert changed() == (set(), {"Python"})
    assert changed() == (set(), set())


def test_a_backend_that_was_included_and_taken_out_again_draws_no_calls(ran):
    def run():
        set_included("CUDA", True)
        seen = [ran("CPU")]
        set_included("CUDA", False)
        set_excluded("AutogradCPU", True)
        set_excluded("AutogradCPU", False)
        seen.append(ran("CPU"))
        with IncludeDispatchKeyGuard("SparseCPU"):
            assert names(included_keys(), INCLUDED) == {"SparseCPU"}
        seen.append(ran("CPU"))
        with PreserveDispatchKeyGuard():
            set_included("CUDA", True)
            set_included("CUDA", False)
            seen.append(ran("CPU"))
        return seen, sets()

    seen, end = in_thread(run)
    assert seen == ["CUDA", "CPU", "CPU", "CPU"]
    assert end == (INCLUDED, EXCLUDED)


@pytest.mark.shared
def test_what_guards_cost_all_threads_ends_with_them():
    """Calls in C look for guards only while some thread has one: the count of such threads."""
    from mdispatch.facts.native._call import contexts

    def leaves_one_open():
        guards.append(md.context.ExcludeDispatchKeyGuard("AutogradCPU"))
        guards[-1].__enter__()

    guards: list[object] = []
    before = contexts()
    with (
        md.context.ExcludeDispatchKeyGuard("AutogradCPU"),
        md.context.IncludeDispatchKeyGuard("Python"),
    ):
        assert contexts() == before + 1
    assert contexts() == before
    thread = threading.Thread(target=leaves_one_open)
    thread.start()
    thread.join()
    guards.clear()
    assert contexts() == before
