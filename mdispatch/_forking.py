"""Before a fork: whatever of this package other threads could be in the midst of importing is
imported.

Most of the package is loaded when it is first needed, in the midst of a call. A child of a fork
inherits the lock of a module that another thread was just importing, and that thread did not come
along: the child's own first need of that module would wait for ever. So the first fork of a process
that has threads loads the rest, and waits for what others have begun; afterwards there is nothing
left to be caught in. (What others import of other packages is between them and CPython.)
"""

from __future__ import annotations

import os
from _thread import _count

__all__ = ["load_the_rest"]

#: What no call comes to load by itself: commands, and what is for users of asyncio, of PyTorch, of
#: pools and of tests.
_APART = (
    *("__", "_asking", "_bench", "_catalogue", "_columns", "_command", "_doctor", "_explain_"),
    *("_inspecting", "_ls_", "_pictures", "_report", "_stress", "_stubs_", "_top", "_verify"),
    *("_old_pool", "_pool_", "_testing", "_torch", "pool"),
    *("aio", "cli", "config", "telemetry", "torch"),
)

_loaded = False


def load_the_rest() -> None:
    """Idempotent. Does nothing where no other thread can be importing."""
    global _loaded
    if _loaded or not _count():
        return
    package = os.path.dirname(__file__)
    for file in sorted(os.listdir(package)):
        name, dot, ending = file.partition(".")
        if (dot, ending) == (".", "py") and not name.startswith(_APART):
            __import__(f"mdispatch.{name}")
    _loaded = True
