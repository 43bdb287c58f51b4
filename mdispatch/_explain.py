"""What is registered and what follows from it, for people: dumps, tables and the way of a key set to
its kernel.

All of it is computed from the facts of the registry, so every member of it sees the same, whatever
modules it has imported.
"""

from __future__ import annotations

from . import _registry as facts
from ._kernels import FALLBACK_NAME
from ._keys import RUNTIME_KEYS, DispatchKey, highest_index
from ._nearest import nearest, shown
from ._pairing import AbsentKernel, table_of
from ._schema_names import OperatorName
from .errors import OperatorNotFoundError
from .guards import excluded_keys, included_keys
from .keys import DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._registry import Registration
    from ._table import DispatchTable
    from .registry import Registry

__all__ = ["Explanation", "TableRow", "dangling", "dump", "dump_table", "found", "operators"]
__all__ += ["table", "table_rows", "why"]

BUILT_IN = "built in"


class TableRow:
    """One slot of a computed table: what runs at ``key``, by which rule (``reason``), and the place
    at which it was registered. ``kernel`` is its label, "" where there is none.
    """

    __slots__ = ("is_fallthrough", "kernel", "key", "reason", "registration", "where")

    def __init__(self, key: DispatchKey, reason: str, kernel: object, is_fallthrough: bool) -> None:
        fact = kernel.fact if isinstance(kernel, AbsentKernel) else None
        self.key = key
        self.reason = reason
        self.registration = fact
        self.kernel = fact.body if fact is not None else "" if kernel is None else "fallthrough"
        self.where = fact.where if fact is not None else "" if kernel is None else BUILT_IN
        self.is_fallthrough = is_fallthrough

    def __repr__(self) -> str:
        return f"<{self.key.name}: {self.kernel or 'nothing'} ({self.reason})>"


class Explanation:
    """How a key set leads to its kernel. ``str`` of it is the text for people.

    ``given`` is the key set asked about, ``included`` and ``excluded`` are this thread's sets,
    ``passed_by`` the keys that fall through, ``key_set`` what is left, ``key`` its highest key,
    ``rules`` the rules tried there, and ``row`` what runs.
    """

    __slots__ = (
        "excluded",
        "given",
        "included",
        "key",
        "key_set",
        "operator",
        "passed_by",
        "row",
        "rules",
    )

    def __init__(
        self,
        operator: str,
        given: DispatchKeySet,
        included: DispatchKeySet,
        excluded: DispatchKeySet,
        table: DispatchTable,
    ) -> None:
        self.operator = operator
        self.given = given
        self.included = included
        self.excluded = excluded
        before = (given | included) - excluded
        self.key_set = DispatchKeySet.from_raw(table.effective(before.raw))
        self.passed_by = tuple(key for key in before if not self.key_set.has(key))
        self.key = RUNTIME_KEYS[highest_index(self.key_set.raw)]
        self.rules = table.why(self.key)
        slot = table.lookup(self.key_set.raw)
        self.row = TableRow(self.key, slot.reason, slot.kernel, slot.is_fallthrough)

    def __str__(self) -> str:
        taken = [key for key in self.given | self.included if self.excluded.has(key)]
        lines = [
            f"{self.operator} with {_listed(self.given)}",
            f"  this thread adds      {_listed(self.included)}",
            f"  this thread excludes  {_listed(taken)}",
            f"  falls through         {_listed(self.passed_by)}",
            f"  left                  {_listed(self.key_set)}",
            f"  highest               {self.key}",
            f"  rules at {self.key}, up to the one that decides:",
            *(f"    {rule}" for rule in self.rules),
        ]
        if self.row.kernel:
            lines.append(f"  runs {self.row.kernel}    ({self.row.where})")
        else:
            lines.append(f"  runs nothing: {self.row.reason}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<{self.operator} with {_listed(self.given)} leads to {self.row!r}>"


def _listed(keys: Iterable[DispatchKey]) -> str:
    return ", ".join(key.name for key in keys) or "no key"


# --- which operators there are --------------------------------------------------------------------


def _by_name(registry: Registry) -> dict[str, list[Registration]]:
    _, _, there = registry._facts.registrations()
    found: dict[str, list[Registration]] = {}
    for fact in there:
        if fact.kind in (facts.DEF, facts.IMPL, facts.NAME):
            found.setdefault(fact.name, []).append(fact)
    return found


def operators(registry: Registry) -> list[str]:
    """The names of the operators that are defined, in the order of their definitions."""
    _, _, there = registry._facts.registrations()
    definitions = sorted((f.seq, f.name) for f in there if f.kind == facts.DEF)
    return [name for _, name in definitions]


def dangling(registry: Registry) -> list[str]:
    """The names that have kernels and no definition, sorted. (c10: findDanglingImpls)"""
    return sorted(
        name
        for name, there in _by_name(registry).items()
        if {f.kind for f in there} & {facts.DEF, facts.IMPL} == {facts.IMPL}
    )


def found(registry: Registry, name: str) -> list[Registration]:
    """All facts of one operator, oldest first; [] when there are none."""
    full = str(OperatorName.parse(name))
    _, _, there = registry._facts.registrations(full)
    return [f for f in there if f.kind in (facts.DEF, facts.IMPL, facts.NAME)]


def _existing(registry: Registry, name: str) -> list[Registration]:
    there = found(registry, name)
    if not there:
        names = sorted(_by_name(registry))
        near = nearest(name, names)
        hint = f"did you mean {', '.join(near)}?" if near else f"{len(names)} others are there"
        raise OperatorNotFoundError(f"there is no operator {shown(name)}; {hint}", name, near)
    return there


# --- the canonical state --------------------------------------------------------------------------


def dump(registry: Registry, name: str) -> str:
    """What is registered for an operator: its definition, then its kernels by key, in the order of
    the table and alias keys last, of each key the newest first. (c10: dumpState)
    """
    there = _existing(registry, name)
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
    names = [f for f in there if f.kind == facts.NAME]
    lines += [f"  name held at {_origin(fact)}" for fact in names]
    for key, kernels in kernels_by_key(there):
        for position, fact in enumerate(kernels):
            alias = " (alias)" if key.is_alias else ""
            inactive = " (inactive)" if position else ""
            own = f" {fact.signature}" if fact.signature else ""
            lines.append(f"  {key}{alias}{inactive}: {fact.body}{own}    ({_origin(fact)})")
    return "\n".join(lines)


def kernels_by_key(there: list[Registration]) -> list[tuple[DispatchKey, list[Registration]]]:
    """The kernels among these facts by key, runtime keys in table order before alias keys, the
    newest of a key first.
    """
    by_key: dict[DispatchKey, list[Registration]] = {}
    for fact in there:
        if fact.kind == facts.IMPL:
            by_key.setdefault(DispatchKey(fact.key), []).insert(0, fact)
    order = {key: place for place, key in enumerate(RUNTIME_KEYS)}
    return sorted(by_key.items(), key=lambda item: (order.get(item[0], 1000), int(item[0])))


def _origin(fact: Registration) -> str:
    return f"{fact.where}, pid {fact.pid}"


# --- the table ------------------------------------------------------------------------------------


def table(registry: Registry, name: str) -> DispatchTable:
    """The computed table of an operator, from facts alone: its kernels stand for those of every
    interpreter.
    """
    there = _existing(registry, name)
    _, _, fallbacks = registry._facts.registrations(FALLBACK_NAME)
    return table_of(there, {}, fallbacks, {})


def table_rows(registry: Registry, name: str) -> list[TableRow]:
    """One row per runtime key, in table order, those without a kernel too."""
    entries = table(registry, name).entries
    return [
        TableRow(key, entry.reason, entry.kernel, entry.is_fallthrough)
        for key, entry in zip(RUNTIME_KEYS, entries, strict=True)
    ]


def dump_table(registry: Registry, name: str) -> str:
    """The computed table as text, one line per runtime key that has a kernel. (c10:
    dumpComputedTable)
    """
    rows = [row for row in table_rows(registry, name) if row.reason != "missing"]
    if not rows:
        return "(no kernel at any key)"
    widths = [max(len(text) for text in texts) for texts in zip(*map(_cells, rows), strict=True)]
    return "\n".join(
        "  ".join(
            text.ljust(width) for text, width in zip(_cells(row), widths, strict=True)
        ).rstrip()
        for row in rows
    )


def _cells(row: TableRow) -> tuple[str, str, str, str]:
    return row.key.name, row.kernel or "-", row.reason, row.where


def why(registry: Registry, name: str, key_set: DispatchKeySet) -> Explanation:
    """How a call with these keys, in this thread, comes to its kernel."""
    computed = table(registry, name)
    full = str(OperatorName.parse(name))
    return Explanation(full, key_set, included_keys(), excluded_keys(), computed)
