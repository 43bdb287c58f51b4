"""The first call of an operator, and the first after a change, in microseconds: the operator's
table is computed anew. The very first call includes finding the operator, and is compared with a
plain call, and with the first call of a function of plum where that is installed.

The change registers a kernel at a key that no argument has, and closes it again, so the same kernel
runs before and after. The second call takes the time that the first one would take without the
change.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from statistics import median
from time import perf_counter

import mdispatch as md
from mdispatch.registry import operator_of

from .job import Job
from .peers import KEYS, TYPES, of_one

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pyperf import Benchmark

    from .job import Work

    Change = Callable[[], object]
    Call = Callable[[object], object]

#: Seconds, whatever the number of kernels and overloads.
_AIM = 30e-6
_KERNELS = (1, 2, 5, 10, 20)
_OVERLOADS = (5, 20)
#: Of a value.
_CHANGES = 10
#: The operator whose first call after a change is compared with plum's first call.
_MOST = f"{_KERNELS[-1]} kernels"


def _change(name: str) -> None:
    library = md.Library("rebuild", "IMPL")
    library.impl(name, of_one, "FPGA")
    library.close()  # a with block that ends well would keep it


def _operator(library: md.Library, name: str, kernels: int) -> tuple[Call, Change]:
    """An operator with so many kernels, and what changes it."""
    name = library.define(f"{name}(Tensor x) -> Tensor")
    for key, each in zip(KEYS[:kernels], TYPES, strict=False):
        md.register_type(each, key)
        library.impl(name, of_one, key)
    return operator_of(name), lambda: _change(name)


def _of_more(x: object, *others: object) -> object:
    return x


def _packet(library: md.Library, name: str, overloads: int) -> tuple[Call, Change]:
    """As many overloads with a kernel each; the change is at the first one, which is called."""
    md.register_type(TYPES[0], "CPU")
    for number in range(overloads):
        more = "".join(f", Tensor y{i}" for i in range(number))
        full = library.define(f"{name}.o{number}(Tensor x{more}) -> Tensor")
        library.impl(full, _of_more if number else of_one, "CPU")
    first = f"{name}.o0"
    packet = getattr(md.ops.rebuild, name)
    return packet, lambda: _change(first)


def _called(prepare: Callable[[], tuple[Call, Change]], second: bool) -> Work:
    """By the first call after a change, or by the second one: the median of some, as a change takes
    much longer than a call.
    """
    (call, change), x = prepare(), TYPES[0]()

    def once() -> float:
        change()
        if second:
            call(x)
        began = perf_counter()
        call(x)
        return perf_counter() - began

    return lambda count: count * median(once() for _ in range(_CHANGES))


def _with_factor(x: object, factor: float = 2.0) -> object:
    return x


def _first(library: md.Library) -> Work:
    """By the very first call of an operator, which is found for it."""
    md.register_type(TYPES[0], "CPU")
    x, numbers = TYPES[0](), count()

    def work(repeats: int) -> float:
        took = 0.0
        for _ in range(repeats):
            name = library.define(f"first_{next(numbers)}(Tensor x, float factor=2.0) -> Tensor")
            library.impl(name, _with_factor, "CPU")
            began = perf_counter()
            operator_of(name)(x)
            took += perf_counter() - began
        return took

    return work


def _first_of_plum() -> Work:
    plum: Any = import_module("plum")
    x = TYPES[0]()

    def work(repeats: int) -> float:
        took = 0.0
        for _ in range(repeats):
            function = plum.Dispatcher()(_annotated())
            began = perf_counter()
            function(x)
            took += perf_counter() - began
        return took

    return work


def _annotated() -> Callable[..., object]:
    def function(x: object, factor: float = 2.0) -> object:
        return x

    function.__annotations__ = {"x": TYPES[0], "factor": float, "return": object}
    return function


def _first_calls(job: Job, library: md.Library) -> Benchmark | None:
    """Returns the first calls of plum, None without it."""
    first = job.seconds("find and very first call", partial(_first, library), aim=_AIM)
    plain = job.statement("plain call", "f(x)", "f, x", lambda: (_with_factor, TYPES[0]()))
    job.ratio("find and very first call / a plain call", first, plain)
    if find_spec("plum") is None:
        job.left_out("plum", "not installed (pip install plum-dispatch)")
        return None
    theirs = job.seconds("first call of plum", _first_of_plum)
    job.ratio("find and very first call / first call of plum", first, theirs, aim=0.8)
    return theirs


def main() -> None:
    job = Job()
    library = md.Library("rebuild", "DEF")
    theirs = _first_calls(job, library)
    operators = {
        f"{kernels} kernel{'s' * (kernels > 1)}": partial(
            _operator, library, f"of_{kernels}", kernels
        )
        for kernels in _KERNELS
    }
    for some in _OVERLOADS:
        operators[f"{some} overloads, by the packet"] = partial(
            _packet, library, f"packet_{some}", some
        )
    for what, prepare in operators.items():
        first = job.seconds(f"first call, {what}", partial(_called, prepare, False), aim=_AIM)
        job.seconds(f"second call, {what}", partial(_called, prepare, True))
        if what == _MOST:
            job.ratio(f"first call, {what} / first call of plum", first, theirs, aim=0.7)
    job.end()


if __name__ == "__main__":
    main()
