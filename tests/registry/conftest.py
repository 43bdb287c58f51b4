"""Fixtures for the tests of listeners."""

from __future__ import annotations

import sys

import pytest

from mdispatch.facts.listeners import Listeners


@pytest.fixture
def listeners(facts):
    made = Listeners(facts)
    yield made
    made.close()


@pytest.fixture
def ignored(monkeypatch):
    """The errors that sys.unraisablehook received."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found
