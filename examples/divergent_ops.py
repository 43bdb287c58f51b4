"""A module that does what no operator module should: it registers other things in workers.

Each line marked with a number makes a worker differ from the main interpreter in one way. Look at
all of them together:

    mdispatch verify examples.divergent_ops --timeout 1

Without an audit like that one the first difference is raised where it stands, as an exception of
its own class; ``python examples/divergent_ops.py`` shows this.
"""

from __future__ import annotations

from array import array

import mdispatch as md

IN_MAIN = md.register_or_verify() == "register"

md.register_type(array, "CPU")
library = md.Library("divergent", "DEF")

# 1. Another schema: the default is a float in the main interpreter, an int in workers.
library.define(
    "scale(Tensor x, float factor=2.0) -> Tensor"
    if IN_MAIN
    else "scale(Tensor x, int factor=2) -> Tensor"
)
library.define("shift(Tensor x, float by) -> Tensor")


@library.impl("scale", dispatch_key="CPU")
def scale(x: array[float], factor: float) -> array[float]:
    return array("d", (value * factor for value in x))


# 2. Another key: workers have a kernel that the main interpreter lacks, and lack the one it has.
@library.impl("shift", dispatch_key="CPU" if IN_MAIN else "CUDA")
def shift(x: array[float], by: float) -> array[float]:
    return array("d", (value + by for value in x))


# 3. A typo in a name: workers wait for an operator that never comes.
library.define(f"{'normalize' if IN_MAIN else 'normalise'}(Tensor x) -> Tensor")

if IN_MAIN:
    # 4. An operator that workers lack.
    library.define("clip(Tensor x, float low=-1.0, float high=1.0) -> Tensor")
else:
    # 5. A namespace that the main interpreter never opens.
    md.Library("divergent_extra", "DEF")

# 6. A type with another key: its values run other kernels there.
md.register_type(bytes, "CPU" if IN_MAIN else "CUDA")


def job() -> str:
    """Runs what all have in common."""
    return str(md.ops.divergent.scale(array("d", [1.0, 2.0]), 3.0).tolist())


if __name__ == "__main__":
    from everywhere import run_everywhere

    run_everywhere("divergent_ops", "job")
