"""The bridge of a host: the main member of the host's registry, which registers what the log says.

Workers of the host are workers as ever. Each fact keeps the leader's file and line, with the
leader's host and process before them. Nothing that comes from the engine is imported or run.

A bridge has one thread, which calls the engine. It tells the workers how the host stands
(facts/hosts.py) and the engine how far the host is.
"""

from __future__ import annotations

import random
from threading import Event
from time import monotonic

from ..errors import RegistryExistsError
from ..facts import DEF
from ..facts.hosts import ASTRAY, CUT, GONE, OPEN, SEALED, Told, differences, tell
from ..facts.native.constants import MD_MAX_WHERE
from ..facts.opening import DEFAULT_CAPACITY
from ..facts.shared import SharedRegistry
from .engine import Unreachable, connect
from .following import Follower
from .records import Record, time_in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..facts import Registration
    from .engine import ClusterURL
    from .log import Fact
    from .state import Changes

__all__ = ["Bridge"]


class _Region:
    """Writes changes into the registry of this host."""

    def __init__(self, book: SharedRegistry, follower: Follower) -> None:
        self._book = book
        self._follower = follower
        self._there: dict[tuple[int, int], Registration] = {}
        #: The generation here of one there, by leader and number.
        self._generations: dict[tuple[int, int], int] = {}

    def apply(self, changes: Changes) -> None:
        for each in changes.strike:
            self._book.strike(self._there.pop(each))
        for old, fact in changes.rename:
            there = self._there[fact.id] = self._there.pop(old)
            if fact.kind == DEF:
                self._generations[fact.leader, fact.generation] = there.generation
        for fact in changes.add:
            self._there[fact.id] = self._register(fact)

    def _register(self, fact: Fact) -> Registration:
        text = fact.text
        if fact.kind == DEF:
            known = self._generations.get((fact.leader, fact.generation), 0)
            lines = text.split("\n", 3)
            if known or len(lines) == 4:
                lines += [""] * (4 - len(lines))
                lines[2] = str(known or "")
                text = "\n".join(lines)
        where = self._place(fact)
        there = self._book.register(fact.kind, fact.key, fact.name, text, where)
        if fact.kind == DEF:
            self._generations[fact.leader, fact.generation] = there.generation
        return there

    def _place(self, fact: Fact) -> str:
        leader = self._follower.state.leaders[fact.leader]
        by = f"{leader.host}[{fact.pid}]:"
        kept = fact.where.encode()[-(MD_MAX_WHERE - len(by)) :]
        return by + kept.decode(errors="ignore")


class Bridge:
    """Keeps the registry of this host as the run's leader has it."""

    def __init__(
        self, url: ClusterURL, name: str | None = None, capacity: int = DEFAULT_CAPACITY
    ) -> None:
        """Creates the registry, by the name of the run unless another is given. Raises as
        Registry.create.
        """
        self.url = url
        self.name = name or url.run
        engine = connect(url)
        try:
            self.book = SharedRegistry.create(self.name, capacity)
        except RegistryExistsError as error:
            engine.close()
            error.args = (
                f"{error.args[0]}\nThis host has a bridge or a leader of that name already: one is "
                "enough.",
            )
            raise
        self._engine = engine
        self._follower = Follower(engine)
        self._region = _Region(self.book, self._follower)
        self._told: tuple[Told, Registration] | None = None
        self._leader = ""
        self._leaderless: float | None = None  # since when
        self._next_record = self._next_look = 0.0
        self._pause = 0.0
        self._versions: dict[str, str] = {}
        self._compared: object = None
        self.ended = Event()

    def run(self, say: Callable[[str], object]) -> None:
        """Follows the log until ``ended`` is set, which the next read notices; then closes the
        registry. ``say`` hears how the host stands, in words. RegistryFullError.
        """
        try:
            while not self.ended.is_set():
                try:
                    self._turn(say)
                    self._pause = 0.0
                except Unreachable as error:
                    self._stand(CUT, str(error), say)
                    self._pause = min(1.0, 0.02 + self._pause * 2) * (0.5 + random.random() / 2)
                    self.ended.wait(self._pause)
            self._withdraw()
        finally:
            self._engine.close()
            self.book.close()

    def _turn(self, say: Callable[[str], object]) -> None:
        follower, lease = self._follower, self.url.lease
        for changes in follower.follow(lease / 20 if self._told is None else lease / 8):
            self._region.apply(changes)
        if follower.astray:
            # What garbles a log would else be read again and again without a pause.
            self.ended.wait(lease / 20)
        now = monotonic()
        if now >= self._next_look:
            self._look_who_leads(now)
            self._next_look = now + lease / 8
        phase = self._phase(now)
        self._stand(phase, follower.astray, say)
        if now >= self._next_record:
            self._announce(phase)
            self._next_record = now + lease / 3

    def _look_who_leads(self, now: float) -> None:
        status = self._engine.status()
        if status.leader or status.epoch == 0:
            self._leaderless = None
        elif self._leaderless is None:
            self._leaderless = now
        leader = self._follower.state.leaders.get(self._follower.state.leader)
        self._leader = f"{leader.host}[{leader.pid}]" if leader else ""

    def _phase(self, now: float) -> str:
        if self._leaderless is not None and now - self._leaderless > self.url.lease / 2:
            return GONE
        if self._follower.state.is_sealed and not self._follower.astray:
            return SEALED
        return ASTRAY if self._follower.astray and self._follower.at.epoch else OPEN

    def _stand(self, phase: str, why: str, say: Callable[[str], object]) -> None:
        """Tells the workers, where it has changed."""
        before = self._told
        if before is not None and before[0].phase == phase and before[0].leader == self._leader:
            return
        at = self._follower.at
        why = " ".join(why.split())[:500]
        now = Told(phase, self.url.shown, self._leader, at.epoch, at.seq, time_in_words(), why)
        self._told = now, tell(self.book, now, before[1] if before else None)
        say(str(now))

    def _announce(self, phase: str) -> None:
        record = Record.of("bridge", self.name, self._follower, phase)
        record = record.of_workers(self.book, differences(self.book), self._other_versions())
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
        record = Record.of("bridge", self.name, self._follower, OPEN)
        try:
            self._engine.announce(f"{record.host}:{record.pid}", b"", 0)
        except Unreachable:
            return  # its record ends with the lease
