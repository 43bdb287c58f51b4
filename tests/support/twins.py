"""Two of each operator, one in torch.library and one in mdispatch; every kind of call of both; what
came of it, and where they differ.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from twin_operators import OPERATORS, Twin

import mdispatch as md

__all__ = ["REASONS", "SITUATIONS", "Pair", "Situation", "different", "end", "line", "pairs_of"]

THEIRS, OURS = "twin_of_torch", "twin_of_md"


# --- two of each ----------------------------------------------------------------------------------


class Pair:
    """The same operator twice; ``ran`` is what ran in the last call."""

    def __init__(self, twin: Twin, registry: md.Registry, theirs: Any, ours: Any) -> None:
        self.twin = twin
        self.libraries = theirs, ours  # PyTorch ends its own with the last reference
        self.ran: list[Any] = []
        self.theirs = self._make(torch.library, f"{THEIRS}::{twin.name}", theirs, {})
        self.ours = self._make(md, f"{OURS}::{twin.name}", ours, {"registry": registry})

    def _make(self, api: Any, name: str, lib: Any, where: dict[str, Any]) -> Callable[..., Any]:
        twin = self.twin
        kernel = self._noted("kernel", twin.kernel)
        if twin.how == "custom":
            schema = twin.schema[len(twin.name) :]
            made = api.custom_op(name, kernel, mutates_args=twin.written, schema=schema, **where)
        else:
            lib.define(twin.schema)
            lib.impl(twin.name, kernel, twin.how)
        if twin.fake is not None:
            api.register_fake(name, self._noted("fake", twin.fake), lib=lib)
        if twin.backward is not None:
            backward = self._noted("backward", twin.backward)
            api.register_autograd(name, backward, setup_context=twin.setup, lib=lib)
        if twin.how == "custom":
            return made
        if api is md:
            md.torch.export(name, **where)
            return where["registry"].ops.find(name)
        return getattr(getattr(torch.ops, THEIRS), twin.name).default

    def _noted(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            given = tree_leaves((args, kwargs))
            self.ran.append(
                (what, [type(t).__name__ for t in given if isinstance(t, torch.Tensor)])
            )
            return function(*args, **kwargs)

        return noted


# --- kinds of tensors, and where they are called --------------------------------------------------

Call = Callable[..., Any]


class Situation:
    """``convert`` makes the tensors of a call, ``around`` makes the call. ``refused``: whether
    both refused the last one.
    """

    refused = False

    def __init__(
        self,
        name: str,
        convert: Callable[[Any], Any] | None = None,
        around: Callable[..., Any] | None = None,
        arguments: Callable[..., Any] | None = None,
    ) -> None:
        self.name = name
        self._convert = convert
        self._around = around
        self._arguments = arguments

    def outcome(self, pair: Pair, call: Call) -> dict[str, Any]:
        torch.manual_seed(0)
        pair.ran.clear()
        self.log: list[str] = []
        leaves: list[Any] = []
        given: Any = (pair.twin.args(), pair.twin.kwargs())

        def convert(value: Any) -> Any:
            made = self._convert(value) if self._convert else value
            leaves.append(made)
            return made

        found: dict[str, Any] = {}
        with self.opened():
            args, kwargs = tree_map_only(torch.Tensor, convert, given)
            if self._arguments:
                args, kwargs = self._arguments(pair.twin, args, kwargs)
            try:
                if self._around:
                    result = self._around(self, call, args, kwargs)
                else:
                    result = call(*args, **kwargs)
                found["is refused"] = False
            except Exception as error:
                found["is refused"] = True
                found["error"] = error
                result = None
        found["result"] = [describe(each, leaves) for each in flat(result)]
        found["arguments after"] = [describe(each, leaves) for each in leaves]
        found["gradient"] = _gradients(result, leaves)
        found["ran"] = list(pair.ran)
        found["seen"] = [each.replace(THEIRS, "twin").replace(OURS, "twin") for each in self.log]
        return found

    def opened(self) -> Any:
        return contextlib.nullcontext()


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def describe(value: Any, leaves: list[Any]) -> Any:
    """All that can be seen of a value."""
    if not isinstance(value, torch.Tensor):
        return [describe(each, leaves) for each in value] if type(value) is list else repr(value)
    found: dict[str, Any] = {"type": type(value).__name__}
    for name in ("shape", "dtype", "device", "layout", "requires_grad", "is_leaf"):
        with contextlib.suppress(RuntimeError):  # a nested tensor has no shape
            found[name] = repr(getattr(value, name))
    found["keys"] = repr(torch._C._dispatch_keys(value))
    found["is given"] = [number for number, each in enumerate(leaves) if each is value]
    found["shares memory"] = [n for n, each in enumerate(leaves) if _memory(each) == _memory(value)]
    if found["shares memory"]:  # a new result's version is what its kernel's operators made of it
        found["version"] = None if value.is_inference() else value._version
    with contextlib.suppress(Exception), torch.no_grad():
        assert not value._is_zerotensor()  # PyTorch reads memory that is not there
        found["values"] = repr(value.detach().to_dense().tolist())
    if isinstance(value, Wrapper):
        found["values"] = repr(value.inner.tolist())
    return found


def _memory(value: Any) -> Any:
    try:
        return value.untyped_storage().data_ptr() or value.untyped_storage()._cdata
    except Exception:
        return id(value)


def _gradients(result: Any, leaves: list[Any]) -> Any:
    wanted = [
        each
        for each in tree_leaves(result)
        if isinstance(each, torch.Tensor) and each.requires_grad and each.dtype.is_floating_point
    ]
    starts = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
    if not wanted or not starts:
        return None
    with contextlib.suppress(Exception):
        if any(isinstance(each, FakeTensor) for each in wanted):
            return "fake"
    try:
        total = sum((each * each).sum() for each in wanted)
        found = torch.autograd.grad(total, starts, allow_unused=True)
    except Exception:
        return "refused"
    return [None if each is None else describe(each, []) for each in found]


SITUATIONS: dict[str, Situation] = {}


def situation(name: str, *args: Any, cls: type[Situation] = Situation, **kwargs: Any) -> None:
    SITUATIONS[name] = cls(name, *args, **kwargs)


def _floating(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: function(value) if value.dtype.is_floating_point else value


def _inside(guard: Callable[[], Any]) -> Callable[..., Any]:
    def around(self: Situation, call: Call, args: Any, kwargs: Any) -> Any:
        with guard():
            return call(*args, **kwargs)

    return around


# Gradients.
situation("a tensor")
situation("requires_grad", _floating(lambda t: t.requires_grad_()))
situation("result of another operator", _floating(lambda t: t.requires_grad_() * 1))
situation("Parameter", _floating(torch.nn.Parameter))
situation("requires_grad, no_grad", _floating(lambda t: t.requires_grad_()), _inside(torch.no_grad))
situation("inference_mode", None, _inside(torch.inference_mode))


def _inference(value: Any) -> Any:
    with torch.inference_mode():
        return value.clone()


situation("inference tensor", _inference)
situation("inference tensor, inference_mode", _inference, _inside(torch.inference_mode))
situation("dual number", None, lambda self, call, args, kwargs: _dual(call, args, kwargs))
situation("autocast", None, _inside(lambda: torch.autocast("cpu")))
situation(
    "overwritten before backward",
    _floating(lambda t: t.requires_grad_()),
    lambda self, call, args, kwargs: _squares_of(call, args, kwargs),
)


def _squares_of(call: Call, args: Any, kwargs: Any) -> Any:
    """The operator is called with values that the graph has kept."""
    args, kwargs = tree_map_only(torch.Tensor, lambda t: t * 1, (args, kwargs))
    kept = [t * t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    with torch.no_grad():
        call(*args, **kwargs)
    return kept


def _dual(call: Call, args: Any, kwargs: Any) -> Any:
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        make = _floating(lambda t: forward.make_dual(t, torch.ones_like(t)))
        args, kwargs = tree_map_only(torch.Tensor, make, (args, kwargs))
        result = call(*args, **kwargs)
        parts = [forward.unpack_dual(t) for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        return [each.tangent for each in parts]


# Layout, dtype, device.
situation("meta", lambda t: t.to("meta"))
situation("meta, requires_grad", _floating(lambda t: t.to("meta").requires_grad_()))
situation("0-dim", lambda t: t[0, 0].clone())
situation("empty", lambda t: t[:0].clone())
situation("transposed", lambda t: t.t())
situation("expanded", lambda t: t[:1].expand(2, 2))
situation("view of a leaf", _floating(lambda t: t.clone().requires_grad_()[:]))
for _dtype in (torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
    situation(str(_dtype)[6:], _floating(lambda t, dtype=_dtype: t.to(dtype)))
situation("sparse", lambda t: t.to_sparse())
situation("sparse CSR", lambda t: t.to_sparse_csr())
situation("MKLDNN", _floating(lambda t: t.to_mkldnn()))
situation("negative view", _floating(torch._neg_view))
situation("conjugate view", _floating(lambda t: torch.complex(t, t).conj()))
situation("efficient zeros", _floating(lambda t: torch._efficientzerotensor(2, 2)))
situation("nested", _floating(lambda t: torch.nested.nested_tensor([t, t])))
situation("quantized", _floating(lambda t: torch.quantize_per_tensor(t, 1.0, 0, torch.qint8)))


# Classes.
class Subclass(torch.Tensor):
    pass


class Silent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


_log: list[str] = []


class Asked(torch.Tensor):
    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


class Wrapper(torch.Tensor):
    """Not a tensor's memory, but a tensor."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if isinstance(function, torch._ops.OpOverload) and "twin" in function.namespace:
            _log.append(str(function))
        args, kwargs = tree_map_only(Wrapper, lambda each: each.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, Wrapper, function(*args, **kwargs))


class Logged(Situation):
    """What a class or a mode is asked becomes part of the outcome."""

    def outcome(self, pair: Pair, call: Call) -> dict[str, Any]:
        _log.clear()
        found = super().outcome(pair, call)
        found["seen"] = [each.replace(THEIRS, "twin").replace(OURS, "twin") for each in _log]
        return found


situation("subclass", lambda t: t.as_subclass(Subclass))
situation("subclass without __torch_function__", lambda t: t.as_subclass(Silent))
situation("subclass with __torch_function__", lambda t: t.as_subclass(Asked))
situation("subclass with __torch_dispatch__", Wrapper, cls=Logged)
situation("TwoTensor", lambda t: TwoTensor(t, t.clone()))
situation("numpy.ndarray", lambda t: t.numpy())


# Modes.
class Calls(TorchDispatchMode):
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "twin" in function.namespace:
            _log.append(str(function))
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "twin" in str(function):
            _log.append(str(function))
        return function(*args, **(kwargs or {}))


class Fake(Situation):
    """Tensors of a FakeTensorMode."""

    def opened(self) -> Any:
        mode = FakeTensorMode()
        self._convert = mode.from_tensor
        self._around = _inside(lambda: mode) if self.name == "FakeTensorMode" else None
        return contextlib.nullcontext()


situation("TorchDispatchMode", None, _inside(Calls), cls=Logged)
situation(
    "TorchDispatchMode, requires_grad",
    _floating(lambda t: t.requires_grad_()),
    _inside(Calls),
    cls=Logged,
)
situation("TorchFunctionMode", None, _inside(Functions), cls=Logged)
situation("FakeTensorMode", cls=Fake)
situation("FakeTensor, no mode", cls=Fake)
situation(
    "FakeTensorMode, real tensors",
    None,
    _inside(lambda: FakeTensorMode(allow_non_fake_inputs=True)),
)
situation("torch.device('meta') as a mode", None, _inside(lambda: torch.device("meta")))


# Transforms. Only the tensors of a call are arguments of what is transformed.
def _transformed(transform: Callable[..., Any]) -> Callable[..., Any]:
    def around(self: Situation, call: Call, args: Any, kwargs: Any) -> Any:
        given, spec = torch.utils._pytree.tree_flatten((args, kwargs))
        places = [i for i, each in enumerate(given) if isinstance(each, torch.Tensor)]

        def of_tensors(*tensors: Any) -> Any:
            filled = list(given)
            for place, tensor in zip(places, tensors, strict=True):
                filled[place] = tensor
            args, kwargs = torch.utils._pytree.tree_unflatten(filled, spec)
            return call(*args, **kwargs)

        return transform(of_tensors, [given[place] for place in places])

    return around


def _added(function: Call) -> Call:
    return lambda *args: sum(
        each.sum() for each in tree_leaves(function(*args)) if isinstance(each, torch.Tensor)
    )


def _traced(function: Call, tensors: Any) -> Any:
    graph = torch.fx.experimental.proxy_tensor.make_fx(function)(*tensors)
    return re.sub(rf"{THEIRS}|{OURS}", "twin", graph.code)


func = torch.func
situation(
    "vmap", None, _transformed(lambda f, ts: func.vmap(f)(*(torch.stack([t, t]) for t in ts)))
)
situation("grad", None, _transformed(lambda f, ts: func.grad(_added(f))(*ts)))
situation(
    "vmap of grad",
    None,
    _transformed(lambda f, ts: func.vmap(func.grad(_added(f)))(*(torch.stack([t, t]) for t in ts))),
)
situation(
    "jvp", None, _transformed(lambda f, ts: func.jvp(f, tuple(ts), tuple(map(torch.ones_like, ts))))
)
situation("functionalize", None, _transformed(lambda f, ts: func.functionalize(f)(*ts)))
situation("make_fx", None, _transformed(_traced))


# The compiler, and the profiler.
def _compiled(backend: str) -> Callable[..., Any]:
    def compiled(function: Call, tensors: Any) -> Any:
        torch._dynamo.reset()
        made = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)
        return made(*tensors)

    return _transformed(compiled)


class _Program(torch.nn.Module):
    def __init__(self, function: Call) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: Any) -> Any:
        return self._function(*tensors)


def _exported(function: Call, tensors: Any) -> Any:
    return torch.export.export(_Program(function), tuple(tensors)).module()(*tensors)


class Profiled(Logged):
    """The names that the profiler has seen, and how often each."""

    def outcome(self, pair: Pair, call: Call) -> dict[str, Any]:
        profiler = torch.profiler
        with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as profile:
            found = super().outcome(pair, call)
        names = [each.name for each in profile.events() if "twin" in each.name]
        found["seen"] = [re.sub(rf"{THEIRS}|{OURS}", "twin", each) for each in names]
        return found


for _backend in ("eager", "aot_eager"):
    situation(f"torch.compile, {_backend}", None, _compiled(_backend))
    situation(
        f"torch.compile, {_backend}, requires_grad",
        _floating(lambda t: t.requires_grad_()),
        _compiled(_backend),
    )
situation("torch.export", None, _transformed(_exported))
situation("torch.profiler", cls=Profiled)


# Other arguments.
def _first(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda twin, args, kwargs: ((change(args[0]), *args[1:]), kwargs)


def _numbers(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Changes what is no tensor."""

    def arguments(twin: Twin, args: Any, kwargs: Any) -> Any:
        return tree_map(
            lambda each: change(each) if type(each) in (int, float, bool) else each, (args, kwargs)
        )

    return arguments


def _by_keyword(twin: Twin, args: Any, kwargs: Any) -> Any:
    schema = md.schema.parse_schema(twin.schema)
    named = {a.name: value for a, value in zip(schema.arguments, args, strict=False)}
    return (), named | kwargs


situation("None for the first argument", arguments=_first(lambda each: None))
situation("a word for the first argument", arguments=_first(lambda each: "x"))
situation("a number for the first argument", arguments=_first(lambda each: 2.0))
situation("a list for the first argument", arguments=_first(lambda each: [each]))
situation("no argument", arguments=lambda twin, args, kwargs: ((), kwargs))
situation("one argument too many", arguments=lambda twin, args, kwargs: ((*args, 1, 2, 3), kwargs))
situation("an unknown keyword", arguments=lambda twin, args, kwargs: (args, kwargs | {"zz": 1}))
situation("all by keyword", arguments=_by_keyword)
situation("positional only", arguments=lambda twin, args, kwargs: ((*args, *kwargs.values()), {}))
situation("defaults", arguments=lambda twin, args, kwargs: (args[:1], {}))
situation("numbers as 0-dim tensors", arguments=_numbers(torch.tensor))
situation("numbers as numpy scalars", arguments=_numbers(lambda each: np.asarray(each)[()]))
situation("numbers as words", arguments=_numbers(str))
situation("numbers as None", arguments=_numbers(lambda each: None))
situation("numbers as bool", arguments=_numbers(bool))
situation("numbers as float", arguments=_numbers(float))
situation("numbers as complex", arguments=_numbers(complex))
situation(
    "tuples for lists",
    arguments=lambda twin, args, kwargs: (
        tuple(tuple(each) if type(each) is list else each for each in args),
        kwargs,
    ),
)


# --- where they differ ----------------------------------------------------------------------------

ASPECTS = ("is refused", "result", "arguments after", "gradient", "ran", "seen")


def different(pair: Pair, each: Situation) -> dict[str, tuple[Any, Any]]:
    """By aspect, what came of PyTorch's and of ours, where that is not the same."""
    theirs = each.outcome(pair, pair.theirs)
    ours = each.outcome(pair, pair.ours)
    each.refused = theirs["is refused"] and ours["is refused"]
    if each.refused:
        aspects: Iterator[str] = iter(("arguments after",))
    else:
        aspects = iter(ASPECTS)
    found = {}
    for aspect in aspects:
        if theirs[aspect] != ours[aspect]:
            found[aspect] = theirs[aspect], ours[aspect]
            if aspect == "is refused":
                found[aspect] = theirs.get("error"), ours.get("error")
                break
    return found


def leaves_of(theirs: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The smallest parts that differ, each with the names on its way."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in theirs.keys() | ours.keys():
            yield from leaves_of(theirs.get(key), ours.get(key), key)
    elif type(theirs) is list and type(ours) is list and len(theirs) == len(ours):
        for one, other in zip(theirs, ours, strict=True):
            yield from leaves_of(one, other, path)
    elif theirs != ours:
        yield path, theirs, ours


class Difference:
    """One part of an outcome that is not the same."""

    def __init__(self, where: str, twin: Twin, aspect: str, part: tuple[str, Any, Any]) -> None:
        self.where, self.twin, self.aspect = where, twin, aspect
        self.part, self.theirs, self.ours = part

    def __str__(self) -> str:
        return f"{self.where}, {self.twin.name}, {self.aspect} {self.part}:\n  PyTorch: " + (
            f"{self.theirs!r:.600}\n  mdispatch: {self.ours!r:.600}"
        )


#: Why some differ: the title, which differences, and the reason.
REASONS: list[tuple[str, Callable[[Difference], bool], str]] = []


def reason(title: str, why: str) -> Callable[[Callable[[Difference], bool]], None]:
    return lambda applies: REASONS.append((title, applies, why))


_WITH_GRADIENT = (
    "requires_grad",
    "result of another operator",
    "Parameter",
    "view of a leaf",
    "meta, requires_grad",
    "TorchDispatchMode, requires_grad",
    "torch.compile, eager, requires_grad",
    "torch.compile, aot_eager, requires_grad",
    "grad",
    "vmap of grad",
)


@reason(
    "no result",
    "A kernel that returns None where the schema says Tensor gets an error; "
    "PyTorch passes None on.",
)
def _(d: Difference) -> bool:
    return d.twin.name == "no_result"


@reason("arrays", "Arrays of NumPy are values of mdispatch, with the keys of the processor.")
def _(d: Difference) -> bool:
    return d.where == "numpy.ndarray" and d.ours is None


@reason("None", "None is no Tensor; PyTorch passes it to the kernel of an operator.")
def _(d: Difference) -> bool:
    return d.where == "None for the first argument"


@reason(
    "booleans",
    "A bool is True or False. PyTorch takes anything for it, also None, and decides by its number.",
)
def _(d: Difference) -> bool:
    return d.where.startswith("numbers as") and "takes bool" in str(d.ours)


@reason(
    "numbers",
    "An array's number is a Scalar, and an int stands for a list of a known length, "
    "whatever class it is of; PyTorch takes only Python's own there.",
)
def _(d: Difference) -> bool:
    return d.where.startswith("numbers as") and d.aspect == "is refused" and d.ours is None


@reason(
    "forward",
    "PyTorch loses the tangent of an operator that has a formula for the way back only, "
    "without a word. Here the kernel gets the dual numbers, and what it calls keeps the tangent.",
)
def _(d: Difference) -> bool:
    return d.where == "dual number" and d.aspect == "result"


@reason(
    "versions",
    "Every declared write raises the version by one, also where the kernel's own "
    "operators have raised it; so do operators of `torch.library.custom_op`, and those of "
    "`torch.library.Library` do not, whose kernels may write with NumPy.",
)
def _(d: Difference) -> bool:
    return d.part == "version" and d.twin.how == "CPU" and d.ours == d.theirs + 1


@reason(
    "writes",
    "An operator that writes is not differentiated, as one of `torch.library.custom_op`, and runs "
    "under torch.func.grad. PyTorch's refuses that with an error about its own classes.",
)
def _(d: Difference) -> bool:
    is_one = bool(d.twin.written) and d.twin.how == "custom" and d.where in _WITH_GRADIENT
    return is_one and "compile" not in d.where


@reason(
    "nothing to make",
    "An operator that returns nothing needs no fake kernel, for tensors of the device "
    "meta as for FakeTensors; PyTorch's needs one for the former.",
)
def _(d: Difference) -> bool:
    return d.where.startswith("meta") and d.ours is None and d.twin.schema.endswith("()")


@reason(
    "no formula",
    "A kernel of the backend that calls differentiable operators is no formula: the "
    "graph's node says which operator has none. PyTorch differentiates through the kernel, which "
    "its own opcheck calls wrong; registered at CompositeImplicitAutograd, both do.",
)
def _(d: Difference) -> bool:
    return (
        d.twin.backward is None
        and d.twin.how in ("CPU", "CompositeExplicitAutograd")
        and "Tensor" in d.twin.schema.partition("->")[0]
        and d.where in _WITH_GRADIENT
        and d.part not in ("values", "shape", "dtype", "keys", "version")
        and (d.aspect != "arguments after" or "compile" not in d.where)
    )


@reason(
    "memory",
    "That a result is an argument is seen for every layout; PyTorch compares the memory of "
    "dense tensors.",
)
def _(d: Difference) -> bool:
    return "AliasingError" in repr(type(d.ours)) and d.twin.name == "same_custom"


@reason(
    "made of numbers",
    "Without a fake kernel, FakeTensorMode calls an operator that has no Tensor with a "
    "device that it does not take. An exported operator always has a fake kernel.",
)
def _(d: Difference) -> bool:
    traced = d.where.startswith(("FakeTensorMode", "torch.compile", "torch.export"))
    return traced and d.twin.name == "full" and d.ours is None


@reason(
    "copied back",
    "A compiled graph writes to a copy, which it copies back. With a gradient, that raises the "
    "version of the tensor twice in PyTorch, and once here.",
)
def _(d: Difference) -> bool:
    return (
        d.where == "torch.compile, aot_eager, requires_grad"
        and (d.part, d.theirs, d.ours) == ("version", 2, 1)
        and bool(d.twin.written)
    )


def explained(pair: Pair, each: Situation) -> tuple[bool, list[str]]:
    """Whether both refuse a call, and the titles of what is different about it. An AssertionError
    for a difference that has no reason.
    """
    titles: list[str] = []
    found = different(pair, each)
    for aspect, (theirs, ours) in found.items():
        for part in leaves_of(theirs, ours):
            one = Difference(each.name, pair.twin, aspect, part)
            fits = [title for title, applies, _ in REASONS if applies(one)]
            assert fits, f"no reason for: {one}"
            titles += fits[:1]
    return each.refused, sorted(set(titles))


def line(pairs: dict[str, Pair], each: Situation) -> str:
    """A row of the page: how many are the same, how many are refused by both, what is different."""
    same = refused = 0
    by_title: dict[str, list[str]] = {}
    for name, pair in pairs.items():
        is_refused, titles = explained(pair, each)
        refused += is_refused
        same += not is_refused and not titles
        for title in titles:
            by_title.setdefault(title, []).append(f"`{name}`")
    words = "; ".join(f"*{title}*: {', '.join(names)}" for title, names in sorted(by_title.items()))
    return f"| {each.name} | {same} | {refused} | {words} |"


def pairs_of(registry: md.Registry) -> dict[str, Pair]:
    theirs = torch.library.Library(THEIRS, "FRAGMENT")
    ours = md.Library(OURS, "FRAGMENT", registry=registry)
    return {name: Pair(twin, registry, theirs, ours) for name, twin in OPERATORS.items()}


def end(pairs: dict[str, Pair]) -> None:
    """Ends PyTorch's ones, which would last as long as anything refers to them."""
    for pair in pairs.values():
        for library in (getattr(pair.theirs, "_lib", None), pair.libraries[0]):
            if library is not None:
                library._destroy()
