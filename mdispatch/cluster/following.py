"""Reading a log: what a bridge and a new leader apply, and what they refuse.

A position is (epoch, root, sequence, chain). The root is the chain of the epoch's first entry: it
tells two epochs of one number apart, which an engine that forgot may have given. From a position a
follower goes on in two ways only:

- by the next entry: its sequence is one more, its chain continues ours, its epoch is ours, or a
  higher one that begins with it;
- by a snapshot of a higher epoch, or of ours further on.

A bridge that takes over has the position that the one before it has left, and not its state. It
reads that anew, from the snapshot on, and goes on where it has come to its position, or to one in
which a follower at that position could have come.

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

    from .engine import Engine, Status
    from .state import Changes

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
        #: What the engine said before the last read; None before the first one.
        self.status: Status | None = None

    def follow(self, timeout: float) -> Iterator[Changes]:
        """Reads once, waiting up to ``timeout`` seconds, and applies; the changes, one after the
        other. Raises what an engine raises. What is garbled leads astray.
        """
        self.status = self.engine.status()
        tail = self.status.tail  # before the read, which finds all up to there
        found = self.engine.read(self.at.id, _AT_ONCE, timeout)
        why = ""
        if not found and tail != self.at.id:
            why = "the log ends elsewhere, and no snapshot is ahead"
        for epoch, seq, data in found:
            try:
                changes = self._next(epoch, seq, data)
            except Garbled as error:
                why = f"entry {seq} of epoch {epoch}: {error}"
                break
            self.astray = ""
            yield changes
        if why:
            try:
                yield self._from_snapshot(why)
            except Garbled as error:
                self.astray = str(error)

    def resume(self, at: Position) -> bool:
        """Goes on from where another one was: reads the state that belongs to a position, or to a
        later one. False where what the engine has does not lead there; then this is astray. Raises
        what an engine raises.
        """
        self.at = at
        again = Follower(self.engine)
        while True:
            before = again.at
            for _ in again.follow(0):
                if again.at.id == at.id and again.at != at:
                    self.status = again.status
                    self.astray = "what the engine has is another log than what is registered here"
                    return False
            if again.at == before:
                break
        there, self.status = again.at, again.status
        is_same = (there.epoch, there.root) == (at.epoch, at.root) and there.seq >= at.seq
        if there.epoch <= at.epoch and not is_same:
            self.astray = again.astray or "the log ends before what is registered here"
            return False
        self.state, self.at, self.astray = again.state, there, again.astray
        return True

    def _next(self, epoch: int, seq: int, data: bytes) -> Changes:
        """Applies an entry. Garbled, and then nothing was changed."""
        at, entry = self.at, unpack(data)
        begins = entry.what == START and epoch > at.epoch
        continues = entry.what != START and epoch == at.epoch
        fits = seq == at.seq + 1 and (begins or continues)
        if not fits or entry.chain != chained(at.chain, entry.what, entry.said):
            raise Garbled("it continues another log")
        changes = self.state.apply(entry)
        self.at = Position(epoch, entry.chain if begins else at.root, seq, entry.chain)
        return changes

    def _from_snapshot(self, why: str) -> Changes:
        """Goes on from a snapshot that is ahead. Garbled, with ``why`` where there is none."""
        data = self.engine.get(MANIFEST)
        if data is None:
            raise Garbled(why)
        there, state = Manifest.read(data)
        is_ahead = there.epoch > self.at.epoch or (
            (there.epoch, there.root) == (self.at.epoch, self.at.root) and there.seq > self.at.seq
        )
        if not is_ahead:
            raise Garbled(why)
        for name in there.chunks:
            chunk = self.engine.get(name)
            if chunk is None:
                raise Garbled("a chunk of the snapshot is not there")
            state.read_chunk(name, chunk)
        changes = self.state.replaced_by(state)
        self.state = state
        self.at = Position(there.epoch, there.root, there.seq, there.chain)
        self.astray = ""
        return changes
