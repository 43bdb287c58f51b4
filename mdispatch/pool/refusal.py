"""The fate of a process pool's worker whose initializer has raised an error of mdispatch: it
answers every task with the error.

``multiprocessing.Pool`` replaces a worker whose initializer raises by a new one, whose initializer
raises too, for ever, and a caller that waits for a result waits as long (python/cpython#87472).
``ProcessPoolExecutor`` and loky end such a worker, and their callers hear only that it has ended.

The initializer may be one of the user's own, which handles the error of a warm-up or an agreement.
So that raises, and leaves a finalizer of multiprocessing behind, which runs at the end of the
process. If the worker's function has not come beyond the initializer by then, an error has left
this. So the finalizer takes the tasks that the worker would have taken, until the pool tells it to
end.

It uses the variables of the worker's function (registry/unheard.py says which functions these are).
Where they are not as they have been from Python 3.11 to 3.15, the process ends as it would have.
"""

from __future__ import annotations

import io
import os
import pickle
import sys

from ..registry import opened_default
from ..registry.unheard import has_begun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_LOKY_EXIT_SECONDS = 30.0  # as loky's own workers


def answer_tasks_if_unhandled(worker: FrameType, error: Exception) -> None:
    """If the error, or one raised in its place, leaves the initializer that runs in ``worker``,
    the process answers each of its tasks with it.
    """
    from multiprocessing.util import Finalize

    # A high priority: it runs before the finalizers that close queues.
    Finalize(None, _at_the_end, args=(worker, error), exitpriority=1 << 20)


def _at_the_end(worker: FrameType, error: Exception) -> None:
    if has_begun(worker):
        return  # the initializer has returned
    raised = sys.exception()  # of multiprocessing.Pool before 3.13: on its way out of the process
    try:
        _answer(worker, _that_can_be_sent(raised if isinstance(raised, Exception) else error))
    except (AttributeError, KeyError):
        return  # another version of the pool
    except (EOFError, OSError):
        pass  # the pool is gone
    if raised is not None:
        # The tasks' callers have the error. What is left of the process would only print it.
        registry = opened_default()
        if registry is not None:
            registry.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _answer(worker: FrameType, error: Exception) -> None:
    variables = worker.f_locals
    if "inqueue" in variables:
        tasks, results = variables["inqueue"], variables["outqueue"]
        while (task := _next_task(tasks)) is not None:
            results.put((task[0], task[1], (False, error)))
        return
    tasks, results = variables["call_queue"], variables["result_queue"]
    answer = worker.f_globals["_ResultItem"]
    while (task := _next_task(tasks)) is not None:
        results.put(answer(task.work_id, exception=error))
    results.put(os.getpid())  # tells the pool that this worker ends
    if "worker_exit_lock" in variables:
        variables["worker_exit_lock"].acquire(True, timeout=_LOKY_EXIT_SECONDS)


def _next_task(queue: Any) -> Any:
    """The next task; None where the pool wants the worker to end, or has died."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    sentinel = [parent.sentinel] if parent is not None and parent.sentinel is not None else []
    with queue._rlock:
        if queue._reader not in wait([queue._reader, *sentinel]):
            return None
        data = queue._reader.recv_bytes()
        if hasattr(queue, "_sem"):
            queue._sem.release()
    return _Lenient(io.BytesIO(data)).load()


def _that_can_be_sent(error: Exception) -> Exception:
    """The error, or a RuntimeError with its text if it cannot be pickled and unpickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__qualname__}: {error}")
    return error


class _Lenient(pickle.Unpickler):
    """Reads a task without importing anything. Only the task's numbers are needed, and its function
    may be in the very module that cannot be imported.
    """

    def find_class(self, module: str, name: str, /) -> Any:
        return _Anything

    def persistent_load(self, pid: object, /) -> Any:
        return _Anything()


class _Anything:
    work_id: int

    def __new__(cls, *args: object, **kwargs: object) -> _Anything:
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __setstate__(self, state: object, /) -> None:
        if isinstance(state, dict) and "work_id" in state:
            self.work_id = state["work_id"]

    def __setitem__(self, key: object, value: object, /) -> None: ...

    def append(self, value: object, /) -> None: ...

    def extend(self, values: object, /) -> None: ...

    def add(self, value: object, /) -> None: ...
