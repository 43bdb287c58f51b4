"""What an autograd formula keeps of a call for the way back."""

from __future__ import annotations

from .errors import AutogradError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["AutogradContext"]


class AutogradContext:
    """What a formula keeps of a call: ``ctx`` of ``setup_context`` and of ``backward``.

    It takes attributes of any name. What is large belongs into :meth:`save_for_backward`, which is
    kept as long as the graph. (torch: FunctionCtx)
    """

    __slots__ = ("__dict__", "_marked", "_materialize", "_needs", "_operator", "_saved")

    def __init__(self, operator: str, needs: tuple[bool | list[bool], ...]) -> None:
        self._operator = operator
        self._needs = needs
        self._saved: tuple[Any, ...] | None = ()
        self._materialize = True
        self._marked: tuple[object, ...] = ()

    @property
    def needs_input_grad(self) -> tuple[bool | list[bool], ...]:
        """Whether a gradient is wanted, for each positional argument; for a list of tensors a list
        with one answer for each. (torch: needs_input_grad)
        """
        return self._needs

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was given to :meth:`save_for_backward`.

        AutogradError when a backward pass is over: its values are not to outlive the graph. (torch:
        saved_tensors)
        """
        if self._saved is None:
            raise AutogradError(
                f"this backward pass of {self._operator} is over, and what was saved for it is not "
                "at hand any more\nUse saved_tensors inside of backward.",
                self._operator,
            )
        return self._saved

    def save_for_backward(self, *values: Any) -> None:
        """Keeps values of any kind until the backward pass. Called again, it replaces them.
        (torch: save_for_backward)
        """
        self._saved = values

    def set_materialize_grads(self, value: bool) -> None:
        """Whether ``backward`` gets zeros, as it does unless told otherwise, or None for an output
        that no gradient has reached.

        None it gets also where the engine has no zeros: see :class:`~mdispatch.tape.Tape`. (torch:
        set_materialize_grads)
        """
        self._materialize = bool(value)

    def mark_non_differentiable(self, *outputs: Any) -> None:
        """Says that no gradients go through these outputs. Only in ``setup_context``.

        The formula still gets a gradient for each of them, zeros or None. AutogradError, once
        ``setup_context`` is done, for what is no output of the call. (torch:
        mark_non_differentiable)
        """
        self._marked = outputs

    def _for_backward(self, needs: tuple[bool | list[bool], ...], saved: Any) -> AutogradContext:
        """The context of one backward pass: passes in several threads do not meet in it, except in
        the attributes that the formula has set.
        """
        context = AutogradContext(self._operator, needs)
        context._saved = saved
        context.__dict__ = self.__dict__
        return context
