"""Which interpreter something belongs to, as a value that other interpreters and processes can
read, and whether that interpreter still exists.

A process is known by more than its pid, which the system gives away again: by its start time too,
and by the boot and PID namespace in which both are counted. The interpreters of a process are known
by their ids, of which none comes twice.

(c10: PyInterpreter, of which objects keep the address; here nothing is ever reached through it)
"""

from __future__ import annotations

import os
import sys

from ._native import interpreter_id
from .errors import ForeignObjectError, ObjectGoneError

__all__ = ["Home", "foreign", "gone", "here"]

#: Of a process that ended and was not waited for yet, or is about to vanish.
_ENDED = {b"Z", b"X", b"x"}


class Home:
    """One interpreter of one process. A value: it compares, hashes and pickles as its parts do.

    ``space`` is the boot and the PID namespace in which ``pid`` is counted, "" where the system
    does not tell them. ``started`` is the process's start time in clock ticks since that boot, 0
    where it is not told. ``interpreter_id`` is 0 for a main interpreter. (c10: PyInterpreter)
    """

    __slots__ = ("interpreter_id", "pid", "space", "started")

    space: str
    pid: int
    started: int
    interpreter_id: int

    def __init__(self, space: str, pid: int, started: int, interpreter_id: int) -> None:
        put = object.__setattr__
        put(self, "space", space)
        put(self, "pid", pid)
        put(self, "started", started)
        put(self, "interpreter_id", interpreter_id)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Home is a value: its {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Home is a value: its {name} cannot be deleted")

    @property
    def process(self) -> tuple[str, int, int]:
        """What tells its process from every other, of any time."""
        return (self.space, self.pid, self.started)

    @property
    def is_here(self) -> bool:
        """Whether it is the interpreter that asks."""
        return self == here()

    @property
    def is_alive(self) -> bool | None:
        """Whether the interpreter still exists; None where that cannot be told.

        It cannot be told of a process of another PID namespace, boot or machine, or one that the
        system hides from this user, nor of a sub-interpreter of another process: that one may end
        before its process, and nobody outside sees it.
        """
        asking = here()
        if self.process == asking.process:
            return _has_interpreter(self.interpreter_id)
        if self.space != asking.space or not self.space or not self.started:
            return None
        running = _runs(self.pid, self.started)
        return None if running and self.interpreter_id != 0 else running

    def neighbour(self, interpreter_id: int) -> Home:
        """The interpreter of this id in the same process."""
        return Home(self.space, self.pid, self.started, interpreter_id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Home):
            return NotImplemented
        return (self.interpreter_id, self.process) == (other.interpreter_id, other.process)

    def __hash__(self) -> int:
        return hash((self.interpreter_id, self.process))

    def __reduce__(self) -> tuple[object, ...]:
        return Home, (self.space, self.pid, self.started, self.interpreter_id)

    def __str__(self) -> str:
        """For people: ``interpreter 3 of process 4711``."""
        text = f"interpreter {self.interpreter_id} of process {self.pid}"
        if self.space != here().space:
            text += " (of another boot or PID namespace)"
        return text

    def __repr__(self) -> str:
        return f"<Home: {self}>"


# This interpreter's, once somebody has asked.
_here: Home | None = None


def here() -> Home:
    """The interpreter that asks; in the child of a fork that of the child. (c10: getPyInterpreter)

    What /proc would have told and does not is left empty: then other processes cannot tell whether
    this one is alive.
    """
    global _here
    home = _here
    if home is None:
        found = _stat_of("self")
        home = _here = Home(_space(), os.getpid(), found[1] if found else 0, interpreter_id)
    return home


def foreign(what: str, home: Home, operator: str = "", use: str = "used") -> ForeignObjectError:
    """The error for what belongs to another interpreter; an ObjectGoneError when that has ended.

    ``what`` names it, ``use`` is what was to be done with it, ``operator`` whose call is refused,
    or "".
    """
    if home.is_alive is False:
        return gone(what, home, f"its home, {home}, has ended", operator)
    return ForeignObjectError(
        f"{_call(operator)}{what} belongs to {home}; it cannot be {use} in {here()}\n"
        "Use it there, or give this interpreter one of its own.",
        str(home),
        str(here()),
        operator,
    )


def gone(what: str, home: Home, why: str, operator: str = "") -> ObjectGoneError:
    """The error for what does not exist any more; ``why`` completes "it is gone: "."""
    return ObjectGoneError(
        f"{_call(operator)}{what} is gone: {why}", str(home), str(here()), operator
    )


def _call(operator: str) -> str:
    return f"{operator}(): " if operator else ""


def _after_fork() -> None:
    global _here
    _here = None


os.register_at_fork(after_in_child=_after_fork)


def _space() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _stat_of(name: str) -> tuple[bool, int] | None:
    """Whether a process runs, and when it started; None when /proc does not tell."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            text = file.read()
        # The second field is the command's name in parentheses, with whatever letters it has.
        fields = text[text.rindex(b")") + 2 :].split()
        # Whose first thread has ended counts as a zombie, and runs on in the others.
        runs = fields[0] not in _ENDED or int(fields[17]) > 1
        return runs, int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def _runs(pid: int, started: int) -> bool | None:
    """Whether the process of this pid and start time runs."""
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return None  # this /proc counts the pids of another namespace
    except OSError:
        return None
    found = _stat_of(str(pid))
    if found is not None:
        return found[0] and found[1] == started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return None  # there is such a process, which /proc hides from this user


def _has_interpreter(number: int) -> bool:
    """Whether this process has the interpreter. One look-up, which the runtime does under its own
    lock: a walk along all of them meets those that other threads are just about to free.
    """
    if number == interpreter_id:
        return True
    if sys.version_info >= (3, 13):
        import _interpreters

        try:
            _interpreters.whence(number)
        except _interpreters.InterpreterNotFoundError:
            return False
        return True
    import _xxsubinterpreters

    try:
        _xxsubinterpreters.InterpreterID(number)
    except RuntimeError:
        return False
    return True
