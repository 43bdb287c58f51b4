"""Which binding serves in this interpreter, and the names that every binding has.

Both bind the same libmdispatch. The main interpreter of a process uses cffi, but for what is done
once or more for each operator (``often``); in sub-interpreters cffi is refused or, worse, depends
on who imported it first, so there the extension serves. That is decided by the interpreter, not by
trying. ``MDISPATCH_BINDING=ext|cffi`` forces one where both can load; cffi has no support for
free-threaded 3.13, so that build falls to the extension everywhere.
"""

from __future__ import annotations

import os
import sys

from ..errors import BindingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from ._contract import Binding

    _ext: Any
else:
    from . import _ext

__all__ = ["BINDING_NAMES", "Binding", "abi", "c_kernels", "caller", "choose", "interpreter_id"]
__all__ += ["native", "often", "run_signal_handlers", "unlock", "unlock_modules", "which"]

BINDING_NAMES = (
    "abi",
    "address",
    "attach",
    "await_change",
    "await_fact",
    "cancel",
    "check",
    "claim",
    "close",
    "create",
    "elect",
    "find",
    "folder",
    "has",
    "inspect",
    "join",
    "leave",
    "list_facts",
    "list_since",
    "members",
    "now",
    "open_default",
    "reap",
    "register",
    "release",
    "stat",
    "status_text",
    "strike",
    "version",
)

#: The number of this package's contract; a library of another number is refused.
ABI = 3

interpreter_id: int = _ext.interpreter_id()

#: Runs due signal handlers, in sub-interpreters too: the extension's, whatever binds the rest.
run_signal_handlers = _ext.run_signal_handlers

#: ``caller("__name__")`` is the nearest code that is not ours, and the place in it; None when there
#: is none.
caller: Callable[[str], tuple[CodeType, int] | None] = _ext.caller

#: Has the functions for kernels in C (native/bind/kernels_ext.c): the extension, likewise.
c_kernels: Any = _ext


def choose(asked: str, interpreter: int, free_threaded: bool, version: tuple[int, int]) -> str:
    """Returns "cffi" or "ext": what serves in such an interpreter when ``asked`` ("", "cffi",
    "ext") is asked for.
    """
    if asked not in ("", "cffi", "ext"):
        raise BindingError(
            f"MDISPATCH_BINDING={asked!r}: only 'cffi' and 'ext' are bindings. Unset it to "
            "have it chosen."
        )
    if asked:
        return asked
    if interpreter != 0 or (free_threaded and version < (3, 14)):
        return "ext"
    return "cffi"


free_threaded = "free-threading" in sys.version

which: str = choose(
    os.environ.get("MDISPATCH_BINDING", ""),
    interpreter_id,
    free_threaded,
    sys.version_info[:2],
)

native: Binding
if which == "ext":
    native = _ext
else:
    try:
        from . import _cffi_binding
    except ImportError as error:
        raise BindingError(
            f"the cffi binding cannot be loaded in interpreter {interpreter_id}: {error}\n"
            "Unset MDISPATCH_BINDING or set it to 'ext': the extension serves in every interpreter."
        ) from error
    native = _cffi_binding

#: What every registration, look-up and wait goes through: the extension, which costs a fraction of
#: cffi, unless a binding was asked for.
often: Binding = native if os.environ.get("MDISPATCH_BINDING", "") else _ext

abi: int = native.abi()
if abi != ABI:
    raise BindingError(
        f"libmdispatch in this process has ABI {abi}, this package needs {ABI}: another "
        "mdispatch was loaded first.\n"
        "Use one installation of mdispatch per process."
    )


_CONTAINERS = (dict, frozenset, list, set)


def unlock(*objects: object) -> None:
    """In the child of a fork, before it uses what other threads changed: see
    Note [Locks that nobody has] in native/bind/handles.c.
    """
    if free_threaded:
        from ._call import unlock

        unlock(*objects)


def unlock_modules() -> None:
    """Likewise for what this package's modules have, tables into which all threads look, and for
    the one in which they are found.
    """
    if free_threaded:
        unlock(sys.modules)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "mdispatch" and module is not None:
                names = module.__dict__
                unlock(names)
                unlock(*(each for each in names.values() if type(each) in _CONTAINERS))
