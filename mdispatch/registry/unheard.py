"""Whether an error that is raised now would reach nobody.

A worker of a process pool imports modules at moments when no task runs: while it is set up (by
spawn it imports the program; the fork server does so, too), and while it reads its next task, whose
function is in a module. An error that an import raises then ends the process. Its text goes to
standard error, and ``multiprocessing.Pool`` starts another worker, which ends likewise, for ever.

So at these moments a registration that differs does not raise. The difference is kept, warm-ups
tell it, and every call of an operator raises it (registry/verify.py).
"""

from __future__ import annotations

import sys

from ..facts import interpreter_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

#: The functions in which the workers of process pools live, by the last part of their module.
_LOOPS = {
    ("pool", "worker"),
    ("process", "_process_worker"),
    ("process_executor", "_process_worker"),
}

#: Variables that the worker has, of one pool or the other, once its initializer has returned.
_BEGUN = {"call_item", "completed", "num_tasks", "pid", "task"}


def is_worker_loop(frame: FrameType | None) -> bool:
    """Whether a frame is that of the function in which a worker of a process pool lives: of
    multiprocessing.Pool, of ProcessPoolExecutor, or of loky.
    """
    if frame is None:
        return False
    module = str(frame.f_globals.get("__name__"))
    is_pool = module.startswith(("multiprocessing.", "concurrent.futures.")) or "loky" in module
    return is_pool and (module.rpartition(".")[2], frame.f_code.co_name) in _LOOPS


def initializing_worker() -> FrameType | None:
    """The frame of the process pool's worker whose initializer runs in this thread, if one does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_worker_loop(frame):
        frame = frame.f_back
    return frame if frame is not None and not has_begun(frame) else None


def parent_process() -> Any:
    """The parent of a child process of multiprocessing, else None."""
    process = sys.modules.get("multiprocessing.process")
    found = getattr(process, "parent_process", None)  # None while another thread imports the module
    return None if found is None or interpreter_id != 0 else found()


def child_that_initializes() -> FrameType | None:
    """The frame of a process pool's worker, if this is its process, and its initializer runs in
    this thread.
    """
    return initializing_worker() if parent_process() is not None else None


def has_begun(worker: FrameType) -> bool:
    """Whether a worker's function is, or was when it ended, beyond its initializer."""
    return not _BEGUN.isdisjoint(worker.f_locals)


def is_unheard() -> bool:
    """Whether this thread is at such a moment: it sets up a child of multiprocessing or its fork
    server, or it reads a task of a process pool or of an InterpreterPoolExecutor.
    """
    process = sys.modules.get("multiprocessing.process")
    try:
        if process is not None and getattr(process.current_process(), "_inheriting", False):
            return True
    except (AttributeError, NameError):
        pass  # another thread is importing the module for the first time: nothing is prepared
    # An interpreter reads its task in C, so nothing is further out than the import.
    reads_in_c = interpreter_id != 0 and "concurrent.futures.interpreter" in sys.modules
    if process is None and not reads_in_c:
        return False
    # Between these frames and this one there is only what runs because of the import. Code further
    # out, such as the loop of the worker that a task runs in, says nothing.
    frame: FrameType | None = sys._getframe(1)
    outermost: str | None = ""
    while frame is not None:
        module, function = frame.f_globals.get("__name__"), frame.f_code.co_name
        if module == "multiprocessing.queues" and function == "get":
            return is_worker_loop(frame.f_back)
        if module == "multiprocessing.forkserver" and function == "main":
            return True
        if is_worker_loop(frame) or (module, function) == ("multiprocessing.spawn", "_main"):
            return False
        outermost, frame = module, frame.f_back
    return reads_in_c and outermost == "importlib._bootstrap"
