"""Sub-interpreters, the same on every version of Python that has them.

From 3.14 on users get the standard library's own objects. Before, the API lives in private modules
whose names and signatures changed with each version; this module is the one place that knows them.

    3.11   _xxsubinterpreters, one GIL for all
    3.12   _xxsubinterpreters, own GIL
    3.13   _interpreters, own GIL
    3.14+  concurrent.interpreters
"""

from __future__ import annotations

import sys

from .. import errors
from ..facts import interpreter_id
from ..facts.backing import check_shared

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Interpreter(Protocol):
        """The result of :func:`create_interpreter`: the part of concurrent.interpreters.Interpreter
        that exists on all versions.
        """

        @property
        def id(self) -> int: ...
        def exec(self, code: str, /) -> None: ...
        def close(self) -> None: ...


__all__ = ["OWN_GIL", "ExecutionFailedError", "create_interpreter"]

#: Whether sub-interpreters can have a GIL of their own here.
OWN_GIL = sys.version_info >= (3, 12)


class ExecutionFailedError(errors.MdispatchError):
    """Code in a sub-interpreter raised an exception. The text has that exception's type and
    message.
    """


class _OldInterpreter:
    """concurrent.interpreters.Interpreter for versions that do not have it."""

    def __init__(self, module: Any, identity: Any) -> None:
        self._module = module
        self._identity = identity
        self._closed = False

    @property
    def id(self) -> int:
        return int(self._identity)

    def exec(self, code: str, /) -> None:
        """Runs source code in the interpreter's ``__main__``, on this thread. Raises
        ExecutionFailedError.
        """
        if sys.version_info >= (3, 13):
            failed = self._module.exec(self._identity, code)
            if failed is not None:
                raise ExecutionFailedError(failed.formatted)
            return
        try:
            self._module.run_string(self._identity, code)
        except self._module.RunFailedError as error:
            raise ExecutionFailedError(str(error)) from None

    def close(self) -> None:
        """Destroys the interpreter. Idempotent; RuntimeError while it runs."""
        if not self._closed:
            self._module.destroy(self._identity)
            self._closed = True

    def __repr__(self) -> str:
        return f"<Interpreter {self.id}>"


def create_interpreter(*, own_gil: bool = OWN_GIL) -> Interpreter:
    """Creates a sub-interpreter with an ``id``, ``exec(code)`` and ``close()``.

    On 3.14 and later it is a ``concurrent.interpreters.Interpreter``. With ``own_gil=False`` it
    shares the GIL of the interpreter that creates it (on every version). Raises
    InvalidArgumentError for an own GIL on 3.11, NotSharedError where registries are not shared.

    Close it before the process ends. CPython 3.11 loses the exit status of a process that leaves an
    interpreter in which atexit has something to call, as it has once mdispatch is in use there.
    Up to 3.12.3 a process may abort at its end where an interpreter with its own GIL was the first
    that called certain functions by keyword, such as those of asyncio (python/cpython#119213): use
    such a module in the main interpreter before, or 3.12.4.
    """
    check_shared("A sub-interpreter")
    if own_gil and not OWN_GIL:
        raise errors.InvalidArgumentError("Python 3.11 has no interpreters with a GIL of their own")
    if sys.version_info >= (3, 14):
        from concurrent import interpreters

        if own_gil:
            return interpreters.create()
        import _interpreters

        return _OldInterpreter(_interpreters, _interpreters.create("legacy"))
    if sys.version_info >= (3, 13):
        import _interpreters

        return _OldInterpreter(
            _interpreters, _interpreters.create("isolated" if own_gil else "legacy")
        )
    import _xxsubinterpreters

    if own_gil and not interpreter_id and sys.version_info < (3, 12, 4):
        # See above: lines to other processes call it by keyword.
        import hmac

        hmac.new(b"mdispatch", b"", "sha256")
    return _OldInterpreter(_xxsubinterpreters, _xxsubinterpreters.create(isolated=own_gil))
