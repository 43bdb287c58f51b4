"""How ``mdispatch top`` shows the registries at one moment, and what changed since the one before.

The JSON is one object on a line of its own for each moment; its keys are stable (new ones may
come).

    format          1
    time            seconds since 1970
    seconds         since the moment before; null for the first
    registries      as those of ``mdispatch doctor`` (pydoc mdispatch._doctor_show), each with
                    changes_per_second (registrations and strikes) and recovered (times, since the
                    moment before); null where it was not seen then
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from ._columns import PAGE, fit, plain, say, say_figures
from ._doctor import problems
from ._doctor_show import (
    alarm,
    as_json,
    main_text,
    members_text,
    size,
    state_text,
    waiting_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from ._inspecting import Seen

__all__ = ["Moment"]

_HEADINGS = ("registry", "state", "main", "members", "operators", "facts", "used", "free")
_FIGURES = ("changes/s", "recovered", "waiting")
_MOST_WAITING = 8


@dataclass(frozen=True, slots=True)
class Moment:
    """The registries as they are at a moment: ``at`` by the monotonic clock, ``clock`` by the
    calendar's. ``before`` is the moment before.
    """

    registries: Sequence[Seen]
    at: float
    clock: float
    before: Moment | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.before is None else self.at - self.before.at

    def _earlier(self, seen: Seen) -> Seen | None:
        earlier = () if self.before is None else self.before.registries
        same = (other for other in earlier if other.identity == seen.identity)
        return next(same, None) if seen.readable else None

    def changes(self, seen: Seen) -> float | None:
        """Registrations and strikes per second since the moment before."""
        earlier = self._earlier(seen)
        if earlier is None or not self.seconds:
            return None
        return max(0, seen.sequence - earlier.sequence) / self.seconds

    def recovered(self, seen: Seen) -> int | None:
        """How often a dead holder of the lock was cleaned up after since the moment before."""
        earlier = self._earlier(seen)
        return None if earlier is None else seen.recoveries - earlier.recoveries

    # --- for machines

    def json(self) -> str:
        answer = {
            "format": 1,
            "time": round(self.clock, 3),
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "registries": [
                as_json(seen)
                | {"changes_per_second": self.changes(seen), "recovered": self.recovered(seen)}
                for seen in self.registries
            ],
        }
        return json.dumps(answer)

    # --- for people

    def show(self, console: Console) -> None:
        fit(console, PAGE)
        say(console, self._head())
        shown = [seen for seen in self.registries if not seen.is_leftover]
        if shown:
            say(console)
            rows = [(self._cells(seen), _below(seen)) for seen in shown]
            say_figures(console, (*_HEADINGS, *_FIGURES), rows, left=2)

    def _head(self) -> Text:
        leftovers = sum(seen.is_leftover for seen in self.registries)
        number = len(self.registries) - leftovers
        text = Text(time.strftime("%H:%M:%S", time.localtime(self.clock)), style="bold")
        text.append(f"  {number} registr{'y' if number == 1 else 'ies'}", style="not bold")
        if leftovers:
            words = f", {leftovers} left over (mdispatch doctor --reap)"
            text.append(words, style="not bold yellow")
        return text

    def _cells(self, seen: Seen) -> tuple[Text, ...]:
        label = Text(plain(_short(seen)), style="bold")
        if not seen.readable:
            return (label, state_text(seen), *[Text("-", style="dim")] * 9)
        changes = self.changes(seen)
        rate = Text("-", style="dim") if changes is None else Text(f"{changes:.0f}")
        memory = _short_size(seen.used), _short_size(seen.free)
        figures = str(seen.operators), str(seen.facts), *memory
        recovered = Text(str(seen.recoveries), style="yellow" if self.recovered(seen) else "")
        waiting = Text(str(sum(member.threads for member in seen.waiting)))
        first = label, state_text(seen), main_text(seen), members_text(seen)
        return (*first, *map(Text, figures), rate, recovered, waiting)


def _short(seen: Seen) -> str:
    """A label that fits into a column: an address without what makes it certain."""
    if seen.label.startswith("fd:"):
        return ":".join(seen.label.split(":")[:3])
    return seen.label


def _short_size(number: int) -> str:
    figure, _, unit = size(number).partition(" ")
    return f"{float(figure):.3g}{unit[0]}"


def _below(seen: Seen) -> list[tuple[str, Text]]:
    waiting = seen.waiting
    told = [("waiting", waiting_text(member)) for member in waiting[:_MOST_WAITING]]
    if len(waiting) > _MOST_WAITING:
        told.append(("", Text(f"and {len(waiting) - _MOST_WAITING} more")))
    return told + [("!", alarm(f"{text}.")) for text in problems(seen)]
