"""Choices as registrations: any member registers one, for all, and it outlives the member."""

from __future__ import annotations

import pytest
from kinds import INTERPRETERS, run_main

import mdispatch as md
from mdispatch.choices.kind import CHOICE

pytestmark = pytest.mark.shared

WORKER = """
from mdispatch.choices.kind import CHOICE
import mdispatch as md
backing = md.default_registry().dispatcher.facts
try:
    backing.register(CHOICE, 0, "threads", str(INDEX), "worker.py:3")
except md.errors.DuplicateRegistrationError as error:
    assert error.first == "worker.py:3"
report(role=backing.role)
"""

MAIN = """
kind, count, folder, text = args
from mdispatch.facts.registration import TYPE
backing = md.default_registry().dispatcher.facts
for worker in start(kind, text, count, Path(folder)):
    worker.join()
    worker.result()
backing.register(TYPE, 0, "the.last", "CPU", "main.py:2")  # finds those that did not leave
left = [f.name for f in backing.registrations()[2]]
done(left=left, check=backing.check())
"""


@pytest.mark.parametrize(
    ("kind", "count"),
    [(kind, 2) for kind in INTERPRETERS] + [("fork", 3), ("spawn", 2)],
)
def test_one_member_of_every_kind_registers_the_choice_and_leaves_it(kind, count, tmp_path) -> None:
    got = run_main(MAIN, kind, count, str(tmp_path), WORKER)
    assert sorted(got["left"]) == ["the.last", "threads"]
    assert got["check"] == ""


def test_the_second_choice_of_all_is_refused(registry, worker) -> None:
    backing = registry.dispatcher.facts
    old = backing.register(CHOICE, 0, "threads", "1", "a.py:3")
    for each in (backing, worker.dispatcher.facts):
        with pytest.raises(md.errors.DuplicateRegistrationError, match="choice 'threads'"):
            each.register(CHOICE, 0, "threads", "2", "a.py:4")
    assert backing.find(CHOICE, 0, "threads") == old
