"""Forks: what is loaded before one, and which locks its child replaces.

Most of the package is loaded when a call first needs it. A child of a fork inherits the import lock
of a module that another thread was importing, and that thread does not exist in the child: the
child would wait for ever when it imports the module itself. So the first fork of a process that has
threads loads the rest of the package, and waits for imports that have begun. Later forks have
nothing left to load. (Imports of other packages are CPython's concern.)

Note [Locks across a fork]
A lock that another thread held at the fork stays held in the child for ever. So the child replaces
every lock of this package, and forgets what holds for the parent only. The package registers one
function for this with ``os.register_at_fork``, in facts/living.py. It works from the ground up:

1. It unlocks the tables of our modules (Note [Locks that nobody has], native/bind/call/module.c).
2. It calls ``renew_locks`` below. That calls the function ``forked`` of each module in
   ``_WITH_LOCKS`` which is loaded, in the order of the list. Such a function replaces or forgets
   only what its own module has; it takes no lock, and calls no module that comes after its own.
3. It replaces the lock of the waits. Then each registry joins again (or, where registries belong to
   one process, the child has a copy of its own), and its Dispatcher replaces
   the locks of the claims, the fallbacks, the listeners and the operators. At last the Dispatcher
   queues up again for its namespaces. This may use everything that was replaced before.

The other thread may also have been in the midst of a change. So what these locks guard is changed
by a single store, or is computed from what is: then ``forked`` computes it again. What the other
thread had open (a guard on a device's kernels) stays open in the child, where
nobody ends it. A library that it was closing is closed in the child, but the kernels that it had
not taken away by then stay there.

A module with a new lock goes into the list. Objects that have a lock each are known to their module
by weak references; objects that seldom need a lock share one of their module.
"""

from __future__ import annotations

import os
import sys
from _thread import _count

#: The packages whose modules calls load. The packages above have commands, pools and PyTorch's
#: names.
_PACKAGES = ("errors", "keys", "schema", "facts", "transports", "dispatch", "registry", "authoring")
#: Only users of asyncio load the first. An interpreter has its binding when it has a registry; the
#: second is another binding in some, and free-threaded CPython before 3.14 has no cffi for it.
_APART = {"mdispatch.registry.waiting_async", "mdispatch.facts.native.cffi_binding"}
if sys.platform != "linux":  # what no other system has
    _APART |= {f"mdispatch.transports.{name}" for name in ("host", "messages", "place")}

#: The modules that have something to replace or to forget in a child, in their order there.
_WITH_LOCKS = (
    "keys.devices",
    "facts.native.guards_py",
    "dispatch.context.observers",
    "dispatch.context.values",
    "dispatch.context.keeping",
    "dispatch.context.homes",
    "dispatch.overrides",
    "dispatch.serving",
    "dispatch.routing",
    "transports.transport",
    "registry.registry",
    "registry.library",
    "registry.provider_counts",
    "registry.sharing",
    "registry.type_facts",
    "authoring.device_kernels",
    "authoring.autograd.engines",
    "authoring.torch.watch",
    "workers.pool_before_314",
)

_loaded = False


def load_the_rest() -> None:
    """Loads the rest of the package if another thread may be importing some of it. Idempotent."""
    global _loaded
    if _loaded or not _count():
        return
    package = os.path.dirname(os.path.dirname(__file__))
    for part in _PACKAGES:
        for folder, _, files in sorted(os.walk(os.path.join(package, part))):
            inside = folder[len(package) :].replace(os.sep, ".")
            for file in sorted(files):
                name, ending = os.path.splitext(file)
                module = f"mdispatch{inside}.{name}"
                if ending == ".py" and name != "__init__" and module not in _APART:
                    __import__(module)
    _loaded = True


def renew_locks() -> None:
    """In the child: has each module replace its locks. See Note [Locks across a fork]."""
    for name in _WITH_LOCKS:
        # A module that the forking thread itself was importing may not have got to its function.
        forked = getattr(sys.modules.get(f"mdispatch.{name}"), "forked", None)
        if forked is not None:
            forked()
