"""The first call after a change, in microseconds: the operator's table is computed anew.

The change registers a kernel at a key that no argument has, and closes it again, so the same kernel
runs before and after. The second call takes the time that the first one would take without the
change.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

import mdispatch as md
from mdispatch.cli.bench.figures import Figure, figure
from mdispatch.cli.bench.measure import Settings, undisturbed, without_collector
from mdispatch.cli.bench.peers import KEYS, TYPES, of_one
from mdispatch.registry import operator_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Change = Callable[[], object]
    Call = Callable[[object], object]

__all__ = ["figures"]

ROUNDS = 300
#: Microseconds, whatever the number of kernels and overloads.
_AIM = 30.0
_KERNELS = (1, 2, 5, 10, 20)
_OVERLOADS = (5, 20)


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


def figures(asked: Settings) -> Iterator[Figure]:
    library = md.Library("rebuild", "DEF")
    operators = {
        f"{count} kernel{'s' * (count > 1)}": _operator(library, f"of_{count}", count)
        for count in _KERNELS
    }
    for count in _OVERLOADS:
        operators[f"{count} overloads, by the packet"] = _packet(library, f"packet_{count}", count)
    times = _measured(operators, asked)
    for what, (first, second) in times.items():
        yield figure(f"first call, {what}", first, "us", scale=1e6, aim=_AIM)
        yield figure(f"second call, {what}", second, "us", scale=1e6)
