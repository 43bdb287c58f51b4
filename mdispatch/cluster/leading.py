"""The leader: a registry in which this process registers as ever, and a thread that publishes what
is registered.

The thread sleeps until something in the registry changes, as a listener for everywhere does
(facts/watch.py), takes all that has changed as one batch, and appends it; while it does that, the
next batch gathers. Between two appends lie 10 ms at least. The engine is never waited for by a
thread that registers.

Whatever an engine says, the leader goes on in one of three ways:

- it did not answer: the same entry is sent again, which is no change if it has arrived;
- it forgot (the tail is not ours, or the epoch is lower): lead again, in a higher epoch, with a
  snapshot of all. So it is, too, when the record of a host names an epoch as high as ours, or
  higher, that is not ours, or says that the host is astray in ours;
- another leads: ``FencedError`` at the next registration. What is registered stays.

An epoch begins with a snapshot and then the entry that the snapshot is of, in this order: an engine
that forgets the snapshot has forgotten the entry, too, and so the tail tells.

Locking: the thread alone uses engine, state and queue. Other threads set ``_ended`` and
``_seal_asked``, once each, and wait for ``_sealed``.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from time import monotonic

from ..errors import (
    EngineUnreachableError,
    FencedError,
    MdispatchError,
    RegistryError,
    RegistryExistsError,
    WaitCancelledError,
)
from ..errors.locations import host
from ..facts import IMPL, PYSTUB, TYPE, kind_of
from ..facts.kinds import COMPARED
from ..facts.opening import DEFAULT_CAPACITY
from ..facts.shared import SharedRegistry
from .engine import Fenced, Forgot, Unreachable, connect, parse_url
from .following import MANIFEST, Follower, Position
from .hosts import ASTRAY, OPEN, SEALED, Told, tell
from .log import (
    BATCH,
    SEAL,
    START,
    Entry,
    Fact,
    Garbled,
    Leader,
    as_fact,
    batches,
    json_bytes,
    pack,
    pack_batch,
    place_on,
    read_json,
)
from .records import Record, read_record, time_in_words
from .state import Manifest, as_host, as_number, start_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..facts import Registration
    from .engine import ClusterURL

_tickets = itertools.count(1 << 61)  # far from those of facts/watch.py

_BETWEEN = 0.01  # seconds between two appends
#: Bytes of log after which a snapshot is made; the log is trimmed behind the one before.
SNAPSHOT_AFTER = 4 << 20


class LeaderRegistry(SharedRegistry):
    """The registrations of a leader: those of its host, which a :class:`Publisher` publishes."""

    publisher: Publisher | None = None

    @classmethod
    def made(cls, name: str, capacity: int) -> LeaderRegistry:
        """A new registry of this name. Raises as :meth:`create`."""
        registry = cls.create(name, capacity)
        assert isinstance(registry, cls)
        return registry

    def seal(self, timeout: float | None) -> bool:
        """See cluster/sealing.py."""
        if self.publisher is None:  # the child of a fork is a worker
            return False
        self.publisher.seal(timeout)
        return True

    def close(self) -> None:
        publisher, self.publisher = self.publisher, None
        if publisher is not None:
            publisher.end()
        super().close()

    def forked(self, at_once: bool) -> bool:
        self.publisher = None  # its thread is the parent's
        return super().forked(at_once)


class FencedRegistry(LeaderRegistry):
    """What the registry of a leader becomes when another one leads: who leads pays nothing for
    it."""

    def register(self, kind: int, key: int, name: str, body: str, where: str) -> Registration:
        its = kind_of(kind)
        if self.publisher is not None and its.hosts == COMPARED and not its.by_any:
            raise self.publisher.fenced()
        return super().register(kind, key, name, body, where)


def lead(text: str, capacity: int = DEFAULT_CAPACITY) -> LeaderRegistry:
    """Opens the registry of the run that the URL names, as its leader. Waits up to two leases for a
    leader that has died.

    Raises InvalidArgumentError (the URL), RegistryExistsError (somebody else leads, or this host
    has a bridge), EngineUnreachableError, and what Registry.create raises.
    """
    url = parse_url(text)
    try:
        registry = LeaderRegistry.made(url.run, capacity)
    except RegistryExistsError as error:
        error.args = (
            f"{error.args[0]}\nThis host has a leader or a bridge of run {url.run!r}: a process "
            f"beside it is a worker, by MDISPATCH_REGISTRY={url.run}",
        )
        raise
    try:
        registry.publisher = Publisher(url, registry)
        registry.publisher.begin()
    except BaseException:
        publisher, registry.publisher = registry.publisher, None
        if publisher is not None:
            publisher.abandon()
        registry.close()
        raise
    return registry


class Publisher:
    """Publishes one registry. Made and begun by :func:`lead`."""

    def __init__(self, url: ClusterURL, registry: LeaderRegistry) -> None:
        self._url = url
        self._registry = registry
        self._engine = connect(url)
        self._follower = Follower(self._engine)  # holds state and position
        self._token = os.urandom(16)
        self._me = Leader(int.from_bytes(os.urandom(7)), host(), os.getpid())
        #: Who leads in our place; "" as long as we lead.
        self.fenced_by = ""
        self._has_read = self._is_cut = self._must_lead = False
        self._queue: deque[tuple[list[int], list[Fact]]] = deque()  # batches
        self._pending: tuple[tuple[int, int], bytes] | None = None  # the tail before, the entry
        #: What it has registered for workers, by name, keys and location.
        self._taken: dict[tuple[str, str, str], Registration] = {}
        self._told: dict[int, bool] = {}  # by number: whether it travels
        self._seq = self._seen = 0
        self._log_size = 0
        self._snapshots: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # chunks: last, before
        self._snapshot_at = (0, 0)
        self._next_renewal = self._appended = 0.0
        self._pause = 0.0
        self._ended = threading.Event()
        self._seal_asked = self._seal_said = False
        self._sealed = threading.Event()
        self._ticket = next(_tickets)
        self._waiting = False
        self._thread = threading.Thread(
            target=self._run_in_background, name="mdispatch leader", daemon=False
        )

    # --- from outside

    def begin(self) -> None:
        """Takes the lead in the caller's thread, then starts the publishing one."""
        # First of all: a worker that is here by now must not take this for a registry of one host.
        self._stand(OPEN)
        deadline = monotonic() + 2 * self._url.lease
        while True:
            try:
                if self._lead():
                    break
                who = self._who_leads()
            except (Fenced, Forgot):
                who = "another leader, just now"
            except Unreachable as error:
                raise self._unreachable(str(error)) from None
            if monotonic() > deadline:
                raise RegistryExistsError(
                    f"run {self._url.run!r} in {self._url.shown} is led by {who}: end that process "
                    "first, or choose another run=. On other hosts than the leader's, run "
                    f"`mdispatch bridge`, and give workers MDISPATCH_REGISTRY={self._url.run}",
                    self._url.run,
                )
            time.sleep(self._url.lease / 20)
        self._stand(OPEN)
        self._thread.start()

    def abandon(self) -> None:
        """After :meth:`begin` has failed."""
        self._engine.close()

    def seal(self, timeout: float | None) -> None:
        self._seal_asked = True
        self._stand(SEALED)  # wakes the thread; on this host all is there
        if not self._sealed.wait(timeout):
            raise self._unreachable(f"the seal was not stored within {timeout} s")
        if self.fenced_by:
            raise self.fenced()

    def fenced(self) -> FencedError:
        at = self._follower.at
        return FencedError(
            f"this process leads run {self._url.run!r} no more: {self.fenced_by} has taken over, "
            f"after epoch {at.epoch}\nWhat is registered here goes on. End this process, or the "
            "other one: one run has one leader.",
            self._url.run,
            leader=self.fenced_by,
            epoch=at.epoch,
        )

    def end(self) -> None:
        """Publishes the rest, if the engine answers, and gives the lead back. Idempotent."""
        self._ended.set()
        if self._thread.ident in (None, threading.get_ident()):
            return
        while self._waiting:
            self._registry.cancel(self._ticket)  # again, until it caught the sleep
            time.sleep(0.001)
        self._thread.join()

    # --- the thread

    def _run_in_background(self) -> None:
        # Whoever registers wakes this thread. A batch thread does not push its waker off the
        # processor: it takes a free one, or its turn.
        with suppress(OSError):  # a container may refuse the system call
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        self._run()

    def _run(self) -> None:
        try:
            while True:
                if self._ended.is_set() or not self._turn():
                    break
                if self._is_cut:
                    self._ended.wait(self._pause)
                else:
                    self._wait()
        except (WaitCancelledError, RegistryError):
            pass  # the interpreter ends, or the registry was closed
        finally:
            self._sealed.set()  # who waits for it looks at fenced_by
            self._finish()

    def _wait(self) -> None:
        self._waiting = True
        try:
            # Set before it is asked, so end() either is seen here or sees the wait and cancels it.
            if not self._ended.is_set():
                left = max(0.0, self._next_renewal - monotonic())
                self._registry.await_change(self._seq, left, self._ticket)
        finally:
            self._waiting = False
        left = self._appended + _BETWEEN - monotonic()
        if left > 0:
            self._ended.wait(left)

    def _turn(self) -> bool:
        """Does what there is to do. False when another leads."""
        try:
            if self._must_lead:
                if not self._lead():
                    raise Fenced
                self._must_lead = False
            is_sealing = self._seal_asked and not self._seal_said  # before the look
            self._look()
            self._flush()
            if is_sealing:
                self._seal_said = True
                self._append(SEAL, json_bytes({"versions": self._versions()}))
            if self._seal_said:
                self._sealed.set()
            if monotonic() >= self._next_renewal:
                self._renew()
            if self._log_size > SNAPSHOT_AFTER:
                self._snapshot()
            self._is_cut, self._pause = False, 0.0
        except Forgot:
            self._must_lead, self._next_renewal = True, 0.0
        except Fenced:
            self.fenced_by = self._who_leads()
            self._registry.__class__ = FencedRegistry
            return False
        except Unreachable:
            self._is_cut = True
            self._pause = min(1.0, 0.02 + self._pause * 2) * (0.5 + random.random() / 2)
        return True

    def _finish(self) -> None:
        try:
            if not (self.fenced_by or self._is_cut or self._must_lead):
                self._look()
                self._flush()
                self._engine.announce(self._key(), b"", 0)
                self._engine.release(self._follower.at.epoch, self._token)
        except (Fenced, Forgot, Unreachable, MdispatchError):
            pass
        self._engine.close()

    # --- leading

    def _lead(self) -> bool:
        """Begins an epoch; False where somebody else leads."""
        at, engine = self._follower.at, self._engine
        known = [at.epoch, *(each.epoch for each in self._records())]
        me = json_bytes({"host": self._me.host, "pid": self._me.pid})
        epoch = engine.acquire(self._token, me, self._url.lease, max(known))
        if epoch is None:
            return False
        if not self._has_read:
            # Nobody else appends now: what is read is all there is.
            while True:
                before = self._follower.at
                for _ in self._follower.follow(0):
                    pass
                if self._follower.at == before:
                    break
            self._has_read = True
            at = self._follower.at
        seq = max(at.seq, engine.status().tail[1]) + 1
        said = start_bytes(self._me)
        entry, chain = pack(START, at.chain, said)
        self._follower.state.apply(Entry(START, chain, said))
        self._follower.at = Position(epoch, chain, seq, chain)
        self._follower.astray = ""
        self._pending = None  # the snapshot has it
        self._snapshot()
        engine.append(epoch, self._token, None, seq, entry)
        self._next_renewal = 0.0
        return True

    def _renew(self) -> None:
        at = self._follower.at
        self._engine.renew(at.epoch, self._token, self._url.lease, at.id)
        records = self._records()
        for record in records:
            is_other = record.root != at.root or record.phase == ASTRAY
            if record.epoch > at.epoch or (record.epoch == at.epoch and is_other):
                raise Forgot
        facts = len(self._follower.state.facts)
        record = Record.of("leader", self._url.run, at, facts, self._phase())
        record = record.of_workers(self._registry, {})
        self._engine.announce(self._key(), record.packed(), self._url.lease)
        me = self._me.host, self._me.pid
        self._take_over_types([record, *(each for each in records if (each.host, each.pid) != me)])
        self._next_renewal = monotonic() + self._url.lease / 3

    def _take_over_types(self, records: list[Record]) -> None:
        """Registers, of each type that this process does not register itself, what the first host
        has: so it travels, and whoever has other keys is told. It stays as long as that host has
        it. The first is that of the log, then that of this host, then the first by name.
        """
        registry, taken = self._registry, self._taken
        log = {(f.name, f.text) for f in self._follower.state.facts.values() if f.kind == TYPE}
        there: dict[tuple[str, str, str], None] = {}
        for host_ in [records[0], *sorted(records[1:], key=lambda each: (each.host, each.pid))]:
            for pid, name, keys, where in host_.types:
                there[name, keys, place_on(host_.host, pid, where)] = None
        me = self._me.pid, registry.interpreter
        mine = {f.seq: f for f in registry.registrations_since(TYPE, 0)[1] if f[7:] == me}
        seqs = {fact.seq for fact in taken.values()}
        own = {fact.name for fact in mine.values() if fact.seq not in seqs}
        for what, fact in list(taken.items()):
            # Its own took the place of one, and may have ended since.
            if what not in there or what[0] in own or fact.seq not in mine:
                registry.remove(fact)
                del taken[what]
        known = own | {name for name, _, _ in taken}
        for what in sorted(there, key=lambda each: each[:2] not in log):
            name, keys, where = what
            if name not in known:
                known.add(name)
                with suppress(MdispatchError):  # the registry is full, or it is registered just now
                    taken[what] = registry.register(TYPE, 0, name, keys, where)
        registry.forget_published()

    def _records(self) -> list[Record]:
        found = []
        for data in self._engine.hosts().values():
            try:
                found.append(read_record(data))
            except Garbled:
                continue
        return found

    def _snapshot(self) -> None:
        at, state, engine = self._follower.at, self._follower.state, self._engine
        chunks = state.chunks()
        for name, data in chunks.items():
            engine.put(at.epoch, self._token, name, data)
        last, before = self._snapshots
        manifest = Manifest(at.epoch, at.root, at.seq, at.chain, tuple(chunks), last)
        engine.put(at.epoch, self._token, MANIFEST, manifest.packed(state))
        unused = [name for name in before if name not in chunks and name not in last]
        if unused:
            engine.drop(at.epoch, self._token, unused)
        engine.trim(at.epoch, self._token, self._snapshot_at)
        self._snapshots, self._snapshot_at, self._log_size = (tuple(chunks), last), at.id, 0

    # --- publishing

    def _look(self) -> None:
        """Queues the difference to the last look. See facts/watch.py."""
        registry = self._registry
        seq, _ = registry.await_change(0, 0)
        live, there = registry.registrations_since(0, self._seen)
        removed: list[int] = []
        if live != len(self._told) + len(there):
            _, there = registry.registrations_since(0, 0)
            now = {fact.seq for fact in there}
            ended = [number for number in self._told if number not in now]
            removed = [number for number in ended if self._told.pop(number)]
        begun = [fact for fact in there if self._seen <= fact.seq < seq]
        begun.sort(key=lambda fact: fact.seq)
        self._told.update((fact.seq, self._travels(fact)) for fact in begun)
        self._seen = self._seq = seq
        facts = [self._fact(fact) for fact in begun if self._told[fact.seq]]
        if removed or facts:
            self._queue.extend(batches(removed, facts))

    def _travels(self, fact: Registration) -> bool:
        """Of what any member registers for itself, only the leader's own: hosts compare with it."""
        if kind_of(fact.kind).by_any and fact[7:] != (self._me.pid, self._registry.interpreter):
            return False
        return kind_of(fact.kind).hosts == COMPARED

    def _fact(self, fact: Registration) -> Fact:
        _, seq, kind, key, name, text, origin, pid, interpreter = fact
        return as_fact((self._me.number, seq, kind, key, pid, interpreter, name, text, origin))

    def _flush(self) -> None:
        """Appends the entry that was on its way, and what is queued."""
        if self._pending:
            self._send()
        while self._queue:
            batch = self._queue.popleft()
            self._append(BATCH, pack_batch(*batch), batch)

    def _append(
        self, what: int, said: bytes, batch: tuple[list[int], list[Fact]] | None = None
    ) -> None:
        """Appends an entry; of a batch, ``said`` is that."""
        follower = self._follower
        before = follower.at
        entry, chain = pack(what, before.chain, said)
        if batch:
            follower.state.change(*batch)
        else:
            follower.state.apply(Entry(what, chain, said))
        follower.at = Position(before.epoch, before.root, before.seq + 1, chain)
        self._pending = before.id, entry
        self._send()

    def _send(self) -> None:
        assert self._pending
        (after, entry), at = self._pending, self._follower.at
        self._engine.append(at.epoch, self._token, after, at.seq, entry)
        self._pending = None
        self._log_size += len(entry)
        self._appended = monotonic()

    def _versions(self) -> dict[str, str]:
        """The distributions whose modules have registered."""
        from importlib.metadata import PackageNotFoundError, packages_distributions, version

        facts = self._follower.state.facts.values()
        said = [each.text for each in facts if each.kind in (IMPL, PYSTUB)]
        tops = {text.partition("\n")[0].partition(".")[0] for text in said} & set(sys.modules)
        distributions = packages_distributions()
        found: dict[str, str] = {}
        for name in sorted({name for top in tops for name in distributions.get(top, ())})[:256]:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
        return found

    # --- words

    def _key(self) -> str:
        return f"{self._me.host}:{self._me.pid}"

    def _phase(self) -> str:
        return SEALED if self._follower.state.is_sealed else OPEN

    def _stand(self, phase: str) -> None:
        at, me = self._follower.at, self._me
        now = Told(
            *(phase, self._url.shown, f"{me.host}[{me.pid}]", at.epoch, at.seq),
            *(time_in_words(), at.root.hex(), at.chain.hex(), ""),
        )
        tell(self._registry, now)

    def _who_leads(self) -> str:
        try:
            told = read_json(self._engine.status().leader, 1 << 12)
            return f"{as_host(told.get('host'))}[{as_number(told.get('pid'))}]"
        except (Garbled, Unreachable):
            return "another process"

    def _unreachable(self, why: str) -> EngineUnreachableError:
        return EngineUnreachableError(
            f"the engine {self._url.shown} does not answer: {why}\nSee that it runs and can be "
            "reached from here; the URL is as its client library reads it.",
            self._url.run,
            engine=self._url.shown,
            since=time_in_words(),
            seq=self._follower.at.seq,
        )
