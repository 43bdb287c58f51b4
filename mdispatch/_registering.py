"""What a library does: one function per kind of registration.

Each registers in the main interpreter and verifies in every other (see _roles.py), and returns a
handle that ends it.

A refused registration changes nothing. A verification that an open audit has noted as different
gives no handle: there is nothing to end.

Locking: in the main interpreter definitions, and kernels that carry a signature, are made under
``registry.definitions_lock`` (``registered`` takes it), so that neither misses the other. What a
kernel's fact and its callable need is said in _entry.py.
"""

from __future__ import annotations

from . import _registry as facts
from . import errors
from ._kernels import FALLBACK_NAME
from ._keys import DispatchKey, table_index
from ._registering_base import KernelHandle, RegistrationHandle, claim, verified
from ._registering_definitions import define, define_here
from ._registering_stubs import claim_stub, verify_stub, warn_of_override
from ._roles import known, registers, until_settled, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._kernels import LocalKernel
    from ._registering_base import Place
    from ._registry import Registration
    from .registry import Registry

__all__ = [
    "KernelHandle",
    "RegistrationHandle",
    "define",
    "define_here",
    "fall_back",
    "hold_name",
    "implement",
    "implement_here",
    "implement_known",
    "name_module",
    "open_namespace",
]


@until_settled
def open_namespace(
    registry: Registry, namespace: str, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """The one DEF library of a namespace. (c10: registerLibrary)"""
    if registers(registry, facts.LIBRARY, 0, namespace, 0):
        fact = claim(registry, facts.LIBRARY, 0, namespace, "", where())
        return RegistrationHandle(fact, lambda: registry.strike(fact))
    there = verify(registry._facts, facts.LIBRARY, 0, namespace, "", where, timeout=timeout)
    return None if there is None else verified(registry, there)


@until_settled
def hold_name(
    registry: Registry, name: str, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """A name without a schema or kernels. (c10: registerName)"""
    if registers(registry, facts.NAME, 0, name, 0):
        fact = claim(registry, facts.NAME, 0, name, "", where())
        return RegistrationHandle(fact, lambda: registry.strike(fact))
    there = verify(registry._facts, facts.NAME, 0, name, "", where, timeout=timeout)
    return None if there is None else verified(registry, there)


@until_settled
def name_module(
    registry: Registry, name: str, stub: str, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """The Python module with an operator's fake kernel. (c10: registerPythonModule)"""
    if registers(registry, facts.PYSTUB, 0, name, 0):
        here = where()
        warn_of_override(registry, name, stub, here)
        fact = claim_stub(registry, name, stub, here)
        return RegistrationHandle(fact, lambda: registry.strike(fact))
    there = verify_stub(registry, name, stub, where, timeout)
    return None if there is None else verified(registry, there)


# --- kernels --------------------------------------------------------------------------------------


def implement_here(
    registry: Registry, name: str, kernel: LocalKernel, where: str, allow_override: bool
) -> KernelHandle:
    """A kernel of an operator, in the main interpreter or by a registrar. (c10: registerImpl)"""
    if not kernel.signature:
        return _commit(registry, name, kernel, kernel.label, where, allow_override)
    with registry.definitions_lock:
        _check_signature(registry, name, kernel, where)
        text = facts.impl_text(kernel.label, kernel.signature)
        handle = _commit(registry, name, kernel, text, where, allow_override)
        registry.names_with_signatures.add(name)
    return handle


def _commit(
    registry: Registry, name: str, kernel: LocalKernel, text: str, where: str, allow_override: bool
) -> KernelHandle:
    if not allow_override:
        _refuse_override(registry, name, kernel.key, where)
    entry = registry.entry(name)  # only now: a kernel that is refused leaves none
    handle = KernelHandle(entry, kernel)
    with entry.lock:
        if not allow_override:
            _refuse_override(registry, name, kernel.key, where)
        fact = claim(registry, facts.IMPL, kernel.key, name, text, where)
        handle.ref, handle.seq = fact.ref, fact.seq
        entry.add(kernel, fact.seq)
    return handle


@until_settled
def implement(
    registry: Registry,
    name: str,
    kernel: LocalKernel,
    where: Place,
    timeout: float | None,
    *,
    allow_override: bool = True,
) -> RegistrationHandle | None:
    """A kernel of an operator, where this interpreter registers or verifies.

    Without ``allow_override`` it is refused where the key has one, in a worker where this
    interpreter has registered one.
    """
    key = kernel.key
    # Kernels that came with a fork have facts of their own; those are not to be there twice.
    entry_here = registry._entries.get(name)
    here = entry_here.kernels.get(key, []) if entry_here else []
    at_least = sum(k.seq == 0 or (registry.elects and k.seq > 0) for k in here) + 1
    if registers(registry, facts.IMPL, key, name, at_least):
        return implement_here(registry, name, kernel, where(), allow_override)
    if kernel.signature:
        _check_signature(registry, name, kernel, where())
    if at_least > 1 and not allow_override:
        _refuse_override(registry, name, key, where())
    text = facts.impl_text(kernel.label, kernel.signature)
    there = verify(
        registry._facts, facts.IMPL, key, name, text, where, at_least=at_least, timeout=timeout
    )
    return None if there is None else _keep(registry, name, kernel, there)


def _refuse_override(registry: Registry, name: str, key: DispatchKey, where: str) -> None:
    there = registry._facts.find(facts.IMPL, key, name)
    if there is not None:
        raise errors.DuplicateRegistrationError(
            f"{name} has a kernel at {key.name} already\n  first:  {there.where} ({there.body})\n"
            f"  second: {where}\n"
            "Close the first one, or let the second take its place (allow_override=True).",
            facts.KIND_NAMES[facts.IMPL],
            name,
            key.name,
            there.where,
            where,
        )


def implement_known(
    registry: Registry, name: str, kernel: LocalKernel
) -> RegistrationHandle | None:
    """The short way of a worker: its first kernel at a key where the main one has one. None says
    nothing; :func:`implement` has to find out.
    """
    there = registry._entries.get(name)
    if there is not None and there.kernels.get(kernel.key):
        return None
    if not known(registry._facts, facts.IMPL, kernel.key, name):
        return None
    return _keep(registry, name, kernel, None)


def _keep(
    registry: Registry, name: str, kernel: LocalKernel, fact: Registration | None
) -> RegistrationHandle:
    entry = registry.entry(name)
    entry.keep(kernel)
    return verified(registry, fact, lambda: entry.drop(kernel))


@until_settled
def fall_back(
    registry: Registry, kernel: LocalKernel, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """What runs at a key for every operator that has no kernel there. (c10: registerFallback)

    InvalidKeyError for a key without a slot.
    """
    key, fallbacks = kernel.key, registry._fallbacks
    table_index(key)
    if not registers(registry, facts.FALLBACK, key, FALLBACK_NAME, 0):
        there = verify(
            registry._facts, facts.FALLBACK, key, FALLBACK_NAME, kernel.label, where,
            timeout=timeout,
        )  # fmt: skip
        if there is None:
            return None
        fallbacks.keep(kernel)
        return verified(registry, there, lambda: fallbacks.drop(kernel))
    fact = fallbacks.add(
        kernel,
        lambda: claim(registry, facts.FALLBACK, key, FALLBACK_NAME, kernel.label, where()),
    )
    return RegistrationHandle(fact, lambda: fallbacks.remove(kernel, lambda: registry.strike(fact)))


def _check_signature(registry: Registry, name: str, kernel: LocalKernel, where: str) -> None:
    """Before a kernel with a signature: it has to fit the schema, if that is there."""
    from ._differences import check_signature
    from .schema import parse_schema

    parse_schema(name + kernel.signature)  # refused whether or not there is a schema
    fact = registry._facts.find(facts.DEF, 0, name)
    if fact is not None:
        schema = parse_schema(fact.body)
        key = kernel.key.name
        check_signature(schema, kernel.signature, key, kernel.label, where, fact.where)
