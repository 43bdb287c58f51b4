"""Which editions of a name are alive, and the warnings of two that are."""

from __future__ import annotations

import time

from ..facts.logs import registry_log, verify_log
from .joining import edition_of, name_of, names_beside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts.abc import Facts
    from ..facts.outside import Seen
    from .comparing import Change

__all__ = ["Edition", "ago", "compare", "others", "seconds_since", "tell"]

_MOST = 3  # differences in a record of the log


class Edition:
    """An edition that is alive. ``name`` is whole, as shop@1.4.2; so many ``processes`` are alive
    in it; it was ``made`` then, by the monotonic clock in nanoseconds.
    """

    __slots__ = ("made", "name", "processes")

    def __init__(self, name: str, processes: int, made: int) -> None:
        self.name = name
        self.processes = processes
        self.made = made

    def __str__(self) -> str:
        count = f"{self.processes} process{'es' * (self.processes != 1)}"
        return f"{self.name} ({count}, made {ago(self.made)})"


def seconds_since(made: int) -> float:
    """The time since then."""
    return max(0.0, (time.monotonic_ns() - made) / 1e9)


def ago(made: int) -> str:
    """The same in words."""
    seconds = seconds_since(made)
    for limit, unit, word in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {word} ago"
    return f"{seconds / 86400:.0f} days ago"


def others(label: str) -> list[Edition]:
    """The other editions of the name that are alive, the newest first. A registry that has the
    name alone counts as one.
    """
    there = names_beside(label)
    if not there:
        return []
    from ..facts.outside import look_at

    seen = (look_at(f"shm:{each}", each) for each in there)
    alive = [_edition(each) for each in seen if each.state == "open" and each.alive]
    return sorted(alive, key=lambda edition: -edition.made)


def _edition(seen: Seen) -> Edition:
    return Edition(seen.name or "", seen.alive, seen.made)


def tell(label: str) -> None:
    """Warns that an edition was made while others of its name are alive."""
    there = others(label)
    if not there:
        return
    mine = f"{name_of(label)}@{edition_of(label)}"
    registry_log.warn(
        "%s was made while %s is alive. Members of different editions are not compared, do not "
        "wait for each other and do not choose together\nTo compare them: mdispatch diff %s %s",
        mine,
        " and ".join(map(str, there)),
        there[0].name,
        mine,
    )


def compare(facts: Facts) -> None:
    """Warns of the differences from the newest other edition that is alive. It compares all that
    both have by now in the namespaces of this one.
    """
    there = others(facts.label)
    if there:
        old, new = there[0].name, f"{name_of(facts.label)}@{edition_of(facts.label)}"
        _warn_of(old, new, _changes(facts, old, new))


def _changes(facts: Facts, old: str, new: str) -> list[Change]:
    from ..facts.outside import registrations_of
    from .comparing import compared
    from .snapshot import snapshot_of

    after = snapshot_of(facts.registrations()[2])
    spaces = {each.namespace for each in after.operators}
    before = snapshot_of(registrations_of(f"shm:{old}")).within(spaces)
    return compared(before, after.within(spaces), (f"in {old}", f"in {new}"))


def _warn_of(old: str, new: str, changes: list[Change]) -> None:
    from ..schema.compatible import BREAKING
    from .comparing import verdict_of

    verdict = verdict_of(changes)
    worst = [each for each in changes if each.verdict == BREAKING] or changes
    lines = []
    for each in worst[:_MOST]:
        lines.append(f"  {each.name}: {each.words}")
        lines.append(f"    {new}: {each.new or 'nothing'}")
        lines.append(f"    {old}: {each.old or 'nothing'}")
    more = len(changes) - len(worst[:_MOST])
    if more > 0:
        lines.append(f"  and {more} more: mdispatch diff {old} {new}")
    count = f", {len(changes)} difference{'s' * (len(changes) != 1)}" if changes else ""
    text = "".join(f"\n{line}" for line in lines)
    verify_log.warn("%s beside %s: %s%s%s", new, old, verdict, count, text)
