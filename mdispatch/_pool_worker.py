"""What runs in an interpreter of an InterpreterPool: one task, from bytes to bytes.

Both go through one file, which only one side uses at a time: the pool waits while the code that it
runs here goes on.

What is pickled by its name and stands in the program itself (``__main__``) is found in a copy of
it, that is made when it is first needed and bears the name ``__mp_main__``, as the children of
multiprocessing have one.
"""

from __future__ import annotations

import io
import os
import pickle
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    #: The answer of a task: whether it ended well, its result or exception pickled (b"" when that
    #: cannot be), and the traceback as text.
    Answer = tuple[bool, bytes, str]

__all__ = ["COPY", "put", "run", "taken"]

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
    """Puts the data into the file in place of what is there."""
    os.ftruncate(descriptor, 0)
    offset, rest = 0, memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        offset, rest = offset + written, rest[written:]


def taken(descriptor: int) -> bytes:
    """What is in the file."""
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
    """b"" for what does not come out of its pickle again."""
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
