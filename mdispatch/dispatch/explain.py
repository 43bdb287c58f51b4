"""Text for people about registrations and their consequences: dumps, tables, and the way of a key
set to its kernel.

All of it is computed from the registrations of the registry alone, so every member sees the same,
whichever modules it has imported. A kernel here is a registration; it stands for the callables of
all interpreters.
"""

from __future__ import annotations

from .. import facts, seam
from ..errors import OperatorNotFoundError
from ..errors.locations import process_at
from ..errors.words import nearest, shown
from ..keys import DispatchKeySet
from ..keys.numbers import RUNTIME_KEYS, DispatchKey, highest_index
from ..schema import parse_schema
from ..schema.names import OperatorName
from .by_type import ByType, Plain, Tie, given_in_words, split_types
from .context.guards import excluded_keys, included_keys
from .kernels import (
    FALLBACK_NAME,
    FALLTHROUGH,
    LocalKernel,
    OneOfSeveral,
    Provider,
    fallthrough_kernel,
)
from .keys_in_words import NO_KEYS, takes_tensors
from .pairing import missing, table_of
from .table import serves

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..errors import MdispatchError
    from ..facts import Registration
    from ..facts.abc import Facts
    from ..keys import DispatchKeySet
    from .abc import Chooser, KernelsEntry
    from .by_type import Given
    from .fallbacks import Fallbacks
    from .kernels import LocalKernel
    from .table import DispatchTable

__all__ = [
    "BUILT_IN",
    "Explanation",
    "RegisteredKernel",
    "TableRow",
    "are_active",
    "computed",
    "dangling",
    "dump",
    "dump_table",
    "existing",
    "found",
    "kernels_by_key",
    "listed",
    "operators",
    "rows_of",
    "table_rows",
    "why",
]


# --- the way of one call --------------------------------------------------------------------------

#: The location of a fallback that mdispatch brings and nobody registered.
BUILT_IN = "built in"


class RegisteredKernel(LocalKernel):
    """The kernel of a registration, wherever its callable is."""

    __slots__ = ("fact",)

    def __init__(self, fact: Registration) -> None:
        falls_through = fact.body == FALLTHROUGH
        super().__init__(
            DispatchKey(fact.key),
            fallthrough_kernel if falls_through else _elsewhere,
            signature=fact.signature,
            label=fact.body,
            types=split_types(fact.types),
            provider=Provider.of(fact.provider_text),
        )
        self.seq = fact.seq
        self.fact = fact


def _elsewhere(*args: object, **kwargs: object) -> None:
    raise NotImplementedError("tables for people have no callables")


class TableRow:
    """One slot of a computed table: what runs at ``key``, by which rule (``reason``), and the
    location at which it was registered.

    ``kernel`` is its label, "fallthrough" where calls pass the key by, "" where there is nothing to
    run. ``registration`` is its registration; None if there is nothing, or a builtin fallback, or
    several kernels of which the types of a call, or predicates, choose one: then ``kernel`` and
    ``where`` name them all.
    """

    __slots__ = ("is_fallthrough", "kernel", "key", "reason", "registration", "where")

    def __init__(self, key: DispatchKey, reason: str, kernel: object, is_fallthrough: bool) -> None:
        fact = kernel.fact if isinstance(kernel, RegisteredKernel) else None
        self.key = key
        self.reason = reason
        self.registration = fact
        self.kernel = kernel.label if isinstance(kernel, (LocalKernel, ByType, Tie)) else ""
        if isinstance(kernel, LocalKernel):
            self.kernel = facts.kernel_name(self.kernel, "", kernel.provider_name)
        self.where = fact.where if fact is not None else "" if kernel is None else BUILT_IN
        if isinstance(kernel, (ByType, Tie, OneOfSeveral)):
            self.where = ", ".join(each.fact.where for each in kernel.kernels)
        self.is_fallthrough = is_fallthrough

    def __repr__(self) -> str:
        return f"<{self.key.name}: {self.kernel or 'nothing'} ({self.reason})>"


class Explanation:
    """How a key set leads to its kernel. ``str`` of it is the text for people.

    ``given`` is the key set asked about, ``types`` the classes of the call's tensors by name, "" if
    none were given; ``included`` and ``excluded`` are the thread's sets; ``added`` and ``taken``
    are the keys that these add and take away, ``passed_by`` those that fall through, ``key_set`` is
    what is left and ``key`` its highest key. ``rules`` are the rules tried there, up to the one
    that decides, and ``row`` is what runs. ``providers`` are those of the key, each with what
    becomes of it and why, in their order. ``error`` is what a call raises instead, also where
    every module is imported; None when it raises nothing. If this interpreter has no such kernel
    and others serve it, ``owners`` are these with to whom and since when, the newest first, and
    ``route`` says in words where a call runs now, or why it is refused; else they are empty.
    ``has_keys`` is False where no argument is a Tensor and no key was given or added.
    """

    __slots__ = (
        "_what",
        "added",
        "error",
        "excluded",
        "given",
        "has_keys",
        "included",
        "key",
        "key_set",
        "operator",
        "owners",
        "passed_by",
        "providers",
        "route",
        "row",
        "rules",
        "taken",
        "types",
    )

    def __init__(
        self,
        registry: Facts,
        operator: str,
        given: DispatchKeySet,
        included: DispatchKeySet,
        excluded: DispatchKeySet,
        table: DispatchTable,
        undefined: MdispatchError | None,
        types: Given = (),
        chooser: Chooser | None = None,
        kernels: Sequence[RegisteredKernel] = (),
        with_tensors: bool = True,
    ) -> None:
        self.operator = operator
        self.route = ""
        self.owners: tuple[tuple[str, str], ...] = ()
        self.types = given_in_words(types)
        self._what = "values" if isinstance(types, Plain) else "tensors"
        table = table.for_types(types) if types else table
        self.given = given
        self.included = included
        self.excluded = excluded
        wanted = given | included
        before = wanted - excluded
        self.key_set = DispatchKeySet.from_raw(table.effective(before.raw))
        self.added = tuple(key for key in wanted if not given.has(key))
        self.taken = tuple(key for key in wanted if not before.has(key))
        self.passed_by = tuple(key for key in before if not self.key_set.has(key))
        self.key = RUNTIME_KEYS[highest_index(self.key_set.raw)]
        self.has_keys = with_tensors or self.key is not DispatchKey.Undefined
        self.rules = table.why(self.key)
        near = [k for k in kernels if k.key is self.key or serves(k.key, self.key)]
        self.providers = () if chooser is None else tuple(chooser.verdicts(near, types or None))
        slot = table.lookup(self.key_set.raw)
        self.row = TableRow(self.key, slot.reason, slot.kernel, slot.is_fallthrough)
        self.error = undefined
        nothing = slot.kernel is None or slot.is_fallthrough or isinstance(slot.kernel, Tie)
        if undefined is None and nothing:
            given_types = types if table.wide is not table else ()
            self.error = missing(registry, operator, table, self.key_set.raw, given_types)

    def steps(self) -> tuple[tuple[str, str], ...]:
        """From what the arguments carry to the key that decides, in words: (step, keys)."""
        return (
            ("arguments carry", listed(self.given)),
            ("the thread adds", listed(self.added)),
            ("the thread excludes", listed(self.taken)),
            ("fall through", listed(self.passed_by)),
            ("left", listed(self.key_set)),
            ("highest", self.key.name),
        )

    def __str__(self) -> str:
        types = f", {self._what} of {self.types}" if self.types else ""
        if self.has_keys:
            lines = [f"{self.operator} with {listed(self.given)}{types}"]
            lines += [f"  {step:<20} {keys}" for step, keys in self.steps()]
            lines.append(f"  rules at {self.key}, up to the one that decides:")
            lines += [f"    {rule}" for rule in self.rules]
        else:
            lines = [f"{self.operator}{f' with {types[2:]}' if types else ''}", f"  {NO_KEYS}"]
        if self.providers:
            lines.append("  its providers, in their order:")
            lines += [f"    {name}: {verdict}" for name, verdict in self.providers]
        if self.error is not None:
            lines.append(f"  a call raises {type(self.error).__name__}:")
            lines += [f"    {line}" for line in str(self.error).split("\n")]
        else:
            lines.append(f"  runs {self.row.kernel}    ({self.row.where})")
        if self.owners:
            lines.append("  served by, the newest first:")
            lines += [f"    {owner}: {how}" for owner, how in self.owners]
        if self.route:
            lines.append(f"  {self.route}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{self.operator} with {listed(self.given)} leads to {self.row!r}>"


def listed(keys: Iterable[DispatchKey]) -> str:
    """Keys in words."""
    return ", ".join(key.name for key in keys) or "no key"


# --- which operators there are --------------------------------------------------------------------


def _by_name(registry: Facts) -> dict[str, list[Registration]]:
    _, _, there = registry.registrations()
    by_name: dict[str, list[Registration]] = {}
    for fact in there:
        if fact.kind in (facts.DEF, facts.IMPL, facts.NAME):
            by_name.setdefault(fact.name, []).append(fact)
    return by_name


def operators(registry: Facts) -> list[str]:
    """The names of the operators that are defined, in the order of their definitions."""
    _, _, there = registry.registrations()
    definitions = sorted((f.seq, f.name) for f in there if f.kind == facts.DEF)
    return [name for _, name in definitions]


def namespaces(registry: Facts) -> list[str]:
    """See Registry.namespaces."""
    return sorted({name.partition("::")[0] for name in operators(registry)})


def dangling(registry: Facts) -> list[str]:
    """The names that have kernels and no definition, sorted. (c10: findDanglingImpls)"""
    return sorted(
        name
        for name, there in _by_name(registry).items()
        if {f.kind for f in there} & {facts.DEF, facts.IMPL} == {facts.IMPL}
    )


def found(registry: Facts, name: str) -> list[Registration]:
    """All registrations of one operator, oldest first; [] when there are none."""
    _, _, there = registry.registrations(str(OperatorName.parse(name)))
    return [f for f in there if f.kind in (facts.DEF, facts.IMPL, facts.NAME)]


def existing(registry: Facts, name: str) -> list[Registration]:
    there = found(registry, name)
    if not there:
        raise _not_found(OperatorName.parse(name), sorted(_by_name(registry)))
    return there


def _not_found(wanted: OperatorName, names: list[str]) -> OperatorNotFoundError:
    """The error with the nearest names: other overloads, then the same name in other namespaces,
    then similar spellings.
    """
    parsed = [OperatorName.parse(name) for name in names]
    near = [str(other) for other in parsed if other.qualified == wanted.qualified]
    near += [str(other) for other in parsed if other.name == wanted.name]
    if wanted.namespace:
        near += nearest(str(wanted), names)
    else:
        spelled = nearest(wanted.name, {other.name for other in parsed})
        near += [str(other) for word in spelled for other in parsed if other.name == word]
    near = list(dict.fromkeys(near))[:5]
    namespaces = sorted({other.namespace for other in parsed})
    if near:
        hint = f"did you mean {', '.join(near)}?"
    elif wanted.namespace in namespaces:
        its = [str(other) for other in parsed if other.namespace == wanted.namespace]
        hint = f"namespace {wanted.namespace} has {_some(its)}"
    elif namespaces:
        hint = f"there are operators in {_some(namespaces)}"
    else:
        hint = "nothing is registered here: import the modules that register operators"
    text = f"there is no operator {shown(str(wanted))}; {hint}"
    return OperatorNotFoundError(text, str(wanted), near)


def _some(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + ", ..." * (len(names) > limit)


# --- the canonical state --------------------------------------------------------------------------


def dump(registry: Facts, name: str) -> str:
    """The registrations of an operator as text: its definition, then its kernels by key, in the
    order of the table and alias keys last; for each key the newest first. Of each types the newest
    is active, and so is each provider that is available. (c10: dumpState)
    """
    there = existing(registry, name)
    lines = []
    for fact in there:
        if fact.kind == facts.DEF:
            lines.append(fact.body)
            lines.append(f"  defined at {_origin(fact)}")
            if fact.alias_analysis != "FROM_SCHEMA":
                lines.append(f"  alias analysis {fact.alias_analysis}")
            if fact.tags:
                lines.append(f"  tags {', '.join(fact.tags)}")
    if not lines:
        lines.append(f"{there[0].name}, which is not defined")
    stub = registry.find(facts.PYSTUB, 0, there[0].name)
    if stub is not None:
        module = stub.body.partition("\n")[0]
        lines.append(f"  fake kernels in module {module}, named at {_origin(stub)}")
    lines += [f"  name held at {_origin(fact)}" for fact in there if fact.kind == facts.NAME]
    for key, kernels in kernels_by_key(there):
        for fact, active in zip(kernels, are_active(kernels), strict=True):
            alias = " (alias)" if key.is_alias else ""
            inactive = "" if active else " (inactive)"
            own = f" {fact.signature}" if fact.signature else ""
            kernel = facts.kernel_name(f"{fact.body}{own}", fact.types, fact.provider)
            provider = Provider.of(fact.provider_text)
            if provider is not None:
                kernel += f", order {provider.order}"
                kernel += f", not available: {provider.lacks}" * bool(provider.lacks)
            lines.append(f"  {key}{alias}{inactive}: {kernel}    ({_origin(fact)})")
    return "\n".join(lines)


def are_active(kernels: Sequence[Registration]) -> list[bool]:
    """Which kernels of one key, newest first, are active: the newest of each types, and each
    provider that is available.
    """
    newest = {fact.variant: fact for fact in reversed(kernels)}
    return [newest[fact.variant] is fact and not _lacks(fact) for fact in kernels]


def _lacks(fact: Registration) -> bool:
    provider = Provider.of(fact.provider_text)
    return provider is not None and bool(provider.lacks)


def kernels_by_key(there: Sequence[Registration]) -> list[tuple[DispatchKey, list[Registration]]]:
    """The kernels among these registrations by key: runtime keys in table order, then alias keys.
    The newest kernel of a key, which is the active one, comes first.
    """
    by_key: dict[DispatchKey, list[Registration]] = {}
    for fact in there:
        if fact.kind == facts.IMPL:
            by_key.setdefault(DispatchKey(fact.key), []).insert(0, fact)
    order = {key: place for place, key in enumerate(RUNTIME_KEYS)}
    return sorted(by_key.items(), key=lambda item: (order.get(item[0], 1000), int(item[0])))


def _origin(fact: Registration) -> str:
    return f"{fact.where}, {process_at(fact.where, fact.pid)}"


# --- the table ------------------------------------------------------------------------------------


def _table(
    registry: Facts, there: Sequence[Registration], chooser: Chooser | None = None
) -> DispatchTable:
    """Unless there is a chooser, the providers are in the order that the main interpreter has
    set.
    """
    _, _, fallbacks = registry.registrations(FALLBACK_NAME)
    if chooser is None and any(fact.provider for fact in there):
        chooser = seam.at("a choice among kernels")(registry, there[0].name)
    return computed(there, fallbacks, chooser)


def computed(
    there: Sequence[Registration],
    fallbacks: Sequence[Registration],
    chooser: Chooser | None = None,
) -> DispatchTable:
    """The table that these registrations of one operator and those fallbacks give. Without a
    chooser nobody asks for a provider.
    """
    if chooser is None and any(fact.provider for fact in there):
        chooser = seam.at("a choice among kernels")(None, there[0].name)
    return table_of(
        there,
        _kernels(there, facts.IMPL),
        fallbacks,
        _kernels(fallbacks, facts.FALLBACK),
        None,
        None if chooser is None else lambda: chooser,
    )


def _kernels(there: Sequence[Registration], kind: int) -> dict[DispatchKey, list[LocalKernel]]:
    kernels: dict[DispatchKey, list[LocalKernel]] = {}
    for fact in there:
        if fact.kind == kind:
            kernels.setdefault(DispatchKey(fact.key), []).append(RegisteredKernel(fact))
    return kernels


def table_rows(registry: Facts, name: str) -> list[TableRow]:
    """One row per runtime key, in table order, also for keys without a kernel."""
    return rows_of(_table(registry, existing(registry, name)))


def rows_of(table: DispatchTable) -> list[TableRow]:
    return [
        TableRow(key, entry.reason, entry.kernel, entry.is_fallthrough)
        for key, entry in zip(RUNTIME_KEYS, table.entries, strict=True)
    ]


def dump_table(registry: Facts, name: str) -> str:
    """The computed table as text, one line per runtime key that has something. (c10:
    dumpComputedTable)
    """
    rows = [row for row in table_rows(registry, name) if row.reason != "missing"]
    widths = [max(len(text) for text in texts) for texts in zip(*map(_cells, rows), strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) for text, width in zip(_cells(row), widths, strict=True)
        ).rstrip()
        for row in rows
    )


def _cells(row: TableRow) -> tuple[str, str, str, str]:
    return row.key.name, row.kernel or "-", row.reason, row.where


def why(
    registry: Facts,
    name: str,
    key_set: DispatchKeySet,
    *,
    included: DispatchKeySet | None = None,
    excluded: DispatchKeySet | None = None,
    types: tuple[type, ...] = (),
    preferences: Fallbacks | None = None,
    entry: KernelsEntry | None = None,
) -> Explanation:
    """How a call with these keys comes to its kernel. Without ``included`` and ``excluded`` it uses
    this thread's sets. ``types`` are the classes of its tensors: one for all, or one for each
    Tensor argument; without Tensor arguments, those of the values that choose. Without ``types``
    kernels that are chosen by type are told together. The ``preferences`` of this interpreter, and
    the guards of this thread, say in which order providers come; ``entry``, the operator's entry in
    this interpreter, which of those that come later it has met.
    """
    there = existing(registry, name)
    named = [RegisteredKernel(fact) for fact in there if fact.kind == facts.IMPL and fact.provider]
    chooser = None
    if named:
        make = seam.at("a choice among kernels")
        chooser = make(registry, there[0].name, preferences, with_guards=True, entry=entry)
    definition = next((fact for fact in there if fact.kind == facts.DEF), None)
    schema = parse_schema(definition.body) if types and definition is not None else None
    if len(types) == 1 and schema is not None:
        types *= len(schema.type_arguments)
    given: Given = tuple((each,) for each in types)
    if schema is not None and not schema.dispatch_arguments:
        given = Plain(given)
    return Explanation(
        registry,
        there[0].name,
        key_set,
        included_keys() if included is None else included,
        excluded_keys() if excluded is None else excluded,
        _table(registry, there, chooser),
        _undefined(there),
        given,
        chooser,
        named,
        takes_tensors(definition),
    )


def _undefined(there: list[Registration]) -> OperatorNotFoundError | None:
    """The error of an operator that nobody has defined, so that it cannot be looked up; else
    None.
    """
    if any(fact.kind == facts.DEF for fact in there):
        return None
    name = there[0].name
    kernels = [f"{f.key} ({f.where})" for f in there if f.kind == facts.IMPL]
    return OperatorNotFoundError(
        f"{name} is not defined: there is no schema to call it by\n"
        f"  kernels at: {', '.join(kernels) or 'none'}\n"
        "Define it in the DEF or a FRAGMENT library of its namespace.",
        name,
    )
