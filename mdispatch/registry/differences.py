"""The errors of an interpreter whose registrations differ from those of the main interpreter.

Slow paths only: each function looks at the registry once more for the words, the nearest names and
the places.
"""

from __future__ import annotations

import sys
from os import getpid

from .. import errors, facts
from ..dispatch.kernels import Provider
from ..errors.places import file_of, origin, process_at
from ..errors.words import nearest
from ..facts.shared import ENVIRONMENT, SharedRegistry
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

__all__ = [
    "all_that_differs",
    "beside",
    "check_provider",
    "check_signature",
    "does_not_take",
    "key_name",
    "missing_in_worker",
    "never_registered",
    "priority_differs",
    "process_of",
    "registered_twice",
    "schema_differs",
    "torch_differs",
    "travelled_otherwise",
    "type_differs",
]


def key_name(kind: int, key: int) -> str:
    """The dispatch key's name where the kind has one, else ""."""
    return DispatchKey(key).name if kind in (facts.IMPL, facts.FALLBACK) else ""


#: How many of the newest registrations one error looks at: some 10 ms in a registry of any size.
_LOOKED_AT = 4000


class _Seen:
    """What an error tells of the registry. Of a large one only the newest registrations are listed,
    because the caller, who had little time, waits for the error, too.
    """

    def __init__(self, registry: Facts, name: str) -> None:
        namespace = name.partition("::")[0]
        _, _, of_namespace = registry.registrations(namespace)
        self.same = registry.registrations(name)[2] if name != namespace else of_namespace
        newest, self.total = _newest(registry)
        self.looked_at = len(newest)
        prefix = namespace + "::"
        inside = [f for f in newest if f.name.startswith(prefix)]
        #: What is registered in the namespace, its library first.
        self.known = [
            f
            for f in {f.seq: f for f in (*of_namespace, *self.same, *inside)}.values()
            if f.kind not in facts.OF_ANY_MEMBER
        ]
        self.same = [f for f in self.same if f.kind not in facts.OF_ANY_MEMBER]
        #: The registrar's claim, where there is one.
        self.claims = [f for f in of_namespace if f.kind == facts.CLAIM][:1]

    @property
    def among(self) -> str:
        if self.looked_at == self.total:
            return ""
        return f" among the newest {self.looked_at} of {self.total} registrations"


def _newest(registry: Facts) -> tuple[list[Registration], int]:
    """The newest registrations, all of them where they are few, and how many there are."""
    sequence, _ = registry.await_change(0, 0.0)
    total, newest = registry.registrations_since(0, max(0, sequence - _LOOKED_AT))
    if len(newest) < total <= _LOOKED_AT:  # many others have come and gone since
        _, _, newest = registry.registrations()
        total = len(newest)
    return newest, total


def _main(registry: Facts, namespace: str, known: list[Registration]) -> str:
    if known:
        return f"{who(registry, namespace)} ({process_of(known[0])})"
    return f"{who(registry, namespace)} of registry {registry.label}"


def process_of(fact: Registration) -> str:
    """The process that registered a fact, on whatever host."""
    return process_at(fact.where, fact.pid)


def beside(fact: Registration, here: str) -> str:
    """A place of this process; with host and process where those of the fact are known."""
    if origin(fact.where) is None:
        return here
    from ..facts.hosts import host

    return f"{host()}[{getpid()}]:{here}"


def _cluster(registry: Facts) -> list[str]:
    """How this host stands, where it is in a cluster."""
    if not registry.has(facts.STANDING, 0, facts.registration.CLUSTER):
        return []
    from ..facts.hosts import told

    return [f"  cluster: {told(registry)}"]


def _what(
    kind: int, name: str, key: str, at_least: int, types: str = "", provider: str = ""
) -> str:
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
    place = facts.kernel_name(key, types)
    if provider:
        place += f" of the provider {provider!r}"
    if at_least > 1:
        return f"register {at_least} kernels for {name} at {place}, as this interpreter does,"
    return f"register a kernel for {name} at {place}"


def _kernels(there: list[Registration], what: str) -> str:
    """The keys of kernels or fallbacks with their places."""
    shown = [f"{key_name(f.kind, f.key)} ({f.where})" for f in there[:8]]
    return f"{what} at {', '.join(shown)}{', ...' * (len(there) > 8)}"


def never_registered(
    registry: Facts,
    kind: int,
    key: int,
    name: str,
    at_least: int,
    here: str,
    waited: float,
    variant: str | None = None,
) -> errors.NotRegisteredError:
    """The wait ended without the fact: says which of the reasons it is. ``variant`` is that of a
    kernel (Registration.variant); None where any will do that can serve.
    """
    types = None if variant is None or variant.startswith("@") else variant
    provider = (variant or "").removeprefix("@") if types is None else ""
    if kind == facts.PRIORITY:
        return _no_priority(registry, name, here, waited)
    if kind == facts.TORCH:
        return _torch_never_registered(registry, name, here, waited)
    namespace = name.partition("::")[0]
    seen = _Seen(registry, name)
    known, same = seen.known, seen.same
    key_text = key_name(kind, key)
    what = _what(kind, name, key_text, at_least, types or "", provider)
    main = _main(registry, namespace, seen.claims or known)
    kernels = [f for f in same if f.kind == facts.IMPL]
    keys_there = tuple(key_name(f.kind, f.key) for f in kernels)
    place = (same or known)[0].where if known else ""
    cluster = _cluster(registry)
    if known:
        here = beside(known[0], here)
    its = [f for f in kernels if f.key == key]
    lacking = its[-1] if variant is None and its and all(f.lacks for f in its) else None
    took = f"{round(waited, 3):g} s"
    head = f"{main} did not {what} within {took}"
    if lacking is not None:
        head = f"after {took} {main} has no kernel for {name} at {key_text} that can serve"
    lines = [head, f"  here:  {here}"]
    cls: type[errors.NotRegisteredError]
    near: tuple[str, ...] = ()
    if lacking is not None:
        cls = errors.ProviderMissingError
        provider, place = lacking.provider, lacking.where
        listed = "".join(f"\n    {f.provider}: {f.lacks} ({f.where})" for f in its[:8])
        lines.append(f"  there: providers that are not available:{listed}")
        lines.append(
            "Make one of them available in the interpreter that registers, or register another "
            "kernel there."
        )
    elif provider and same:
        cls = errors.ProviderMissingError
        listed = ", ".join(f"{f.provider or 'without a name'} ({f.where})" for f in its[:8])
        lines.append(f"  there: {f'kernels {listed}' if its else f'no kernel at {key_text}'}")
        lines.append(
            "Register the provider in both, or in neither; where a worker may lack it, let the "
            "main interpreter say required=False."
        )
    elif types is not None and any(f.variant != types for f in its):
        cls = errors.TypesMismatchError
        listed = ", ".join(
            f"{f.types or (f'the provider {f.provider}' if f.provider else 'any types')} "
            f"({f.where})"
            for f in its[:8]
        )
        lines.append(f"  there: kernels for {listed}{', ...' * (len(its) > 8)}")
        lines.append("Register the kernel for the same types in both, or in neither.")
    elif kind == facts.IMPL and same:
        cls = errors.KeyMismatchError
        nothing = f"no kernels; the operator comes from {place}"
        lines.append(f"  there: {_kernels(kernels, 'kernels') if kernels else nothing}")
        lines.append("Register the kernel at the same key in both, or in neither.")
    elif known and kind == facts.FALLBACK:
        cls = errors.KeyMismatchError
        keys_there = tuple(key_name(f.kind, f.key) for f in known)
        lines.append(f"  there: {_kernels(known, 'fallbacks')}")
        lines.append("Register the fallback at the same key in both, or in neither.")
    elif known and kind != facts.LIBRARY:
        cls = errors.NameMismatchError
        near = tuple(nearest(name, sorted({f.name for f in known if "::" in f.name})))
        lines.append(f"  there: namespace {namespace!r} comes from {place}")
        if near:
            lines.append(f"  nearest names there{seen.among}: {', '.join(near)}")
        lines.append(
            was_changed(file_of(here), known[0].pid)
            or "Check the spelling, and that both import the same version of the module."
        )
    elif known:
        cls = errors.MainNeverArrivedError
        lines.append(f"  there: namespace {namespace!r} comes from {place}, without a DEF library")
        lines.append(
            "Operators of custom_op and mdispatch.define need none. Open it as 'FRAGMENT' here, or "
            "as 'DEF' in both; or give it more time (timeout=)."
        )
    else:
        cls = errors.MainNeverArrivedError
        nothing = (
            "no fallbacks" if kind == facts.FALLBACK else f"nothing in namespace {namespace!r}"
        )
        lines.append(f"  there: {nothing}{seen.among}")
        lines.append(_how_main_arrives(registry))
    lines += cluster
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
    if isinstance(error, errors.ProviderMissingError):
        error.provider = provider
        error.reason = "not registered there" if lacking is None else lacking.lacks
    if isinstance(error, errors.TypesMismatchError):
        error.types_here = types or ""
        error.types_there = tuple(f.types for f in its)
    return error


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
        "kind": facts.KIND_NAMES[facts.IMPL],
        "name": fact.name,
        "key": key,
        "here": here,
        "there": fact.where,
    }
    what = f"{fact.name} has the provider {mine.name!r} at {key}"
    places = f"\n  here:  {here}\n  there: {fact.where} ({process_of(fact)})\n"
    if fact.types != kernel.types_text:
        raise errors.TypesMismatchError(
            f"{what} for {kernel.types_text or 'any types'} here, and for "
            f"{fact.types or 'any types'} in {told}{places}"
            "Register the kernel for the same types in both.",
            types_here=kernel.types_text,
            types_there=(fact.types,),
            **words,
        )
    if mine.rank != main.rank:
        raise errors.PriorityMismatchError(
            f"{what} with rank {mine.rank} here, and with rank {main.rank} in {told}{places}"
            f"{remedy(here, fact.where, fact.pid)}",
            priority_here=str(mine.rank),
            priority_there=str(main.rank),
            **words,
        )
    if main.required and bool(mine.lacks) != bool(main.lacks):
        lacks = mine.lacks or main.lacks
        there, lacking = (told, "this one") if mine.lacks else ("this interpreter", told)
        raise errors.ProviderMissingError(
            f"{what}, which is available in {there} and not in {lacking}: {lacks}{places}"
            "Make it available in both. Where a worker may lack it, let the main interpreter say "
            "required=False.",
            provider=mine.name,
            reason=lacks,
            **words,
        )


def _no_priority(
    registry: Facts, pattern: str, here: str, waited: float
) -> errors.PriorityMismatchError:
    return errors.PriorityMismatchError(
        f"a priority for {pattern} is set here, and {who(registry)} has set none within "
        f"{round(waited, 3):g} s\n  here:  {here}\n"
        "Set it in both. For this interpreter alone use the environment (MDISPATCH_PRIORITY), or a "
        "guard (mdispatch.priority).",
        kind=facts.KIND_NAMES[facts.PRIORITY],
        name=pattern,
        here=here,
        waited=waited,
    )


def priority_differs(
    registry: Facts, fact: Registration, text: str, here: str
) -> errors.PriorityMismatchError:
    """The main interpreter has set another priority for the same pattern."""
    there, here = fact.text.partition("\n")[0], beside(fact, here)
    return errors.PriorityMismatchError(
        f"the priority for {fact.name} is {text} here, and {there} in {who(registry)}\n"
        f"  here:  {here}\n  there: {fact.where} ({process_of(fact)})\n"
        "Set the same in both. For this interpreter alone use the environment "
        "(MDISPATCH_PRIORITY), or a guard (mdispatch.priority); or let the main interpreter say "
        "required=False.",
        kind=facts.KIND_NAMES[facts.PRIORITY],
        name=fact.name,
        here=here,
        there=fact.where,
        priority_here=text,
        priority_there=there,
    )


def _torch_never_registered(
    registry: Facts, name: str, here: str, waited: float
) -> errors.NotRegisteredError:
    """The same for what torch.library has registered here."""
    operator, part = facts.torch_parts(name)
    _, there = registry.registrations_since(facts.TORCH, 0)
    space = f"{operator.partition('::')[0]}::"
    known = {fact: facts.torch_parts(fact.name) for fact in there}
    near = [fact for fact, (its, _) in known.items() if its.startswith(space)]
    its = [fact for fact in near if known[fact][0] == operator]
    place = next(iter(its or near), None)
    keys_there = tuple(known[fact][1] for fact in its if known[fact][1])
    nearest_names: tuple[str, ...] = ()
    cls: type[errors.NotRegisteredError]
    do = "Make both import the same version of the module, or give it more time (timeout=)."
    if its and part:
        cls = errors.KeyMismatchError
        does = f"{', '.join(keys_there) or 'no kernels'}"
        do = "Register the same in both, or in neither."
    elif near:
        cls = errors.NameMismatchError
        nearest_names = tuple(nearest(operator, sorted({known[fact][0] for fact in near})))
        does = f"nearest names: {', '.join(nearest_names) or 'none'}"
    else:
        cls = errors.MainNeverArrivedError
        does = f"nothing in namespace {space[:-2]!r}"
        if not there:
            does = "PyTorch is not watched"
            do = "Call mdispatch.torch.watch() there too, or give it more time (timeout=)."
    main = who(registry, facts.TORCH_SPACE)
    if place is not None:
        does += f"    ({place.where})"
        main, here = f"{main} ({process_of(place)})", beside(place, here)
    what = f"{operator} at {part}" if part else operator
    what = what if operator else "anything"  # its version would be the first
    head = f"torch.library has not registered {what} in {main} within {round(waited, 3):g} s"
    error = cls(
        "\n".join(
            (head, f"  here:  {here}", f"  there: {does}", do, *_cluster(registry)),
        ),
        kind=facts.KIND_NAMES[facts.TORCH],
        name=operator,
        key=part,
        here=here,
        there="" if place is None else place.where,
        waited=waited,
        nearest=nearest_names,
    )
    if isinstance(error, errors.KeyMismatchError):
        error.keys_there = keys_there
    return error


def torch_differs(
    registry: Facts, fact: Registration, body: str, here: str
) -> errors.SchemaMismatchError:
    """torch.library has registered something else under the name of the fact here. Or it is another
    version of PyTorch.
    """
    operator, part = facts.torch_parts(fact.name)
    main, here = f"{who(registry, facts.TORCH_SPACE)} ({process_of(fact)})", beside(fact, here)
    head = f"{operator} is not the same in torch.library as in {main}"
    do = remedy(here, fact.where, fact.pid)
    if not operator:
        operator, head = "torch", f"PyTorch has another version than in {main}"
        do = "Install the same version for both."
    return errors.SchemaMismatchError(
        f"{head}\n  here:  {body}    ({here})\n  there: {fact.body}    ({fact.where})\n{do}",
        kind=facts.KIND_NAMES[facts.TORCH],
        name=operator,
        key=part,
        here=here,
        there=fact.where,
        schema_here=body,
        schema_there=fact.body,
    )


def _how_main_arrives(registry: Facts) -> str:
    """The remedy where the main interpreter has registered nothing of a namespace."""
    if not isinstance(registry, SharedRegistry) or not registry.main_is_absent():
        return f"Import the same module in {who(registry)}, or give it more time (timeout=)."
    main = f"The main interpreter of this process (pid {registry.pid}) has not opened the registry"
    team = f"{ENVIRONMENT}=elect:NAME in its environment: the first interpreter that imports"
    if "mod_wsgi" in sys.modules:
        return (
            f"{main}: mod_wsgi runs each application in a sub-interpreter. Start Apache with "
            f"{team} the module registers it then. Or let each main interpreter import the module: "
            "WSGIImportScript FILE process-group=GROUP application-group=%{GLOBAL} "
            "(docs/servers.md)."
        )
    return (
        f"{main}. Import the same module there first, or start the program with {team} the module "
        "registers it then (docs/servers.md)."
    )


def schema_differs(
    registry: Facts, fact: Registration, body: str, here: str, difference: str
) -> errors.SchemaMismatchError:
    """Both define the operator, with different schemas."""
    how = "has another schema" if body != fact.body else "is defined differently"
    head = f"{fact.name} {how} in {who(registry)} ({process_of(fact)}): {difference}"
    here = beside(fact, here)
    do = remedy(here, fact.where, fact.pid)
    return _schemas_differ(fact.name, head, (body, here), (fact.body, fact.where), do)


def travelled_otherwise(
    fact: Registration, body: str, there: str, attributes: str
) -> errors.SchemaMismatchError:
    """An operator comes in a pickle with another schema, or other attributes, than it has here."""
    from ..schema import compare, parse_schema

    difference = compare(parse_schema(fact.body), parse_schema(body))
    what = "another schema"
    if difference is None:
        mine, its = (each.strip() or "none" for each in (fact.attributes, attributes))
        what, difference = "other attributes", f"they are {mine} here, {its} there"
    head = f"{fact.name} has {what} where it was pickled: {difference}"
    do = "Make both import the same version of the module."
    return _schemas_differ(fact.name, head, (fact.body, fact.where), (body, there), do)


def _schemas_differ(
    name: str, head: str, here: tuple[str, str], there: tuple[str, str], do: str
) -> errors.SchemaMismatchError:
    """``here`` and ``there`` are schemas with their places, ``do`` is the remedy."""
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
        kind=facts.KIND_NAMES[facts.TYPE],
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
    key, name = key_name(fact.kind, fact.key), fact.name
    if fact.kind == facts.TORCH:
        name, key = facts.torch_parts(name)
    if fact.kind == facts.CLASS:
        name = name.replace("::", ".")
    kernel = facts.kernel_name(key, fact.types)
    if fact.provider:
        kernel += f" of the provider {fact.provider!r}"
    what = {
        facts.LIBRARY: f"namespace {fact.name!r} has a DEF library",
        facts.DEF: f"{fact.name} is defined",
        facts.IMPL: f"{fact.name} has a kernel at {kernel}",
        facts.FALLBACK: f"there is a fallback at {key}",
        facts.NAME: f"{fact.name} is registered by its name",
        facts.PYSTUB: f"{fact.name} names its Python module",
        facts.CLASS: f"class {name} is registered",
        facts.TORCH: f"torch.library has {name}{' at ' * bool(key)}{key}",
    }[fact.kind]
    told = fact.body.partition("\n")[0] or facts.KIND_NAMES[fact.kind]
    allowed = " Or let the main interpreter say required=False." * bool(fact.provider)
    module, here = fact.module, ""
    does_what = "register"
    if fact.kind == facts.TORCH and ", in " in fact.where:
        does_what = "load that library"
    advice = was_changed(file_of(fact.where), fact.pid) or (
        f"Does the module {does_what} only in some interpreters, or is it another version? It must "
        "register the same in each."
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
        kind=facts.KIND_NAMES[fact.kind],
        name=name,
        key=key,
        here=here,
        there=fact.where,
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
        f"{count} difference{'s' * (count > 1)} from {who(registry)}:\n{listed}", differences
    )


def registered_twice(
    error: errors.DuplicateRegistrationError, key: int
) -> errors.DuplicateRegistrationError:
    """The registry's refusal, with the first registration, both places and the remedy."""
    key_text = key_name(facts.FALLBACK, key)
    what, remedy = _twice(error, key_text)
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
        key_text if error.kind == "fallback" else "",
        error.first,
        error.second,
    )


def _twice(error: errors.DuplicateRegistrationError, key_text: str) -> tuple[str, str]:
    """What is registered twice, and what to do where two places register it."""
    return {
        "library": (
            f"namespace {error.name!r} has a DEF library already",
            "Put all definitions in one library, or open the others as 'FRAGMENT'.",
        ),
        "def": (
            f"{error.name} is defined already",
            "Give this one an overload name (name.overload), or close the first library.",
        ),
        "class": (
            f"class {error.name.replace('::', '.')} is registered already",
            "Register this one under another name, or close the library of the first.",
        ),
        "fallback": (
            f"{key_text} has a fallback already",
            "Close the first library, or combine the two in one function.",
        ),
    }[error.kind]


def check_signature(
    schema: FunctionSchema, signature: str, key: str, label: str, first: str, second: str
) -> None:
    """Refuses a kernel that does not fit a schema. ``first`` is the place of the kernel, ``second``
    that of the schema.
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
    """A Python function cannot be called with the arguments of the schema. ``first`` is the place
    of the kernel, ``second`` that of the schema.
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
