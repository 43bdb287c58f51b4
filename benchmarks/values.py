"""Calls with the values that people pass, as multiples of a plain call of the kernel with the same
ones: NumPy arrays, PyTorch tensors, whatever speaks DLPack, and numbers that have to be converted.
A kernel is a Python function, or where that is said one of C.

What is not installed is left out. The calls are unrolled and nothing is subtracted.
"""

from __future__ import annotations

import enum
import operator
import sys
from fractions import Fraction
from importlib import import_module
from importlib.util import find_spec

import mdispatch as md

from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_UNROLLED = 20

_OPERATORS = {
    "tensor": "tensor(Tensor x) -> Tensor",
    "tensors": "tensors(Tensor x, Tensor y) -> Tensor",
    "of_types": "of_types(Tensor x) -> Tensor",
    "of_two_types": "of_two_types(Tensor x, Tensor y) -> Tensor",
    "real": "real(float x) -> float",
    "whole": "whole(int x) -> int",
    "word": "word(str x) -> str",
    "reals": "reals(float[] x) -> Any",
    "two": "two(int[2] x) -> Any",
    "made_real": "made_real(Any x) -> float",
    "pair": "pair(Tensor x, Tensor y) -> (Tensor, Tensor)",
    "in_c": "in_c(Tensor x) -> bool",
    "two_in_c": "two_in_c(Tensor x, Tensor y) -> bool",
}


class Array:
    pass


class Other(Array):
    pass


class Third:
    pass


class Exchanged:
    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: object) -> None:
        return None


class Text(str):
    __slots__ = ()


class Level(enum.IntEnum):
    LOW = 1


_TYPES: dict[str, tuple[Any, ...]] = {
    "of_types": (Array, Other, Third),
    "of_two_types": (Array, (Array, Third), (Other, Third)),
}


def _one(x: Any) -> Any:
    return x


def _first(x: Any, y: Any) -> Any:
    return x


def _both(x: Any, y: Any) -> Any:
    return [x, y]


#: Where it is none of these.
_KERNELS: dict[str, Any] = {"pair": _both, "in_c": callable, "two_in_c": operator.is_}

#: Kept: a library's registrations end with it.
_LIBRARIES: list[Any] = []

_TENSOR, _LIBRARY = "a PyTorch tensor", "the same, an operator of torch.library"


def _values() -> Iterator[tuple[str, str, tuple[Any, ...], float | None]]:
    """What is passed, the operator, the arguments, and how many plain calls it may cost."""
    later = sys.version_info >= (3, 12)
    yield "a registered type", "tensor", (Array(),), 2.1 if later else 1.9
    yield "two of a registered type", "tensors", (Array(), Array()), 2.1 if later else 1.9
    yield "three kernels by type", "of_types", (Other(),), 2.3 if later else 2.1
    yield "three kernels by two types", "of_two_types", (Other(), Third()), 2.3 if later else 2.1
    yield "another object that speaks DLPack", "tensor", (Exchanged(),), 5.0
    if find_spec("numpy"):
        numpy: Any = import_module("numpy")
        array = numpy.ones(2)
        subclass = type("Sub", (numpy.ndarray,), {})
        yield "a NumPy array", "tensor", (array,), 3.0 if later else 2.8
        yield "two NumPy arrays", "tensors", (array, array), 3.0 if later else 2.8
        yield "a subclass of NumPy's array", "tensor", (array.view(subclass),), 3.5
        yield "numpy.float64 for float", "real", (numpy.float64(1),), 3.5
        yield "numpy.int64 for int", "whole", (numpy.int64(1),), 3.5
        yield "numpy.float64 returned for float", "made_real", (numpy.float64(1),), 3.0
    if find_spec("torch"):
        torch: Any = import_module("torch")
        tensor = torch.ones(2)
        yield _TENSOR, "tensor", (tensor,), 4.0 if later else 3.5
        yield "two PyTorch tensors", "tensors", (tensor, tensor), 5.0 if later else 4.5
        yield "a PyTorch Parameter", "tensor", (torch.nn.Parameter(tensor),), 3.5
    yield "int for float", "real", (1,), 3.5
    yield "bool for int", "whole", (True,), 3.5
    yield "IntEnum for int", "whole", (Level.LOW,), 3.5
    yield "Fraction for float (its __float__ is Python)", "real", (Fraction(1, 2),), None
    yield "a subclass of str", "word", (Text("a"),), 3.5
    yield "ints for float[]", "reals", ([1, 2],), 3.5
    yield "int for int[2]", "two", (3,), None
    yield "int returned for float", "made_real", (1,), 3.0
    yield "two values returned for (Tensor, Tensor)", "pair", (Array(), Array()), 4.0
    yield "a C kernel, of its C function", "in_c", (Array(),), 1.8
    yield "with two arguments", "two_in_c", (Array(), Array()), 1.8


def main() -> None:
    job = Job()
    md.register_type(Array, "CPU")
    md.register_type(Third, "CPU")
    library = md.Library("values", "DEF", registry=md.Registry.create())
    found = {}
    for number, (what, name, values, aim) in enumerate(_values()):
        # Each with an operator of its own: a plan remembers one call.
        schema = _OPERATORS[name].replace("(", f"{number}(", 1)
        kernel = _KERNELS.get(name, _first if "Tensor y" in schema else _one)
        key = "CPU" if "Tensor" in schema else "CompositeExplicitAutograd"
        defined = library.define(schema)
        for types in _TYPES.get(name, (None,)):
            library.impl(defined, kernel, key, types=types)
        names = ", ".join("fxy"[: 1 + len(values)])
        call = f"f({names[3:]})"

        def with_(f: Any, values: tuple[Any, ...] = values) -> Any:
            return lambda: (f, *values)

        called = library.registry.ops.find(defined)
        plain = job.statement(f"plain call: {what}", call, names, with_(kernel), times=_UNROLLED)
        found[what] = job.statement(what, call, names, with_(called), times=_UNROLLED)
        job.ratio(f"{what} / plain call", found[what], plain, aim=aim)
        if what == _TENSOR:
            found[_LIBRARY] = job.statement(_LIBRARY, "f(x)", "f, x", _torch, times=_UNROLLED)
            job.ratio(f"{_LIBRARY} / plain call", found[_LIBRARY], plain)
    if _LIBRARY in found:
        what = f"torch.library / mdispatch, {_TENSOR}"
        job.ratio(what, found[_LIBRARY], found[_TENSOR], aim=12, at_least=True)
    job.end()


def _torch() -> tuple[Any, ...]:
    """The same operator of PyTorch's, and a tensor."""
    torch: Any = import_module("torch")
    theirs = torch.library.Library("mdispatch_values", "DEF")
    theirs.define("tensor(Tensor x) -> Tensor")
    theirs.impl("tensor", _one, "CPU")
    _LIBRARIES.append(theirs)
    return torch.ops.mdispatch_values.tensor.default, torch.ones(2)


if __name__ == "__main__":
    main()
