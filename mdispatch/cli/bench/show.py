"""Shows the result of ``mdispatch bench``: in columns for people, or as JSON.

The JSON is one object; its keys are stable (new ones may come).

    format        1
    about         versions of mdispatch, Python, the system and the peers that are installed, and
                  the number of processors: texts
    quick         whether it was rough
    load          the machine's load average (of a minute) when it began and when it ended
    busy          whether others worked when it began
    began         seconds since 1970
    seconds       that it took
    jobs          one object each: job, what, figures (below),
                  left_out (objects of who and why: peers that are not installed or cannot do it),
                  missing (why the job cannot be measured here, or null),
                  failure (exit status of its process and what that said last, or null)

A figure has

    what, peer    what was measured, and of whom ("" where there is but one)
    unit          "x": a ratio, both sides measured in turns in one process; "+x": the difference of
                  two ratios; else that of the other numbers
    median        over all rounds of all processes
    best          the smallest; of a ratio the smallest of these over the smallest of those, as it
                  was in the middle process
    low, high     the quartiles of the rounds
    rounds, processes
                  numbers, the rounds of all processes together
    unsteady      whether half of the rounds do not lie within a tenth of the median, or of a plain
                  call where it is a difference
    aim, at_least, missed
                  the largest value wanted, or with at_least the smallest; null where there is none
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from ..columns import PAGE, fit, plain, say, say_figures, say_pairs
from .figures import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from .running import Outcome, Run


@dataclass(frozen=True, slots=True)
class Measured:
    """The answer of ``mdispatch bench``."""

    run: Run

    @property
    def failed(self) -> bool:
        return any(outcome.failure for outcome in self.run.outcomes)

    # --- for machines

    def json(self) -> str:
        run = self.run
        answer = {
            "format": 1,
            "about": run.about,
            "quick": run.settings.quick,
            "load": run.load,
            "busy": run.busy,
            "began": round(run.began, 3),
            "seconds": round(run.seconds, 3),
            "jobs": [_outcome_json(outcome) for outcome in run.outcomes],
        }
        return json.dumps(answer, indent=1)

    # --- for people

    def show(self, console: Console) -> None:
        fit(console, PAGE)
        say(console, Text(self._head()))
        for outcome in self.run.outcomes:
            say(console)
            _show(console, outcome)
        self._show_notes(console)

    def _head(self) -> str:
        about = dict(self.run.about)
        first = [f"{name} {about.pop(name)}" for name in ("mdispatch", "Python")]
        count = about.pop("processors")
        first += [about.pop("system"), f"{count} processor{'s' * (count != '1')}"]
        began, ended = self.run.load
        first.append(f"load {began:.1f} before and {ended:.1f} after, {self.run.seconds:.0f} s")
        return ", ".join([*first, *(f"{name} {version}" for name, version in about.items())])

    def _show_notes(self, console: Console) -> None:
        figures = [each for outcome in self.run.outcomes for each in outcome.answer.figures]
        missed = sum(each.missed for each in figures)
        wanted = sum(each.aim is not None for each in figures)
        unsteady = sum(each.unsteady for each in figures)
        say(console)
        say(console, f"{len(figures)} figures; {missed} of {wanted} aims missed.")
        if unsteady:
            say(
                console,
                f"~ {unsteady} of them unsteady: half of the rounds differ by more than a tenth "
                "from the median.",
            )
        if self.run.busy:
            say(console, "The machine was busy when this began: take the figures again.")
        if self.run.settings.quick:
            say(console, "These are rough: --quick.")


def _outcome_json(outcome: Outcome) -> dict[str, object]:
    failure = outcome.failure
    figures = [
        {name: value for name, value in asdict(each).items() if name != "values"}
        | {"missed": each.missed if each.aim is not None else None, "unsteady": each.unsteady}
        for each in outcome.answer.figures
    ]
    return {
        "job": outcome.job.name,
        "what": outcome.job.what,
        "figures": figures,
        "left_out": [each._asdict() for each in outcome.answer.left_out],
        "missing": outcome.missing or None,
        "failure": failure and {"status": failure.status, "said": failure.said},
    }


# --- one job --------------------------------------------------------------------------------------


def _show(console: Console, outcome: Outcome) -> None:
    say(console, Text(f"{outcome.job.name}: {outcome.job.what}", style="bold"))
    if outcome.missing:
        say(console, f"not measured: {outcome.missing}", indent=2)
    elif outcome.failure is not None:
        say(console, Text(f"failed with status {outcome.failure.status}", style="red"), indent=2)
        for line in outcome.failure.said.splitlines():
            say(console, plain(line), indent=4)
    figures = outcome.answer.figures
    if any(each.peer for each in figures):
        _show_peers(console, figures)
    if rows := [(_cells(each), ()) for each in listed(figures)]:
        say_figures(console, ("", "median", "best", "half of all", "aim", ""), rows, left=1)
    if outcome.answer.left_out:
        say(console, "left out:", indent=2)
        pairs = [(plain(each.who), plain(each.why)) for each in outcome.answer.left_out]
        say_pairs(console, pairs, indent=4)


def peers_of(figures: Sequence[Figure]) -> Iterator[tuple[str, dict[str, Figure]]]:
    """Each peer that has figures, with its figures by what was measured."""
    for peer in dict.fromkeys(each.peer for each in figures if each.peer):
        yield peer, {each.what: each for each in figures if each.peer == peer}


def listed(figures: Sequence[Figure]) -> list[Figure]:
    """The figures that have a line of their own: those of no peer, and those with an aim."""
    return [each for each in figures if not each.peer or each.aim is not None]


def _show_peers(console: Console, figures: Sequence[Figure]) -> None:
    columns = list(dict.fromkeys(each.what for each in figures if each.peer))
    for best in (False, True):
        rows = [
            (
                (
                    Text(peer),
                    *(_short(done[what], best) if what in done else Text("-") for what in columns),
                ),
                (),
            )
            for peer, done in peers_of(figures)
        ]
        say_figures(console, ("best" if best else "median", *columns), rows, left=1)
        say(console)


def _short(figure: Figure, best: bool) -> Text:
    unit = "" if figure.unit == "x" else f" {figure.unit}"
    if best:
        return Text(f"{number(figure.best)}{unit}")
    text = f"{number(figure.median)}{unit}{'~' * figure.unsteady}"
    return Text(text, style="red" if figure.missed else "")


def _cells(figure: Figure) -> tuple[Text, ...]:
    between = f"{number(figure.low)} to {number(figure.high)}" if figure.rounds > 1 else ""
    what = f"{figure.peer}: {figure.what}" if figure.peer else figure.what
    return (
        Text(plain(what)),
        Text(f"{number(figure.median)} {figure.unit}{'~' * figure.unsteady}"),
        Text(number(figure.best)),
        Text(between),
        Text(aim_text(figure)),
        Text(verdict(figure), style="red" if figure.missed else "green"),
    )


def number(value: float) -> str:
    """A number with three significant digits."""
    size = abs(value)
    return f"{value:,.0f}" if size >= 99.5 else f"{value:.1f}" if size >= 9.95 else f"{value:.2f}"


def aim_text(figure: Figure) -> str:
    if figure.aim is None:
        return ""
    return f"{'>=' if figure.at_least else '<='} {figure.aim:,g}"


def verdict(figure: Figure) -> str:
    if figure.aim is None:
        return ""
    return "missed" if figure.missed else "met"
