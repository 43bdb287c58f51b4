"""The bridge of a host: registers in the host's registry what the log says.

Workers of the host are workers as ever. Each registration keeps the leader's file and line, with
the leader's host and process before them. Nothing that comes from the engine is imported or run.

A bridge has one thread, which calls the engine. It tells the workers how the host stands
(hosts.py) and the engine how far the host is. A host may have several bridges: one serves it, and
the others wait, without a connection to the engine, to take over when it ends or is killed
(region.py).

Without ``policy=follow`` in the URL a bridge does not follow a leader that would end what a leader
before it had registered: the registry stays as it is, *held*, while the bridge reads on, until the
log agrees with it again or a person has accepted that leader (``mdispatch cluster accept``).
"""

from __future__ import annotations

import random
from threading import Event
from time import monotonic

from ..errors import RegistryExistsError
from ..facts.logs import described
from ..facts.opening import DEFAULT_CAPACITY
from .engine import Unreachable, connect
from .following import Follower, Position
from .hosts import ASTRAY, CUT, GONE, HELD, OPEN, SEALED, Told, tell, told
from .records import Record, read_accepted, time_in_words
from .region import HostRegistry, Region, position

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .engine import ClusterURL
    from .state import Changes


class Bridge:
    """Keeps the registry of this host as the run's leader has it."""

    def __init__(
        self, url: ClusterURL, name: str | None = None, capacity: int = DEFAULT_CAPACITY
    ) -> None:
        """Opens the host's registry, by the name of the run unless another is given, and makes it
        where there is none. Raises as HostRegistry.opened.
        """
        self.url = url
        self.name = name or url.run
        engine = connect(url)
        try:
            self.registry = HostRegistry.opened(self.name, capacity)
        except RegistryExistsError as error:
            engine.close()
            error.args = (
                f"{error.args[0]}\nThis host has the leader, or another registry of that name: the "
                "leader's host needs no bridge, and another name is given by --name.",
            )
            raise
        self._engine = engine
        self._follower = Follower(engine)
        self._region = Region(self.registry, self._follower)
        #: Whether it serves the host, and how that stands; else it waits to take over.
        self.serves = self._waits = False
        #: Where the bridge before this one was, until this one is there.
        self._goes_on_from: Position | None = None
        #: How far the registry of this host is; behind the follower where that is held.
        self._at = Position()
        #: Why it is held, "" where it is not; and of what that was found.
        self._held = ""
        self._held_at: tuple[Position, int] | None = None
        self._accepted = 0  # the leader process that a person has accepted
        self.told: Told | None = None
        self._leader = ""
        self._leaderless: float | None = None  # since when
        self._next_record = 0.0
        self._pause = 0.0
        self._versions: dict[str, str] = {}
        self._compared: object = None
        self.ended = Event()

    def run(self, say: Callable[[str], object]) -> None:
        """Follows the log until ``ended`` is set, which the next read notices; then closes the
        registry. ``say`` hears how the host stands, in words. RegistryFullError.
        """
        try:
            while True:
                if self.ended.is_set():
                    break
                if not self.serves and not self._take_over(say):
                    continue
                try:
                    self._turn(say)
                    self._pause = 0.0
                except Unreachable as error:
                    self._stand(CUT, str(error), say)
                    self._pause = min(1.0, 0.02 + self._pause * 2) * (0.5 + random.random() / 2)
                    self.ended.wait(self._pause)
            if self.serves:
                self._withdraw()
        finally:
            self.close()

    def close(self) -> None:
        """Ends it at once, without a word to the engine."""
        self._engine.close()
        self.registry.close()

    def _take_over(self, say: Callable[[str], object]) -> bool:
        """Waits for its turn for a while; whether this bridge serves the host now."""
        if not self.registry.is_next():
            if not self._waits:
                self._waits = True
                say("another bridge serves this host; this one waits to take over")
            if not self.registry.await_turn(self.url.lease / 8):
                return False
        self.serves = True
        before = told(self.registry)
        self._goes_on_from = None if before is None else position(before)
        if before is not None and self._goes_on_from is not None:
            self._leader, self._at = before.leader, self._goes_on_from
            self._held = before.why if before.phase == HELD else ""
            say(f"takes over at epoch {before.epoch}, sequence {before.seq}")
        elif self._region.has_facts():  # of one that was killed before it told how far it was
            self._goes_on_from = Position()
        return True

    def _follow(self, timeout: float) -> None:
        follower = self._follower
        if self._goes_on_from is None:
            for changes in follower.follow(timeout):
                if not self._held:
                    self._apply(changes)
            if self._held and self._held_at != (follower.at, self._accepted):
                self._apply(self._region.compare())
        elif follower.resume(self._goes_on_from):
            self._apply(self._region.compare())
            self._goes_on_from = None

    def _apply(self, changes: Changes) -> None:
        """Changes the registry, or holds it as it is."""
        is_free = not self.url.holds or self._follower.state.leader == self._accepted
        ended = () if is_free else self._region.ended_of_others(changes)
        if ended:
            first, more = ended[0], f" and {len(ended) - 1} more" if len(ended) > 1 else ""
            what = described(first.kind, int(first.key), first.name)
            self._held = (
                f"it has other code and would end {what}{more} of the leader before. Accept it by "
                "`mdispatch cluster accept`, or start the leader with the former code"
            )
            self._held_at = self._follower.at, self._accepted
            return
        if not is_free:
            self._region.leave_out_others(changes)
        self._region.apply(changes)
        self._at, self._held = self._follower.at, ""

    def _turn(self, say: Callable[[str], object]) -> None:
        follower, lease = self._follower, self.url.lease
        self._follow(lease / 20 if self.told is None else lease / 8)
        if follower.astray:
            # What garbles a log would else be read again and again without a pause.
            self.ended.wait(lease / 20)
        now = monotonic()
        self._look_who_leads(now)
        leader = follower.state.leaders.get(follower.state.leader)
        if leader:
            self._leader = f"{leader.host}[{leader.pid}]"
        phase = self._phase(now)
        self._stand(phase, self._why(), say)
        if now >= self._next_record:
            self._announce(phase)
            self._next_record = now + lease / 3

    def _look_who_leads(self, now: float) -> None:
        status = self._follower.status
        if status is not None:
            self._accepted = read_accepted(status.accepted)
        if status is None or status.leader or status.epoch == 0:
            self._leaderless = None
        elif self._leaderless is None:
            self._leaderless = now

    def _phase(self, now: float) -> str:
        if self._leaderless is not None and now - self._leaderless > self.url.lease / 2:
            return GONE
        if self._held:
            return HELD
        if self._follower.state.is_sealed and not self._follower.astray:
            return SEALED
        return ASTRAY if self._follower.astray and self._at.epoch else OPEN

    def _why(self) -> str:
        return self._follower.astray or self._held

    def _stand(self, phase: str, why: str, say: Callable[[str], object]) -> None:
        """Tells the workers, where it has changed."""
        before, at = self.told, self._at
        why = " ".join(why.split())[:500]
        is_same = before is not None and (before.phase, before.leader) == (phase, self._leader)
        since = before.since if before is not None and is_same else time_in_words()
        where = at.epoch, at.seq, since, at.root.hex(), at.chain.hex()
        now = Told(phase, self.url.shown, self._leader, *where, why)
        if now == before:
            return
        self.told = now
        if not is_same:
            say(str(now))
        tell(self.registry, now)

    def _announce(self, phase: str) -> None:
        at, facts = self._at, len(self._region)
        record = Record.of("bridge", self.name, at, facts, phase, self._why())
        record = record.of_workers(self.registry, self._other_versions())
        self._engine.announce(f"{record.host}:{record.pid}", record.packed(), self.url.lease)

    def _other_versions(self) -> dict[str, str]:
        """The distributions of which this host has another version than the leader has."""
        from importlib.metadata import PackageNotFoundError, version

        wanted = self._follower.state.versions
        if self._compared is not wanted:
            self._compared, self._versions = wanted, {}
            for name, there in wanted.items():
                try:
                    here = version(name)
                except (PackageNotFoundError, ValueError):
                    here = ""
                if here != there:
                    self._versions[name] = here
        return self._versions

    def _withdraw(self) -> None:
        record = Record.of("bridge", self.name, self._at, len(self._region), OPEN)
        try:
            self._engine.announce(f"{record.host}:{record.pid}", b"", 0)
        except Unreachable:
            return  # its record ends with the lease
