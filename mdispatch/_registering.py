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
from ._registering_base import RegistrationHandle, claim
from ._registering_definitions import define
from ._registering_stubs import claim_stub, verify_stub, warn_of_override
from ._roles import known, verify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._kernels import LocalKernel
    from ._registering_base import Place
    from ._registry import Registration
    from .registry import Registry

__all__ = [
    "RegistrationHandle",
    "define",
    "fall_back",
    "hold_name",
    "implement",
    "implement_known",
    "name_module",
    "open_namespace",
]


def open_namespace(
    registry: Registry, namespace: str, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """The one DEF library of a namespace. (c10: registerLibrary)"""
    if registry.is_main:
        fact = claim(registry, facts.LIBRARY, 0, namespace, "", where)
        return RegistrationHandle(fact, lambda: registry.strike(fact))
    there = verify(registry._facts, facts.LIBRARY, 0, namespace, "", where, timeout=timeout)
    return None if there is None else RegistrationHandle(there)


def hold_name(
    registry: Registry, name: str, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """A name without a schema or kernels. (c10: registerName)"""
    if registry.is_main:
        fact = claim(registry, facts.NAME, 0, name, "", where)
        return RegistrationHandle(fact, lambda: registry.strike(fact))
    there = verify(registry._facts, facts.NAME, 0, name, "", where, timeout=timeout)
    return None if there is None else RegistrationHandle(there)


def name_module(
    registry: Registry, name: str, stub: str, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """The Python module with an operator's fake kernel. (c10: registerPythonModule)"""
    if registry.is_main:
        warn_of_override(registry, name, stub, where)
        fact = claim_stub(registry, name, stub, where)
        return RegistrationHandle(fact, lambda: registry.strike(fact))
    there = verify_stub(registry, name, stub, where, timeout)
    return None if there is None else RegistrationHandle(there)


# --- kernels --------------------------------------------------------------------------------------


def implement(
    registry: Registry,
    name: str,
    kernel: LocalKernel,
    where: Place,
    timeout: float | None,
    *,
    allow_override: bool = True,
) -> RegistrationHandle | None:
    """A kernel of an operator. (c10: registerImpl)

    Without ``allow_override`` it is refused where the key has one, in a worker where this
    interpreter has registered one.
    """
    key = kernel.key
    text = facts.impl_text(kernel.label, kernel.signature)
    if registry.is_main:

        def commit_fact() -> Registration:
            if not allow_override:
                _refuse_override(registry, name, key, where)
            return claim(registry, facts.IMPL, key, name, text, where)

        def commit() -> RegistrationHandle:
            if not allow_override:
                _refuse_override(registry, name, key, where)
            entry = registry.entry(name)  # only now: a kernel that does not fit leaves none
            fact = entry.add(kernel, commit_fact)
            return RegistrationHandle(
                fact, lambda: entry.remove(kernel, lambda: registry.strike(fact))
            )

        if not kernel.signature:
            return commit()
        with registry.definitions_lock:
            _check_signature(registry, name, kernel, where)
            handle = commit()
            registry.names_with_signatures.add(name)
        return handle
    if kernel.signature:
        _check_signature(registry, name, kernel, where)
    # Kernels that came with a fork have facts of their own; those are not to be there twice.
    there = registry._entries.get(name)
    at_least = sum(not k.seq for k in there.kernels.get(key, [])) + 1 if there else 1
    if at_least > 1 and not allow_override:
        _refuse_override(registry, name, key, where)
    verified = verify(
        registry._facts, facts.IMPL, key, name, text, where, at_least=at_least, timeout=timeout
    )
    return None if verified is None else _keep(registry, name, kernel, verified)


def _refuse_override(registry: Registry, name: str, key: DispatchKey, where: Place) -> None:
    there = registry._facts.find(facts.IMPL, key, name)
    if there is not None:
        second = where()
        raise errors.DuplicateRegistrationError(
            f"{name} has a kernel at {key.name} already\n  first:  {there.where} ({there.body})\n"
            f"  second: {second}\n"
            "Close the first one, or let the second take its place (allow_override=True).",
            facts.KIND_NAMES[facts.IMPL],
            name,
            key.name,
            there.where,
            second,
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
    return RegistrationHandle(fact, lambda: entry.drop(kernel))


def fall_back(
    registry: Registry, kernel: LocalKernel, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """What runs at a key for every operator that has no kernel there. (c10: registerFallback)

    InvalidKeyError for a key without a slot.
    """
    key = kernel.key
    table_index(key)
    if not registry.is_main:
        there = verify(
            registry._facts, facts.FALLBACK, key, FALLBACK_NAME, kernel.label, where,
            timeout=timeout,
        )  # fmt: skip
        if there is None:
            return None
        registry.add_fallback(kernel)
        return RegistrationHandle(there, lambda: registry.drop_fallback(kernel))
    # The callable comes first and goes last: no table of another thread may find the fact without
    # it.
    registry.add_fallback(kernel)
    try:
        fact = claim(registry, facts.FALLBACK, key, FALLBACK_NAME, kernel.label, where)
    except BaseException:
        registry.drop_fallback(kernel)
        raise
    kernel.seq = fact.seq
    return RegistrationHandle(
        fact, lambda: registry.strike(fact), lambda: registry.drop_fallback(kernel)
    )


def _check_signature(registry: Registry, name: str, kernel: LocalKernel, where: Place) -> None:
    """Before a kernel with a signature: it has to fit the schema, if that is there."""
    from ._differences import check_signature
    from .schema import parse_schema

    parse_schema(name + kernel.signature)  # refused whether or not there is a schema
    fact = registry._facts.find(facts.DEF, 0, name)
    if fact is not None:
        schema = parse_schema(fact.body)
        key = kernel.key.name
        check_signature(schema, kernel.signature, key, kernel.label, where(), fact.where)
