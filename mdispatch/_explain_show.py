"""How ``mdispatch table``, ``show`` and ``why`` answer: in columns for people, or as JSON.

The JSON is one object; its keys are stable (new ones may come). Common to all three:

    format          1
    mdispatch       version
    registry        its address
    operator        the name, ns::name or ns::name.overload
    schema          the definition's, in canonical form; null when the operator is not defined

A place is an object: where ("file:line"), pid, interpreter (its id; -1: the program that embeds
interpreters). Null stands for no place: that of a fallback that is built in.

``table`` adds

    keys            how many keys have a slot in a table
    slots           one object for each that is shown, in table order: key, reason (the rule that
                    decides), kernel (label; null where none runs), falls_through, place

``show`` adds

    defined         place of the definition, or null
    alias_analysis  FROM_SCHEMA, CONSERVATIVE or PURE_FUNCTION; null when it is not defined
    tags            names
    python_module   module that has its fake kernels, context and place; null when it names none
    overloads       the names of all operators that differ in the overload only, this one's too
    dangling        whether there are kernels and no definition
    kernels         one object each, alias keys last, of each key the newest first: key, alias,
                    active (the newest of its key), kernel (label), falls_through, signature (or
                    null), place
    names           places at which the name is held without more

``why`` adds

    asked           keys, as asked about
    carried, added, excluded, fall_through, left
                    lists of keys: what the arguments carry, what a thread adds and takes away by
                    default, what falls through, what is left
    highest         key
    rules           one object for each rule tried: rule, found (in words), decides
    runs            kernel (label) and place; null where nothing runs
    error           class (of mdispatch.errors) and text of what a call raises, or null
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from . import _registry as facts
from ._columns import fit, place_text, plain, say, say_columns, say_pairs
from ._explain import kernels_by_key
from ._explain_subject import by, kernel_json, kernel_text, names, place_of_fact
from ._explanation import listed
from ._keys import RUNTIME_KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ._columns import Row
    from ._explain_subject import Subject
    from ._explanation import Explanation, TableRow
    from ._keys import DispatchKey
    from ._registry import Registration

__all__ = ["Registrations", "Slots", "Way"]


# --- table ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slots:
    """What ``mdispatch table`` answers. ``rows`` are all slots, ``keys`` those that were asked for;
    without any, ``everything`` says whether slots that have nothing are shown.
    """

    subject: Subject
    rows: Sequence[TableRow]
    keys: Sequence[DispatchKey]
    everything: bool

    def _shown(self) -> list[TableRow]:
        if self.keys:
            return [row for row in self.rows if row.key in self.keys]
        return [row for row in self.rows if self.everything or row.reason != "missing"]

    def json(self) -> str:
        slots = [
            {
                "key": row.key.name,
                "reason": row.reason,
                "kernel": None if row.is_fallthrough else row.kernel or None,
                "falls_through": row.is_fallthrough,
                "place": place_of_fact(row.registration),
            }
            for row in self._shown()
        ]
        return self.subject.json(keys=len(RUNTIME_KEYS), slots=slots)

    def show(self, console: Console) -> None:
        fit(console)
        say(console, self.subject.head())
        say(console)
        rows = [self._cells(row) for row in self._shown()]
        say_columns(console, ("key", "rule", "runs", "registered at"), rows)
        if not self.keys:
            say(console)
            say(console, self._summary())

    def _cells(self, row: TableRow) -> Row:
        if row.kernel:
            runs = kernel_text(row.kernel)
        elif row.reason == "missing":
            runs = Text("-", style="dim")
        else:
            runs = Text("nothing: a call is refused", style="red")
        style = "dim" if row.is_fallthrough or not row.kernel else ""
        place = Text(place_text(row.where), style="dim") if row.where else Text("-", style="dim")
        return Text(row.key.name, style=style), Text(row.reason, style=style), runs, place

    def _summary(self) -> str:
        passed = sum(row.is_fallthrough for row in self.rows)
        run = sum(bool(row.kernel) for row in self.rows) - passed
        nothing = len(self.rows) - run - passed
        said = [f"{run} run{'s' * (run == 1)} a kernel", f"{passed} fall through"]
        said.append(f"{nothing} {'have' if nothing != 1 else 'has'} nothing")
        hint = "" if self.everything else " (--all)"
        return f"Of {len(self.rows)} keys, lowest priority first: {', '.join(said)}{hint}."


# --- show -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registrations:
    """What ``mdispatch show`` answers."""

    subject: Subject
    overloads: Sequence[str]

    def _kernels(self) -> list[tuple[DispatchKey, bool, Registration]]:
        """Key, whether it is in effect there, and the fact."""
        return [
            (key, position == 0, fact)
            for key, kernels in kernels_by_key(list(self.subject.there))
            for position, fact in enumerate(kernels)
        ]

    def json(self) -> str:
        kernels = [
            kernel_json(key.name, key.is_alias, active, fact)
            for key, active, fact in self._kernels()
        ]
        there = self.subject.definition
        return self.subject.json(
            defined=place_of_fact(there),
            alias_analysis=None if there is None else there.alias_analysis,
            tags=[] if there is None else list(there.tags),
            python_module=self._python_module(),
            overloads=list(self.overloads),
            dangling=there is None and bool(kernels),
            kernels=kernels,
            names=[place_of_fact(fact) for fact in self.subject.there if fact.kind == facts.NAME],
        )

    def _python_module(self) -> dict[str, object] | None:
        stub = self.subject.stub
        if stub is None:
            return None
        module, _, context = stub.body.partition("\n")
        return {"module": module, "context": context, "place": place_of_fact(stub)}

    def show(self, console: Console) -> None:
        fit(console)
        say(console, self.subject.head())
        kernels = self._kernels()
        there = self.subject.definition
        pairs = []
        if there is not None:
            pairs.append(("defined at", f"{place_text(there.where)} {by(there)}"))
            pairs.append(("alias analysis", there.alias_analysis))
            pairs.append(("tags", plain(", ".join(there.tags)) or "none"))
        module = self._python_module()
        if module is not None:
            pairs.append(("fake kernels in", plain(str(module["module"]))))
        if there is None and kernels:
            pairs.append(("dangling", "there are kernels and no definition: nobody can call it"))
        others = [name for name in self.overloads if name != self.subject.name]
        if others:
            pairs.append(("other overloads", ", ".join(others)))
        for fact in self.subject.there:
            if fact.kind == facts.NAME:
                pairs.append(("name held at", f"{place_text(fact.where)} {by(fact)}"))
        say_pairs(console, pairs)
        say(console)
        if not kernels:
            say(console, Text("No kernels.", style="yellow"))
            return
        who = {by(fact) for _, _, fact in kernels}
        say_columns(
            console,
            ("key", "state", "kernel", "registered at"),
            [self._cells(*each, alone=len(who) == 1) for each in kernels],
        )
        say(console)
        say(console, self._summary(kernels, who))

    def _cells(self, key: DispatchKey, active: bool, fact: Registration, *, alone: bool) -> Row:
        style = "" if active else "dim"
        kernel = kernel_text(fact.body)
        if fact.signature:
            kernel.append(f"\n{plain(fact.signature)}", style="dim")
        place = place_text(fact.where) + ("" if alone else f" {by(fact)}")
        return (
            Text(f"{key.name}{' (alias)' * key.is_alias}", style=style),
            Text("active" if active else "inactive", style=style),
            kernel,
            Text(place, style="dim"),
        )

    def _summary(
        self, kernels: Sequence[tuple[DispatchKey, bool, Registration]], who: set[str]
    ) -> str:
        active = sum(active for _, active, _ in kernels)
        count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
        text = f"{count}, {active} of them active" if active < len(kernels) else count
        return f"{text}, registered {who.pop()}." if len(who) == 1 else f"{text}."


# --- why ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """What ``mdispatch why`` answers. ``asked`` are the keys as they were given."""

    subject: Subject
    asked: Sequence[DispatchKey]
    found: Explanation

    def _rules(self) -> list[tuple[str, str]]:
        return [(rule, what) for rule, _, what in (r.partition(": ") for r in self.found.rules)]

    def json(self) -> str:
        found, rules = self.found, self._rules()
        error = found.error
        return self.subject.json(
            asked=names(self.asked),
            carried=names(found.given),
            added=names(found.added),
            excluded=names(found.taken),
            fall_through=names(found.passed_by),
            left=names(found.key_set),
            highest=found.key.name,
            rules=[
                {"rule": rule, "found": what, "decides": number == len(rules)}
                for number, (rule, what) in enumerate(rules, 1)
            ],
            runs=None
            if error is not None
            else {"kernel": found.row.kernel, "place": place_of_fact(found.row.registration)},
            error=None if error is None else {"class": type(error).__name__, "text": str(error)},
        )

    def show(self, console: Console) -> None:
        fit(console)
        found = self.found
        say(console, self.subject.head())
        say(console, f"called with {listed(self.asked)}")
        say(console)
        say_pairs(console, self._steps())
        say(console)
        say(console, Text(f"rules at {found.key}, up to the one that decides", style="bold"))
        say_pairs(console, self._rules(), indent=2)
        say(console)
        if found.error is None:
            self._show_kernel(console)
        else:
            say(console, Text(f"a call raises {type(found.error).__name__}", style="bold red"))
            for line in str(found.error).split("\n"):
                words = line.lstrip()
                say(console, plain(words), indent=2 + len(line) - len(words))

    def _steps(self) -> list[tuple[str, str]]:
        first, *others = self.found.steps()
        carried = set(self.found.given)
        note = ""
        if self.asked and not carried:
            note = " (a functionality is one with a backend only)"
        elif carried - set(self.asked):
            note = " (in a set each functionality goes with each backend)"
        return [(first[0], first[1] + note), *others]

    def _show_kernel(self, console: Console) -> None:
        row = self.found.row
        say(console, Text("runs ", style="bold green").append_text(kernel_text(row.kernel)))
        if row.registration is not None:
            say(console, f"registered at {place_text(row.where)} {by(row.registration)}", indent=5)
