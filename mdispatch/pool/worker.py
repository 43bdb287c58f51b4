"""The code that a worker of an InterpreterPool runs in its interpreter: one task, bytes to bytes.

Task and answer go through one file. Only one side uses it at a time: the pool waits while the code
that it runs here goes on.

Functions and classes of the program itself (``__main__``) are pickled by name. The interpreter
finds them in a copy of the program, which it makes when it first needs one and calls
``__mp_main__``, as children of multiprocessing do.
"""

from __future__ import annotations

import io
import os
import pickle
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    #: The answer to a task: whether it returned, its pickled result or exception (b"" if that
    #: cannot be pickled), and the traceback as text.
    Answer = tuple[bool, bytes, str]

#: The name of the program's copy.
COPY = "__mp_main__"


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, program: tuple[str, str]) -> None:
        super().__init__(io.BytesIO(data))
        self._program = program

    def find_class(self, module: str, name: str, /) -> Any:
        if module == "__main__" and any(self._program):
            _copy_program(*self._program)
            module = COPY
        return super().find_class(module, name)


def _copy_program(module: str, file: str) -> None:
    if COPY in sys.modules:
        return
    import runpy
    import types

    run = runpy.run_module if module else runpy.run_path
    names = run(module or file, run_name=COPY)
    copy = sys.modules[COPY] = types.ModuleType(COPY)
    vars(copy).update(names)


def put(descriptor: int, data: bytes) -> None:
    """Replaces the content of the file."""
    os.ftruncate(descriptor, 0)
    offset, rest = 0, memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        offset, rest = offset + written, rest[written:]


def taken(descriptor: int) -> bytes:
    """The content of the file."""
    data = bytearray()
    while chunk := os.pread(descriptor, 1 << 24, len(data)):
        data += chunk
    return bytes(data)


def run(program: tuple[str, str], descriptor: int) -> None:
    """Runs the pickled ``(function, args, kwargs)`` in the file and puts the pickled Answer
    there.
    """
    answer: Answer
    try:
        function, args, kwargs = _Unpickler(taken(descriptor), program).load()
        answer = True, pickle.dumps(function(*args, **kwargs), pickle.HIGHEST_PROTOCOL), ""
    except BaseException as error:
        answer = False, _pickled(error), _traceback(error)
    put(descriptor, pickle.dumps(answer, pickle.HIGHEST_PROTOCOL))


def _pickled(error: BaseException) -> bytes:
    """The pickled error; b"" if it cannot be unpickled."""
    try:
        data = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)
    except Exception:
        return b""
    return data


def _traceback(error: BaseException) -> str:
    import traceback

    try:
        # Without the frame of this module.
        error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        return "".join(traceback.format_exception(error)).rstrip()
    except Exception as worse:
        return f"{type(error).__qualname__} (which cannot be shown: {type(worse).__name__})"
