"""Pairs registrations with callables of this interpreter, and computes a table from the pairs.

The registry knows which kernels exist; this interpreter has callables for some of them. Everything
here is a pure function of the two, so a table can always be thrown away and computed again. The
first call of an operator loads this file.

Note [Kernels and definitions]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A kernel that an interpreter has verified belongs to the definition that it was verified against: to
its text and attributes, which is what verifying compares. While a definition with another text is
in effect the kernel counts as one that is not here. It counts again when its text is back, whoever
defines it: the same text from a main interpreter that has started again is no change. A kernel that
this interpreter has registered outlives definitions, as in PyTorch: it has no ``definition``.

A kernel that was verified before its definition belongs to the first one that is verified here, or
that a table is computed with. One that came with a fork belongs to the definition at the fork.

This is asked here alone, where a table is computed; a call asks nothing. What orders the two: a
member publishes a definition, and raises the version word of the operator's name, under one hold of
the registry's lock, before ``define`` returns there. A call reads the word when it begins. So a
call that begins after that computes the table anew, from registrations that were read together and
have the new definition: signature and kernels of a table belong to each other. A call that has
begun keeps its table: it has bound its arguments by the old definition, and runs the kernel of
that.
"""

from __future__ import annotations

import sys

from .. import errors, facts
from ..errors.locations import process_at
from ..facts import kernel_name
from ..facts.modules import missing_fake, modules_bringing
from ..keys import DispatchKeySet, is_included_in_alias
from ..keys.numbers import DispatchKey, table_index
from . import handlers
from .by_type import (
    ByType,
    Tie,
    given_in_words,
    in_words,
    name_of_class,
    split_types,
    text_of_types,
    virtual_bases,
)
from .context.transforms import FRONT
from .kernels import C_LABEL, FALLTHROUGH, LocalKernel, Provider, fallthrough_kernel
from .table import DispatchTable, compute_table, fallback_entries

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..facts import Registration
    from ..facts.abc import Facts
    from .abc import Chooser
    from .by_type import Given, Types

    Here = dict[DispatchKey, list[LocalKernel]]
    Choosing = Callable[[], Chooser]  # makes the Chooser of an operator's table

_ALIASES = tuple(key for key in DispatchKey.__members__.values() if key.is_alias)


class AbsentKernel:
    """A kernel of the registry for which this interpreter has no callable. ``route`` is the way to
    one that another interpreter serves, once a call has found it: see across/routing.py.
    ``definition`` is the one that the table is for; ``outdated`` the kernel that would be it, had
    that not been verified against another definition.
    """

    __slots__ = (
        "definition",
        "fact",
        "is_fallthrough",
        "outdated",
        "provider",
        "route",
        "types",
    )

    def __init__(
        self,
        fact: Registration,
        outdated: LocalKernel | None = None,
        definition: Registration | None = None,
    ) -> None:
        self.fact = fact
        self.outdated = outdated
        self.definition = definition
        self.provider = Provider.of(fact.provider_text)
        self.is_fallthrough = fact.body == FALLTHROUGH
        self.types: Types = split_types(fact.types)
        self.route: Any = None

    @property
    def label(self) -> str:
        return self.fact.body

    def outdated_error(
        self, registry: Facts | None, name: str, key: str = "", available: Sequence[str] = ()
    ) -> errors.KernelOutdatedError:
        """Why the kernel that is here does not run: see Note [Kernels and definitions]. The
        registry keeps it as a difference, for whoever catches the error.
        """
        mine, there = self.outdated, self.definition
        assert mine is not None
        assert mine.definition is not None
        assert there is not None
        old = mine.definition
        texts = old.body, there.body
        if old.attributes != there.attributes:
            texts = f"{old.body}{_attributes(old)}", f"{there.body}{_attributes(there)}"
        error = errors.KernelOutdatedError(
            f"{name} has the kernel {mine.named} at {mine.key.name} here, which was verified "
            "against another definition than the one in effect\n"
            f"  here:  {texts[0]}    (defined at {old.where})\n"
            f"  there: {texts[1]}    (defined at {there.where} by "
            f"{process_at(there.where, there.pid)})\n"
            "Register it again for the new definition: reload the module that registers it, in "
            "the version that is imported there, or start this interpreter anew.",
            name,
            key or mine.key.name,
            available,
            where=self.fact.where,
            schema_here=old.body,
            schema_there=there.body,
            here=old.where,
            there=there.where,
        )
        if registry is not None:
            from ..facts.differing import keep  # loaded only for an error

            keep(registry, (facts.IMPL, int(mine.key), name, mine.variant), error, False)
        return error

    def __repr__(self) -> str:
        return f"<kernel {self.fact.body} at {self.fact.key}, not loaded here>"


def _builtin_fallbacks() -> dict[DispatchKey, LocalKernel]:
    """The fallback that serves a key until somebody registers another.

    The keys of Python and of transforms have the fallbacks of dispatch/handlers.py. Other keys are
    carried by values or added by threads, and need only the kernel below: they fall through.

    PyTorch registers the same for these keys at its start, or a fallback that has no effect on
    values without gradients. It does not for AutogradHIP, AutogradIPU, AutogradVE,
    AutogradPrivateUse2 and 3, and AutogradNestedTensor; so neither does mdispatch.
    """
    names = ["BackendSelect", "ADInplaceOrView", "AutogradOther"]
    names += [
        f"Autograd{backend}"
        for backend in ("CPU", "CUDA", "XLA", "MPS", "XPU", "HPU", "Lazy", "MTIA", "MAIA")
    ]
    names += ["AutogradPrivateUse1", "AutogradMeta"]
    found = {key: LocalKernel(key, fallthrough_kernel) for key in map(DispatchKey.parse, names)}
    for key, function, label in (
        (DispatchKey.Python, handlers.python_fallback, "modes_and_types"),
        (DispatchKey.PythonTLSSnapshot, handlers.snapshot_fallback, "keys_on_entry"),
        (DispatchKey.PreDispatch, handlers.pre_dispatch_fallback, "pre_dispatch_modes"),
        (FRONT, handlers.transform_fallback, "transforms"),
        (DispatchKey.PythonDispatcher, handlers.dispatcher_fallback, "python_kernels"),
    ):
        label = "mdispatch." + label
        found[key] = LocalKernel(key, function, with_keyset=True, label=label)
    return found


BUILTIN_FALLBACKS = _builtin_fallbacks()
_BUILTIN_ENTRIES = fallback_entries(BUILTIN_FALLBACKS)


def pair(
    there: list[Registration],
    here: list[LocalKernel],
    definition: Registration | None = None,
) -> LocalKernel | AbsentKernel | None:
    """The kernel that is active at one key: the newest registration's callable. ``definition`` is
    that in effect, see Note [Kernels and definitions].

    A callable belongs to the registration it was registered with (main interpreter, and what a fork
    got from it), else, where others register, to a registration of its label, else to the first
    registration that is left: the order of imports is the same everywhere. A pure function of both
    lists, so nothing has to be kept in step when the main interpreter closes or registers again.
    """
    if not there:
        return None
    found = _callable_of_newest(there, here)
    if found is not None and found.is_outdated(definition):
        fit = [kernel for kernel in here if not kernel.is_outdated(definition)]
        other = _callable_of_newest(there, fit)
        return other or AbsentKernel(there[-1], found, definition)
    return found or AbsentKernel(there[-1], None, definition)


def _callable_of_newest(there: list[Registration], here: list[LocalKernel]) -> LocalKernel | None:
    newest = there[-1]
    for kernel in here:
        if abs(kernel.seq) == newest.seq:  # by the first rule, whatever comes of the others
            return kernel
    left = list(here)
    chosen: dict[int, LocalKernel] = {}
    rules: tuple[Callable[[Registration, LocalKernel], bool], ...] = (
        lambda fact, kernel: abs(kernel.seq) == fact.seq,
        lambda fact, kernel: kernel.seq <= 0 and kernel.label == fact.body,
        lambda fact, kernel: kernel.seq <= 0,
    )
    for belongs in rules:
        for fact in there:
            if fact.seq in chosen:
                continue
            match = next((kernel for kernel in left if belongs(fact, kernel)), None)
            if match is not None:
                chosen[fact.seq] = match
                left.remove(match)
    return chosen.get(newest.seq)


def active(
    there: Sequence[Registration],
    kind: int,
    here: Here,
    more: Callable[[], Here] | None = None,
    choosing: Choosing | None = None,
) -> dict[DispatchKey, LocalKernel | AbsentKernel | ByType]:
    """The active kernel of each key that has registrations of this kind, which come oldest first.

    ``more`` is asked for all callables when ``here`` has none that was registered with a
    registration, ``choosing`` where there are providers.
    """
    newest = {fact.key: fact for fact in there if fact.kind == kind}  # keys are their numbers
    found: dict[DispatchKey, LocalKernel | AbsentKernel | ByType] = {}
    # Only a text of several lines has types or a provider. Each first call comes here.
    several = {
        fact.key for fact in there if fact.kind == kind and "\n" in fact.text and fact.variant
    }
    if several:
        here, more = here if more is None else more(), None
    for number, fact in newest.items():
        if number in several:
            key = DispatchKey(number)
            its = [each for each in there if each.key == number and each.kind == kind]
            one = _of_several(its, here.get(key, []), choosing, definition_in(there))
            if one is not None:
                found[key] = one
            continue
        seq = fact.seq
        for kernel in here.get(number, ()):
            if kernel.seq == seq or kernel.seq == -seq:  # as pair would find it
                if kernel.definition is not None and kernel.is_outdated(definition_in(there)):
                    continue
                found[kernel.key] = kernel
                break
        else:
            if more is not None:
                here, more = more(), None
            key = DispatchKey(number)
            its = [each for each in there if each.key == number and each.kind == kind]
            paired = pair(its, here.get(key, []), definition_in(there))
            if paired is not None:
                found[key] = paired
    return found


def definition_in(there: Sequence[Registration]) -> Registration | None:
    """The definition in effect, among the registrations of an operator."""
    for fact in reversed(there):
        if fact.kind == facts.DEF:
            return fact
    return None


def _of_several(
    there: list[Registration],
    here: list[LocalKernel],
    choosing: Choosing | None,
    definition: Registration | None,
) -> LocalKernel | AbsentKernel | ByType | None:
    """What stands at a key of which some kernels are for types, or have providers: of each types,
    and of each provider, the active one counts. None if none can run.
    """
    kernels = variants_at(there, here, definition)
    if not any(kernel.provider for kernel in kernels):
        return ByType(tuple(kernels))
    assert choosing is not None  # a fallback has no provider
    found: LocalKernel | AbsentKernel | ByType | None = choosing().at_key(kernels)
    return found


def variants_at(
    there: list[Registration],
    here: list[LocalKernel],
    definition: Registration | None,
) -> list[LocalKernel | AbsentKernel]:
    """The active kernel of each variant at one key, oldest first. ``definition`` as for
    :func:`pair`.
    """
    variants: dict[str, list[Registration]] = {}
    for fact in there:
        variants.setdefault(fact.variant, []).append(fact)
    found = [
        pair(its, [kernel for kernel in here if kernel.variant == variant], definition)
        for variant, its in variants.items()
    ]
    return [kernel for kernel in found if kernel is not None]


def table_of(
    there: Sequence[Registration],
    here: Here,
    fallbacks_there: Sequence[Registration],
    fallbacks_here: Here,
    more: Callable[[], Here] | None = None,
    choosing: Choosing | None = None,
) -> DispatchTable:
    """The table of an operator with these registrations and callables; ``more`` and ``choosing`` as
    for :func:`active`.
    """
    kernels = active(there, facts.IMPL, here, more, choosing)
    fallbacks = active(fallbacks_there, facts.FALLBACK, fallbacks_here)
    if not fallbacks:  # as nearly always
        return compute_table(kernels, BUILTIN_FALLBACKS, _BUILTIN_ENTRIES)
    return compute_table(kernels, {**BUILTIN_FALLBACKS, **fallbacks})


def missing(
    registry: Facts, name: str, table: DispatchTable, raw: int, given: Given = ()
) -> errors.MissingKernelError:
    """Why a key set leads to no kernel, and which keys would. ``given`` are the classes of the
    call's tensors, where kernels are for types.
    """
    key = DispatchKeySet.from_raw(raw).highest_priority()
    slot = table.entries[table_index(key)]
    from .keys_in_words import takes_tensors  # only for an error

    with_tensors = takes_tensors(registry.find(facts.DEF, 0, name))
    available, listed = _kernels(table, with_tensors)
    listed += _left_out(registry, name, table)
    if isinstance(slot.kernel, Tie):
        return _tied(registry, name, slot.kernel, key, available, given, with_tensors)
    if isinstance(slot.kernel, ByType):
        return errors.MissingKernelError(
            f"{name} has kernels by type that serve {key.name}: the arguments of each call choose "
            f"one, so there is no one kernel to get\n  kernels at: {listed}\nCall the operator, or "
            "redispatch to the key.",
            name,
            key.name,
            available,
        )
    if slot.is_fallthrough and key is not DispatchKey.Undefined:
        return errors.MissingKernelError(
            f"{name} falls through at {key.name} ({slot.reason}): calls skip such a key, but a "
            "redispatch uses its key set as given\nTake the key out of the set: "
            f"key_set.remove({key.name!r}).",
            name,
            key.name,
            available,
        )
    absent = slot.kernel.fact if isinstance(slot.kernel, AbsentKernel) else None
    if isinstance(slot.kernel, AbsentKernel) and slot.kernel.outdated and not slot.is_fallthrough:
        return slot.kernel.outdated_error(registry, name, key.name, available)
    if key is DispatchKey.Meta and (absent is not None or slot.kernel is None):
        brings = modules_bringing(registry, absent) if absent is not None else []
        return missing_fake(registry, name, available, listed, absent, *brings[-1:])
    if absent is not None and not slot.is_fallthrough:
        return _not_here(registry, name, absent, key, available)
    if slot.reason == "ambiguous autogradother":
        return errors.AmbiguousKernelError(
            f"{name} has kernels at CompositeImplicitAutograd and at a backend behind "
            "AutogradOther: mdispatch cannot decide which of them runs\n  kernels at: "
            f"{listed}\nRegister one at AutogradOther.",
            name,
            key.name,
            available,
        )
    if key is DispatchKey.Undefined:
        short = name.partition("::")[2]
        what = f"{name} has no kernel for a call whose arguments carry no dispatch keys"
        how, more = "one without a key", " It also serves the keys that have no kernel."
        if not with_tensors:
            what, how, more = f"{name} has no kernel that a call can come to", "one", ""
            if table.kernels:
                what += ": no argument is a Tensor, so calls have no keys"
        if given:
            what = f"{name} has no kernel for {given_in_words(given)}"
        return errors.MissingKernelError(
            f"{what}\n"
            f"  kernels at: {listed}{registry.versions(name)}\nRegister {how}: "
            f'lib.impl("{short}", function).{more}',
            name,
            key.name,
            available,
        )
    what = f"{name} has no kernel that serves {key.name}"
    served = any(is_included_in_alias(key, alias) for alias in _ALIASES)
    where = f"{key.name}, or at an alias key that stands for it" if served else key.name
    if is_included_in_alias(key, DispatchKey.CompositeExplicitAutograd):
        where += " (CompositeExplicitAutograd for every backend)"
    if given:
        what, where = f"{what} for {given_in_words(given)}", f"{where}, for these types or for all"
        listed += _not_bases(table, given)
    return errors.MissingKernelError(
        f"{what}\n  kernels at: {listed}{registry.versions(name)}\nRegister one at {where}.",
        name,
        key.name,
        available,
    )


def _left_out(registry: Facts, name: str, table: DispatchTable) -> str:
    """The providers at keys that have no kernel: those that are not available, or are disabled."""
    told = [
        f"{fact.provider} at {DispatchKey(fact.key).name}" + f" ({fact.lacks})" * bool(fact.lacks)
        for fact in registry.registrations(name)[2]
        if fact.provider and fact.key not in table.wide.kernels
    ]
    if not told:
        return ""
    return f"\n  left out: {', '.join(told[:8])} (Registry.why and mdispatch why say why)"


def _not_bases(table: DispatchTable, given: Given) -> str:
    """Why a class that looks as if it were one of the types is none: virtual subclasses."""
    by_type = [each for each in table.wide.kernels.values() if isinstance(each, ByType)]
    typed = [kernel for each in by_type for kernel in each.kernels]
    return "".join(
        f"\n  {name_of_class(cls)} is a virtual subclass of {name_of_class(wanted)}: only classes "
        "that are derived from it count"
        for cls, wanted in virtual_bases(given, typed)
    )


def _tied(
    registry: Facts,
    name: str,
    tie: Tie,
    key: DispatchKey,
    available: list[str],
    given: Given,
    with_tensors: bool,
) -> errors.AmbiguousTypesError:
    _, _, there = registry.registrations(name)
    where = {fact.seq: fact.where for fact in there}
    locations = []
    for kernel in tie.kernels:
        # A kernel that was verified here does not know its registration.
        its = kernel.fact.seq if isinstance(kernel, AbsentKernel) else abs(kernel.seq)
        locations.append(where.get(its, "verified here"))
    listed = "".join(
        f"\n  {in_words(kernel)}    ({location})"
        for kernel, location in zip(tie.kernels, locations, strict=True)
    )
    at = next((f" at {k.key.name}" for k in tie.kernels if isinstance(k, LocalKernel)), "")
    at *= with_tensors
    return errors.AmbiguousTypesError(
        f"{name} has several kernels{at} that fit {given_in_words(given)}, and none of them is the "
        f"most specific{listed}\nRegister one for just these types.",
        name,
        key.name,
        available,
        types=tuple(text_of_types(kernel.types) for kernel in tie.kernels),
        locations=tuple(locations),
    )


def _kernels(table: DispatchTable, with_tensors: bool) -> tuple[list[str], str]:
    """The keys of the kernels that could run here, and all keys in words."""
    from .keys_in_words import key_in_words

    here: list[str] = []
    listed: list[str] = []
    for key, there in table.wide.kernels.items():
        kernels = there.kernels if isinstance(there, ByType) else (there,)
        absent = [isinstance(kernel, AbsentKernel) for kernel in kernels]
        if not all(absent):
            here.append(key.name)
        for kernel, is_absent in zip(kernels, absent, strict=True):
            types = text_of_types(kernel.types) if isinstance(there, ByType) else ""
            location = kernel_name(key_in_words(key.name, with_tensors), types)
            listed.append(f"{location} (not loaded here)" if is_absent else location)
    return here, ", ".join(listed) or "none"


def _attributes(definition: Registration) -> str:
    tags = ", ".join(definition.tags)
    return f" with {definition.alias_analysis}, {f'tags {tags}' if tags else 'no tags'}"


def _not_here(
    registry: Facts,
    name: str,
    fact: Registration,
    key: DispatchKey,
    available: list[str],
) -> errors.LocalKernelMissingError:
    modules = modules_bringing(registry, fact)
    module = modules[0] if modules else ""
    advice = "Import that module here too."
    if modules:
        allowed = ", ".join(map(repr, modules))
        advice = f"Import {module} here too, or let calls do it: allow_imports({allowed})."
    lacks = "this interpreter has not imported the module that registers it"
    if module in sys.modules:
        lacks = f"{module}, which is imported here, did not register it"
        advice = (
            "Is it a version without that? Import the one that has it."
            if registry.keeps_own
            else "A module must register the same everywhere: warm_up tells all that differs."
        )
    if fact.body.startswith(C_LABEL):
        lacks = "this process has not loaded the library that contains it"
        advice = "Load it in any interpreter of this process: ops.load_library(path)."
    if len(modules) > 1:
        advice = f"The operator names {module}, and {modules[1]} registered the kernel. {advice}"
    lacks, advice = _why_refused(registry, fact) or (lacks, advice)
    return errors.LocalKernelMissingError(
        f"{name} has a kernel at {DispatchKey(fact.key).name} ({fact.body}), but {lacks}\n"
        f"  registered at {fact.where} by {process_at(fact.where, fact.pid)}\n{advice}",
        name,
        key.name,
        available,
        where=fact.where,
        module=module,
    )


def _why_refused(registry: Facts, fact: Registration) -> tuple[str, str] | None:
    """What this interpreter lacks, and the lines that follow on where the kernel comes from, where
    its own registration was refused; None where it was not.
    """
    from ..facts.differing import refused_here  # loaded only for an error

    refused = refused_here(registry, fact)
    if refused is None:
        return None
    return (
        "this interpreter was refused where it would have registered it",
        f"  refused: {refused.text.partition(chr(10))[0]}    ({refused.where})\n"
        "Mend that first: warm_up tells all that differs.",
    )


def missing_at(
    registry: Facts, name: str, table: DispatchTable, key: DispatchKey, given: Given = ()
) -> errors.MissingKernelError:
    """Why nothing can be called for just this key. ``given`` as for :func:`missing`."""
    available, listed = _kernels(table, True)
    kernel = table.at(key)
    if isinstance(kernel, Tie):
        return _tied(registry, name, kernel, key, available, given, True)
    if isinstance(kernel, AbsentKernel) and not kernel.is_fallthrough:
        if kernel.outdated is not None:
            return kernel.outdated_error(registry, name, key.name, available)
        return _not_here(registry, name, kernel.fact, key, available)
    what = "falls through" if kernel is not None else "has neither a kernel nor a fallback"
    if given:
        what = f"{what} for {given_in_words(given)}"
    return errors.MissingKernelError(
        f"{name} {what} at exactly {key.name}\n  kernels at: {listed}\n"
        "Redispatch with a key set to reach the kernels of alias keys.",
        name,
        key.name,
        available,
    )
