"""One differentiated call, between the engine that keeps it and the formula that differentiates it.

An engine sees flat lists: the tensors among the arguments, those among the returns, a gradient for
each. A formula sees the arguments and returns of the schema, lists as lists. What stands between
them is here, with the checks of what formulas give back, so that an engine needs none of its own.

A node keeps no argument and no return, only what the formula has saved: whether values may live as
long as the graph, and how, is the engine's to say.
"""

from __future__ import annotations

from ._autograd_context import AutogradContext
from ._schema_types import Type
from .errors import AutogradError
from .guards import AutoDispatchBelowAutograd
from .keys import DispatchKeySet
from .values import is_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, NoReturn

    from ._schema_types import Argument
    from .operators import OpOverload
    from .schema import FunctionSchema

__all__ = ["AutogradCall", "AutogradNode", "Formula", "is_of_tensors"]

#: What is left of a key set below autograd. (PyTorch: after_autograd_keyset)
AFTER_AUTOGRAD = DispatchKeySet.full_after("AutogradOther")

# How many tensors stand in one place: that of a list is its length.
_NONE, _ALONE = -2, -1


class Formula:
    """What was registered to differentiate an operator, for one definition of it."""

    __slots__ = ("backward", "name", "operator", "positional", "schema", "setup_context", "where")

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
        self.backward = backward
        self.setup_context = setup_context
        self.where = where

    def returned(self, result: Any) -> tuple[Any, ...]:
        """One value per return. That there are as many, the call has seen to."""
        return (result,) if len(self.schema.returns) == 1 else tuple(result)

    def fail(self, what: str) -> NoReturn:
        raise AutogradError(
            f"the backward formula of {self.name} {what}\n  declared as {self.schema}\n"
            f"  formula registered at {self.where}",
            self.name,
        )

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a part of the formula. What that raises says whose it is."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            error.add_note(
                f"raised by the autograd formula of {self.name}, registered at {self.where}"
            )
            raise


class AutogradCall:
    """One call of an operator that has a formula, as it is handed to an engine, before it ran.

    ``name`` is the operator's, ``inputs`` are the tensors among its positional arguments, those in
    lists one by one; for None in a list of optional ones, None.
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
        self.inputs, self._counts = _opened(formula.positional, args)

    def below(self) -> Any:
        """The operator's result, computed below autograd."""
        with AutoDispatchBelowAutograd():
            return self._formula.operator.redispatch(
                self._keys & AFTER_AUTOGRAD, *self._args, **self._kwargs
            )

    def forward(self, needs: Sequence[bool]) -> tuple[Any, list[Any], AutogradNode]:
        """Runs the operator below autograd, then ``setup_context``.

        ``needs`` says for each input whether a gradient is wanted. Returns the result, the tensors
        in it, those in lists one by one, and what the way back needs. AutogradError when ``needs``
        has not one answer for each input.
        """
        formula = self._formula
        _check_count(self.name, "forward", "needs", needs, "input", len(self.inputs))
        context = AutogradContext(formula.name, tuple(_closed(self._counts, needs, False)))
        result = self.below()
        outputs, counts = _opened(formula.schema.returns, formula.returned(result))
        if formula.setup_context is not None:
            given = {"ctx": context, "inputs": self._args, "output": result}
            if len(formula.positional) < len(formula.schema.arguments):
                given["keyword_only_inputs"] = self._kwargs
            with AutoDispatchBelowAutograd():
                formula.run(formula.setup_context, **given)
        return result, outputs, AutogradNode(formula, context, self._counts, counts, outputs)


class AutogradNode:
    """What is kept of one differentiated call. (torch: Node, grad_fn)

    ``name`` is the operator's. ``differentiable`` says for each output whether gradients go through
    it, ``materialize`` whether the formula wants zeros for those that none has reached, ``saved``
    is what it has saved; an engine that keeps this in its own way sets it to ().
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
            value is not None and not any(value is each for each in marked) for value in values
        ]
        for each in marked:
            if not any(value is each for value in values):
                raise AutogradError(
                    f"the formula of {self.name} marks {_described(each)} as non-differentiable, "
                    "and the call has returned no such object\n  formula registered at "
                    f"{formula.where}\nMark outputs as setup_context gets them.",
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
        """A result like this one, with other tensors in the places of its own. AutogradError when
        there are not as many.
        """
        wanted = len(self.differentiable)
        _check_count(self.name, "with_outputs", "outputs", outputs, "output", wanted)
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
        """Runs the formula: from a gradient, or None, for each output to one for each input.

        ``needs`` says for each input whether one is wanted; ``saved`` is what stands for what was
        saved, where the engine has kept that. AutogradError when these are not as many, or when the
        formula gives back something that does not fit the schema; what the formula itself raises,
        with a note whose it is.
        """
        formula = self._formula
        _check_count(
            self.name, "gradients", "gradients", gradients, "output", len(self.differentiable)
        )
        _check_count(self.name, "gradients", "needs", needs, "input", _total(self._inputs))
        needed = tuple(_closed(self._inputs, needs, False))
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
                f"returned {returned}, not a tuple of {wanted}: one gradient, or None, for each "
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
                f"returned {_described(gradient)} for {argument.name!r}, which was no Tensor in "
                "this call: return None for it"
            )
        if not isinstance(gradient, (list, tuple)) or len(gradient) != count:
            self._formula.fail(
                f"returned {_described(gradient)} for {argument.name!r}: return a list of {count}, "
                "one gradient, or None, for each of its Tensors, or None for all"
            )
        return gradient


def is_of_tensors(wanted: Type) -> bool:
    """Whether values of this type are or hold Tensors."""
    return wanted.name == "Tensor" or any(map(is_of_tensors, wanted.elements))


def _bare(wanted: Type) -> Type:
    return wanted.elements[0] if wanted.name == Type.OPTIONAL else wanted


def _opened(places: Sequence[Argument], values: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """The tensors in these places, and how many there are in each."""
    found: list[Any] = []
    counts = []
    for place, value in zip(places, values, strict=True):
        wanted = _bare(place.type)
        if value is None:
            counts.append(_NONE)
        elif wanted.name == "Tensor":
            found.append(value)
            counts.append(_ALONE)
        elif wanted.name == Type.LIST and _bare(wanted.elements[0]).name == "Tensor":
            found += value
            counts.append(len(value))
        else:
            counts.append(_NONE)
    return found, counts


def _total(counts: Sequence[int]) -> int:
    return sum(1 if count == _ALONE else max(count, 0) for count in counts)


def _check_count(
    name: str, method: str, what: str, given: Sequence[Any], each: str, wanted: int
) -> None:
    """What an engine hands over is one for each: else it would end up in other places."""
    if len(given) != wanted:
        raise AutogradError(
            f"the engine that serves {name} gave {method}() {len(given)} {what}: it takes one for "
            f"each {each}, {wanted} in all",
            name,
        )


def _closed(counts: Sequence[int], values: Sequence[Any], nothing: Any) -> Iterable[Any]:
    """What stands for each tensor, in the tensors' places: ``nothing`` where there are none."""
    rest = iter(values)
    for count in counts:
        if count == _NONE:
            yield nothing
        elif count == _ALONE:
            yield next(rest)
        else:
            yield [next(rest) for _ in range(count)]


def _described(value: object) -> str:
    """A value by its type: its text may be long, or do something."""
    if value is None:
        return "None"
    kind = type(value).__qualname__
    return f"a {kind} of {len(value)}" if isinstance(value, (list, tuple)) else f"a {kind}"
