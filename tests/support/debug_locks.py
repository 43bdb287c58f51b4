"""Records the order in which the threads of a process take the package's locks.

``.ci/locks`` has every Python of an environment run this file before anything else, if the variable
MDISPATCH_LOCK_EDGES names a folder. Each lock that the package makes is then a recording one. When
a thread is about to take it while it holds others, the thread writes an edge for each of those. An
edge is a file in the folder: its name says where both locks were made and taken, so the first
process writes it and the others find it there. An edge is written when it is first seen, so a
process that is killed, or a child of a fork that ends by ``os._exit``, loses none.

A recording lock behaves like a plain one:

- It is an RLock of CPython, and the methods that take and release it are those of CPython. So
  ``with`` takes it in one step, and no signal handler can raise in between. The look-up of such a
  method records, before the thread takes the lock.
- A thread holds it if ``_is_owned()`` says so. So nothing has to be noted when it is released.
- A lock of ``allocate_lock`` becomes such a lock, too. Its holder would wait for ever if it took
  the lock again; instead there is an edge from the lock to itself.

Three kinds of processes write nothing: those that start with ``python -S``, those whose
environment lacks the variable, and those that cannot reach the folder. Each interpreter of a
process records its own locks, so nobody sees an edge from a lock of one to a lock of another.

The names below live in no module, so the end of an interpreter does not take them from locks that
finalizers still use.
"""

import _thread
import posix
import sys

_PACKAGE = "mdispatch"
_Real = _thread.RLock
_real_allocate_lock = _thread.allocate_lock
_own = _thread._local()
_seen = set()
_FOLDER = posix.environ[b"MDISPATCH_LOCK_EDGES"]
#: So many of the locks that a thread wanted are known to it after it released them. A signal
#: handler may run while the thread waits for a lock, before ``_is_owned()`` is true.
_RECENT = 8


class _Taking:
    """A method that takes a lock. Its look-up records."""

    def __init__(self, method):
        self._method = method

    def __get__(self, lock, cls):
        if lock is not None:
            _look(lock, sys._getframe(1))
        return self._method.__get__(lock, cls)


class _Lock(_Real):
    """``made`` is the location in the package that made it."""

    __slots__ = ("is_plain", "made")
    acquire = _Taking(_Real.acquire)
    __enter__ = _Taking(_Real.__enter__)

    def _acquire_restore(self, state):
        """A Condition looks this up once, and calls it after each wait."""
        _look(self, sys._getframe(1))
        return _Real._acquire_restore(self, state)


def _place(frame):
    """The file of the package, or the whole path of another one, and the line."""
    name = frame.f_code.co_filename
    if _is_of_package(frame):
        name = name.rpartition(f"/{_PACKAGE}/")[2]
    return f"{name}:{frame.f_lineno}"


def _is_of_package(frame):
    name = frame.f_globals.get("__name__")
    return isinstance(name, str) and (name == _PACKAGE or name.startswith(f"{_PACKAGE}."))


def _is_of_threading(frame):
    return frame.f_globals.get("__name__") == "threading"


def _look(lock, frame):
    if lock._is_owned():
        if lock.is_plain:
            _write(lock, _place(frame), frame.f_code, lock, frame)
        return
    if _is_of_threading(frame):
        if frame.f_code.co_qualname == "Condition.__init__":
            return  # it looks the methods up
        while _is_of_threading(frame) and frame.f_back is not None:
            frame = frame.f_back
    known = getattr(_own, "known", [])
    old = len(known) - _RECENT
    known = [
        each
        for at, each in enumerate(known)
        if each[0] is not lock and (at >= old or each[0]._is_owned())
    ]
    for other, where, code in known:
        if other._is_owned():
            _write(other, where, code, lock, frame)
    known.append((lock, _place(frame), frame.f_code))
    _own.known = known


def _write(held, where, code, wanted, frame):
    """Writes the edge, and a line for each caller. A star marks the one that holds the lock."""
    edge = f"{held.made} {where} {wanted.made} {_place(frame)}"
    if edge in _seen:
        return
    lines = []
    while frame is not None and len(lines) < 40:
        mark = "*" if frame.f_code is code else " "
        lines.append(f"{mark} {_place(frame)} {frame.f_code.co_name}\n")
        frame = frame.f_back
    path = _FOLDER + b"/" + edge.replace("/", "+")[-250:].encode()
    try:
        file = posix.open(path, posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_CLOEXEC)
    except FileExistsError:
        pass
    except OSError:
        return  # a test has taken the folder or the memory away; the next time may do
    else:
        posix.write(file, "".join([edge, "\n", *lines]).encode())
        posix.close(file)
    _seen.add(edge)


def _only_makes(frame):
    """Whether the function makes locks for its callers."""
    module, name = frame.f_globals.get("__name__"), frame.f_code.co_qualname
    if module == "threading":
        return name in ("RLock", "Condition.__init__")
    return module == f"{_PACKAGE}.forking" and name == "new_lock"


def _made(is_plain, frame):
    """A recording lock if the package makes it, by itself or by a Condition; None for others."""
    while _only_makes(frame):
        frame = frame.f_back
    if not _is_of_package(frame):
        return None
    lock = _Lock()
    lock.is_plain = is_plain
    lock.made = _place(frame)
    return lock


def _new_rlock(*words, **more):
    return _made(False, sys._getframe(1)) or _Real(*words, **more)


def _new_lock():
    return _made(True, sys._getframe(1)) or _real_allocate_lock()


_thread.RLock = _new_rlock
_thread.allocate_lock = _new_lock
