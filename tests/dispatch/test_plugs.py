"""The state of features for a registry: made once, and called after a fork and at the end."""

from __future__ import annotations

import pytest
from kinds import run_main

import mdispatch as md
from mdispatch.dispatch.plugs import Plug

pytestmark = pytest.mark.either_binding


class Toy(Plug):
    def __init__(self, dispatcher):
        self.dispatcher, self.told = dispatcher, []

    def ended(self):
        self.told.append("ended")


class Other(Plug):
    pass


def test_each_registry_has_one_of_each_made_when_it_is_asked_for():
    with md.Registry.create() as first, md.Registry.create() as second:
        assert Toy not in first.dispatcher.plugs
        toy = first.dispatcher.of(Toy)
        assert toy is first.dispatcher.of(Toy)
        assert toy.dispatcher is first.dispatcher
        assert type(first.dispatcher.of(Other)) is Other
        assert second.dispatcher.of(Toy) is not toy


def test_it_is_told_once_of_the_end():
    registry = md.Registry.create()
    toy = registry.dispatcher.of(Toy)
    registry.dispatcher.of(Other)
    assert toy.told == []
    registry.close()
    registry.close()
    assert toy.told == ["ended"]


@pytest.mark.shared
@pytest.mark.parametrize("registers", [True, False])
def test_it_is_told_of_a_fork_in_the_child(registers):
    got = run_main(
        """
        registers, = args
        from mdispatch.dispatch.plugs import Plug
        class Toy(Plug):
            told = ()
            def forked(self, is_heir):
                self.told += (is_heir,)
        registry = md.Registry.create()
        if not registers:
            registry = md.Registry.attach(registry.address)
        toy = registry.dispatcher.of(Toy)
        pid = os.fork()
        if pid == 0:
            os._exit(10 * len(toy.told) + sum(toy.told))
        done(status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), told=toy.told)
        """,
        registers,
    )
    assert got["told"] == ()
    assert got["status"] == 11
