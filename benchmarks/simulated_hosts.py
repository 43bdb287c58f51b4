"""A simulation of a large cluster: 1,000 hosts of 64 workers and 50,000 operators on one server.

    python -m benchmarks.simulated_hosts --seed 7

Discrete events in made-up time. The server answers one command after the other, and its network
carries one byte after the other; a bridge reads, checks and registers; then its workers verify,
each on a processor of its own. What each of these takes was measured, see ``Costs``; the protocol
is that of mdispatch/cluster: what is read in which order, its pauses, its leases.
"""

from __future__ import annotations

import argparse
import heapq
import random
from dataclasses import dataclass, field
from itertools import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Cluster", "Costs", "main"]


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes, by ``python -m benchmarks cluster`` (docs/cluster.md has the run)."""

    script: float = 59e-6  # the server's time for a script
    read: float = 30e-6  # for XREAD
    chunk: float = 8.7e-6  # for a chunk of a snapshot
    round_trip: float = 0.2e-3  # of a network of one site: an assumption
    #: The snapshot of 50,000 operators with a kernel each. Its bytes are those of PyTorch's
    #: schemas; the benchmark's own, which are all alike, have 0.8 MB.
    chunks: int = 68
    size: float = 1.18e6
    apply: float = 0.61  # a processor's time to read, check and register it
    late: float = 1.3e-3  # to apply one late batch, and wake a waiter
    verify: float = 0.5  # a worker, 50,000 operators (README: 10,000 in 92 to 113 ms)


@dataclass
class Cluster:
    """The server, its network, and time."""

    costs: Costs
    gigabits: float
    dice: random.Random
    now: float = 0.0
    server_free: float = 0.0
    network_free: float = 0.0
    down: tuple[float, float] = (0.0, 0.0)  # from, until
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def after(self, seconds: float, then: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), then))

    def run(self) -> None:
        while self.events:
            self.now, _, then = heapq.heappop(self.events)
            then()

    def ask(self, cost: float, size: float, then: Callable[[], None], pause: float = 0.02) -> None:
        """A command: half a round trip, its turn, its bytes, half a round trip. A server that is
        down is asked again, as a bridge does (cluster/bridge.py).
        """
        half = self.costs.round_trip / 2

        def arrives() -> None:
            if self.down[0] <= self.now < self.down[1]:
                later = min(1.0, pause) * (0.5 + self.dice.random() / 2)
                self.after(later, lambda: self.ask(cost, size, then, 0.02 + pause * 2))
                return
            self.server_free = max(self.server_free, self.now) + cost
            self.network_free = max(self.network_free, self.server_free)
            self.network_free += size * 8 / (self.gigabits * 1e9)
            self.after(self.network_free - self.now + half, then)

        self.after(half, arrives)


class Host:
    """A bridge that comes, reads a snapshot, and registers it; then its workers verify."""

    def __init__(self, cluster: Cluster, speed: float, workers: int) -> None:
        self.cluster, self.speed, self.workers = cluster, speed, workers
        self.applied = self.ready = -1.0
        self._left = cluster.costs.chunks

    def come(self) -> None:
        costs = self.cluster.costs
        # Status, a read that finds a gap, the manifest, each chunk.
        manifest = 80.0 * costs.chunks + 500
        self.cluster.ask(
            costs.script + costs.read,
            4096,
            lambda: self.cluster.ask(costs.read, manifest, self._next),
        )

    def _next(self) -> None:
        costs = self.cluster.costs
        if self._left:
            self._left -= 1
            self.cluster.ask(costs.chunk, costs.size / costs.chunks, self._next)
        else:
            self.cluster.after(costs.apply * self.speed, self._registered)

    def _registered(self) -> None:
        self.applied = self.cluster.now
        # The slowest of the workers: they verify at once, and 5 % apart.
        slowest = max(self.cluster.dice.gauss(1, 0.05) for _ in range(self.workers))
        self.cluster.after(self.cluster.costs.verify * self.speed * slowest, self._is_ready)

    def _is_ready(self) -> None:
        self.ready = self.cluster.now


@dataclass(frozen=True)
class Size:
    hosts: int = 1000
    workers: int = 64
    lease: float = 10.0


def start(
    seed: int,
    size: Size,
    gigabits: float,
    spread: float,
    slow: float = 0.0,
    down: tuple[float, float] = (0.0, 0.0),
) -> tuple[float, float]:
    """All hosts come within ``spread`` seconds of the seal; when the last one has registered, and
    when its last worker is ready. ``slow`` is the part of the hosts that take four times as long.
    """
    dice = random.Random(seed)
    cluster = Cluster(Costs(), gigabits, dice, down=down)
    hosts = []
    for _ in range(size.hosts):
        host = Host(cluster, 4.0 if dice.random() < slow else 1.0, size.workers)
        cluster.after(dice.random() * spread, host.come)
        hosts.append(host)
    cluster.run()
    return max(host.applied for host in hosts), max(host.ready for host in hosts)


def late(seed: int, size: Size, gigabits: float) -> float:
    """All hosts wait in a read; a batch of 12 kB comes. When the last waiter has it."""
    cluster = Cluster(Costs(), gigabits, random.Random(seed))
    ended: list[float] = []

    def applied() -> None:
        cluster.after(cluster.costs.late, lambda: ended.append(cluster.now))

    for _ in range(size.hosts):
        cluster.ask(cluster.costs.read, 12_000, applied)
    cluster.run()
    return max(ended)


def rollout(seed: int, size: Size, killed: bool) -> float:
    """The leader comes again with a new version and seals; a tenth of the hosts has it. When the
    last one of the others is named in the records. ``killed``: the old leader gave nothing back.
    """
    dice = random.Random(seed)
    cluster = Cluster(Costs(), 10, dice)
    costs, named = cluster.costs, []
    sealed = (size.lease + size.lease / 20 if killed else 0.0) + 1.0  # its import and registering

    def lags(next_record: float) -> None:
        # The new epoch and the seal wake the bridge; its record says so when it is due.
        def announces() -> None:
            cluster.ask(costs.script, 1500, lambda: named.append(cluster.now))

        def reads() -> None:
            due = max(cluster.now, sealed + next_record)
            # A record is due when a turn ends: a read that nothing wakes takes an eighth.
            cluster.after(due - cluster.now + dice.random() * size.lease / 8, announces)

        cluster.after(sealed, lambda: cluster.ask(costs.read, 4096, reads))

    for number in range(size.hosts):
        if number % 10:
            lags(dice.random() * size.lease / 3)
    cluster.run()
    return max(named)


def at_rest(size: Size) -> tuple[float, float]:
    """Commands of all bridges each second, and the part of a processor that they take."""
    costs = Costs()
    turns, records = 8 / size.lease, 3 / size.lease
    each = 2 * turns + records
    used = turns * (costs.script + costs.read) + records * costs.script
    return each * size.hosts, used * size.hosts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--hosts", type=int, default=1000)
    options = parser.parse_args()
    size, seed = Size(options.hosts), options.seed
    print(f"seed {seed}, {size.hosts} hosts, {size.workers} workers each, {Costs()}")
    print(
        "seconds after the seal until the last host has registered, until its last worker is ready"
    )
    for gigabits in (1, 10, 25):
        both = start(seed, size, gigabits, 0.0)
        print(f"  all come at the seal, {gigabits:2} Gbit/s: {both[0]:.2f} {both[1]:.2f}")
    for what, more in {
        "within 2 s of it": {"spread": 2.0},
        "1 % of the hosts four times slower": {"spread": 0.0, "slow": 0.01},
        "the server gone from 0.2 s to 1.2 s": {"spread": 0.0, "down": (0.2, 1.2)},
    }.items():
        both = start(seed, size, 10, **more)  # type: ignore[arg-type]
        print(f"  10 Gbit/s, {what}: {both[0]:.2f} {both[1]:.2f}")
    print(f"  all had followed; the last batch: {late(seed, size, 10):.3f}")
    for what, killed in (("ended", False), ("was killed", True)):
        seconds = rollout(seed, size, killed)
        print(
            f"a roll-out, the old leader {what}: the last host that lags is named "
            f"after {seconds:.1f} s"
        )
    calls, used = at_rest(size)
    print(f"at rest: {calls:.0f} commands a second, {100 * used:.1f} % of the server's processor")


if __name__ == "__main__":
    main()
