"""Reading a log: what a bridge and a new leader apply, and what they refuse.

A position is (epoch, root, sequence, chain). The root is the chain of the epoch's first entry: it
tells two epochs of one number apart, which an engine that forgot may have given. From a position a
follower goes on in two ways only:

- by the next entry: its sequence is one more, its chain continues ours, its epoch is ours, or a
  higher one that begins with it;
- by a snapshot of a higher epoch, or of ours further on.

So it never goes back, and never to another leader's entries of the same number. Where neither is
there, it is *astray*: it stays as it is, and says so in its host's record. The leader sees that and
begins a higher epoch with a snapshot. tests/support/cluster_model.py searches this protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

from .log import NO_CHAIN, START, Garbled, chained, unpack
from .state import Manifest, State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .engine import Engine
    from .state import Changes

__all__ = ["MANIFEST", "Follower", "Position"]

MANIFEST = "snapshot"
_AT_ONCE = 32  # entries


@dataclass(frozen=True, slots=True)
class Position:
    """How far a log was applied."""

    epoch: int = 0
    root: bytes = NO_CHAIN
    seq: int = 0
    chain: bytes = NO_CHAIN

    @property
    def id(self) -> tuple[int, int]:
        return self.epoch, self.seq


class Follower:
    """A state, and the position that it is of."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.state = State()
        self.at = Position()
        #: Why nothing can be applied now, "" while something can.
        self.astray = ""

    def follow(self, timeout: float) -> Iterator[Changes]:
        """Reads once, waiting up to ``timeout`` seconds, and applies; the changes, one after the
        other. Raises what an engine raises. What is garbled leads astray.
        """
        found = self.engine.read(self.at.id, _AT_ONCE, timeout)
        try:
            if not found and self.engine.status().tail != self.at.id:
                yield self._from_snapshot("the log ends elsewhere, and there is no snapshot ahead")
            for epoch, seq, data in found:
                entry = unpack(data)
                at = self.at
                begins = entry.what == START and epoch > at.epoch
                continues = entry.what != START and epoch == at.epoch
                fits = seq == at.seq + 1 and (begins or continues)
                if not fits or entry.chain != chained(at.chain, entry.what, entry.said):
                    yield self._from_snapshot(f"entry {seq} of epoch {epoch} continues another log")
                    break
                changes = self.state.apply(entry)
                root = entry.chain if begins else at.root
                self.at = Position(epoch, root, seq, entry.chain)
                self.astray = ""
                yield changes
        except Garbled as error:
            self.astray = f"what the engine has is garbled: {error}"
        except _Astray as error:
            self.astray = str(error)

    def _from_snapshot(self, why: str) -> Changes:
        data = self.engine.get(MANIFEST)
        if data is None:
            raise _Astray(why)
        there, state = Manifest.read(data)
        is_ahead = there.epoch > self.at.epoch or (
            (there.epoch, there.root) == (self.at.epoch, self.at.root) and there.seq > self.at.seq
        )
        if not is_ahead:
            raise _Astray(why)
        for name in there.chunks:
            chunk = self.engine.get(name)
            if chunk is None:
                raise _Astray("a chunk of the snapshot is not there")
            state.read_chunk(name, chunk)
        changes = self.state.replaced_by(state)
        self.state = state
        self.at = Position(there.epoch, there.root, there.seq, there.chain)
        self.astray = ""
        return changes


class _Astray(Exception):
    """Neither an entry nor a snapshot goes on from here."""
