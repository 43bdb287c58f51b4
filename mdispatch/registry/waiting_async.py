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

from ..errors.locations import caller, location_of
from .registry import Registry, given_or_default
from .verify import DEFAULT_TIMEOUT, wait_for
from .waiting import def_of, impl_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeVar

    from ..facts import Registration
    from ..keys.numbers import DispatchKey

    R = TypeVar("R")

__all__ = ["in_thread", "wait_for_def_async", "wait_for_impl_async"]

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


async def _wait(
    registry: Registry, kind: int, key: int, name: str, timeout: float | None, where: str
) -> Registration:
    dispatcher = registry.dispatcher
    return await in_thread(
        dispatcher.facts.cancel,
        lambda ticket: wait_for(dispatcher, kind, key, name, timeout, where.__str__, ticket),
        f"wait for {name}",
    )


async def in_thread(
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
