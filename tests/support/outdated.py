"""An operator that is defined anew with its arguments the other way round: OLD and NEW, and kernels
that were verified for one of them.
"""

from __future__ import annotations

from runs import in_another_run

import mdispatch as md
from mdispatch import errors

__all__ = ["NEW", "OF_TENSORS", "OLD", "Array", "Other", "div_new", "div_old", "is_of_its_text"]
__all__ += ["library", "new", "old", "opened", "outcome"]

OLD, NEW = "div(int x, int by) -> float", "div(int by, int x) -> float"
OF_TENSORS = "div(Tensor a, int x, int by) -> float", "div(Tensor a, int by, int x) -> float"


def old(x, by):
    return x / by


def new(by, x):
    return x / by


class Array:
    __dispatch_keys__ = "CPU"


class Other(Array):
    pass


def library(registry):
    """A library of another run of this module."""
    return in_another_run(lambda: md.Library("s", "DEF", registry=registry, timeout=0))()


def opened(registry, schema, kernel, key="", **options):
    """A library with one operator. ``options`` are those of its kernel."""
    lib = library(registry)
    lib.impl(lib.define(schema), kernel, key, **options)
    return lib


def outcome(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except errors.MdispatchError as error:
        return type(error).__name__


def div_old(a, x, by):
    return x / by


def div_new(a, by, x):
    return x / by


def is_of_its_text(registry, worker, options):
    """Asserts that a kernel with such options serves under the text of its definition only."""

    def kernel(function):
        if "with_keyset" in options:
            return lambda keys, *args, **named: function(*args, **named)
        return function

    def call(ops):
        return ops.s.div(Other(), x=8, by=2)

    first = opened(registry, OF_TENSORS[0], kernel(div_old), "CPU", **options)
    opened(worker, OF_TENSORS[0], kernel(div_old), "CPU", **options)
    assert call(worker.ops) == 4.0
    first.close()
    opened(registry, OF_TENSORS[1], kernel(div_new), "CPU", **options)
    assert call(registry.ops) == 4.0
    assert outcome(call, worker.ops) == "KernelOutdatedError"
    opened(worker, OF_TENSORS[1], kernel(div_new), "CPU", **options)
    assert call(worker.ops) == 4.0
