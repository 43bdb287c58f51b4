"""The command ``mdispatch report``: a registry at one moment, as a page and as JSON.

A report has the registry's catalogue, the table of each operator with the reason of each entry, the
members, and who registered what. ``page.html`` shows it to people.

The keys of the JSON are those of the TypedDict in cli/answers.py.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from ... import __version__, facts
from ...dispatch.explain import BUILT_IN
from ...errors.locations import file_of
from ...facts.outside import look_at
from ...keys.numbers import RUNTIME_KEYS
from ...registry.catalogue import Operator, catalogue
from ..asking import WHERE, answering, attach, imports, opened
from ..columns import number_of
from ..console import complain, json_option, replace_file, standard_output, tell_written, write_text
from ..doctor import member_json, problems
from ..subject import fallback_json, location_of_fact, operator_json, other_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ...dispatch.explain import TableRow
    from ...facts import Registration
    from ...facts.outside import Member, Seen
    from ...registry.catalogue import Catalogue

# --- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slots:
    """Keys of an operator's table at which the same kernel runs for the same reason."""

    keys: Sequence[str]
    row: TableRow

    @property
    def is_built_in(self) -> bool:
        """Whether mdispatch itself runs there, as for every operator."""
        return self.row.where == BUILT_IN and not self.row.is_fallthrough


@dataclass(frozen=True, slots=True)
class Summary:
    """An operator's table as the page shows it: the slots of its own, and the keys at which only a
    built-in fallback runs. The counts are of keys: with a kernel, with a fallthrough, with nothing.
    """

    own: Sequence[Slots]
    built_in: Sequence[str]
    with_kernel: int
    falling_through: int
    empty: int


@dataclass(slots=True)
class Registrar:
    """Counts of the registrations that one interpreter made from one file."""

    pid: int
    interpreter: int
    file: str
    definitions: int = 0
    kernels: int = 0
    fallbacks: int = 0


def _keys_in(groups: Iterable[Slots]) -> int:
    return sum(len(slots.keys) for slots in groups)


def _grouped(rows: Iterable[TableRow]) -> list[Slots]:
    groups: dict[object, tuple[list[str], TableRow]] = {}
    for row in rows:
        fact = row.registration
        what = (row.reason, row.kernel, row.is_fallthrough, row.where, fact and fact.seq)
        groups.setdefault(what, ([], row))[0].append(row.key.name)
    return [Slots(keys, row) for keys, row in groups.values()]


def _counted(number: int, what: str) -> tuple[int, str]:
    return number, f"{what}{'s' * (number != 1)}"


@dataclass(frozen=True, slots=True)
class Report:
    """A registry at one moment. ``seen`` is how it looks from outside, None where it cannot be
    looked at; ``stranger`` is a process that joined only to look, 0 for none.
    """

    catalogue: Catalogue
    seen: Seen | None
    made: str
    modules: Sequence[str] = ()
    stranger: int = 0

    @property
    def label(self) -> str:
        return self.catalogue.registry if self.seen is None else self.seen.label

    @property
    def members(self) -> list[Member]:
        members = () if self.seen is None else self.seen.members
        return [member for member in members if member.pid != self.stranger]

    @property
    def problems(self) -> list[str]:
        """One sentence for each thing that needs attention, as ``mdispatch doctor`` has them."""
        return [] if self.seen is None else problems(self.seen)

    def table(self, operator: Operator) -> list[Slots]:
        """Its table in groups, in the order of the first key of each."""
        return _grouped(operator.table(self.catalogue.fallbacks))

    def summary(self, operator: Operator) -> Summary:
        some = [slots for slots in self.table(operator) if slots.row.reason != "missing"]
        through = [slots for slots in some if slots.row.is_fallthrough]
        run = [slots for slots in some if slots.row.kernel and not slots.row.is_fallthrough]
        return Summary(
            own=[slots for slots in some if not slots.is_built_in],
            built_in=[key for slots in some if slots.is_built_in for key in slots.keys],
            with_kernel=_keys_in(run),
            falling_through=_keys_in(through),
            empty=len(RUNTIME_KEYS) - _keys_in(some),
        )

    def fallbacks(self) -> list[Slots]:
        """The fallbacks in groups, also those that are built in."""
        groups = self.table(Operator("", ()))
        return [slots for slots in groups if slots.row.reason != "missing"]

    def registrars(self) -> list[Registrar]:
        found: dict[tuple[int, int, str], Registrar] = {}
        for fact in self._facts():
            who = fact.pid, fact.interpreter, file_of(fact.where)
            registrar = found.setdefault(who, Registrar(*who))
            registrar.definitions += fact.kind == facts.DEF
            registrar.kernels += fact.kind == facts.IMPL
            registrar.fallbacks += fact.kind == facts.FALLBACK
        return [found[who] for who in sorted(found)]

    def namespaces(self) -> dict[str, list[Operator]]:
        """The operators of each namespace."""
        found: dict[str, list[Operator]] = {}
        for operator in self.catalogue.operators:
            found.setdefault(operator.namespace, []).append(operator)
        return found

    def libraries(self) -> list[Registration]:
        """The libraries that were opened; the one of fallbacks has no namespace to show."""
        return [fact for fact in self.catalogue.libraries if fact.name != "_"]

    def tiles(self) -> Iterator[tuple[int, str]]:
        """The numbers that the page begins with, each with its words."""
        found = self.catalogue
        defined = sum(operator.definition is not None for operator in found.operators)
        yield _counted(defined, "operator")
        if undefined := len(found.operators) - defined:
            yield undefined, "not defined"
        yield _counted(sum(len(operator.kernels) for operator in found.operators), "kernel")
        yield _counted(len(found.namespaces), "namespace")
        yield _counted(len(found.fallbacks), "fallback")
        alive, words = _counted(sum(member.alive for member in self.members), "member")
        yield alive, f"{words} alive"

    def _facts(self) -> Iterator[Registration]:
        for operator in self.catalogue.operators:
            yield from operator.there
        yield from self.catalogue.fallbacks
        yield from self.catalogue.libraries

    def json(self, page: str | None) -> str:
        seen = self.seen
        answer = {
            "format": 2,
            "mdispatch": __version__,
            "registry": self.catalogue.registry,
            "made": self.made,
            "modules": list(self.modules),
            "page": page,
            "keys": len(RUNTIME_KEYS),
            "state": None if seen is None else seen.state,
            "problems": self.problems,
            "policy": None if seen is None else "elect" if seen.elects else "main",
            "members": [member_json(member) for member in self.members],
            "capacity": None if seen is None else seen.capacity,
            "used": None if seen is None else seen.used,
            "free": None if seen is None else seen.free,
            "operators": [
                operator_json(each) | {"table": self._table_json(each)}
                for each in self.catalogue.operators
            ],
            "fallbacks": [fallback_json(fact) for fact in self.catalogue.fallbacks],
            "others": [other_json(fact) for fact in self.catalogue.others],
            "libraries": [
                {
                    "namespace": fact.name,
                    "kind": facts.kind_of(fact.kind).name,
                    "location": location_of_fact(fact),
                }
                for fact in self.catalogue.libraries
            ],
            "registrars": [
                {
                    "pid": each.pid,
                    "interpreter": each.interpreter,
                    "file": each.file,
                    "definitions": each.definitions,
                    "kernels": each.kernels,
                    "fallbacks": each.fallbacks,
                }
                for each in self.registrars()
            ],
        }
        return json.dumps(answer, indent=2)

    def _table_json(self, operator: Operator) -> list[dict[str, object]]:
        return [
            {
                "keys": list(slots.keys),
                "reason": slots.row.reason,
                "kernel": None if slots.row.is_fallthrough else slots.row.kernel or None,
                "falls_through": slots.row.is_fallthrough,
                "location": location_of_fact(slots.row.registration),
            }
            for slots in self.table(operator)
        ]


# --- the command ----------------------------------------------------------------------------------

#: The end of the help.
EPILOG = f"""\
{WHERE}
\b
Exit status:
  0    written
  2    unusable arguments; no such module, or one that fails; no such
       registry, or one whose registrar is dead; the page could not be
       written
  130  interrupted
"""


@click.command(epilog=EPILOG)
@click.argument("file", metavar="[FILE]", required=False, help="The page, as report.html.")
@imports
@attach
@json_option("report", "JSON, with or without a page")
def report(
    file: str | None,
    modules: tuple[str, ...],
    registry: str | None,
    as_json: bool,
) -> None:
    """Write a registry as one page of HTML. It has the operators with their schemas, kernels and
    dispatch tables, the reason of each entry, who registered what and where, and the members.

    The page is one file that needs nothing else: no network, and JavaScript for the search only. It
    is put in place when it is whole.
    """
    if file is None and not as_json:
        raise click.BadParameter("say where the page goes, as report.html, or ask for --json.")
    if file is not None and not os.path.isdir(os.path.dirname(file) or "."):
        raise click.BadParameter(f"there is no folder {os.path.dirname(file)!r} for the page.")
    if file is not None:
        from .page import page  # nothing else needs Jinja2; where it is missing, nothing was done
    output = standard_output()
    with answering():
        with opened(modules, registry) as source:
            found = catalogue(source)
            seen = _seen(found.registry, registry)
        made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        told = Report(found, seen, made, modules, 0 if modules else os.getpid())
        if file is not None:
            _write(file, page(told))
        if as_json:
            write_text(told.json(file) + "\n", output)
        if file is not None:
            tell_written(file, number_of(len(found.operators), "operator"))


def _seen(address: str, asked: str | None) -> Seen | None:
    """How the registry looks from outside; None where it cannot be looked at."""
    kind, _, name = address.partition(":")
    seen = look_at(address, name if kind in ("shm", "elect") else None)
    return seen if seen.readable else None


def _write(file: str, text: str) -> None:
    try:
        replace_file(file, text)
    except OSError as error:
        complain(f"the page could not be written: {error}")
        raise Exit(2) from None
