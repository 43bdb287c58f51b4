"""A cluster on a real Redis server: from a definition on the leader to Python in a waiter on
another host, against the server's own wake; publishing and applying many operators; what ``define``
costs the leader; what a bridge at rest costs; many bridges on one server.

The two hosts have a network and a /dev/shm of their own where root may make namespaces
(tests/support/namespaces.py); the server runs on the leader's. Else they are processes with a
folder of their own, and the figures say so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import monotonic, sleep

from .job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ROUNDS, QUICK_ROUNDS = 101, 5
OPERATORS, QUICK_OPERATORS = 50_000, 1_000
BRIDGES, QUICK_BRIDGES = 200, 4
#: Seconds for which what is at rest is looked at.
REST, QUICK_REST = 30.0, 2.0
SUPPORT = Path(__file__).parents[1] / "tests" / "support"

# Runs each line that it reads, and answers with what that leaves in ``result``.
_AGENT = """
import json, os, sys, threading, time
from time import monotonic_ns, sleep
scope = globals()
for line in sys.stdin:
    result = None
    exec(json.loads(line), scope)
    print(json.dumps(result), flush=True)
"""
_REDIS = "import redis; client = redis.Redis(host={host!r}, port={port})"
_LEAD = """
import mdispatch as md
from mdispatch.cluster import leading
leading.SNAPSHOT_AFTER = {snapshot}
registry = md.Registry(leading.lead({url!r}, {capacity}))
library = md.Library("bench", "FRAGMENT", registry=registry)
"""
_BRIDGE = """
from mdispatch.cluster import parse_url
from mdispatch.cluster.bridge import Bridge
def serve(name):
    bridge = Bridge(parse_url({url!r}), name, {capacity})
    thread = threading.Thread(target=bridge.run, args=(lambda words: None,))
    thread.start()
    return bridge, thread
"""
# Kernels are at one key; the texts are about as long as those of PyTorch's operators.
_DEFINE = """
SCHEMA = "(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
def kernel(self, other, *, alpha=1): return self
def define(first, count):
    for n in range(first, first + count):
        library.define(f"operator_{n}.Tensor" + SCHEMA)
        library.impl(f"operator_{n}.Tensor", kernel, "CPU")
"""
_CAPACITY = 1 << 27


class _Agent:
    """A process that does what it is told."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [*command, sys.executable, "-c", _AGENT],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()

    def end(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def do(self, code: str) -> Any:
        self.begin(code)
        return self.end()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class _Cluster:
    """A server on the first of two hosts, and processes on both."""

    def __init__(self, ends: ExitStack) -> None:
        self._ends = ends
        sys.path.insert(0, str(SUPPORT))
        from namespaces import Node, namespaced

        folder = Path(tempfile.mkdtemp(prefix="md-cluster-"))
        ends.callback(shutil.rmtree, folder)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.nodes = ends.enter_context(namespaced(folder, 2))
            self.where = "namespaces"
        except BaseException as error:  # pytest's Skipped is no Exception
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            self.nodes = [Node(f"node-{number}", folder) for number in range(2)]
            self.where = "processes"
        self.host, self.port = self.nodes[0].address, self.nodes[0].port
        words = ["--port", str(self.port), "--bind", self.host, "--save", ""]
        words += ["--protected-mode", "no", "--dir", str(folder)]
        self.server = subprocess.Popen(
            [*self.nodes[0].inside, "redis-server", *words], stdout=subprocess.DEVNULL
        )
        ends.callback(self.server.wait)
        ends.callback(self.server.kill)
        self.client = self.agent(0)
        self.client.do(
            _REDIS.format(host=self.host, port=self.port) + "\nfor _ in range(500):\n"
            "    try:\n        client.ping(); break\n"
            "    except redis.ConnectionError:\n        sleep(0.01)\n"
        )

    def url(self, run: str, lease: float = 10) -> str:
        return f"redis://{self.host}:{self.port}/0?run={run}&lease={lease:g}"

    def agent(self, node: int) -> _Agent:
        there = self.nodes[node]
        made = _Agent(there.inside, there.environment())
        self._ends.callback(made.close)
        return made

    def leader(self, run: str, snapshot: int = 4 << 20) -> _Agent:
        made = self.agent(0)
        made.do(_LEAD.format(url=self.url(run), snapshot=snapshot, capacity=_CAPACITY) + _DEFINE)
        return made

    def bridge(self, run: str) -> _Agent:
        made = self.agent(1)
        made.do(_BRIDGE.format(url=self.url(run), capacity=_CAPACITY))
        return made

    def calls(self) -> int:
        """How many commands the leader and the bridges have sent."""
        found: dict[str, Any] = self.client.do("result = client.info('commandstats')")
        sent = (found.get(f"cmdstat_{name}", {}) for name in ("eval", "xread", "getrange"))
        return sum(int(each.get("calls", 0)) for each in sent)

    def processor_seconds(self) -> float:
        """Of the server."""
        used = self.client.do("result = client.info('cpu')")
        return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


def _wakes(cluster: _Cluster, job: Job) -> None:
    rounds = QUICK_ROUNDS if job.quick else job.rounds(ROUNDS)
    leader, waiter = cluster.leader("wake"), cluster.agent(1)
    # The bridge is a process beside the waiter: each agent has a /dev/shm of its own.
    waiter.do(
        "import subprocess\n"
        "bridge = subprocess.Popen([sys.executable, '-m', 'mdispatch', 'bridge', '-'],"
        " stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)\n"
        f"bridge.stdin.write({cluster.url('wake')!r} + chr(10)); bridge.stdin.close()\n"
        + _REDIS.format(host=cluster.host, port=cluster.port)
        + "\nimport mdispatch as md\nregistry = md.Registry.attach('wake', timeout=60)\n"
        "last = '$'\n"
    )
    leader.do("define(0, 1)")
    waiter.do("md.wait_for_def('bench::operator_0.Tensor', 30, registry=registry)")
    bare, ours, parts = [], [], []
    for number in range(rounds + 3):
        waiter.begin(
            "found = client.xread({'bare': last}, block=20000); now = monotonic_ns()\n"
            "last = found[0][1][0][0] if isinstance(found, list) else found[b'bare'][0][0][0]\n"
            "result = now"
        )
        sleep(0.03)
        began = cluster.client.do("result = monotonic_ns(); client.xadd('bare', {'e': b'x' * 200})")
        first = (waiter.end() - began) * 1e-9
        waiter.begin(
            f"md.wait_for_def('bench::wake_{number}', 30, registry=registry)\n"
            "result = monotonic_ns()"
        )
        sleep(0.03)
        began, done = leader.do(
            f"began = monotonic_ns(); library.define('wake_{number}(Tensor x) -> Tensor')\n"
            "result = began, monotonic_ns()"
        )
        second = (waiter.end() - began) * 1e-9
        if number >= 3:
            bare.append(first)
            ours.append(second)
            parts.append((done - began) * 1e-9)
    where = f"two hosts as {cluster.where}"
    theirs = job.values(f"{where}: XADD to a blocked XREAD, in Python", bare)
    wake = job.values(f"{where}: define to wait_for_def", ours)
    job.values(f"{where}: define itself", parts)
    job.ratio(f"{where}: define to wait_for_def / XADD to XREAD", wake, theirs, aim=1.3)
    waiter.do("bridge.kill()")
    for each in (waiter, leader):
        each.close()


def _many(cluster: _Cluster, job: Job) -> None:
    count = QUICK_OPERATORS if job.quick else OPERATORS
    words = f"{count:,} operators with a kernel"
    plain = cluster.agent(0)
    plain.do("import mdispatch as md\nregistry = md.Registry.create('plain', capacity=1 << 27)")
    plain.do("library = md.Library('bench', 'FRAGMENT', registry=registry)" + _DEFINE)
    times = "result = time.monotonic() - began, time.process_time() - used"
    began = "began, used = time.monotonic(), time.process_time()\n"
    alone, alone_used = plain.do(f"{began}define(0, {count})\n{times}")
    plain.close()
    leader = cluster.leader("many", snapshot=1 << 18)
    sealed, used = leader.do(f"{began}define(0, {count}); md.seal(120, registry=registry)\n{times}")
    plain_ = job.values(f"{words}: registered, without a cluster", [alone])
    led = job.values(f"{words}: registered, published and sealed", [sealed])
    job.more(f"{words}: what publishing adds", led, plain_, aim=3.0)
    plain_ = job.values(f"{words}: without a cluster, time of a processor", [alone_used])
    led = job.values(f"{words}: published, time of a processor", [used])
    job.more(f"{words}: what publishing adds, time of a processor", led, plain_)
    size = leader.do(
        "leader = registry.dispatcher.facts.publisher\n"
        "packed = leader._follower.state.chunks()\n"
        "result = [len(packed), sum(map(len, packed.values())), len(leader._follower.state.facts)]"
    )
    job.values(f"{words}: chunks of a snapshot", [size[0]], "integer")
    job.values(f"{words}: bytes of a snapshot", [size[1]], "byte")
    tail = leader.do("result = list(leader._follower.at.id)")
    took, cpu, read = [], [], []
    for number in range(1 if job.quick else 5):
        bridge = cluster.bridge("many")
        bridge.do("import redis, importlib.metadata; from mdispatch.cluster import redis_engine")
        bridge.do(
            "engine = redis_engine.RedisEngine(parse_url(" + repr(cluster.url("many")) + "))\n"
            "from mdispatch.cluster.following import Follower\n"
        )
        read.append(
            bridge.do(
                "began = time.monotonic(); other = Follower(engine)\n"
                f"while list(other.at.id) != {tail}: list(other.follow(0))\n"
                "result = time.monotonic() - began"
            )
        )
        used, seconds = bridge.do(
            "began, used = time.monotonic(), time.process_time()\n"
            f"one, thread = serve('fresh-{number}')\n"
            f"while one.told is None or [one.told.epoch, one.told.seq] != {tail}: sleep(0.002)\n"
            "result = time.process_time() - used, time.monotonic() - began"
        )
        took.append(seconds)
        cpu.append(used)
        bridge.close()
    job.values(f"{words}: read and checked by a bridge, nothing registered", read)
    job.values(f"{words}: registered by a fresh bridge", took, aim=1.0)
    job.values(f"{words}: so, time of a processor", cpu)
    for name, what in (("eval", "a script"), ("xread", "a read"), ("getrange", "a chunk")):
        code = f"result = client.info('commandstats')['cmdstat_{name}']['usec_per_call']"
        job.values(f"the server's own time for {what}", [cluster.client.do(code) * 1e-6])
    leader.close()


def _define(cluster: _Cluster, job: Job) -> None:
    """Blocks of definitions in turns, in one process; in a pause the leader catches up."""
    rounds = QUICK_ROUNDS if job.quick else job.rounds(41)
    leader = cluster.leader("define")
    leader.do(
        "beside = md.Registry.create(None, capacity=1 << 27)\n"
        "other = md.Library('bench', 'FRAGMENT', registry=beside)\n"
        "def block(into, n):\n"
        "    began = time.perf_counter()\n"
        "    for i in range(300):\n"
        "        into.define(f'd{n}_{i}' + SCHEMA)\n"
        "    took = time.perf_counter() - began\n"
        "    sleep(0.1)\n"
        "    return took / 300\n"
    )
    ours, plain = [], []
    for number in range(rounds + 1):
        order = ("library", "other") if number % 2 else ("other", "library")
        for into in order:
            took = leader.do(f"result = block({into}, {number})")
            if number:
                (ours if into == "library" else plain).append(took)
    alone = job.values("define, without a cluster", plain)
    led = job.values("define, by a leader", ours)
    job.ratio("define, by a leader / without a cluster", led, alone, aim=1.05)
    leader.close()


def _rest(cluster: _Cluster, job: Job) -> None:
    seconds = QUICK_REST if job.quick else REST
    leader, bridge = cluster.leader("rest"), cluster.bridge("rest")
    bridge.do("one, thread = serve('rest')")
    leader.do("define(0, 10)")
    used = "result = time.process_time()"
    for who, others in (("leader and a bridge", (leader, bridge)), ("leader", (leader,))):
        if who == "leader":
            bridge.close()
        sleep(2.0)
        before = [each.do(used) for each in others]
        calls, began = cluster.calls(), monotonic()
        sleep(seconds)
        asked_for, took = cluster.calls() - calls, monotonic() - began
        after = [each.do(used) for each in others]
        job.values(
            f"at rest, {who}: calls of the server, per minute", [asked_for / took * 60], "integer"
        )
        if who != "leader":
            share = (after[1] - before[1]) / took
            job.values("at rest: a bridge, of each second of a processor", [share], aim=1e-3)
    leader.close()


def _crowd(cluster: _Cluster, job: Job) -> None:
    """Bridges as children of one process: it has imported what they need."""
    count = QUICK_BRIDGES if job.quick else BRIDGES
    seconds = QUICK_REST if job.quick else REST
    leader, bridges = cluster.leader("crowd"), cluster.agent(1)
    leader.do("define(0, 500)\nmd.seal(60, registry=registry)")
    bridges.do(
        _BRIDGE.format(url=cluster.url("crowd"), capacity=1 << 22)
        + "import redis, mmap, signal, ctypes\n"
        "from mdispatch.cluster import bridge as module, engine, redis_engine\n"
        "module.connect = redis_engine.RedisEngine\n"
        f"at_ = memoryview(mmap.mmap(-1, 16 * {count})).cast('q')\n"
        "def child(n):\n"
        "    ctypes.CDLL(None).prctl(1, 9)\n"
        "    os.environ['MDISPATCH_HOST'] = f'crowd-{n}'\n"
        "    class Told(Bridge):\n"
        "        def _stand(self, *args):\n"
        "            super()._stand(*args)\n"
        "            if at_[2 * n] != self._follower.at.seq:\n"
        "                at_[2 * n + 1] = monotonic_ns(); at_[2 * n] = self._follower.at.seq\n"
        f"    url = parse_url({cluster.url('crowd')!r})\n"
        "    Told(url, f'crowd-{n}', 1 << 22).run(lambda words: None)\n"
        "def start(count):\n"
        "    for n in range(count):\n"
        "        if os.fork() == 0:\n"
        "            try: child(n)\n"
        "            finally: os._exit(1)\n"
        "def last(seq):\n"
        f"    while any(at_[2 * n] != seq for n in range({count})): sleep(0.005)\n"
        f"    return sorted(at_[2 * n + 1] for n in range({count}))\n"
    )
    seq = "leader = registry.dispatcher.facts.publisher; result = leader._follower.at.seq"
    began = monotonic()
    bridges.do(f"start({count})\nresult = last({leader.do(seq)})")
    job.values(f"{count} bridges started, each with 500 operators", [monotonic() - began])
    sleep(2.0)
    calls, used, began = cluster.calls(), cluster.processor_seconds(), monotonic()
    sleep(seconds)
    asked_for, took = cluster.calls() - calls, monotonic() - began
    share = (cluster.processor_seconds() - used) / took
    rest = f"{count} bridges at rest"
    job.values(f"{rest}: calls of the server, per second", [asked_for / took], "integer")
    job.values(f"{rest}: the server, of each second of a processor", [share])
    half, whole = [], []
    for number in range(QUICK_ROUNDS if job.quick else 11):
        now = leader.do(
            f"result = monotonic_ns(); library.define('late_{number}(Tensor x) -> Tensor')"
        )
        sleep(0.05)
        there = bridges.do(f"result = last({leader.do(seq)})")
        half.append((median(there) - now) * 1e-9)
        whole.append((there[-1] - now) * 1e-9)
    job.values(f"{count} bridges: a definition, until half have it", half)
    job.values(f"{count} bridges: a definition, until all have it", whole)
    bridges.close()
    leader.close()


def main() -> None:
    job = Job()
    if find_spec("redis") is None:
        job.left_out("all", "redis-py is not installed")
    elif shutil.which("redis-server") is None:
        job.left_out("all", "redis-server is not installed")
    else:
        with ExitStack() as ends:
            cluster = _Cluster(ends)
            for part in (_wakes, _define, _rest, _many, _crowd):
                part(cluster, job)
    job.end()


if __name__ == "__main__":
    main()
