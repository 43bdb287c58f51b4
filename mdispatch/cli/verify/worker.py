"""The program of each interpreter and process that ``mdispatch verify`` warms up.

A worker reports through a file descriptor, in the format of marshal: that costs no import, and both
ends are the same Python. This module imports nothing heavy, because every worker would pay for it.
"""

from __future__ import annotations

import marshal
import os

from ...facts import interpreter_id
from ...registry.verify import Audit
from ...workers.warm_up import examine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...errors import MdispatchError

    #: A difference: the error's class, its message, and its attributes (of ATTRIBUTES).
    Told = tuple[str, str, dict[str, object]]
    #: The error that ended the import: class, message, locations in its traceback, outermost first.
    Failure = tuple[str, str, list[str]]
    #: Operators, kernels, seconds to import the modules, longest wait in seconds.
    Figures = tuple[int, int, float, float]
    #: pid, interpreter, seconds to import mdispatch and join the registry, ...
    Report = tuple[int, int, float, Figures, list[Told], Failure | None]

#: Attributes of a VerificationError that describe a difference.
ATTRIBUTES = (
    *("kind", "name", "key", "here", "there", "waited", "nearest"),
    *("schema_here", "schema_there", "keys_here", "keys_there"),
)

# The file begins with the time at which the worker's first line ran, in nanoseconds; the report
# follows.
_BEGAN = 8


def source(
    path: Sequence[str],
    modules: Sequence[str],
    groups: Sequence[str],
    timeout: float,
    torch: bool,
    descriptor: int,
) -> str:
    """The program of a worker. It reads the clock before it imports what is not built in."""
    what = list(modules), list(groups), timeout, torch
    return (
        "import posix, sys, time\n"
        "began = time.monotonic_ns()\n"
        f"posix.write({descriptor}, began.to_bytes({_BEGAN}, 'little'))\n"
        f"sys.path[:] = {list(path)!r}\n"
        "import mdispatch\n"
        "mdispatch.default_registry()\n"
        "joined = time.monotonic_ns()\n"
        "from mdispatch.cli.verify.worker import run\n"
        f"run(*{what!r}, {descriptor}, (joined - began) / 1e9)\n"
    )


def run(
    modules: Sequence[str],
    groups: Sequence[str],
    timeout: float,
    torch: bool,
    descriptor: int,
    joining: float,
) -> None:
    """Imports and verifies the modules, and writes the report, also about a failure. ``torch``:
    what they register with torch.library, too.
    """
    differences: list[Told] = []
    figures: Figures = (0, 0, 0.0, 0.0)
    failure: Failure | None = None
    try:
        if torch:
            from ...torch.watching import watch

            with Audit(timeout):
                watch(timeout=timeout)
        done = examine(modules, entry_points=groups, timeout=timeout)
        figures = (done.operators, done.kernels, done.import_seconds, done.longest_wait)
        differences = [_told(error) for error in done.differences]
    except BaseException as error:
        failure = _failure(error)
    report: Report = (os.getpid(), interpreter_id, joining, figures, differences, failure)
    data = marshal.dumps(report)
    while data:
        data = data[os.write(descriptor, data) :]


def read_began(descriptor: int) -> int | None:
    """The time of the worker's first line, in nanoseconds of CLOCK_MONOTONIC; None before that."""
    data = os.pread(descriptor, _BEGAN, 0)
    return int.from_bytes(data, "little") if len(data) == _BEGAN else None


def read_report(descriptor: int) -> Report | None:
    """The report in the file; None when there is none, or only a part of one."""
    data = b""
    while chunk := os.pread(descriptor, 1 << 20, _BEGAN + len(data)):
        data += chunk
    try:
        report: Report = marshal.loads(data)
    except (EOFError, ValueError, TypeError):
        return None
    return report


def _told(error: MdispatchError) -> Told:
    attributes = {name: getattr(error, name) for name in ATTRIBUTES if hasattr(error, name)}
    for name, value in attributes.items():
        if isinstance(value, str):
            attributes[name] = str(value)  # marshal takes no Location
    return type(error).__name__, str(error), attributes


def _failure(error: BaseException) -> Failure:
    locations = []
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        module = frame.f_globals.get("__name__", "")
        # Frames of importlib and of mdispatch do not help to find the error.
        if module.partition(".")[0] not in ("importlib", "_frozen_importlib", "mdispatch"):
            locations.append(f"{frame.f_code.co_filename}:{traceback.tb_lineno}")
        traceback = traceback.tb_next
    try:
        text = str(error)
    except Exception as worse:
        text = f"(its message cannot be shown: {type(worse).__name__})"
    return type(error).__name__, text, [p for p in locations if not p.startswith("<frozen ")]
