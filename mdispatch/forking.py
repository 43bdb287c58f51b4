"""Forks: the modules that are loaded before one, and the state that its child renews.

Most of the package is loaded when a call first needs it. A child of a fork inherits the import lock
of a module that another thread was importing, and that thread does not exist in the child: the
child would wait for ever when it imports the module itself. So the first fork of a process that has
threads loads the rest of the package, and waits for imports that have begun. Later forks have
nothing left to load. (Imports of other packages are CPython's concern.)

Note [Locks across a fork]
A lock that another thread held at the fork stays held in the child for ever. So the child frees all
locks of this package, except those that its own thread holds, and forgets the state that is true of
the parent only. The package registers one function for this with ``os.register_at_fork``, in
facts/living.py. It works from the ground up:

1. It unlocks the tables of our modules (Note [Locks that nobody has], native/bind/call/module.c).
2. It calls ``renew`` below. That frees every lock that :func:`new_lock` made, so you have nothing
   more to do for a new lock. Then it calls the functions of modules that have more to renew;
   :func:`in_child` marks these. Such a function renews or forgets state of its own module only, and
   takes no lock, so the order of these functions makes no difference.
3. It forgets the waits of the other threads. Then each registry joins again (or, where registries
   belong to one process, the child has a copy of its own), and its Dispatcher forgets what other
   threads were doing. At last the Dispatcher queues up again for its namespaces. This may use
   everything that was renewed before.

The other thread may also have been in the midst of a change. So the state under these locks is
changed by a single store, or is computed from such state: then the child computes it again. A guard
that the other thread had open (on a device's kernels) stays open in the child, where nobody ends
it. A library that it was closing is closed in the child, but the kernels that it had not taken away
by then stay there.

Objects that seldom need a lock share one of their module.
"""

from __future__ import annotations

from _thread import RLock, _count
from _weakref import ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeAlias

    Renewing: TypeAlias = Callable[[], None]

#: The folders and files whose modules calls load. The package's face adds those above the core; it
#: leaves out commands, pools and PyTorch's names.
parts = ["errors", "keys", "schema", "facts", "dispatch", "registry"]
#: Modules in them that are left out. Only users of asyncio load the first. An interpreter has its
#: binding when it has a registry; the second is another binding in some, and free-threaded CPython
#: before 3.14 has no cffi for it.
apart = {"registry.waiting_async", "facts.native.cffi_binding"}

_loaded = False

#: The locks of this interpreter, and the functions to call in a child. Changed by single steps.
_locks: set[ref[Any]] = set()
_forget = _locks.discard
_renewing: list[Renewing] = []


def new_lock() -> RLock:
    """A lock that the child of a fork finds free, unless the thread that forked holds it."""
    lock = RLock()
    _locks.add(ref(lock, _forget))
    return lock


def in_child(renew: Renewing) -> Renewing:
    """Decorates a module's function that the child of a fork calls once all locks are free."""
    _renewing.append(renew)
    return renew


def renew() -> None:
    """In the child: see Note [Locks across a fork]."""
    for each in list(_locks):
        lock = each()
        if lock is not None and not lock._is_owned():
            lock._at_fork_reinit()
    for function in _renewing:
        function()


def load_the_rest() -> None:
    """Loads the rest of the package if another thread may be importing some of it. Idempotent."""
    global _loaded
    if _loaded or not _count():
        return
    for module in _modules():
        if module not in apart:
            __import__(f"{__package__}.{module}")
    _loaded = True


def _modules() -> Iterator[str]:
    import os  # a program that only uses keys needs none

    package = os.path.dirname(__file__)
    for part in parts:
        place = os.path.join(package, part)
        if os.path.isfile(place):
            yield part.removesuffix(".py").replace("/", ".")
        for folder, _, files in sorted(os.walk(place)):
            inside = folder[len(package) + 1 :].replace(os.sep, ".")
            for file in sorted(files):
                name, ending = os.path.splitext(file)
                if ending == ".py" and name != "__init__":
                    yield f"{inside}.{name}"
