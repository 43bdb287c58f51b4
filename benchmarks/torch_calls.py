"""Calls with PyTorch's tensors, beside the same operators in torch.library: what writes, what has a
formula, what a profiler looks at, and what was compiled.

All kernels are Python functions that do next to nothing, so a ratio is that of the ways to them.
The calls are unrolled and nothing is subtracted.
"""

from __future__ import annotations

import atexit
from importlib import import_module

import mdispatch as md

from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_UNROLLED = 10

#: What a row calls, in which state of the thread, whether the tensor requires a gradient, and how
#: many calls of torch.library's own operator it may cost.
_ROWS: tuple[tuple[str, str, str, bool, float], ...] = (
    ("custom_op that writes", "written", "", False, 0.9),
    ("custom_op that writes, inference_mode", "written", "inference_mode", False, 0.9),
    ("Library that writes", "library_written", "", False, 1.2),
    ("Library that writes, inference_mode", "library_written", "inference_mode", False, 1.2),
    ("formula, forward", "formula", "", True, 1.0),
    ("formula, forward and backward", "both ways", "", True, 1.0),
    ("formula, no_grad", "formula", "no_grad", True, 1.0),
    ("custom_op", "plain", "", False, 0.6),
    ("custom_op, no formula, requires_grad", "plain", "", True, 1.3),
    ("custom_op, no formula, requires_grad, no_grad", "plain", "no_grad", True, 0.6),
    ("Library", "library_plain", "", False, 0.6),
    ("Library, requires_grad, no_grad", "library_plain", "no_grad", True, 0.6),
    ("custom_op, under the profiler", "plain", "profiler", False, 1.1),
    ("Library, under the profiler", "library_plain", "profiler", False, 1.1),
    ("ten custom_op in a compiled graph (aot_eager)", "compiled", "", False, 1.1),
)


def _operators(torch: Any, custom_op: Callable[..., Any], library: Any, ops: Any) -> dict[str, Any]:
    """The same operators, by one of the two."""
    name = library.ns if hasattr(library, "ns") else library.namespace

    def made(x: Any) -> Any:
        return torch.empty_like(x)

    def written(x: Any) -> None:
        pass

    found: dict[str, Any] = {}
    for kind, function in (("written", written), ("plain", made), ("formula", made)):
        writes = ["x"] if kind == "written" else ()
        schema = "(Tensor(a0!) x) -> ()" if writes else "(Tensor x) -> Tensor"
        found[kind] = custom_op(f"{name}::{kind}", function, mutates_args=writes, schema=schema)
    found["plain"].register_fake(made)
    found["formula"].register_fake(made)
    found["formula"].register_autograd(lambda ctx, grad: grad)
    found["both ways"] = lambda x: found["formula"](x).sum().backward()
    library.define("library_written(Tensor(a!) x) -> ()")
    library.define("library_plain(Tensor x) -> Tensor")
    for kind, function in (("library_written", written), ("library_plain", made)):
        library.impl(kind, function, "CPU")
        found[kind] = getattr(getattr(ops, name), kind)

    def ten(x: Any) -> Any:
        for _ in range(10):
            x = found["plain"](x)
        return x

    found["compiled"] = torch.compile(ten, backend="aot_eager", fullgraph=True)
    return found


def _prepared(ours: bool, kind: str, state: str, with_gradient: bool) -> tuple[Any, Any]:
    """What is called, and the tensor. The thread stays in that state."""
    torch: Any = import_module("torch")
    torch.set_num_threads(1)
    if ours:
        library = md.Library("ours", "DEF", torch=True)
        found = _operators(torch, md.custom_op, library, md.ops)
    else:
        library = torch.library.Library("theirs", "DEF")
        found = _operators(torch, torch.library.custom_op, library, torch.ops)
    if state == "profiler":
        profiler = torch.profiler
        entered = profiler.profile(activities=[profiler.ProfilerActivity.CPU])
    elif state:
        entered = getattr(torch, state)()
    x = torch.ones(4, requires_grad=with_gradient)
    if state:
        entered.__enter__()
        # A process that ends with an open profiler of PyTorch crashes.
        atexit.register(entered.__exit__, None, None, None)
    _KEPT.extend((library, found, state and entered))
    return found[kind], x


#: A library's registrations end with it.
_KEPT: list[Any] = []


def main() -> None:
    job = Job()
    if job.can("PyTorch", lambda: import_module("torch")):
        for what, kind, state, with_gradient, aim in _ROWS:
            times = 1 if kind in ("compiled", "both ways") or state == "profiler" else _UNROLLED
            pair = [
                job.statement(
                    f"{what}: {'mdispatch' if ours else 'torch.library'}",
                    "f(x)",
                    "f, x",
                    lambda ours=ours, asked=(kind, state, with_gradient): _prepared(ours, *asked),
                    times=times,
                )
                for ours in (True, False)
            ]
            job.ratio(f"{what} / torch.library's", *pair, aim=aim)
    job.end()


if __name__ == "__main__":
    main()
