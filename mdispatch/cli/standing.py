"""How a host of a cluster stands, for people and as JSON."""

from __future__ import annotations

from .columns import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts.hosts import Told
    from ..facts.outside import Standing
    from . import answers


def standing_text(standing: Standing) -> str:
    """How a host of a cluster stands, in words."""
    waiting = ", ".join(map(str, standing.waiting))
    who = f"; to take over waits pid {waiting}" if waiting else ""
    return plain(f"{standing.told}{who}")


def standing_json(standing: Standing) -> answers.Standing:
    return {
        **told_json(standing.told),
        "pid": None if standing.is_gone else standing.pid,
        "waiting": list(standing.waiting),
    }


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
