"""Calls with a context around them, as multiples of a plain Python call with the same argument:
guards, modes, types that answer themselves, observers; and calls that go through two kernels.

The calls are unrolled and nothing is subtracted. Where a block is opened, that is in the figure.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

import mdispatch as md
from mdispatch.context import DispatchMode, ExcludeDispatchKeyGuard

from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    Prepare = Callable[[], tuple[Any, ...]]


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


class _Works:
    """What is measured: each is prepared when it is measured."""

    def __init__(self) -> None:
        md.register_type(Array, "CPU")
        md.register_type(Graded, ("CPU", "AutogradCPU"))
        registry = md.Registry.create()
        library = md.Library("context", "DEF", registry=registry)
        for name in ("f", "differentiated"):
            library.impl(library.define(f"{name}(Tensor x) -> Tensor"), _one, "CPU")
        ops = registry.ops.context
        self.f, self.differentiated = ops.f.default, ops.differentiated.default
        below = md.DispatchKeySet.full_after("AutogradCPU")

        def autograd(key_set: Any, x: Any) -> Any:
            return self.differentiated.redispatch(key_set & below, x)

        library.impl("differentiated", autograd, "AutogradCPU", with_keyset=True)
        other = Array()
        self.made = md.custom_op(
            "context::made",
            lambda x: other,  # what a custom_op returns has memory of its own
            mutates_args=(),
            schema="(Tensor x) -> Tensor",
            registry=registry,
        )
        self.x, self.keys = Array(), md.DispatchKeySet("AutogradCPU")

    def inside(self, block: Callable[[], AbstractContextManager[Any]]) -> Prepare:
        """A call in a block, which stays open until the process ends."""

        def prepare() -> tuple[Any, ...]:
            block().__enter__()
            return self.f, self.x

        return prepare


def _theirs() -> Any:
    return import_module("torch")._C._AutoDispatchBelowAutograd


def _works() -> Iterator[tuple[str, str, str, Prepare, float | None]]:
    """What is done, the statement, its names, what they are, and how many plain calls it may
    cost.
    """
    made = _Works()
    f, x, keys = made.f, made.x, made.keys
    call, names = "f(x)", "f, x"
    open_ = made.inside(lambda: ExcludeDispatchKeyGuard(keys))
    yield "any guard open", call, names, open_, 2.6
    yield (
        "a guard opened and closed around a call",
        "with guard(keys): f(x)",
        "guard, keys, f, x",
        lambda: (ExcludeDispatchKeyGuard, keys, f, x),
        11 if _LATER else 8,
    )
    yield (
        "the guard alone",
        "with guard(keys): pass",
        "guard, keys",
        lambda: (ExcludeDispatchKeyGuard, keys),
        None,
    )
    if find_spec("torch"):
        yield (
            "PyTorch's guard around a plain call",
            "with guard(): f(x)",
            "guard, f, x",
            lambda: (_theirs(), _one, x),
            None,
        )
    yield "in a mode that answers", call, names, made.inside(AnswersAll), 12 if _LATER else 10
    yield "in a mode that calls on", call, names, made.inside(CallsOn), 18 if _LATER else 15
    yield "a type with __md_dispatch__", call, names, lambda: (f, Answers()), 12
    observed = made.inside(lambda: md.observe_calls(before=_seen))
    yield "observed by an empty observer", call, names, observed, 20
    yield "custom_op", call, names, lambda: (made.made, x), 4
    graded = lambda: (made.differentiated, Graded())  # noqa: E731
    yield "autograd kernel and redispatch", call, names, graded, 6


def main() -> None:
    job = Job()
    plain = job.statement("plain call", "f(x)", "f, x", lambda: (_one, Array()), times=_UNROLLED)
    for what, statement, names, prepare, aim in _works():
        bench = job.statement(what, statement, names, prepare, times=_UNROLLED)
        job.ratio(f"{what} / plain call", bench, plain, aim=aim)
    job.end()


if __name__ == "__main__":
    main()
