"""Definitions: how they are made in the main interpreter, with the module that they name, and
verified in every other. See _registering.py.
"""

from __future__ import annotations

from . import _registry as facts
from . import errors
from ._keys import DispatchKey
from ._registering_base import DefinitionHandle, RegistrationHandle, claim
from ._registering_stubs import claim_stub, verify_stub, warn_of_override
from ._roles import known_definition, registers, until_settled, verify
from ._schema_names import split_name
from ._schema_pieces import canonical_schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._registering_base import Place
    from ._registry import Registration
    from .registry import Registry

__all__ = ["define", "define_here"]


@until_settled
def define(
    registry: Registry,
    schema: str,
    namespace: str,
    where: Place,
    timeout: float | None,
    *,
    attributes: str = "",
    stub: str = "",
    replaced: Mapping[str, Registration] | None = None,
) -> tuple[str, RegistrationHandle | None]:
    """The operator's full name, and the handle of its definition, where this interpreter registers
    or verifies. The arguments are those of :func:`define_here`.
    """
    full = split_name(schema, namespace) if registry.elects else ""
    if registers(registry, facts.DEF, 0, full, 0):
        return define_here(
            registry,
            schema,
            namespace,
            where(),
            attributes=attributes,
            stub=stub,
            replaced=replaced,
        )
    return _verify_definition(registry, schema, namespace, where, timeout, attributes, stub)


def define_here(
    registry: Registry,
    schema: str,
    namespace: str,
    where: str,
    *,
    attributes: str = "",
    stub: str = "",
    replaced: Mapping[str, Registration] | None = None,
) -> tuple[str, DefinitionHandle]:
    """The operator's full name, and the handle of its definition, in the main interpreter or by a
    registrar. (c10: registerDef)

    ``stub`` names the Python module of the operator, see :func:`stub_of`.

    ``replaced`` are the definitions that this one may take the place of: a library opened again
    goes on with their generations where nothing else has changed.
    """
    name, canonical = canonical_schema(schema, namespace)
    generation = 0
    if replaced:
        before = replaced.get(name)
        if before and before.body == canonical and before.attributes == attributes:
            generation = before.generation
    text = facts.def_text(canonical, _written(schema, namespace), attributes, generation)
    named = None
    if stub:
        _refuse_second(registry, name, where)  # what is refused warns of nothing
        warn_of_override(registry, name, stub, where)
    with registry.definitions_lock:
        if registry.elects or name in registry.names_with_signatures:
            _check_kernels(registry, name, canonical, where)  # another registrar's, too
        if stub:
            named = claim_stub(registry, name, stub, where)
        try:
            handle = DefinitionHandle(registry, named)
            fact = handle.registration = claim(registry, facts.DEF, 0, name, text, where)
        except BaseException:
            if named is not None:
                registry.strike(named)
            raise
        registry.defined(fact)
    registry.tell()
    return name, handle


def _written(schema: str, namespace: str) -> str:
    prefix = namespace + "::"
    return schema if schema.startswith(prefix) else prefix + schema


def _verify_definition(
    registry: Registry,
    schema: str,
    namespace: str,
    where: Place,
    timeout: float | None,
    attributes: str,
    stub: str,
) -> tuple[str, RegistrationHandle | None]:
    written = _written(schema, namespace)
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
    there = fact
    if stub:
        verify_stub(registry, name, stub, where, timeout, is_defined=True)
    _check_kernels_here(registry, there, where)
    registry.registered(lambda: there)

    def end() -> bool:
        return not registry.elects or registry.strike(there) or True

    return name, RegistrationHandle(there, lambda: registry.struck(there, end))


# --- against the kernels that are there -----------------------------------------------------------


def _check_kernels(registry: Registry, name: str, canonical: str, where: str) -> None:
    """Before a definition: it has to fit the signatures of the kernels that are there. A second
    one is refused as such, whether or not it fits.
    """
    _refuse_second(registry, name, where)
    _, _, there = registry._facts.registrations(name)
    for fact in there:
        if fact.kind == facts.IMPL and fact.signature:
            from ._differences import check_signature
            from .schema import parse_schema

            key, schema = DispatchKey(fact.key).name, parse_schema(canonical)
            check_signature(schema, fact.signature, key, fact.body, fact.where, where)


def _refuse_second(registry: Registry, name: str, where: str) -> None:
    """Before a definition: there is none yet."""
    fact = registry._facts.find(facts.DEF, 0, name)
    if fact is not None:
        from ._differences import registered_twice

        kind = facts.KIND_NAMES[facts.DEF]
        twice = errors.DuplicateRegistrationError("", kind, name, "", fact.where, where)
        raise registered_twice(twice, 0)


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
