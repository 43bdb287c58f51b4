"""gunicorn on three hosts, over one real Redis: the arbiter of the first one leads and registers,
the workers of all verify. The hosts have folders of their own, and, where that is allowed, a
network, a memory and process ids of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from namespaces import Node, namespaced
from patience import limit

pytestmark = [pytest.mark.shared, pytest.mark.specification]

SHOP = """
import os
import mdispatch as md
lib = md.Library("shop", "FRAGMENT", timeout={limit})
by = os.environ["BY"]
lib.define(f"scale(int x, int by={{by}}) -> int")
lib.impl("scale", lambda x, by=2: x * by, "CompositeExplicitAutograd")
"""
CONFIGURATION = """
import os
workers = 2
timeout = 0
def on_starting(server):
    if os.environ["MDISPATCH_REGISTRY"].endswith("role=leader"):
        import mdispatch as md
        import shop
        global only
        only = md.Library("shop", "FRAGMENT")
        for name in os.environ["ONLY"].split():
            only.define(f"{{name}}(int x) -> int")
        md.seal()
"""
PROGRAM = """
import json, os
import mdispatch as md
try:
    import shop
    error = None
except md.errors.SchemaMismatchError as raised:
    error = str(raised)

def application(environ, start_response):
    path = environ["PATH_INFO"][1:]
    try:
        if path == "scale":
            told = error or md.ops.shop.scale(3)
        else:
            while not md.default_registry().is_worker:
                raise RuntimeError("a web worker registers")
            md.wait_for_def(f"shop::{{path}}", {limit})
            told = path
    except Exception as raised:
        told = f"{{type(raised).__name__}}: {{raised}}"
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([os.getpid(), told]).encode()]
"""
# Asks until the server listens: there is no other sign of it.
ASK = """
import sys, time, urllib.error, urllib.request
url, end = sys.argv[1], time.monotonic() + float(sys.argv[2])
while True:
    try:
        print(urllib.request.urlopen(url, timeout=float(sys.argv[2])).read().decode())
        break
    except (urllib.error.URLError, ConnectionError) as error:
        assert time.monotonic() < end, error
        time.sleep(0.05)
"""


@contextmanager
def three_hosts(folder: Path, how: str):
    if how == "namespaces":
        with namespaced(folder, 3) as nodes:
            yield nodes
    else:
        yield [Node(f"node-{number}", folder) for number in range(3)]


class Site:
    """gunicorn on hosts, and Redis on the first."""

    def __init__(self, nodes: list[Node], folder: Path, run: str) -> None:
        if shutil.which("redis-server") is None:
            pytest.skip("redis-server is not installed")
        self.nodes = nodes
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        for name, text in (("shop", SHOP), ("site_conf", CONFIGURATION), ("program", PROGRAM)):
            (folder / f"{name}.py").write_text(text.format(limit=limit(60)))
        with_port = Node("redis", folder)  # for a free port
        options = ["--port", str(with_port.port), "--save", "", "--protected-mode", "no"]
        self.started(nodes[0], ["redis-server", *options, "--bind", nodes[0].address], {})
        lease = min(4.0, limit(1))
        where = f"{nodes[0].address}:{with_port.port}"
        self.url = f"cluster:redis://{where}/0?run={run}&lease={lease:g}"

    def started(self, node: Node, command: list[str], more: dict[str, str]):
        environment = node.environment() | more
        with (self.folder / f"{node.name}.log").open("a") as log:
            process = subprocess.Popen(
                [*node.inside, *command],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
            )
        self.processes.append(process)
        return process

    def serve(self, node: Node, role: str, by: str = "2", only: str = ""):
        command = [sys.executable, "-m", "gunicorn", "-c", "site_conf.py", "program"]
        command += ["--bind", f"{node.address}:{node.port}"]
        registry = f"{self.url}&role={role}"
        return self.started(node, command, {"MDISPATCH_REGISTRY": registry, "BY": by, "ONLY": only})

    def ask(self, node: Node, path: str):
        url = f"http://{node.address}:{node.port}/{path}"
        done = subprocess.run(
            [*node.inside[:4], sys.executable, "-c", ASK, url, str(limit(60))],
            capture_output=True,
            text=True,
        )
        logs = "".join(each.read_text()[-3000:] for each in self.folder.glob("*.log"))
        assert done.returncode == 0, done.stderr + logs
        return json.loads(done.stdout)[1]

    def close(self) -> None:
        for each in reversed(self.processes):
            each.terminate() if not self.nodes[0].inside else each.kill()
        for each in self.processes:
            each.wait(limit(60))


@pytest.mark.parametrize("how", ["folders", "namespaces"])
def test_the_web_workers_of_all_hosts_are_compared_with_the_arbiter_that_leads(tmp_path, run, how):
    pytest.importorskip("redis", reason="redis-py is not installed")
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    with three_hosts(tmp_path, how) as nodes:
        site = Site(nodes, tmp_path, run)
        try:
            leads, alike, differs = nodes
            site.serve(alike, "worker")  # before there is a leader
            site.serve(differs, "worker", by="5")
            first = site.serve(leads, "leader", only="only")
            assert site.ask(leads, "scale") == 6
            assert site.ask(alike, "scale") == 6
            assert site.ask(alike, "only") == site.ask(leads, "only") == "only"
            told = site.ask(differs, "scale")
            assert "the default of 'by' is 5 here, 2 there" in told
            assert "here:  shop::scale(int x, int by=5) -> int    (node-2[" in told
            assert "there: shop::scale(int x, int by=2) -> int    (node-0[" in told
            assert site.ask(differs, "only") == "only"

            first.kill()  # the arbiter; in namespaces all of its host
            first.wait()
            assert site.ask(alike, "scale") == 6
            told = site.ask(alike, "again")
            assert told.startswith(("RegistrarGoneError", "NameMismatchError")), told
            assert "node-0[" in told
            site.serve(leads, "leader", only="only again")
            while site.ask(alike, "again") != "again":  # until then the former seal may hold
                pass
            assert site.ask(alike, "scale") == 6
            assert site.ask(leads, "scale") == 6
        finally:
            site.close()
