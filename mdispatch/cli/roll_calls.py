"""The last verdict of each roll call of a registry, for people and as JSON: a section, see
sections.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..choices.kind import KEPT
from ..choices.looking import verdicts_among
from ..facts.outside import registrations_of
from .columns import plain, styled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from ..choices.verdicts import Verdict
    from ..facts.outside import Seen
    from . import answers


def lines(seen: Seen) -> list[tuple[str, Text]]:
    return [
        ("roll call", styled(plain(_words(its)), style="dim"))
        for its in _verdicts(seen)
        if its.agrees
    ]


def problems(seen: Seen) -> Iterator[str]:
    for its in _verdicts(seen):
        if not its.agrees:
            yield f"not all are the same in the roll call {_words(its)}"


def words(seen: Seen) -> list[str]:
    return []


def json(seen: Seen) -> dict[str, list[answers.RollCall]]:
    return {"roll_calls": [as_json(its) for its in _verdicts(seen)]}


def as_json(verdict: Verdict) -> answers.RollCall:
    return {
        "name": verdict.name,
        "round": verdict.round,
        "verdict": str(verdict),
        "agrees": verdict.agrees,
        "expected": verdict.expected,
        "leader": verdict.leader,
        "at": verdict.at,
        "absent": list(verdict.absent),
        "lacking": verdict.lacking,
        "groups": [
            {
                "is_right": group.is_right,
                "differs": group.differs,
                "number": group.number,
                "fields": [
                    {"path": each.path, "here": each.here, "there": each.there}
                    for each in group.fields
                ],
                "members": [
                    {
                        "pid": each.pid,
                        "interpreter": each.interpreter,
                        "rank": each.rank,
                        "host": each.host,
                        "where": each.where,
                    }
                    for each in verdict.of(at)
                ],
            }
            for at, group in enumerate(verdict.groups)
        ],
    }


def _words(verdict: Verdict) -> str:
    return f"{verdict.name!r}, round {verdict.round!r}: {verdict}"


def _verdicts(seen: Seen) -> list[Verdict]:
    """The last one of each name."""
    if seen.state != "open" or not seen.kinds[KEPT]:
        return []
    there = registrations_of(seen.address, KEPT)
    return [*{its.name: its for its in verdicts_among(there)}.values()]
