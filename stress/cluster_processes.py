"""A cluster of processes on a real Redis server: leaders, bridges and workers are children of a
fork, which are killed and stopped; the server is killed, stopped, restarted empty and older.

Each process appends what it does to one file, the history. Which of them comes first is up to the
machine, so a seed gives the same blows, and not the same schedule.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from glob import glob
from time import monotonic

from mdispatch import Registry, wait_for_def
from mdispatch.cluster import bridge, leading, parse_url
from mdispatch.errors import FencedError, MdispatchError, RegistryError
from mdispatch.facts import DEF

__all__ = ["Hang", "World"]

PATIENCE = float(os.environ.get("MDISPATCH_TEST_PATIENCE") or 1)
LEASE = min(4.0, PATIENCE)
#: Seconds from the last fault until all hosts have what the leader has: two leases.
HEALED = 2.0 * PATIENCE
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
    "copy",
    "copy",
    "lose",
    "lose",
    "empty",
    "flush",
    "stop engine",
    "connections",
    "seal",
    "late host",
]
_TEXTS = ["(int x) -> int", "(str x) -> int"]


def _ends_with_its_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Hang(AssertionError):
    """What should have healed has not."""


class Server:
    """A redis-server; ``save`` copies what it has, ``start`` begins with the copy or with none."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="md-redis-")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, copy: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self.folder}/dump.rdb")
        if copy:
            shutil.copy(copy, f"{self.folder}/dump.rdb")
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            preexec_fn=_ends_with_its_parent,
        )
        end = monotonic() + 20 * PATIENCE
        while True:
            try:
                if self.client().ping():
                    return
            except Exception:
                if monotonic() > end:
                    raise
                time.sleep(0.02)

    def client(self):  # type: ignore[no-untyped-def]
        import redis

        return redis.Redis(port=self.port, socket_timeout=20 * PATIENCE)

    def copy(self, number: int) -> str:
        self.client().save()
        there = f"{self.folder}/copy-{number}"
        shutil.copy(f"{self.folder}/dump.rdb", there)
        return there

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Child:
    """A process of the schedule. It is told words on a pipe, and tells words on another."""

    def __init__(self, world: World, name: str, body: Callable[[Child], None]) -> None:
        self.name, self.world = name, world
        self.hear, self.tell = os.pipe()
        self.told, self._telling = os.pipe()
        self.is_stopped = self.has_ended = False
        self.go_on_at = 0.0
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                _ends_with_its_parent()
                body(self)
                code = 0
            except BaseException:
                world.note("failed", who=name, error=traceback.format_exc())
            finally:
                sys.stdout.flush()
                os._exit(code)
        os.close(self._telling)
        os.close(self.hear)
        os.set_blocking(self.told, False)

    def ended(self) -> bool:
        if not self.has_ended:
            self.has_ended = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return self.has_ended

    def send(self, number: int) -> None:
        if not self.ended():
            os.kill(self.pid, number)

    def kill(self) -> None:
        if not self.ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.has_ended = True

    def order(self, words: str) -> None:
        with suppress(BrokenPipeError):
            os.write(self.tell, f"{words}\n".encode())

    # --- in the child

    def ordered(self, timeout: float) -> list[str]:
        if not select.select([self.hear], [], [], timeout)[0]:
            return []
        return os.read(self.hear, 1 << 16).decode().split()

    def answer(self, words: str) -> None:
        os.write(self._telling, f"{words}\n".encode())


class World:
    """One schedule."""

    _server: Server | None = None
    _count = 0

    def __init__(self, seed: object, without: tuple[str, ...] = ()) -> None:
        if without:
            raise SystemExit("rules can be left out on the engine in memory only")
        World._count += 1
        if World._server is None:
            World._server = Server()
            World._server.start("")
        self.server = World._server
        self.dice = random.Random(str(seed))
        self.run_name = f"r{os.getpid()}-{World._count}"
        base = f"redis://127.0.0.1:{self.server.port}/0?run={self.run_name}"
        self.url = parse_url(f"{base}&lease={LEASE:g}&policy=follow")
        self.file = f"{self.server.folder}/history"
        self.descriptor = os.open(self.file, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_WRONLY)
        self.began = monotonic()
        self.trace: list[str] = []
        self.blows: list[str] = []
        self.leaders: list[Child] = []
        self.bridges: list[Child] = []
        self.workers: dict[str, Child] = {}
        self.arrived: dict[str, set[str]] = {}

    @property
    def history(self) -> list[dict]:
        found = []
        with open(self.file) as file:
            for line in file:
                with suppress(ValueError):  # of one that was killed while it wrote
                    found.append(json.loads(line))
        return found

    def note(self, what: str, **more: object) -> None:
        line = json.dumps({"what": what, "t": monotonic(), **more})
        os.write(self.descriptor, line.encode() + b"\n")

    def say(self, words: str) -> None:
        self.trace.append(f"{monotonic() - self.began:7.3f}  {words}")

    @classmethod
    def close(cls) -> None:
        """After the last schedule of this process."""
        if cls._server is not None:
            cls._server.close()

    # --- who takes part

    def start_leader(self) -> None:
        name, seed = f"L{len(self.leaders)}", self.dice.random()
        self.leaders.append(Child(self, name, lambda me: _lead(self, me, seed)))
        self.say(f"{name} starts")

    def start_bridge(self, host: str) -> None:
        name = f"{host}b{len(self.bridges)}"
        self.bridges.append(Child(self, name, lambda me: _bridge(self, me, host)))
        self.say(f"{name} starts")

    def start_host(self, host: str) -> None:
        self.start_bridge(host)
        self.workers[host] = Child(self, host, lambda me: _work(self, me))
        self.arrived[host] = set()

    # --- the schedule

    def play(self) -> float:
        """Plays it, and returns how long the healing took. Raises Hang."""
        dice = self.dice
        leading.SNAPSHOT_AFTER = dice.choice([1, 300, 1500, 4 << 20])
        copies = [""]
        try:
            self.start_leader()
            for number in range(dice.choice([1, 2, 2, 3])):
                self.start_host(f"h{number}")
                if dice.random() < 0.4:
                    self.start_bridge(f"h{number}")  # one that waits to take over
            for _ in range(dice.randrange(3, 8)):
                self._pass(dice.random() * LEASE)
                self._befalls(copies)
            self._pass(dice.random() * LEASE)
            return self._heal()
        finally:
            self._end()

    def _pass(self, seconds: float) -> None:
        end = monotonic() + seconds
        while (now := monotonic()) < end:
            for child in [*self.leaders, *self.bridges]:
                if child.is_stopped and child.go_on_at <= now:
                    self._go_on(child)
            time.sleep(min(0.02, end - now))

    def _go_on(self, child: Child) -> None:
        child.send(signal.SIGCONT)
        child.is_stopped = False
        self.say(f"{child.name} goes on")

    def _befalls(self, copies: list[str]) -> None:
        dice, server = self.dice, self.server
        leaders = [each for each in self.leaders if not each.ended()]
        bridges = [each for each in self.bridges if not each.ended()]
        blow = dice.choice(_BLOWS)
        self.blows.append(blow)
        self.say(blow)
        one = None
        if blow.endswith(" leader") and blow != "another leader" and leaders:
            one = dice.choice(leaders)
        elif blow.endswith(" bridge") and bridges:
            one = dice.choice(bridges)
        if one is not None and blow.startswith("kill"):
            one.kill()
            self.note("killed", host=one.name[:2])
        elif one is not None:
            one.send(signal.SIGSTOP)
            one.is_stopped, one.go_on_at = True, monotonic() + dice.random() * 2 * LEASE
        if blow == "another leader" or (blow.endswith(" leader") and dice.random() < 0.7):
            self.start_leader()
        elif blow == "kill bridge" and one is not None and dice.random() < 0.8:
            self.start_bridge(one.name[:2])
        elif blow == "copy":
            copies.append(server.copy(len(copies)))
        elif blow in ("lose", "empty"):
            server.kill()
            self.note("lost")
            server.start(copies[-1] if blow == "lose" else "")
            self.note("lost")
        elif blow == "flush":
            server.client().flushall()
            self.note("lost")
        elif blow == "stop engine":
            server.send(signal.SIGSTOP)
            self._pass(dice.random() * LEASE)
            server.send(signal.SIGCONT)
        elif blow == "connections":
            server.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        elif blow == "seal":
            for each in leaders:
                each.order("seal")
        elif blow == "late host" and len(self.workers) < 4:
            self.start_host(f"h{len(self.workers)}")

    def _heal(self) -> float:
        """No fault any more: some leader leads, and each host has a bridge."""
        for child in [*self.leaders, *self.bridges]:
            if child.is_stopped:
                self._go_on(child)
        for host in self.workers:
            if all(each.ended() for each in self.bridges if each.name.startswith(host)):
                self.start_bridge(host)
        self.say("no more faults")
        began = monotonic()
        for leader in self.leaders:
            self._probe(leader)
        while monotonic() < began + HEALED:
            if all(each.ended() for each in self.leaders):
                self.start_leader()  # who was stopped has found another one, who is dead
                began = monotonic()
                self._probe(self.leaders[-1])
            for host, worker in self.workers.items():
                with suppress(BlockingIOError):
                    self.arrived[host].update(os.read(worker.told, 1 << 16).decode().split())
            everywhere = set.intersection(*self.arrived.values())
            for leader in self.leaders:
                if leader.name in everywhere and not leader.ended():
                    self.say(f"healed by {leader.name}")
                    return monotonic() - began
            time.sleep(0.002)
        failed = [event for event in self.history if event["what"] == "failed"]
        raise Hang(f"not healed after {HEALED:g} s: {self.arrived} {failed[:1]}")

    def _probe(self, leader: Child) -> None:
        """Has a leader register something, for which all workers wait."""
        for child in [leader, *self.workers.values()]:
            child.order(f"probe {leader.name}")

    def _end(self) -> None:
        for child in [*self.leaders, *self.bridges, *self.workers.values()]:
            child.kill()
            for end in (child.tell, child.told):
                os.close(end)
        os.close(self.descriptor)
        self.server.client().flushall()
        for name in glob(f"{os.environ['MDISPATCH_FOLDER']}/*/{self.run_name}-*"):
            os.unlink(name)


# --- what the children do -------------------------------------------------------------------------


def _lead(world: World, me: Child, seed: float) -> None:
    dice = random.Random(seed)
    os.environ["MDISPATCH_HOST"] = me.name
    pack = leading.pack

    def noted(kind: int, before: bytes, said: bytes) -> tuple[bytes, bytes]:
        entry, chain = pack(kind, before, said)
        chains = {"before": before.hex(), "chain": chain.hex(), "said": said.hex()}
        world.note("meant", leader=me.name, kind=kind, **chains)
        return entry, chain

    leading.pack = noted
    connect = leading.connect
    leading.connect = lambda url: _Noted(world, me.name, connect(url))  # type: ignore
    registry = leading.LeaderRegistry.made(f"{world.run_name}-{me.name}", _CAPACITY)
    publisher = leading.Publisher(world.url, registry)
    try:
        publisher.begin()
    except MdispatchError:
        return  # somebody else leads, or the engine does not answer
    registry.publisher = publisher
    mine: dict[str, object] = {}

    def register(name: str, text: str) -> None:
        world.note("registered", leader=me.name, name=name, text=text)
        mine[name] = registry.register(DEF, 0, name, text, "m.py:1")

    try:
        while True:
            words = me.ordered(dice.random() * 0.1)
            if "probe" in words:
                register(f"s::probe_{me.name}", "() -> int")
            if "seal" in words and not publisher._seal_asked:
                publisher._seal_asked = True
                publisher._stand("sealed")
            name = dice.choice(_NAMES)
            if name in mine and dice.random() < 0.6:
                registry.remove(mine.pop(name))  # type: ignore[arg-type]
            elif name not in mine:
                register(name, dice.choice(_TEXTS))
    except FencedError:
        os._exit(0)


class _Noted:
    """An engine whose use a leader notes."""

    def __init__(self, world: World, name: str, inner: object) -> None:
        self.world, self.name, self.inner = world, name, inner

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def acquire(self, *args: object) -> int | None:
        epoch: int | None = self.inner.acquire(*args)  # type: ignore[attr-defined]
        if epoch is not None:
            self.world.note("led", leader=self.name, epoch=epoch)
        return epoch

    def append(self, epoch: int, token: bytes, after: object, seq: int, entry: bytes) -> None:
        began = monotonic()
        self.inner.append(epoch, token, after, seq, entry)  # type: ignore[attr-defined]
        self.world.note("acked", leader=self.name, epoch=epoch, seq=seq, began=began)


class _Bridge(bridge.Bridge):
    world: World
    host: str

    def _stand(self, phase: str, why: str, say: Callable[[str], object]) -> None:
        super()._stand(phase, why, say)
        at = self._follower.at
        if self._goes_on_from is None and at.seq:
            facts = [(f.kind, int(f.key), f.name, f.text) for f in self.registry.registrations()[2]]
            self.world.note(
                "stands",
                host=self.host,
                epoch=at.epoch,
                seq=at.seq,
                chain=at.chain.hex(),
                facts=[each for each in facts if each[0] == DEF],
            )


def _bridge(world: World, me: Child, host: str) -> None:
    os.environ["MDISPATCH_HOST"] = host
    one = _Bridge(world.url, f"{world.run_name}-{host}", _CAPACITY)
    one.world, one.host = world, host
    one.run(lambda words: None)


def _work(world: World, me: Child) -> None:
    end = monotonic() + 60 * PATIENCE
    while True:
        try:
            registry = Registry.attach(f"{world.run_name}-{me.name}", timeout=1.0)
            break
        except RegistryError:
            if monotonic() > end:
                raise
    waiting: set[str] = set()
    while True:
        waiting.update(me.ordered(0 if waiting else 60 * PATIENCE))
        waiting.discard("probe")
        for name in sorted(waiting):
            seq, _ = registry.dispatcher.facts.await_change(0, 0)
            try:
                wait_for_def(f"s::probe_{name}", 0.1, registry=registry)
            except MdispatchError:
                # It says what ended the wait: in a sealed run that is at once. Another may come.
                registry.dispatcher.facts.await_change(seq, 0.1)
                continue
            waiting.remove(name)
            me.answer(name)
