"""Random lives of a registry, compared with the model: a state machine that hypothesis drives.

Two main interpreters take the same steps, one with the local registry, one with the shared one. Two
workers are attached to the shared registry. One repeats every step at once; the other takes steps
of the past at any time, so that mostly it has other kernels than the main interpreter. All four
keep the operator of every definition for ever, and guards are open while they make calls.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from model import (
    ALIASES,
    BUILT_IN,
    EXCLUDED,
    FUNCTIONALITIES,
    INCLUDED,
    RUNTIME,
    Model,
    WorkerModel,
)
from steps import PROBES, Carrier, Player, called, everything, left_over, observe

import mdispatch as md
from mdispatch.dispatch.context import guards
from mdispatch.dispatch.operators import OpOverload
from mdispatch.facts.local import LocalRegistry

pytestmark = [pytest.mark.specification, pytest.mark.either_binding, pytest.mark.shared]

NAMES = ("s::f", "s::f.out", "t::g")

LIBRARIES = st.integers(0, 4)
OPERATORS = st.sampled_from(["f", "f", "f.out", "g"])
#: Without the keys at which mdispatch has fallbacks that go on to another kernel: no model runs
#: those.
CARRIED = [key for key in RUNTIME[1:] if BUILT_IN.get(key, "fallthrough") == "fallthrough"]
#: Keys that have rules about each other come more often than the rest.
KEYS = st.one_of(
    st.sampled_from(["CPU", "AutogradCPU", "SparseCUDA", "AutogradOther", "BackendSelect"]),
    st.sampled_from(["", *ALIASES]),
    st.sampled_from(RUNTIME),
    st.sampled_from(FUNCTIONALITIES),
)
SCHEMAS = st.sampled_from(
    [
        "f(Tensor x) -> str",
        "f( Tensor x )->str",
        "f(Tensor x, int n=1) -> str",
        "f.out(Tensor x) -> str",
        "g(Tensor x) -> str",
        "g() -> str",
    ]
)
ATTRIBUTES = st.sampled_from([(), (), ("CONSERVATIVE",), ("", ("core",))])
SIGNATURES = st.sampled_from(["(Tensor x) -> str", "(Tensor x, int n) -> str", "("])
LABELS = st.sampled_from(["new", "new", "new", "same", "fallthrough"])
KEY_SETS = st.one_of(
    st.sampled_from(PROBES),
    st.lists(st.sampled_from(CARRIED), max_size=3).map(tuple),
)
#: The keys that guards add and take away.
GUARDED = st.sampled_from(
    [
        ("AutogradCPU",),
        ("AutogradCPU", "ADInplaceOrView"),
        ("BackendSelect",),
        ("CUDA",),
        ("SparseCUDA",),
        ("FuncTorchBatched", "Functionalize"),
        (),
    ]
)

AT_FIRST = [
    ("FRAGMENT", "s"),
    ("IMPL", "s"),
    ("FRAGMENT", "s"),
    ("IMPL", "_"),
    ("DEF", "t"),
]

#: How often each thing has happened, in all runs of a test.
happened: Counter[str] = Counter()


class Actor:
    """An interpreter and its model."""

    def __init__(self, registry: md.Registry, model: Model | WorkerModel) -> None:
        self.registry = registry
        self.player = Player(registry)
        self.model = model

    def perform(self, step: tuple) -> str:
        library = self.model.libraries.get(step[1])
        if step[0] == "open" and library is not None and not library.closed:
            self.perform(("close", step[1]))
        before = everything(self.registry)
        outcome = self.model.perform(step)
        assert self.player.perform(step) == outcome, step
        # A library that is opened again takes the place of the earlier one, even if it is refused
        # later.
        if outcome and step[0] != "open":
            assert everything(self.registry) == before, step
        return outcome

    def close_all(self) -> None:
        for i in list(self.model.libraries):
            self.perform(("close", i))
        assert left_over(self.registry) == []


class Guard:
    """An open guard, and its changes of the sets of key names."""

    def __init__(self, what: str, keys: tuple[str, ...], others: tuple[str, ...]) -> None:
        self.what = what
        self.keys = frozenset(keys)
        self.others = frozenset(others)
        if what == "include":
            self.real = guards.IncludeDispatchKeyGuard(keys)
        elif what == "exclude":
            self.real = guards.ExcludeDispatchKeyGuard(keys)
        else:
            self.real = guards.ForceDispatchKeyGuard(keys, others)
        self.real.__enter__()

    def apply(
        self, included: frozenset[str], excluded: frozenset[str]
    ) -> tuple[frozenset[str], frozenset[str]]:
        if self.what == "include":
            return included | self.keys, excluded
        if self.what == "exclude":
            return included, excluded | self.keys
        return self.keys, self.others


class Life(RuleBasedStateMachine):
    """One life of a registry."""

    @initialize()
    def begin(self) -> None:
        self.labels = self.late = self.turn = self.followed = 0
        self.past: list[tuple] = []
        self.repeatable: tuple | None = None
        self.generations: dict[str, object] = dict.fromkeys(NAMES)
        self.guards: list[Guard] = []
        local, shared = md.Registry(LocalRegistry()), md.Registry.create()
        mirror, other = (md.Registry.attach(shared.address) for _ in range(2))
        self.mains = [Actor(local, Model()), Actor(shared, Model())]
        self.model = self.mains[1].model
        self.mirror = Actor(mirror, WorkerModel(self.model))
        self.other = Actor(other, WorkerModel(self.model))
        self.actors = [*self.mains, self.mirror, self.other]
        for i, (kind, namespace) in enumerate(AT_FIRST):
            self.step("open", i, kind, namespace)
        self.step("define", 0, "f(Tensor x) -> str")
        self.step("define", 4, "g(Tensor x) -> str")

    # --- steps

    def step(self, *step) -> None:
        library = self.model.libraries.get(step[1])
        if step[0] not in ("open", "close") and (library is None or library.closed):
            # A closed library tests little, so most often it is opened again.
            self.late = (self.late + 1) % 4
            if self.late:
                self.perform("open", step[1], *AT_FIRST[step[1]])
        self.perform(*step)

    def perform(self, *step) -> None:
        self.past.append(step)
        local, shared = (main.perform(step) for main in self.mains)
        assert local == shared, step
        mirrored = self.mirror.perform(step)
        assert shared or not mirrored, f"{step} is refused in the worker only: {mirrored}"
        happened[shared or step[0]] += 1
        for name, generation in self.generations.items():
            self.generations[name] = self.model.generation(name)
            if self.generations[name] not in (None, generation):
                self.perform("hold", 0, name)

    @rule(
        i=LIBRARIES,
        kind=st.sampled_from(["DEF", "FRAGMENT", "FRAGMENT", "IMPL", "IMPL"]),
        namespace=st.sampled_from(["s", "s", "t", "_"]),
        key=st.sampled_from(["", "", "", "CPU", "SparseCUDA"]),
        tag=st.sampled_from(["", "", "module"]),
    )
    def open_a_library(self, i: int, kind: str, namespace: str, key: str, tag: str) -> None:
        if i:  # most often arguments that fit
            kind = "IMPL" if namespace == "_" else kind
            key = key if kind == "IMPL" else ""
        self.step("open", i, kind, namespace, key, tag)

    @rule(i=st.sampled_from([0, 2, 4, 0, 2, 1]), schema=SCHEMAS)
    def define(self, i: int, schema: str) -> None:
        self.step("define", i, schema)

    @rule(i=st.sampled_from([2, 0, 4]), schema=SCHEMAS, attributes=ATTRIBUTES)
    def define_with_more(self, i: int, schema: str, attributes: tuple) -> None:
        self.step("define", i, schema, *attributes)

    @rule(i=LIBRARIES, operator=OPERATORS, key=KEYS, label=LABELS)
    def implement(self, i: int, operator: str, key: str, label: str) -> None:
        self.step("impl", i, operator, key, self.named(label))

    @rule(i=st.integers(0, 2), key=KEYS)
    def implement_f(self, i: int, key: str) -> None:
        self.step("impl", i, "f", key, self.named("new"))

    @rule(i=st.integers(0, 2), key=st.sampled_from(ALIASES), label=LABELS)
    def implement_f_at_an_alias(self, i: int, key: str, label: str) -> None:
        self.step("impl", i, "f", key, self.named(label))

    @rule(i=st.integers(0, 2), key=st.sampled_from(["CPU", "AutogradCPU"]), signature=SIGNATURES)
    def implement_f_with_a_signature(self, i: int, key: str, signature: str) -> None:
        self.step("impl", i, "f", key, self.named("new"), signature)

    @rule(i=st.sampled_from([3, 3, 3, 0]), key=KEYS, label=LABELS)
    def fall_back(self, i: int, key: str, label: str) -> None:
        self.step("fallback", i, key, self.named(label))

    @rule(i=LIBRARIES, schema=SCHEMAS)
    def import_a_module_again(self, i: int, schema: str) -> None:
        self.step("open", i, "DEF", "s", "", "module")
        self.step("define", i, schema)

    @rule(i=LIBRARIES, operator=OPERATORS)
    def hold_a_name(self, i: int, operator: str) -> None:
        self.step("name", i, operator)

    @rule(i=LIBRARIES)
    def close(self, i: int) -> None:
        self.step("close", i)

    @rule(count=st.sampled_from([20, 5, 1]))
    def the_other_worker_follows(self, count: int) -> None:
        for step in self.past[self.followed : self.followed + count]:
            self.follow(step)
            self.followed += 1

    @rule(data=st.data())
    def the_other_worker_performs_a_step_of_the_past(self, data: st.DataObject) -> None:
        self.follow(data.draw(st.sampled_from(self.past[-10:]), "step"))

    @rule()
    def the_other_worker_repeats_itself(self) -> None:
        if self.repeatable is not None:
            self.follow(self.repeatable)

    def follow(self, step: tuple) -> None:
        outcome = self.other.perform(step)
        if step[0] == "impl" and not outcome:
            self.repeatable = step
        happened["other: " + (outcome or step[0])] += 1

    def named(self, label: str) -> str:
        self.labels += 1
        return f"k{self.labels}" if label == "new" else label

    # --- guards

    def sets(self) -> tuple[frozenset[str], frozenset[str]]:
        """The keys that this thread adds and excludes."""
        sets = INCLUDED, EXCLUDED
        for guard in self.guards:
            sets = guard.apply(*sets)
        return sets

    @precondition(lambda self: len(self.guards) < 4)
    @rule(what=st.sampled_from(["include", "exclude", "force"]), keys=GUARDED, others=GUARDED)
    def open_a_guard(self, what: str, keys: tuple[str, ...], others: tuple[str, ...]) -> None:
        self.guards.append(Guard(what, keys, others))
        happened[what] += 1

    @precondition(lambda self: self.guards)
    @rule(data=st.data())
    def end_a_guard(self, data: st.DataObject) -> None:
        guard = self.guards.pop(data.draw(st.integers(0, len(self.guards) - 1), "guard"))
        guard.real.__exit__()

    # --- calls

    @rule(name=st.sampled_from(NAMES), keys=KEY_SETS)
    def call(self, name: str, keys: tuple[str, ...]) -> None:
        sets = self.sets()
        schema = self.model.schema(name)
        for actor in self.actors:
            expected = "OperatorGoneError"
            if schema:
                given = keys if "Tensor" in schema else ()
                expected = actor.model.table(name).call(given, *sets)
            assert called(OpOverload(actor.registry.dispatcher, name), Carrier(*keys)) == expected
        happened["call of one there" if schema else "call of one gone"] += 1

    # --- what holds after every step

    @invariant()
    def all_see_what_the_model_says(self) -> None:
        with guards.ForceDispatchKeyGuard(guards.DEFAULT_INCLUDED, guards.DEFAULT_EXCLUDED):
            for actor in self.actors:
                assert observe(actor.registry, NAMES) == actor.model.observe(NAMES)
                assert actor.player.call_held() == actor.model.call_held()

    @invariant()
    def calls_take_what_guards_add_and_leave_what_they_exclude(self) -> None:
        if self.guards:
            for name in NAMES:
                for keys in PROBES:
                    self.call(name, keys)

    @invariant()
    def both_registries_have_the_same_facts(self) -> None:
        local, shared = (
            [
                # In their order; notes take numbers, too, and so tell generations apart.
                (fact.kind, fact.key, fact.name, fact.body, fact.attributes, fact.where)
                for fact in sorted(
                    main.registry.dispatcher.facts.registrations()[2], key=lambda fact: fact.seq
                )
                if fact.kind != md.facts.NOTE  # what members tell each other has process ids
            ]
            for main in self.mains
        )
        assert local == shared

    @invariant()
    def no_invariant_is_broken(self) -> None:
        self.turn += 1
        if self.turn % 8 == 0:  # this takes longer than all the rest
            for actor in self.actors:
                actor.registry.check_invariants()

    def teardown(self) -> None:
        if not hasattr(self, "actors"):
            return
        for guard in self.guards:
            guard.real.__exit__()
        self.guards = []
        for actor in self.actors:
            actor.close_all()
        assert self.model.facts == ()
        for actor in self.actors:
            assert set(actor.player.call_held()) <= {"OperatorGoneError"}
        for actor in reversed(self.actors):
            actor.registry.check_invariants()
            actor.registry.close()


#: So few lives have not all pairs of alias keys: test_orders.py and test_conformance.py show that a
#: kernel at CompositeExplicitAutograd takes the place of one at CompositeImplicitAutograd.
EVERYDAY = settings(
    max_examples=8,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)
LONG = settings(EVERYDAY, max_examples=500, stateful_step_count=60, derandomize=False)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_whatever_happens_everybody_sees_what_the_model_says(long_form: bool) -> None:
    happened.clear()
    run_machine(Life, settings=LONG if long_form else EVERYDAY)
    wanted = ["open", "define", "impl", "fallback", "name", "close", "DuplicateRegistrationError"]
    wanted += ["include", "exclude", "force", "call of one there", "call of one gone"]
    wanted += ["other: open", "other: define", "other: impl"]
    if long_form:
        wanted += ["SignatureMismatchError", "LibraryClosedError", "InvalidKeyError"]
        wanted += ["other: fallback", "other: KeyMismatchError", "other: SchemaMismatchError"]
    assert [what for what in wanted if not happened[what]] == []
