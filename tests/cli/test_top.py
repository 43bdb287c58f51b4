"""``mdispatch top``: doctor's report again and again, with the changes in between; and afterwards
the terminal is as it was before.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import mdispatch
from commands import environment
from json_keys import strangers
from kinds import until
from patience import limit
from registries import FOLDER, main_of, until_stopped, until_waiting, worker_of

pytestmark = [pytest.mark.specification, pytest.mark.either_binding]

TOP = [sys.executable, "-m", "mdispatch", "top"]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"{request.node.name[5:9]}-{os.getpid()}"
    yield name
    (FOLDER / name).unlink(missing_ok=True)


# --- without a terminal ---------------------------------------------------------------------------


class Lines:
    """A running ``top --json``, which is read one answer at a time."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*TOP, "--json", "--interval", "0.05", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        moment: dict[str, Any] = json.loads(line)
        return moment

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *args: object) -> None:
        with self.process:
            self.process.kill()


def test_each_line_tells_how_fast_a_registry_changed_since_the_one_before(name: str) -> None:
    with main_of(name) as main, Lines(name) as top:
        first = top.next()
        assert first["seconds"] is None
        (there,) = first["registries"]
        assert (there["name"], there["changes_per_second"], there["recovered"]) == (
            *(name, None, None),
        )
        before, changes = there["sequence"], 0.0
        main.do("for i in range(40): lib.define(f'more{i}() -> ()')")
        while changes < 39.5:
            moment = top.next()
            (there,) = moment["registries"]
            changes += there["changes_per_second"] * moment["seconds"]
            assert there["sequence"] - before == pytest.approx(changes, abs=0.1)
        assert (there["operators"], there["sequence"] - before) == (42, 40)
        moment = top.next()
        assert moment["registries"][0]["changes_per_second"] == 0
        assert moment["time"] == pytest.approx(time.time(), abs=60)


@pytest.mark.thorough
def test_a_recovery_is_told_once(name: str, hold: str) -> None:
    with main_of(name) as main, Lines(name) as top:
        top.next()
        with subprocess.Popen([hold, name], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            holder.kill()
        main.do("lib.define('more() -> ()')")
        recovered = []
        while not recovered or not recovered[-1]:
            recovered.append(top.next()["registries"][0]["recovered"])
        assert (sum(recovered), top.next()["registries"][0]["recovered"]) == (1, 0)


def test_a_registry_that_goes_away_meanwhile_ends_nothing(name: str) -> None:
    with main_of(name) as main, Lines(name) as top:
        assert top.next()["registries"][0]["state"] == "open"
        main.kill()
        while top.next()["registries"][0]["state"] != "registrar died":
            pass
        (FOLDER / name).unlink()
        while top.next()["registries"]:
            pass
        with main_of(name):
            while not (there := top.next()["registries"]):
                pass
            assert there[0]["changes_per_second"] is None


def test_every_key_of_the_json_is_documented(name: str) -> None:
    with main_of(name), Lines(name) as top:
        moment = top.next()
    assert strangers("top", moment) == []
    assert {"changes_per_second", "recovered", "members"} <= set(moment["registries"][0])


def test_without_a_terminal_it_prints_one_block_after_the_other(name: str) -> None:
    with main_of(name) as main, worker_of(name) as worker:
        worker.do("wait(md.wait_for_impl, 'shop::scale', 'CUDA', 100)")
        until_waiting(name, 1)
        done = mdispatch("top", name, "--count", "2", "--interval", "0.05")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    headings = [
        "registry",
        "state",
        "registrar",
        "members",
        "operators",
        "registered",
        "used",
        "free",
        "changes/s",
        "waiting",
    ]
    blocks = re.split(r"(?m)^(?=\d\d:\d\d:\d\d )", done.stdout)[1:]
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        lines = block.splitlines()
        assert lines[0].endswith("  1 registry")
        assert lines[2].split() == headings
        row = lines[4].split()
        assert row[:6] == [name, "open", str(main.pid), "2", "2", "4"]
        assert row[8:] == ["-" if number == 0 else "0", "1"]
        waits = f"waiting  pid {worker.pid}, interpreter 0: a kernel of shop::scale at CUDA, "
        assert waits in lines[5]


def test_who_does_not_read_on_ends_it(name: str) -> None:
    with main_of(name):
        for arguments in ((), ("--json",)):
            command = [*TOP, name, "--interval", "0.05", *arguments]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
            ) as top:
                assert top.stdout is not None
                assert top.stderr is not None
                assert top.stdout.readline()
                top.stdout.close()
                assert (top.wait(limit(60)), top.stderr.read()) == (0, b"")


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_without_a_word(name: str, ends: signal.Signals) -> None:
    with main_of(name), Lines(name) as top:
        top.next()
        top.process.send_signal(ends)
        status = top.process.wait(limit(60))
        assert status == (0 if ends == signal.SIGINT else 128 + ends)
        assert top.process.stderr is not None
        assert top.process.stderr.read() == ""


def test_unusable_arguments_give_status_2(name: str) -> None:
    for arguments in ((name,), ("--interval", "0"), ("--interval", "nan"), ("--count", "0")):
        done = mdispatch("top", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert done.stderr


# --- on a terminal --------------------------------------------------------------------------------

ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


class Terminal:
    """``top`` on a terminal of its own."""

    def __init__(self, columns: int, rows: int, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            [*TOP, "--interval", "0.05", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(TERM="xterm-256color"),
            start_new_session=True,
        )
        os.close(theirs)
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def mode(self) -> list[Any]:
        return termios.tcgetattr(self._ours)

    def until_frame(self, fits: Callable[[list[str]], bool]) -> list[str]:
        """Reads until a whole screen fits, and forgets what came before it."""
        while True:
            self.shown = ENTER + self.shown.rpartition(ENTER)[2]
            for screen in reversed(frames(self.shown)):
                lines = [line.removesuffix("\x1b[K") for line in screen]
                if fits(lines):
                    self.shown = ENTER
                    return lines
            assert select.select([self._ours], [], [], 60)[0], self.shown
            self.shown += self._read()

    def until(self, text: str) -> None:
        """Reads until this text was shown."""
        while text not in self.shown:
            assert select.select([self._ours], [], [], 60)[0], self.shown
            self.shown += self._read()

    def _read(self) -> str:
        try:
            return os.read(self._ours, 65536).decode("utf-8", "replace")  # it may cut a letter
        except OSError:  # no process has it open any more
            raise AssertionError(f"it ended: {self.shown!r}") from None

    def rest(self) -> int:
        """The exit status, after reading all that it shows."""
        try:
            while True:
                self.shown += self._read()
        except AssertionError:
            return self.process.wait(limit(60))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *args: object) -> None:
        os.close(self._ours)
        with self.process:
            self.process.kill()


@pytest.mark.thorough
def test_a_signal_in_the_middle_of_a_write_harms_nothing(name: str) -> None:
    with main_of(name), Terminal(100, 24, name) as terminal:
        terminal.until("open")
        # Nothing reads, so it blocks in a write, which is system call 1 on this machine.
        call = Path(f"/proc/{terminal.process.pid}/syscall")
        until(lambda: os.uname().machine != "x86_64" or call.read_text().split()[0] == "1")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.rest() == 128 + signal.SIGTERM
        assert terminal.shown.endswith(LEAVE)


def frames(shown: str) -> list[list[str]]:
    """The screens, line by line, without colours."""
    inside = shown.partition(ENTER)[2].partition(LEAVE)[0]
    bare = re.sub(r"\x1b\[[0-9;]*m", "", inside)
    screens = [screen for screen in bare.split("\x1b[H") if screen.endswith("\x1b[J")]
    return [screen.removesuffix("\x1b[J").split("\r\n") for screen in screens]


@pytest.mark.parametrize(
    ("ends", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 128 + 15), (signal.SIGHUP, 128 + 1)]
)
def test_a_terminal_is_redrawn_in_place_and_given_back(
    name: str, ends: signal.Signals, status: int
) -> None:
    with main_of(name) as main, Terminal(100, 24, name) as terminal:
        terminal.until("open")
        main.do("lib.define('more() -> ()')")
        terminal.until(f"{main.pid}        1          3")
        terminal.process.send_signal(ends)
        assert terminal.rest() == status
        shown = terminal.shown
        assert shown.startswith(ENTER)
        assert shown.endswith(LEAVE)
        assert (shown.count(ENTER), shown.count(LEAVE)) == (1, 1)
        screens = frames(shown)
        assert len(screens) >= 2
        for screen in screens:
            assert all(line.endswith("\x1b[K") for line in screen)
            assert screen[4].split()[:3] == [name, "open", str(main.pid)]
        assert screens[-1][4].split()[4] == "3"


@pytest.mark.parametrize(("columns", "rows"), [(100, 6), (60, 24), (60, 5), (200, 50)])
def test_a_screen_of_any_size_gets_what_fits(name: str, columns: int, rows: int) -> None:
    with (
        main_of(name),
        worker_of(name) as worker,
        Terminal(columns, rows, name, "--count", "2") as terminal,
    ):
        worker.do("wait(md.wait_for_impl, 'shop::scale', 'CUDA', 100)")
        assert terminal.rest() == 0
        for screen in frames(terminal.shown):
            assert len(screen) <= rows
            assert max(len(line.removesuffix("\x1b[K")) for line in screen) <= columns
        if rows == 5:
            assert "more lines" in terminal.shown


def places_of(lines: list[str], names: list[str]) -> list[int]:
    """In which lines the rows of these registries begin."""
    found = {line.split()[0]: i for i, line in enumerate(lines) if line.split()}
    return [found.get(name, -1) for name in names]


def test_q_ends_it_and_the_terminal_is_as_it_was(name: str) -> None:
    with main_of(name), Terminal(100, 24, name) as terminal:
        before = terminal.mode()
        terminal.until("q quit")
        assert not terminal.mode()[3] & (termios.ICANON | termios.ECHO)
        assert terminal.mode()[3] & termios.ISIG
        terminal.press("q")
        assert terminal.rest() == 0
        assert terminal.shown.endswith(LEAVE)
        assert terminal.mode() == before


def test_keys_filter_and_sort(name: str) -> None:
    names = [f"{name}-a", f"{name}-b"]
    waited = f"of{os.getpid()}"  # other tests' registries are shown, too, and wait for others
    with main_of(names[0]), main_of(names[1]) as other, worker_of(names[1]) as worker:
        other.do("for i in range(40): lib.define(f'more{i}() -> ()')")
        worker.do(f"wait(md.wait_for_impl, 'shop::{waited}', 'CUDA', 100)")
        with Terminal(100, 24) as terminal:
            terminal.press(f"/{name.upper()}\r")
            lines = terminal.until_frame(lambda lines: f"filter ({name.upper()})" in lines[-1])
            assert places_of(lines, names) == [4, 5]
            for order in ("changes", "wait", "members", "memory"):
                terminal.press("s")
                lines = terminal.until_frame(lambda lines, to=order: f"s sort: {to}" in lines[-1])
                if order != "changes":
                    assert places_of(lines, names) == [6, 4], lines  # a line for who waits
            terminal.press("/" + "\x7f" * len(name) + f"{waited.upper()}X\x7f\r")
            lines = terminal.until_frame(lambda lines: f"filter ({waited.upper()})" in lines[-1])
            assert places_of(lines, names) == [-1, 4]
            terminal.press("/" + "\b" * len(waited) + f"{worker.pid}\r")
            terminal.until_frame(lambda lines: places_of(lines, names) == [-1, 4])
            terminal.press("/no such thing\r")
            terminal.until_frame(lambda lines: places_of(lines, names) == [-1, -1])
            terminal.press("\x1b")
            terminal.until_frame(lambda lines: min(places_of(lines, names)) > 0)
            terminal.press("q")
            assert terminal.rest() == 0
    for each in names:
        (FOLDER / each).unlink()


def test_keys_scroll_and_the_headings_stay(name: str) -> None:
    with main_of(name) as main, worker_of(name) as worker, Terminal(100, 7, name) as terminal:
        main.do("wait(md.wait_for_def, 'shop::later', 100)")
        for i in range(4):
            worker.do(f"w{i} = md.Registry.attach(registry.address)")
            worker.do(
                f"threading.Thread(target=md.wait_for_def, args=('shop::w{i}', 100), "
                f"kwargs={{'registry': w{i}}}, daemon=True).start()"
            )
        until_waiting(name, 5)
        top = terminal.until_frame(lambda lines: "4 more lines" in lines[-1])
        assert len(top) == 7
        assert top[2].split()[0] == "registry"
        assert places_of(top, [name]) == [4]
        for key, shows in (
            *(("\x1b[B", "3 more lines"), ("j", "2 more lines"), ("k", "3 more lines")),
            *((" ", "1 more lines"), ("\x1b[5~", "3 more lines"), ("\x1b[F", "q quit")),
            *(("\x1bOA", "1 more lines"), ("\x1b[H", "4 more lines")),
        ):
            terminal.press(key)
            lines = terminal.until_frame(lambda lines, end=shows: lines[-1].startswith(end))
            assert lines[1:4] == top[1:4]
        assert places_of(lines, [name]) == [4]


def test_in_the_background_it_leaves_the_keyboard_to_the_shell(name: str) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    shell = 'set -m; "$@" & wait $!; echo "status $?"'
    words = ["setsid", "--ctty", "bash", "-c", shell, "bash", *TOP, name, "--count", "2"]
    with (
        main_of(name),
        subprocess.Popen(
            words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment(TERM="xterm")
        ) as process,
    ):
        os.close(theirs)
        shown = b""
        while b"status " not in shown:
            assert select.select([ours], [], [], 60)[0], shown
            shown += os.read(ours, 65536)
        assert b"status 0" in shown
        assert b"q quit" not in shown
        assert process.wait(limit(60)) == 0
    os.close(ours)


def test_ctrl_z_gives_the_terminal_back_meanwhile(name: str) -> None:
    with main_of(name), Terminal(100, 24, name) as terminal:
        terminal.until("open")
        terminal.process.send_signal(signal.SIGTSTP)
        terminal.until(LEAVE)
        until_stopped(terminal.process.pid)
        assert terminal.shown.endswith(LEAVE)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until(LEAVE + ENTER)
        terminal.shown = ""
        terminal.until("open")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.rest() == 0
        assert terminal.shown.endswith(LEAVE)


def test_a_terminal_that_cannot_be_steered_gets_blocks(name: str) -> None:
    ours, theirs = pty.openpty()
    with (
        main_of(name),
        subprocess.Popen(
            [*TOP, name, "--count", "1"], stdout=theirs, stderr=theirs, env=environment(TERM="dumb")
        ) as top,
    ):
        os.close(theirs)
        assert top.wait(limit(60)) == 0
        shown = os.read(ours, 65536)
        os.close(ours)
    assert b"open" in shown
    assert b"\x1b[?" not in shown


def test_looking_changes_nothing(name: str) -> None:
    with main_of(name):
        path = Path(FOLDER / name)
        before = path.read_bytes()
        assert mdispatch("top", name, "--count", "3", "--interval", "0.05").returncode == 0
        assert path.read_bytes() == before
