"""The command ``mdispatch doctor``: finds registries, says what is wrong with each and what to do
about it, checks those that live (--check), and removes those that nobody uses (--reap).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import click
from click.exceptions import Exit

from .. import __version__, facts
from ..errors import MdispatchError
from ..facts.outside import (
    Check,
    Reaped,
    apart,
    check,
    find_one,
    find_registries,
    folder_problem,
    reap,
    to_reap,
)
from ..registry.catalogue import known_key
from . import sections
from .asking import reason, registries_like
from .columns import PAGE, fit, plain, say, say_figures, size, styled
from .console import complain, json_option, standard_output, write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console
    from rich.text import Text

    from ..facts.outside import Apart, Member, Seen
    from . import answers

registry_argument = click.argument(
    "registry",
    metavar="[REGISTRY]",
    required=False,
    shell_complete=registries_like,
    help="Only this one: its name or address.",
)


def look(registry: str | None) -> list[Seen]:
    """All registries, or the one that was asked for."""
    return find_registries() if registry is None else [find_one(registry)]


def diagnose(
    registry: str | None = None, reaps: bool = False, checks: bool = False, dry: bool = False
) -> Diagnosis:
    """Looks at registries; reaps before that and checks after it, if asked to. A dry run tells what
    it would remove, and removes nothing.
    """
    found = look(registry)
    reaped = None
    if reaps and dry:
        reaped = to_reap(found)
    elif reaps:
        reaped = reap(found)
        gone = {each.name for each in reaped if each.removed}
        found = [seen for seen in found if not (seen.is_file and seen.name in gone)]
    checked = None
    if checks:
        asked = ((seen.address, check(seen)) for seen in found)
        checked = {address: result for address, result in asked if result is not None}
    problem = folder_problem() if registry is None else None
    return Diagnosis(found, checked, reaped, problem, dry, apart(found))


@click.command
@registry_argument
@click.option("reaps", "--reap", is_flag=True, help="Remove those that nobody uses any more.")
@click.option(
    "dry", "--dry-run", is_flag=True, help="Show what --reap would remove; nothing is removed."
)
@click.option(
    "checks", "--check", is_flag=True, help="Recompute the invariants of those that live."
)
@json_option("doctor")
def doctor(
    registry: str | None,
    reaps: bool,
    dry: bool,
    checks: bool,
    as_json: bool,
) -> None:
    """List the registries of this user, and what is wrong with them. It tells who is alive, what is
    in them, who serves kernels to whom, who waits for what, and who differs and goes on.

    Looking joins nothing, takes no lock and changes nothing; a registry whose registrar is dead
    or whose lock is held by a stopped one is shown all the same.

    --reap removes the files of registries whose processes are all dead. Whether somebody of a
    damaged one, or of one of another version, boot or PID namespace, is alive cannot be told by
    its members: it is removed only if no process has it open. What is no registry is left alone.
    With --dry-run it tells what it would remove, and removes nothing.

    --check takes each live registry's lock for a moment, as every registration does; it joins
    nothing, and waits at most 10 seconds for a lock.

    \b
    Exit status:
      0    nothing is wrong (after --reap: any more)
      1    something needs attention: a dead registrar, others that died
           without leaving, a member that differs from what is registered, a
           file left over, a stopped process, damage, a file that cannot be
           read, a folder that is kept locked; lines with ! say what
      2    unusable arguments; no such registry
      130  interrupted
    """
    if dry and not reaps:
        raise click.BadParameter("--dry-run goes with --reap: nothing else changes anything.")
    output = standard_output()
    try:
        found_out = diagnose(registry, reaps, checks, dry)
        write(found_out, output, as_json)
    except (MdispatchError, OSError) as error:
        complain(reason(error))
        raise Exit(2) from None
    except KeyboardInterrupt:
        raise Exit(130) from None
    raise Exit(1 if found_out.needs_attention else 0)


_REAP = "mdispatch doctor --reap removes it"
_MOST_DIFFERING = 5


def awaited(member: Member) -> str:
    """The name in words of what a member waits for."""
    if not member.kind:
        return "any change"
    kind = facts.kind_of(member.kind)
    return kind.say(kind.what, member.name, known_key(member.key))


# --- what is wrong --------------------------------------------------------------------------------


def problems(seen: Seen) -> list[str]:
    """One sentence for each thing that needs attention; [] for a registry that is well."""
    return [
        *_of_its_state(seen),
        *_of_its_members(seen),
        *_of_what_differs(seen),
        *_of_its_memory(seen),
    ]


def _of_its_state(seen: Seen) -> Iterator[str]:
    if seen.is_leftover:
        left = {
            "closed": "it was closed and its file was left",
            "registrar died": f"its registrar, pid {seen.registrar_pid}, died; no member is left",
        }
        yield f"{left.get(seen.state, 'nobody of it is left')}: {_REAP}"
    elif seen.state == "registrar died":
        yield (
            f"its registrar, pid {seen.registrar_pid}, died: nobody registers in it any more. "
            "Start that again, then its workers"
        )
    elif seen.state in ("damaged", "refused"):
        after = f". {_REAP} if no process has it open" if seen.is_odd else ""
        yield f"{seen.error}{after}"
    if seen.deleted and seen.state == "open":
        yield "its file was deleted: nobody can attach to it by name any more"


def _of_its_members(seen: Seen) -> Iterator[str]:
    if seen.registrar_stopped:
        pid = seen.registrar_pid
        yield f"its registrar, pid {pid}, is stopped: kill -CONT {pid}"
    if seen.lock is not None and seen.lock.stopped:
        yield (
            f"its lock is held by pid {seen.lock.pid}, which is stopped, and all who need it wait: "
            f"continue or end it"
        )
    if seen.lock is not None and seen.lock.died and seen.state == "open":
        yield "whoever held its lock died: the next one to take it cleans up"
    yield from sections.problems(seen)
    dead = sorted({member.pid for member in seen.members if not member.alive} - _main_if_dead(seen))
    if dead and seen.state == "open":
        yield (
            f"{_count(len(dead), 'process', 'processes')} died without leaving "
            f"({_pids(dead)}): the next one to join frees what it held"
        )


def _of_what_differs(seen: Seen) -> Iterator[str]:
    for one in seen.differing[:_MOST_DIFFERING]:
        head, *lines = one.text.split("\n")
        details = [line.strip() for line in lines if line.startswith(" ")]
        advice = [line for line in lines if not line.startswith(" ")]
        words = ". ".join(["; ".join([head, *details]), *advice]).rstrip(".")
        yield f"{facts.who(one.pid, one.interpreter)}, differs: {words}"
    more = len(seen.differing) - _MOST_DIFFERING
    if more > 0:
        what = f"is {more} more difference" if more == 1 else f"are {more} more differences"
        yield f"there {what}: warm_up tells them where they are, and --json here"


def _main_if_dead(seen: Seen) -> set[int]:
    return {seen.registrar_pid} if seen.registrar_state == "died" else set()


def _of_its_memory(seen: Seen) -> Iterator[str]:
    if seen.torn:
        yield "its blocks cannot be followed to their end: see mdispatch doctor --check"
    if seen.state == "open" and seen.free < seen.capacity // 20:
        yield "it is almost full: create it with a larger capacity"


def sentence(text: str) -> str:
    """A text in one line, with its full stop."""
    return f"{' '.join(text.split()).rstrip('.')}."


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"


def _pids(pids: Iterable[int]) -> str:
    told = [str(pid) for pid in pids]
    if len(told) > 8:
        told[8:] = ["..."]
    return f"pid {', '.join(told)}"


# --- the answer -----------------------------------------------------------------------------------

_MOST_WAITING = 20
_HEADINGS = ("registry", "state", "registrar", "members", "processes")
_FIGURES = ("operators", "registered", "waiting")
_STYLES = {"open": "green", "closed": "yellow"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What ``mdispatch doctor`` found, checked and removed."""

    registries: Sequence[Seen]
    checks: Mapping[str, Check] | None = None
    reaped: Sequence[Reaped] | None = None
    folder_problem: str | None = None
    dry: bool = False
    apart: Sequence[Apart] = ()

    @property
    def needs_attention(self) -> int:
        """How many registries need attention; a folder that cannot be read counts as one."""
        sick = [seen for seen in self.registries if problems(seen) or not self._is_well(seen)]
        return len(sick) + (self.folder_problem is not None)

    def _is_well(self, seen: Seen) -> bool:
        checked = (self.checks or {}).get(seen.address)
        return checked is None or checked.is_well

    # --- for machines

    def json(self) -> str:
        answer: answers.Doctor = {
            "format": 2,
            "mdispatch": __version__,
            "problems": self.needs_attention,
            "folder_problem": self.folder_problem,
            "registries": [seen_json(seen) for seen in self.registries],
            "apart": [{"program": each.program, "pids": list(each.pids)} for each in self.apart],
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
        if self.reaped is not None and self.dry:
            answer["would_reap"] = [{"name": each.name, "why": each.why} for each in self.reaped]
        elif self.reaped is not None:
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
            done = "would be removed" if self.dry else done
            say(console, styled(plain(f"{done}: {each.name}: {sentence(each.why)}"), style="bold"))
        if self.reaped:
            say(console)
        elif self.reaped is not None:
            say(console, "Nothing to remove.")
            say(console)
        if self.folder_problem is not None:
            say(console, alarm(f"! {self.folder_problem}."))
            say(console)
        rows = [(self._cells(seen), self._below(seen)) for seen in self.registries]
        if rows:
            say_figures(console, (*_HEADINGS, *_FIGURES), rows, left=2)
            say(console)
        for program in self.apart:
            say(console, alarm(_apart(program)))
            say(console)
        leftovers = sum(seen.is_leftover for seen in self.registries)
        if leftovers:
            what = "file is" if leftovers == 1 else "files are"
            words = f"{leftovers} {what} left over, nobody is alive: mdispatch doctor --reap"
            say(console, styled(words, style="yellow"))
        say(console, self._verdict())

    def _cells(self, seen: Seen) -> tuple[Text, ...]:
        label = styled(plain(seen.label), style="bold")
        if not seen.readable:
            return (label, state_text(seen), *[styled("-", style="dim")] * 6)
        figures = (seen.alive, seen.operators, seen.facts)
        waiting = sum(member.threads for member in seen.waiting)
        cells = [styled(str(figure)) for figure in (*figures, waiting)]
        return (label, state_text(seen), main_text(seen), members_text(seen), *cells)

    def _below(self, seen: Seen) -> list[tuple[str, Text]]:
        """The lines under a registry's row: a word and the text behind it."""
        told: list[tuple[str, Text]] = []
        if seen.is_leftover:
            return told
        if seen.readable:
            told.append(("memory", styled(_memory(seen), style="dim")))
        told += sections.lines(seen)
        waiting = seen.waiting
        told += [("waiting", waiting_text(member)) for member in waiting[:_MOST_WAITING]]
        if len(waiting) > _MOST_WAITING:
            told.append(("", styled(f"and {len(waiting) - _MOST_WAITING} more (--json has all)")))
        checked = (self.checks or {}).get(seen.address)
        if checked is not None:
            told += [("check", text) for text in _checked(checked)]
        told += [("!", alarm(sentence(text))) for text in problems(seen)]
        return told

    def _verdict(self) -> Text:
        number, bad = len(self.registries), self.needs_attention
        if not number and not bad:
            return styled("No registries.")
        what = f"{number} registr{'y' if number == 1 else 'ies'}"
        if not bad:
            return styled(f"{what}, nothing wrong.", style="bold green")
        return styled(f"{what}, {bad} need{'s' * (bad == 1)} attention.", style="bold yellow")


# --- parts, also for top --------------------------------------------------------------------------


def state_text(seen: Seen) -> Text:
    if seen.is_leftover:
        return styled("left over", style="yellow")
    return styled(seen.state, style=_STYLES.get(seen.state, "red"))


def main_text(seen: Seen) -> Text:
    if seen.elects:
        return styled("elect")
    if seen.is_host:
        bridge = seen.bridge_pid
        return styled(f"bridge {bridge}") if bridge else styled("no bridge", style="yellow")
    if seen.registrar_stopped:
        return styled(f"{seen.registrar_pid} stopped", style="yellow")
    return styled(
        str(seen.registrar_pid), style="dim" if seen.registrar_state in ("left", "died") else ""
    )


def members_text(seen: Seen) -> Text:
    alive = sum(member.alive for member in seen.members)
    text = styled(str(alive))
    if alive < len(seen.members):
        text.append(f", {len(seen.members) - alive} dead", style="red")
    return text


def _memory(seen: Seen) -> str:
    recovered = f"recovered {seen.recoveries} time{'s' * (seen.recoveries != 1)}"
    idle = f"{_count(seen.idle, 'idle name', 'idle names')}; " if seen.idle else ""
    return (
        f"{size(seen.used)} used, {size(seen.free)} free of {size(seen.capacity)}; "
        f"{size(seen.committed)} committed; {idle}{recovered}"
    )


def waiting_text(member: Member) -> Text:
    who = facts.who(member.pid, member.interpreter)
    if member.threads > 1:
        who += f", newest of {member.threads} threads"
    return styled(plain(f"{who}: {awaited(member)}, {duration(member.seconds)}"))


def _apart(found: Apart) -> str:
    """That may be meant, so nothing is called wrong."""
    return (
        f"Each of {len(found.pids)} processes of one program has a registry of its own, so that "
        f"none sees what another registers: {_pids(found.pids)} ({_short(found.program)}). If they "
        "are to share one, register before they are started, or start them with "
        "MDISPATCH_REGISTRY=elect:NAME in their environment."
    )


def _short(program: str) -> str:
    return program if len(program) <= 80 else f"{program[:77]}..."


def _checked(check: Check) -> list[Text]:
    if check.error:
        return [alarm(check.error)]
    if not check.broken:
        return [styled("all invariants hold", style="green")]
    return [alarm(line) for line in check.broken]


def alarm(text: str) -> Text:
    return styled(plain(" ".join(text.split())), style="yellow")


def duration(seconds: float) -> str:
    """A time in words."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"


def seen_json(seen: Seen) -> answers.Registry:
    """One registry as JSON."""
    outside: answers.Outside = {
        "address": seen.address,
        "name": seen.name,
        "state": seen.state,
        "error": None if seen.error is None else type(seen.error).__name__,
        "text": None if seen.error is None else str(seen.error),
        "deleted": seen.deleted,
        "held_by": list(seen.held_by),
        "problems": problems(seen),
    }
    registrar: answers.Registrar = {
        "pid": seen.registrar_pid,
        "state": seen.registrar_state,
        "stopped": seen.registrar_stopped,
    }
    lock, told = seen.lock, sections.fields(seen)
    inside: answers.Inside = {
        "policy": "elect" if seen.elects else "bridge" if seen.is_host else "main",
        "registrar": None if seen.elects or seen.is_host else registrar,
        "edition": told["edition"],
        "cluster": told["cluster"],
        "processes": {"alive": seen.alive, "dead": seen.dead},
        "members": [member_json(member) for member in seen.members],
        "serving": told["serving"],
        "roll_calls": told["roll_calls"],
        "differing": [
            {"pid": one.pid, "interpreter": one.interpreter, "text": one.text, "where": one.where}
            for one in seen.differing
        ],
        "operators": seen.operators,
        "kernels": seen.kinds[facts.IMPL],
        "registrations": seen.facts,
        "names": seen.names,
        "idle": seen.idle,
        "capacity": seen.capacity,
        "committed": seen.committed,
        "used": seen.used,
        "free": seen.free,
        "sequence": seen.sequence,
        "recoveries": seen.recoveries,
        "lock": None
        if lock is None
        else {
            "thread": lock.tid,
            "pid": lock.pid or None,
            "stopped": lock.stopped,
            "died": lock.died,
        },
    }
    if not seen.readable:
        inside = cast("answers.Inside", dict.fromkeys(inside))
    return {**outside, **inside}


def member_json(member: Member) -> answers.Member:
    waits: answers.Wait | None = None
    if member.waits:
        waits = {
            "threads": member.threads,
            "kind": facts.kind_of(member.kind).name if member.kind else None,
            "name": member.name,
            "key": known_key(member.key) if member.kind in (facts.IMPL, facts.FALLBACK) else None,
            "seconds": round(member.seconds, 3),
        }
    return {
        "pid": member.pid,
        "interpreter": member.interpreter,
        "role": member.role,
        "alive": member.alive,
        "waits": waits,
    }
