"""Providers and priorities while the main interpreter defines the operator anew: see
tests/dispatch/test_outdated.py.
"""

from __future__ import annotations

import pytest
from outdated import OF_TENSORS, Array, div_new, div_old, is_of_its_text, outcome
from runs import in_another_run

import mdispatch as md

pytestmark = pytest.mark.shared


@pytest.mark.parametrize(
    "options",
    [
        {"provider": "fast"},
        {"provider": "fast", "supports": lambda *given, **named: True},
        {"provider": "fast", "types": Array},
    ],
    ids=lambda options: "-".join(options),
)
def test_kernels_by_type_providers_and_others_alike(registry, worker, way, options):
    is_of_its_text(registry, worker, options)


def test_a_provider_that_a_worker_may_lack_is_passed_by_while_it_is_outdated(registry, worker, way):
    def defined(registry, schema, function):
        lib = in_another_run(lambda: md.Library("s", "DEF", registry=registry, timeout=0))()
        lib.impl(lib.define(schema), function, "CPU")

    def provides(registry, function):
        lib = in_another_run(lambda: md.Library("s", "IMPL", registry=registry, timeout=0))()
        lib.impl("div", lambda *given: -function(*given), "CPU", provider="fast", required=False)

    for each in (registry, worker):
        defined(each, OF_TENSORS[0], div_old)
        provides(each, div_old)
    assert worker.ops.s.div(Array(), x=8, by=2) == -4.0
    defined(registry, OF_TENSORS[1], div_new)
    provides(registry, div_new)
    assert outcome(worker.ops.s.div, Array(), x=8, by=2) == "KernelOutdatedError"
    defined(worker, OF_TENSORS[1], div_new)
    assert worker.ops.s.div(Array(), x=8, by=2) == 4.0
    provides(worker, div_new)
    assert worker.ops.s.div(Array(), x=8, by=2) == -4.0


def test_next_provider_does_not_lead_to_an_outdated_kernel(registry, worker):
    def opened(registry, schema, function):
        def first(a, *rest):
            names = [each.name for each in registry.ops.s.div.default.schema.arguments]
            given = dict(zip(names[1:], rest, strict=True))
            return md.next_provider(registry.ops.s.div.default, "first", a, **given)

        lib = in_another_run(lambda: md.Library("s", "DEF", registry=registry, timeout=0))()
        name = lib.define(schema)
        lib.impl(name, first, "CPU", provider="first", order=2)
        lib.impl(name, function, "CPU", provider="second", order=1)

    opened(registry, OF_TENSORS[0], div_old)
    opened(worker, OF_TENSORS[0], div_old)
    assert worker.ops.s.div(Array(), x=8, by=2) == 4.0
    opened(registry, OF_TENSORS[1], div_new)
    assert registry.ops.s.div(Array(), x=8, by=2) == 4.0
    assert outcome(worker.ops.s.div, Array(), x=8, by=2) == "KernelOutdatedError"


@pytest.mark.parametrize("pattern", ["s::who", "s::*"])
def test_a_priority_that_was_verified_counts_while_the_main_interpreter_has_the_same(
    registry, worker, way, pattern
):
    for each in (registry, worker):
        lib = md.Library("s", "FRAGMENT", registry=each, timeout=0)
        lib.define("who() -> str")
        for order, name in enumerate(("b", "a")):
            lib.impl("who", lambda name=name: name, provider=name, order=order)

    def both():
        return registry.ops.s.who() + worker.ops.s.who()

    first = md.set_priority(pattern, ["b"], registry=registry)
    mine = md.set_priority(pattern, ["b"], registry=worker, timeout=0)
    assert both() == "bb"
    first.close()
    assert both() == "aa"
    second = md.set_priority(pattern, ["a"], registry=registry)
    assert both() == "aa"
    second.close()
    md.set_priority(pattern, ["b"], registry=registry)
    assert both() == "bb"
    mine.close()
    assert both() == "bb"


def test_a_priority_that_may_differ_stays_whatever_the_main_interpreter_has(registry, worker):
    for each in (registry, worker):
        lib = md.Library("s", "FRAGMENT", registry=each, timeout=0)
        lib.define("who() -> str")
        for order, name in enumerate(("b", "a")):
            lib.impl("who", lambda name=name: name, provider=name, order=order)
    first = md.set_priority("s::who", ["a"], registry=registry, required=False)
    md.set_priority("s::who", ["b"], registry=worker, timeout=0)
    assert worker.ops.s.who() == "b"
    first.close()
    assert worker.ops.s.who() == "b"
