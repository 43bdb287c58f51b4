"""Every order of registering and closing: state and table depend only on the set that is in effect,
and a refused step changes nothing.

A *unit* is one registration, in a library of its own unless a test says otherwise. A *move* is the
steps that open a unit or close it. A registry goes through one order after the other without a
fresh start, so each order begins with whatever those before it have left behind.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import pytest
from model import RUNTIME, Model
from orders import number_of_orders, orders
from steps import (
    PROBES,
    Carrier,
    Player,
    called,
    everything,
    facts_of,
    left_over,
    masks_of,
    observe,
    rows_of,
)

import mdispatch as md
from mdispatch.dispatch.operators import OpOverload
from mdispatch.facts.local import LocalRegistry
from mdispatch.keys import RUNTIME_KEYS

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

Move = tuple[tuple, ...]
Order = tuple[Move, ...]

NAMES = ("s::f",)

# The kind and the namespace of the library, and what it registers. "{}" tells instances apart.
UNITS = {
    "library": ("DEF", "s"),
    "def": ("FRAGMENT", "s", "define", "f(Tensor x) -> str"),
    "other def": ("FRAGMENT", "s", "define", "f(Tensor x, int n=1) -> str"),
    "impl": ("IMPL", "s", "impl", "f", "CPU", "cpu{}"),
    "catch-all": ("IMPL", "s", "impl", "f", "", "any{}"),
    "fallthrough": ("IMPL", "s", "impl", "f", "AutogradCPU", "fallthrough"),
    "explicit": ("IMPL", "s", "impl", "f", "CompositeExplicitAutograd", "explicit{}"),
    "non-functional": ("IMPL", "s", "impl", "f", "CompositeExplicitAutogradNonFunctional", "non{}"),
    "sparse": ("IMPL", "s", "impl", "f", "SparseCUDA", "sparse{}"),
    "nested": ("IMPL", "s", "impl", "f", "NestedTensorCPU", "nested{}"),
    "autograd": ("IMPL", "s", "impl", "f", "Autograd", "autograd{}"),
    # It fits "other def" but not "def".
    "signed": ("IMPL", "s", "impl", "f", "XLA", "signed{}", "(Tensor x, int n) -> str"),
    "fallback": ("IMPL", "_", "fallback", "CUDA", "fallback{}"),
    "name": ("IMPL", "s", "name", "f"),
}
ONE_OF_EACH = ("library", "def", "impl", "fallback", "name")
#: With a second instance of each unit for which that makes a difference.
ALL_UNITS = (*UNITS, "library", "impl", "fallback", "name")

REFUSED = {"DuplicateRegistrationError", "SignatureMismatchError"}

# --- leading a registry through orders ------------------------------------------------------------


class Walk:
    """A registry and its model, which go through the same steps."""

    def __init__(self, registry: md.Registry, *, thorough: bool = False) -> None:
        self.registry = registry
        self.player = Player(registry)
        self.model = Model()
        self.thorough = thorough
        self.steps = self.refused = self.compared = 0
        self._generation: object = None
        self._known: dict[tuple, dict] = {}  # what has to be observed, by the set in effect
        self._carriers = [Carrier(*keys) for keys in PROBES]

    def do(self, move: Move) -> bool:
        """Takes the steps of a move. Returns whether it has changed the set in effect."""
        before = self.model.facts
        for step in move:
            self.steps += 1
            expected = self.model.perform(step)
            if expected in REFUSED:
                self.refused += 1
                there = everything(self.registry)
                assert self.player.perform(step) == expected, step
                assert everything(self.registry) == there, step
            else:
                assert self.player.perform(step) == expected, step
        generation = self.model.generation(NAMES[0])
        if generation not in (None, self._generation):
            self._generation = generation
            for who in (self.player, self.model):
                who.perform(("hold", 0, NAMES[0]))
                del who.held[:-2]  # the present one and a past one
        return self.model.facts != before

    def compare(self) -> None:
        """Compares with the model: everything, when this set is in effect for the first time; later
        the registrations, the table and masks that calls use, and one call. And always the state of
        the operators of two definitions.
        """
        self.compared += 1
        assert self.player.call_held() == self.model.call_held()
        facts = self.model.facts
        expected = self._known.get(facts)
        if expected is None or self.thorough:
            expected = self._known[facts] = self.model.observe(NAMES)
            assert observe(self.registry, NAMES) == expected
            return
        assert facts_of(self.registry) == expected["facts"]
        probe = self.compared % len(PROBES)
        for name in NAMES:
            of_name = expected["of"][name]
            table = self.registry.dispatcher.entry(name).current_table()
            assert rows_of(table) == of_name["here"]
            assert masks_of(table) == of_name["masks"]
            operator = OpOverload(self.registry.dispatcher, name)
            assert called(operator, self._carriers[probe]) == of_name["calls"][probe]

    def lead(self, given: Iterable[Order]) -> int:
        """Compares after every move of every order, except the moves that an order shares with the
        one before. Returns the number of orders.
        """
        count = 0
        before: Order = ()
        for order in given:
            differs = next(at for at in range(len(order)) if order[: at + 1] != before[: at + 1])
            for at, move in enumerate(order):
                self.do(move)
                if at >= differs:
                    self.compare()
            self.check_nothing_is_left()
            before = order
            count += 1
        return count

    def check_nothing_is_left(self) -> None:
        assert self.model.facts == ()
        assert left_over(self.registry) == []


def local_registry() -> md.Registry:
    return md.Registry(LocalRegistry())


def opening(i: int, unit: str) -> Move:
    kind, namespace, *registration = UNITS[unit]
    move: Move = (("open", i, kind, namespace),)
    return (*move, registering(i, i, unit)) if registration else move


def registering(library: int, i: int, unit: str) -> tuple:
    _, _, verb, *arguments = UNITS[unit]
    return (verb, library, *(each.format(i) for each in arguments))


def closing(i: int) -> Move:
    return (("close", i),)


def orders_of(
    units: tuple[str, ...], start: int = 0, stop: int | None = None, step: int = 1
) -> Iterator[Order]:
    """The orders of opening and closing the units that have these numbers, by default all."""
    moves = [(opening(i, unit), closing(i)) for i, unit in enumerate(units)]
    for order in orders(len(units), start, stop, step):
        yield tuple(moves[i][i in order[:at]] for at, i in enumerate(order))


def test_the_model_has_the_keys_in_the_order_of_the_table() -> None:
    assert [key.name for key in RUNTIME_KEYS] == list(RUNTIME)


# --- all orders -----------------------------------------------------------------------------------

ALL_ORDERS = 113_400  # 10! / 2**5
PARTS = 20


@pytest.mark.dear
def test_there_are_as_many_orders_as_there_should_be() -> None:
    for units in range(5):
        moves = [unit for unit in range(units) for _ in range(2)]
        assert list(orders(units)) == sorted(set(itertools.permutations(moves)))
    assert [number_of_orders(units) for units in range(1, 6)] == [1, 6, 90, 2520, ALL_ORDERS]
    ends = orders(5, 0, ALL_ORDERS, ALL_ORDERS - 1)
    assert list(ends) == [(0, 0, 1, 1, 2, 2, 3, 3, 4, 4), (4, 4, 3, 3, 2, 2, 1, 1, 0, 0)]


@pytest.mark.dear
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_in_every_order_of_one_of_each_kind_what_is_registered_decides_alone(
    part: int, long_form: bool
) -> None:
    size = ALL_ORDERS // PARTS
    length = size if long_form else size // 150
    walk = Walk(local_registry())
    first = part * size
    assert walk.lead(orders_of(ONE_OF_EACH, first, first + length)) == length
    walk.registry.check_invariants()


@pytest.mark.dear
@pytest.mark.timeout(600)
@pytest.mark.parametrize("unit", UNITS)
def test_in_every_order_of_up_to_three_of_any_what_is_registered_decides_alone(
    unit: str, long_form: bool
) -> None:
    walk = Walk(local_registry())
    units = list(UNITS)
    later = units[units.index(unit) :]
    count = len(later)
    assert walk.lead(orders_of((unit,))) == 1
    assert sum(walk.lead(orders_of((unit, other))) for other in later) == 6 * count
    three = itertools.combinations_with_replacement(later, 2)
    one_in = 1 if long_form else 36
    some = itertools.islice(three, 0, None, one_in)
    done = sum(walk.lead(orders_of((unit, *others))) for others in some)
    all_of_three = count * (count + 1) // 2
    assert done == 90 * -(-all_of_three // one_in)
    walk.registry.check_invariants()


@pytest.mark.thorough
@pytest.mark.dear
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(5))
def test_the_shared_registry_has_it_the_same_in_any_order(part: int, long_form: bool) -> None:
    one_in = 50 if long_form else 6000
    with md.Registry.create() as registry:
        walk = Walk(registry, thorough=True)
        done = walk.lead(orders_of(ONE_OF_EACH, part, step=one_in))
        assert done == len(range(part, ALL_ORDERS, one_in))
        of_three = list(itertools.combinations_with_replacement(UNITS, 3))
        for units in of_three[part :: 5 if long_form else 300]:
            walk.lead(orders_of(units, part, step=5))
        assert walk.refused > 0
        registry.check_invariants()


# --- several in one library -----------------------------------------------------------------------


def partitions(items: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """All ways to divide the items into groups."""
    if not items:
        yield []
        return
    first, *rest = items
    for groups in partitions(tuple(rest)):
        yield [(first,), *groups]
        for at, group in enumerate(groups):
            yield [*groups[:at], (first, *group), *groups[at + 1 :]]


def grouped_orders(units: tuple[str, ...], groups: list[tuple[int, ...]]) -> Iterator[Order]:
    """All orders in which each group's units are registered in one library, which is closed after
    the last of them.
    """
    moves: list[Move] = []
    needs: list[set[int]] = []
    for library, group in enumerate(groups):
        own = {len(moves) + at for at in range(len(group))}
        moves += [(registering(library, i, units[i]),) for i in group] + [closing(library)]
        needs += [set() for _ in group] + [own]
    opened = tuple(("open", library, "FRAGMENT", "s") for library in range(len(groups)))

    def go_on(done: tuple[int, ...]) -> Iterator[Order]:
        if len(done) == len(moves):
            yield opened, *(moves[i] for i in done)
        for i in range(len(moves)):
            if i not in done and needs[i] <= set(done):
                yield from go_on((*done, i))

    return go_on(())


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "units",
    [
        ("def", "impl", "impl", "catch-all"),
        ("def", "signed", "impl", "name"),
        ("catch-all", "explicit", "sparse", "fallthrough"),
    ],
    ids="-".join,
)
def test_it_does_not_matter_which_registrations_share_a_library(
    units: tuple[str, ...], long_form: bool
) -> None:
    walk = Walk(local_registry())
    one_in = 1 if long_form else 8
    for groups in partitions(tuple(range(len(units)))):
        # A group is closed after its units: this holds for one in so many of all orders.
        count = math.factorial(len(units) + len(groups))
        count //= math.prod(len(group) + 1 for group in groups)
        grouped = grouped_orders(units, groups)
        assert walk.lead(itertools.islice(grouped, 0, None, one_in)) == -(-count // one_in)
    walk.registry.check_invariants()


# --- every transition -----------------------------------------------------------------------------


class Transitions:
    """Walks over every transition between the states with up to ``depth`` open units. A state is
    the open units, in the order in which they were opened. Of the states with ``depth`` units it
    visits one in so many.
    """

    def __init__(self, walk: Walk, units: tuple[str, ...], depth: int, one_in: int) -> None:
        self.walk = walk
        self.moves = [(opening(i, unit), closing(i)) for i, unit in enumerate(units)]
        self.depth = depth
        self.one_in = one_in
        self.open: list[int] = []
        self.states = self.transitions = 0

    def visit(self) -> None:
        """All transitions out of the present state and out of the states after it. Ends in the
        present state.
        """
        self.states += 1
        for at in range(len(self.open) - 1):
            self._close_and_restore(at)
        if len(self.open) < self.depth:
            deepest = len(self.open) == self.depth - 1
            first = sum(self.open) % self.one_in if deepest else 0
            for i in range(first, len(self.moves), self.one_in if deepest else 1):
                if i not in self.open:
                    self._open_and_visit(i)

    def _open_and_visit(self, i: int) -> None:
        self.transitions += 1
        registered = self._open(i)
        self.walk.compare()
        if registered:
            self.visit()
            self.transitions += 1
        self._close(i)
        self.walk.compare()

    def _close_and_restore(self, at: int) -> None:
        """The transition that closes a unit other than the newest one, and the way back."""
        closed, *newer = self.open[at:]
        self.transitions += 1
        self._close(closed)
        self.walk.compare()
        for i in reversed(newer):
            self._close(i)
        for i in (closed, *newer):
            assert self._open(i)

    def _open(self, i: int) -> bool:
        registered = self.walk.do(self.moves[i][0])
        if registered:
            self.open.append(i)
        return registered

    def _close(self, i: int) -> None:
        self.walk.do(self.moves[i][1])
        if i in self.open:
            self.open.remove(i)


@pytest.mark.dear
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(len(ALL_UNITS)))
def test_every_transition_leads_to_what_is_then_in_effect(first: int, long_form: bool) -> None:
    walk = Walk(local_registry())
    depth, one_in = (5, 1) if long_form else (3, 4)
    every = Transitions(walk, ALL_UNITS, depth, one_in)
    every._open_and_visit(first)
    walk.check_nothing_is_left()
    walk.registry.check_invariants()
    assert walk.refused > 0
    assert every.states > (20_000 if long_form else 50)
