"""What to tell a worker whose registrations are not those of the main interpreter.

Slow paths only: each function looks at the registry once more and finds words, the nearest names
and the places.
"""

from __future__ import annotations

from . import _registry as facts
from . import errors
from ._keys import DispatchKey
from ._nearest import nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._registry import Registration, RegistryProtocol
    from .schema import FunctionSchema

__all__ = [
    "check_signature",
    "key_name",
    "missing_in_worker",
    "never_registered",
    "registered_twice",
    "schema_differs",
]


def key_name(kind: int, key: int) -> str:
    """The dispatch key's name where the kind has one, else ""."""
    return DispatchKey(key).name if kind in (facts.IMPL, facts.FALLBACK) else ""


def _namespace_facts(
    registry: RegistryProtocol, namespace: str
) -> tuple[list[Registration], list[Registration]]:
    """The registrar's claim, where there is one, and what is registered."""
    prefix = namespace + "::"
    _, _, all_facts = registry.registrations()
    claims = [f for f in all_facts if f.kind == facts.CLAIM and f.name == namespace]
    return claims[:1], [
        f
        for f in all_facts
        if f.kind != facts.CLAIM and (f.name == namespace or f.name.startswith(prefix))
    ]


def who(registry: RegistryProtocol, namespace: str = "") -> str:
    """Who registers what others verify."""
    if registry.role != facts.PEER:
        return "the main interpreter"
    return f"the registrar of {namespace!r}" if namespace else "the registrar"


def _main(registry: RegistryProtocol, namespace: str, known: list[Registration]) -> str:
    if known:
        return f"{who(registry, namespace)} (pid {known[0].pid})"
    return f"{who(registry, namespace)} of registry {registry.label}"


def _what(kind: int, name: str, key: str, at_least: int) -> str:
    if kind == facts.LIBRARY:
        return f"open library {name!r}"
    if kind == facts.DEF:
        return f"define {name}"
    if kind == facts.NAME:
        return f"register the name {name}"
    if kind == facts.FALLBACK:
        return f"register a fallback at {key}"
    if kind == facts.PYSTUB:
        return f"name the Python module of {name}"
    if at_least > 1:
        return f"register {at_least} kernels for {name} at {key}, as this interpreter does,"
    return f"register a kernel for {name} at {key}"


def _kernels(there: list[Registration], what: str) -> str:
    """The keys of kernels or fallbacks with their places."""
    shown = [f"{key_name(f.kind, f.key)} ({f.where})" for f in there[:8]]
    return f"{what} at {', '.join(shown)}{', ...' * (len(there) > 8)}"


def never_registered(
    registry: RegistryProtocol,
    kind: int,
    key: int,
    name: str,
    at_least: int,
    here: str,
    waited: float,
) -> errors.NotRegisteredError:
    """The wait ended without the fact: says which of the reasons it is."""
    namespace = name.partition("::")[0]
    claims, known = _namespace_facts(registry, namespace)
    key_text = key_name(kind, key)
    what = _what(kind, name, key_text, at_least)
    main = _main(registry, namespace, claims or known)
    head = f"{main} did not {what} within {round(waited, 3):g} s"
    same = [f for f in known if f.name == name]
    kernels = [f for f in same if f.kind == facts.IMPL]
    keys_there = tuple(key_name(f.kind, f.key) for f in kernels)
    place = (same or known)[0].where if known else ""
    lines = [head, f"  here:  {here}"]
    cls: type[errors.NotRegisteredError]
    near: tuple[str, ...] = ()
    if kind == facts.IMPL and same:
        cls = errors.KeyMismatchError
        nothing = f"no kernels; the operator comes from {place}"
        lines.append(f"  there: {_kernels(kernels, 'kernels') if kernels else nothing}")
        lines.append("Register the kernel at the same key in both, or in both of them not at all.")
    elif known and kind == facts.FALLBACK:
        cls = errors.KeyMismatchError
        keys_there = tuple(key_name(f.kind, f.key) for f in known)
        lines.append(f"  there: {_kernels(known, 'fallbacks')}")
        lines.append(
            "Register the fallback at the same key in both, or in both of them not at all."
        )
    elif known and kind != facts.LIBRARY:
        cls = errors.NameMismatchError
        near = tuple(nearest(name, sorted({f.name for f in known if "::" in f.name})))
        lines.append(f"  there: namespace {namespace!r} comes from {place}")
        if near:
            lines.append(f"  nearest names there: {', '.join(near)}")
        lines.append(
            "Check the spelling, and that both interpreters import the same version of the module."
        )
    else:
        cls = errors.MainNeverArrivedError
        nothing = (
            "no fallbacks" if kind == facts.FALLBACK else f"nothing in namespace {namespace!r}"
        )
        lines.append(f"  there: {nothing}")
        lines.append(f"Import the same module in {who(registry)}, or give it more time (timeout=).")
    error = cls(
        "\n".join(lines),
        kind=facts.KIND_NAMES[kind],
        name=name,
        key=key_text,
        here=here,
        there=place,
        waited=waited,
        nearest=near,
    )
    if isinstance(error, errors.KeyMismatchError):
        error.keys_there = keys_there
    return error


def schema_differs(
    registry: RegistryProtocol, fact: Registration, body: str, here: str, difference: str
) -> errors.SchemaMismatchError:
    """Both define the operator, with different schemas."""
    how = "has another schema" if body != fact.body else "is defined otherwise"
    error = errors.SchemaMismatchError(
        f"{fact.name} {how} in {who(registry)} (pid {fact.pid}): {difference}\n"
        f"  here:  {body}    ({here})\n"
        f"  there: {fact.body}    ({fact.where})\n"
        "Make both import the same version of the module.",
        kind="def",
        name=fact.name,
        here=here,
        there=fact.where,
    )
    error.schema_here = body
    error.schema_there = fact.body
    return error


def missing_in_worker(
    registry: RegistryProtocol, fact: Registration
) -> errors.MissingInWorkerError:
    """The main interpreter has it from a module that was imported here too, and here it is not."""
    key = key_name(fact.kind, fact.key)
    what = {
        facts.LIBRARY: f"namespace {fact.name!r} has a DEF library",
        facts.DEF: f"{fact.name} is defined",
        facts.IMPL: f"{fact.name} has a kernel at {key}",
        facts.FALLBACK: f"there is a fallback at {key}",
        facts.NAME: f"{fact.name} is registered by its name",
        facts.PYSTUB: f"{fact.name} names its Python module",
    }[fact.kind]
    told = fact.body.partition("\n")[0] or facts.KIND_NAMES[fact.kind]
    return errors.MissingInWorkerError(
        f"{what} in {who(registry)} (pid {fact.pid}), and this interpreter imported the "
        "module without it\n"
        f"  there: {told}    ({fact.where})\n"
        "Does the module register only in some interpreters? It must do the same in each.",
        kind=facts.KIND_NAMES[fact.kind],
        name=fact.name,
        key=key,
        there=fact.where,
    )


def registered_twice(
    error: errors.DuplicateRegistrationError, key: int
) -> errors.DuplicateRegistrationError:
    """The registry's refusal, with what is there, both places and the remedy."""
    key_text = key_name(facts.FALLBACK, key)
    what, remedy = {
        "library": (
            f"namespace {error.name!r} has a DEF library already",
            "Put all definitions in one library, or open the others as 'FRAGMENT'.",
        ),
        "def": (
            f"{error.name} is defined already",
            "Give this one an overload name (name.overload), or close the first library.",
        ),
        "fallback": (
            f"{key_text} has a fallback already",
            "Close the first library, or combine the two in one function.",
        ),
    }[error.kind]
    return errors.DuplicateRegistrationError(
        f"{what}\n  first:  {error.first}\n  second: {error.second}\n{remedy}",
        error.kind,
        error.name,
        key_text if error.kind == "fallback" else "",
        error.first,
        error.second,
    )


def check_signature(
    schema: FunctionSchema, signature: str, key: str, label: str, first: str, second: str
) -> None:
    """Refuses a kernel and a schema that do not fit, naming both places: ``first`` is the
    kernel's.
    """
    from .schema import compare_signature, parse_schema

    difference = compare_signature(schema, parse_schema(f"{schema.name}{signature}"))
    if difference is not None:
        raise errors.SignatureMismatchError(
            f"the kernel {label} at {key} does not fit {schema.name}: {difference}\n"
            f"  schema: {schema}    ({second})\n"
            f"  kernel: {signature}    ({first})\n"
            "Change one of them.",
            str(schema.name),
            str(schema),
            signature,
        )
