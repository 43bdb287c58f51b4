"""A cluster whose time is made up: leaders, bridges and their registries are the real ones, the
engine is that in memory, and one seeded choice says who goes on, when, and what befalls whom.

Each leader and each bridge is a thread that runs only while it has the baton, and gives it back
before each call of the engine, between its effect and its answer, and where it would sleep. So a
seed is a schedule, and the same one each time. Here it can be killed (also between two
registrations that it writes), stopped for longer than its lease, or cut off.

Time is patched into the modules of mdispatch.cluster, so this runs in a process of its own
(cluster_schedules.py).
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace

from mdispatch.cluster import bridge, following, leading, memory, parse_url, records
from mdispatch.cluster.engine import Unreachable
from mdispatch.cluster.following import Position
from mdispatch.cluster.hosts import told
from mdispatch.cluster.log import NO_CHAIN, START, Garbled, unpack
from mdispatch.errors import MdispatchError, RegistryError
from mdispatch.facts import DEF, IMPL, kind_of
from mdispatch.facts.kinds import COMPARED
from mdispatch.facts.shared import SharedRegistry

__all__ = ["HEALED", "Hang", "World"]

LEASE = 1.0
#: Virtual seconds from the last fault until all hosts have what the leader has.
HEALED = 2.0
_CAPACITY = 1 << 22
_NAMES = [f"s::f{n}" for n in range(5)]
_BLOWS = [
    "kill leader",
    "kill leader",
    "stop leader",
    "stop leader",
    "another leader",
    "kill bridge",
    "kill bridge",
    "stop bridge",
    "cut",
    "engine cut",
    "copy",
    "copy",
    "lose",
    "lose",
    "empty",
    "seal",
    "late host",
    "records",
]
_TEXTS = ["(int x) -> int", "(str x) -> int"]


class Killed(BaseException):
    """Ends a thread where it stands."""


class Hang(AssertionError):
    """What should have healed has not."""


class _Event:
    """threading.Event in the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        self._world.sleep(seconds, self.is_set)
        return self._is_set


class Actor:
    """A thread with the world's baton, or without."""

    def __init__(self, world: World, name: str, body: Callable[[], None]) -> None:
        self.world, self.name, self.body = world, name, body
        self.until, self.wakes = 0.0, None  # sleeps until then, or until that is true
        self.stopped_until = 0.0
        self.is_killed = self.is_cut = self.has_ended = False
        self.writes_left = (
            -1
        )  # registrations that it still writes before it is killed; -1: it is not
        self.error: BaseException | None = None
        self.go = threading.Lock()
        self.go.acquire()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self.is_killed:
                self.body()
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.has_ended = True
        self.world.back.release()

    def is_ready(self, now: float) -> bool:
        if self.is_killed:
            return True
        if now < self.stopped_until:
            return False
        return now >= self.until or (self.wakes is not None and self.wakes())

    def wakes_at(self) -> float:
        return max(self.until, self.stopped_until)


class Port:
    """One connection to the engine."""

    def __init__(self, world: World, url: object) -> None:
        self.world, self.actor = world, world.current
        self.inner = memory.MemoryEngine(url)

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *args: self._call(name, *args)

    def close(self) -> None:
        pass

    def _reaches(self) -> None:
        if self.actor.is_cut:
            raise Unreachable("it was cut off")

    def _call(self, name: str, *args: object) -> object:
        world = self.world
        world.sleep(world.dice.random() * 0.002)
        self._reaches()
        answer = getattr(self.inner, name)(*args)
        if world.dice.random() < 0.3:
            world.sleep(world.dice.random() * 0.004)
            self._reaches()
        return answer

    def acquire(self, token: bytes, leader: bytes, ttl: float, above: int) -> int | None:
        world = self.world
        world.sleep(world.dice.random() * 0.002)
        self._reaches()
        epoch = self.inner.acquire(token, leader, ttl, above)
        if epoch is not None and not world.rules["epoch"]:
            epoch = self.inner.store.epoch = 1
        if epoch is not None:
            world.note("led", leader=self.actor.name, epoch=epoch)
        world.sleep(world.dice.random() * 0.004)
        self._reaches()
        return epoch

    def append(self, epoch: int, token: bytes, after: object, seq: int, entry: bytes) -> None:
        world, store = self.world, self.inner.store
        began = world.now
        if world.rules["chain"]:
            self._call("append", epoch, token, after, seq, entry)
        else:
            world.sleep(world.dice.random() * 0.002)
            self._reaches()
            with store.lock:
                self.inner._fence(epoch, token)
                store.log.append((epoch, seq, entry))
                store.tail = epoch, seq
        world.note("acked", leader=self.actor.name, epoch=epoch, seq=seq, began=began)

    def renew(self, epoch: int, token: bytes, ttl: float, tail: tuple[int, int]) -> None:
        is_kept = self.world.rules["chain"] and self.world.rules["epoch"]
        self._call("renew", epoch, token, ttl, tail if is_kept else self.inner.store.tail)

    def read(self, after: tuple[int, int], limit: int, timeout: float) -> list:
        store = self.inner.store
        found = self._call("read", after, limit, 0)
        if not found and timeout > 0:
            self.world.sleep(
                timeout,
                lambda: store.is_cut or (bool(store.log) and store.log[-1][:2] > after),
            )
            found = self._call("read", after, limit, 0)
        return found


class Publisher(leading.Publisher):
    """Its thread is the world's."""

    world: World

    def __init__(self, url: object, registry: leading.LeaderRegistry) -> None:
        super().__init__(url, registry)
        self._ended = _Event(self.world)
        self._thread = SimpleNamespace(start=lambda: None, ident=None)
        self.writer = self.world.current.name

    def _wait(self) -> None:
        registry, seq = self._registry, self._seq
        left = max(0.0, self._next_renewal - self.world.now)
        self.world.sleep(left, lambda: registry.await_change(0, 0)[0] != seq)
        left = self._appended + leading._BETWEEN - self.world.now
        if left > 0:
            self.world.sleep(left)

    def _versions(self) -> dict[str, str]:
        return {}

    def _renew(self) -> None:
        if self.world.rules["epoch"]:
            super()._renew()
        else:
            at = self._follower.at
            self._engine.renew(at.epoch, self._token, LEASE, at.id)
            self._next_renewal = self.world.now + LEASE / 3


class Bridge(bridge.Bridge):
    """Tells the world how its host stands."""

    world: World
    host = ""
    lives: dict[str, int]

    def _take_over(self, say: Callable[[str], object]) -> bool:
        if told(self.registry) is None:  # the registry went with the last one who had it open
            self.lives[self.host] = self.lives.get(self.host, 0) + 1
        return super()._take_over(say)

    def _stand(self, phase: str, why: str, say: Callable[[str], object]) -> None:
        super()._stand(phase, why, say)
        at = self._follower.at
        if self._goes_on_from is None and at.seq:
            self.world.note(
                "stands",
                host=f"{self.host}, life {self.lives[self.host]}",
                epoch=at.epoch,
                seq=at.seq,
                chain=bytes(at.chain).hex(),
                facts=_facts(self.registry),
            )


def _facts(registry: object) -> list[tuple[int, int, str, str]]:
    there = registry.registrations()[2]
    return sorted(
        (f.kind, int(f.key), f.name, f.text) for f in there if kind_of(f.kind).hosts == COMPARED
    )


class World:
    """One schedule."""

    _count = 0

    def __init__(self, seed: object, without: tuple[str, ...] = ()) -> None:
        World._count += 1
        self.dice = random.Random(str(seed))
        self.rules = {rule: rule not in without for rule in ("chain", "epoch")}
        self.now = self._end_of_step = 100.0
        self._is_watched = False
        self.back = threading.Lock()
        self.back.acquire()
        self.current: Actor = SimpleNamespace(name="nobody")  # type: ignore[assignment]
        self.actors: list[Actor] = []
        self.history: list[dict] = []
        self.trace: list[str] = []
        self.blows: list[str] = []
        self.run_name = f"w{os.getpid()}-{World._count}"
        self.url = parse_url(f"memory:x?run={self.run_name}&lease={LEASE:g}&policy=follow")
        self.store = memory.stores.setdefault(self.url.shown, memory.Store())
        self.leaders: list[tuple[Actor, leading.LeaderRegistry]] = []
        self.hosts: dict[str, Actor] = {}
        self.bridges: dict[str, Bridge] = {}
        self.lives: dict[str, int] = {}
        self.keepers: list[SharedRegistry] = []
        self.programs: dict[str, dict[str, object]] = {}
        self._patch()

    @classmethod
    def close(cls) -> None:
        """After the last schedule of this process."""

    # --- time

    def sleep(self, seconds: float, wakes: Callable[[], bool] | None = None) -> None:
        """Gives the baton on, or goes on with it. Only a thread that has it calls this."""
        me = self.current
        if me.is_killed:
            raise Killed
        me.until, me.wakes = self.now + max(seconds, 0.0), wakes
        following = None if self._is_watched else self._choose()
        if following is not me:
            (self.back if following is None else following.go).release()
            me.go.acquire()
        me.wakes = None
        if me.is_killed:
            raise Killed

    def _choose(self) -> Actor | None:
        """Who goes on; None when the time is up."""
        while self.now < self._end_of_step:
            ready = [a for a in self.actors if not a.has_ended and a.is_ready(self.now)]
            if ready:
                self.now += self.dice.random() * 0.0005
                self.current = self.dice.choice(ready)
                return self.current
            living = [a.wakes_at() for a in self.actors if not a.has_ended]
            self.now = min([self._end_of_step, *living])
        return None

    def go_on(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Lets the actors go on; whether ``done``, which is asked after each step, came true."""
        self._end_of_step, self._is_watched = until, done is not None
        while True:
            actor = self._choose()
            if actor is None:
                return done is not None and done()
            self._give(actor)
            if done is not None and done():
                return True

    def _give(self, actor: Actor) -> None:
        self.current = actor
        actor.go.release()
        self.back.acquire()
        for each in self.actors:
            if each.error is not None:
                raise each.error

    def _patch(self) -> None:
        def monotonic() -> float:
            return self.now

        dice = SimpleNamespace(random=self.dice.random)
        shim = SimpleNamespace(sleep=self.sleep)
        leading.os = SimpleNamespace(urandom=self.dice.randbytes, getpid=os.getpid)  # type: ignore
        for module in (leading, bridge, memory):
            module.monotonic = monotonic  # type: ignore[attr-defined]
        leading.time, leading.random, bridge.random = shim, dice, dice  # type: ignore[attr-defined]
        leading.connect = bridge.connect = lambda url: Port(self, url)  # type: ignore[attr-defined]
        leading.host = records.host = lambda: self.current.name  # type: ignore[attr-defined]
        Publisher.world = Bridge.world = self
        _pack = _really["pack"]

        def pack(kind: int, before: bytes, said: bytes) -> tuple[bytes, bytes]:
            entry, chain = _pack(kind, before, said)
            chains = {"before": bytes(before).hex(), "chain": chain.hex(), "said": said.hex()}
            self.note("meant", leader=self.current.name, kind=kind, **chains)
            return entry, chain

        leading.pack = pack
        for module, name in _broken:
            setattr(module, name, _really[name])
        if not self.rules["chain"]:
            following.chained = lambda *_: _Any(NO_CHAIN)
        if not all(self.rules.values()):
            loose = Position if self.rules["chain"] else _loose_position
            for module in (following, leading):
                module.Position = _loose_root(loose)  # type: ignore[attr-defined]
        if not self.rules["epoch"]:
            following.Follower._next = _next_of_any_epoch  # type: ignore[method-assign]
            memory.MemoryEngine._fence = lambda self, *_: self._answers()  # type: ignore

    def note(self, what: str, **more: object) -> None:
        self.history.append({"what": what, "t": self.now, **more})

    def say(self, words: str) -> None:
        self.trace.append(f"{self.now - 100:7.3f}  {words}")

    # --- who takes part

    def _act(self, name: str, body: Callable[[], None]) -> Actor:
        actor = Actor(self, name, body)
        self.actors.append(actor)
        return actor

    def start_leader(self) -> None:
        name = f"L{len(self.leaders)}"
        registry = leading.LeaderRegistry.made(f"{self.run_name}-{name}", _CAPACITY)

        def body() -> None:
            publisher = Publisher(self.url, registry)
            try:
                publisher.begin()
            except MdispatchError as error:
                self.say(f"{name} does not lead: {type(error).__name__}")
                return
            registry.publisher = publisher
            publisher._run()
            self.say(f"{name} ends, {publisher.fenced_by or 'nobody'} leads")

        self.leaders.append((self._act(name, body), registry))
        self.programs[name] = {}
        self.say(f"{name} starts")

    def start_bridge(self, host: str) -> None:
        life = sum(actor.name.startswith(host) for actor in self.actors)
        name = f"{host}b{life}"
        region = f"{self.run_name}-{host}"

        def body() -> None:
            one = Bridge(self.url, region, _CAPACITY)
            one.ended = _Event(self)  # type: ignore[assignment]
            one.host, one.lives = host, self.lives
            register = one.registry.register

            def counted(*args: object) -> object:
                actor = self.current
                if actor.writes_left == 0:
                    self.note("killed", host=host)
                    self.say(f"{actor.name} is killed in a batch")
                    actor.is_killed = True
                    raise Killed
                actor.writes_left -= actor.writes_left > 0
                return register(*args)

            one.registry.register = counted
            self.bridges[host] = one
            if life == 0 and self.dice.random() < 0.7:  # a worker keeps the host's registry
                self.keepers.append(SharedRegistry.attach(region, 1.0))
            one.run(lambda words: None)

        self.hosts[host] = self._act(name, body)
        self.say(f"{name} starts")

    def kill(self, actor: Actor) -> None:
        if not actor.has_ended:
            self.say(f"{actor.name} is killed")
            self.note("killed", host=actor.name[:2])
            actor.is_killed = True
            self._give(actor)

    def program(self, name: str, registry: leading.LeaderRegistry) -> None:
        """The leader's program registers something, or removes something."""
        mine = self.programs[name]
        here = self.dice.choice(_NAMES)
        with suppress(RegistryError):
            self.current = next(actor for actor in self.actors if actor.name == name)
            if here in mine and self.dice.random() < 0.6:
                registry.remove(mine.pop(here))
                self.note("registered", leader=name, name=here, text=None)
            elif here not in mine:
                self.register(name, registry, here, self.dice.choice(_TEXTS))
            if self.dice.random() < 0.3:
                kernel = f"m{self.dice.randrange(3)}"
                self.note("registered", leader=name, name=here, text=kernel)
                registry.register(IMPL, 1, here, kernel, "m.py:1")

    def register(self, name: str, registry: leading.LeaderRegistry, what: str, text: str) -> None:
        self.note("registered", leader=name, name=what, text=text)
        try:
            self.programs[name][what] = registry.register(DEF, 0, what, text, "m.py:1")
        except RegistryError:
            self.history.pop()
            raise

    # --- the schedule

    def play(self) -> float:
        """Plays it, and returns how long the healing took. Raises Hang, or what a thread raised."""
        dice = self.dice
        leading.SNAPSHOT_AFTER = dice.choice([1, 300, 1500, 4 << 20])
        names = [f"h{n}" for n in range(dice.choice([1, 2, 2, 3]))]
        try:
            self.start_leader()
            for host in names:
                self.start_bridge(host)
            backups = [memory.Store().backup()]
            for _ in range(dice.randrange(3, 9)):
                self._work(dice.random() * 1.2)
                self._befalls(names, backups)
            self._work(dice.random())
            return self._heal(names)
        finally:
            self._end()

    def _work(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.go_on(min(end, self.now + self.dice.random() * 0.3))
            for actor, registry in self.leaders:
                if not actor.has_ended and self.now >= actor.stopped_until:
                    self.program(actor.name, registry)

    def _living_leaders(self) -> list[tuple[Actor, leading.LeaderRegistry]]:
        return [each for each in self.leaders if not each[0].has_ended]

    def _befalls(self, names: list[str], backups: list) -> None:
        dice, store = self.dice, self.store
        leaders = [actor for actor, _ in self._living_leaders()]
        hosts = [actor for actor in self.hosts.values() if not actor.has_ended]
        blow = dice.choice(_BLOWS)
        self.blows.append(blow)
        if blow.endswith(" leader") and blow != "another leader" and leaders:
            one = dice.choice(leaders)
            if blow == "kill leader":
                self.kill(one)
            else:
                one.stopped_until = self.now + dice.random() * 4
                self.say(f"{one.name} stops until {one.stopped_until - 100:.3f}")
            if dice.random() < 0.7:
                self.start_leader()
        elif blow == "another leader":
            self.start_leader()
        elif blow == "kill bridge" and hosts:
            one = dice.choice(hosts)
            if dice.random() < 0.5:
                one.writes_left = dice.randrange(4)
            else:
                self.kill(one)
            self.go_on(self.now + dice.random() * 0.5, lambda: one.has_ended)
            if one.has_ended and dice.random() < 0.8:
                self.start_bridge(one.name[:2])
        elif blow == "stop bridge" and hosts:
            one = dice.choice(hosts)
            one.stopped_until = self.now + dice.random() * 4
            self.say(f"{one.name} stops until {one.stopped_until - 100:.3f}")
        elif blow == "cut" and leaders + hosts:
            one = dice.choice(leaders + hosts)
            one.is_cut = not one.is_cut
            self.say(f"{one.name} is {'cut off' if one.is_cut else 'no longer cut off'}")
        elif blow == "engine cut":
            store.is_cut = not store.is_cut
            self.say(f"the engine {'does not answer' if store.is_cut else 'answers'}")
        elif blow == "copy":
            backups.append(store.backup())
            self.say("the engine is copied")
        elif blow in ("lose", "empty"):
            store.restore(backups[-1] if blow == "lose" else backups[0])
            self.note("lost")
            self.say(f"the engine comes back {'older' if blow == 'lose' else 'empty'}")
        elif blow == "records":
            store.records.clear()
            self.say("the engine forgets the hosts")
        elif blow == "seal":
            self._seal()
        elif blow == "late host" and len(names) < 4:
            names.append(f"h{len(names)}")
            self.start_bridge(names[-1])

    def _seal(self) -> None:
        for actor, registry in self._living_leaders():
            if registry.publisher is not None and not registry.publisher._seal_asked:
                self.current = actor
                registry.publisher._seal_asked = True
                with suppress(RegistryError):
                    registry.publisher._stand("sealed")
                self.say(f"{actor.name} seals")

    def _heal(self, names: list[str]) -> float:
        """No fault any more: some leader leads, and each host has a bridge."""
        self.store.is_cut = False
        for actor in self.actors:
            actor.is_cut, actor.stopped_until, actor.writes_left = False, 0.0, -1
        for host in names:
            if self.hosts[host].has_ended:
                self.start_bridge(host)
        began = self.now
        self.say("no more faults")
        probed: set[str] = set()
        is_healed = False

        def healed() -> bool:
            nonlocal began
            if not self._living_leaders():  # who was stopped has found another one, who is dead
                self.start_leader()
                began = self.now
            for actor, registry in self._living_leaders():
                publisher = registry.publisher
                if publisher is None or publisher._must_lead or publisher.fenced_by:
                    continue
                if actor.name not in probed:
                    probed.add(actor.name)
                    self.current = actor
                    self.register(actor.name, registry, f"s::probe{len(probed)}", "() -> int")
                    return False
                at = publisher._follower.at
                if (
                    publisher._pending
                    or publisher._queue
                    or publisher._seq != (registry.await_change(0, 0)[0])
                ):
                    continue
                stand = [self.bridges.get(host) for host in names]
                if all(b and b.told and b.told.chain == bytes(at.chain).hex() for b in stand):
                    self.say(f"healed by {actor.name}")
                    return True
            return False

        while self.now < began + HEALED and not (is_healed := self.go_on(began + HEALED, healed)):
            pass
        if not is_healed:
            stand = {h: str(self.bridges[h].told) for h in names if h in self.bridges}
            raise Hang(f"not healed after {HEALED} s: {stand}")
        return self.now - began

    def _end(self) -> None:
        for actor in self.actors:
            if not actor.has_ended:
                actor.is_killed = True
                self.current = actor
                actor.go.release()
                self.back.acquire()
        for actor in self.actors:
            actor.thread.join()
        for _, registry in self.leaders:
            registry.publisher = None
            registry.close()
        for keeper in self.keepers:
            keeper.close()
        memory.stores.pop(self.url.shown, None)


# --- rules that are left out on purpose -----------------------------------------------------------

_broken = [
    (following, "chained"),
    (following.Follower, "_next"),
    (memory.MemoryEngine, "_fence"),
    (following, "Position"),
    (leading, "Position"),
]
_really = {name: getattr(module, name) for module, name in _broken} | {"pack": leading.pack}


class _Any(bytes):
    """Bytes that are equal to all others."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = bytes.__hash__


def _loose_position(epoch: int, root: bytes, seq: int, chain: bytes) -> Position:
    return Position(epoch, root, seq, _Any(chain))


def _loose_root(position: Callable[..., Position]) -> Callable[..., Position]:
    def made(epoch: int = 0, root: bytes = NO_CHAIN, seq: int = 0, chain: bytes = NO_CHAIN):  # type: ignore[no-untyped-def]
        return position(epoch, _Any(root), seq, chain)

    return made


def _next_of_any_epoch(self: following.Follower, epoch: int, seq: int, data: bytes) -> object:
    at, entry = self.at, unpack(data)
    if seq != at.seq + 1 or entry.chain != following.chained(at.chain, entry.what, entry.said):
        raise Garbled("it continues another log")
    changes = self.state.apply(entry)
    root = entry.chain if entry.what == START else at.root
    self.at = following.Position(epoch, root, seq, entry.chain)
    return changes
