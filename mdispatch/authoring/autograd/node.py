"""One differentiated call, between the engine that keeps it and the formula that differentiates it.

An engine sees flat lists: the tensors among the arguments, those among the returns, a gradient for
each. A formula sees the arguments and returns of the schema, lists as lists. This file translates
between them. It also checks what formulas return, so that an engine needs no checks of its own.

A node keeps no argument and no return, only the values that the formula has saved. The engine
decides whether and how values live as long as the graph.
"""

from __future__ import annotations

from ...dispatch.context.guards import AutoDispatchBelowAutograd
from ...dispatch.context.values import is_tensor
from ...errors import AutogradError
from ...keys import DispatchKeySet
from ...schema.types import Type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, NoReturn

    from ...dispatch.operators import OpOverload
    from ...schema import FunctionSchema
    from ...schema.types import Argument

#: The keys of a key set that are left below autograd. (PyTorch: after_autograd_keyset)
AFTER_AUTOGRAD = DispatchKeySet.full_after("AutogradOther")

# How many tensors stand in one place. For a list this is its length. The last one is a list's kind.
_NONE, _ALONE, _LISTED = -2, -1, 0


# --- what a formula is, and what it keeps ---------------------------------------------------------


class Formula:
    """The functions that were registered to differentiate an operator, for one definition of it."""

    __slots__ = (
        "backward",
        "given",
        "gives",
        "name",
        "operator",
        "positional",
        "schema",
        "setup_context",
        "where",
    )

    def __init__(
        self,
        operator: OpOverload,
        backward: Callable[..., Any],
        setup_context: Callable[..., Any] | None,
        where: str,
    ) -> None:
        self.operator = operator
        self.name = operator.name
        self.schema: FunctionSchema = operator.schema
        self.positional = tuple(a for a in self.schema.arguments if not a.kwarg_only)
        #: The kinds of these places, and of the returns.
        self.given = tuple(map(_kind, self.positional))
        self.gives = tuple(map(_kind, self.schema.returns))
        self.backward = backward
        self.setup_context = setup_context
        self.where = where

    def returned(self, result: Any) -> tuple[Any, ...]:
        """One value per return. The call has checked that there are as many."""
        return (result,) if len(self.schema.returns) == 1 else tuple(result)

    def fail(self, what: str) -> NoReturn:
        raise AutogradError(
            f"the backward formula of {self.name} {what}\n  declared as {self.schema}\n"
            f"  formula registered at {self.where}",
            self.name,
        )

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a part of the formula. An error of it gets a note that names the formula."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            error.add_note(
                f"raised by the autograd formula of {self.name}, registered at {self.where}"
            )
            raise


class AutogradContext:
    """Holds what a formula keeps of a call: the ``ctx`` of ``setup_context`` and of ``backward``.

    It takes attributes of any name. Give large values to :meth:`save_for_backward`, which keeps
    them as long as the graph. (torch: FunctionCtx)
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
        """For each positional argument, whether a gradient is wanted; for a list of tensors, a list
        with one answer for each. (torch: needs_input_grad)
        """
        return self._needs

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The values that were given to :meth:`save_for_backward`.

        Raises AutogradError when a backward pass is over: its values must not outlive the graph.
        (torch: saved_tensors)
        """
        if self._saved is None:
            raise AutogradError(
                f"this backward pass of {self._operator} is over, so its saved values are "
                "gone\nUse saved_tensors inside backward.",
                self._operator,
            )
        return self._saved

    def save_for_backward(self, *values: Any) -> None:
        """Keeps values of any kind until the backward pass. Called again, it replaces them.
        (torch: save_for_backward)
        """
        self._saved = values

    def set_materialize_grads(self, value: bool) -> None:
        """Sets whether ``backward`` gets zeros or None for an output that no gradient has reached.
        By default it gets zeros.

        It also gets None if the engine has no zeros: see
        :func:`~mdispatch.register_autograd_engine`. (torch: set_materialize_grads)
        """
        self._materialize = bool(value)

    def mark_non_differentiable(self, *outputs: Any) -> None:
        """Says that no gradients go through these outputs. Only in ``setup_context``.

        The formula still gets a gradient for each of them, zeros or None. Once ``setup_context`` is
        done, a value that is not an output of the call raises AutogradError. (torch:
        mark_non_differentiable)
        """
        self._marked = outputs

    def _for_backward(self, needs: tuple[bool | list[bool], ...], saved: Any) -> AutogradContext:
        """The context of one backward pass. Passes in several threads share nothing of it but the
        attributes that the formula has set.
        """
        context = AutogradContext(self._operator, needs)
        context._saved = saved
        context.__dict__ = self.__dict__
        return context


# --- one call -------------------------------------------------------------------------------------


class AutogradCall:
    """One call of an operator that has a formula, as an engine gets it, before it ran.

    ``name`` is the operator's. ``inputs`` are the tensors among its positional arguments, those in
    lists one by one. A None in a list of optional tensors is None here, too.
    """

    __slots__ = ("_args", "_counts", "_formula", "_keys", "_kwargs", "inputs", "name")

    def __init__(
        self, formula: Formula, keys: DispatchKeySet, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._formula = formula
        self._keys = keys
        self._args = args
        self._kwargs = kwargs
        self.name = formula.name
        self.inputs, self._counts = _opened(formula.given, args)

    def below(self) -> Any:
        """The operator's result, computed below autograd."""
        with AutoDispatchBelowAutograd():
            return self._formula.operator.redispatch(
                self._keys & AFTER_AUTOGRAD, *self._args, **self._kwargs
            )

    def forward(self, needs: Sequence[bool]) -> tuple[Any, list[Any], AutogradNode]:
        """Runs the operator below autograd, then ``setup_context``.

        ``needs`` says for each input whether a gradient is wanted. Returns the result, the tensors
        in it (those in lists one by one), and the node that the way back needs. Raises
        AutogradError if ``needs`` does not have one answer for each input.
        """
        formula = self._formula
        _check_count(self.name, "forward", "needs", needs, "input", len(self.inputs))
        context = AutogradContext(formula.name, _closed(self._counts, needs, False))
        result = self.below()
        outputs, counts = _opened(formula.gives, formula.returned(result))
        if formula.setup_context is not None:
            given = {"ctx": context, "inputs": self._args, "output": result}
            if len(formula.positional) < len(formula.schema.arguments):
                given["keyword_only_inputs"] = self._kwargs
            with AutoDispatchBelowAutograd():
                formula.run(formula.setup_context, **given)
        return result, outputs, AutogradNode(formula, context, self._counts, counts, outputs)


class AutogradNode:
    """The record of one differentiated call. (torch: Node, grad_fn)

    ``name`` is the operator's. ``differentiable`` says for each output whether gradients go through
    it. ``materialize`` says whether the formula wants zeros for outputs that no gradient has
    reached. ``saved`` are the values that the formula has saved; an engine that keeps them in its
    own way sets it to ().
    """

    __slots__ = ("_context", "_formula", "_inputs", "_outputs", "differentiable", "name")

    def __init__(
        self,
        formula: Formula,
        context: AutogradContext,
        inputs: Sequence[int],
        outputs: Sequence[int],
        values: list[Any],
    ) -> None:
        self._formula = formula
        self._context = context
        self._inputs = inputs
        self._outputs = outputs
        self.name = formula.name
        marked, context._marked = context._marked, ()
        self.differentiable = [
            value is not None and not (marked and any(value is each for each in marked))
            for value in values
        ]
        for each in marked:
            if not any(value is each for value in values):
                raise AutogradError(
                    f"the formula of {self.name} marks {_described(each)} as non-differentiable, "
                    "but the call did not return that object\n  formula registered at "
                    f"{formula.where}\nMark the same objects that setup_context gets as outputs.",
                    self.name,
                )

    @property
    def materialize(self) -> bool:
        return self._context._materialize

    @property
    def saved(self) -> tuple[Any, ...]:
        return self._context.saved_tensors

    @saved.setter
    def saved(self, values: tuple[Any, ...]) -> None:
        self._context._saved = values

    def with_outputs(self, result: Any, outputs: Sequence[Any]) -> Any:
        """A result like ``result``, with ``outputs`` in the places of its tensors. Raises
        AutogradError if there are not as many.
        """
        wanted = len(self.differentiable)
        _check_count(self.name, "with_outputs", "outputs", outputs, "output", wanted)
        if self._outputs == [_ALONE]:
            return outputs[0]
        values = self._formula.returned(result)
        replaced = [
            old if count == _NONE else new
            for old, new, count in zip(
                values, _closed(self._outputs, outputs, None), self._outputs, strict=True
            )
        ]
        return replaced[0] if len(replaced) == 1 else tuple(replaced)

    def gradients(
        self, gradients: Sequence[Any], needs: Sequence[bool], saved: tuple[Any, ...] | None = None
    ) -> list[Any]:
        """Runs the formula. Takes a gradient, or None, for each output, and returns one for each
        input.

        ``needs`` says for each input whether one is wanted; ``saved`` replaces the saved values if
        the engine has kept them itself. Raises AutogradError if these are not as many, or if the
        formula returns something that does not fit the schema. An error of the formula itself gets
        a note that names the formula.
        """
        formula = self._formula
        _check_count(
            self.name, "gradients", "gradients", gradients, "output", len(self.differentiable)
        )
        _check_count(self.name, "gradients", "needs", needs, "input", _total(self._inputs))
        needed = _closed(self._inputs, needs, False)
        kept = self._context._saved if saved is None else saved
        context = self._context._for_backward(needed, kept)
        try:
            given = formula.run(formula.backward, context, *_closed(self._outputs, gradients, None))
        finally:
            context._saved = None
        wanted = len(formula.positional)
        # A Tensor may be a tuple by its class.
        alone = not isinstance(given, tuple) or (wanted == 1 and is_tensor(given))
        found = (given,) if alone else given
        if len(found) != wanted:
            returned = f"{len(found)} gradients" if isinstance(given, tuple) else _described(given)
            names = ", ".join(each.name for each in formula.positional)
            formula.fail(
                f"returned {returned}, not a tuple of {wanted}: return a gradient or None for each "
                f"positional argument ({names})"
            )
        opened: list[Any] = []
        for argument, count, gradient in zip(formula.positional, self._inputs, found, strict=True):
            opened += self._gradients_of(argument, count, gradient)
        return [each if need else None for each, need in zip(opened, needs, strict=True)]

    def _gradients_of(self, argument: Argument, count: int, gradient: Any) -> Iterable[Any]:
        if count == _ALONE:
            return (gradient,)
        if gradient is None:
            return (None,) * max(count, 0)
        if count == _NONE:
            self._formula.fail(
                f"returned {_described(gradient)} for {argument.name!r}, which was not a Tensor in "
                "this call: return None for it"
            )
        if not isinstance(gradient, (list, tuple)) or len(gradient) != count:
            self._formula.fail(
                f"returned {_described(gradient)} for {argument.name!r}: return a list of {count}, "
                "with a gradient or None for each of its Tensors, or return None for all of them"
            )
        return gradient


# --- flat lists, and the places of a schema -------------------------------------------------------


def _bare(wanted: Type) -> Type:
    return wanted.elements[0] if wanted.name == Type.OPTIONAL else wanted


def _kind(place: Argument) -> int:
    """The kind of a place: for a tensor, a list of them, or something else."""
    wanted = _bare(place.type)
    if wanted.name == "Tensor":
        return _ALONE
    is_list = wanted.name == Type.LIST and _bare(wanted.elements[0]).name == "Tensor"
    return _LISTED if is_list else _NONE


def _opened(kinds: Sequence[int], values: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The tensors in the places of these kinds, and how many there are in each."""
    found: list[Any] = []
    counts = []
    for kind, value in zip(kinds, values, strict=True):
        if value is None or kind == _NONE:
            counts.append(_NONE)
        elif kind == _ALONE:
            found.append(value)
            counts.append(_ALONE)
        else:
            found += value
            counts.append(len(value))
    return found, counts


def _total(counts: Sequence[int]) -> int:
    return sum(1 if count == _ALONE else max(count, 0) for count in counts)


def _check_count(
    name: str, method: str, what: str, given: Sequence[Any], each: str, wanted: int
) -> None:
    """Refuses an engine's list of another length: its values would end up in other places."""
    if len(given) != wanted:
        raise AutogradError(
            f"the engine that serves {name} passed {len(given)} {what} to {method}(), which takes "
            f"one for each {each}: {wanted} in all",
            name,
        )


def _closed(counts: Sequence[int], values: Sequence[Any], nothing: Any) -> tuple[Any, ...]:
    """Puts one value per tensor back into the tensors' places; ``nothing`` where there are none."""
    rest = iter(values)
    return tuple(
        next(rest)
        if count == _ALONE
        else nothing
        if count == _NONE
        else [next(rest) for _ in range(count)]
        for count in counts
    )


def _described(value: object) -> str:
    """A value by its type: its text may be long, or do something."""
    if value is None:
        return "None"
    kind = type(value).__qualname__
    return f"a {kind} of {len(value)}" if isinstance(value, (list, tuple)) else f"a {kind}"
