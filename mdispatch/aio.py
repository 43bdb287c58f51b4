"""The waits as coroutines: a task that waits blocks no other task.

Each wait runs in a thread of its own (asyncio's default pool is small, and full of sleepers it
would stop everyone else). Cancelling the task ends the wait in the kernel at once, by its ticket,
and the thread with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading

from ._place import caller, place_of
from ._roles import DEFAULT_TIMEOUT, wait_for
from .registry import Registry, given_or_default
from .waiting import def_of, impl_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._keys import DispatchKey
    from ._registry import Registration

__all__ = ["wait_for_def_async", "wait_for_impl_async"]

_tickets = itertools.count(1)


async def wait_for_def_async(
    name: str, timeout: float | None = DEFAULT_TIMEOUT, *, registry: Registry | None = None
) -> Registration:
    """Awaitable twin of :func:`mdispatch.wait_for_def`: same arguments, result and errors."""
    return await _in_thread(given_or_default(registry), *def_of(name), timeout, place_of(caller()))


async def wait_for_impl_async(
    name: str,
    dispatch_key: DispatchKey | str,
    timeout: float | None = DEFAULT_TIMEOUT,
    *,
    registry: Registry | None = None,
) -> Registration:
    """Awaitable twin of :func:`mdispatch.wait_for_impl`: same arguments, result and errors."""
    return await _in_thread(
        given_or_default(registry), *impl_of(name, dispatch_key), timeout, place_of(caller())
    )


async def _in_thread(
    registry: Registry, kind: int, key: int, name: str, timeout: float | None, where: str
) -> Registration:
    facts = registry._facts
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Registration] = loop.create_future()
    ticket = next(_tickets)

    def finish(result: Registration | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif result is not None:
            done.set_result(result)

    def wait() -> None:
        result, error = None, None
        try:
            result = wait_for(facts, kind, key, name, timeout, where, ticket)
        except BaseException as raised:  # whatever it is, the task gets it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(finish, result, error)

    thread = threading.Thread(target=wait, name=f"mdispatch wait for {name}")
    thread.start()
    try:
        return await done
    finally:
        # Cancelled before the thread reached the kernel, the ticket is not known there yet: told
        # until it has ended.
        while thread.is_alive():
            facts.cancel(ticket)
            thread.join(0.01)
