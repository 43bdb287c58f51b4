"""Which Python module has an operator's fake kernel: what the registry keeps of it.

A fact of its own beside the definition. In the main interpreter it comes before the definition and
goes after it, so that whoever finds the definition finds the module too, and workers need not wait
for it.

(c10: Dispatcher::registerPythonModule. There a second one takes the first one's place for good, and
the end of either takes both away; here the newest is in effect, and the one before returns.)
"""

from __future__ import annotations

from . import _registry as facts
from . import errors
from ._place import caller
from ._roles import note, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._registry import Registration
    from .registry import Registry

    Place = Callable[[], str]

__all__ = ["claim_stub", "verify_stub", "warn_of_override"]


def warn_of_override(registry: Registry, name: str, stub: str, where: str) -> None:
    """Main interpreter: to be called before anything is registered, because a filter may make an
    error of the warning.
    """
    there = registry._facts.find(facts.PYSTUB, 0, name)
    if there is None or there.body == stub:
        return
    import warnings

    first, second = (text.partition("\n") for text in (there.body, stub))
    if first[0] == second[0]:
        what = f"{name} names its Python module {first[0]!r} again, with another context"
    else:
        what = f"{name} has named its Python module {first[0]!r}, and now names {second[0]!r}"
    message = (
        f"{what}\n  first:  {there.where}\n  second: {where}\n"
        "The later one is in effect until it is closed. Name the module in one place."
    )
    frame = caller()
    if frame is None:
        warnings.warn(message, errors.PystubOverrideWarning, stacklevel=2)
        return
    warnings.warn_explicit(
        message,
        errors.PystubOverrideWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def claim_stub(registry: Registry, name: str, stub: str, where: str) -> Registration:
    """Main interpreter: the fact."""
    fact = registry._facts.register(facts.PYSTUB, 0, name, stub, where)
    note(registry._facts, fact)
    return fact


def verify_stub(
    registry: Registry,
    name: str,
    stub: str,
    where: Place,
    timeout: float | None,
    *,
    is_defined: bool = False,
) -> Registration | None:
    """Worker: the main interpreter has named the same module, in whatever order with others. None
    when an open audit has noted that it has not.

    ``is_defined`` says that the definition which names it was verified: what is not there then will
    not come.
    """

    def compare(newest: Registration) -> None:
        _, _, there = registry._facts.registrations(name)
        if not any(fact.kind == facts.PYSTUB and fact.body == stub for fact in there):
            raise _differs(registry, name, stub, where(), newest)

    if is_defined and not registry._facts.has(facts.PYSTUB, 0, name):
        # By way of the definition, because that is there and needs no wait.
        verify(registry._facts, facts.DEF, 0, name, stub, where, timeout=timeout, accept=compare)
        return None
    return verify(
        registry._facts, facts.PYSTUB, 0, name, stub, where, timeout=timeout, accept=compare
    )


def _differs(
    registry: Registry, name: str, stub: str, here: str, fact: Registration
) -> errors.PystubMismatchError:
    """Main interpreter and worker name different modules; ``fact`` is the main one's, or the
    definition, where that names none.
    """
    from ._differences import who

    main = who(registry._facts)
    named = fact.body if fact.kind == facts.PYSTUB else ""
    module, _, context = stub.partition("\n")
    module_there, _, context_there = named.partition("\n")
    if not named:
        there = f"{main} (pid {fact.pid}) names none"
    elif module == module_there:
        there = f"in {main} (pid {fact.pid}) with another context"
    else:
        there = f"{main} (pid {fact.pid}) names {module_there!r}"
    error = errors.PystubMismatchError(
        f"{name} names its Python module {module!r} here, and {there}\n"
        f"  here:  {_told(module, context)}    ({here})\n"
        f"  there: {_told(module_there, context_there)}    ({fact.where})\n"
        "Make both import the same version of the module that names it.",
        kind=facts.KIND_NAMES[facts.PYSTUB],
        name=name,
        here=here,
        there=fact.where,
    )
    error.module_here = module
    error.module_there = module_there
    return error


def _told(module: str, context: str) -> str:
    from ._nearest import shown

    return f"{module}, {shown(context)}" if context else module or "none"
