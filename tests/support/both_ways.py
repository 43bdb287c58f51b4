"""Calls made by C and by Python, and whether they come to the same."""

from __future__ import annotations

import sys

from mdispatch.dispatch.call_c import turn

__all__ = ["both", "frames", "outcome", "same"]


def both(call):
    """The outcomes of a call, in C and in Python."""
    found = []
    for on in (True, False):
        turn(on)
        try:
            found.append(call())
        finally:
            turn(True)
    return found


def frames():
    """Whether the kernel that calls this was itself called from a frame of ours."""
    return sys._getframe(2).f_globals["__name__"].startswith("mdispatch.")


def outcome(call, got, told=()):
    """The outcome of a call: the arguments of its kernels, whether C called them, and how it
    ended.
    """
    try:
        result = call()
    except Exception as error:
        end = (type(error), str(error))
    else:
        end = (type(result), repr(result))
    return [*(each[1:] for each in got), *told], end, [each[0] for each in got]


def same(in_c, in_python):
    """Whether the outcomes agree. (NaNs agree by how they are written.)"""
    return in_c[:2] == in_python[:2] or repr(in_c[:2]) == repr(in_python[:2])
