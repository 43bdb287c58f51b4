"""Kernels in C, registered or verified: by a library that is loaded, or one by one.

The fact is like that of any kernel. Its callable is not kept in this interpreter, but in the table
of the process, under the fact's label: put before the fact is registered, so that whoever sees the
fact finds the function, and dropped after it was struck out.
"""

from __future__ import annotations

from time import monotonic

from . import _registry as facts
from . import errors
from ._native import c_kernels
from ._registering_base import RegistrationHandle, claim, verified
from ._registry.shared import SharedRegistry
from ._registry.status import error_for
from ._roles import until_settled, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._keys import DispatchKey
    from ._registering_base import Place
    from ._registry import Registration
    from .registry import Registry

    #: Addresses of the function, of what it is registered with, of what frees that; flags.
    Spec = tuple[int, int, int, int]

__all__ = ["implement_in_c"]


@until_settled
def implement_in_c(
    registry: Registry,
    name: str,
    key: DispatchKey,
    label: str,
    spec: Spec,
    where: Place,
    timeout: float | None,
    allow_override: bool = True,
) -> RegistrationHandle | None:
    """A kernel in C of an operator, for every interpreter of this process.

    In a worker the main interpreter has to have one with the same label at the same key.
    """
    shared = registry._facts
    if not isinstance(shared, SharedRegistry):
        raise errors.InvalidArgumentError("kernels in C need a registry that is shared")
    entry = (shared._handle, name, int(key), label, spec)
    status = c_kernels.kernel_put(*entry)
    if status:
        raise error_for(status, shared.label)
    handle = None
    try:
        if _registers(registry, name, key, label):
            if not allow_override and (there := shared.find(facts.IMPL, key, name)):
                raise errors.DuplicateRegistrationError(
                    f"{name} has a kernel at {key.name} already\n  first:  {there.where} "
                    f"({there.body})\n  second: {where()}\n"
                    "Close the first one, or let the second take its place (allow_override=True).",
                    *(facts.KIND_NAMES[facts.IMPL], name, key.name, there.where, where()),
                )
            fact = claim(registry, facts.IMPL, key, name, label, where())
            handle = RegistrationHandle(
                fact, lambda: registry.strike(fact), lambda: c_kernels.kernel_drop(*entry)
            )
        else:
            there = _verified(registry, name, key, label, where, timeout)
            if there is not None:
                drop = lambda: c_kernels.kernel_drop(*entry)  # noqa: E731
                handle = verified(registry, there, drop)
    finally:
        if handle is None:
            c_kernels.kernel_drop(*entry)
    return handle


def _same(registry: Registry, name: str, key: DispatchKey) -> list[Registration]:
    _, _, there = registry._facts.registrations(name)
    return [fact for fact in there if (fact.kind, fact.key) == (facts.IMPL, key)]


def _registers(registry: Registry, name: str, key: DispatchKey, label: str) -> bool:
    if not registry.elects:
        return registry.is_main
    if not registry.claim(name.partition("::")[0]):
        return False
    return all(fact.body != label for fact in _same(registry, name, key))


def _verified(
    registry: Registry,
    name: str,
    key: DispatchKey,
    label: str,
    where: Place,
    timeout: float | None,
) -> Registration | None:
    """Waits for a fact with the label. One with another is the kernel of somebody else, whatever
    its number: another library, or one in Python, which no function in C may stand for.
    """
    deadline = None if timeout is None else monotonic() + timeout
    while True:
        same = _same(registry, name, key)
        ours = next((fact for fact in reversed(same) if fact.body == label), None)
        if ours is not None:
            same, at_least = [ours], 1
        else:
            at_least = len(same) + 1
        there = verify(
            registry._facts, facts.IMPL, key, name, label, where,
            at_least=at_least,
            timeout=None if deadline is None else max(0.0, deadline - monotonic()),
        )  # fmt: skip
        if there is None or ours is not None:
            return ours if there is not None else None
