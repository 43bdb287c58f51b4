"""The first call of an operator, and the first after a change, in microseconds: the operator's
table is computed anew. The very first call includes finding the operator, and is compared with a
plain call, and with the first call of a function of plum where that is installed.

The change registers a kernel at a key that no argument has, and closes it again, so the same kernel
runs before and after. The second call takes the time that the first one would take without the
change.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from time import perf_counter

import mdispatch as md
from mdispatch.cli.bench.figures import Figure, figure, ratio
from mdispatch.cli.bench.measure import Settings, undisturbed, without_collector
from mdispatch.cli.bench.peers import KEYS, TYPES, of_one
from mdispatch.registry import operator_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

    Change = Callable[[], object]
    Call = Callable[[object], object]

__all__ = ["figures"]

ROUNDS = 300
#: Microseconds, whatever the number of kernels and overloads.
_AIM = 30.0
_KERNELS = (1, 2, 5, 10, 20)
_OVERLOADS = (5, 20)
#: The operator whose first call after a change is compared with plum's first call.
_MOST = f"{_KERNELS[-1]} kernels"
#: How many plain calls are timed together.
_PLAIN = 1000


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
    for number in range(overloads):
        more = "".join(f", Tensor y{i}" for i in range(number))
        full = library.define(f"{name}.o{number}(Tensor x{more}) -> Tensor")
        library.impl(full, _of_more if number else of_one, "CPU")
    first = f"{name}.o0"
    packet = getattr(md.ops.rebuild, name)
    return packet, lambda: _change(first)


def _measured(
    operators: dict[str, tuple[Call, Change]], asked: Settings
) -> dict[str, tuple[list[float], list[float]]]:
    """The seconds of the first call after a change, and of the second one, in turns."""
    found: dict[str, tuple[list[float], list[float]]] = {what: ([], []) for what in operators}
    x = TYPES[0]()

    def take(call: Call, change: Change) -> tuple[float, float]:
        change()
        began = perf_counter()
        call(x)
        then = perf_counter()
        call(x)
        return then - began, perf_counter() - then

    with without_collector():
        for round_ in range(asked.rounds_of(ROUNDS) + 1):
            for what, (call, change) in operators.items():
                first, second = undisturbed(partial(take, call, change))
                if round_:  # the first one imports what only calls need
                    found[what][0].append(first)
                    found[what][1].append(second)
    return found


def _first(numbers: Iterator[int], library: md.Library, plum: Any) -> tuple[float, float, float]:
    """Seconds of the very first call of an operator, of one of plum's, and of a plain one."""
    x = TYPES[0]()
    name = library.define(f"first_{next(numbers)}(Tensor x, float factor=2.0) -> Tensor")
    library.impl(name, _with_factor, "CPU")
    function = plum.Dispatcher()(_annotated()) if plum is not None else None
    began = perf_counter()
    operator_of(name)(x)
    called = perf_counter()
    if function is not None:
        function(x)
    theirs = perf_counter()
    for _ in range(_PLAIN):
        _with_factor(x)
    return called - began, theirs - called, (perf_counter() - theirs) / _PLAIN


def _with_factor(x: object, factor: float = 2.0) -> object:
    return x


def _annotated() -> Callable[..., object]:
    def function(x: object, factor: float = 2.0) -> object:
        return x

    function.__annotations__ = {"x": TYPES[0], "factor": float, "return": object}
    return function


def _first_calls(
    library: md.Library, asked: Settings
) -> Generator[Figure, None, list[float] | None]:
    """Returns the seconds of the first calls of plum, None without it."""
    try:
        import plum
    except ImportError:
        plum = None
    md.register_type(TYPES[0], "CPU")
    take = partial(_first, count(), library, plum)
    with without_collector():
        rounds = [undisturbed(take) for _ in range(asked.rounds_of(ROUNDS) + 1)][
            1:
        ]  # the first one imports what only calls need
    first, theirs, plain = ([each[i] for each in rounds] for i in range(3))
    yield figure("find and very first call", first, "us", scale=1e6, aim=_AIM)
    yield ratio("find and very first call / a plain call", first, plain)
    if plum is None:
        return None
    yield ratio("find and very first call / first call of plum", first, theirs, aim=0.8)
    return theirs


def figures(asked: Settings) -> Iterator[Figure]:
    library = md.Library("rebuild", "DEF")
    theirs = yield from _first_calls(library, asked)
    operators = {
        f"{kernels} kernel{'s' * (kernels > 1)}": _operator(library, f"of_{kernels}", kernels)
        for kernels in _KERNELS
    }
    for some in _OVERLOADS:
        operators[f"{some} overloads, by the packet"] = _packet(library, f"packet_{some}", some)
    times = _measured(operators, asked)
    for what, (first, second) in times.items():
        yield figure(f"first call, {what}", first, "us", scale=1e6, aim=_AIM)
        yield figure(f"second call, {what}", second, "us", scale=1e6)
        if theirs is not None and what == _MOST:
            yield ratio(f"first call, {what} / first call of plum", first, theirs, aim=0.7)
