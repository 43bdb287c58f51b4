"""Which interpreter something belongs to, as a value that other interpreters and processes can
read, and whether that interpreter still exists.

A pid does not identify a process, since the system uses it again. So a process is identified by its
pid, its start time, and the boot and PID namespace in which both are counted. Its interpreters are
identified by their ids, and a process never uses an id again.

(c10: PyInterpreter. There objects keep its address; here a home is never used to reach anything.)
"""

from __future__ import annotations

import os
import sys

from ...errors import ForeignObjectError, ObjectGoneError
from ...facts.native import interpreter_id
from ...forking import in_child

#: The states, in /proc, of a zombie and of a process that is exiting.
_ENDED = {b"Z", b"X", b"x"}


class Home:
    """One interpreter of one process. A value: it compares, hashes and pickles like its parts.

    ``space`` is the boot and the PID namespace in which ``pid`` is counted, "" if the system does
    not tell them. ``started`` is the process's start time in clock ticks since that boot, 0 if the
    system does not tell it. ``interpreter_id`` is 0 for a main interpreter. ``process``, the first
    three, is what identifies the process among all, past ones too. (c10: PyInterpreter)
    """

    __slots__ = ("interpreter_id", "pid", "process", "space", "started")

    space: str
    pid: int
    started: int
    interpreter_id: int
    process: tuple[str, int, int]

    def __init__(self, space: str, pid: int, started: int, interpreter_id: int) -> None:
        put = object.__setattr__
        put(self, "space", space)
        put(self, "pid", pid)
        put(self, "started", started)
        put(self, "interpreter_id", interpreter_id)
        put(self, "process", (space, pid, started))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Home is a value: its {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Home is a value: its {name} cannot be deleted")

    @property
    def is_here(self) -> bool:
        """Whether it is the interpreter that runs this."""
        return self == here()

    @property
    def is_alive(self) -> bool | None:
        """Whether the interpreter still exists; None if that cannot be known.

        It cannot be known for a process of another PID namespace, boot or machine, for one that the
        system hides from this user, and for a sub-interpreter of another process that still runs:
        such an interpreter may end before its process, and nobody outside sees that.
        """
        asking = here()
        if self.process == asking.process:
            return _has_interpreter(self.interpreter_id)
        if self.space != asking.space or not self.space or not self.started:
            return None
        running = _runs(self.pid, self.started)
        return None if running and self.interpreter_id != 0 else running

    def neighbour(self, interpreter_id: int) -> Home:
        """The interpreter with this id in the same process."""
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


# The home of this interpreter, once it was asked for.
_here: Home | None = None


def here() -> Home:
    """The interpreter that runs this; in the child of a fork, that of the child. (c10:
    getPyInterpreter)

    What /proc does not tell is left empty. Then other processes cannot know whether this one is
    alive.
    """
    global _here
    home = _here
    if home is None:
        found = _stat_of("self")
        home = _here = Home(_space(), os.getpid(), found[1] if found else 0, interpreter_id)
    return home


def foreign(what: str, home: Home, operator: str = "", use: str = "used") -> ForeignObjectError:
    """The error for an object of another interpreter; an ObjectGoneError if that has ended.

    ``what`` names the object, ``use`` says what was to be done with it, ``operator`` is the
    operator whose call is refused, or "".
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
    """The error for an object that does not exist any more; ``why`` completes "it is gone: "."""
    return ObjectGoneError(
        f"{_call(operator)}{what} is gone: {why}", str(home), str(here()), operator
    )


def _call(operator: str) -> str:
    return f"{operator}(): " if operator else ""


@in_child
def _renew() -> None:
    global _here
    _here = None


def _space() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/thread-self/ns/pid').st_ino}"
    except OSError:
        return ""


def _stat_of(name: str) -> tuple[bool, int] | None:
    """Whether a process runs, and when it started; None if /proc does not tell."""
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            text = file.read()
        # The second field is the command's name in parentheses, which may itself have parentheses.
        fields = text[text.rindex(b")") + 2 :].split()
        # If only its first thread has ended, a process looks like a zombie, but still runs.
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
    """Whether this process has the interpreter. A single look-up, which the runtime does under its
    own lock: listing all interpreters could meet one that another thread is freeing.
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
