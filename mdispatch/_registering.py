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
from ._roles import known, known_definition, verify
from ._schema_names import split_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ._kernels import LocalKernel
    from ._registry import Registration
    from .registry import Registry
    from .schema import FunctionSchema

    Place = Callable[[], str]

__all__ = [
    "RegistrationHandle",
    "define",
    "fall_back",
    "hold_name",
    "implement",
    "implement_known",
    "open_namespace",
]


class RegistrationHandle:
    """One registration of this interpreter. ``close`` ends it.

    ``registration`` is its fact in the main interpreter; in others the main one's, where it was
    needed to verify, else None. (c10: RegistrationHandleRAII)
    """

    __slots__ = ("_ends", "registration")

    def __init__(self, registration: Registration | None, *ends: Callable[[], object]) -> None:
        self.registration = registration
        self._ends = ends

    def close(self) -> None:
        """Ends the registration. Idempotent; does nothing once the registry is closed."""
        ends, self._ends = self._ends, ()
        for end in ends:
            end()


def open_namespace(
    registry: Registry, namespace: str, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """The one DEF library of a namespace. (c10: registerLibrary)"""
    if registry.is_main:
        fact = _claim(registry, facts.LIBRARY, 0, namespace, "", where)
        return RegistrationHandle(fact, lambda: registry.strike(fact))
    there = verify(registry._facts, facts.LIBRARY, 0, namespace, "", where, timeout=timeout)
    return None if there is None else RegistrationHandle(there)


def hold_name(
    registry: Registry, name: str, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """A name without a schema or kernels. (c10: registerName)"""
    if registry.is_main:
        fact = _claim(registry, facts.NAME, 0, name, "", where)
        return RegistrationHandle(fact, lambda: registry.strike(fact))
    there = verify(registry._facts, facts.NAME, 0, name, "", where, timeout=timeout)
    return None if there is None else RegistrationHandle(there)


# --- definitions ----------------------------------------------------------------------------------


def define(
    registry: Registry,
    schema: str,
    namespace: str,
    where: Place,
    timeout: float | None,
    *,
    attributes: str = "",
    replaced: Mapping[str, Registration] | None = None,
) -> tuple[str, RegistrationHandle | None]:
    """The operator's full name, and the handle of its definition. (c10: registerDef)

    ``replaced`` are the definitions that this one may take the place of: a library opened again
    goes on with their generations where nothing else has changed.
    """
    prefix = namespace + "::"
    written = schema if schema.startswith(prefix) else prefix + schema
    if not registry.is_main:
        return _verify_definition(registry, schema, namespace, written, where, timeout, attributes)
    from .schema import parse_schema

    name = split_name(schema, namespace)
    parsed = parse_schema(schema, namespace)
    canonical = str(parsed)
    before = (replaced or {}).get(name)
    goes_on = before and before.body == canonical and before.attributes == attributes
    text = facts.def_text(
        canonical, written, attributes, before.generation if before and goes_on else 0
    )

    base, _, overload = name.partition(".")

    def commit() -> Registration:
        if name in registry.names_with_signatures:
            _check_kernels(registry, name, parsed, where)
        fact = _claim(registry, facts.DEF, 0, name, text, where)
        registry.note_overload(base, overload)
        return fact

    fact = registry.registered(commit)
    return name, RegistrationHandle(
        fact,
        lambda: registry.forget_overload(base, overload),
        lambda: registry.struck(fact, lambda: registry.strike(fact)),
    )


def _verify_definition(
    registry: Registry,
    schema: str,
    namespace: str,
    written: str,
    where: Place,
    timeout: float | None,
    attributes: str,
) -> tuple[str, RegistrationHandle | None]:
    name = written.partition("(")[0]
    fact = known_definition(registry._facts, name, written, attributes)
    if fact is None:
        from .schema import compare, parse_schema

        name = split_name(schema, namespace)
        parsed = parse_schema(schema, namespace)  # what is no schema needs no wait

        def difference(fact: Registration) -> str | None:
            if fact.attributes != attributes:
                here, there = (each.strip() or "none" for each in (attributes, fact.attributes))
                return f"its attributes are {here} here, {there} there"
            return compare(parsed, parse_schema(fact.body))

        fact = verify(
            registry._facts,
            facts.DEF,
            0,
            name,
            lambda: str(parsed),
            where,
            timeout=timeout,
            accept=difference,
        )
        if fact is None:
            return name, None
    verified = fact
    _check_kernels_here(registry, verified, where)
    registry.registered(lambda: verified)
    return name, RegistrationHandle(verified, lambda: registry.struck(verified, lambda: True))


# --- kernels --------------------------------------------------------------------------------------


def implement(
    registry: Registry, name: str, kernel: LocalKernel, where: Place, timeout: float | None
) -> RegistrationHandle | None:
    """A kernel of an operator. (c10: registerImpl)"""
    key = kernel.key
    text = facts.impl_text(kernel.label, kernel.signature)
    if registry.is_main:

        def commit() -> RegistrationHandle:
            entry = registry.entry(name)  # only now: a kernel that does not fit leaves none
            fact = entry.add(kernel, lambda: _claim(registry, facts.IMPL, key, name, text, where))
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
    verified = verify(
        registry._facts, facts.IMPL, key, name, text, where, at_least=at_least, timeout=timeout
    )
    return None if verified is None else _keep(registry, name, kernel, verified)


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
        fact = _claim(registry, facts.FALLBACK, key, FALLBACK_NAME, kernel.label, where)
    except BaseException:
        registry.drop_fallback(kernel)
        raise
    kernel.seq = fact.seq
    return RegistrationHandle(
        fact, lambda: registry.strike(fact), lambda: registry.drop_fallback(kernel)
    )


# --- helpers --------------------------------------------------------------------------------------


def _claim(
    registry: Registry, kind: int, key: int, name: str, text: str, where: Place
) -> Registration:
    """Registers in the main interpreter; a refusal is told with both places."""
    try:
        return registry._facts.register(kind, key, name, text, where())
    except errors.DuplicateRegistrationError as error:
        from ._differences import registered_twice

        raise registered_twice(error, key) from None


def _check_kernels(registry: Registry, name: str, schema: FunctionSchema, where: Place) -> None:
    """Before a definition: it has to fit the signatures of the kernels that are there. A second
    one is refused as such, whether or not it fits.
    """
    from ._differences import check_signature, registered_twice

    _, _, there = registry._facts.registrations(name)
    for fact in there:
        if fact.kind == facts.DEF:
            kind = facts.KIND_NAMES[facts.DEF]
            twice = errors.DuplicateRegistrationError("", kind, name, "", fact.where, where())
            raise registered_twice(twice, 0)
    for fact in there:
        if fact.kind == facts.IMPL and fact.signature:
            key = DispatchKey(fact.key).name
            check_signature(schema, fact.signature, key, fact.body, fact.where, where())


def _check_kernels_here(registry: Registry, fact: Registration, where: Place) -> None:
    """The same in a worker: its own kernels may have come before the definition."""
    entry = registry._entries.get(fact.name)
    kernels = [kernel for each in (entry.kernels if entry else {}).values() for kernel in each]
    for kernel in kernels:
        if kernel.signature:
            from ._differences import check_signature
            from .schema import parse_schema

            key, schema = kernel.key.name, parse_schema(fact.body)
            check_signature(schema, kernel.signature, key, kernel.label, "here", where())


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
