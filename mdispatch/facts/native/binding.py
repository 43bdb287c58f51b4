"""Chooses the binding that serves in this interpreter, and lists the names that every binding has.

Both bindings reach the same libmdispatch. The main interpreter of a process uses cffi, except for
the functions that run once or more for each operator (``often``). Sub-interpreters use the
extension: there cffi refuses to load or, worse, loads only if another interpreter loaded it before.
The kind of interpreter decides, not an attempt. ``MDISPATCH_BINDING=ext|cffi`` forces one where
both can load. Free-threaded 3.13 uses the extension everywhere, since cffi does not support it.

Where the system cannot share a registry (facts/native/system.py), and with
``MDISPATCH_BINDING=none``, there is no libmdispatch: ``alone`` stands for it.
"""

from __future__ import annotations

import os
import sys

from ... import errors, seam
from .constants import MD_ABI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

    from .contract import Binding

__all__ = ["ABI", "BINDING_NAMES", "abi", "alone_because", "c_kernels", "caller", "choose"]
__all__ += ["fact", "interpreter_id", "native", "often", "run_signal_handlers", "unlock"]
__all__ += ["unlock_modules", "which"]

BINDING_NAMES = (
    "abi",
    "address",
    "attach",
    "await_change",
    "await_fact",
    "bridge",
    "cancel",
    "check",
    "claim",
    "close",
    "create",
    "elect",
    "find",
    "folder",
    "forget_published",
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
    "origin",
    "published",
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

free_threaded = "free-threading" in sys.version


def choose(
    asked: str, interpreter: int, free_threaded: bool, version: tuple[int, int], why_not: str = ""
) -> str:
    """Returns "cffi", "ext" or "none": the binding for such an interpreter, if the environment asks
    for ``asked`` ("", "cffi", "ext", "none"). ``why_not`` is the system's ``problem()``.
    """
    if asked not in ("", "cffi", "ext", "none"):
        raise errors.BindingError(
            f"MDISPATCH_BINDING={asked!r}: only 'cffi', 'ext' and 'none' are bindings. Unset it to "
            "let mdispatch choose."
        )
    if why_not and asked not in ("", "none"):
        raise errors.BindingError(
            f"MDISPATCH_BINDING={asked!r}: there is no such binding here: {why_not}. Unset it."
        )
    if asked or why_not:
        return asked or "none"
    if interpreter != 0 or (free_threaded and version < (3, 14)):
        return "ext"
    return "cffi"


def _not_built() -> errors.BindingError:
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    beside = os.listdir(os.path.dirname(package))
    if any(each.startswith("mdispatch-") and each.endswith(".dist-info") for each in beside):
        return errors.BindingError(
            f"{package} was installed for another system: libmdispatch is not there.\n"
            f"Install it for this one: {sys.executable or 'python'} -m pip install "
            "--force-reinstall mdispatch"
        )
    version = "{}.{}".format(*sys.version_info)
    return errors.BindingError(
        f"this is the source tree of mdispatch, {package}, and it is not built for Python "
        f"{version}.\n"
        "To use the mdispatch that is installed, start Python in another folder, with a script "
        "that lies elsewhere: Python looks beside the script first.\n"
        f"To work on these sources: {sys.executable or 'python'} -m pip install -e "
        f"{os.path.dirname(package)}"
    )


def _extension() -> Any:
    """The extension; None where this process works without one."""
    # Elsewhere than on Linux there is nothing that could be tried.
    if _asked == "none" or sys.platform != "linux":
        return None
    try:
        from . import _ext  # type: ignore[attr-defined]
    except ImportError:
        from importlib.util import find_spec

        if find_spec(f"{__package__}._ext") is not None:
            raise  # it is there, and cannot be loaded
        from .system import problem

        if problem():
            return None
        raise _not_built() from None
    return _ext


def _over_cffi() -> Any:
    try:
        from . import cffi_binding
    except ImportError as error:
        raise errors.BindingError(
            f"the cffi binding cannot be loaded in interpreter {interpreter_id}: {error}\n"
            "Unset MDISPATCH_BINDING or set it to 'ext': the extension serves in every interpreter."
        ) from error
    return cffi_binding


_asked = os.environ.get("MDISPATCH_BINDING", "")
_ext = _extension()

#: Why registries belong to one process here; "" where they are shared.
alone_because: str = ""
abi: int = ABI
interpreter_id: int
#: Runs the signal handlers that are due, in sub-interpreters too. Always the extension's function.
run_signal_handlers: Any
#: ``caller("__name__")`` is the code that registers, the instruction in it, and its globals; None
#: if there is none. See Note [Modules of registrations] in errors/locations.py.
caller: Callable[[str], tuple[CodeType, int, dict[str, Any]] | None]
#: ``fact(cls, record)`` is ``tuple.__new__(cls, record)``, and the garbage collector does not visit
#: what it makes: there are tens of thousands of registrations, and none of them is ever in a cycle.
fact: Callable[[type, tuple[object, ...]], Any]
#: The functions for kernels in C (native/bind/ext/kernels.c). Always the extension.
c_kernels: Any
native: Binding
#: The binding for registrations, look-ups and waits: the extension, which costs a fraction of cffi,
#: unless the environment asks for a binding.
often: Binding

if _ext is None:
    from . import alone
    from .system import problem

    alone_because = problem() or "MDISPATCH_BINDING=none in the environment"
    interpreter_id = alone.interpreter_number()
    which: str = choose(_asked, interpreter_id, free_threaded, sys.version_info[:2], alone_because)
    caller = alone.caller
    fact = tuple.__new__
    run_signal_handlers = alone.NotShared("A signal in a wait", alone_because)
    native = often = alone.NotShared("A look at registries from outside", alone_because)
    c_kernels = alone.NotShared("A kernel in C", alone_because)
else:
    _ext.seam(seam.at)
    interpreter_id = _ext.interpreter_id()
    which = choose(_asked, interpreter_id, free_threaded, sys.version_info[:2])
    run_signal_handlers = _ext.run_signal_handlers
    caller = _ext.caller
    fact = _ext.fact
    c_kernels = _ext
    native = _over_cffi() if which == "cffi" else _ext
    often = native if _asked else _ext
    abi = native.abi()
    if abi != ABI:
        raise errors.BindingError(
            f"libmdispatch in this process has ABI {abi}, this package needs {ABI}: "
            "another mdispatch was loaded first.\n"
            "Use one installation of mdispatch per process."
        )


_CONTAINERS = (dict, frozenset, list, set)


def unlock(*objects: object) -> None:
    """In the child of a fork, before it uses objects that other threads changed: frees their locks.
    See Note [Locks that nobody has] in native/bind/call/module.c. Nothing in Python can do that.
    """
    if free_threaded and not alone_because:
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
