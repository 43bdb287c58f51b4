"""Real servers that take up another version of a module: gunicorn and uvicorn with two workers.

Their processes write a line into a pipe for each thing that tests wait for: a worker was started,
has imported the version that lies there, was refused, or holds a request. A test blocks on that
pipe, on the end of processes, and on answers.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest
from commands import environment
from patience import limit

from mdispatch.editions.joining import name_of
from mdispatch.facts import outside
from mdispatch.facts.opening import named_registries

__all__ = ["Answer", "Customer", "OLD", "Server", "VERSIONS", "WORKERS", "lines_of_the_page"]

ROOT = Path(__file__).parents[2]
SECONDS = limit(40)
WORKERS = 2

# --- what the servers run -------------------------------------------------------------------------

OLD = """\
import mdispatch as md

VERSION = "old"
lib = md.Library("shop", "FRAGMENT")
lib.define("price(int pieces, int each=2) -> int")
lib.impl("price", lambda pieces, each=2: pieces * each, "CompositeExplicitAutograd")
lib.define("total(int[] prices) -> int")
lib.impl("total", sum, "CompositeExplicitAutograd")
"""
ADDED = """\
lib.define("cheapest(int[] prices) -> int")
lib.impl("cheapest", min, "CompositeExplicitAutograd")
"""
_TOTAL = "".join(OLD.splitlines(keepends=True)[-2:])


def changed(*pairs: tuple[str, str]) -> str:
    """The new version: the old one with these texts replaced."""
    text = OLD
    for before, after in (('"old"', '"new"'), *pairs):
        assert before in text
        text = text.replace(before, after)
    return text


#: The new version of the module, for each kind of change.
VERSIONS = {
    "default": changed(("each=2", "each=3")),
    "argument": changed(
        ("each=2)", "each=2, *, bool rounded=False)"), ("each=2:", "each=2, rounded=False:")
    ),
    "added": changed() + ADDED,
    "removed": changed((_TOTAL, "")),
    "code": changed(("pieces * each", "pieces + pieces")),
}

SITE = """\
import asyncio, json, os

def tell(*words):
    pipe = os.open("events", os.O_WRONLY)
    os.write(pipe, " ".join(map(str, [*words, "\\n"])).encode())
    os.close(pipe)

if os.path.exists("gate"):
    os.read(os.open("gate", os.O_RDONLY), 1)
try:
    import mdispatch as md
    import pricing
except Exception as error:
    tell("refused", os.getpid(), type(error).__name__)
    raise
tell("imported", os.getpid(), pricing.VERSION)

def hold():
    tell("held", os.getpid())
    os.read(os.open("release", os.O_RDONLY), 1)

def answer():
    registry = md.default_registry().address
    return json.dumps([pricing.VERSION, registry, md.ops.shop.price(3)]).encode()

def wsgi(environ, start_response):
    if environ["PATH_INFO"] == "/hold":
        hold()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [answer()]

async def asgi(scope, receive, send):
    if scope["type"] == "http":
        if scope["path"] == "/hold":
            await asyncio.get_running_loop().run_in_executor(None, hold)
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": answer()})
"""

HOOKS = """
control_socket_disable = True

def _tell(*words):
    with open("events", "w") as pipe:
        print(*words, file=pipe)

def when_ready(server):
    _tell("master", server.pid, server.LISTENERS[0].sock.getsockname()[1])

def post_fork(server, worker):
    _tell("forked", worker.pid)
"""


def lines_of_the_page(word: str) -> str:
    """The lines of code in the page that have this word."""
    page = (ROOT / "docs" / "servers.md").read_text()
    (block,) = (b for b in re.findall(r"(?:^    .*\n|^\n)+", page, re.M) if word in b)
    return "".join(line[4:] or "\n" for line in block.splitlines(keepends=True))


# --- the servers ----------------------------------------------------------------------------------


class Answer(NamedTuple):
    version: str
    registry: str
    price: int


class Event(NamedTuple):
    what: str
    pid: int
    more: str = ""


class Customer:
    """Asks a server again and again, until it is stopped. ``answers`` are different ones."""

    def __init__(self, server: Server) -> None:
        self.answers: set[Answer] = set()
        self.errors: list[Exception] = []
        self._server = server
        self._enough = threading.Event()
        self._asking = threading.Thread(target=self._ask)
        self._asking.start()

    def _ask(self) -> None:
        while not self._enough.wait(0.01):
            try:
                self.answers.add(self._server.ask())
            except (OSError, HTTPException, AssertionError) as error:
                self.errors.append(error)
                if isinstance(error, ConnectionRefusedError):
                    return

    def stop(self) -> None:
        self._enough.set()
        self._asking.join(SECONDS)
        assert not self._asking.is_alive(), "a request has no answer"


class Server:
    """A server. ``registry`` is "none", "env", "dist" or "file": no edition, or its source;
    "warn": none, and MDISPATCH_ON_DIFFERENCE=warn; "match": none, and MDISPATCH_MATCH=compatible.

    ``events`` has all that its processes have told so far.
    """

    def __init__(self, folder: Path, way: str, registry: str, *options: str) -> None:
        program = way.split()[0]
        pytest.importorskip(program, reason=f"{program} is not installed")
        self.folder, self.program, self.registry = folder, program, registry
        self.name = f"deploys-{secrets.token_hex(5)}"
        self.release = 0
        self.events: list[Event] = []
        self.port = 0
        self._asking: list[threading.Thread] = []
        for pipe in ("events", "release"):
            os.mkfifo(folder / pipe)
        # Open both ways, a pipe has no end and keeps nobody who opens it waiting.
        self._told = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
        self._release = os.open(folder / "release", os.O_RDWR)
        self._rest = b""
        first = lines_of_the_page('os.environ["RELEASE"]') if registry == "file" else ""
        (folder / "site_program.py").write_text(first + SITE)
        self.deploy(OLD)
        self.process = self._start(options)
        self.masters = [self.process.pid]

    def _start(self, options: tuple[str, ...]) -> subprocess.Popen[bytes]:
        changes = {"PYTHONDONTWRITEBYTECODE": "1"}  # the source may change within one second
        if self.registry == "warn":
            changes["MDISPATCH_ON_DIFFERENCE"] = "warn"
        if self.registry == "match":
            changes["MDISPATCH_MATCH"] = "compatible"
        if self.program == "gunicorn":
            (self.folder / "conf.py").write_text(self._configuration() + HOOKS)
            command = ["--config=conf.py", "--bind=127.0.0.1:0", "--timeout=0", "site_program:wsgi"]
            return self._popen([*options, *command], changes)
        changes |= {"MDISPATCH_REGISTRY": self.address, "RELEASE": "1"}
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port, fd = listener.getsockname()[1], listener.fileno()
            command = ["--no-access-log", "--fd", str(fd), "site_program:asgi"]
            return self._popen([*options, *command], changes, fd)

    def _popen(
        self, options: list[str], changes: dict[str, str], *fds: int
    ) -> subprocess.Popen[bytes]:
        with (self.folder / "log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", self.program, f"--workers={WORKERS}", *options],
                cwd=self.folder,
                env=environment(**changes),
                stdout=log,
                stderr=log,
                pass_fds=fds,
            )

    @property
    def address(self) -> str:
        editions = {"none": "", "warn": "", "match": "", "dist": "@{dist:shop}"}
        return f"elect:{self.name}{editions.get(self.registry, '@{env:RELEASE}')}"

    def edition(self, release: int) -> str:
        """The address of the registry of a release."""
        is_plain = self.registry in ("none", "warn", "match")
        return f"elect:{self.name}" + ("" if is_plain else f"@{release}")

    def _configuration(self) -> str:
        if self.registry != "env":
            return f'raw_env = ["MDISPATCH_REGISTRY={self.address}"]\n'
        lines = lines_of_the_page("raw_env")
        assert "elect:shop@{env:RELEASE}" in lines
        return lines.replace("elect:shop", f"elect:{self.name}")

    def deploy(self, text: str, release: int | None = None) -> None:
        """New files for all workers that import later. ``release`` is the next one unless given."""
        before, self.release = self.release, release or self.release + 1
        for name, content in (("VERSION", f"{self.release}\n"), ("pricing.py", text)):
            (self.folder / "next").write_text(content)
            (self.folder / "next").rename(self.folder / name)
        if self.registry == "dist":
            there = self.folder / f"shop-{self.release}.dist-info"
            if before:
                (self.folder / f"shop-{before}.dist-info").rename(there)
            else:
                there.mkdir()
            (there / "METADATA").write_text(f"Name: shop\nVersion: {self.release}\n")

    # --- waiting --------------------------------------------------------------------------------

    def until(self, what: Callable[[], bool]) -> None:
        """Waits for events until it is so."""
        end = monotonic() + SECONDS
        while not what():
            ready = select.select([self._told], [], [], max(0.0, end - monotonic()))[0]
            assert ready, f"{self.events}\n{self.log()}"
            *lines, self._rest = (self._rest + os.read(self._told, 4096)).split(b"\n")
            for line in lines:
                word, pid, *more = line.decode().split()
                self.events.append(Event(word, int(pid), " ".join(more)))
                if word == "master":
                    self.port = int(*more)
                    self.masters += [] if int(pid) in self.masters else [int(pid)]

    def pids(self, what: str, more: str = "") -> list[int]:
        """The processes that have told this, in order."""
        return [each.pid for each in self.events if each.what == what and more in each.more]

    def await_(self, what: str, count: int, more: str = "") -> list[int]:
        """Until so many have told this."""
        self.until(lambda: len(self.pids(what, more)) >= count)
        return self.pids(what, more)

    def await_end(self, *pids: int) -> None:
        """Until these processes have ended."""
        for pid in pids:
            try:
                fd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            try:
                assert select.select([fd], [], [], SECONDS)[0], f"{pid} lives on\n{self.log()}"
            finally:
                os.close(fd)

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    # --- asking ---------------------------------------------------------------------------------

    def ask(self, path: str = "") -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            connection.request("GET", f"/{path}")
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, (text, self.log())
            return Answer(*json.loads(text))
        finally:
            connection.close()

    def hold(self) -> tuple[int, Callable[[], Answer]]:
        """Begins a request that is held open. Returns who holds it, and the function that releases
        it and returns the answer.
        """
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(self.ask("hold")))
        asking.start()
        self._asking.append(asking)
        holder = self.await_("held", len(self.pids("held")) + 1)[-1]

        def release() -> Answer:
            os.write(self._release, b".")
            asking.join(SECONDS)
            (answer,) = answers
            return answer

        return holder, release

    def replied(self, times: int = 4) -> set[Answer]:
        """The different answers to so many requests."""
        return {self.ask() for _ in range(times)}

    def await_answers(self, *wanted: Answer) -> None:
        """Asks until it has had each of these answers."""
        end, missing = monotonic() + SECONDS, set(wanted)
        while missing:
            missing.discard(self.ask())
            assert monotonic() < end, f"nobody answers {missing}\n{self.log()}"

    # --- acting ---------------------------------------------------------------------------------

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def gate(self) -> Path:
        """Makes a gate in front of the import of each worker to come, which takes one byte."""
        os.mkfifo(self.folder / "gate")
        return self.folder / "gate"

    def open_gate(self) -> None:
        (self.folder / "gate").unlink()

    def mdispatch(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "mdispatch", *words],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def close(self) -> None:
        """Ends it, and sees that no registry stays."""
        os.write(self._release, b"." * len(self._asking))
        with suppress(AssertionError):  # those that a test did not wait for
            self.until(lambda: not select.select([self._told], [], [], 0)[0])
        gunicorn = self.program == "gunicorn"
        for pid in self.masters:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT if gunicorn else signal.SIGTERM)
        self.process.wait(SECONDS)
        self.await_end(*self.masters, *{each.pid for each in self.events})
        for asking in self._asking:
            asking.join(SECONDS)
        os.close(self._told)
        os.close(self._release)
        left = [each for each in named_registries() if name_of(each) == self.name]
        for each in left:
            Path(outside.folder(), each).unlink()
        # uvicorn ends its workers by a signal in the end, before they can close a registry.
        assert left == [] or self.program == "uvicorn", self.log()
