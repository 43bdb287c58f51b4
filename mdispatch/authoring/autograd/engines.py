"""The engines of this interpreter. Only this file decides which of them serves a call.

Nothing here imports torch. The engine for PyTorch's tensors is made when an operator with a formula
is called in an interpreter that has imported torch.
"""

from __future__ import annotations

import sys

from ...dispatch.context.values import is_torch_tensor
from ...errors import AutogradError, InvalidArgumentError
from ...errors.words import shown
from ...facts import Handle
from ...forking import new_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from .node import AutogradCall, AutogradNode

    class AutogradEngine(Protocol):
        """Keeps the graph of values of some kind."""

        def needs_grad(self, value: Any) -> bool:
            """Whether a call with this tensor, now and in this thread, must be recorded."""

        def apply(self, call: AutogradCall) -> Any:
            """Runs the call with ``call.forward``, records it, and returns its result."""


class EngineHandle(Handle):
    """A registered engine. ``close`` takes it away; idempotent. Also a context manager."""

    __slots__ = ("_registration",)

    def __init__(self, registration: _EngineRegistration) -> None:
        self._registration = registration

    def close(self) -> None:
        """No call is given to the engine from now on."""
        while True:
            if self._left():
                break

    def _left(self) -> bool:
        """Takes the engine away, unless a signal handler of this thread comes in between."""
        global _engines
        with _lock:
            before = _engines
            left = tuple(each for each in before if each is not self._registration)
            if _engines is not before:
                return False
            _engines = left
            return True


class _EngineRegistration:
    """One registration of an engine, which may be registered twice."""

    __slots__ = ("engine",)

    def __init__(self, engine: AutogradEngine) -> None:
        self.engine = engine


# Engines are objects of this interpreter, newest first. The tuple is replaced, never changed, so
# calls read it without a lock.
_engines: tuple[_EngineRegistration, ...] = ()
_lock = new_lock()
_torch_engine: TorchEngine | None = None


def register_autograd_engine(engine: AutogradEngine) -> EngineHandle:
    """Registers an engine in this interpreter, until the handle is closed. It keeps the graph of
    the values that it says need a gradient.

    A call of an operator with a formula calls ``engine.needs_grad(value)`` for each of its tensors,
    in its own thread; ``engine.apply(call)`` then runs the :class:`AutogradCall`. The engine
    registered last is asked first, that of PyTorch's tensors after all others. The answer must not
    depend on other values of the call.

    Raises InvalidArgumentError for an object without these methods.
    """
    global _engines
    for method in ("needs_grad", "apply"):
        if not callable(getattr(engine, method, None)):
            raise InvalidArgumentError(
                f"an autograd engine must have needs_grad(value) and apply(call); {shown(engine)} "
                f"has no {method}()"
            )
    registration = _EngineRegistration(engine)
    with _lock:
        _engines = (registration, *_engines)
    return EngineHandle(registration)


def _asked() -> list[AutogradEngine]:
    """The engines in the order in which they are asked."""
    global _torch_engine
    engines = [each.engine for each in _engines]
    torch = sys.modules.get("torch")
    # While another thread is importing torch, this is the last thing to appear that the engine
    # needs.
    if hasattr(getattr(torch, "autograd", None), "Function"):
        if _torch_engine is None:
            _torch_engine = TorchEngine(torch)
        engines.append(_torch_engine)
    return engines


def needs_grad(value: Any) -> bool:
    """Whether an engine would record a call with this value, now and in this thread. (torch:
    Tensor.requires_grad)
    """
    return any(engine.needs_grad(value) for engine in _asked())


def engine_for(call: AutogradCall) -> AutogradEngine | None:
    """The engine that serves this call; None when no tensor needs a gradient.

    Raises AutogradError if the tensors need gradients of two engines: neither would see the
    other's.
    """
    if not _engines and _torch_engine is not None:
        return _torch_engine if _torch_engine.needs_any(call.inputs) else None
    engines = _asked()
    if not engines:
        return None
    chosen: AutogradEngine | None = None
    for value in call.inputs:
        if value is None:
            continue
        engine = next((each for each in engines if each.needs_grad(value)), None)
        if engine is None or engine is chosen:
            continue
        if chosen is not None:
            names = " and ".join(sorted(type(each).__qualname__ for each in (chosen, engine)))
            raise AutogradError(
                f"{call.name} got tensors of two autograd engines, {names}: neither engine sees "
                "what the other has recorded\nDetach the tensors of one engine from its graph "
                "first, or watch all tensors with one engine.",
                call.name,
            )
        chosen = engine
    return chosen


# --- PyTorch's tensors ----------------------------------------------------------------------------


class TorchEngine:
    """Makes each differentiated call a node of PyTorch's own graph.

    Serves tensors that require a gradient, while gradients are enabled in this thread. (torch:
    make_autograd_impl)

    PyTorch keeps the tensors that formulas save. It notices when one is written to before the
    backward pass, and frees them after it.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._function = _make_function(torch)

    def needs_grad(self, value: Any) -> bool:
        torch = self._torch
        return is_torch_tensor(value) and value.requires_grad and torch.is_grad_enabled()

    def needs_any(self, values: list[Any]) -> bool:
        """Whether one of these values needs a gradient."""
        return self._torch.is_grad_enabled() and any(
            is_torch_tensor(value) and value.requires_grad for value in values
        )

    def apply(self, call: AutogradCall) -> Any:
        done: list[Any] = []
        outputs = self._function.apply(call, done, *map(_tensor_or_none, call.inputs))
        result, node, constants = done
        merged = [
            constant if output is None else output
            for output, constant in zip(outputs, constants, strict=True)
        ]
        return node.with_outputs(result, merged)


def _tensor_or_none(value: Any) -> Any:
    """What PyTorch's graph may see of a value: other values are constants to it anyhow, and what
    only claims to be a tensor would crash it.
    """
    return value if is_torch_tensor(value) else None


def _make_function(torch: Any) -> Any:
    """The class of these nodes, a torch.autograd.Function."""

    def forward(ctx: Any, call: AutogradCall, done: list[Any], *inputs: Any) -> tuple[Any, ...]:
        result, outputs, node = call.forward(ctx.needs_input_grad[2:])
        done += (result, node, outputs)
        ctx.mdispatch_node = node
        ctx.mdispatch_saved = _hand_over(ctx, node)
        ctx.set_materialize_grads(node.materialize)
        if False in node.differentiable:
            ctx.mark_non_differentiable(
                *(
                    value
                    for value, differentiable in zip(outputs, node.differentiable, strict=True)
                    if not differentiable and is_torch_tensor(value)
                )
            )
        return tuple(map(_tensor_or_none, outputs))

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        node: AutogradNode = ctx.mdispatch_node
        tensors = iter(ctx.saved_tensors)
        saved = tuple(
            next(tensors) if is_tensor else value for is_tensor, value in ctx.mdispatch_saved
        )
        found = node.gradients(gradients, ctx.needs_input_grad[2:], saved)
        for gradient in found:
            if gradient is not None and not is_torch_tensor(gradient):
                raise AutogradError(
                    f"the backward formula of {node.name} returned a {type(gradient).__qualname__} "
                    "as the gradient of a PyTorch tensor: return a PyTorch tensor, or None",
                    node.name,
                )
        return (None, None, *found)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("MdispatchFunction", (torch.autograd.Function,), methods)


def _hand_over(ctx: Any, node: AutogradNode) -> Sequence[tuple[bool, Any]]:
    """Gives the tensors among the saved values to PyTorch. Returns the places of all."""
    saved, node.saved = node.saved, ()
    if not saved:
        return ()
    ctx.save_for_backward(*(value for value in saved if is_torch_tensor(value)))
    return [(True, None) if is_torch_tensor(value) else (False, value) for value in saved]
