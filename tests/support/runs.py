"""Runs of a module: see errors/runs.py."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any


def in_another_run(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it is after its module was run again: it has other globals."""
    assert isinstance(function, FunctionType)
    again = FunctionType(
        function.__code__,
        dict(function.__globals__),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    again.__kwdefaults__ = function.__kwdefaults__
    return again
