"""The way back along a tape: from gradients at the targets to gradients at the sources.

Nothing here knows of threads or of what is open: it is a function of what was recorded.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Protocol

    class Node(Protocol):
        """What the way back needs to know of one call; an AutogradNode is one."""

        @property
        def differentiable(self) -> Sequence[bool]: ...

        @property
        def materialize(self) -> bool: ...

        def gradients(self, gradients: Sequence[Any], needs: Sequence[bool], /) -> list[Any]: ...


__all__ = ["Recorded", "Sum", "walk"]


class Recorded:
    """One call on a tape. ``watched`` says which of the inputs were on it then: of any other the
    tape may have missed what else it was used for.
    """

    __slots__ = ("inputs", "node", "outputs", "watched")

    def __init__(
        self, inputs: Sequence[Any], watched: Sequence[bool], outputs: Sequence[Any], node: Node
    ) -> None:
        self.inputs = inputs
        self.watched = watched
        self.outputs = outputs
        self.node = node

    def differentiable(self) -> Iterator[Any]:
        """The outputs through which gradients go."""
        for value, differentiable in zip(self.outputs, self.node.differentiable, strict=True):
            if differentiable:
                yield value

    def found(self, at: dict[int, Any]) -> list[Any]:
        """The gradients at the outputs, as far as there are any."""
        return [
            at.get(id(value)) if differentiable else None
            for value, differentiable in zip(self.outputs, self.node.differentiable, strict=True)
        ]


class Sum:
    """The node of ``one + other``, the one thing that is done to objects without an operator."""

    differentiable = (True,)
    materialize = False

    def gradients(self, gradients: Sequence[Any], needs: Sequence[bool], /) -> list[Any]:
        return [gradients[0] if need else None for need in needs]


def walk(
    calls: Sequence[Recorded],
    sources: Sequence[Any],
    beginning: Sequence[tuple[Any, Any]],
    zeros: Callable[[Any], Any],
    add: Callable[[Any, Any], Any],
) -> list[Any]:
    """The gradient at each source, None where none arrives.

    ``calls`` are in the order in which they ran. ``beginning`` pairs each target with the gradient
    there. ``zeros(output)`` stands for a gradient that has not arrived, ``add`` adds two. Formulas
    run only where something depends on the sources, and gradients have arrived.
    """
    reached = {id(each) for each in sources}
    way = []
    for call in calls:
        needs = [
            watched and id(each) in reached
            for each, watched in zip(call.inputs, call.watched, strict=True)
        ]
        if any(needs):
            way.append((call, needs))
            reached.update(id(each) for each in call.differentiable())
    at: dict[int, Any] = {}

    def arrive(value: Any, gradient: Any) -> None:
        there = at.get(id(value))
        at[id(value)] = gradient if there is None else add(there, gradient)

    for target, gradient in beginning:
        arrive(target, gradient)
    for call, needs in reversed(way):
        found = call.found(at)
        if all(each is None for each in found):
            continue
        if call.node.materialize:
            found = [
                zeros(each) if gradient is None else gradient
                for each, gradient in zip(call.outputs, found, strict=True)
            ]
        for value, gradient in zip(call.inputs, call.node.gradients(found, needs), strict=True):
            if gradient is not None:
                arrive(value, gradient)
    return [at.get(id(each)) for each in sources]
