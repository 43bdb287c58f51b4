"""The reports of check_invariants() on a registry that a test has left broken."""

from __future__ import annotations

import pytest

from mdispatch import errors

__all__ = ["broken"]


def broken(registry, *words, name="s::f"):
    """The reports about the whole registry and about the one operator."""
    for given in (None, name):
        with pytest.raises(errors.InvariantError) as caught:
            registry.check_invariants(given)
        report = caught.value.report
        for word in words:
            assert word in report, report
        lines = report.split("\n")
        for line in lines:
            assert line.startswith(f"{name}: ")
            assert line in str(caught.value)
    return lines
