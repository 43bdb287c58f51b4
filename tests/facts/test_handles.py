"""The end of registrations: handles and libraries that are closed twice, from many threads, or in
the middle of registering; and refused registrations, which leave nothing to end.
"""

from __future__ import annotations

import sys
import threading

import pytest
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch import facts as kinds
from mdispatch.facts.local import LocalRegistry
from mdispatch.facts.native import native

pytestmark = pytest.mark.shared


class Array:
    __dispatch_keys__ = "CPU"


CPU = Array()


def says(word):
    return lambda *args: word


def there(registry):
    """The kind and the name of every registration."""
    _, _, found = registry.dispatcher.facts.registrations()
    return sorted((kinds.kind_of(f.kind).name, f.name) for f in found)


@pytest.fixture(autouse=True)
def every_test_leaves_a_sound_registry(registry):
    yield
    registry.check_invariants()


def together(count, function):
    """Runs the function in that many threads at once; returns the errors that they raised."""
    raised = []
    barrier = threading.Barrier(count)

    def run(i):
        barrier.wait(limit(60))
        try:
            function(i)
        except BaseException as error:
            raised.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return raised


REGISTER = {
    "library": lambda r: md.Library("s", "DEF", registry=r),
    "def": lambda r: fragment(r).define("f(Tensor x) -> str"),
    "impl": lambda r: fragment(r).impl("f", says("kernel"), "CPU"),
    "impl with signature": lambda r: fragment(r).impl(
        "f", says("kernel"), "CPU", signature="(Tensor x) -> str"
    ),
    "name": lambda r: fragment(r).register_name("f"),
    "fallback": lambda r: md.Library("_", "IMPL", registry=r).fallback(says("fallback"), "CPU"),
}


def fragment(registry):
    return md.Library("s", "FRAGMENT", registry=registry)


def spy_on_handles(monkeypatch):
    """Collects the handles that libraries get from now on."""
    held = []
    hold = md.Library.hold
    monkeypatch.setattr(
        md.Library, "hold", lambda self, handle: held.append(handle) or hold(self, handle)
    )
    return held


def handle_of(registry, what, monkeypatch):
    """Registers and returns the handle."""
    with monkeypatch.context() as patch:
        held = spy_on_handles(patch)
        REGISTER[what](registry)
    (handle,) = held
    return handle


@pytest.mark.parametrize("what", REGISTER)
def test_a_handle_knows_its_registration_and_ends_just_that(registry, monkeypatch, what):
    others = [handle_of(registry, each, monkeypatch) for each in REGISTER if each != what]
    before = there(registry)
    handle = handle_of(registry, what, monkeypatch)
    fact = handle.registration
    assert kinds.kind_of(fact.kind).name == what.partition(" ")[0]
    assert fact in registry.dispatcher.facts.registrations()[2]
    assert fact.where.startswith(f"{__file__}:")
    handle.close()
    assert there(registry) == before
    for other in others:
        other.close()
    assert there(registry) == []
    callables = [
        registry.dispatcher.fallbacks.kernels,
        *(entry.kernels for entry in registry.dispatcher.entries.values()),
    ]
    assert not [kernel for here in callables for kernels in here.values() for kernel in kernels]


def test_who_closes_again_does_not_take_an_overload_from_who_defined_it_since(
    registry, monkeypatch
):
    fragment(registry).define("f.other(Tensor x, int n) -> str")
    late = handle_of(registry, "def", monkeypatch)
    late.close()
    REGISTER["def"](registry)
    assert registry.ops.s.f.overloads() == ["other", "default"]
    late.close()
    assert registry.ops.s.f.overloads() == ["other", "default"]


@pytest.mark.parametrize("what", REGISTER)
def test_a_handle_that_many_threads_close_ends_its_registration_once(registry, monkeypatch, what):
    """A registration that another thread makes meanwhile stays: a late closer ends nothing."""
    spied = spy_on_handles(monkeypatch)
    for _ in range(20):
        REGISTER[what](registry)
        old = spied.pop()

        def run(i, old=old):
            old.close()
            while i == 0:
                try:
                    REGISTER[what](registry)
                except errors.DuplicateRegistrationError:
                    continue  # the thread that closes has not finished yet
                break
            old.close()

        assert together(4, run) == []
        (new,) = spied
        assert there(registry) == [(what.partition(" ")[0], new.registration.name)]
        old.close()
        assert len(there(registry)) == 1
        spied.pop().close()
        assert there(registry) == []


@pytest.mark.parametrize("what", REGISTER)
def test_a_handle_does_nothing_once_the_registry_is_closed(what, monkeypatch):
    registry = md.Registry.create()
    handle = handle_of(registry, what, monkeypatch)
    registry.close()
    handle.close()
    handle.close()


def test_a_registry_that_is_just_being_closed_gives_no_view_of_its_words():
    registry = md.Registry.create()
    # Another thread may close it right after view() has looked.
    native.close(registry.dispatcher.facts._handle)
    with pytest.raises(errors.RegistryClosedError):
        registry.dispatcher.facts.view()
    registry.close()


def test_a_library_that_many_threads_close_ends_everything_once(registry):
    for _ in range(20):
        lib = md.Library("s", "DEF", registry=registry)
        for i in range(5):
            lib.define(f"f{i}(Tensor x) -> str")
            lib.impl(f"f{i}", says(i), "CPU")
        assert together(4, lambda i, lib=lib: lib.close()) == []
        assert lib.closed
        assert there(registry) == []


def test_libraries_of_many_threads_register_and_close_without_touching_each_other(registry):
    def run(i):
        for number in range(40):
            lib = fragment(registry)
            lib.define(f"f{i}(Tensor x) -> Any")
            lib.impl(f"f{i}", says((i, number)), "CPU")
            lib.impl("shared", says(i), "CPU", signature="(Tensor x) -> Any")
            lib.register_name("name")
            assert getattr(registry.ops.s, f"f{i}")(CPU) == (i, number)
            lib.close()

    assert together(4, run) == []
    assert there(registry) == []


# --- closed in the middle -------------------------------------------------------------------------


class Between(LocalRegistry):
    """Runs something in another thread right before a registration of this kind is registered."""

    def __init__(self):
        super().__init__()
        self.kind = self.action = None

    def register(self, kind, *rest):
        if kind == self.kind:
            self.kind = None
            thread = threading.Thread(target=self.action)
            thread.start()
            thread.join(limit(30))
        return super().register(kind, *rest)


@pytest.mark.parametrize(
    ("kind", "register"),
    [
        (kinds.DEF, lambda lib: lib.define("f(Tensor x) -> str")),
        (kinds.IMPL, lambda lib: lib.impl("f", says("late"), "CPU")),
        (kinds.NAME, lambda lib: lib.register_name("f")),
    ],
    ids=["def", "impl", "name"],
)
def test_what_is_registered_while_another_thread_closes_the_library_does_not_stay(kind, register):
    facts = Between()
    registry = md.Registry(facts)
    lib = fragment(registry)
    facts.kind, facts.action = kind, lib.close
    with pytest.raises(errors.LibraryClosedError):
        register(lib)
    assert there(registry) == []
    registry.check_invariants()
    registry.close()


# --- refused --------------------------------------------------------------------------------------

TWICE = {
    "library": lambda r: md.Library("s", "DEF", registry=r),  # another location
    "def": REGISTER["def"],
    "fallback": REGISTER["fallback"],
}


@pytest.mark.parametrize("what", TWICE)
def test_a_second_one_is_refused_and_the_first_goes_on_until_it_is_closed(
    registry, monkeypatch, what
):
    first = handle_of(registry, what, monkeypatch)
    state = there(registry), registry.dispatcher.facts.registrations()
    with pytest.raises(errors.DuplicateRegistrationError):
        TWICE[what](registry)
    assert (there(registry), registry.dispatcher.facts.registrations()) == state
    first.close()
    TWICE[what](registry)


def test_of_threads_that_register_the_same_one_gets_it_and_the_others_hear_where(registry):
    for number in range(30):
        lib = fragment(registry)
        raised = together(4, lambda i, n=number, lib=lib: lib.define(f"f{n}(Tensor x) -> Any"))
        assert [type(error) for error in raised] == [errors.DuplicateRegistrationError] * 3
        assert {error.name for error in raised} == {f"s::f{number}"}
        assert len(there(registry)) == 1
        lib.close()
        assert there(registry) == []
