"""Chooses the binding that serves in this interpreter, and lists the names that every binding has.

Both bindings reach the same libmdispatch. The main interpreter of a process uses cffi, except for
the functions that run once or more for each operator (``often``). Sub-interpreters use the
extension: there cffi refuses to load or, worse, loads only if another interpreter loaded it before.
The kind of interpreter decides, not an attempt. ``MDISPATCH_BINDING=ext|cffi`` forces one where
both can load. Free-threaded 3.13 uses the extension everywhere, since cffi does not support it.
"""

from __future__ import annotations

import os
import sys

from ...errors import BindingError
from .constants import MD_ABI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from .contract import Binding

    _ext: Any
else:
    try:
        from . import _ext
    except ImportError:
        from importlib.util import find_spec

        if find_spec(f"{__package__}._ext") is not None:
            raise  # it is there, and cannot be loaded
        _package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        _version = "{}.{}".format(*sys.version_info)
        raise BindingError(
            f"this is the source tree of mdispatch, {_package}, and it is not built for Python "
            f"{_version}.\n"
            "To use the mdispatch that is installed, start Python in another folder, with a script "
            "that lies elsewhere: Python looks beside the script first.\n"
            f"To work on these sources: {sys.executable or 'python'} -m pip install -e "
            f"{os.path.dirname(_package)}"
        ) from None

__all__ = ["ABI", "BINDING_NAMES", "abi", "c_kernels", "caller", "choose", "interpreter_id"]
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
    "format_of",
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
ABI = MD_ABI

interpreter_id: int = _ext.interpreter_id()

#: Runs the signal handlers that are due, in sub-interpreters too. Always the extension's function.
run_signal_handlers = _ext.run_signal_handlers

#: ``caller("__name__")`` is the nearest code that is not ours, and the instruction in it; None if
#: there is none.
caller: Callable[[str], tuple[CodeType, int] | None] = _ext.caller

#: The functions for kernels in C (native/bind/ext/kernels.c). Always the extension.
c_kernels: Any = _ext


def choose(asked: str, interpreter: int, free_threaded: bool, version: tuple[int, int]) -> str:
    """Returns "cffi" or "ext": the binding for such an interpreter, if the environment asks for
    ``asked`` ("", "cffi", "ext").
    """
    if asked not in ("", "cffi", "ext"):
        raise BindingError(
            f"MDISPATCH_BINDING={asked!r}: only 'cffi' and 'ext' are bindings. Unset it to let "
            "mdispatch choose."
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
        from . import cffi_binding
    except ImportError as error:
        raise BindingError(
            f"the cffi binding cannot be loaded in interpreter {interpreter_id}: {error}\n"
            "Unset MDISPATCH_BINDING or set it to 'ext': the extension serves in every interpreter."
        ) from error
    native = cffi_binding

#: The binding for registrations, look-ups and waits: the extension, which costs a fraction of cffi,
#: unless the environment asks for a binding.
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
    """In the child of a fork, before it uses objects that other threads changed: frees their locks.
    See Note [Locks that nobody has] in native/bind/call/module.c.
    """
    if free_threaded:
        from ._call import unlock

        unlock(*objects)


def unlock_modules() -> None:
    """Likewise for the tables of this package's modules, which all threads read, and for
    ``sys.modules``.
    """
    if free_threaded:
        unlock(sys.modules)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "mdispatch" and module is not None:
                names = module.__dict__
                unlock(names)
                unlock(*(each for each in names.values() if type(each) in _CONTAINERS))
