"""docs/servers.md, "A new version": gunicorn, whose configuration has the lines of the page, takes
up another version of a module by ``kill -HUP``, while workers of the old one are answering.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from patience import limit

pytestmark = [pytest.mark.shared, pytest.mark.specification, pytest.mark.thorough]
pytestmark += [pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "gunicorn", "--config=conf.py", "--workers=2", "--timeout=0"]
SECONDS = limit(60)

PRICING = """\
import mdispatch as md
lib = md.Library("shop", "FRAGMENT")
lib.define("price(int pieces, int each={each}) -> int")
lib.impl("price", lambda pieces, each: pieces * each, "CompositeExplicitAutograd")
"""
# A worker that has imported all makes a file. Asked for /hold it says that it has begun, and
# answers at a sign.
SITE = """\
import json, os
import mdispatch as md
import pricing

open(f"imported-{os.getpid()}", "w").close()

def application(environ, start_response):
    if environ["PATH_INFO"] == "/hold":
        open("begun", "w").close()
        with open("release") as pipe:
            pipe.read()
    told = os.environ["MDISPATCH_REGISTRY"], md.ops.shop.price(3)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(told).encode()]
"""


def lines_of_the_page() -> str:
    """What the page puts into gunicorn's configuration."""
    page = (ROOT / "docs" / "servers.md").read_text()
    (block,) = (b for b in re.findall(r"(?:^    .*\n|^\n)+", page, re.M) if "raw_env" in b)
    return "".join(line[4:] or "\n" for line in block.splitlines(keepends=True))


class Server:
    """gunicorn with two workers, at a socket that is open before it starts."""

    def __init__(self, folder: Path, configuration: str) -> None:
        pytest.importorskip("gunicorn", reason="gunicorn is not installed")
        self.folder = folder
        self.environment = {k: v for k, v in os.environ.items() if k != "MDISPATCH_REGISTRY"}
        (folder / "site_program.py").write_text(SITE)
        (folder / "conf.py").write_text(configuration)
        os.mkfifo(folder / "release")
        os.mkfifo(folder / "begun")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.deploy(2)
        fd = self.listener.fileno()
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*COMMAND, f"--bind=fd://{fd}", "site_program"],
                cwd=folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                pass_fds=[fd],
            )

    def await_workers(self) -> None:
        """Until both have imported the version that is there."""
        while len(list(self.folder.glob("imported-*"))) < 2:
            assert self.process.poll() is None, self.log()

    def deploy(self, each: int) -> None:
        (self.folder / "pricing.py").write_text(PRICING.format(each=each) + "#" * each)

    def ask(self, path: str = "") -> list[object]:
        port = self.listener.getsockname()[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=SECONDS) as answer:
            told: list[object] = json.loads(answer.read())
        return told

    def mdispatch(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mdispatch", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def close(self) -> None:
        with suppress(OSError):  # who holds a request goes on
            os.close(os.open(self.folder / "release", os.O_WRONLY | os.O_NONBLOCK))
        self.process.send_signal(signal.SIGQUIT)  # at once, whoever is being answered
        self.process.wait(SECONDS)
        self.listener.close()


@pytest.fixture
def started(tmp_path):
    servers = []

    def start(configuration: str) -> Server:
        servers.append(Server(tmp_path, configuration))
        return servers[0]

    yield start
    for server in servers:
        server.close()


def test_each_version_has_a_registry_of_its_own_while_both_serve(started):
    server = started(lines_of_the_page())
    server.await_workers()
    old, price = server.ask()
    assert re.fullmatch(r"elect:shop-[0-9a-f]{8}", old)
    assert price == 6
    held: list[list[object]] = []
    asking = threading.Thread(target=lambda: held.append(server.ask("hold")))
    asking.start()
    (server.folder / "begun").read_text()  # a worker of the old version is answering

    server.deploy(55)
    told = server.mdispatch("verify", "pricing", "--against", old.removeprefix("elect:"))
    assert (told.returncode, "int each=55" in told.stdout) == (1, True), told.stdout + told.stderr

    server.process.send_signal(signal.SIGHUP)
    now: list[object] = [old, 6]
    while now == [old, 6]:  # until the idle worker of the old version has ended
        with suppress(ConnectionError):  # as it ends it may drop what it has just accepted
            now = server.ask()
    new, price = now
    assert (new != old, price) == (True, 165)
    listed = server.mdispatch("doctor").stdout
    assert old.removeprefix("elect:") in listed
    assert new.removeprefix("elect:") in listed

    (server.folder / "release").write_text("")
    asking.join(SECONDS)
    assert held == [[old, 6]]
    assert server.ask() == [new, 165]
    assert "Error" not in server.log()


def test_in_one_registry_the_new_version_is_refused(started):
    server = started('raw_env = ["MDISPATCH_REGISTRY=elect:shop"]')
    server.await_workers()
    assert server.ask() == ["elect:shop", 6]
    held: list[list[object]] = []
    asking = threading.Thread(target=lambda: held.append(server.ask("hold")))
    asking.start()
    (server.folder / "begun").read_text()
    server.deploy(55)
    server.process.send_signal(signal.SIGHUP)
    while True:
        has_ended = server.process.poll() is not None
        if "SchemaMismatchError" in server.log():
            break
        assert not has_ended, server.log()
    (server.folder / "release").write_text("")
    asking.join(SECONDS)
    assert held == [["elect:shop", 6]]
