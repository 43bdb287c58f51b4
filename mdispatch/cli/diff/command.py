"""The command ``mdispatch diff``: its arguments and its answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import click
from click.exceptions import Exit

from ... import __version__
from ...editions.comparing import compared, verdict_of
from ...errors.words import shown
from ...schema.compatible import BREAKING, COMPATIBLE, SAME, VERDICTS
from ..asking import answering, registries_like
from ..columns import PAGE, fit, location_text, number_of, plain, say, styled
from ..console import complain, json_option, standard_output, write
from .sources import snapshot, source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ...editions.comparing import Change
    from ...editions.snapshot import Snapshot
    from .. import answers
    from .sources import Source

_LEAST = 20  # A line is not made narrower than this.


@click.command
@click.argument(
    "old",
    metavar="OLD",
    callback=source_of,
    shell_complete=registries_like,
    help="The version that is there: see above.",
)
@click.argument(
    "new",
    metavar="NEW",
    callback=source_of,
    shell_complete=registries_like,
    help="The version that is to take its place.",
)
@click.option(
    "patterns",
    "--only",
    metavar="PATTERN",
    multiple=True,
    help="Only these operators: a namespace, a name, or with * ? [...] (repeatable).",
)
@click.option(
    "--fail",
    type=click.Choice([BREAKING, COMPATIBLE]),
    default=BREAKING,
    help="End with status 1 for a difference of this kind, or a worse one.",
)
@json_option("diff")
def diff(old: Source, new: Source, patterns: tuple[str, ...], fail: str, as_json: bool) -> None:
    """Compare two versions: same, compatible or breaking.

    NEW is compatible if all that works with OLD works with NEW. Each difference has both
    locations, and breaking ones come first. docs/diff.md has the rules, and the reason of each.

    Each of OLD and NEW is one of these:

    \b
      a registry  of a process that is running: its name or its address
      modules     by name, with commas between them; they are imported in a
                  new process, the current directory is searched
      a file      that mdispatch ls --json has written, for all operators

    Where one word can be two of these, shm:NAME is the registry, module:NAME the module, and
    ./NAME the file.

    \b
    Exit status:
      0    the same, or no difference that --fail names
      1    there is a difference of the kind that --fail names, or a worse one
      2    unusable arguments; no such registry, module or file; a module that
           fails; a file that is damaged or has some operators only; no
           operators in one, or none of --only in both; the answer could not
           be written
      130  interrupted
    """
    output = standard_output()
    with answering():
        before, after = snapshot(old, "OLD"), snapshot(new, "NEW")
        if patterns:
            before, after = before.only(patterns), after.only(patterns)
            if not (before.operators or after.operators):
                complain(f"no operator fits {', '.join(map(shown, patterns))} in OLD or in NEW")
                raise Exit(2)
        answer = Answer((old, new), (before, after), compared(before, after), fail)
        write(answer, output, as_json)
    if answer.fails:
        raise Exit(1)


class Answer(NamedTuple):
    """What ``mdispatch diff`` answers."""

    sources: tuple[Source, Source]
    snapshots: tuple[Snapshot, Snapshot]
    changes: Sequence[Change]
    fail: str

    @property
    def verdict(self) -> str:
        return verdict_of(self.changes)

    @property
    def fails(self) -> bool:
        return VERDICTS.index(self.verdict) >= VERDICTS.index(self.fail)

    def of(self, verdict: str) -> list[Change]:
        return [each for each in self.changes if each.verdict == verdict]

    def json(self) -> str:
        old, new = (
            _side_json(source, found)
            for source, found in zip(self.sources, self.snapshots, strict=True)
        )
        answer: answers.Diff = {
            "format": 2,
            "mdispatch": __version__,
            "old": old,
            "new": new,
            "verdict": self.verdict,
            "fail": self.fail,
            "fails": self.fails,
            "differences": [
                _change_json(each)
                for verdict in (BREAKING, COMPATIBLE)
                for each in self.of(verdict)
            ],
        }
        return json.dumps(answer, indent=2)

    def show(self, console: Console) -> None:
        fit(console, PAGE)
        style = {SAME: "bold green", COMPATIBLE: "bold yellow", BREAKING: "bold red"}
        say(console, styled(self._verdict(), style=style[self.verdict]))
        for side, source, found in zip(("OLD", "NEW"), self.sources, self.snapshots, strict=True):
            defined = sum(each.schema is not None for each in found.operators)
            text = f"{side} is {source}: {number_of(defined, 'operator')}."
            say(console, styled(plain(text), style="dim"))
        for verdict, title in ((BREAKING, "Breaking"), (COMPATIBLE, "Compatible")):
            if self.of(verdict):
                say(console)
                say(console, styled(title, style=style[verdict]))
            for each in self.of(verdict):
                _show(console, each)
        if self.of(BREAKING):
            say(console)
            say(
                console,
                "Keep what OLD has and register the new beside it, under another name or as a last "
                "overload. Or end all processes of OLD before those of NEW start, or make these an "
                "edition: MDISPATCH_REGISTRY=elect:NAME@{env:RELEASE} (docs/diff.md).",
            )

    def _verdict(self) -> str:
        breaking, compatible = len(self.of(BREAKING)), len(self.of(COMPATIBLE))
        if breaking:
            told = f"Breaking: {number_of(breaking, 'difference')} "
            told += "breaks" if breaking == 1 else "break"
            also = f"; {compatible} more {'is' if compatible == 1 else 'are'} compatible"
            return f"{told} what works with OLD{also * bool(compatible)}."
        if compatible:
            which = "which is" if compatible == 1 else "all of them"
            return f"Compatible: {number_of(compatible, 'difference')}, {which} compatible."
        return "Same: OLD and NEW register the same."


def _show(console: Console, change: Change) -> None:
    text = styled(plain(change.name), style="bold").append(f": {plain(change.words)}", "not bold")
    first, *rest = text.wrap(console, max(_LEAST, console.width - 4))
    say(console, first, indent=2)
    for line in rest:
        say(console, line, indent=4)
    for side, where in (("OLD", change.old), ("NEW", change.new)):
        location = location_text(where) if where else "nothing"
        say(console, styled(f"{side}  {location}", style="dim"), indent=4)


def _side_json(source: Source, found: Snapshot) -> answers.DiffSide:
    return {
        "kind": source.kind,
        "name": source.name,
        "operators": sum(each.schema is not None for each in found.operators),
    }


def _change_json(change: Change) -> answers.DiffDifference:
    return {
        "verdict": change.verdict,
        "rule": change.rule,
        "kind": change.kind,
        "name": change.name,
        "text": change.words,
        "old": change.old or None,
        "new": change.new or None,
    }
