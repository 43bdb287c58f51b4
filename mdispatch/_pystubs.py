"""What an operator's pystub is for: to say which Python module brings its fake kernel.

``Library.set_python_module`` registers it beside the definition, as a shared fact; so it is known
wherever the registry is, also for an operator that another process defined. It is read when a call
finds no fake kernel, and when a fake kernel runs for the first time.

(c10: Dispatcher::registerPythonModule, getPyStub, throw_abstract_impl_not_imported_error;
torch._library.utils.check_pystub)
"""

from __future__ import annotations

import sys

from . import _registry as facts
from .errors import FakeKernelMissingError, WrongModuleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from ._registry import Registration, RegistryProtocol

__all__ = ["check_module", "missing_fake", "module_of", "policy", "read_stub"]


class _Policy:
    """Whether every fake kernel needs a stub, in this interpreter. See require_python_modules."""

    __slots__ = ("is_strict",)

    def __init__(self) -> None:
        self.is_strict = False


policy = _Policy()


def read_stub(registry: RegistryProtocol, name: str) -> tuple[str, str, Registration] | None:
    """The module and the context of the operator's stub in effect, and its fact. None without."""
    fact = registry.find(facts.PYSTUB, 0, name)
    if fact is None:
        return None
    module, _, context = fact.body.partition("\n")
    return module, context, fact


def module_of(frame: FrameType | None) -> str:
    """The module whose code runs in a frame; "" for code of a script, or that was only executed:
    nobody can import it by that name.
    """
    name = frame.f_globals.get("__name__") if frame is not None else None
    return name if isinstance(name, str) and name != "__main__" and name in sys.modules else ""


def check_module(registry: RegistryProtocol, name: str, found: str, where: str) -> None:
    """Whether a fake kernel comes from the module that its operator names: ``found`` is the module
    that registered it, at ``where``.

    WrongModuleError when it does not; also when the operator names none, was defined in another
    file, and teams want it named.
    """
    if not found:
        return
    stub = read_stub(registry, name)
    if stub is None:
        definition = registry.find(facts.DEF, 0, name) if policy.is_strict else None
        if definition is not None and _file(definition.where) != _file(where):
            raise WrongModuleError(
                f"{name} has a fake kernel in module {found!r}, and its definition names no module "
                f"for it\n  fake kernel registered at {where}\n  defined at {definition.where}\n"
                f"Call set_python_module({found!r}) on the library that defines it, before it "
                "does.",
                name,
                "",
                found,
            )
        return
    expected, _, fact = stub
    if expected != found:
        raise WrongModuleError(
            f"{name} names the Python module {expected!r} for its fake kernel, and the fake kernel "
            f"comes from {found!r}\n  fake kernel registered at {where}\n  module named at "
            f"{fact.where}\nEither register the fake kernel in {expected!r}, or name the right "
            f"module there: set_python_module({found!r}).",
            name,
            expected,
            found,
        )


def _file(where: str) -> str:
    return where.rpartition(":")[0]


def missing_fake(
    registry: RegistryProtocol,
    name: str,
    available: Sequence[str] = (),
    listed: str = "",
    absent: Registration | None = None,
    brought_by: str = "",
) -> FakeKernelMissingError:
    """Why a call with meta values finds no kernel: which module brings it, if the operator says so.

    ``available`` are the keys of the kernels that could run here, ``listed`` those of all in words.
    ``absent`` is the fact of a fake kernel that the registry has and this interpreter has not,
    ``brought_by`` the module that registered it, where that is known.
    """
    stub = read_stub(registry, name)
    what = f"{name} was called with meta values and has no fake kernel"
    if absent is not None:
        one = "a fallback at Meta" if absent.kind == facts.FALLBACK else "one"
        what += f" here\n  the registry has {one} ({absent.body}), registered at {absent.where} by "
        what += f"pid {absent.pid}"
    if listed:
        what += f"\n  kernels at: {listed}"
    if stub is None and absent is not None:
        advice = f"Import {brought_by or 'the module that registers it'} here too."
    elif stub is None:
        advice = f"Register one: register_fake({name!r}, ...)."
    else:
        module, context, fact = stub
        what += f"\n  module {module!r} named for it at {fact.where}"
        if module in sys.modules:
            advice = (
                f"The module {module!r} is imported here, and has registered none: add "
                f"register_fake({name!r}, ...) to it."
            )
        else:
            advice = f"Import the module {module!r}, which brings it."
        if context:
            advice += f"\n{context}"
    error = FakeKernelMissingError(f"{what}\n{advice}", name, "Meta", available)
    error.module, error.context = (brought_by, "") if stub is None else stub[:2]
    return error
