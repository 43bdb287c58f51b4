"""Compares two snapshots: a function of the two, which looks at nothing else.

:data:`RULES` has the rules for all registrations; those for two schemas are in
schema/compatible.py. docs/diff.md has the tables of both, made by ``python docs/rules.py``.

Note [A kernel that takes calls]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A new kernel is compatible where calls for its key, its types and its provider had no kernel before:
they were refused. Where another kernel of OLD ran them, now this one runs them. That may change a
result, and it may end gradients: an operator that was made of others loses theirs as soon as it has
a kernel of its own for a device. So such a kernel counts as one that replaces another.

Two things are compared. At one key, the order of Note [Providers] and Note [Kernels by type]
decides who comes first, as far as names tell: of two classes nobody knows here whether one is
derived from the other, so kernels for other types count as kernels of other calls. Where calls
pass the key by, two tables are computed, without the new kernels and with all of them; a new kernel
takes the calls of a key at which another one runs then, if it is that one, or would be the cause by
itself. A key at which calls fell through had no kernel.

Labels are not compared with the code behind them. A kernel with another label at the same key is
code that was moved or renamed as far as anybody can tell, and members that start do not compare
labels either: the kernels of one operator may differ from process to process on purpose.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from .. import facts, seam
from ..dispatch.explain import computed, rows_of
from ..dispatch.kernels import FALLTHROUGH
from ..facts import Registration
from ..keys.numbers import DispatchKey
from ..schema.compatible import (
    BREAKING,
    COMPATIBLE,
    WHERE,
    Rule,
    attribute_differences,
    differences,
    takes_calls,
    worst,
)
from ..schema.compatible import RULES as OF_SCHEMAS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .snapshot import Fallback, Kernel, Operator, Other, Snapshot

RULES = {
    "operator-added": Rule(
        "an operator more",
        COMPATIBLE,
        "Nothing of OLD calls it. Exchanged, it is an operator removed.",
    ),
    "operator-removed": Rule(
        "an operator is removed",
        BREAKING,
        "Old calls, old pickles of it and kernels of other packages do not find it.",
    ),
    "overload-added": Rule(
        "an overload more, after those that are there",
        COMPATIBLE,
        "It gets the calls that all others refuse: calls of OLD do not get that far. A pickle of "
        "the name has the overloads of OLD, which are all there.",
    ),
    "overload-removed": Rule(
        "an overload is removed",
        BREAKING,
        "Its old calls are refused, or a later overload takes them.",
    ),
    "overload-before": Rule(
        "an overload more, before one that is there",
        BREAKING,
        "Calls by the name try it first, and it may take those of the other.",
    ),
    "overloads-moved": Rule(
        "the overloads of a name are in another order",
        BREAKING,
        "A call that fits two of them runs the other one, in both directions.",
    ),
    "overload-takes-calls": Rule(
        "a compatible schema takes calls that a later overload got",
        BREAKING,
        "The new argument or default makes old calls by the name fit an overload that refused "
        "them. Exchanged, it refuses them again.",
    ),
    "kernel-added": Rule(
        "a kernel where the operator had none for those arguments: key, types, provider",
        COMPATIBLE,
        "Calls that were refused run. Exchanged, it is a kernel removed.",
    ),
    "kernel-takes-calls": Rule(
        "a kernel more, which runs calls that another kernel of OLD ran",
        BREAKING,
        "It replaces the other one for them: results may change, and gradients may end.",
    ),
    "kernel-removed": Rule(
        "a kernel is removed, or is for another key, other types or another provider",
        BREAKING,
        "Its calls are refused, or another kernel runs them.",
    ),
    "kernel-moved": Rule(
        "a kernel has another label and nothing else has changed",
        COMPATIBLE,
        "Code was moved or renamed. A worker that starts compares neither code nor labels: the "
        "two would agree.",
    ),
    "kernel-passes": Rule(
        "calls pass a key by where a kernel ran, or the reverse",
        BREAKING,
        "Another kernel runs them, in both directions.",
    ),
    "provider-order": Rule(
        "a provider has another order",
        BREAKING,
        "Another provider may come first, in both directions.",
    ),
    "python-module-added": Rule(
        "the operator names a Python module for its fakes, and named none",
        COMPATIBLE,
        "It is a hint for who has not imported them. Exchanged, the hint is gone.",
    ),
    "python-module-changed": Rule(
        "the Python module for its fakes is another one, or is not named any more",
        BREAKING,
        "Old code imports the one that was named.",
    ),
    "name-added": Rule(
        "a name is held without a definition",
        COMPATIBLE,
        "Nothing of OLD waits for it.",
    ),
    "name-removed": Rule(
        "a name is not held any more, and not defined",
        BREAKING,
        "Old code relies on it to be known.",
    ),
    "fallback-added": Rule(
        "a fallback more",
        BREAKING,
        "It serves every operator that has no kernel at its key, also of packages that are not "
        "compared here.",
    ),
    "fallback-removed": Rule(
        "a fallback is removed",
        BREAKING,
        "The calls that it served are refused.",
    ),
    "fallback-moved": Rule(
        "a fallback has another label and nothing else has changed",
        COMPATIBLE,
        "Code was moved or renamed, as of a kernel.",
    ),
    "fallback-passes": Rule(
        "calls pass a key by where a fallback ran, or the reverse",
        BREAKING,
        "Another kernel runs them, in both directions.",
    ),
    "class-added": Rule(
        "a typed class more",
        COMPATIBLE,
        "No schema of OLD names it. Exchanged, it is a class removed.",
    ),
    "class-removed": Rule(
        "a typed class is removed",
        BREAKING,
        "Old schemas name it, and objects and handles of it are under way.",
    ),
    "method-added": Rule(
        "a method more of a typed class",
        COMPATIBLE,
        "It is an operator more: no old handle calls it.",
    ),
    "method-removed": Rule(
        "a method of a typed class is removed",
        BREAKING,
        "Old handles call it.",
    ),
    "class-changed": Rule(
        "a typed class travels by value or not, is made in C or not, or else differs",
        BREAKING,
        "OLD sends an object where NEW expects a handle, or the reverse.",
    ),
    "priority-changed": Rule(
        "a priority is set, ended or changed",
        BREAKING,
        "Another provider may come first for every operator of its pattern, in both directions.",
    ),
    "type-added": Rule(
        "the keys of a type are registered that were not",
        COMPATIBLE,
        "Its objects were refused where a Tensor is asked for. Exchanged, it is a type removed.",
    ),
    "type-changed": Rule(
        "a type has other keys, or none any more",
        BREAKING,
        "Calls with its objects run other kernels, or are refused.",
    ),
    "value-added": Rule(
        "an agreement on a value is there, or is not there any more",
        COMPATIBLE,
        "Members of the other version do not ask for it.",
    ),
    "value-changed": Rule(
        "members agree on another value",
        BREAKING,
        "A member of OLD and one of NEW that ask for it in one registry refuse each other.",
    ),
    "other-changed": Rule(
        "anything else that is registered beside operators has come, gone or changed",
        BREAKING,
        "No rule says that it is compatible.",
    ),
}
#: Those of both tables.
ALL_RULES = {**OF_SCHEMAS, **RULES}

#: Kinds of others that are no part of a version: a choice is made while programs run, and a variant
#: is the definition of another version.
_LEFT_OUT = ("choice", "variant")


class Change(NamedTuple):
    """A difference of two snapshots. ``kind`` is "operator", "kernel", "fallback", or the kind of
    another registration; ``old`` and ``new`` are locations, "" where there is none.
    """

    rule: str
    kind: str
    name: str
    words: str
    old: str = ""
    new: str = ""

    @property
    def verdict(self) -> str:
        return ALL_RULES[self.rule].verdict


def compared(old: Snapshot, new: Snapshot, where: tuple[str, str] = WHERE) -> list[Change]:
    """All differences, by name. ``where`` is how sentences name the two."""
    return [
        *_Operators(old, new, where).changes(),
        *_of_fallbacks(old, new, where),
        *_of_others(old, new, where),
    ]


def verdict_of(changes: Iterable[Change]) -> str:
    """ "same", "compatible" or "breaking": the worst of all."""
    return worst(each.verdict for each in changes)


def breaking(old: Sequence[Registration], new: Sequence[Registration]) -> list[str]:
    """The breaking differences of two lists of registrations, in words."""
    from .snapshot import snapshot_of

    changes = compared(snapshot_of(old), snapshot_of(new), ("there", "here"))
    return [f"{each.name}: {each.words}" for each in changes if each.verdict == BREAKING]


# --- operators ------------------------------------------------------------------------------------


class _Operators:
    """The operators of two snapshots."""

    def __init__(self, old: Snapshot, new: Snapshot, where: tuple[str, str]) -> None:
        self.old, self.new = ({one.name: one for one in each.operators} for each in (old, new))
        self.overloads = _overloads(old), _overloads(new)
        self.fallbacks = frozenset(
            (one.key, one.falls_through) for one in old.fallbacks if one.key in _KEYS
        )
        self.where = where
        self.methods = _methods(old), _methods(new)
        #: The names of classes as operators have them: their methods are no overloads to be tried.
        self.classes = {
            one.name.replace(".", "::")
            for each in (old, new)
            for one in each.others
            if one.kind == "class"
        }

    def changes(self) -> Iterator[Change]:
        for name in sorted({*self.old, *self.new}):
            old = self.old.get(name, _absent(name))
            new = self.new.get(name, _absent(name))
            for rule, words in self._of_definition(old, new):
                yield Change(rule, "operator", name, words, old.where, new.where)
            # The kernels of an operator that came or went as a whole are no differences.
            came = name not in self.old and new.schema is not None
            went = name not in self.new and old.schema is not None
            if not (came or went):
                yield from self._of_kernels(old, new)

    def _of_definition(self, old: Operator, new: Operator) -> Iterator[tuple[str, str]]:
        one, other = self.where
        # The class tells of a method that came or went with it, or in it.
        told = [each - rest for each, rest in (self.methods, self.methods[::-1])]
        if old.schema is not None and new.schema is not None:
            found = differences(old.schema, new.schema, self.where)
            attributes = [(each.alias_analysis, each.tags) for each in (old, new)]
            yield from found
            yield from attribute_differences(attributes[0], attributes[1], self.where)
            if old.base not in self.classes:
                yield from self._of_order(old, new)
                if old.schema != new.schema and worst(e.verdict for e in found) != BREAKING:
                    yield from self._of_calls(old, new)
        elif new.schema is not None and new.name not in told[1]:
            yield self._came(new)
        elif old.schema is not None and new.schema is None and old.name not in told[0]:
            what = "overload" if old.base in self.overloads[1] else "operator"
            yield f"{what}-removed", f"the {what} is only {one}"
        if old.is_held and not new.is_held and new.schema is None:
            yield "name-removed", f"the name is held only {one}"
        if new.is_held and not old.is_held and new.schema is None:
            yield "name-added", f"the name is held only {other}"
        modules = old.python_module, new.python_module
        if modules[0] != modules[1] and old.name in self.old and new.name in self.new:
            rule = "python-module-changed" if modules[0] else "python-module-added"
            its = [each or "not named" for each in modules]
            yield rule, f"the module of its fakes is {its[0]} {one}, {its[1]} {other}"

    def _came(self, new: Operator) -> tuple[str, str]:
        before, after = (each.get(new.base, []) for each in self.overloads)
        if not before:
            return "operator-added", f"the operator is only {self.where[1]}"
        names = {each.name for each in before}
        follow = [each.name for each in _behind(new, after) if each.name in names]
        words = f"the overload is only {self.where[1]}"
        if follow:
            return "overload-before", f"{words}, and calls try it before {follow[0]}"
        return "overload-added", f"{words}, and calls try it last"

    def _of_order(self, old: Operator, new: Operator) -> Iterator[tuple[str, str]]:
        """The first overload that was behind this one, and is before it now."""
        before, after = (each[old.base] for each in self.overloads)
        behind = {each.name for each in _behind(old, before)}
        for each in after[: _place(new, after)]:
            if each.name in behind:
                words = f"calls try {each.name} after it {self.where[0]}, and before it "
                yield "overloads-moved", words + self.where[1]
                return

    def _of_calls(self, old: Operator, new: Operator) -> Iterator[tuple[str, str]]:
        """The first overload whose calls a compatible schema takes."""
        before, after = (each[old.base] for each in self.overloads)
        names = {each.name for each in _behind(new, after)}
        for later in _behind(old, before):
            if later.name in names and _take(old, new, later):
                words = f"it takes calls {self.where[1]} that {later.name} gets {self.where[0]}"
                yield "overload-takes-calls", words
                return

    # --- kernels

    def _of_kernels(self, old: Operator, new: Operator) -> Iterator[Change]:
        before, after = ({each.variant: each for each in one.kernels} for one in (old, new))
        for variant, kernel in before.items():
            if variant not in after:
                words = f"{kernel} is only {self.where[0]}"
                yield Change("kernel-removed", "kernel", old.name, words, kernel.where)
        for variant, kernel in after.items():
            if variant in before:
                yield from self._of_kernel(old.name, before[variant], kernel)
        added = [kernel for variant, kernel in after.items() if variant not in before]
        taken = self._taken(old, new, added) if old.schema is not None else {}
        for kernel in added:
            words = f"{kernel} is only {self.where[1]}"
            if kernel in taken:
                words += f", and takes calls that {taken[kernel]} runs {self.where[0]}"
            rule = "kernel-takes-calls" if kernel in taken else "kernel-added"
            yield Change(rule, "kernel", old.name, words, "", kernel.where)

    def _of_kernel(self, name: str, old: Kernel, new: Kernel) -> Iterator[Change]:
        one, other = self.where
        found = []
        if old.falls_through != new.falls_through:
            found.append(("kernel-passes", f"calls pass by {old} only {self._where(old, new)}"))
        elif old.label != new.label:
            words = f"{old} is {old.label} {one}, {new.label} {other}"
            found.append(("kernel-moved", words))
        if old.types != new.types:  # of a provider, which is known by its name
            types = [", ".join(each.types) or "any types" for each in (old, new)]
            words = (
                f"the provider {old.provider!r} at {old.key} is for {types[0]} {one}, {types[1]} "
            )
            found.append(("kernel-removed", words + other))
        if old.order != new.order:
            words = f"the order of {new} is {old.order} {one}, {new.order} {other}"
            found.append(("provider-order", words))
        for rule, words in found:
            yield Change(rule, "kernel", name, words, old.where, new.where)

    def _where(self, old: Kernel | Fallback, new: Kernel | Fallback) -> str:
        return self.where[new.falls_through]

    def _taken(self, old: Operator, new: Operator, added: Sequence[Kernel]) -> dict[Kernel, str]:
        """The new kernels that take calls, each with the kernel of OLD that runs some of them. See
        Note [A kernel that takes calls].
        """
        order = [each.variant for each in new.kernels]
        taken: dict[Kernel, str] = {}
        perhaps: dict[Kernel, str] = {}
        for kernel in added:
            beside = [each for each in old.kernels if each.key == kernel.key]
            first = [each for each in beside if _comes_first(kernel, each, order)]
            if first:
                taken[kernel] = str(first[0])
            elif all(each.types for each in beside):  # some calls pass the key by
                there = [each for each in old.kernels if each.key != kernel.key]
                tables = [self._table(there, more) for more in ((), added, (kernel,))]
                for key, ran in tables[0].items():
                    if tables[1].get(key) == ran:
                        continue
                    words = f"{self._label(there, ran)} at {key}"
                    if tables[1].get(key) == kernel.key or tables[2].get(key) != ran:
                        taken.setdefault(kernel, words)
                    perhaps.setdefault(kernel, words)
        return taken or perhaps  # none by itself, but all together

    def _table(self, kernels: Sequence[Kernel], more: Sequence[Kernel]) -> dict[str, str]:
        at = {each.key: each.falls_through for each in (*more, *kernels) if each.key in _KEYS}
        return _table(frozenset(at.items()), self.fallbacks)

    def _label(self, kernels: Sequence[Kernel], ran: str) -> str:
        """The label of the kernel that runs in a table."""
        labels = {each.key: each.label for each in kernels}
        return labels.get(ran) or f"the {ran}"


def _absent(name: str) -> Operator:
    from .snapshot import Operator

    return Operator(name, None, None, "", (), "", (), "", False)


def _overloads(snapshot: Snapshot) -> dict[str, list[Operator]]:
    """By name, the overloads in the order in which calls try them."""
    found: dict[str, list[Operator]] = {}
    for each in sorted(snapshot.operators, key=lambda each: each.position or 0):
        if each.schema is not None:
            found.setdefault(each.base, []).append(each)
    return found


def _place(operator: Operator, overloads: Sequence[Operator]) -> int:
    return [each.name for each in overloads].index(operator.name)


def _behind(operator: Operator, overloads: Sequence[Operator]) -> Sequence[Operator]:
    """The overloads that calls try after this one."""
    return overloads[_place(operator, overloads) + 1 :]


def _take(old: Operator, new: Operator, later: Operator) -> bool:
    assert old.schema is not None
    assert new.schema is not None
    assert later.schema is not None
    return takes_calls(old.schema, new.schema, later.schema)


def _comes_first(kernel: Kernel, other: Kernel, order: Sequence[object]) -> bool:
    """Whether a kernel runs calls that another one of its key would run, as far as names tell.
    ``order`` has the kernels of NEW, the newest of a key first.
    """
    if kernel.types and other.types and kernel.types != other.types:
        return False
    if not kernel.provider:
        return not other.provider and bool(kernel.types) and not other.types
    if not other.provider:
        return True
    if kernel.order != other.order:
        return kernel.order > other.order
    return other.variant not in order or order.index(kernel.variant) < order.index(other.variant)


_KEYS = {key.name: int(key) for key in DispatchKey.__members__.values()}


@lru_cache(4096)  # most operators have kernels at the same few keys
def _table(
    kernels: frozenset[tuple[str, bool]], fallbacks: frozenset[tuple[str, bool]]
) -> dict[str, str]:
    """By each runtime key at which something runs: the key of the kernel, or "fallback at" and that
    of the fallback. Types and providers do not count in it.
    """

    def there(kind: int, each: frozenset[tuple[str, bool]], before: str) -> list[Registration]:
        return [
            Registration(
                *(0, 0, kind, _KEYS[key], "_"), FALLTHROUGH if passes else before + key, "", 0, 0
            )
            for key, passes in sorted(each)
        ]

    impls, others = there(facts.IMPL, kernels, ""), there(facts.FALLBACK, fallbacks, "fallback at ")
    rows = rows_of(computed(impls, others))
    return {row.key.name: row.kernel for row in rows if row.kernel and not row.is_fallthrough}


# --- beside operators -----------------------------------------------------------------------------


def _of_fallbacks(old: Snapshot, new: Snapshot, where: tuple[str, str]) -> Iterator[Change]:
    before, after = ({one.key: one for one in each.fallbacks} for each in (old, new))
    for key in sorted({*before, *after}):
        one, other = before.get(key), after.get(key)
        if one is None or other is None:
            rule, its = ("fallback-added", 1) if one is None else ("fallback-removed", 0)
            words = f"the fallback at {key} is only {where[its]}"
        elif one.falls_through != other.falls_through:
            rule = "fallback-passes"
            words = f"calls pass by the fallback at {key} only {where[other.falls_through]}"
        elif one.label != other.label:
            rule = "fallback-moved"
            words = f"the fallback at {key} is {one.label} {where[0]}, {other.label} {where[1]}"
        else:
            continue
        yield Change(rule, "fallback", key, words, _location(one), _location(other))


def _of_others(old: Snapshot, new: Snapshot, where: tuple[str, str]) -> Iterator[Change]:
    before, after = ({(one.kind, one.name): one for one in each.others} for each in (old, new))
    defined = [
        {one.name for one in each.operators if one.schema is not None} for each in (old, new)
    ]
    for kind, name in sorted({*before, *after}):
        one, other = before.get((kind, name)), after.get((kind, name))
        if kind in _LEFT_OUT:
            continue
        if kind == "class":
            found = _of_class(one, other, defined[0] & defined[1], where)
        elif kind == "value":
            found = _of_value(one, other, where)
        else:
            found = _of_other(kind, one, other, where)
        for rule, words in found:
            yield Change(rule, kind, name, words, _location(one), _location(other))


_SAYS = {"priority": ("the priority is", "not set"), "type": ("the keys of the type are", "none")}


def _of_other(
    kind: str, old: Other | None, new: Other | None, where: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    texts = [None if each is None else each.text.partition("\n")[0] for each in (old, new)]
    if kind not in ("priority", "type"):
        texts = [None if each is None else each.text for each in (old, new)]
    if texts[0] == texts[1]:
        return
    rule = f"{kind}-changed" if kind in ("priority", "type") else "other-changed"
    if kind == "type" and old is None:
        rule = "type-added"
    is_what, none = _SAYS.get(kind, (f"the {kind} is", "not there"))
    told = [none if each is None else each.replace("\n", ", ") for each in texts]
    yield rule, f"{is_what} {told[0]} {where[0]}, {told[1]} {where[1]}"


def _of_value(
    old: Other | None, new: Other | None, where: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    if old is None or new is None:
        yield "value-added", f"members agree on a value, {where[old is None]} only"
    elif old.text != new.text:
        for words in seam.at("the differences of two values")(old.text, new.text, where):
            yield "value-changed", words


def _of_class(
    old: Other | None, new: Other | None, both: set[str], where: tuple[str, str]
) -> Iterator[tuple[str, str]]:
    """``both``: the operators that are defined in both, of which the operators tell."""
    if old is None or new is None:
        there = old or new
        assert there is not None
        rule, its = ("class-added", 1) if old is None else ("class-removed", 0)
        methods, _ = _class(there)
        named = [each.rpartition(".")[2] for each in methods]
        more = f", with {', '.join(named)}" if named else ""
        yield rule, f"the class is only {where[its]}{more}"
        return
    (before, how), (after, now) = _class(old), _class(new)
    for name in sorted({*before, *after}):
        method = name.rpartition(".")[2]
        if name not in after:
            yield "method-removed", f"the method {method!r} is only {where[0]}"
        elif name not in before:
            yield "method-added", f"the method {method!r} is only {where[1]}"
        elif before[name] != after[name] and name not in both:
            yield "class-changed", f"{before[name]} is {where[0]}, {after[name]} {where[1]}"
    if how != now:
        told = [", ".join(each) or "it is called by handles" for each in (how, now)]
        yield "class-changed", f"{told[0]} {where[0]}, {told[1]} {where[1]}"


def _methods(snapshot: Snapshot) -> set[str]:
    """The operators that are methods of classes."""
    return {name for each in snapshot.others if each.kind == "class" for name in _class(each)[0]}


def _class(there: Other) -> tuple[dict[str, str], list[str]]:
    """The schemas of a class's methods by their names, and the other lines of its registration."""
    lines = [line for line in there.text.split("\n") if line]
    schemas = {line.partition("(")[0]: line for line in lines if "(" in line}
    return schemas, [line for line in lines if "(" not in line]


def _location(there: Fallback | Other | None) -> str:
    return "" if there is None else there.where
