"""The command ``mdispatch agree``: the values on which the members of a registry agree."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from .. import __version__
from ..choices.looking import Agreement, agreements
from ..facts import who
from .asking import WHERE, answering, attach, imports, opened
from .columns import fit, location_text, number_of, plain, say, say_columns, styled
from .console import complain, json_option, standard_output, write
from .subject import location_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ..choices.looking import Asked
    from . import answers
    from .columns import Row

_EPILOG = f"""\
{WHERE}
\b
Exit status:
  0    answered, and nobody differs
  1    a member has another value, or there is no agreement (of these names)
  2    unusable arguments; no such module, or one that fails; no such
       registry, or one whose registrar is dead
  130  interrupted
"""


@click.command(epilog=_EPILOG)
@click.argument(
    "patterns", metavar="[NAME]...", nargs=-1, help="Only these: names, or with * ? [...]."
)
@imports
@attach
@json_option("agree")
def agree(
    patterns: tuple[str, ...], modules: tuple[str, ...], registry: str | None, as_json: bool
) -> None:
    """Show the values on which the members of a registry agree. Each member comes with its value,
    and the time and the line at which it asked.
    """
    output = standard_output()
    with answering():
        with opened(modules, registry) as source:
            found = [
                *(
                    each
                    for each in agreements(registry=source)
                    if not patterns or any(fnmatchcase(each.name, one) for one in patterns)
                )
            ]
            address = source.address
        if not found:
            asked = f" of {', '.join(patterns)}" if patterns else ""
            complain(f"there is no agreement{asked} in {address}.")
            raise Exit(1)
        write(Found(address, found), output, as_json)
        if any(not member.agrees for each in found for member in each.members):
            raise Exit(1)


@dataclass(frozen=True, slots=True)
class Found:
    """The answer: the agreements."""

    registry: str
    agreements: Sequence[Agreement]

    def json(self) -> str:
        answer: answers.Agreements = {
            "format": 2,
            "mdispatch": __version__,
            "registry": self.registry,
            "agreements": [_json(each) for each in self.agreements],
        }
        return json.dumps(answer, indent=2)

    def show(self, console: Console) -> None:
        fit(console)
        headings = ("agreement", "value", "by", "rank", "since", "asked at")
        rows = [_cells(each, member) for each in self.agreements for member in each.members]
        say_columns(console, headings, rows, range(3, 4))
        say(console)
        for each in self.agreements:
            told = [f"{name}={its}" for name, its in each.patterns.items()]
            told += ["it stays as long as the registry"] * each.kept
            if told:
                say(console, f"{plain(each.name)}: {plain(', '.join(told))}")
        different = sum(not member.agrees for each in self.agreements for member in each.members)
        said = f"{number_of(len(self.agreements), 'agreement')}"
        say(console, f"{said}. {number_of(different, 'member')} with another value.")


def _json(agreement: Agreement) -> answers.Agreement:
    return {
        "name": agreement.name,
        "value": agreement.value,
        "kept": agreement.kept,
        "patterns": {name: its for name, its in agreement.patterns.items() if name != "follow"},
        "follow": bool(agreement.patterns.get("follow")),
        "among": agreement.among,
        "members": [
            {
                "agrees": each.agrees,
                "value": each.value,
                "since": each.at,
                "rank": each.rank,
                "location": location_json(each.fact),
            }
            for each in agreement.members
        ],
    }


def _cells(agreement: Agreement, member: Asked) -> Row:
    when = datetime.fromtimestamp(member.at).isoformat(" ", "seconds")
    return (
        styled(plain(agreement.name), style="bold"),
        styled(plain(member.value), style="" if member.agrees else "bold red"),
        styled(who(member.pid, member.interpreter)),
        styled("" if member.rank is None else str(member.rank)),
        styled(when),
        styled(location_text(member.where), style="dim"),
    )
