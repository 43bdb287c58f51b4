"""Calls with a context around them, as multiples of a plain Python call with the same argument:
guards, modes, types that answer themselves, observers; and calls that go through two kernels.

The calls are unrolled and nothing is subtracted. Where a block is opened, that is in the figure.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import mdispatch as md
from mdispatch.cli.bench.figures import Figure, ratio
from mdispatch.cli.bench.measure import Settings, compiled, in_turns
from mdispatch.guards import ExcludeDispatchKeyGuard
from mdispatch.modes import DispatchMode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from mdispatch.cli.bench.measure import Work

__all__ = ["figures"]

ROUNDS = 40
_UNROLLED = 20
_LATER = sys.version_info >= (3, 12)


class Array:
    pass


class Graded:
    pass


class Answers:
    """Answers each call itself."""

    __dispatch_keys__ = "CPU"

    @classmethod
    def __md_dispatch__(cls, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return args[0]


class AnswersAll(DispatchMode):
    def __md_dispatch__(self, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return args[0]


class CallsOn(DispatchMode):
    def __md_dispatch__(self, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return op(*args, **kwargs)


def _one(x: Any) -> Any:
    return x


def _seen(call: object) -> None:
    pass


def _inside(work: Work, block: Callable[[], AbstractContextManager[Any]]) -> Work:
    """The work, in a block that is open for all of its repetitions."""

    def inside(count: int) -> float:
        with block():
            return work(count)

    return inside


def _unrolled(statement: str, **names: Any) -> Work:
    return compiled("; ".join([statement] * _UNROLLED), names)


def _blocks(statement: str, **names: Any) -> Work:
    """A with block, so many times: one line each."""
    return compiled("\n        ".join([statement] * _UNROLLED), names)


def _works(registry: md.Registry) -> Iterator[tuple[str, Work, float | None]]:
    """What is done, the work, and how many plain calls it may cost."""
    library = md.Library("context", "DEF", registry=registry)
    for name in ("f", "differentiated"):
        library.impl(library.define(f"{name}(Tensor x) -> Tensor"), _one, "CPU")
    f, differentiated = registry.ops.context.f.default, registry.ops.context.differentiated.default
    below = md.DispatchKeySet.full_after("AutogradCPU")

    def autograd(key_set: Any, x: Any) -> Any:
        return differentiated.redispatch(key_set & below, x)

    library.impl("differentiated", autograd, "AutogradCPU", with_keyset=True)
    other = Array()
    made = md.custom_op(
        "context::made",
        lambda x: other,  # what a custom_op returns has memory of its own
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
        registry=registry,
    )
    x, keys = Array(), md.DispatchKeySet("AutogradCPU")
    call = _unrolled("f(x)", f=f, x=x)
    yield "any guard open", _inside(call, lambda: ExcludeDispatchKeyGuard(keys)), 2.6
    opened = "with guard(keys): f(x)"
    names = {"guard": ExcludeDispatchKeyGuard, "keys": keys, "f": f, "x": x}
    yield "a guard opened and closed around a call", _blocks(opened, **names), 11 if _LATER else 8
    yield (
        "the guard alone",
        _blocks("with guard(keys): pass", guard=names["guard"], keys=keys),
        None,
    )
    if find_spec("torch"):
        torch: Any = import_module("torch")
        theirs = torch._C._AutoDispatchBelowAutograd
        yield (
            "PyTorch's guard around a plain call",
            _blocks("with guard(): f(x)", guard=theirs, f=_one, x=x),
            None,
        )
    yield "in a mode that answers", _inside(call, AnswersAll), 12 if _LATER else 10
    yield "in a mode that calls on", _inside(call, CallsOn), 18 if _LATER else 15
    yield "a type with __md_dispatch__", _unrolled("f(x)", f=f, x=Answers()), 12
    yield (
        "observed by an empty observer",
        _inside(call, lambda: md.observe_calls(before=_seen)),
        20,
    )
    yield "custom_op", _unrolled("f(x)", f=made, x=x), 4
    yield "autograd kernel and redispatch", _unrolled("f(x)", f=differentiated, x=Graded()), 6


def figures(asked: Settings) -> Iterator[Figure]:
    md.register_type(Array, "CPU")
    md.register_type(Graded, ("CPU", "AutogradCPU"))
    plain = "plain call"
    with md.Registry.create() as registry:
        found = list(_works(registry))
        works = {plain: _unrolled("f(x)", f=_one, x=Array())}
        works.update((what, work) for what, work, _ in found)
        times = in_turns(works, dict.fromkeys([what for what, _, _ in found], plain), asked, ROUNDS)
    for what, _, aim in found:
        yield ratio(what, *times[what], aim=aim)
