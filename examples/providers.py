"""A normalisation with three providers: which kernel runs is seen, and can be changed from outside.

The same values are normalised by NumPy, by PyTorch and in plain Python. Each kernel has the name of
its provider and says what it takes; PyTorch's says that it is not available where it is not
installed, and workers may lack it.

    python examples/providers.py
    MDISPATCH_PRIORITY="layers::norm=python" python examples/providers.py
"""

from __future__ import annotations

import math
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import mdispatch as md

library = md.Library("layers", "DEF")
library.define("norm(Tensor x, float eps=1e-5) -> Tensor")


def is_matrix(x: np.ndarray[Any, Any], eps: float) -> bool:
    return x.ndim == 2 and x.size > 1000


def has_torch() -> bool:
    return find_spec("torch") is not None


@library.impl(
    "norm",
    dispatch_key="CPU",
    provider="torch",
    order=20,
    types=np.ndarray,
    supports=is_matrix,
    available=has_torch,
    required=False,
)
def norm_torch(x: np.ndarray[Any, Any], eps: float) -> np.ndarray[Any, Any]:
    torch = import_module("torch")
    shape = [x.shape[-1]]
    normed = torch.nn.functional.layer_norm(torch.from_numpy(x), shape, eps=eps).numpy()
    return np.asarray(normed)


@library.impl("norm", dispatch_key="CPU", provider="numpy", order=10, types=np.ndarray)
def norm_numpy(x: np.ndarray[Any, Any], eps: float) -> np.ndarray[Any, Any]:
    centred = x - x.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps))


@library.impl("norm", dispatch_key="CPU", provider="python")
def norm_python(x: Any, eps: float) -> Any:
    rows = x.reshape(-1, x.shape[-1]).tolist()
    for row in rows:
        mean = math.fsum(row) / len(row)
        scale = math.sqrt(math.fsum((value - mean) ** 2 for value in row) / len(row) + eps)
        row[:] = [(value - mean) / scale for value in row]
    return np.array(rows).reshape(x.shape)


def main() -> None:
    norm = md.ops.layers.norm
    ran: list[str] = []
    values = np.random.default_rng(7).normal(size=(64, 32))
    with md.observe_calls(after=lambda call: ran.append(call.provider)):
        results = [norm(values), norm(values[:4])]
        for name in ("numpy", "python"):
            with md.priority("layers::norm", [name]):
                results.append(norm(values))
    for result in results:
        assert np.allclose(result, norm(values)[: len(result)])
    print("ran:", ", ".join(filter(None, ran)))
    print(md.default_registry().why("layers::norm", "CPU", types=np.ndarray))


if __name__ == "__main__":
    main()
