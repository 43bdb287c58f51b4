"""The errors of an interpreter whose registrations differ from those of the main interpreter.

Slow paths only: each function looks at the registry once more for the words, the nearest names and
the locations.
"""

from __future__ import annotations

import sys
from os import getpid

from .. import errors, facts
from ..dispatch.kernels import Provider
from ..errors.locations import file_of, origin, process_at
from ..keys.numbers import DispatchKey
from .roles import who
from .versions import remedy, was_changed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..dispatch.kernels import LocalKernel
    from ..facts import Registration
    from ..facts.abc import Facts
    from ..schema import FunctionSchema


def key_name(kind: int, key: int) -> str:
    """The dispatch key's name where the kind has one, else ""."""
    return DispatchKey(key).name if facts.kind_of(kind).at_keys else ""


def process_of(fact: Registration) -> str:
    """The process that registered a registration, on whatever host."""
    return process_at(fact.where, fact.pid)


def beside(fact: Registration, here: str) -> str:
    """A location of this process; with host and process where those of the registration are
    known."""
    if origin(fact.where) is None:
        return here
    from ..errors.locations import host

    return f"{host()}[{getpid()}]:{here}"


def check_provider(
    registry: Facts, fact: Registration, kernel: LocalKernel, where: Callable[[], str]
) -> None:
    """ProviderMissingError, PriorityMismatchError or TypesMismatchError where a provider is
    another one here than in the main interpreter.
    """
    mine, main = kernel.provider, Provider.of(fact.provider_text)
    assert mine is not None
    assert main is not None
    key, told = DispatchKey(fact.key).name, who(registry)
    here = beside(fact, where())
    words: dict[str, Any] = {
        "kind": "impl",
        "name": fact.name,
        "key": key,
        "here": here,
        "there": fact.where,
    }
    what = f"{fact.name} has the provider {mine.name!r} at {key}"
    locations = f"\n  here:  {here}\n  there: {fact.where} ({process_of(fact)})\n"
    if fact.types != kernel.types_text:
        raise errors.TypesMismatchError(
            f"{what} for {kernel.types_text or 'any types'} here, and for "
            f"{fact.types or 'any types'} in {told}{locations}"
            "Register the kernel for the same types in both.",
            types_here=kernel.types_text,
            types_there=(fact.types,),
            **words,
        )
    if mine.order != main.order:
        raise errors.PriorityMismatchError(
            f"{what} with order {mine.order} here, and with order {main.order} in {told}{locations}"
            f"{remedy(here, fact.where, fact.pid)}",
            priority_here=str(mine.order),
            priority_there=str(main.order),
            **words,
        )
    if main.required and bool(mine.lacks) != bool(main.lacks):
        lacks = mine.lacks or main.lacks
        there, lacking = (told, "this one") if mine.lacks else ("this interpreter", told)
        raise errors.ProviderMissingError(
            f"{what}, which is available in {there} and not in {lacking}: {lacks}{locations}"
            "Make it available in both. Where a worker may lack it, let the main interpreter say "
            "required=False.",
            provider=mine.name,
            reason=lacks,
            **words,
        )


def schema_differs(
    registry: Facts, fact: Registration, body: str, here: str, difference: str
) -> errors.SchemaMismatchError:
    """Both define the operator, with different schemas."""
    how = "has another schema" if body != fact.body else "is defined differently"
    head = f"{fact.name} {how} in {who(registry)} ({process_of(fact)}): {difference}"
    here = beside(fact, here)
    do = remedy(here, fact.where, fact.pid)
    return schemas_differ(fact.name, head, (body, here), (fact.body, fact.where), do)


def travelled_otherwise(
    fact: Registration, body: str, there: str, attributes: str
) -> errors.SchemaMismatchError:
    """An operator comes in a pickle with another schema, or other attributes, than it has here."""
    from ..schema import compare, parse_schema

    difference = compare(parse_schema(fact.body), parse_schema(body), ("here", "there"))
    what = "another schema"
    if difference is None:
        mine, its = (each.strip() or "none" for each in (fact.attributes, attributes))
        what, difference = "other attributes", f"they are {mine} here, {its} there"
    head = f"{fact.name} has {what} where it was pickled: {difference}"
    do = "Make both import the same version of the module."
    return schemas_differ(fact.name, head, (fact.body, fact.where), (body, there), do)


def schemas_differ(
    name: str, head: str, here: tuple[str, str], there: tuple[str, str], do: str
) -> errors.SchemaMismatchError:
    """``here`` and ``there`` are schemas with their locations, ``do`` is the remedy."""
    error = errors.SchemaMismatchError(
        f"{head}\n  here:  {here[0]}    ({here[1]})\n  there: {there[0]}    ({there[1]})\n{do}",
        kind="def",
        name=name,
        here=here[1],
        there=there[1],
    )
    error.schema_here = here[0]
    error.schema_there = there[0]
    return error


def type_differs(fact: Registration, keys: str, here: str) -> errors.TypeKeysMismatchError:
    """Another member has registered the type with other keys. ``keys`` and ``here`` are those of
    this interpreter.
    """
    is_far = origin(fact.where) is not None
    there = process_of(fact) if is_far else facts.who(fact.pid, fact.interpreter)
    here = beside(fact, here)
    return errors.TypeKeysMismatchError(
        f"type {fact.name} is registered for {fact.body} in {there}, and here for {keys}\n"
        f"  here:  {here} ({keys})\n  there: {fact.where} ({fact.body})\n"
        "Values of one type dispatch alike in all members of a registry. "
        f"{remedy(here, fact.where, fact.pid)}",
        kind="type",
        name=fact.name,
        here=here,
        there=fact.where,
        keys_here=tuple(keys.split(", ")),
        keys_there=tuple(fact.body.split(", ")),
    )


def missing_in_worker(registry: Facts, fact: Registration) -> errors.MissingInWorkerError:
    """The main interpreter has registered it, but this interpreter has not: its module does not, or
    was not imported here.
    """
    kind, key = facts.kind_of(fact.kind), key_name(fact.kind, fact.key)
    name, part = kind.called(fact.name)
    kernel = facts.kernel_name(key, fact.types)
    if fact.provider:
        kernel += f" of the provider {fact.provider!r}"
    what, key = kind.say(kind.there, fact.name, kernel), key or part
    told = fact.body.partition("\n")[0] or kind.name
    allowed = " Or let the main interpreter say required=False." * bool(fact.provider)
    module, here = fact.module, ""
    advice = was_changed(file_of(fact.where), fact.pid) or (
        f"Does the module {kind.registers_by(fact)} only in some interpreters, or is it another "
        "version? It must register the same in each."
    )
    if not module:
        does = "has not registered it"
    elif module in sys.modules:
        here = getattr(sys.modules[module], "__file__", None) or ""
        does = f"imported {module} without registering it"
        does += f"\n  here:  nothing    ({here})" * bool(here)
    else:
        does = f"has not imported {module}"
        advice = f"Import {module} here, too, before the warm-up."
    return errors.MissingInWorkerError(
        f"{what} in {who(registry)} ({process_of(fact)}), but this interpreter {does}\n"
        f"  there: {told}    ({fact.where})\n{advice}{allowed}",
        kind=kind.name,
        name=name,
        key=key,
        here=here,
        there=fact.where,
    )


def not_served(registry: Facts, name: str, transport: str) -> errors.NotSharedError:
    """The registry is shared with nobody, and the kernel was to be served to other processes."""
    return errors.NotSharedError(
        f"serve={transport!r} says that other processes may call the kernel of {name}, and the "
        f"registry in which it is registered is shared with none: {registry.alone}\n"
        "Register it where registries are shared (docs/other-systems.md), or leave serve out.",
        registry.label,
    )


def all_that_differs(
    registry: Facts, differences: Sequence[errors.MdispatchError]
) -> errors.WarmUpError:
    """One error for all the differences of this interpreter."""
    count = len(differences)
    listed = "\n".join(
        f"{i}. {str(error).replace(chr(10), chr(10) + '   ')}"
        for i, error in enumerate(differences, 1)
    )
    return errors.WarmUpError(
        f"{count} difference{'s' * (count > 1)} from {who(registry)}:\n{listed}",
        differences=differences,
    )


def registered_twice(
    error: errors.DuplicateRegistrationError, kind: int, key: int
) -> errors.DuplicateRegistrationError:
    """The registry's refusal, with the first registration, both locations and the remedy."""
    key_text = key_name(kind, key)
    its = facts.kind_of(kind)
    what, remedy = its.say(its.twice, error.name, key_text), its.instead
    # In a loop, or in a function that is called again. A compiled module has no lines.
    if error.first == error.second and error.first.rpartition(":")[2].isdigit():
        remedy = (
            "That line ran twice in one run of its module: run it once, or end the first library "
            "before the second begins (close(), scoped_library)."
        )
    return errors.DuplicateRegistrationError(
        f"{what}\n  first:  {error.first}\n  second: {error.second}\n{remedy}",
        error.kind,
        error.name,
        key_text,
        error.first,
        error.second,
    )


def check_signature(
    schema: FunctionSchema, signature: str, key: str, label: str, first: str, second: str
) -> None:
    """Refuses a kernel that does not fit a schema. ``first`` is the location of the kernel,
    ``second`` that of the schema.
    """
    from ..schema import compare_signature, parse_schema

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


def does_not_take(
    name: str, schema: str, kernel: LocalKernel, reason: str, first: str, second: str
) -> errors.SignatureMismatchError:
    """A Python function cannot be called with the arguments of the schema. ``first`` is the
    location of the kernel, ``second`` that of the schema.
    """
    import inspect

    try:
        signature = str(inspect.signature(kernel.function))
    except Exception:  # annotations that cannot be evaluated
        signature = "(...)"
    return errors.SignatureMismatchError(
        f"the kernel {kernel.label} at {kernel.key.name} cannot be called as {name} calls it: "
        f"{reason}\n"
        f"  schema: {schema}    ({second})\n"
        f"  kernel: {signature}    ({first})\n"
        "A kernel gets every argument of the schema, those after '*' by keyword. Change one of the "
        "two.",
        name,
        schema,
        signature,
    )
