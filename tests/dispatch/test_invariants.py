"""check_invariants(): silent in every state that registrations lead to, and reports any other
state.
"""

from __future__ import annotations

import random
import sys
import threading

import pytest
from invariants import broken
from kinds import run_main

import mdispatch as md
from mdispatch import errors
from mdispatch import facts as kinds
from mdispatch.dispatch import pairing
from mdispatch.dispatch import table as _table
from mdispatch.dispatch.kernels import LocalKernel
from mdispatch.facts import Registration
from mdispatch.facts.local import LocalRegistry
from mdispatch.keys import BACKEND_BITS, RUNTIME_KEYS, DispatchKey


class Array:
    def __init__(self, *keys):
        self.__dispatch_keys__ = keys or ("CPU",)


CPU = Array()


def says(word):
    return lambda *args: word


@pytest.fixture
def registry():
    """A registry whose part in this interpreter these tests may leave broken. With the plugin's
    registry they would fail at the end.
    """
    with md.Registry.create() as created:
        yield created
        assert created.dispatcher.facts.check() == ""


@pytest.fixture
def lib(registry):
    """A library with s::f, a kernel at CPU and one for all backends."""
    made = md.Library("s", "DEF", registry=registry)
    made.define("f(Tensor x) -> str")
    made.impl("f", says("cpu"), "CPU")
    made.impl("f", says("any"), "CompositeExplicitAutograd")
    return made


@pytest.fixture
def entry(registry, lib):
    """The entry of s::f, after a call has made its table."""
    assert registry.ops.s.f(CPU) == "cpu"
    return registry.dispatcher.entry("s::f")


# --- silent ---------------------------------------------------------------------------------------


def test_a_registry_is_sound_before_anything_is_registered_and_when_all_is_gone(registry):
    registry.check_invariants()
    registry.check_invariants("s::f")
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("f(Tensor x) -> str")
    lib.close()
    registry.check_invariants()
    registry.check_invariants("s::f")


KEYS = [key.name for key in DispatchKey if key in RUNTIME_KEYS or key.is_alias]


@pytest.mark.thorough
def test_after_each_of_many_random_steps_main_and_worker_are_sound(registry, worker):
    for seed in range(4):
        rng = random.Random(seed)
        libraries = []
        for _ in range(30):
            lib = md.Library("s", "FRAGMENT", registry=registry)
            step = rng.choice(["define", "impl", "impl", "impl", "name", "fallback", "close"])
            name, key = f"f{rng.randrange(3)}", rng.choice(KEYS)
            kernel = rng.choice([says("kernel"), md.fallthrough_kernel])
            try:
                if step == "close" and libraries:
                    libraries.pop(rng.randrange(len(libraries))).close()
                elif step == "define":
                    lib.define(f"{name}(Tensor x) -> str")
                elif step == "impl":
                    lib.impl(name, kernel, key, with_keyset=rng.random() < 0.2)
                    if rng.random() < 0.5:
                        mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
                        mine.impl(name, kernel, key)
                        libraries.append(mine)
                elif step == "name":
                    lib.register_name(name)
                elif step == "fallback":
                    lib = md.Library("_", "IMPL", registry=registry)
                    lib.fallback(kernel, key)
            except (errors.DuplicateRegistrationError, errors.InvalidKeyError):
                pass
            libraries.append(lib)
            for each in (registry, worker):
                for operator in each.operators():
                    each.dispatcher.entry(operator).current_table()
                each.check_invariants(rng.choice([None, f"s::{name}", f"s::{name}"]))
        for lib in libraries:
            lib.close()
            registry.check_invariants(f"s::{name}")
        registry.check_invariants()
        worker.check_invariants()


def test_checking_leaves_nothing_behind(registry, lib, worker):
    for each in (registry, worker):
        before = dict(each.dispatcher.entries)
        each.check_invariants()
        each.check_invariants("s::f")
        each.check_invariants("s::nothing")
        assert dict(each.dispatcher.entries) == before


def test_a_forked_child_is_sound_with_what_it_inherits_and_what_it_keeps():
    got = run_main(
        """
        lib = md.Library("s", "DEF")
        lib.define("f(int n) -> int")
        lib.impl("f", lambda n: n)
        assert md.ops.s.f(1) == 1
        child = os.fork()
        if child == 0:
            signal.alarm(int(limit(30)))
            md.default_registry().check_invariants()
            assert md.ops.s.f(2) == 2
            md.default_registry().check_invariants()
            os._exit(7)
        status = os.waitpid(child, 0)[1]
        lib.close()
        md.default_registry().check_invariants()
        done(status=os.waitstatus_to_exitcode(status))
        """
    )
    assert got["status"] == 7


def test_a_table_that_is_out_of_date_is_not_judged(registry, lib, entry, worker):
    """The next call replaces it."""
    assert worker.dispatcher.entry("s::f").current_table()
    kept = worker.dispatcher.entry("s::f")._state
    lib.impl("f", says("newer"), "CPU")
    assert worker.dispatcher.entry("s::f")._state is kept
    worker.check_invariants()
    registry.check_invariants()


# --- loud -----------------------------------------------------------------------------------------


def test_a_kept_entry_that_is_not_what_the_registrations_give_is_found(registry, entry):
    table = entry._state.table
    good = table.entries
    wrong = _table.TableEntry(LocalKernel(DispatchKey.Meta, says("wrong"), label="wrong"), "kernel")
    for index in (0, 1, 50, len(good) - 1):
        table.entries = (*good[:index], wrong, *good[index + 1 :])
        (line,) = broken(registry, "wrong", "the registrations give")
        assert f"at {RUNTIME_KEYS[index]} " in line
    table.entries = good
    registry.check_invariants()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda table: setattr(table, "mask", table.mask ^ DispatchKey.Python.raw),
        lambda table: setattr(table, "backend_masks", (table.mask,) * 16),
    ],
    ids=["mask", "backend_masks"],
)
def test_a_kept_mask_that_is_not_that_of_its_kernels_is_found(registry, entry, break_it):
    break_it(entry._state.table)
    broken(registry, "the masks that calls use")
    entry._changed()
    registry.check_invariants()


@pytest.mark.parametrize("which", ["_kernels", "_fallbacks"])
def test_what_is_called_by_exactly_one_key_is_compared_too(registry, entry, which):
    for key in (DispatchKey.Meta, DispatchKey.CPU):
        found = getattr(entry._state.table, which)
        found[key] = LocalKernel(key, says("wrong"), label="wrong")
        if which == "_kernels" or key is DispatchKey.Meta:
            broken(registry, f"at exactly {key} calls find <kernel wrong")
        entry._changed()
        entry.current_table()
    registry.check_invariants()


def test_a_callable_without_its_fact_is_found(registry, entry):
    stray = LocalKernel(DispatchKey.CPU, says("stray"), label="stray")
    stray.seq = 999
    entry.callables += (stray,)
    broken(registry, "<kernel stray at CPU> is here without its registration, number 999")
    entry.callables = entry.callables[:-1]
    registry.check_invariants()


def test_a_callable_without_any_fact_is_found(registry):
    stray = LocalKernel(DispatchKey.CPU, says("stray"), label="stray")
    entry = registry.dispatcher.entry("s::f")
    entry.callables = (stray,)
    broken(registry, "<kernel stray at CPU> is here without its registration")


def test_a_table_that_breaks_the_rules_is_found(registry, entry, monkeypatch):
    """A table that is computed again as a whole is the same; each entry is also derived by the
    rules.
    """
    real = pairing.compute_table

    def wrong(kernels, fallbacks, below=None):
        table = real(kernels, fallbacks)
        missing = _table.TableEntry(None, "missing")
        table.entries = tuple(missing if e.reason != "kernel" else e for e in table.entries)
        return table

    monkeypatch.setattr(pairing, "compute_table", wrong)
    entry._changed()
    entry.current_table()
    lines = broken(registry, "at Meta the table has None (missing), the rules give <kernel")
    assert len(lines) > 50
    monkeypatch.undo()
    entry._changed()
    registry.check_invariants()


def test_a_mask_that_passes_by_what_does_not_fall_through_is_found(registry, entry, monkeypatch):
    real = pairing.compute_table

    def wrong(*args):
        table = real(*args)
        table.mask, table.backend_masks = table.mask & BACKEND_BITS, None
        return table

    monkeypatch.setattr(pairing, "compute_table", wrong)
    entry._changed()
    broken(registry, "CPU is passed by, which its kernel is not for")


def test_what_the_registry_itself_finds_is_reported_line_by_line(registry, entry, monkeypatch):
    monkeypatch.setattr(registry.dispatcher.facts, "check", lambda: "one thing\nanother\n")
    with pytest.raises(errors.InvariantError, match=r"one thing\n *another\n") as caught:
        registry.check_invariants()
    assert caught.value.report == "one thing\nanother"
    registry.check_invariants("s::f")


def edited(fact, **changes):
    names = ("ref", "seq", "kind", "key", "name", "text", "where", "pid", "interpreter")
    return Registration(*(changes.get(name, getattr(fact, name)) for name in names))


FACTS = {
    "defined 2 times": lambda facts: facts.append(edited(facts[0], seq=99)),
    "not in the order of their numbers": lambda facts: facts.reverse(),
    "their numbers": lambda facts: facts.append(facts[-1]),
    "is not canonical": lambda facts: edit(facts, text="s::f( Tensor x) -> str"),
    "or that of another operator": lambda facts: edit(facts, text="s::g(Tensor x) -> str"),
}


def edit(facts, **changes):
    facts[0] = edited(facts[0], **changes)


@pytest.mark.parametrize("words", FACTS)
def test_facts_that_cannot_be_are_found(words):
    facts = LocalRegistry()
    registry = md.Registry(facts)
    lib = md.Library("s", "FRAGMENT", registry=registry)
    lib.define("f(Tensor x) -> str")
    lib.impl("f", says("cpu"), "CPU")
    registry.check_invariants()
    name = facts._names["s::f"]
    found = list(name.facts)
    assert [fact.kind for fact in found] == [kinds.DEF, kinds.IMPL]
    FACTS[words](found)
    name.facts = tuple(found)
    broken(registry, words)
    registry.close()


# --- no false alarm -------------------------------------------------------------------------------


def hammer(*actions, rounds=120):
    """Runs the actions in threads of their own. Returns the errors that they raised."""
    raised = []

    def run(action):
        try:
            for number in range(rounds):
                action(number)
        except BaseException as error:
            raised.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=(action,)) for action in actions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    return raised


@pytest.mark.thorough
@pytest.mark.dear
def test_threads_that_register_call_and_close_raise_no_false_alarm(registry, lib, worker):
    f, elsewhere = registry.ops.s.f.default, worker.ops.s.f.default
    mine = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
    mine.impl("f", says("worker"), "CPU")

    def kernels(number):
        other = md.Library("s", "IMPL", registry=registry)
        other.impl("f", says("new"), "CPU")
        other.impl("f", md.fallthrough_kernel, KEYS[number % len(KEYS)])
        other.close()

    def definitions(number):
        other = md.Library("s", "FRAGMENT", registry=registry)
        other.define(f"g{number % 3}(Tensor x) -> str")
        other.impl(f"g{number % 3}", says("g"), "Meta")
        other.close()

    def fallbacks(number):
        wild = md.Library("_", "IMPL", registry=registry)
        wild.fallback(says("fallback"), "Conjugate")
        wild.close()

    def calls(number):
        assert f(CPU) in ("cpu", "new", "any")  # any: while CPU falls through
        for call in (elsewhere, lambda x: registry.ops.s.g0(x)):
            try:
                call(CPU)
            except (errors.MissingKernelError, errors.OperatorGoneError):
                pass
            except errors.OperatorNotFoundError:
                pass

    def checks(number):
        registry.check_invariants()
        worker.check_invariants()
        registry.check_invariants("s::f")

    assert hammer(kernels, definitions, fallbacks, calls, checks) == []
    registry.check_invariants()


@pytest.mark.parametrize("at", [0, 1], ids=["before", "after"])
def test_a_fallback_that_main_closes_between_two_looks_of_a_worker_is_no_false_alarm(
    registry, lib, worker, at
):
    wild = md.Library("_", "IMPL", registry=registry)
    wild.fallback(says("main"), "Conjugate")
    entry = worker.dispatcher.entry("s::f")
    kept = entry.current_table()
    looks = []

    class Meanwhile:
        """The registry, in which something changes around the first look at the operator."""

        def __getattr__(self, name):
            return getattr(worker.dispatcher.facts, name)

        def registrations(self, name):
            looks.append(name)
            if at == 0 and looks == [entry.name]:
                wild.close()
            found = worker.dispatcher.facts.registrations(name)
            if at == 1 and looks == [entry.name]:
                wild.close()
            return found

    entry.facts = Meanwhile()
    worker.check_invariants("s::f")
    assert looks.count(entry.name) == 1 + at
    assert entry.current_table() is not kept


def test_while_a_worker_keeps_a_fallback_there_is_no_false_alarm(registry, lib, worker):
    """A table from before is out of date as soon as the callable is there."""
    wild = md.Library("_", "IMPL", registry=registry)
    wild.fallback(says("main"), "Conjugate")
    entry = worker.dispatcher.entry("s::f")
    kept = []
    mine = md.Library("_", "IMPL", registry=worker, timeout=0)
    for change in (lambda: mine.fallback(says("worker"), "Conjugate"), mine.close):
        kept.append(entry.current_table())
        change()
        assert entry._state is not None
        worker.check_invariants()
        assert entry.current_table() is not kept[-1]
