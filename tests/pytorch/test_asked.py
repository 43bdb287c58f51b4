"""Asking the member that registers to look again: torch/asked.py."""

from __future__ import annotations

import threading

import pytest
from hearing import switching_often
from kinds import until
from patience import limit
from registries import worker_of

from mdispatch.facts import NOTE
from mdispatch.torch.asked import Asked, asking
from mdispatch.torch.kind import TORCH

pytestmark = pytest.mark.shared

ASKS = "torch.library.asks"


class Counting:
    """A registry that counts how often the notes were listed, and for how many its waits
    were.
    """

    def __init__(self, facts):
        self._facts = facts
        self.lists = 0
        self.waits = []

    def __getattr__(self, name):
        return getattr(self._facts, name)

    def registrations(self, name):
        found = self._facts.registrations(name)
        self.lists += 1
        return found

    def await_fact(self, *wait):
        self.waits.append(wait[3])
        return self._facts.await_fact(*wait)


@pytest.fixture
def backing(registry):
    return Counting(registry.dispatcher.facts)


@pytest.fixture
def asked(backing):
    """Notes each look; ``found`` registers what a look finds."""
    made = Looks(backing)
    yield made
    made.asked.end()
    made.asked._thread.join(limit(30))
    assert not made.asked._thread.is_alive()


class Looks:
    def __init__(self, backing):
        self.backing = backing
        self.looks = []
        self.after = 1  # the look that finds something
        self.asked = Asked(backing, self.look)

    def look(self, names):
        self.looks.append(names)
        if len(self.looks) >= self.after:
            for name in names:
                if not self.backing.has(TORCH, 0, name):
                    self.backing.register(TORCH, 0, name, "found", "k.cpp:1")

    def lists_more(self):
        """The thread has been through its loop anew."""
        before = self.backing.lists
        until(lambda: self.backing.lists >= before + 3)


def wait(worker, name):
    facts = worker.dispatcher.facts
    with asking(facts, name, "w.py:1"):
        return facts.await_fact(TORCH, 0, name, 1, limit(30))[0]


#: In a process of its own: a note.
ASKING = """
from mdispatch.torch.asked import asking
facts = registry.dispatcher.facts
note = asking(facts, "torch.library::ns::f", "w.py:1")
note.__enter__()
"""


def notes(registry):
    return [f for f in registry.dispatcher.facts.registrations(ASKS)[2] if f.kind == NOTE]


def test_a_look_finds_that_for_which_others_wait(asked, registry, worker):
    assert wait(worker, "torch.library::ns::f").body == "found"
    assert asked.looks[0] == {"torch.library::ns::f"}
    assert not notes(registry)
    assert wait(worker, "torch.library::ns::g").body == "found"
    assert asked.looks[-1] == {"torch.library::ns::g"}


def test_a_wait_for_what_comes_later_gets_look_after_look(asked, registry, worker):
    asked.after = 4
    assert wait(worker, "torch.library::ns::f").body == "found"
    assert len(asked.looks) >= 4


def test_a_wait_that_began_before_anybody_could_look_is_seen(registry, worker):
    found = []
    waiter = threading.Thread(target=lambda: found.append(wait(worker, "torch.library::ns::f")))
    waiter.start()
    until(lambda: notes(registry))
    made = Looks(registry.dispatcher.facts)
    waiter.join(limit(30))
    made.asked.end()
    assert [each.body for each in found] == ["found"]


def test_no_wait_of_many_at_once_is_lost(asked, worker):
    found = []

    def many(number):
        for turn in range(20):
            found.append(wait(worker, f"torch.library::ns{number}::f{turn}"))

    threads = [threading.Thread(target=many, args=(number,)) for number in range(6)]
    with switching_often():
        for each in threads:
            each.start()
        for each in threads:
            each.join(limit(60))
    assert [each.body for each in found] == ["found"] * 120


def test_a_note_of_a_member_that_does_not_wait_gets_one_look(asked, registry, worker):
    asked.after = 1 << 30
    with worker_of(registry.address) as process:
        process.do(ASKING)
        until(lambda: asked.looks)
        asked.lists_more()
        assert asked.looks == [{"torch.library::ns::f"}]
        assert asked.backing.waits[-2:] == [2, 2]  # it sleeps between its lists
        asked.after = 1  # beside it another one is seen, and looked for
        assert wait(worker, "torch.library::ns::g").body == "found"
        assert {"torch.library::ns::g"} in asked.looks


def test_a_waiter_that_was_killed_gets_no_more_looks(asked, registry):
    asked.after = 1 << 30
    with worker_of(registry.address) as process:
        process.begin(f"{ASKING}\nfacts.await_fact({TORCH}, 0, 'torch.library::ns::f', 1, None)")
        until(lambda: len(asked.looks) > 2)
        process.kill()
    asked.lists_more()
    before = len(asked.looks)
    asked.lists_more()
    assert len(asked.looks) == before


def test_it_ends_while_it_sleeps_and_in_a_look(registry, worker):
    facts = registry.dispatcher.facts
    sleeping = Asked(facts, lambda names: None)
    sleeping.end()
    sleeping._thread.join(limit(30))
    assert not sleeping._thread.is_alive()
    ended = threading.Event()

    def end(names):
        made.end()
        ended.set()

    made = Asked(facts, end)
    with asking(worker.dispatcher.facts, "torch.library::ns::f", "w.py:1"):
        assert ended.wait(limit(30))
    made._thread.join(limit(30))
    assert not made._thread.is_alive()


def test_the_end_of_the_registry_ends_it(registry):
    made = Asked(registry.dispatcher.facts, lambda names: None)
    registry.close()
    made._thread.join(limit(30))
    assert not made._thread.is_alive()


def test_a_registry_that_takes_no_note_lets_the_wait_go_on(registry, worker):
    registry.close()
    with asking(worker.dispatcher.facts, "torch.library::ns::f", "w.py:1"):
        pass
