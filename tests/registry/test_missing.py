"""What an error about a registration that never came tells, and how much of the registry it looks
at."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest
from commands import environment
from patience import limit

import mdispatch as md
from mdispatch import errors
from mdispatch.facts.shared import SharedRegistry
from mdispatch.registry import missed


@pytest.fixture
def read(monkeypatch):
    """How many registrations were listed, look by look."""
    counts = []

    def counted(listing):
        def method(self, *args):
            *told, found = listing(self, *args)
            counts.append(len(found))
            return (*told, found)

        return method

    for name in ("registrations", "registrations_since"):
        monkeypatch.setattr(SharedRegistry, name, counted(getattr(SharedRegistry, name)))
    return counts


def missing(registry, name):
    with pytest.raises(errors.NotRegisteredError) as caught:
        md.wait_for_def(name, timeout=0, registry=registry)
    return caught.value


@pytest.mark.thorough
def test_an_error_about_a_missing_name_lists_few_facts_of_a_large_registry(
    registry, lib, read, monkeypatch
):
    assert missed._LOOKED_AT <= 4000
    monkeypatch.setattr(missed, "_LOOKED_AT", 100)
    for i in range(400):
        lib.define(f"operator_{i:03}(Tensor x) -> Tensor")
    read.clear()
    error = missing(registry, "s::operator_x")
    assert type(error) is errors.NameMismatchError
    assert len(error.nearest) == 3
    assert "there among the newest 100 of 401 registrations: s::operator_" in str(error)
    assert sum(read) <= 100 + 1
    read.clear()
    error = missing(registry, "elsewhere::f")
    assert type(error) is errors.MainNeverArrivedError
    nothing = "nothing in namespace 'elsewhere' among the newest 100 of 401 registrations"
    assert nothing in str(error)
    assert sum(read) <= 100


def test_what_has_come_and_gone_hides_nothing_of_a_small_registry(registry, monkeypatch):
    monkeypatch.setattr(missed, "_LOOKED_AT", 20)
    fragment = md.Library("early", "FRAGMENT", registry=registry)
    fragment.define("scale(Tensor x) -> Tensor")
    for _ in range(30):
        with md.scoped_library("passing", "DEF", registry=registry) as passing:
            passing.define("f(Tensor x) -> Tensor")
    error = missing(registry, "early::scael")
    assert type(error) is errors.NameMismatchError
    assert error.nearest == ("early::scale",)
    assert "among" not in str(error)


@pytest.mark.dear
def test_a_large_registry_still_knows_the_library_and_the_name_itself(registry, lib, monkeypatch):
    monkeypatch.setattr(missed, "_LOOKED_AT", 20)
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x, "CPU")
    other = md.Library("other", "DEF", registry=registry)
    for i in range(40):
        other.define(f"g{i}(Tensor x) -> Tensor")
    assert type(missing(registry, "s::h")) is errors.NameMismatchError
    with pytest.raises(errors.KeyMismatchError) as caught:
        md.wait_for_impl("s::f", "CUDA", timeout=0, registry=registry)
    assert caught.value.keys_there == ("CPU",)


def test_an_operator_with_kernels_and_no_definition_is_told_with_the_place_of_the_newest(
    registry, lib
):
    lib.impl("lonely", lambda x: x, "CPU")
    lib.impl("lonely", lambda x: x, "CUDA")
    newest = registry.dispatcher.facts.registrations("s::lonely")[2][-1].where
    with pytest.raises(errors.OperatorNotFoundError) as caught:
        registry.ops.s.lonely  # noqa: B018
    assert str(caught.value) == (
        "there is no operator s::lonely; it has kernels but no definition\n"
        f"  a kernel registered at {newest}\nDefine it."
    )
    assert newest.startswith(f"{__file__}:")


REGISTRAR = """
import sys
import mdispatch as md
registry = md.Registry.elect(sys.argv[1])
with md.Library("s", "DEF", registry=registry) as lib:
    lib.define("f(Tensor x) -> Tensor")
    print("defined", flush=True)
    sys.stdin.read(1)
registry.close()
"""


@pytest.mark.shared
def test_the_registrar_that_is_named_is_the_one_of_now_and_not_the_one_that_has_left():
    name = f"missing-{os.getpid()}"
    with (
        subprocess.Popen(
            [sys.executable, "-c", REGISTRAR, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
        ) as first,
        contextlib.ExitStack() as ends,
    ):
        assert first.stdout.readline() == b"defined\n"
        registry = ends.enter_context(md.Registry.elect(name))
        asking = ends.enter_context(md.Registry.elect(name))
        lib = ends.enter_context(md.Library("s", "DEF", registry=registry, timeout=limit(30)))
        lib.define("f(Tensor x) -> Tensor")
        assert str(missing(asking, "s::g")).startswith(f"the registrar of 's' (pid {first.pid})")
        first.stdin.write(b".")
        first.stdin.close()
        assert first.wait() == 0
        assert registry.dispatcher.facts.registrations("s::f")[2][0].pid == first.pid
        assert str(missing(asking, "s::g")).startswith(f"the registrar of 's' (pid {os.getpid()})")


@pytest.mark.shared
def test_a_library_that_was_never_opened_is_told_with_the_place_of_what_else_is_there():
    name = f"missing-{os.getpid()}"
    with (
        md.Registry.elect(name) as registry,
        md.Registry.elect(name) as asking,
        md.Library("s", "FRAGMENT", registry=registry) as lib,
    ):
        lib.define("f(Tensor x) -> Tensor")
        (defined,) = registry.dispatcher.facts.registrations("s::f")[2]
        with pytest.raises(errors.MainNeverArrivedError) as caught:
            md.Library("s", "DEF", registry=asking, timeout=0)
        assert caught.value.there == defined.where
