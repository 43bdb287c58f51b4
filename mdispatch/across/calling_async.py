"""A call as a coroutine: a task that waits for it blocks no other task.

The call runs in a thread of a pool that is for such calls only. (asyncio's default pool is small:
full of calls that wait, it would run nothing else.) It has the context variables of the task, and
the included and excluded keys of the thread that runs the loop. Threads stay for the next calls,
and CPython ends them with the interpreter. It cannot do so in a sub-interpreter before 3.13, so
there each call has a thread of its own.

A task that is cancelled waits no longer, and interrupts its call. The transport then takes the call
back, or closes its line, by which the owner sees that nobody waits (see ``host``). The loop never
waits for the thread: a kernel of this process that has begun goes on in it to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from ..dispatch.context.guards import ForceDispatchKeyGuard
from ..dispatch.context.modes import mode_stack, pre_dispatch_modes
from ..errors import ModeStackError
from ..facts.native import calls, interpreter_id
from ..forking import in_child
from ..keys import DispatchKeySet
from ..registry.registry import given_or_default
from .transports.transport import Interrupt, interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["call_async"]


async def call_async(op: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls an operator in a thread, and returns its result: for operators whose kernel another
    interpreter or process serves, and for methods of handles.

    ``op`` is the operator or its name, or such a method. The call has the context variables of the
    task, ``routing()`` among them. If the task is cancelled, the call is, too: one that has not
    begun in the other process will not; in one that has, :func:`cancelled` becomes True. A call in
    this process that has begun ends by itself, in its thread.

    Raises what the call raises, and ModeStackError where a mode is open: modes see the calls of
    their own thread.
    """
    operator = given_or_default(None).ops.find(op) if isinstance(op, str) else op
    modes = [*mode_stack(), *pre_dispatch_modes()]
    if modes:
        raise ModeStackError(
            f"a call in another thread does not come to the mode {modes[-1]!r} of this one\n"
            "End its with block before, or call the operator itself."
        )
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    its = Interrupt(asyncio.CancelledError)
    sets = [DispatchKeySet.from_raw(each) for each in calls.changed_sets() or ()]
    gradients = _gradients()
    context = copy_context()

    def call() -> Any:
        interrupt.set(its)
        with ForceDispatchKeyGuard(*sets) if sets else contextlib.nullcontext(), gradients:
            return operator(*args, **kwargs)

    def run(waits: list[asyncio.Future[Any]]) -> None:
        done = waits.pop()
        results: list[Any] = []
        error = None
        try:
            results.append(context.run(call))
        except BaseException as raised:  # the task gets it, also if it is no Exception
            error = raised
        its.close()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody awaits it any more
            loop.call_soon_threadsafe(_finish, done, results, error)
        del done, error  # no cycle: its traceback has this frame, and the frames that called it

    thread = queued = None
    if interpreter_id:
        thread = threading.Thread(target=run, args=([done],), name="mdispatch call")
        thread.start()
    else:
        queued = _threads().submit(run, [done])
    try:
        return await done
    finally:
        its.set()
        if queued is not None:
            queued.cancel()
        elif thread is not None and not done.cancelled():
            thread.join()  # it is at its end
        del done  # it has the exception, whose traceback has this frame


#: How many calls are under way at most; others wait for a thread.
_MOST = 1024
_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_MOST, "mdispatch call")
    return _pool


@in_child
def _renew() -> None:
    """The threads are the parent's."""
    global _pool
    _pool = None


def _finish(done: asyncio.Future[Any], results: list[Any], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(results[0])
    elif isinstance(error, StopIteration):  # a future takes none
        done.set_exception(RuntimeError(f"the call raised {type(error).__name__}: {error}"))
    else:
        done.set_exception(error)


def _gradients() -> contextlib.AbstractContextManager[Any]:
    """Whether this thread records gradients of PyTorch, for another thread."""
    torch: Any = sys.modules.get("torch")
    if torch is None or torch.is_grad_enabled():
        return contextlib.nullcontext()
    inference = torch.is_inference_mode_enabled()
    manager: contextlib.AbstractContextManager[Any]
    manager = torch.inference_mode() if inference else torch.no_grad()
    return manager
