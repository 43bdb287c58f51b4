"""The engine for PyTorch's tensors: each differentiated call is a node of PyTorch's own graph.

Loaded when an operator with a formula is called in an interpreter that has imported torch; nothing
here imports it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ._autograd_node import AutogradCall, AutogradNode

__all__ = ["TorchEngine"]


class TorchEngine:
    """Serves tensors that require a gradient, while gradients are enabled in this thread. (torch:
    make_autograd_impl)

    What formulas save is kept by PyTorch, where it is a tensor: it notices when one is written to
    before the backward pass, and frees them after it.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._function = _make_function(torch)

    def needs_grad(self, value: Any) -> bool:
        torch = self._torch
        return isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()

    def apply(self, call: AutogradCall) -> Any:
        done: list[Any] = []
        outputs = self._function.apply(call, done, *call.inputs)
        result, node = done
        return node.with_outputs(result, outputs)


def _make_function(torch: Any) -> Any:
    """The class of these nodes, a torch.autograd.Function."""

    def forward(ctx: Any, call: AutogradCall, done: list[Any], *inputs: Any) -> tuple[Any, ...]:
        result, outputs, node = call.forward(ctx.needs_input_grad[2:])
        done += (result, node)
        ctx.mdispatch_node = node
        ctx.mdispatch_saved = _hand_over(torch, ctx, node)
        ctx.set_materialize_grads(node.materialize)
        # What is no tensor of PyTorch's is a constant to it anyhow.
        ctx.mark_non_differentiable(
            *(
                value
                for value, differentiable in zip(outputs, node.differentiable, strict=True)
                if not differentiable and isinstance(value, torch.Tensor)
            )
        )
        return tuple(outputs)

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        node: AutogradNode = ctx.mdispatch_node
        tensors = iter(ctx.saved_tensors)
        saved = tuple(
            next(tensors) if is_tensor else value for is_tensor, value in ctx.mdispatch_saved
        )
        found = node.gradients(gradients, ctx.needs_input_grad[2:], saved)
        return (None, None, *found)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("MdispatchFunction", (torch.autograd.Function,), methods)


def _hand_over(torch: Any, ctx: Any, node: AutogradNode) -> Sequence[tuple[bool, Any]]:
    """Gives the tensors among the saved values to PyTorch. Returns the places of all."""
    saved, node.saved = node.saved, ()
    ctx.save_for_backward(*(value for value in saved if isinstance(value, torch.Tensor)))
    return [(True, None) if isinstance(value, torch.Tensor) else (False, value) for value in saved]
