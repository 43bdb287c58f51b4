"""The commands ``mdispatch table``, ``show`` and ``why``: their arguments and answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from .. import facts, seam
from ..dispatch import explain
from ..dispatch.context.guards import DEFAULT_EXCLUDED, DEFAULT_INCLUDED
from ..dispatch.explain import listed
from ..dispatch.kernels import Provider
from ..dispatch.keys_in_words import EVERYWHERE, NO_KEYS
from ..errors import InvalidKeyError, MdispatchError
from ..keys import DispatchKeySet, functionality_to_backend_keys, runtime_keys
from ..keys.numbers import RUNTIME_KEYS, TABLE_INDEX, parse_key
from ..schema.names import OperatorName
from .asking import WHERE, answering, attach, imports, keys_like, opened
from .columns import fit, location_text, plain, say, say_columns, say_pairs, styled
from .console import json_option, standard_output, write
from .subject import Subject, by, kernel_json, kernel_text, location_json, location_of_fact, names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from ..across.offers import Offer
    from ..dispatch.explain import Explanation, TableRow
    from ..facts import Registration
    from ..keys.numbers import DispatchKey
    from ..registry import Registry
    from . import answers
    from .columns import Row, styled
    from .console import Answer

#: What the help of each of these commands ends with.
EPILOG = f"""\
{WHERE}
\b
Exit status:
  0    answered
  1    there is no such operator: the nearest names are told
  2    unusable arguments, also a key that does not exist; no such module,
       or one that fails; no such registry, or one whose registrar is
       dead; the answer could not be written
  130  interrupted
"""


def _operator(context: click.Context, parameter: click.Parameter, text: str) -> str:
    """Parses the operator's full name. As in ops, default is the overload without a name."""
    try:
        return str(OperatorName.parse(text.removesuffix(".default")))
    except MdispatchError as error:
        raise click.BadParameter(f"{error}.") from None


_op = click.argument("op", metavar="OP", callback=_operator, help="ns::name or ns::name.overload.")


@click.command(epilog=EPILOG)
@_op
@imports
@attach
@click.option(
    "keys",
    "--key",
    metavar="KEY",
    multiple=True,
    shell_complete=keys_like,
    help="Only this key (repeatable).",
)
@click.option("everything", "--all", is_flag=True, help="Each key, also those that have nothing.")
@json_option("table")
def table(
    op: str,
    modules: tuple[str, ...],
    registry: str | None,
    keys: tuple[str, ...],
    everything: bool,
    as_json: bool,
) -> None:
    """Print the dispatch table of an operator. It tells what runs at each key, by which rule, and
    where that was registered.
    """

    def answer(source: Registry, subject: Subject) -> Answer:
        wanted = [_slot(key) for key in keys]
        return Slots(subject, explain.table_rows(source.dispatcher.facts, op), wanted, everything)

    _run(op, modules, registry, as_json, answer)


@click.command(epilog=EPILOG)
@_op
@imports
@attach
@json_option("show")
def show(op: str, modules: tuple[str, ...], registry: str | None, as_json: bool) -> None:
    """Print what is registered for an operator. That is its definition, its kernels at keys and
    alias keys, and the location of each.
    """

    def answer(source: Registry, subject: Subject) -> Answer:
        base = OperatorName.parse(op).qualified
        names = [OperatorName.parse(name) for name in source.operators()]
        return Registrations(subject, [str(name) for name in names if name.qualified == base])

    _run(op, modules, registry, as_json, answer)


@click.command(epilog=EPILOG)
@_op
@click.argument(
    "keys",
    metavar="[KEY]...",
    nargs=-1,
    shell_complete=keys_like,
    help="Keys that arguments carry.",
)
@imports
@attach
@json_option("why")
def why(
    op: str,
    keys: tuple[str, ...],
    modules: tuple[str, ...],
    registry: str | None,
    as_json: bool,
) -> None:
    """Print how a call with these keys comes to its kernel. They are the keys that the arguments
    carry; there may be none.

    What a thread adds to the keys and takes away is taken as it is when a thread begins.
    """

    def answer(source: Registry, subject: Subject) -> Answer:
        asked = [_carried(key) for key in keys]
        found = explain.why(
            source.dispatcher.facts,
            op,
            DispatchKeySet(asked),
            included=DEFAULT_INCLUDED,
            excluded=DEFAULT_EXCLUDED,
        )
        fact = found.row.registration if found.error is None else None
        registry = source.dispatcher.facts
        defined = registry.find(facts.DEF, 0, found.operator)
        offers = seam.perhaps("the offers of a kernel")
        served = offers(registry, found.operator, fact, defined) if fact and offers else []
        return Way(subject, asked, found, served)

    _run(op, modules, registry, as_json, answer)


def _offers_json(offers: Sequence[Offer]) -> list[answers.Offer]:
    if not offers:
        return []
    from .serving import offer_json  # there is one only with its feature

    return [offer_json(offer) for offer in offers]


def _slot(text: str) -> DispatchKey:
    key = parse_key(text)
    if key not in TABLE_INDEX:
        keys = runtime_keys(key) if key.is_alias else functionality_to_backend_keys(key)
        raise InvalidKeyError(
            f"{key} stands for other keys and has no slot in a table\n  it stands for: "
            f"{listed(keys)}",
            key,
        )
    return key


def _carried(text: str) -> DispatchKey:
    key = parse_key(text)
    if key.is_alias:
        raise InvalidKeyError(f"{key} stands for other keys: no argument carries it", key)
    return key


def _run(
    op: str,
    modules: Sequence[str],
    registry: str | None,
    as_json: bool,
    answer: Callable[[Registry, Subject], Answer],
) -> None:
    output = standard_output()
    with answering():
        with opened(modules, registry) as source:
            there = explain.existing(source.dispatcher.facts, op)
            name = there[0].name
            stub = source.dispatcher.facts.find(facts.PYSTUB, 0, name)
            found = answer(source, Subject(source.address, there, stub))
        write(found, output, as_json)


# --- the answer of table --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slots:
    """What ``mdispatch table`` answers. ``rows`` are all slots; ``keys`` are the keys that were
    asked for. When there are none, ``everything`` says whether empty slots are shown, and each key
    on a line of its own.
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
        slots: list[answers.Slot] = [
            {
                "key": row.key.name,
                "reason": row.reason,
                "kernel": None if row.is_fallthrough else row.kernel or None,
                "falls_through": row.is_fallthrough,
                "location": location_of_fact(row.registration),
            }
            for row in self._shown()
        ]
        answer: answers.Table = {
            **self.subject.common(),
            "keys": len(RUNTIME_KEYS),
            "slots": slots,
        }
        return json.dumps(answer, indent=2)

    def show(self, console: Console) -> None:
        fit(console)
        say(console, self.subject.head())
        say(console)
        lines: dict[object, list[TableRow]] = {}
        is_apart = self.keys or self.everything
        for row in self._shown():
            what = row.key if is_apart else (row.reason, row.kernel, row.is_fallthrough, row.where)
            lines.setdefault(what, []).append(row)
        if not is_apart and not self.subject.takes_tensors:
            self._show_without_keys(console, list(lines.values()))
            return
        rows = [
            self._cells(line[0], _keys([row.key.name for row in line])) for line in lines.values()
        ]
        say_columns(console, ("key", "rule", "runs", "registered at"), rows)
        if not self.keys:
            say(console)
            say(console, self._summary())

    def _show_without_keys(self, console: Console, lines: list[list[TableRow]]) -> None:
        """For an operator without Tensor arguments: the kernel of calls, and those at keys."""
        rows = []
        for line in lines:
            keys = [row.key.name for row in line]
            if line[0].where != explain.BUILT_IN:
                is_called = "Undefined" in keys
                key, _, runs, location = self._cells(
                    line[0], EVERYWHERE if is_called else _keys(keys)
                )
                rows.append((key, runs, location))
        if not any(row[0].plain == EVERYWHERE for row in rows):
            rows.insert(0, (styled(EVERYWHERE), styled("-", style="dim"), styled("-")))
        say_columns(console, ("key", "runs", "registered at"), rows)
        say(console)
        no_keys = f"{NO_KEYS[0].upper()}{NO_KEYS[1:]}"
        say(console, f"{no_keys}; redispatch, guards and modes bring some (--all shows each).")

    def _cells(self, row: TableRow, keys: str) -> Row:
        if row.kernel:
            runs = kernel_text(row.kernel)
        elif row.reason == "missing":
            runs = styled("-", style="dim")
        else:
            runs = styled("nothing: a call is refused", style="red")
        style = "dim" if row.is_fallthrough or not row.kernel else ""
        location = (
            styled(location_text(row.where), style="dim") if row.where else styled("-", style="dim")
        )
        return styled(keys, style=style), styled(row.reason, style=style), runs, location

    def _summary(self) -> str:
        passed = sum(row.is_fallthrough for row in self.rows)
        run = sum(bool(row.kernel) for row in self.rows) - passed
        nothing = len(self.rows) - run - passed
        said = [f"{run} run{'s' * (run == 1)} a kernel", f"{passed} fall through"]
        said.append(f"{nothing} {'have' if nothing != 1 else 'has'} nothing")
        hint = "" if self.everything else " (--all shows each)"
        return f"Of {len(self.rows)} keys, lowest priority first: {', '.join(said)}{hint}."


#: How many keys a line names that have one answer.
_NAMED = 3


def _keys(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


# --- the answer of show ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registrations:
    """What ``mdispatch show`` answers."""

    subject: Subject
    overloads: Sequence[str]

    def _kernels(self) -> list[tuple[DispatchKey, bool, Registration]]:
        """Each kernel: its key, whether it is in effect there, and its registration."""
        return [
            (key, active, fact)
            for key, kernels in explain.kernels_by_key(list(self.subject.there))
            for active, fact in zip(explain.are_active(kernels), kernels, strict=True)
        ]

    def json(self) -> str:
        kernels = [
            kernel_json(key.name, key.is_alias, active, fact)
            for key, active, fact in self._kernels()
        ]
        there = self.subject.definition
        answer: answers.Show = {
            **self.subject.common(),
            "defined": location_of_fact(there),
            "alias_analysis": None if there is None else there.alias_analysis,
            "tags": [] if there is None else list(there.tags),
            "python_module": self._python_module(),
            "overloads": list(self.overloads),
            "dangling": there is None and bool(kernels),
            "kernels": kernels,
            "names": [
                location_json(fact) for fact in self.subject.there if fact.kind == facts.NAME
            ],
        }
        return json.dumps(answer, indent=2)

    def _python_module(self) -> answers.PythonModule | None:
        stub = self.subject.stub
        if stub is None:
            return None
        module, _, context = stub.body.partition("\n")
        return {"module": module, "context": context, "location": location_json(stub)}

    def show(self, console: Console) -> None:
        fit(console)
        say(console, self.subject.head())
        kernels = self._kernels()
        there = self.subject.definition
        pairs = []
        if there is not None:
            pairs.append(("defined at", f"{location_text(there.where)} {by(there)}"))
            pairs.append(("alias analysis", there.alias_analysis))
            pairs.append(("tags", plain(", ".join(there.tags)) or "none"))
        module = self._python_module()
        if module is not None:
            pairs.append(("fake kernels in", plain(module["module"])))
        if there is None and kernels:
            pairs.append(("dangling", "there are kernels and no definition: nobody can call it"))
        others = [name for name in self.overloads if name != self.subject.name]
        if others:
            pairs.append(("other overloads", ", ".join(others)))
        for fact in self.subject.there:
            if fact.kind == facts.NAME:
                pairs.append(("name held at", f"{location_text(fact.where)} {by(fact)}"))
        say_pairs(console, pairs)
        say(console)
        if not kernels:
            say(console, styled("No kernels.", style="yellow"))
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
        if fact.types:
            kernel.append(f"\nfor {plain(fact.types)}", style="dim")
        if fact.provider:
            provider = Provider.of(fact.provider_text)
            kernel.append(f"\nprovider {plain(fact.provider)}", style="dim")
            if provider is not None:
                kernel.append(f", order {provider.order}", style="dim")
                if provider.lacks:
                    kernel.append(f", not available: {plain(provider.lacks)}", style="dim")
        location = location_text(fact.where) + ("" if alone else f" {by(fact)}")
        return (
            styled(self.subject.key_in_words(key), style=style),
            styled("active" if active else "inactive", style=style),
            kernel,
            styled(location, style="dim"),
        )

    def _summary(
        self, kernels: Sequence[tuple[DispatchKey, bool, Registration]], who: set[str]
    ) -> str:
        active = sum(active for _, active, _ in kernels)
        count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
        text = f"{count}, {active} of them active" if active < len(kernels) else count
        return f"{text}, registered {who.pop()}." if len(who) == 1 else f"{text}."


# --- the answer of why ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Way:
    """What ``mdispatch why`` answers. ``asked`` are the keys as they were given; ``offers`` say who
    serves the kernel, the newest first.
    """

    subject: Subject
    asked: Sequence[DispatchKey]
    found: Explanation
    offers: Sequence[Offer]

    def _rules(self) -> list[tuple[str, str]]:
        return [(rule, what) for rule, _, what in (r.partition(": ") for r in self.found.rules)]

    def json(self) -> str:
        found, rules = self.found, self._rules()
        error = found.error
        answer: answers.Why = {
            **self.subject.common(),
            "asked": names(self.asked),
            "carried": names(found.given),
            "added": names(found.added),
            "excluded": names(found.taken),
            "fall_through": names(found.passed_by),
            "left": names(found.key_set),
            "highest": found.key.name,
            "rules": [
                {"rule": rule, "found": what, "decides": number == len(rules)}
                for number, (rule, what) in enumerate(rules, 1)
            ],
            "providers": [
                {"provider": name, "verdict": verdict} for name, verdict in found.providers
            ],
            "runs": None
            if error is not None
            else {"kernel": found.row.kernel, "location": location_of_fact(found.row.registration)},
            "error": None if error is None else {"class": type(error).__name__, "text": str(error)},
            "offers": _offers_json(self.offers),
        }
        return json.dumps(answer, indent=2)

    def show(self, console: Console) -> None:
        fit(console)
        found = self.found
        say(console, self.subject.head())
        if found.has_keys:
            say(console, f"called with {listed(self.asked)}")
            say(console)
            say_pairs(console, self._steps())
            say(console)
            said = f"rules at {found.key}, up to the one that decides"
            say(console, styled(said, style="bold"))
            say_pairs(console, self._rules(), indent=2)
        else:
            say(console, NO_KEYS)
        if found.providers:
            say(console)
            say(console, styled("providers, in their order", style="bold"))
            say_pairs(console, list(found.providers), indent=2)
        say(console)
        if found.error is None:
            self._show_kernel(console)
            self._show_offers(console)
        else:
            say(console, styled(f"a call raises {type(found.error).__name__}", style="bold red"))
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
        say(console, styled("runs ", style="bold green").append_text(kernel_text(row.kernel)))
        if row.registration is not None:
            say(
                console,
                f"registered at {location_text(row.where)} {by(row.registration)}",
                indent=5,
            )

    def _show_offers(self, console: Console) -> None:
        if self.offers:
            say(console)
            said = "served to interpreters that have none, the newest first"
            say(console, styled(said, style="bold"))
            for offer in self.offers:
                who = facts.who(offer.fact.pid, offer.fact.interpreter)
                say(console, plain(f"{who}: {offer.to_whom}"), indent=2)
