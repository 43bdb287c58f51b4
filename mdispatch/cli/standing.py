"""How a host of a cluster stands, for people and as JSON: a section, see sections.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..cluster.hosts import standing
from .columns import plain, styled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from ..cluster.hosts import Standing, Told
    from ..facts.outside import Seen
    from . import answers


def lines(seen: Seen) -> list[tuple[str, Text]]:
    there = standing(seen)
    return [] if there is None else [("cluster", styled(_text(there), style="dim"))]


def problems(seen: Seen) -> Iterator[str]:
    yield from ()


def words(seen: Seen) -> list[str]:
    return []


def json(seen: Seen) -> dict[str, answers.Standing | None]:
    there = standing(seen)
    if there is None:
        return {"cluster": None}
    pid = None if there.is_gone else there.pid
    return {"cluster": {**told_json(there.told), "pid": pid, "waiting": list(there.waiting)}}


def _text(standing: Standing) -> str:
    waiting = ", ".join(map(str, standing.waiting))
    who = f"; to take over waits pid {waiting}" if waiting else ""
    return plain(f"{standing.told}{who}")


def told_json(told: Told) -> answers.Stands:
    return {
        "engine": told.engine,
        "state": told.phase,
        "since": told.since,
        "leader": told.leader or None,
        "epoch": told.epoch,
        "sequence": told.seq,
        "why": told.why or None,
    }
