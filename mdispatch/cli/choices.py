"""The command ``mdispatch choices``: the choices that the members of a registry have made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from .. import __version__
from ..choices.listing import Choice, export, made, withdraw
from ..facts import who
from .asking import WHERE, answering, attach, imports, opened
from .columns import fit, location_text, number_of, plain, say, say_columns, styled
from .console import complain, json_option, standard_output, tell_written, write
from .subject import location_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from . import answers
    from .columns import Row

_EPILOG = f"""\
{WHERE}
\b
Exit status:
  0    answered
  1    nobody has chosen anything, or nothing for these operators
  2    unusable arguments; no such module, or one that fails; no such
       registry, or one whose registrar is dead; the file could not be
       written
  130  interrupted
"""


@click.command(epilog=_EPILOG)
@click.argument(
    "patterns",
    metavar="[PATTERN]...",
    nargs=-1,
    help="Only those for these operators: names, or with * ? [...].",
)
@imports
@attach
@click.option("--export", "file", metavar="FILE", help="Write them into a file, to be loaded.")
@click.option("--withdraw", "ends", is_flag=True, help="End them: members decide anew.")
@json_option("choices")
def choices(
    patterns: tuple[str, ...],
    modules: tuple[str, ...],
    registry: str | None,
    file: str | None,
    ends: bool,
    as_json: bool,
) -> None:
    """List what the members of a registry have chosen. Of each choice this tells when it was
    made, by whom, how long that took, and how many waited for it.
    """
    output = standard_output()
    with answering():
        with opened(modules, registry) as source:
            found = [
                *(
                    each
                    for each in made(registry=source)
                    if not patterns or any(fnmatchcase(each.operator, one) for one in patterns)
                )
            ]
            if file is not None and found:
                export(file, found, registry=source)
                tell_written(file, number_of(len(found), "choice"))
            gone = [*(each for each in found if ends and withdraw(each, registry=source))]
            address = source.address
        if not found:
            asked = f" for {', '.join(patterns)}" if patterns else ""
            complain(f"nobody has chosen anything{asked} in {address}.")
            raise Exit(1)
        write(Chosen(address, found, gone), output, as_json)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The answer: the choices, and those of them that were withdrawn."""

    registry: str
    choices: Sequence[Choice]
    gone: Sequence[Choice]

    def json(self) -> str:
        answer: answers.Choices = {
            "format": 2,
            "mdispatch": __version__,
            "registry": self.registry,
            "choices": [_json(each, each in self.gone) for each in self.choices],
        }
        return json.dumps(answer, indent=2)

    def show(self, console: Console) -> None:
        fit(console)
        headings = ("operator", "profile", "choice", "made", "took", "waited", "by", "asked at")
        say_columns(console, headings, [_cells(each) for each in self.choices], range(4, 6))
        say(console)
        said = f"{number_of(len(self.choices), 'choice')}."
        if self.gone:
            said += f" {number_of(len(self.gone), 'choice')} withdrawn: members decide anew."
        say(console, said)


def _json(choice: Choice, gone: bool) -> answers.Choice:
    return {
        "operator": choice.operator,
        "profile": choice.profile,
        "environment": choice.environment,
        "choice": choice.value,
        "candidates": choice.candidates,
        "made": choice.at,
        "seconds": choice.seconds,
        "waited": choice.waited,
        "withdrawn": gone,
        "location": location_json(choice.fact),
    }


def _cells(choice: Choice) -> Row:
    profile = json.dumps(choice.profile)
    if choice.environment is not None:
        profile += f" in {json.dumps(choice.environment)}"
    when = datetime.fromtimestamp(choice.at).isoformat(" ", "seconds")
    return (
        styled(plain(choice.operator), style="bold"),
        styled(plain(profile)),
        styled(plain(json.dumps(choice.value)), style="bold"),
        styled(when),
        styled(f"{choice.seconds:.3g} s"),
        styled(str(choice.waited)),
        styled(who(choice.pid, choice.interpreter)),
        styled(location_text(choice.where), style="dim"),
    )
