"""``choose`` as a coroutine: a task that waits for a choice blocks no other task."""

from __future__ import annotations

from ..errors.locations import registrants_location
from ..registry import given_or_default
from ..registry.waiting_async import in_thread
from .choosing import CHOOSING_TIMEOUT, choose_as, named
from .profiles import REGISTRY, Asked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeVar

    from ..dispatch.operators import OpOverload
    from ..registry import Registry

    T = TypeVar("T")


async def choose_async(
    operator: OpOverload | str,
    profile: object,
    candidates: Iterable[T],
    decide: Callable[[], T],
    *,
    timeout: float | None = CHOOSING_TIMEOUT,
    environment: object = None,
    scope: str = REGISTRY,
    registry: Registry | None = None,
) -> T:
    """Awaitable twin of :func:`mdispatch.choose`: same arguments, result and errors. ``decide``
    runs in a thread. When the task is cancelled, a wait ends at once; a ``decide`` that has begun
    goes on in its thread, and its result is the choice.
    """
    name, its = named(operator, registry)
    dispatcher = given_or_default(its).dispatcher
    begun: list[None] = []

    def decide_on() -> T:
        begun.append(None)
        return decide()

    asked = Asked(name, profile, candidates, decide_on, environment)
    location = registrants_location()
    chosen: T = await in_thread(
        dispatcher.facts.cancel,
        lambda ticket: choose_as(dispatcher, asked, timeout, location.itself, scope, ticket),
        f"choice for {name}",
        begun,
    )
    return chosen
