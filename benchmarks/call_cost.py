"""One call of an operator with a Python kernel, against calling the kernel.

As calls are written: through ``md.ops``, and with the operator looked up beforehand.
"""

from __future__ import annotations

import mdispatch as md

from .measure import Figure, figure, ratio, report, time_of

ROUNDS = 31
CALLS = 5_000


class Array:
    __dispatch_keys__ = "CPU"


def kernel(x: object, factor: float = 2.0) -> object:
    return x


def figures() -> list[Figure]:
    library = md.Library("cost", "DEF")
    library.impl(library.define("scale(Tensor x, float factor=2.0) -> Tensor"), kernel, "CPU")
    md.register_type(Array, "CPU")
    x = Array()
    operator = md.ops.cost.scale.default

    def plain() -> None:
        for _ in range(CALLS):
            kernel(x, 3.0)

    def by_attribute() -> None:
        for _ in range(CALLS):
            md.ops.cost.scale(x, 3.0)

    def looked_up() -> None:
        for _ in range(CALLS):
            operator(x, 3.0)

    times = [(time_of(plain), time_of(by_attribute), time_of(looked_up)) for _ in range(ROUNDS)]
    bare, attribute, known = ([t[i] for t in times] for i in (0, 1, 2))
    return [
        figure("plain call of the kernel: ns", bare, "ns", scale=1e9 / CALLS),
        ratio("md.ops.cost.scale(x, 3.0) / plain call", attribute, bare),
        ratio("the same, operator looked up before / plain call", known, bare),
    ]


if __name__ == "__main__":
    report(figures())
