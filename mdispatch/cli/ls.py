"""The command ``mdispatch ls``: its arguments, the operators that they select, and its answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import groupby
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from .. import __version__
from ..errors.words import nearest, shown
from ..facts import kind_of
from ..keys.numbers import parse_key
from ..registry.catalogue import catalogue, known_key
from .asking import WHERE, answering, attach, imports, keys_like, opened
from .columns import fit, location_text, number_of, plain, say, say_columns, styled
from .console import complain, json_option, standard_output, write
from .subject import fallback_json, operator_json, other_json

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from rich.console import Console
    from rich.text import Text

    from ..facts import Registration
    from ..registry.catalogue import Catalogue, Operator
    from . import answers
    from .columns import Row, styled

_MOST_OTHERS = 8  # names of another kind than operators in a line

#: What the help ends with.
EPILOG = f"""\
{WHERE}
\b
Exit status:
  0    answered
  1    there is no such operator: the nearest names are told; or none at all
  2    unusable arguments, also a key that does not exist; no such module,
       or one that fails; no such registry, or one whose registrar is
       dead; the answer could not be written
  130  interrupted
"""


@click.command(epilog=EPILOG)
@click.argument(
    "patterns",
    metavar="[PATTERN]...",
    nargs=-1,
    help="Only these: a namespace, a name with or without one, or with * ? [...].",
)
@imports
@attach
@click.option(
    "keys",
    "--key",
    metavar="KEY",
    multiple=True,
    shell_complete=keys_like,
    help="Only those with a kernel at just this key (repeatable: at any of them).",
)
@click.option(
    "tags",
    "--tag",
    metavar="TAG",
    multiple=True,
    help="Only those with this tag (repeatable: any).",
)
@click.option(
    "--at", metavar="TEXT", help="Only those with a registration whose location has this text."
)
@click.option("--dangling", is_flag=True, help="Only those with kernels and no definition.")
@click.option("--schemas", is_flag=True, help="Print schemas in place of the names.")
@json_option("ls")
def ls(
    patterns: tuple[str, ...],
    modules: tuple[str, ...],
    registry: str | None,
    keys: tuple[str, ...],
    tags: tuple[str, ...],
    at: str | None,
    dangling: bool,
    schemas: bool,
    as_json: bool,
) -> None:
    """List operators, the keys of their kernels, and their locations. A number after a key says how
    many kernels there are.
    """
    output = standard_output()
    with answering():
        wanted = {parse_key(key).name for key in keys}
        with opened(modules, registry) as source:
            found = catalogue(source)
        unknown = [*(each for each in patterns if not chosen(found, [each]))]
        listed = chosen(found, patterns or ("*",), wanted, tags, at, dangling)
        if unknown or not listed:
            complain(_nothing(found, unknown, modules))
            raise Exit(1)
        complete = not (patterns or keys or tags or at or dangling)
        others = found.others if complete else ()
        answer = Listing(found.registry, listed, found.fallbacks, others, schemas, complete)
        write(answer, output, as_json)


def chosen(
    found: Catalogue,
    patterns: Iterable[str],
    keys: Collection[str] = (),
    tags: Collection[str] = (),
    at: str | None = None,
    dangling: bool = False,
) -> list[Operator]:
    """The operators that match one of the patterns. If keys, tags or a text are given, an operator
    must also have one of the keys, one of the tags, and a location with this text.
    """
    return [
        each
        for each in found.operators
        if any(fnmatchcase(name, pattern) for name in _names(each) for pattern in patterns)
        and (not keys or any(kernel.key in keys for kernel in each.kernels))
        and (not tags or any(tag in tags for tag in _tags(each)))
        and (at is None or any(at in fact.where for fact in each.there))
        and (each.dangling or not dangling)
    ]


def _tags(operator: Operator) -> tuple[str, ...]:
    return () if operator.definition is None else operator.definition.tags


def _names(operator: Operator) -> tuple[str, ...]:
    """The names that a pattern is compared with."""
    short = operator.name.partition("::")[2]
    base = short.partition(".")[0]
    return operator.name, operator.base, short, base, operator.namespace


def _nothing(found: Catalogue, unknown: Sequence[str], modules: Sequence[str]) -> str:
    """The complaint when nothing, or not every pattern, was found."""
    if not found.operators:
        whose = ", ".join(modules) or f"registry {found.registry}"
        return f"{whose}: there are no operators"
    if not unknown:
        return (
            f"none of {len(found.operators)} operators has all that was asked for: leave out an "
            "option"
        )
    names = {name: _names(each)[0] for each in found.operators for name in _names(each)[:-1]}
    names |= {space: space for space in found.namespaces}
    near = [names[name] for pattern in unknown for name in nearest(pattern, names)]
    if near:
        hint = f"did you mean {', '.join(dict.fromkeys(near))}?"
    else:
        hint = f"there are operators in {', '.join(found.namespaces[:8])}"
    return f"no operator fits {', '.join(map(shown, unknown))}; {hint}"


# --- the answer -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing:
    """What ``mdispatch ls`` answers: the operators that were asked for. With ``schemas``, the text
    for people has schemas in place of names. ``complete``: the operators are all that there are.
    """

    registry: str
    operators: Sequence[Operator]
    fallbacks: Sequence[Registration]
    others: Sequence[Registration]
    schemas: bool = False
    complete: bool = True

    def answer(self) -> answers.Ls:
        return {
            "format": 2,
            "mdispatch": __version__,
            "registry": self.registry,
            "complete": self.complete,
            "operators": [operator_json(each) for each in self.operators],
            "fallbacks": [fallback_json(fact) for fact in self.fallbacks],
            "others": [other_json(fact) for fact in self.others],
        }

    def json(self) -> str:
        return json.dumps(self.answer(), indent=2)

    def show(self, console: Console) -> None:
        fit(console)
        what = "schema" if self.schemas else "operator"
        rows = [self._cells(each) for each in self.operators]
        say_columns(console, (what, "kernels at", "defined at"), rows)
        say(console)
        say(console, self._summary())
        if self.fallbacks:
            keys = ", ".join(known_key(fact.key) for fact in self.fallbacks)
            say(console, f"Fallbacks, for all operators, at {keys}.")
        for kind, there in groupby(self.others, lambda fact: kind_of(fact.kind)):
            names = list(dict.fromkeys(plain(kind.called(fact.name)[0]) for fact in there))
            more = f" and {len(names) - _MOST_OTHERS} more" * (len(names) > _MOST_OTHERS)
            say(console, f"{kind.title}: {', '.join(names[:_MOST_OTHERS])}{more}.")

    def _cells(self, operator: Operator) -> Row:
        there = operator.definition
        name = operator.name if there is None or not self.schemas else there.body
        if there is not None:
            location = styled(location_text(there.where), style="dim")
        else:
            words = "not defined" if operator.dangling else "not defined: a name that is held"
            location = styled(words, style="yellow")
        return styled(plain(name), style="bold"), _kernels_text(operator), location

    def _summary(self) -> str:
        defined = [each for each in self.operators if each.definition is not None]
        kernels = sum(len(each.kernels) for each in self.operators)
        spaces = {each.namespace for each in self.operators}
        told = [f"{number_of(len(defined), 'operator')} in {number_of(len(spaces), 'namespace')}"]
        if len(defined) < len(self.operators):
            told.append(number_of(len(self.operators) - len(defined), "name") + " not defined")
        return f"{', '.join([*told, number_of(kernels, 'kernel')])}."


def _kernels_text(operator: Operator) -> Text:
    """The keys that have kernels; a key with several is followed by their number."""
    count: dict[str, int] = {}
    for kernel in operator.kernels:
        key = operator.key_in_words(kernel)
        count[key] = count.get(key, 0) + 1
    told = [key if number == 1 else f"{key} ({number})" for key, number in count.items()]
    return styled(", ".join(told)) if told else styled("-", style="dim")
