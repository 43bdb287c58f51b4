"""Kernels for other processes where nothing is shared: docs/other-systems.md."""

from __future__ import annotations

import pytest
from alone import program

import mdispatch as md
from mdispatch import errors

KEY = "CompositeExplicitAutograd"


def counts(registry):
    """An operator and what has to stay as it is when a kernel of it is refused."""
    lib = md.Library("s", "DEF", registry=registry)
    lib.define("count(str text) -> int")
    return lib, registry.dispatcher.facts.registrations()


@pytest.mark.parametrize(
    "way_of_registering",
    [
        lambda lib: lib.impl("count", len, KEY, serve="host"),
        lambda lib: lib.impl("count", dispatch_key=KEY, serve="host")(len),
        pytest.param(
            lambda lib: lib.impl("count", len, KEY, provider="fast", serve="host"),
            marks=pytest.mark.needs("providers"),
        ),
        lambda lib: lib.impl("count", len, KEY, types=str, serve="host"),
    ],
    ids=["call", "decorator", "provider", "types"],
)
def test_a_kernel_for_other_processes_is_refused_before_anything_has_changed(way_of_registering):
    with md.Registry.local() as registry:
        lib, before = counts(registry)
        with pytest.raises(errors.NotSharedError) as refused:
            way_of_registering(lib)
        told = str(refused.value)
        assert told.startswith("serve='host' says that other processes may call the kernel of ")
        assert registry.dispatcher.facts.alone in told
        assert refused.value.registry == registry.address
        assert registry.dispatcher.facts.registrations() == before
        assert registry.dispatcher.entry("s::count").callables == ()
        lib.impl("count", len, KEY)  # and nothing stands in the way of the next one
        assert registry.ops.s.count("four") == 4


def test_so_it_is_in_the_default_registry_where_nothing_is_shared():
    told = program("""
        lib = md.Library("s", "DEF")
        lib.define("count(str text) -> int")
        try:
            lib.impl("count", len, "CompositeExplicitAutograd", serve="host")
        except md.errors.NotSharedError as error:
            print(error)
        print(md.ops.s.count.default.has_kernel_for_dispatch_key("CompositeExplicitAutograd"))
    """)
    assert "shared with none: MDISPATCH_BINDING=none in the environment" in told
    assert told.endswith("False\n")


def test_a_transport_that_does_not_exist_is_called_so_first():
    with md.Registry.local() as registry:
        lib, _ = counts(registry)
        with pytest.raises(errors.InvalidArgumentError, match="pigeon"):
            lib.impl("count", len, KEY, serve="pigeon")
