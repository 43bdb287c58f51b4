"""The operators in the page of ``mdispatch report``: what is registered for each, and its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._columns import number_of
from ._explain_subject import by
from ._explanation import BUILT_IN
from ._keys import RUNTIME_KEYS
from ._report_markup import anchor, code, kernel, pairs, place, rule_anchor, table, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ._catalogue import Kernel, Operator
    from ._report import Report, Slots

__all__ = ["built_in_or_place", "operators"]

_SHORT = 6  # keys that are listed without more


def operators(report: Report) -> str:
    """All of them, by namespace."""
    if not report.catalogue.operators:
        return "<p>There are none.</p>"
    groups: dict[str, list[Operator]] = {}
    for operator in report.catalogue.operators:
        groups.setdefault(operator.namespace, []).append(operator)
    links = "".join(
        f'<li><a href="#{anchor(space, "ns")}">{text_of(space)}</a> ({len(group):,})</li>'
        for space, group in groups.items()
    )
    parts = [f'<nav aria-label="Namespaces"><ul>{links}</ul></nav>\n']
    for space, group in groups.items():
        name = anchor(space, "ns")
        parts.append(
            f'<section class="namespace" id="{name}">'
            f'<h3><a href="#{name}">{text_of(space)}</a></h3>\n'
        )
        parts += [_operator(report, operator) for operator in group]
        parts.append("</section>\n")
    return "".join(parts)


def _operator(report: Report, operator: Operator) -> str:
    name = anchor(operator.name)
    there = operator.definition
    if there is not None:
        schema = f"<p>{code(there.body)}</p>\n"
    elif operator.dangling:
        schema = '<p class="bad">Not defined: there are kernels, and nobody can call it.</p>\n'
    else:
        schema = '<p class="soft">Not defined: a name that is held.</p>\n'
    return (
        f'<article id="{name}"><div class="facts">'
        f'<h4><a href="#{name}">{code(operator.name)}</a></h4>\n{schema}'
        f"{pairs(_about(operator))}{_kernels(operator)}</div>{_slots(report, operator)}"
        "</article>\n"
    )


def _about(operator: Operator) -> Iterable[tuple[str, str]]:
    there, stub = operator.definition, operator.stub
    if there is not None:
        yield "defined at", f"{code(there.where)} {text_of(by(there))}"
        if there.alias_analysis != "FROM_SCHEMA":
            yield "alias analysis", text_of(there.alias_analysis)
        if there.tags:
            yield "tags", text_of(", ".join(there.tags))
    if stub is not None:
        yield "fake kernels in", code(stub.body.partition("\n")[0])
    for fact in operator.holds:
        yield "name held at", f"{code(fact.where)} {text_of(by(fact))}"


def _kernels(operator: Operator) -> str:
    kernels = operator.kernels
    if not kernels:
        return '<p class="soft">No kernels.</p>\n'
    rows = [(_key(each), _kernel(each), place(each.fact)) for each in kernels]
    return table("Kernels", ("key", "kernel", "registered at"), rows)


def _key(each: Kernel) -> str:
    notes = ["alias key"] * each.alias + ["inactive"] * (not each.active)
    return text_of(each.key) + (f"<small>{', '.join(notes)}</small>" if notes else "")


def _kernel(each: Kernel) -> str:
    own = each.fact.signature
    return kernel(each.fact.body) + (f"<small>{code(own)}</small>" if own else "")


def _slots(report: Report, operator: Operator) -> str:
    """The dispatch table: what runs at which keys, and why."""
    groups = report.table(operator)
    some = [slots for slots in groups if slots.row.reason != "missing"]
    run = sum(len(s.keys) for s in some if s.row.kernel and not s.row.is_fallthrough)
    passed = sum(len(slots.keys) for slots in some if slots.row.is_fallthrough)
    nothing = len(RUNTIME_KEYS) - sum(len(slots.keys) for slots in some)
    own = [slots for slots in some if not _is_ours(slots)]
    rows = [(_keys(s.keys), _runs(s), _reason(s.row.reason), built_in_or_place(s)) for s in own]
    ours = [key for slots in some if _is_ours(slots) for key in slots.keys]
    if ours:
        link = '<a href="#fallbacks">the fallback of each</a>'
        rows.append((_keys(ours), link, _reason("backend fallback"), BUILT_IN))
    caption = (
        f'In order of priority, lowest first. <a href="#{rule_anchor("missing")}">Nothing</a> '
        f"at the other {number_of(nothing, 'key')}."
    )
    words = f"Dispatch table: {number_of(run, 'key')} with a kernel, {passed} fall through"
    return (
        f"<details><summary>{words}</summary>"
        + table(caption, ("keys", "runs", "rule", "registered at"), rows)
        + "</details>\n"
    )


def _is_ours(slots: Slots) -> bool:
    """Whether it is what mdispatch itself runs, for every operator alike."""
    return slots.row.where == BUILT_IN and not slots.row.is_fallthrough


def _keys(keys: Sequence[str]) -> str:
    told = text_of(", ".join(keys))
    if len(keys) <= _SHORT:
        return told
    return (
        f"<details><summary>{len(keys)} keys, {text_of(keys[0])} to {text_of(keys[-1])}</summary>"
        f"{told}</details>"
    )


def _runs(slots: Slots) -> str:
    if slots.row.kernel:
        return kernel(slots.row.kernel)
    return '<span class="bad">nothing: a call is refused</span>'


def _reason(reason: str) -> str:
    return f'<a href="#{rule_anchor(reason)}">{text_of(reason)}</a>'


def built_in_or_place(slots: Slots) -> str:
    """Where what stands in a table was registered."""
    fact = slots.row.registration
    return text_of(slots.row.where or "-") if fact is None else place(fact)
