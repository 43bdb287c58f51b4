"""How often providers have run, as the members that count tell it: in a note of each, which ends
with the member (registry/provider_counts.py). The commands sum these notes.

The notes have a name of their own: no operator's table is computed anew for one. Any member can
write anything into a note, so whoever reads takes what is as it should be, and passes by the rest.
"""

from __future__ import annotations

from typing import NamedTuple

from .registration import NOTE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Self

    from .abc import Facts
    from .registration import Registration

__all__ = ["COUNTS", "Counted", "ProviderRuns", "summed", "tell", "told"]

#: The name of the notes.
COUNTS = "mdispatch.provider_counts"

_LONGEST = 16_384  # bytes of a note: some 300 providers
_DIGITS = 15


class ProviderRuns(NamedTuple):
    """One provider: of which operator, at which key, its name ("" for a kernel without one that
    comes after providers), how often it ran, and how many of these times since the predicates of
    providers before it had refused.
    """

    operator: str
    key: str
    provider: str
    runs: int
    fell_back: int


class Counted(NamedTuple):
    """What ``members`` members have told together, by operator, key and name. ``left_out`` counts
    the providers for which their notes had no room.
    """

    members: int
    left_out: int
    runs: tuple[ProviderRuns, ...]

    def of(self, operator: str) -> Self:
        """What they have told of one operator."""
        return self._replace(runs=tuple(each for each in self.runs if each.operator == operator))


def tell(facts: Facts, runs: Collection[ProviderRuns], where: str) -> None:
    """Tells the others how often providers have run here, in place of what this member has told
    before. Raises what ``facts.register`` raises.

    The new note is there before the old one goes, so the others always see one. Who is killed in
    between leaves two, and the newer counts. Each thread strikes out what is older than its own
    note, so of threads that tell at once the note of the last one stays.
    """
    fact = facts.register(NOTE, 0, COUNTS, _text(runs), where)
    for each in facts.registrations(COUNTS)[2]:
        if _teller(each) == _teller(fact) and each.seq < fact.seq:
            facts.strike(each)


def told(facts: Facts) -> Counted | None:
    """What the members have told; None where none counts."""
    alive = {(pid, interpreter) for interpreter, pid, _, alive, *_ in facts.members() if alive}
    return summed(facts.registrations(COUNTS)[2], alive)


def summed(there: Iterable[Registration], alive: Collection[tuple[int, int]]) -> Counted | None:
    """The sum of notes, oldest first, of the members that are alive: process and interpreter."""
    newest = {_teller(fact): fact.text for fact in there if fact.kind == NOTE}
    members = left_out = 0
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for teller, text in newest.items():
        first, *lines = text.split("\n")
        without = _number(first)
        if teller not in alive or without is None:
            continue
        members += 1
        left_out += without
        for each in filter(None, map(_read, lines)):
            runs, fell_back = sums.get(each[:3], (0, 0))
            sums[each[:3]] = runs + each.runs, fell_back + each.fell_back
    if not members:
        return None
    return Counted(
        members,
        left_out,
        tuple(ProviderRuns(*which, *both) for which, both in sorted(sums.items())),
    )


def _teller(fact: Registration) -> tuple[int, int]:
    return fact.pid, fact.interpreter


def _text(runs: Collection[ProviderRuns]) -> str:
    """How many providers are left out, and a line for each of the others, most frequent first."""
    lines: list[str] = []
    room = _LONGEST
    for each in sorted(runs, key=lambda each: -each.runs):
        line = "\t".join(map(str, each))
        room -= len(line.encode("utf-8", "backslashreplace")) + 1
        if room < 0:
            break
        lines.append(line)
    return "\n".join((str(len(runs) - len(lines)), *lines))


def _read(line: str) -> ProviderRuns | None:
    parts = line.split("\t")
    if len(parts) != len(ProviderRuns._fields):
        return None
    runs, fell_back = map(_number, parts[3:])
    if runs is None or fell_back is None or fell_back > runs:
        return None
    return ProviderRuns(parts[0], parts[1], parts[2], runs, fell_back)


def _number(text: str) -> int | None:
    is_one = text.isascii() and text.isdigit() and len(text) <= _DIGITS
    return int(text) if is_one else None
