"""The rest of the life of a ``multiprocessing.Pool`` worker whose warm-up has failed: it answers
every task with the error.

Pool replaces a worker whose initializer raises by a new one, whose initializer raises too, for
ever, and a caller that waits for a result waits as long (python/cpython#87472). So an initializer
that fails does not return. It answers the tasks itself, as ``multiprocessing.pool.worker`` answers
tasks that raise, until the pool tells it to end.

It takes two arguments from the frame of that function, its caller: ``inqueue`` and ``outqueue``.
Where they are not as they have been from Python 3.4 to 3.15, the error is raised after all.
"""

from __future__ import annotations

import io
import pickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

__all__ = ["refuse_tasks"]


def refuse_tasks(frame: FrameType, error: Exception) -> None:
    """Answers each task of the pool's worker in ``frame`` with the error, then ends the process.
    Returns at once if the frame is not that of such a worker.
    """
    arguments = frame.f_locals
    reader = getattr(arguments.get("inqueue"), "_reader", None)
    lock = getattr(arguments.get("inqueue"), "_rlock", None)
    put = getattr(arguments.get("outqueue"), "put", None)
    if frame.f_code.co_name != "worker" or reader is None or lock is None or put is None:
        return
    answer = _that_can_be_sent(error)
    while True:
        try:
            with lock:
                data = reader.recv_bytes()
        except (EOFError, OSError):
            break
        task = _Lenient(io.BytesIO(data)).load()
        if task is None:
            break
        put((task[0], task[1], (False, answer)))
    raise SystemExit(0)  # ends the process silently: the tasks' callers have the error


def _that_can_be_sent(error: Exception) -> Exception:
    """The error, or a RuntimeError with its text if it cannot be pickled and unpickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__qualname__}: {error}")
    return error


class _Lenient(pickle.Unpickler):
    """Reads a task without importing anything. Only the task's two numbers are needed, and its
    function may be in the very module that cannot be imported.
    """

    def find_class(self, module: str, name: str, /) -> Any:
        return _Anything

    def persistent_load(self, pid: object, /) -> Any:
        return _Anything()


class _Anything:
    def __new__(cls, *args: object, **kwargs: object) -> _Anything:
        return super().__new__(cls)

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __setstate__(self, state: object, /) -> None: ...

    def __setitem__(self, key: object, value: object, /) -> None: ...

    def append(self, value: object, /) -> None: ...

    def extend(self, values: object, /) -> None: ...

    def add(self, value: object, /) -> None: ...
