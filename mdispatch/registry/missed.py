"""Why a wait has found no registration, and the error that says so.

Slow path only: it looks at the registry once more for the words, the nearest names and the
locations.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from .. import errors, facts, seam
from ..errors.locations import file_of
from ..errors.words import nearest
from ..facts.opening import ENVIRONMENT
from ..facts.registration import kind_of
from ..facts.shared import SharedRegistry
from .differences import beside, key_name, process_of
from .roles import who
from .versions import was_changed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..facts import Registration
    from ..facts.abc import Facts

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
            if not kind_of(f.kind).by_any
        ]
        self.same = [f for f in self.same if not kind_of(f.kind).by_any]
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


def standing(registry: Facts) -> list[str]:
    """How this host stands, where it is in a cluster."""
    if not registry.has(facts.STANDING, 0, facts.STANDS):
        return []
    return [f"  cluster: {seam.at('how this host stands')(registry)}"]


def _what(
    kind: int, name: str, key: str, at_least: int, types: str = "", provider: str = ""
) -> str:
    at = facts.kernel_name(key, types) if key else ""
    if provider:
        at += f" of the provider {provider!r}"
    if at_least > 1:
        return f"register {at_least} kernels for {name} at {at}, as this interpreter does,"
    its = kind_of(kind)
    return its.say(its.does, name, at)


def _kernels(there: list[Registration], what: str) -> str:
    """The keys of kernels or fallbacks with their locations."""
    shown = [f"{key_name(f.kind, f.key)} ({f.where})" for f in there[:8]]
    return f"{what} at {', '.join(shown)}{', ...' * (len(there) > 8)}"


class _Missed(NamedTuple):
    """What a wait has not found, and what is there instead."""

    registry: Facts
    kind: int
    key: str
    name: str
    #: The location of the registration here.
    here: str
    #: Of a kernel: for which types it is wanted, and of which provider. None where any kernel will
    #: do that can serve.
    types: str | None
    provider: str
    seen: _Seen
    #: The kernels of the operator that are there, and those among them at the key.
    kernels: list[Registration]
    at_key: list[Registration]
    #: Why the provider of a kernel is not available; "" if it is.
    lacks: Callable[[Registration], str]

    @property
    def namespace(self) -> str:
        return self.name.partition("::")[0]

    @property
    def location(self) -> str:
        """The nearest that is known of the registrar's module."""
        nearest_there = self.seen.same or self.seen.known
        return nearest_there[0].where if self.seen.known else ""


class _Cause(NamedTuple):
    """Why a wait has not found a registration: the error, its lines, its further attributes."""

    cls: type[errors.NotRegisteredError]
    there: str
    #: What to do.
    do: str
    more: dict[str, Any] | None = None
    #: In place of "did not register ...".
    head: str = ""


def never_registered(
    registry: Facts,
    kind: int,
    key: int,
    name: str,
    at_least: int,
    here: str,
    waited: float,
    variant: str | None = None,
    lacks: Callable[[Registration], str] | None = None,
) -> errors.NotRegisteredError:
    """The wait ended without the registration: says which of the reasons it is. ``variant`` is that
    of a kernel (Registration.variant); None where any will do that can serve. ``lacks`` says why a
    kernel cannot, where the registration does not tell.
    """
    own: errors.NotRegisteredError | None = kind_of(kind).missed(registry, name, here, waited)
    if own is not None:
        return own
    types = None if variant is None or variant.startswith("@") else variant
    provider = (variant or "").removeprefix("@") if types is None else ""
    seen, key_text = _Seen(registry, name), key_name(kind, key)
    kernels = [f for f in seen.same if f.kind == facts.IMPL]
    at_key = [f for f in kernels if f.key == key]
    if seen.known:
        here = beside(seen.known[0], here)
    missed = _Missed(
        registry, kind, key_text, name, here, types, provider, seen, kernels, at_key,
        lacks or (lambda fact: fact.lacks),
    )  # fmt: skip
    cause = next(filter(None, (find(missed) for find in _CAUSES)), None) or _not_arrived(missed)
    main = _main(registry, missed.namespace, seen.claims or seen.known)
    took = f"{round(waited, 3):g} s"
    what = _what(kind, name, key_text, at_least, types or "", provider)
    head = f"after {took} {main} {cause.head}" if cause.head else ""
    head = head or f"{main} did not {what} within {took}"
    lines = (head, f"  here:  {here}", f"  there: {cause.there}", cause.do, *standing(registry))
    error = cause.cls(
        "\n".join(lines),
        kind=kind_of(kind).name,
        name=name,
        key=key_text,
        here=here,
        there=missed.location,
        waited=waited,
    )
    for attribute, value in (cause.more or {}).items():
        setattr(error, attribute, value)
    return error


def _cannot_serve(missed: _Missed) -> _Cause | None:
    """Any kernel at the key would have done, and those that are there are unavailable."""
    its, is_any = missed.at_key, missed.types is None and not missed.provider
    if not (is_any and its and all(map(missed.lacks, its))):
        return None
    listed = "".join(f"\n    {f.provider}: {missed.lacks(f)} ({f.where})" for f in its[:8])
    newest = its[-1]
    return _Cause(
        errors.ProviderMissingError,
        f"providers that are not available:{listed}",
        "Make one of them available in the interpreter that registers, or register another "
        "kernel there.",
        {"provider": newest.provider, "reason": missed.lacks(newest), "there": newest.where},
        head=f"has no kernel for {missed.name} at {missed.key} that can serve",
    )


def _no_such_provider(missed: _Missed) -> _Cause | None:
    if not (missed.provider and missed.seen.same):
        return None
    its = missed.at_key
    listed = ", ".join(f"{f.provider or 'without a name'} ({f.where})" for f in its[:8])
    return _Cause(
        errors.ProviderMissingError,
        f"kernels {listed}" if its else f"no kernel at {missed.key}",
        "Register the provider in both, or in neither; where a worker may lack it, let the "
        "main interpreter say required=False.",
        {"provider": missed.provider, "reason": "not registered there"},
    )


def _other_types(missed: _Missed) -> _Cause | None:
    its, types = missed.at_key, missed.types
    if types is None or all(f.variant == types for f in its):
        return None
    listed = ", ".join(
        f"{f.types or (f'the provider {f.provider}' if f.provider else 'any types')} ({f.where})"
        for f in its[:8]
    )
    return _Cause(
        errors.TypesMismatchError,
        f"kernels for {listed}{', ...' * (len(its) > 8)}",
        "Register the kernel for the same types in both, or in neither.",
        {"types_here": types, "types_there": tuple(f.types for f in its)},
    )


def _other_key(missed: _Missed) -> _Cause | None:
    kernels = missed.kernels
    if missed.kind != facts.IMPL or not missed.seen.same:
        return None
    nothing = f"no kernels; the operator comes from {missed.location}"
    return _Cause(
        errors.KeyMismatchError,
        _kernels(kernels, "kernels") if kernels else nothing,
        "Register the kernel at the same key in both, or in neither.",
        {"keys_there": tuple(key_name(f.kind, f.key) for f in kernels)},
    )


def _other_fallbacks(missed: _Missed) -> _Cause | None:
    known = missed.seen.known
    if missed.kind != facts.FALLBACK or not known:
        return None
    return _Cause(
        errors.KeyMismatchError,
        _kernels(known, "fallbacks"),
        "Register the fallback at the same key in both, or in neither.",
        {"keys_there": tuple(key_name(f.kind, f.key) for f in known)},
    )


def _other_name(missed: _Missed) -> _Cause | None:
    """The namespace is there, and has nothing of this name."""
    known = missed.seen.known
    if missed.kind == facts.LIBRARY or not known:
        return None
    near = nearest(missed.name, sorted({f.name for f in known if "::" in f.name}))
    there = f"namespace {missed.namespace!r} comes from {missed.location}"
    if near:
        there += f"\n  nearest names there{missed.seen.among}: {', '.join(near)}"
    return _Cause(
        errors.NameMismatchError,
        there,
        was_changed(file_of(missed.here), known[0].pid)
        or "Check the spelling, and that both import the same version of the module.",
        {"nearest": tuple(near)},
    )


def _no_library(missed: _Missed) -> _Cause | None:
    """The namespace is there, without the DEF library that this interpreter has opened."""
    if not missed.seen.known:
        return None
    return _Cause(
        errors.MainNeverArrivedError,
        f"namespace {missed.namespace!r} comes from {missed.location}, without a DEF library",
        "Operators of custom_op and mdispatch.define need none. Open it as 'FRAGMENT' here, or "
        "as 'DEF' in both; or give it more time (timeout=).",
    )


def _not_arrived(missed: _Missed) -> _Cause:
    nothing = f"nothing in namespace {missed.namespace!r}"
    if missed.kind == facts.FALLBACK:
        nothing = "no fallbacks"
    return _Cause(
        errors.MainNeverArrivedError,
        f"{nothing}{missed.seen.among}",
        _how_main_arrives(missed.registry),
    )


#: The first one that finds a cause is right.
_CAUSES: tuple[Callable[[_Missed], _Cause | None], ...] = (
    _cannot_serve,
    _no_such_provider,
    _other_types,
    _other_key,
    _other_fallbacks,
    _other_name,
    _no_library,
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
