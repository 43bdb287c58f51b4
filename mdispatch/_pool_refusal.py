"""The rest of a ``multiprocessing.Pool`` worker whose warm-up has failed: every task gets the
error.

Pool replaces a worker whose initializer raises by a new one, whose initializer raises too, for
ever; whoever waits for a result waits as long (python/cpython#87472). So such an
initializer does not come back: it answers the tasks itself, as ``multiprocessing.pool.worker``
would answer those that raise, until it is told to end.

What it needs of that function, which calls it, are two arguments, ``inqueue`` and ``outqueue``.
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
    Returns where the frame is another one than it takes it for.
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
    raise SystemExit(0)  # that ends the process without a word: the tasks have told it


def _that_can_be_sent(error: Exception) -> Exception:
    """The error, or one with its text where it does not come out of its pickle."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__qualname__}: {error}")
    return error


class _Lenient(pickle.Unpickler):
    """Only the task's two numbers are wanted: what it is to call may well be in the module that
    cannot be imported.
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
