"""Eight hosts with four workers each, and a leader on a ninth, over one real Redis. The hosts have
folders of their own, and, where that is allowed, a network, a memory and process ids of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from namespaces import Node, namespaced
from patience import limit

pytestmark = [
    pytest.mark.shared,
    pytest.mark.specification,
    pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server here"),
]

HOSTS, WORKERS = 8, 4

SHOP = """
import os
import mdispatch as md
lib = md.Library("shop", "FRAGMENT", timeout={limit})
by = os.environ.get("BY", "2")
lib.define(f"scale(int x, int by={{by}}) -> int")
lib.impl("scale", lambda x, by=2: x * by, "CompositeExplicitAutograd")
"""
LEADER = """
import sys, threading
import mdispatch as md
import shop
for name in sys.argv[1:]:
    shop.lib.define(f"{{name}}(int x) -> int")
md.seal()
threading.Event().wait()
"""
WORKER = """
import json, time
import mdispatch as md
try:
    import shop
    said = [md.ops.shop.scale(3)]
except md.errors.SchemaMismatchError as error:
    said = [str(error)]
print("ready", flush=True)
input()
while True:  # until its host follows the next leader, the seal of the former one holds
    try:
        md.wait_for_def("shop::late", {limit})
        break
    except (md.errors.NameMismatchError, md.errors.RegistrarGoneError):
        time.sleep(0.05)  # it leaves the processor to the leader that starts
print(json.dumps([*said, "late"]), flush=True)
"""
HOST = """
import json, os, subprocess, sys
by = [{{}}, {{}}, {{}}, {{"BY": sys.argv[1]}}]
workers = [
    subprocess.Popen([sys.executable, "worker.py"], env=os.environ | more, text=True,
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for more in by
]
assert [each.stdout.readline() for each in workers] == ["ready\\n"] * len(by)
print("ready", flush=True)
input()
print(json.dumps([json.loads(each.communicate("go on\\n")[0]) for each in workers]), flush=True)
"""


class Hosts:
    """All processes, and Redis on the node of the leader."""

    def __init__(self, nodes: list[Node], folder: Path, run: str) -> None:
        self.nodes, self.folder = nodes, folder
        self.processes: list[subprocess.Popen[str]] = []
        texts = {"shop": SHOP, "leader": LEADER, "worker": WORKER, "host": HOST}
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text.format(limit=limit(60)))
        port = Node("redis", folder).port
        address = nodes[0].address
        redis = ["redis-server", "--port", str(port), "--save", "", "--protected-mode", "no"]
        self.start(nodes[0], [*redis, "--bind", address], "", subprocess.DEVNULL)
        lease = min(4.0, limit(1))
        self.url = f"cluster:redis://{address}:{port}/0?run={run}&lease={lease:g}&role="

    def start(self, node: Node, command: list[str], role: str, stdout: int = subprocess.PIPE):
        registry = {"MDISPATCH_REGISTRY": f"{self.url}{role}"} if role else {}
        with (self.folder / f"{node.name}.log").open("a") as log:
            process = subprocess.Popen(
                [*node.inside, *command],
                cwd=self.folder,
                env=node.environment() | registry,
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=log,
                text=True,
            )
        self.processes.append(process)
        return process

    def lead(self, *names: str):
        return self.start(self.nodes[0], [sys.executable, "leader.py", *names], "leader")

    def hear(self, process: subprocess.Popen[str]) -> str:
        said = process.stdout.readline() if process.stdout else ""
        assert said, "".join(each.read_text()[-2000:] for each in self.folder.glob("*.log"))
        return said

    def close(self) -> None:
        for each in reversed(self.processes):
            each.kill() if self.nodes[0].inside else each.terminate()
        for each in self.processes:
            each.communicate(timeout=limit(60))


def compared(nodes: list[Node], folder: Path, run: str) -> None:
    site = Hosts(nodes, folder, run)
    try:
        hosts = [
            site.start(node, [sys.executable, "host.py", "5" if number == 5 else "2"], "worker")
            for number, node in enumerate(nodes[1:])
        ]
        first = site.lead()
        assert [site.hear(each) for each in hosts] == ["ready\n"] * HOSTS
        first.kill()
        first.wait()
        for each in hosts:
            each.stdin.write("go on\n")
            each.stdin.flush()
        site.lead("late")
        said = [each for host in hosts for each in json.loads(site.hear(host))]
        [differs] = [each for each in said if each != [6, "late"]]
        assert len(said) == HOSTS * WORKERS
        assert said.index(differs) == 5 * WORKERS + WORKERS - 1
        assert "here:  shop::scale(int x, int by=5) -> int    (node-6[" in differs[0]
        assert "there: shop::scale(int x, int by=2) -> int    (node-0[" in differs[0]
        assert differs[1] == "late"
    finally:
        site.close()


@pytest.mark.thorough
def test_the_workers_of_eight_hosts_follow_a_leader_that_dies_and_the_next_one(tmp_path, run):
    pytest.importorskip("redis", reason="redis-py is not installed")
    with namespaced(tmp_path, HOSTS + 1) as nodes:
        compared(nodes, tmp_path, run)


@pytest.mark.long
def test_so_they_do_as_processes_with_folders_of_their_own(tmp_path, run):
    pytest.importorskip("redis", reason="redis-py is not installed")
    compared([Node(f"node-{number}", tmp_path) for number in range(HOSTS + 1)], tmp_path, run)
