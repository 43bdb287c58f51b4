"""docs/servers.md, "A new version": each deploy of the table there, by a real server with two
workers that answers requests meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deploying import OLD, VERSIONS, WORKERS, Answer, Customer, Server

pytestmark = [pytest.mark.shared, pytest.mark.specification, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]

#: The page has this very table, and explains its words.
TABLE = """\
| deploy by | edition | workers | default | argument | added | removed | code | rollback |
|---|---|---|---|---|---|---|---|---|
| gunicorn HUP | none | idle | race |  | new | new | new |  |
| gunicorn HUP | none | busy | outage | outage | outage | new | new |  |
| gunicorn HUP | warn | idle | new |  |  |  |  | back |
| gunicorn HUP | warn | busy | new | new | new | new |  |  |
| gunicorn HUP | match | idle |  | new | new | new |  |  |
| gunicorn HUP | match | busy | outage | new | new | new | new |  |
| gunicorn HUP | env | idle | new | new |  |  |  | back |
| gunicorn HUP | env | busy | new |  | new | new | new | back |
| gunicorn HUP | dist | idle | new |  | new | new | new | back |
| gunicorn HUP | dist | busy | new | new |  |  |  | back |
| gunicorn crash | none | idle | outage |  | outage | both |  |  |
| gunicorn crash | none | busy |  | outage |  |  | both |  |
| gunicorn crash | warn | idle | both | both | both |  |  |  |
| gunicorn crash | warn | busy | both |  |  |  |  |  |
| gunicorn crash | match | idle | outage | both | both | both |  |  |
| gunicorn crash | match | busy |  | both | both |  |  |  |
| gunicorn crash | env | idle | outage |  |  |  | both |  |
| gunicorn crash | env | busy |  |  | outage | both |  |  |
| gunicorn crash | dist | idle | both |  | both |  |  |  |
| gunicorn crash | dist | busy | both | both |  |  |  |  |
| gunicorn crash | file | idle | both |  |  |  |  |  |
| gunicorn USR2 | none | busy | old |  |  |  | new |  |
| gunicorn USR2 | env | busy | new |  |  |  |  |  |
| gunicorn USR2 | dist | idle | new |  |  |  |  |  |
| gunicorn --preload HUP | env | idle | old |  |  |  |  |  |
| gunicorn --preload USR2 | none | idle | old |  |  |  |  |  |
| gunicorn --preload USR2 | env | busy | new |  |  |  |  |  |
| gunicorn --preload USR2 | dist | idle | new |  |  |  |  |  |
| uvicorn HUP | none | idle | old |  | old | new |  |  |
| uvicorn HUP | none | busy |  | old |  |  | new |  |
| uvicorn HUP | warn | idle | new |  | new |  |  | back |
| uvicorn HUP | warn | busy |  | new |  |  |  |  |
| uvicorn HUP | match | idle | old | new | new |  |  |  |
| uvicorn HUP | match | busy |  | new |  |  |  |  |
| uvicorn HUP | env | idle | old |  |  |  |  |  |
| uvicorn HUP | dist | idle | new |  | new |  |  | back |
| uvicorn HUP | dist | busy | new |  |  |  |  |  |
| uvicorn HUP | file | idle | new |  |  |  |  |  |
| uvicorn crash | none | idle | old |  |  |  |  |  |
| uvicorn crash | warn | idle | both |  |  |  |  |  |
| uvicorn crash | match | idle |  | both | both |  |  |  |
| uvicorn crash | dist | idle | both |  |  |  |  |  |
"""

ERRORS = {
    "default": "SchemaMismatchError",
    "argument": "SchemaMismatchError",
    "added": "NameMismatchError",
}


def cells(program: str, action: str) -> list[object]:
    """The cells of a row's first column, as parameters. Every third one is enough but in the long
    form: neighbours differ in one thing.
    """
    head, _, *rows = [
        [each.strip() for each in row[1:-1].split("|")] for row in TABLE.split("\n")[:-1]
    ]
    found = []
    for how, edition, workers, *outcomes in rows:
        if how.startswith(program) and how.endswith(action):
            for change, outcome in zip(head[3:], outcomes, strict=True):
                if outcome:
                    name = "-".join([how, edition, workers, change, outcome]).replace(" ", "-")
                    marks = [pytest.mark.long] if len(found) % 3 else []
                    cell = how, edition, workers, change, outcome
                    found.append(pytest.param(*cell, id=name, marks=marks))
    return found


def matrix(program: str, action: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("how", "edition", "workers", "change", "outcome"), cells(program, action)
    )


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*args: str) -> Server:
        servers.append(Server(tmp_path, *args))
        return servers[0]

    yield start
    for server in servers:
        server.close()


class Deploy:
    """One cell of the table. ``let_go`` ends the request that the ``holder`` has."""

    def __init__(self, server: Server, how: str, workers: str, change: str) -> None:
        self.server, self.how, self.change = server, how, change
        self.is_preloaded = "--preload" in how
        if server.program == "gunicorn":
            server.await_("master", 1)
            server.await_("forked", WORKERS)
        server.await_("imported", 1 if self.is_preloaded else WORKERS)
        self.old = Answer("old", server.edition(1), 6)
        assert server.replied() == {self.old}
        self.holder, self.let_go = server.hold() if workers == "busy" else (0, None)
        self.first = self.workers()
        self.customer: Customer | None = None

    def new(self) -> Answer:
        # After a crash gunicorn has not read its configuration again.
        is_in_the_old = self.how == "gunicorn crash" and self.server.registry == "env"
        edition = self.server.edition(1 if is_in_the_old else 2)
        return Answer("new", edition, 9 if self.change in ("default", "rollback") else 6)

    def workers(self) -> set[int]:
        """The workers so far."""
        of_uvicorn = self.server.program == "uvicorn"
        return set(self.server.pids("imported" if of_uvicorn else "forked"))

    def act(self) -> None:
        """Has the server begin to replace workers."""
        if self.how.endswith("crash"):
            victim = min(self.workers() - {self.holder})
            os.kill(victim, signal.SIGKILL)
            self.server.await_end(victim)
        if self.customer is None:
            self.customer = Customer(self.server)
        if not self.how.endswith("crash"):
            self.server.signal(getattr(signal, f"SIG{self.how.split()[-1]}"))

    def replace(self, text: str, release: int | None = None) -> None:
        """Deploys, and waits until the workers of before have ended, but for one that is busy."""
        server, before = self.server, self.workers()
        imported = len(server.pids("imported"))
        server.deploy(text, release)
        self.act()
        # The supervisor of uvicorn may wait for the busy worker before it starts the second one.
        may_wait = server.program == "uvicorn" and self.let_go is not None
        server.await_("imported", imported + (1 if self.is_preloaded or may_wait else WORKERS))
        if self.how.endswith("USR2"):
            server.await_("master", 2)
            server.signal(signal.SIGTERM)
        if not may_wait:
            server.await_end(*before - {self.holder})

    def end(self) -> None:
        """The request that was held gets the old answer."""
        if self.let_go is not None:
            assert self.let_go() == self.old
            self.server.await_end(self.holder)

    def in_peace(self) -> None:
        """The server lives, and each request got an answer of one of the two."""
        assert self.customer is not None
        self.customer.stop()
        errors = self.customer.errors
        if self.server.program == "uvicorn":  # as the page says of a worker that it ends
            errors = [each for each in errors if not isinstance(each, ConnectionResetError)]
        assert errors == []
        assert self.customer.answers <= {self.old, self.new()}
        if self.how.endswith("USR2") and self.server.has_ended():
            os.kill(self.server.masters[-1], 0)
        else:
            assert not self.server.has_ended(), self.server.log()

    # --- outcomes -------------------------------------------------------------------------------

    def is_new(self) -> None:
        self.replace(VERSIONS[self.change])
        if self.server.program == "gunicorn":
            assert self.server.replied() == {self.new()}
        self.end()
        self.server.await_end(*self.first)
        if self.how.endswith("USR2"):
            self.server.await_end(self.server.process.pid)
        assert self.server.replied() == {self.new()}
        self.in_peace()

    def is_back(self) -> None:
        self.replace(VERSIONS["default"])
        assert self.server.replied() == {self.new()}
        self.replace(OLD, release=1)
        assert self.server.replied() == {self.old}
        self.end()
        self.in_peace()

    def is_both(self) -> None:
        server, imported = self.server, len(self.server.pids("imported"))
        server.deploy(VERSIONS[self.change])
        self.act()
        server.await_("imported", imported + 1)
        if self.let_go is None:
            self.holder, self.let_go = server.hold()
        if server.program == "gunicorn":  # one worker holds a request, and the other one answers
            assert {server.ask(), self.let_go()} == {self.old, self.new()}
        else:
            assert self.let_go() in (self.old, self.new())
            server.await_answers(self.old, self.new())
        self.in_peace()

    def is_old(self) -> None:
        server, forked = self.server, len(self.server.pids("forked"))
        before = self.workers()
        server.deploy(VERSIONS[self.change])
        self.act()
        if self.how == "gunicorn --preload HUP":
            server.await_("forked", forked + WORKERS)
            server.await_end(*before - {self.holder})
        else:
            again = 2 if self.how == "uvicorn crash" else 1
            server.await_end(*server.await_("refused", again, ERRORS[self.change]))
        if self.how.endswith("USR2"):
            server.await_end(*server.masters[1:])
        assert server.replied() == {self.old}
        if self.let_go is not None:
            assert self.let_go() == self.old
        assert server.replied() == {self.old}
        self.in_peace()

    def is_outage(self) -> None:
        self.server.deploy(VERSIONS[self.change])
        self.act()
        self.goes_out(ERRORS[self.change])

    def goes_out(self, error: str) -> None:
        server = self.server
        server.await_("refused", 1, error)
        if self.let_go is not None:
            assert self.let_go() == self.old
        server.await_end(server.process.pid)
        server.await_end(*self.workers())
        assert server.process.wait() != 0
        assert "Worker failed to boot" in server.log()
        assert self.customer is not None
        self.customer.stop()
        assert isinstance(self.customer.errors[-1], ConnectionRefusedError)

    def is_race(self) -> None:
        """Both ends of it: old workers end first, and then they do not."""
        server, before = self.server, self.workers()
        gate = os.open(server.gate(), os.O_RDWR)
        server.deploy(VERSIONS[self.change])
        self.act()
        server.await_("forked", 2 * WORKERS)
        server.await_end(*before)
        os.write(gate, b"." * WORKERS)
        server.await_("imported", 2 * WORKERS)
        os.close(gate)
        server.open_gate()
        assert server.replied() == {self.new()}

        before = self.workers() - before
        for worker in before:
            os.kill(worker, signal.SIGSTOP)
        server.deploy(OLD)
        self.act()
        server.await_("refused", 1, ERRORS[self.change])
        for worker in before:
            os.kill(worker, signal.SIGCONT)
        self.goes_out(ERRORS[self.change])


def see(start: Callable[..., Server], *cell: str) -> None:
    """Runs the cell: the method of Deploy for its outcome."""
    how, edition, workers, change, outcome = cell
    options = ["--preload"] if "--preload" in how else []
    if (workers, change) == ("busy", "rollback"):
        options.append("--graceful-timeout=1")  # the arbiter waits so long for the busy worker
    server = start(how, edition, *options)
    getattr(Deploy(server, how, workers, change), f"is_{outcome}")()


@matrix("gunicorn", "HUP")
def test_gunicorn_takes_up_new_files_at_a_hang_up(started, how, edition, workers, change, outcome):
    see(started, how, edition, workers, change, outcome)


@matrix("gunicorn", "crash")
def test_gunicorn_replaces_a_worker_after_a_deploy(started, how, edition, workers, change, outcome):
    see(started, how, edition, workers, change, outcome)


@pytest.mark.thorough
@matrix("gunicorn", "USR2")
def test_a_second_gunicorn_takes_up_new_files(started, how, edition, workers, change, outcome):
    see(started, how, edition, workers, change, outcome)


@pytest.mark.thorough
@matrix("uvicorn", "")
def test_uvicorn_takes_up_new_files(started, how, edition, workers, change, outcome):
    see(started, how, edition, workers, change, outcome)


@pytest.mark.thorough
def test_while_both_serve_doctor_and_diff_tell_of_them(started):
    server = started("gunicorn HUP", "env")
    deploy = Deploy(server, "gunicorn HUP", "busy", "default")
    deploy.replace(VERSIONS["default"])
    names = [f"{server.name}@{release}" for release in (1, 2)]
    told = server.mdispatch("doctor", "--json")
    listed = {each["name"]: each for each in json.loads(told.stdout)["registries"]}
    assert listed[names[1]]["edition"]["beside"] == [names[0]]
    told = server.mdispatch("diff", *names, "--json")
    assert (told.returncode, json.loads(told.stdout)["verdict"]) == (1, "breaking")
    told = server.mdispatch("verify", "pricing", "--against", names[0])
    assert (told.returncode, "int each=3" in told.stdout) == (1, True), told.stdout + told.stderr
    deploy.end()
    deploy.in_peace()


@pytest.mark.lint
def test_the_page_has_the_table():
    assert TABLE in (ROOT / "docs" / "servers.md").read_text()
