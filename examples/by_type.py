"""NumPy, PyTorch and a class of one's own in ten operators: the types of the arguments choose the
kernel.

All three dispatch to CPU: NumPy's arrays and PyTorch's tensors by themselves, a ``Row`` because its
class is registered. So the key does not tell them apart, and each kernel says which class it is
for. PyTorch is left out where it is not installed.

    mdispatch verify examples.by_type
    python examples/by_type.py
"""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import mdispatch as md


class Row:
    """Numbers in a row."""

    __slots__ = ("values",)

    def __init__(self, *values: float) -> None:
        self.values = values

    def __repr__(self) -> str:
        return f"Row{self.values}"


md.register_type(Row, "CPU")

library = md.Library("rows", "DEF")
for schema in (
    "add(Tensor a, Tensor b) -> Tensor",
    "multiply(Tensor a, Tensor b) -> Tensor",
    "scale(Tensor a, float by) -> Tensor",
    "negative(Tensor a) -> Tensor",
    "clip(Tensor a, float low, float high) -> Tensor",
    "exp(Tensor a) -> Tensor",
    "total(Tensor a) -> float",
    "largest(Tensor a) -> float",
    "length(Tensor a) -> int",
    "concat(Tensor[] parts) -> Tensor",
):
    library.define(schema)


# --- a kernel of each operator for each class ------------------------------------------------

KERNELS: dict[type, dict[str, Any]] = {
    np.ndarray: {
        "add": np.add,
        "multiply": np.multiply,
        "scale": np.multiply,
        "negative": np.negative,
        "clip": np.clip,
        "exp": np.exp,
        "total": np.sum,
        "largest": np.max,
        "length": len,
        "concat": np.concatenate,
    },
    Row: {
        "add": lambda a, b: Row(*map(float.__add__, a.values, b.values)),
        "multiply": lambda a, b: Row(*map(float.__mul__, a.values, b.values)),
        "scale": lambda a, by: Row(*(value * by for value in a.values)),
        "negative": lambda a: Row(*(-value for value in a.values)),
        "clip": lambda a, low, high: Row(*(max(low, min(high, value)) for value in a.values)),
        "exp": lambda a: Row(*map(math.exp, a.values)),
        "total": lambda a: math.fsum(a.values),
        "largest": lambda a: max(a.values),
        "length": lambda a: len(a.values),
        "concat": lambda parts: Row(*(value for part in parts for value in part.values)),
    },
}
if find_spec("torch"):
    torch: Any = import_module("torch")
    KERNELS[torch.Tensor] = {
        "add": torch.add,
        "multiply": torch.mul,
        "scale": torch.mul,
        "negative": torch.neg,
        "clip": torch.clamp,
        "exp": torch.exp,
        "total": lambda a: a.sum().item(),
        "largest": lambda a: a.max().item(),
        "length": len,
        "concat": torch.cat,
    }

for cls, kernels in KERNELS.items():
    for name, kernel in kernels.items():
        library.impl(name, kernel, "CPU", types=cls)


# --- one for two classes at once, and one for all others -------------------------------------


@library.impl("add", dispatch_key="CPU", types=(Row, np.ndarray))
def add_array(a: Row, b: np.ndarray[Any, Any]) -> Row:
    return Row(*(float(x + y) for x, y in zip(a.values, b, strict=True)))


@library.impl("concat", dispatch_key="CPU")
def concat_any(parts: list[Any]) -> Any:
    """What is of several classes becomes a Row."""
    return Row(*(float(value) for part in parts for value in getattr(part, "values", part)))


def made(cls: type, *values: float) -> Any:
    """The values in an object of a class."""
    if cls is Row:
        return Row(*values)
    return np.array(values) if cls is np.ndarray else torch.tensor(values)


def job() -> str:
    """Runs the ten operators on each class, then on two classes at once."""
    rows = md.ops.rows
    lines = []
    for cls in KERNELS:
        a, b = made(cls, 1.0, 2.0), made(cls, 3.0, -4.0)
        c = rows.concat([rows.add(a, b), rows.multiply(a, b), rows.scale(rows.negative(a), 0.5)])
        d = rows.exp(rows.clip(c, -1.0, 1.0))
        assert type(c) is type(d) is cls
        told = f"{rows.total(d):.3f}, {rows.largest(d):.3f}, {rows.length(d)}"
        lines.append(f"{cls.__name__}: {told}")
    lines.append(f"both: {rows.add(Row(1.0, 2.0), np.ones(2))}")
    lines.append(f"both: {rows.concat([np.ones(1), Row(2.0)])}")
    try:
        rows.multiply(np.ones(2), Row(1.0, 2.0))
    except md.errors.MissingKernelError as error:
        lines.append(str(error).partition("\n")[0])
    return "; ".join(lines)


if __name__ == "__main__":
    print(job().replace("; ", "\n"))
