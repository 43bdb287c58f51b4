"""The dispatchers that can be measured: mdispatch and its peers, each doing the same work.

Each peer makes the function of a :class:`Shape` the way its own documentation says. All are
compared with ``plain``, a call of the same Python function.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from mdispatch import Library, register_type
from mdispatch.registry import operator_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = Callable[..., Any]

#: Where the kernels of the arrays are registered in mdispatch and in PyTorch.
KEYS: tuple[str, ...] = (
    "CPU",
    "CUDA",
    "HIP",
    "XLA",
    "MPS",
    "IPU",
    "XPU",
    "HPU",
    "VE",
    "Lazy",
    "MTIA",
    "MAIA",
)
KEYS += ("PrivateUse1", "PrivateUse2", "PrivateUse3", "Meta")
KEYS += ("SparseCPU", "SparseCUDA", "QuantizedCPU", "QuantizedCUDA")

#: Array types, one for each of these keys.
TYPES: tuple[type[Any], ...] = tuple(type(f"{key}Array", (), {}) for key in KEYS)


class UnfitError(Exception):
    """A peer cannot do that. The text says why."""


def of_one(x: object) -> object:
    return x


def of_two(x: object, y: object) -> object:
    return x


def of_keyword(x: object, factor: float = 2.0) -> object:
    return x


@dataclass(frozen=True, slots=True)
class Shape:
    """A call that all do: ``f(x)`` or ``f(x, y)``, or one with a keyword argument."""

    name: str
    what: str
    kernel: Function
    call: str
    returns: str = "Tensor"
    kernels: int = 2

    @property
    def arity(self) -> int:
        return 2 if "y" in self.call else 1

    @property
    def keyword(self) -> bool:
        return "factor" in self.call

    @property
    def python(self) -> Function:
        """The Python function of the same arguments."""
        if self.arity == 2:
            return of_two
        return of_keyword if self.keyword else of_one

    @property
    def schema(self) -> str:
        """The arguments and returns in the words of mdispatch and PyTorch."""
        arguments = {1: "Tensor x", 2: "Tensor x, Tensor y"}[self.arity]
        return f"({arguments}{', float factor=2.0' * self.keyword}) -> {self.returns}"


SHAPES = (
    Shape("one", "1 arg", of_one, "f(x)"),
    Shape("two", "2 args", of_two, "f(x, y)"),
    Shape("keyword", "keyword", of_keyword, "f(x, factor=3.0)"),
    Shape("kernels", "20 kernels", of_one, "f(x)", kernels=20),
    Shape("c-one", "C, 1 arg", callable, "f(x)", "bool"),
    Shape("c-two", "C, 2 args", operator.is_, "f(x, y)", "bool"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """A function and what it is called with."""

    f: Function
    x: object
    y: object


class Peer:
    """One who dispatches. ``module`` is what has to be installed for it, ``package`` as what."""

    name: str
    module = ""
    package = ""

    @property
    def missing(self) -> str:
        """Why it cannot be measured here; "" when it can."""
        if self.module and find_spec(self.module) is None:
            return f"not installed (pip install {self.package})"
        return ""

    def call(self, shape: Shape) -> str:
        """How its function is called."""
        return shape.call

    def case(self, shape: Shape) -> Case:
        """Raises UnfitError, and whatever its libraries raise."""
        types = TYPES[: shape.kernels]
        return Case(self.function(shape, types), types[0](), types[0]())

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        """A function with a kernel for arguments of each of these types."""
        raise NotImplementedError


class Plain(Peer):
    name = "plain call"

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        return shape.python


@functools.cache
def own_library() -> Library:
    """The one library: opened again from the same place, it would take the place of the first."""
    return Library("bench", "DEF")


class Again(Plain):
    """The control: what differs from 1.0 here is not the others' doing."""

    name = "plain call again"


class Mdispatch(Peer):
    """By the overload: what a packet costs is a job of its own."""

    name = "mdispatch"

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        library = own_library()
        name = library.define(shape.name.replace("-", "_") + shape.schema)
        for key, each in zip(KEYS, types, strict=False):
            register_type(each, key)
            library.impl(name, shape.kernel, key)
        return operator_of(name)


class Dict(Peer):
    """A dict of functions by type, as people write it by hand."""

    name = "dict by type"

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        by_one = dict.fromkeys(types, shape.kernel)
        by_two = {(one, two): shape.kernel for one in types for two in types}

        def of_one(x: object) -> object:
            return by_one[type(x)](x)

        def of_two(x: object, y: object) -> object:
            return by_two[type(x), type(y)](x, y)

        def of_keyword(x: object, factor: float = 2.0) -> object:
            return by_one[type(x)](x, factor)

        return of_two if shape.arity == 2 else of_keyword if shape.keyword else of_one


class Singledispatch(Peer):
    """By the first argument only."""

    name = "singledispatch"

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        f = functools.singledispatch(shape.python)
        for each in types:
            f.register(each, shape.kernel)
        return f


def annotated(kernel: Function, each: type[Any]) -> Function:
    """A kernel of one's own for this type: its arguments say so."""
    if not isinstance(kernel, FunctionType):
        raise UnfitError("takes functions that are annotated only, not C functions")
    code = kernel.__code__
    made = FunctionType(code, kernel.__globals__, "f", kernel.__defaults__)
    made.__annotations__ = {name: each for name in code.co_varnames[:2] if name != "factor"}
    made.__module__, made.__qualname__ = kernel.__module__, "f"
    return made


class Ovld(Peer):
    name, module, package = "ovld", "ovld", "ovld"

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        made = import_module("ovld").Ovld(name="f")
        for each in types:
            made.register(annotated(shape.kernel, each))
        f: Function = made.dispatch
        return f


class Plum(Peer):
    name, module, package = "plum", "plum", "plum-dispatch"

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        dispatch = import_module("plum").Dispatcher()
        for each in types:
            f: Function = dispatch(annotated(shape.kernel, each))
        return f


class Multipledispatch(Peer):
    name, module, package = "multipledispatch", "multipledispatch", "multipledispatch"

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        f: Any = import_module("multipledispatch").Dispatcher("f")
        for each in types:
            f.add((each,) * shape.arity, shape.kernel)
        made: Function = f
        return made


class Multimethod(Peer):
    name, module, package = "multimethod", "multimethod", "multimethod"

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        f: Any = import_module("multimethod").multimethod(shape.python)
        for each in types:
            f[(each,) * shape.arity] = shape.kernel
        made: Function = f
        return made


class Uarray(Peer):
    """One backend stands for all types; the backends that are set decide which of them runs."""

    name, module, package = "uarray", "uarray", "uarray"

    def function(self, shape: Shape, types: tuple[type[Any], ...]) -> Function:
        if shape.kernels > 2:
            raise UnfitError("has backends, not kernels by type")
        uarray = import_module("uarray")
        kernels: dict[object, Function] = {}

        # The arguments in their cheapest form: not marked by a type, and never replaced.
        def of_one(x: object, factor: float = 2.0) -> object:
            return (x,)

        def of_two(x: object, y: object) -> object:
            return (x, y)

        def replaced(args: Any, kwargs: Any, dispatchables: object) -> Any:
            return args, kwargs

        class Backend:
            __ua_domain__ = f"mdispatch_bench.{shape.name}"

            @staticmethod
            def __ua_function__(method: object, args: Any, kwargs: Any) -> object:
                return kernels[method](*args, **kwargs)

        extractor = of_two if shape.arity == 2 else of_one
        f: Function = uarray.generate_multimethod(extractor, replaced, Backend.__ua_domain__)
        kernels[f] = shape.kernel
        uarray.set_global_backend(Backend)
        return f


class Numpy(Peer):
    """A function of NumPy's own with objects that answer it."""

    name, module, package = "__array_function__", "numpy", "numpy"

    def case(self, shape: Shape) -> Case:
        if shape.kernels > 2:
            raise UnfitError("finds kernels by the function, not by type")
        numpy = import_module("numpy")
        answers = {numpy.ndim: shape.kernel, numpy.kron: shape.kernel}
        answers[numpy.around] = lambda x, decimals: x

        class Array:
            def __array_function__(self, f: object, types: Any, args: Any, kwargs: Any) -> object:
                return answers[f](*args, **kwargs)

        if shape.keyword:
            return Case(numpy.around, Array(), None)
        return Case(numpy.kron if shape.arity == 2 else numpy.ndim, Array(), Array())

    def call(self, shape: Shape) -> str:
        return "f(x, decimals=3)" if shape.keyword else shape.call


class TorchLibrary(Peer):
    """An operator of torch.library with kernels for tensors, by its overload."""

    name, module, package = "torch.library", "torch", "torch"

    def case(self, shape: Shape) -> Case:
        torch = import_module("torch")
        name = shape.name.replace("-", "_")
        library = torch_library(torch)
        library.define(name + shape.schema)
        for key in KEYS[: shape.kernels]:
            library.impl(name, shape.kernel, key)
        f = getattr(torch.ops.mdispatch_bench, name).default
        return Case(f, torch.ones(1), torch.ones(1))


@functools.cache
def torch_library(torch: ModuleType) -> Any:
    """The one library. Its registrations end with it, so it is kept."""
    return torch.library.Library("mdispatch_bench", "DEF")


class TorchCustomOp(Peer):
    """Returns a new object: such an operator must not return an argument."""

    name, module, package = "torch custom_op", "torch", "torch"

    def case(self, shape: Shape) -> Case:
        if shape.kernel is not shape.python:
            raise UnfitError("takes functions that are annotated only, not C functions")
        if shape.kernels > 2:
            raise UnfitError("has kernels by device, not that many")
        torch = import_module("torch")
        other = torch.ones(1)
        functions: dict[int, Function] = {1: lambda x: other, 2: lambda x, y: other}
        f = functions[shape.arity]
        if shape.keyword:
            f = lambda x, factor=2.0: other  # noqa: E731
        name = f"mdispatch_bench::custom_{shape.name}"
        made = torch.library.custom_op(name, f, mutates_args=(), schema=shape.schema)
        return Case(made, torch.ones(1), torch.ones(1))


PLAIN, AGAIN = Plain(), Again()
PEERS: tuple[Peer, ...] = (Mdispatch(), Dict(), Singledispatch(), Ovld(), Plum())
PEERS += (Multipledispatch(), Multimethod(), Uarray(), Numpy(), TorchLibrary(), TorchCustomOp())
