"""InterpreterPoolExecutor for the versions of Python that do not have it: 3.11 to 3.13.

Each worker is a thread that makes an interpreter, runs the tasks in it and destroys it. On 3.11 the
interpreters share one GIL, from 3.12 on each has its own.

Locking: the lock of ``_Work`` guards all that its fields say. A task is put into the queue under
it, after a look whether the pool is broken or closed; a worker that cannot begin notes it and
empties the queue under it. So every future that was given out gets an answer. Nobody waits while
holding it. A thread that ends the pool puts one None into the queue, and each worker that takes it
puts it back for the next.
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

from . import errors
from ._pool_worker import COPY, put, taken
from ._unraisable import report
from .host import ExecutionFailedError, create_interpreter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from ._pool_worker import Answer
    from .host import Interpreter

    T = TypeVar("T")
    Task = tuple[Future[Any], bytes]

__all__ = ["BrokenInterpreterPool", "InterpreterPool"]


class BrokenInterpreterPool(errors.MdispatchError, BrokenThreadPool):
    """A worker's interpreter could not be made, or its initializer raised. The cause is chained."""


class InterpreterPool(Executor):
    """An executor whose workers are sub-interpreters, as InterpreterPoolExecutor of Python 3.14.

    ``max_workers`` of them are started as they are needed (default: processors + 4, at most 32);
    each calls ``initializer(*initargs)`` first. Functions, arguments, results and exceptions are
    pickled. What is not the same as in 3.14: ``sys.path`` is handed on, functions without an
    importable name (lambdas) are refused, and a broken pool tells why.

    Raises ValueError, TypeError, what pickling the initializer raises. ``submit`` and ``map``:
    BrokenInterpreterPool when an initializer has raised, RuntimeError after ``shutdown``.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        if max_workers is None:
            max_workers = min(32, (os.cpu_count() or 1) + 4)
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        begin = None if initializer is None else _pickled(initializer, tuple(initargs), {})
        self._work = _Work(max_workers, thread_name_prefix or "InterpreterPool", begin)
        _started.add(self._work)
        # A pool that nobody holds any more ends when its tasks are done.
        weakref.finalize(self, self._work.end).atexit = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Runs ``fn(*args, **kwargs)`` in one of the workers. What pickling it raises, the future
        has.

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
        """Ends the workers when the tasks are done; with ``cancel_futures`` those that have not
        begun are cancelled. ``wait`` waits until every interpreter is destroyed. Idempotent; it
        raises nothing.
        """
        self._work.end(cancel_futures)
        if wait:
            self._work.join()


class _Work:
    """What the workers of a pool share. They hold this and not the pool, which may be dropped."""

    def __init__(self, limit: int, prefix: str, begin: bytes | None) -> None:
        self.begin = begin
        self.path = list(sys.path)
        self.program = _program()
        self.queue: SimpleQueue[Task | None] = SimpleQueue()
        self._limit = limit
        self._prefix = prefix
        self._lock = threading.RLock()  # a finalizer may end the pool at any place
        self._threads: list[threading.Thread] = []  # under the lock
        self._idle = 0  # under the lock: those that wait, minus the tasks that wait for them
        self._ended = False  # under the lock
        self._broken: BaseException | None = None  # under the lock

    def check(self) -> None:
        with self._lock:
            if self._broken is not None:
                raise self._is_broken()
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")

    def put(self, future: Future[Any], data: bytes) -> None:
        with self._lock:
            self.check()
            if self._idle <= 0 and len(self._threads) < self._limit:
                name = f"{self._prefix}_{len(self._threads)}"
                # A thread that cannot be started must not leave a task that nobody runs.
                thread = threading.Thread(target=self._run, name=name)
                thread.start()
                self._threads.append(thread)
            else:
                self._idle -= 1
            self.queue.put((future, data))

    def end(self, cancel: bool = False) -> None:
        with self._lock:
            self._ended = True
            for future in self._emptied() if cancel else ():
                future.cancel()
                future.set_running_or_notify_cancel()
            self.queue.put(None)

    def join(self) -> None:
        with self._lock:
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
        with self._lock:
            self._broken = error
            for future in self._emptied():
                if future.set_running_or_notify_cancel():
                    future.set_exception(self._is_broken())
            self.queue.put(None)  # the others end too: nobody gives them anything to do any more

    def _emptied(self) -> list[Future[Any]]:
        found = []
        with suppress(Empty):
            while True:
                task = self.queue.get_nowait()
                if task is not None:
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
            while (task := self.queue.get()) is not None:
                future, data = task
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(worker.run(data))
                    except BaseException as error:
                        future.set_exception(error)
                # Nothing of a task is kept while waiting for the next.
                del task, future, data
                with self._lock:
                    self._idle += 1
            self.queue.put(None)
        finally:
            if worker is not None:
                worker.close()


class _Worker:
    """An interpreter with the file through which tasks and answers go."""

    def __init__(self, path: list[str], program: tuple[str, str]) -> None:
        self._file = os.memfd_create("mdispatch-pool")
        self._program = program
        self._interpreter: Interpreter | None = None
        try:
            self._interpreter = create_interpreter()
            self._interpreter.exec(
                f"import sys\nsys.path[:] = {path!r}\nfrom mdispatch._pool_worker import run\n"
            )
        except BaseException:
            self.close()
            raise

    def run(self, task: bytes) -> Any:
        """The task's result, or its exception, raised."""
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
        except Exception:  # of a class that only the worker can import
            error = failed
        if error is failed:
            raise failed
        raise error from failed

    def close(self) -> None:
        try:
            if self._interpreter is not None:
                self._interpreter.close()
        except Exception as error:  # threads of a task's still run in it, and it is left to them
            report(error, "Exception ignored in the end of an interpreter", self._interpreter)
        finally:
            os.close(self._file)


class _Unpickler(pickle.Unpickler):
    """A class of the program itself comes back from its copy."""

    def find_class(self, module: str, name: str, /) -> Any:
        return super().find_class("__main__" if module == COPY else module, name)


def _pickled(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    return pickle.dumps((function, args, kwargs), pickle.HIGHEST_PROTOCOL)


def _program() -> tuple[str, str]:
    """By what the program can be imported or run once more: its module's name, or its file."""
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


def _forked() -> None:
    """The child of a fork has neither the threads nor, for what CPython can do, the interpreters of
    its parent.
    """
    _started.clear()


_at_exit: Callable[[Callable[[], None]], None] = threading._register_atexit  # type: ignore[attr-defined]
with suppress(RuntimeError):  # the end has begun: no thread of a pool can be started any more
    _at_exit(_end_all)
os.register_at_fork(after_in_child=_forked)
