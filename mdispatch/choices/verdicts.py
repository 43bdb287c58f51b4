"""The verdict of a roll call, and its text in the registry."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import RollCallError
from ..errors.locations import printable
from ..facts import who
from .fields import Field
from .values import Damaged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .inventory import Difference

__all__ = ["Group", "Member", "Verdict", "differing", "failed", "read", "verdict_of", "write"]


@dataclass(frozen=True, slots=True)
class Member:
    """A member that a roll call counts. ``rank`` is None where no launcher tells it, ``host`` is
    the name of its host. ``group`` is its place in ``Verdict.groups``.
    """

    pid: int
    interpreter: int
    rank: int | None
    host: str
    where: str
    group: int
    seq: int = field(repr=False, compare=False)

    def __str__(self) -> str:
        its = who(self.pid, self.interpreter)
        return f"{its} on {self.host}" if self.rank is None else f"rank {self.rank} on {self.host}"


@dataclass(frozen=True, slots=True)
class Group:
    """Members with the same inventory, which ``is_right`` or differs from the right one (from the
    first one, where none is right).

    ``differs`` is the difference in words, and ``fields`` has its first parts, each with the value
    of this group (``here``) and that of the other one (``there``). ``number`` is how many differ.
    """

    is_right: bool
    differs: str
    fields: tuple[Field, ...]
    number: int
    digest: str = field(default="", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a roll call, which is the same for all its members.

    ``agrees``: all that were ``expected`` came, and all have the same. ``absent`` are the ranks
    that did not come, as far as a launcher tells them, ``lacking`` how many did not. ``leader`` is
    the rank whose version is right, None where that of the majority is. ``at`` is the time
    (``time.time()``).
    """

    name: str
    round: str
    expected: int
    agrees: bool
    members: tuple[Member, ...]
    groups: tuple[Group, ...]
    absent: tuple[int, ...]
    lacking: int
    leader: int | None
    at: float

    @property
    def right(self) -> int | None:
        """The place of the right group; None if there is none."""
        return next((at for at, its in enumerate(self.groups) if its.is_right), None)

    def of(self, group: int) -> list[Member]:
        """The members of a group. Raises no error: there are none for another number."""
        return [each for each in self.members if each.group == group]

    def __str__(self) -> str:
        told: list[str] = []
        right = self.right
        base = right or 0
        for at, group in enumerate(self.groups):
            its, number = self.of(at), len(self.of(at))
            if at == base and (right is not None or len(self.groups) == 1):
                told.insert(0, f"{number} {_verb(its, 'agrees', 'agree')}")
            elif at == base:
                told.append(f"{_listed(its)} {_verb(its, 'has', 'have')} one version")
            else:
                told.append(f"{_listed(its)} {_verb(its, 'differs', 'differ')} {group.differs}")
        if right is None and self.leader is not None:
            told.append(f"rank {self.leader}, whose version is right, did not come")
        elif right is None and len(self.groups) > 1:
            told.append("nobody has a majority")
        if self.absent:
            told.append(f"{_ranks(self.absent)} {_verb(self.absent, 'is', 'are')} absent")
        elif self.lacking:
            told.append(f"{self.lacking} of {self.expected} {_verb(range(self.lacking))} absent")
        return "; ".join(told)


_SHOWN = 8


def _verb(of: Sequence[object] | range, one: str = "is", more: str = "are") -> str:
    return one if len(of) == 1 else more


def _ranks(ranks: Iterable[int]) -> str:
    its = [*ranks]
    told = ", ".join(map(str, its[:_SHOWN]))
    more = f", ... ({len(its)} in all)" * (len(its) > _SHOWN)
    return f"rank{'s' * (len(its) > 1)} {told}{more}"


def _listed(members: Sequence[Member]) -> str:
    """Members in words: those of one host together."""
    hosts = {each.host for each in members}
    if len(hosts) == 1 and len(members) > 1 and all(each.rank is not None for each in members):
        ranks = sorted(each.rank for each in members if each.rank is not None)
        return f"{_ranks(ranks)} on {hosts.pop()}"
    told = ", ".join(map(str, members[:_SHOWN]))
    return f"{told}, ... ({len(members)} in all)" if len(members) > _SHOWN else told


# --- made -----------------------------------------------------------------------------------------


def verdict_of(
    name: str,
    round: str,
    expected: int,
    leader: int | None,
    members: Sequence[Member],
    digests: Sequence[str],
    compare: Callable[[int, int], Difference | None],
    at: float,
) -> Verdict:
    """The verdict about members that have posted, oldest first; each has its group, of which
    ``digests`` are. ``compare`` gives the difference between two groups, None if nobody of one of
    them is there any more.
    """
    sizes = Counter(each.group for each in members)
    led = [each.group for each in members if each.rank == leader]
    right = None
    if leader is not None:
        right = led[0] if led else None
    elif sizes and 2 * max(sizes.values()) > len(members):
        right = max(sizes, key=sizes.__getitem__)
    groups = [_group(at, right, compare, digest) for at, digest in enumerate(digests)]
    ranks = {each.rank for each in members}
    absent: tuple[int, ...] = ()
    if None not in ranks and all(each in range(expected) for each in ranks):
        absent = tuple(each for each in range(expected) if each not in ranks)
    lacking = max(0, expected - len(members))
    return Verdict(
        name,
        round,
        expected,
        right is not None and len(groups) == 1 and not lacking,
        tuple(members),
        tuple(groups),
        absent[:_MOST] if lacking else (),
        lacking,
        leader,
        at,
    )


def _group(
    group: int,
    right: int | None,
    compare: Callable[[int, int], Difference | None],
    digest: str,
) -> Group:
    base = 0 if right is None else right
    if group == base:
        return Group(group == right, "", (), 0, digest)
    return differing(compare(group, base), digest)


def differing(found: Difference | None, digest: str) -> Group:
    """A group that differs."""
    if found is None:
        return Group(
            False, "(its members have ended before anybody could see in what)", (), 0, digest
        )
    parts = []
    for what, (number, total) in found.counts.items():
        noun = {"operators": "operators", "torch": "operators of PyTorch"}.get(what, what)
        parts.append(f"in {number} of {total} {noun}" if number else f"in {noun}")
    parts += [f"in {each}" for each in found.names]
    told = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else "in nothing"
    fields = tuple(
        Field(each.path[:_LONGEST], each.here[:_LONGEST], each.there[:_LONGEST])
        for each in found.fields
    )
    return Group(False, told, fields, found.number, digest)


# --- its text -------------------------------------------------------------------------------------

_MOST = 1000  # members
_LONGEST = 200  # letters of a value


def write(verdict: Verdict, limit: int) -> str:
    """Its text for the registry, of at most ``limit`` letters: without the fields of the last
    groups where they are too many.
    """
    for shown in range(len(verdict.groups), -1, -1):
        text = _written(verdict, shown)
        if len(text) <= limit:
            break
    return text


def _written(verdict: Verdict, shown: int) -> str:
    hosts = [*dict.fromkeys(each.host for each in verdict.members)]
    wheres = [*dict.fromkeys(each.where for each in verdict.members)]
    return json.dumps(
        {
            "name": verdict.name,
            "round": verdict.round,
            "expected": verdict.expected,
            "leader": verdict.leader,
            "at": verdict.at,
            "absent": verdict.absent,
            "lacking": verdict.lacking,
            "hosts": hosts[:_SHOWN],
            "wheres": wheres[:_SHOWN],
            "members": [
                [
                    each.seq,
                    each.pid,
                    each.interpreter,
                    each.rank,
                    min(hosts.index(each.host), _SHOWN - 1),
                    min(wheres.index(each.where), _SHOWN - 1),
                    each.group,
                ]
                for each in verdict.members
            ],
            "groups": [
                [its.is_right, its.differs, its.number, its.digest]
                + [[each.path, each.here, each.there] for each in its.fields if at < shown]
                for at, its in enumerate(verdict.groups)
            ],
        },
        separators=(",", ":"),
    )


def read(text: str) -> Verdict:
    """The verdict of a text, which comes from another member. Damaged."""
    try:
        its = json.loads(text)
        groups = tuple(
            Group(
                _is(bool, each[0]),
                _is(str, each[1]),
                tuple(Field(*[_is(str, part) for part in parts]) for parts in each[4:]),
                _is(int, each[2]),
                _is(str, each[3]),
            )
            for each in its["groups"]
        )
        members = tuple(
            Member(
                _is(int, pid),
                _is(int, interpreter),
                rank if rank is None else _is(int, rank),
                _is(str, its["hosts"][host]),
                _is(str, its["wheres"][where]),
                range(len(groups))[_is(int, group)],
                _is(int, seq),
            )
            for seq, pid, interpreter, rank, host, where, group in its["members"]
        )
        leader = its["leader"]
        verdict = Verdict(
            printable(_is(str, its["name"])),
            printable(_is(str, its["round"])),
            _is(int, its["expected"]),
            len(groups) == 1 and groups[0].is_right and not its["lacking"],
            members,
            groups,
            tuple(_is(int, each) for each in its["absent"]),
            _is(int, its["lacking"]),
            leader if leader is None else _is(int, leader),
            float(_is(float, its["at"])),
        )
        str(verdict)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise Damaged from None
    return verdict


def _is(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise Damaged
    return value


# --- the error ------------------------------------------------------------------------------------


def failed(
    verdict: Verdict, mine: int | None, where: str, late: float | None, hint: str
) -> RollCallError:
    """The error of a member after a verdict that not all agree. ``mine`` is its group; None where
    the verdict does not count it. ``late``: how many seconds
    after the verdict it came. ``hint`` is a cause that was found here.
    """
    right = verdict.right
    lines = [f"roll call {verdict.name!r}, round {verdict.round!r}: {verdict}"]
    for at, group in enumerate(verdict.groups):
        base = verdict.of(right or 0)
        its = _listed(verdict.of(at))
        for each in group.fields:
            lines.append(
                f"  {each.path}: {each.here} at {its}, and {each.there} at {_listed(base)}"
            )
        if group.number > len(group.fields):
            lines.append(f"  ... ({group.number} parts in all)")
        if at != right and verdict.of(at):
            first = verdict.of(at)[0]
            lines.append(f"  there: {first.where} ({first})")
    lines.append(f"  here:  {where} ({_stands(verdict, mine, late)})")
    lines.append(hint or _remedy(verdict, mine, late))
    return RollCallError(
        "\n".join(lines),
        name=verdict.name,
        verdict=verdict,
        here=where,
        differs=mine is not None and mine != right and len(verdict.groups) > 1,
        late=late,
    )


def _stands(verdict: Verdict, mine: int | None, late: float | None) -> str:
    if late is not None:
        return f"this member came too late, after {late:.1f} s"
    if mine is None or len(verdict.groups) == 1 or verdict.right is None:
        return "this member came in time"
    return "this member is right" if mine == verdict.right else "this member differs"


def _remedy(verdict: Verdict, mine: int | None, late: float | None) -> str:
    right, differs = verdict.right, len(verdict.groups) > 1
    if late is not None and mine is None:
        return (
            "The others have ended this round without it. Start all members again, or give them "
            "more time (timeout=)."
        )
    told = []
    if right is None and verdict.leader is not None:
        told.append(f"Let rank {verdict.leader} come, or name another one (leader=).")
    elif right is None and differs:
        told.append("Make all the same, or say whose version is right (leader=).")
    elif differs and mine != right:
        told.append(
            "Make this member import the same versions, and read the same values; what may differ "
            "is left out by ignore=."
        )
    elif differs:
        told.append("Mend the members that differ, and start all again.")
    if verdict.lacking:
        told.append(
            "Look for an error in the log of those that are absent, or give them more time "
            "(timeout=)."
        )
    return " ".join(told)
