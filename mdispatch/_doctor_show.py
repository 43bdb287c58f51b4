"""How ``mdispatch doctor`` answers: a table for people, or JSON.

The JSON is one object; its keys are stable (new ones may come). Null stands for what is not known.

    format          1
    mdispatch       version
    problems        how many registries need attention: exit status 0 for none
    folder_problem  why the folder of named registries cannot be looked into, or null
    registries      one object each, named ones first:
                    address (what attaches to it), name (null for an anonymous one), state ("open",
                    "closed", "main died", "damaged", "refused"), error (class of mdispatch.errors)
                    and text of what attaching to it raises, or null; deleted (its file was taken
                    away), held_by (processes that have one without a file open), problems (texts);
                    and, null where it cannot be read:
                    policy ("main" or "elect"), main (pid; state "not joined", "alive", "left",
                    "died"; stopped), processes (alive and dead ones that joined), members (objects
                    as below), operators, kernels, facts, names, capacity, committed, used, free
                    (bytes), sequence, recoveries, lock (null, or thread, pid, stopped, died)
    checks          with --check, one object for each live one: address, well, broken (texts), error
    reaped          with --reap, one object for each that might have been removed: name, removed,
                    why

    a member        pid, interpreter (its id; -1: the program that embeds interpreters), role
                    ("main", "worker", "peer"), alive, waits (null, or threads, kind (null for any
                    change), name, key, seconds: of the newest wait)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from . import __version__
from . import _registry as facts
from ._columns import PAGE, fit, plain, say, say_figures
from ._doctor import awaited, key_name, problems

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from ._doctor import Check, Reaped
    from ._inspecting import Member, Seen

__all__ = ["Diagnosis", "alarm", "as_json", "duration", "main_text", "member_json", "members_text"]
__all__ += ["size", "state_text", "waiting_text"]

_MOST_WAITING = 20
_HEADINGS = ("registry", "state", "main", "members", "processes")
_FIGURES = ("operators", "facts", "names", "waiting")
_STYLES = {"open": "green", "closed": "yellow"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What ``mdispatch doctor`` has found, and what it has done."""

    registries: Sequence[Seen]
    checks: Mapping[str, Check] | None = None
    reaped: Sequence[Reaped] | None = None
    folder_problem: Exception | None = None

    @property
    def needs_attention(self) -> int:
        """How many registries do; the folder counts as one."""
        sick = [seen for seen in self.registries if problems(seen) or not self._is_well(seen)]
        return len(sick) + (self.folder_problem is not None)

    def _is_well(self, seen: Seen) -> bool:
        checked = (self.checks or {}).get(seen.address)
        return checked is None or checked.is_well

    # --- for machines

    def json(self) -> str:
        answer: dict[str, object] = {
            "format": 1,
            "mdispatch": __version__,
            "problems": self.needs_attention,
            "folder_problem": None if self.folder_problem is None else str(self.folder_problem),
            "registries": [as_json(seen) for seen in self.registries],
        }
        if self.checks is not None:
            answer["checks"] = [
                {
                    "address": address,
                    "well": check.is_well,
                    "broken": list(check.broken),
                    "error": check.error or None,
                }
                for address, check in self.checks.items()
            ]
        if self.reaped is not None:
            answer["reaped"] = [
                {"name": each.name, "removed": each.removed, "why": each.why}
                for each in self.reaped
            ]
        return json.dumps(answer, indent=2)

    # --- for people

    def show(self, console: Console) -> None:
        fit(console, PAGE)
        for each in self.reaped or ():
            done = "removed" if each.removed else "left alone"
            say(console, Text(plain(f"{done}: {each.name}: {each.why}."), style="bold"))
        if self.reaped:
            say(console)
        elif self.reaped is not None:
            say(console, "Nothing to remove.")
            say(console)
        if self.folder_problem is not None:
            say(console, alarm(str(self.folder_problem)))
        rows = [(self._cells(seen), self._below(seen)) for seen in self.registries]
        if rows:
            say_figures(console, (*_HEADINGS, *_FIGURES), rows, left=2)
            say(console)
        leftovers = sum(seen.is_leftover for seen in self.registries)
        if leftovers:
            what = "file is" if leftovers == 1 else "files are"
            words = f"{leftovers} {what} left over, nobody is alive: mdispatch doctor --reap"
            say(console, Text(words, style="yellow"))
        say(console, self._verdict())

    def _cells(self, seen: Seen) -> tuple[Text, ...]:
        label = Text(plain(seen.label), style="bold")
        if not seen.readable:
            return (label, state_text(seen), *[Text("-", style="dim")] * 7)
        figures = (seen.alive, seen.operators, seen.facts, seen.names)
        waiting = sum(member.threads for member in seen.waiting)
        cells = [Text(str(figure)) for figure in (*figures, waiting)]
        return (label, state_text(seen), main_text(seen), members_text(seen), *cells)

    def _below(self, seen: Seen) -> list[tuple[str, Text]]:
        """What stands under a registry's row, each with the word before it."""
        told: list[tuple[str, Text]] = []
        if seen.is_leftover:
            return told
        if seen.readable:
            told.append(("memory", Text(_memory(seen), style="dim")))
        waiting = seen.waiting
        told += [("waiting", waiting_text(member)) for member in waiting[:_MOST_WAITING]]
        if len(waiting) > _MOST_WAITING:
            told.append(("", Text(f"and {len(waiting) - _MOST_WAITING} more (--json has all)")))
        checked = (self.checks or {}).get(seen.address)
        if checked is not None:
            told += [("check", text) for text in _checked(checked)]
        told += [("!", alarm(f"{text}.")) for text in problems(seen)]
        return told

    def _verdict(self) -> Text:
        number, bad = len(self.registries), self.needs_attention
        if not number and not bad:
            return Text("No registries.")
        what = f"{number} registr{'y' if number == 1 else 'ies'}"
        if not bad:
            return Text(f"{what}, nothing wrong.", style="bold green")
        return Text(f"{what}, {bad} need{'s' * (bad == 1)} attention.", style="bold yellow")


# --- parts, also for top --------------------------------------------------------------------------


def state_text(seen: Seen) -> Text:
    if seen.is_leftover:
        return Text("left over", style="yellow")
    return Text(seen.state, style=_STYLES.get(seen.state, "red"))


def main_text(seen: Seen) -> Text:
    if seen.elects:
        return Text("elect")
    if seen.main_stopped:
        return Text(f"{seen.main_pid} stopped", style="yellow")
    return Text(str(seen.main_pid), style="dim" if seen.main_state in ("left", "died") else "")


def members_text(seen: Seen) -> Text:
    alive = sum(member.alive for member in seen.members)
    text = Text(str(alive))
    if alive < len(seen.members):
        text.append(f", {len(seen.members) - alive} dead", style="red")
    return text


def _memory(seen: Seen) -> str:
    recovered = f"recovered {seen.recoveries} time{'s' * (seen.recoveries != 1)}"
    return (
        f"{size(seen.used)} used, {size(seen.free)} free of {size(seen.capacity)}; "
        f"{size(seen.committed)} committed; {recovered}"
    )


def waiting_text(member: Member) -> Text:
    who = facts.who(member.pid, member.interpreter)
    if member.threads > 1:
        who += f", newest of {member.threads} threads"
    return Text(plain(f"{who}: {awaited(member)}, {duration(member.seconds)}"))


def _checked(check: Check) -> list[Text]:
    if check.error:
        return [alarm(check.error)]
    if not check.broken:
        return [Text("all invariants hold", style="green")]
    return [alarm(line) for line in check.broken]


def alarm(text: str) -> Text:
    return Text(plain(" ".join(text.split())), style="yellow")


def size(number: int) -> str:
    """Bytes, with three digits or so."""
    figure, unit = float(number), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if figure < 1000:
            break
        figure, unit = figure / 1024, larger
    return f"{figure:.1f}".removesuffix(".0") + f" {unit}"


def duration(seconds: float) -> str:
    """A time as one says it."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"


def as_json(seen: Seen) -> dict[str, object]:
    """One registry as the JSON has it."""
    told: dict[str, object] = {
        "address": seen.address,
        "name": seen.name,
        "state": seen.state,
        "error": None if seen.error is None else type(seen.error).__name__,
        "text": None if seen.error is None else str(seen.error),
        "deleted": seen.deleted,
        "held_by": list(seen.held_by),
        "problems": problems(seen),
    }
    main = {"pid": seen.main_pid, "state": seen.main_state, "stopped": seen.main_stopped}
    lock = seen.lock
    figures = {
        "policy": "elect" if seen.elects else "main",
        "main": None if seen.elects else main,
        "processes": {"alive": seen.alive, "dead": seen.dead},
        "members": [member_json(member) for member in seen.members],
        "operators": seen.operators,
        "kernels": seen.kinds[facts.IMPL],
        "facts": seen.facts,
        "names": seen.names,
        "capacity": seen.capacity,
        "committed": seen.committed,
        "used": seen.used,
        "free": seen.free,
        "sequence": seen.sequence,
        "recoveries": seen.recoveries,
        "lock": lock
        and {
            "thread": lock.tid,
            "pid": lock.pid or None,
            "stopped": lock.stopped,
            "died": lock.died,
        },
    }
    return told | (figures if seen.readable else dict.fromkeys(figures))


def member_json(member: Member) -> dict[str, object]:
    waits: dict[str, object] | None = None
    if member.waits:
        waits = {
            "threads": member.threads,
            "kind": facts.KIND_NAMES.get(member.kind, member.kind) if member.kind else None,
            "name": member.name,
            "key": key_name(member.key) if member.kind in (facts.IMPL, facts.FALLBACK) else None,
            "seconds": round(member.seconds, 3),
        }
    return {
        "pid": member.pid,
        "interpreter": member.interpreter,
        "role": member.role,
        "alive": member.alive,
        "waits": waits,
    }
