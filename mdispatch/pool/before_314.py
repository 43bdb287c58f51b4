"""InterpreterPoolExecutor for the versions of Python that do not have it: 3.11 to 3.13.

This module and worker.py can go when mdispatch no longer supports 3.13.

Each worker is a thread that makes an interpreter, runs the tasks in it and destroys it. On 3.11 the
interpreters share one GIL, from 3.12 on each has its own.

Locking: the lock of ``_Work`` guards the fields that say so. ``put`` checks under the lock that the
pool is neither broken nor closed, and adds its task to the queue under the same lock. A worker that
cannot begin marks the pool as broken and empties the queue, also under the lock. So every future
that a caller holds gets an answer. No thread waits while it holds the lock. The thread that ends
the pool puts one None into the queue, and each worker that takes it puts it back for the next.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import threading
import weakref
from concurrent.futures import Executor, Future
from concurrent.futures.thread import BrokenThreadPool
from contextlib import suppress
from queue import Empty, SimpleQueue

from .. import errors
from ..errors.unraisable import report
from ..facts.backing import check_shared
from ..forking import in_child, new_lock
from .interpreters import ExecutionFailedError, create_interpreter
from .worker import COPY, put, taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from .interpreters import Interpreter
    from .worker import Answer

    T = TypeVar("T")
    Task = tuple[Future[Any], bytes]


class BrokenInterpreterPool(errors.MdispatchError, BrokenThreadPool):
    """A worker's interpreter could not be made, or its initializer raised. The cause is chained."""


class InterpreterPool(Executor):
    """An executor whose workers are sub-interpreters, as InterpreterPoolExecutor of Python 3.14.

    ``max_workers`` of them are started as they are needed (default: processors + 4, at most 32);
    each calls ``initializer(*initargs)`` first. Functions, arguments, results and exceptions are
    pickled. Three things differ from 3.14: ``sys.path`` is handed on, functions without an
    importable name (lambdas) are refused, and a broken pool says why it is broken.

    Raises ValueError, TypeError, any error of pickling the initializer, and NotSharedError where
    registries are not shared. ``submit`` and ``map``
    raise BrokenInterpreterPool when an initializer has raised, RuntimeError after ``shutdown``.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        check_shared("A pool of sub-interpreters")
        if max_workers is None:
            max_workers = min(32, (os.cpu_count() or 1) + 4)
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        begin = None if initializer is None else _pickled(initializer, tuple(initargs), {})
        self._work = _Work(max_workers, thread_name_prefix or "InterpreterPool", begin)
        _started.add(self._work)
        # A pool without references ends when its tasks are done.
        weakref.finalize(self, self._work.end).atexit = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Runs ``fn(*args, **kwargs)`` in one of the workers. An error of pickling them is the
        future's exception.

        Raises BrokenInterpreterPool, and RuntimeError after :meth:`shutdown`.
        """
        future: Future[T] = Future()
        try:
            data = _pickled(fn, args, kwargs)
        except Exception as error:
            self._work.check()
            future.set_exception(error)
            return future
        self._work.put(future, data)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the workers when the tasks are done. ``cancel_futures`` cancels the tasks that have
        not begun; ``wait`` waits until every interpreter is destroyed. Idempotent; raises nothing.
        """
        self._work.end(cancel_futures)
        if wait:
            self._work.join()


class _Work:
    """The state that the workers of a pool share. They refer to this and not to the pool, so that
    a pool that its user drops can end.
    """

    def __init__(self, limit: int, prefix: str, begin: bytes | None) -> None:
        self.begin = begin
        self.path = list(sys.path)
        self.program = _program()
        self.queue: SimpleQueue[Task | None] = SimpleQueue()
        self._limit = limit
        self._prefix = prefix
        self.lock = new_lock()  # a finalizer may end the pool while its thread holds this
        self._threads: list[threading.Thread] = []  # under the lock
        self._idle = 0  # under the lock: idle workers minus queued tasks
        self._ended = False  # under the lock
        self._broken: BaseException | None = None  # under the lock

    def check(self) -> None:
        with self.lock:
            if self._broken is not None:
                raise self._is_broken()
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")

    def put(self, future: Future[Any], data: bytes) -> None:
        with self.lock:
            self.check()
            if self._idle <= 0 and len(self._threads) < self._limit:
                name = f"{self._prefix}_{len(self._threads)}"
                # First the thread: if it cannot be started, no task is left in the queue.
                thread = threading.Thread(target=self._run, name=name)
                thread.start()
                self._threads.append(thread)
            else:
                self._idle -= 1
            self.queue.put((future, data))

    def end(self, cancel: bool = False) -> None:
        with self.lock:
            self._ended = True
            for future in self._emptied() if cancel else ():
                future.cancel()
                future.set_running_or_notify_cancel()
            self.queue.put(None)

    def join(self) -> None:
        with self.lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _is_broken(self) -> BrokenInterpreterPool:
        error = self._broken
        broken = BrokenInterpreterPool(
            f"a worker of this pool could not begin: {type(error).__name__}: {error}"
        )
        broken.__cause__ = error
        return broken

    def _break(self, error: BaseException) -> None:
        with self.lock:
            self._broken = error
            for future in self._emptied():
                if not future.set_running_or_notify_cancel():
                    continue
                future.set_exception(self._is_broken())
            self.queue.put(None)  # the other workers end too: no more tasks will come

    def _emptied(self) -> list[Future[Any]]:
        found = []
        with suppress(Empty):
            while True:
                task = self.queue.get_nowait()
                if task is None:
                    continue
                found.append(task[0])
        return found

    def _run(self) -> None:
        worker = None
        try:
            try:
                worker = _Worker(self.path, self.program)
                if self.begin is not None:
                    worker.run(self.begin)
            except BaseException as error:
                self._break(error)
                return
            while True:
                task = self.queue.get()
                if task is None:
                    break
                future, data = task
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(worker.run(data))
                    except BaseException as error:
                        future.set_exception(error)
                # A worker that waits for its next task keeps nothing of the last one alive.
                del task, future, data
                with self.lock:
                    self._idle += 1
            self.queue.put(None)
        finally:
            if worker is not None:
                worker.close()


class _Worker:
    """An interpreter, and the file that carries tasks to it and answers back."""

    def __init__(self, path: list[str], program: tuple[str, str]) -> None:
        self._file = os.memfd_create("mdispatch-pool")
        self._program = program
        self._interpreter: Interpreter | None = None
        try:
            self._interpreter = create_interpreter()
            self._interpreter.exec(
                f"import sys\nsys.path[:] = {path!r}\nfrom mdispatch.pool.worker import run\n"
            )
        except BaseException:
            self.close()
            raise

    def run(self, task: bytes) -> Any:
        """Runs a task. Returns its result or raises its exception."""
        assert self._interpreter is not None
        put(self._file, task)
        self._interpreter.exec(f"run({self._program!r}, {self._file})")
        answer: Answer = pickle.loads(taken(self._file))
        well, data, text = answer
        if well:
            return _Unpickler(io.BytesIO(data)).load()
        failed = ExecutionFailedError(text)
        try:
            error = _Unpickler(io.BytesIO(data)).load() if data else failed
        except Exception:  # its class can be imported in the worker only
            error = failed
        if error is failed:
            raise failed
        raise error from failed

    def close(self) -> None:
        try:
            if self._interpreter is not None:
                self._interpreter.close()
        except Exception as error:  # a task left threads running in it: they keep the interpreter
            report(error, "Exception ignored in the end of an interpreter", self._interpreter)
        finally:
            os.close(self._file)


class _Unpickler(pickle.Unpickler):
    """Finds the program's own classes here, though a worker has them in its copy of the program."""

    def find_class(self, module: str, name: str, /) -> Any:
        return super().find_class("__main__" if module == COPY else module, name)


def _pickled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    return pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)


def _program() -> tuple[str, str]:
    """How to import or run the program once more: by its module's name, or by its file."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name), ""
    file = getattr(main, "__file__", None)
    return "", os.path.abspath(file) if file else ""


# Those whose threads may be there: at the end of this interpreter, threads are joined before
# anything else is done that could tell them to end.
_started: weakref.WeakSet[_Work] = weakref.WeakSet()


def _end_all() -> None:
    for work in list(_started):
        work.end()
    for work in list(_started):
        work.join()


@in_child
def _renew() -> None:
    """The child has neither the threads nor,
    for what CPython can do, the interpreters of its parent; but its user may end the pool, as a
    ``with`` block does.
    """
    _started.clear()


_at_exit: Callable[[Callable[[], None]], None] = threading._register_atexit  # type: ignore[attr-defined]
with suppress(RuntimeError):  # the end has begun: no thread of a pool can be started any more
    _at_exit(_end_all)
