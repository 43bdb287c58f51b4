"""Which provider runs, against a plain model of the rules: random sequences of kernels, priorities
and guards, each of them called in C and in Python.
"""

from __future__ import annotations

import random
from contextlib import suppress

from seeds import seed_of

import mdispatch as md
from mdispatch import errors
from mdispatch.dispatch import call_py
from mdispatch.facts.native.binding import which


class A:
    pass


class B(A):
    pass


class C(B):
    pass


class D:
    pass


for each in (A, D):
    md.register_type(each, "CPU")
VALUES = [(cls(), number) for cls in (A, B, C, D) for number in (1, 9)]
PATTERNS = ["n::f", "n::*", "*"]  # the nearest first
NAMES = ["p", "q", "r", "s"]


def small(x, n):
    return n < 5


def ordered(by_order, rest, levels):
    """The providers of the levels, the others, and the kernels without a name that may follow."""
    order, off = [], set()
    for names, disabled, strict in levels:
        order += [each for name in names for each in by_order if each[0] == name not in off]
        off |= {*disabled} - {each[0] for each in order}
        if strict:
            by_order = rest = []
    return order, [each for each in by_order if each[0] not in off], rest


def model(kernels, settings, guards, value, number):
    """What a call gives. ``kernels`` are (name or "", order, types, predicate), oldest first,
    ``settings`` by pattern and ``guards`` are lists of (names, disabled, strict), oldest first.
    """
    providers = [each for each in kernels if each[0]]
    fitting = [each for each in kernels if each[2] is None or isinstance(value, each[2])]
    by_order = sorted((each for each in fitting if each[0]), key=lambda each: each[1])[::-1]
    rest = [each for each in fitting if not each[0]]
    nearest = [settings[pattern][-1] for pattern in PATTERNS if settings[pattern]]
    levels = [*reversed(guards), *nearest] if providers else []
    is_strict = any(strict for _, _, strict in nearest)
    if not is_strict and not any(ordered(by_order, rest, nearest if providers else [])):
        return None  # the key has no kernel, and no guard changes that
    order, others, rest = ordered(by_order, rest, levels)
    for name, _, _, supports in [*order, *others]:
        if supports is None or supports(value, number):
            return name
    # A kernel for a base comes after one for the class, and one without types after both.
    return max(rest, key=lambda each: len(each[2].__mro__) if each[2] else 0)[0] if rest else None


def answers(f, value, number):
    """What a call gives in C, and in Python: a name, or None for one that is refused."""
    for way in (f, lambda *given: call_py.call(f, given, {})):
        try:
            yield way(value, number)
        except errors.MissingKernelError:
            yield None


def play(numbers, registry):
    """One sequence: something is opened or closed, then all values are called in any order."""
    opened, kernels, guards, settings = [], [], [], {pattern: [] for pattern in PATTERNS}
    f, steps = registry.ops.n.f.default, []
    for _ in range(12):
        kind = numbers.choice(["kernel", "kernel", "setting", "guard", "end"])
        names = tuple(numbers.sample(NAMES, numbers.choice([1, 2])))
        strict, disabled = numbers.random() < 0.5, ()
        if numbers.random() < 0.3:
            names, disabled = names[1:], names[:1]
        what, where = (names, disabled, strict and bool(names)), guards
        how = {"disable": disabled, "strict": what[2], "registry": registry}
        if kind == "end" and opened:
            thing, where, what = opened.pop(numbers.randrange(len(opened)))
            thing.close()
            where[:] = [each for each in where if each is not what]
        elif kind == "kernel":
            name, supports = numbers.choice(["", *NAMES]), numbers.choice([None, small])
            types, order = numbers.choice([None, A, B, C, D]), numbers.choice([0, 0, 1, 2])
            how = {"provider": name, "order": order, "supports": supports} if name else {}
            what, where = (name, order, types, supports if name else None), kernels
            library = md.Library("n", "IMPL", registry=registry)
            with suppress(errors.DuplicateRegistrationError):
                if name in [each[0] for each in kernels if name or each[2] is types]:
                    continue
                opened.append((library, where, what))
                library.impl("f", lambda x, n, name=name: name, "CPU", types=types, **how)
        elif kind == "setting":
            pattern = numbers.choice(PATTERNS)
            where = settings[pattern]
            handle = md.set_priority(pattern, names, **how)
            opened.append((handle, where, what))
        elif kind == "guard":
            pattern = numbers.choice(PATTERNS)
            guard = md.priority(pattern, names, **how)
            opened.append((guard, where, what))
        if kind != "end":
            where.append(what)
        steps.append((kind, what))
        for value, number in numbers.sample(VALUES, len(VALUES)):
            wanted = model(kernels, settings, guards, value, number)
            got = list(answers(f, value, number))
            assert got == [wanted] * 2, (steps, kernels, settings, guards, type(value), number)
    for thing, _, _ in opened:
        thing.close()


def test_random_sequences_give_what_the_model_says(long_form):
    numbers = random.Random(seed_of(long_form))
    with (md.Registry.local if which == "none" else md.Registry.create)() as registry:
        md.Library("n", "DEF", registry=registry).define("f(Tensor x, int n) -> str")
        for _ in range(2_000 if long_form else 10):
            play(numbers, registry)
        registry.check_invariants()
