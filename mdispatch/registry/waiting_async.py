"""The waits as coroutines: a task that waits blocks no other task.

Each wait runs in a thread of its own. (asyncio's default pool is small: full of waits, it would run
nothing else.) Cancelling the task ends the wait in the kernel at once, by its ticket, and with it
the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading

from ..errors.locations import caller, location_of, registrants_location
from .choosing import CHOOSING_TIMEOUT, choose_as, named
from .profiles import REGISTRY, Asked
from .registry import Registry, given_or_default
from .verify import DEFAULT_TIMEOUT, wait_for
from .waiting import def_of, impl_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeVar

    from ..dispatch.operators import OpOverload
    from ..facts import Registration
    from ..keys.numbers import DispatchKey

    R = TypeVar("R")
    T = TypeVar("T")

__all__ = ["choose_async", "wait_for_def_async", "wait_for_impl_async"]

_tickets = itertools.count(1)


async def wait_for_def_async(
    name: str, timeout: float | None = DEFAULT_TIMEOUT, *, registry: Registry | None = None
) -> Registration:
    """Awaitable twin of :func:`mdispatch.wait_for_def`: same arguments, result and errors."""
    return await _wait(given_or_default(registry), *def_of(name), timeout, location_of(caller()))


async def wait_for_impl_async(
    name: str,
    dispatch_key: DispatchKey | str = "CompositeImplicitAutograd",
    timeout: float | None = DEFAULT_TIMEOUT,
    *,
    registry: Registry | None = None,
) -> Registration:
    """Awaitable twin of :func:`mdispatch.wait_for_impl`: same arguments, result and errors."""
    return await _wait(
        given_or_default(registry), *impl_of(name, dispatch_key), timeout, location_of(caller())
    )


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
    goes on in its thread, and what it returns is the choice.
    """
    name, its = named(operator, registry)
    dispatcher = given_or_default(its).dispatcher
    begun: list[None] = []

    def decide_on() -> T:
        begun.append(None)
        return decide()

    asked = Asked(name, profile, candidates, decide_on, environment)
    location = registrants_location()
    chosen: T = await _in_thread(
        dispatcher.facts.cancel,
        lambda ticket: choose_as(dispatcher, asked, timeout, location.itself, scope, ticket),
        f"choice for {name}",
        begun,
    )
    return chosen


async def _wait(
    registry: Registry, kind: int, key: int, name: str, timeout: float | None, where: str
) -> Registration:
    facts = registry.dispatcher.facts
    return await _in_thread(
        facts.cancel,
        lambda ticket: wait_for(facts, kind, key, name, timeout, where.__str__, ticket),
        f"wait for {name}",
    )


async def _in_thread(
    cancel: Callable[[int], None],
    wait: Callable[[int], R],
    what: str,
    begun: Sequence[None] = (),
) -> R:
    """What ``wait`` returns, called in a thread with a ticket by which ``cancel`` ends it, unless
    work has ``begun`` that no ticket ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()
    ticket = next(_tickets)

    def finish(results: list[R], error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        for result in results:
            done.set_result(result)

    def run() -> None:
        results: list[R] = []
        error = None
        try:
            results.append(wait(ticket))
        except BaseException as raised:  # the task gets it, whatever it is
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits it any more
            loop.call_soon_threadsafe(finish, results, error)

    thread = threading.Thread(target=run, name=f"mdispatch {what}")
    thread.start()
    try:
        return await done
    finally:
        # If the thread has not reached the kernel yet, the kernel does not know the ticket. So the
        # ticket is cancelled again and again until the thread has ended.
        while thread.is_alive() and not begun:
            cancel(ticket)
            thread.join(0.01)
