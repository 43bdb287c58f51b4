"""What is computed for calls while something changes is not kept: a finalizer may close a library
at any line, and so may another thread. Here a trace function closes one at a named line.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest

import mdispatch as md
from mdispatch import errors


class Array:
    __dispatch_keys__ = "CPU"


CPU = Array()


def during(event, function, called_by, change):
    """Runs ``change`` once, in this thread, when the function begins (call) or ends (return)."""
    done = []

    def trace(frame, happening, argument):
        named = frame.f_code.co_name == function
        if named and called_by in ("", frame.f_back.f_code.co_name) and not done:
            if happening == event:
                done.append(True)
                sys.settrace(None)
                change()
            return trace
        return None

    sys.settrace(trace)
    return done


@pytest.fixture(autouse=True)
def not_traced():
    yield
    sys.settrace(None)


@pytest.mark.parametrize(
    ("function", "called_by"), [("table_of", "_refresh"), ("_current", "renew")]
)
def test_a_kernel_that_goes_while_a_table_or_plan_is_made_is_not_called_again(
    function, called_by, registry, lib, worker
):
    """In a worker: no version word tells of its own kernels."""
    if called_by == "renew" and os.environ.get("MDISPATCH_CALLS") == "python":
        pytest.skip("plans are for calls in C, which were turned off")
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "in main", "CPU")
    passing = md.Library("s", "FRAGMENT", registry=worker, timeout=0)
    passing.impl("f", lambda x: "here", "CPU")
    f = worker.ops.s.f.default
    worker.dispatcher.entries["s::f"].recompute()
    done = during("return", function, called_by, passing.close)
    with suppress(errors.LocalKernelMissingError):
        f(CPU)
    sys.settrace(None)
    assert done == [True]
    for _ in range(3):
        with pytest.raises(errors.LocalKernelMissingError):
            f(CPU)
    worker.check_invariants()


def test_an_overload_is_found_though_the_packet_was_called_while_it_was_noted(registry, lib):
    """Between its commit and the note of its name, in the main interpreter."""
    lib.define("f(int x) -> str")
    lib.impl("f", lambda x: "an int", "CompositeExplicitAutograd")
    lib.impl("f.text", lambda x: "a str", "CompositeExplicitAutograd")  # no commit after its name
    f = registry.ops.s.f
    assert f(1) == "an int"
    done = during("call", "defined", "", lambda: f(1))
    lib.define("f.text(str x) -> str")
    sys.settrace(None)
    assert done == [True]
    assert f(1) == "an int"
    assert f("word") == "a str"
