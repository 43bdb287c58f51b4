"""The Python operators of the example host: every interpreter imports this module.

The main interpreter registers, the others verify. ``meter::energy`` is the host's own, in C; what
is here is made of it.
"""

from __future__ import annotations

from array import array

import mdispatch as md

md.register_type(array, "CPU")
md.register_type(memoryview, "CPU")

library = md.Library("levels", "DEF")
library.define("gain(Tensor x, float factor) -> Tensor")
library.define("loudness(Tensor x, float factor=1.) -> float")


@library.impl("gain", dispatch_key="CPU")
def gain(x: array[float], factor: float) -> array[float]:
    """The signal, louder or softer."""
    return array("d", [factor * value for value in x])


@library.impl("loudness", dispatch_key="CompositeImplicitAutograd")
def loudness(x: array[float], factor: float) -> float:
    """The energy of the signal after a gain: Python calls Python and C."""
    energy: float = md.ops.meter.energy(md.ops.levels.gain(x, factor))
    return energy


SIGNAL = array("d", [0.5, -0.25, 0.125, 1.0])


def work(rounds: int) -> int:
    """Calls operators, and checks every answer. How many calls that were."""
    for _ in range(rounds):
        if md.ops.meter.energy(SIGNAL) != 1.328125 or md.ops.levels.loudness(SIGNAL, 2.0) != 5.3125:
            raise AssertionError("an operator gave another answer")
    return 4 * rounds
