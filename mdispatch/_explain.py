"""What is registered and what follows from it, for people: dumps, tables, and the way of a key set
to its kernel.

All of it is computed from the facts of the registry, so every member of it sees the same, whatever
modules it has imported. A kernel stands for those of all interpreters that have it.
"""

from __future__ import annotations

from . import _registry as facts
from ._explanation import Explanation, RegisteredKernel, TableRow
from ._kernels import FALLBACK_NAME
from ._keys import RUNTIME_KEYS, DispatchKey
from ._nearest import nearest, shown
from ._pairing import table_of
from ._schema_names import OperatorName
from .errors import OperatorNotFoundError
from .guards import excluded_keys, included_keys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._kernels import LocalKernel
    from ._registry import Registration
    from ._table import DispatchTable
    from .keys import DispatchKeySet
    from .registry import Registry

__all__ = ["Explanation", "TableRow", "computed", "dangling", "dump", "dump_table", "existing"]
__all__ += ["found", "kernels_by_key", "operators", "rows_of", "table_rows", "why"]


# --- which operators there are --------------------------------------------------------------------


def _by_name(registry: Registry) -> dict[str, list[Registration]]:
    _, _, there = registry._facts.registrations()
    by_name: dict[str, list[Registration]] = {}
    for fact in there:
        if fact.kind in (facts.DEF, facts.IMPL, facts.NAME):
            by_name.setdefault(fact.name, []).append(fact)
    return by_name


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
    _, _, there = registry._facts.registrations(str(OperatorName.parse(name)))
    return [f for f in there if f.kind in (facts.DEF, facts.IMPL, facts.NAME)]


def existing(registry: Registry, name: str) -> list[Registration]:
    there = found(registry, name)
    if not there:
        raise _not_found(OperatorName.parse(name), sorted(_by_name(registry)))
    return there


def _not_found(wanted: OperatorName, names: list[str]) -> OperatorNotFoundError:
    """With the nearest names: other overloads, then the same name elsewhere, then what is spelled
    nearly so.
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
        hint = "nothing is registered here: import the modules that do"
    text = f"there is no operator {shown(str(wanted))}; {hint}"
    return OperatorNotFoundError(text, str(wanted), near)


def _some(names: list[str], limit: int = 8) -> str:
    return ", ".join(names[:limit]) + ", ..." * (len(names) > limit)


# --- the canonical state --------------------------------------------------------------------------


def dump(registry: Registry, name: str) -> str:
    """What is registered for an operator: its definition, then its kernels by key, in the order of
    the table and alias keys last, of each key the newest first. (c10: dumpState)
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
    stub = registry._facts.find(facts.PYSTUB, 0, there[0].name)
    if stub is not None:
        module = stub.body.partition("\n")[0]
        lines.append(f"  fake kernels in module {module}, named at {_origin(stub)}")
    lines += [f"  name held at {_origin(fact)}" for fact in there if fact.kind == facts.NAME]
    for key, kernels in kernels_by_key(there):
        for position, fact in enumerate(kernels):
            alias = " (alias)" if key.is_alias else ""
            inactive = " (inactive)" if position else ""
            own = f" {fact.signature}" if fact.signature else ""
            lines.append(f"  {key}{alias}{inactive}: {fact.body}{own}    ({_origin(fact)})")
    return "\n".join(lines)


def kernels_by_key(there: Sequence[Registration]) -> list[tuple[DispatchKey, list[Registration]]]:
    """The kernels among these facts by key, runtime keys in table order before alias keys, the
    newest of a key, which is the active one, first.
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


def _table(registry: Registry, there: Sequence[Registration]) -> DispatchTable:
    _, _, fallbacks = registry._facts.registrations(FALLBACK_NAME)
    return computed(there, fallbacks)


def computed(there: Sequence[Registration], fallbacks: Sequence[Registration]) -> DispatchTable:
    """The table that these facts of one operator and those fallbacks give."""
    return table_of(
        there, _kernels(there, facts.IMPL), fallbacks, _kernels(fallbacks, facts.FALLBACK)
    )


def _kernels(there: Sequence[Registration], kind: int) -> dict[DispatchKey, list[LocalKernel]]:
    kernels: dict[DispatchKey, list[LocalKernel]] = {}
    for fact in there:
        if fact.kind == kind:
            kernels.setdefault(DispatchKey(fact.key), []).append(RegisteredKernel(fact))
    return kernels


def table_rows(registry: Registry, name: str) -> list[TableRow]:
    """One row per runtime key, in table order, those without a kernel too."""
    return rows_of(_table(registry, existing(registry, name)))


def rows_of(table: DispatchTable) -> list[TableRow]:
    return [
        TableRow(key, entry.reason, entry.kernel, entry.is_fallthrough)
        for key, entry in zip(RUNTIME_KEYS, table.entries, strict=True)
    ]


def dump_table(registry: Registry, name: str) -> str:
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
    registry: Registry,
    name: str,
    key_set: DispatchKeySet,
    *,
    included: DispatchKeySet | None = None,
    excluded: DispatchKeySet | None = None,
) -> Explanation:
    """How a call with these keys comes to its kernel, with this thread's sets unless others are
    given.
    """
    there = existing(registry, name)
    return Explanation(
        registry._facts,
        there[0].name,
        key_set,
        included_keys() if included is None else included,
        excluded_keys() if excluded is None else excluded,
        _table(registry, there),
        _undefined(there),
    )


def _undefined(there: list[Registration]) -> OperatorNotFoundError | None:
    """What a call of an operator that nobody has defined comes to: it cannot be looked up."""
    if any(fact.kind == facts.DEF for fact in there):
        return None
    name = there[0].name
    kernels = [f"{DispatchKey(f.key)} ({f.where})" for f in there if f.kind == facts.IMPL]
    return OperatorNotFoundError(
        f"{name} is not defined: there is no schema to call it by\n"
        f"  kernels at: {', '.join(kernels) or 'none'}\n"
        "Define it in the DEF or a FRAGMENT library of its namespace.",
        name,
    )
