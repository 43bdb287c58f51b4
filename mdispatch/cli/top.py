"""The command ``mdispatch top``: looks again and again, on a screen that it restores at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from ..errors import MdispatchError
from .asking import reason
from .columns import PAGE, fit, plain, say, say_figures, size, styled
from .console import complain, console_on, json_option, standard_output, text_for
from .doctor import (
    alarm,
    awaited,
    look,
    main_text,
    members_text,
    problems,
    registry_argument,
    seen_json,
    sentence,
    state_text,
    waiting_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType
    from typing import TextIO

    from rich.console import Console
    from rich.text import Text

    from ..facts.outside import Seen
    from . import answers
    from .keyboard import Keyboard
from . import sections

_DAY = 86400.0
# To another screen without a cursor, and back. To the top; erase the rest of the line, the screen.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END = "\x1b[H", "\x1b[K", "\x1b[J"


class _EndedError(Exception):
    """A signal asked the command to end."""


def _interval(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if not 0.05 <= value <= _DAY:  # refuses NaN too
        raise click.BadParameter(f"{value} is not a number of seconds from 0.05 to {_DAY:.0f}.")
    return value


def _count(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise click.BadParameter(f"{value} is not a number from 1 on.")
    return value


@click.command
@registry_argument
@click.option("--interval", default=1.0, callback=_interval, help="Seconds between two looks.")
@click.option("--count", type=int, callback=_count, help="Looks; without it, until Ctrl-C.")
@json_option("top", "JSON lines")
def top(
    registry: str | None,
    interval: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Show the registries of this user live. It tells who is alive, what is in them and how fast
    that changes, and who waits for what.

    It looks from outside, as mdispatch doctor does, once a second: nothing in the registries is
    joined, locked or changed. On a terminal it redraws in place; elsewhere it prints one block
    after the other.

    \b
    Keys, on a terminal:
      q                       end
      s                       sort by the next of: name, changes, longest wait,
                              members, memory
      /                       show only what has this text: in its name, its
                              process ids, or what is waited for; Enter ends
                              the text, Esc takes it away
      arrows, PgUp, PgDn,     scroll, also by j, k and the space bar
      Home, End

    \b
    Exit status:
      0    ended: by q, by --count, by Ctrl-C, or because nobody reads on
      2    unusable arguments; no such registry
    """
    output = standard_output()
    try:
        before = _moment(registry, None)
        if as_json or not _is_screen(output):
            with _closing(output), _ends_by_signal():
                _run(registry, interval, count, before, _Blocks(output, as_json))
        else:
            from .keyboard import keyboard  # Windows has no such terminals, nor registries to show

            keys = keyboard()
            with _closing(output), _screen(output, keys):
                _run(registry, interval, count, before, _Screen(output, keys))
    except KeyboardInterrupt:
        raise Exit(0) from None
    except _EndedError as ended:
        raise Exit(128 + ended.args[0]) from None
    except (MdispatchError, OSError) as error:
        complain(reason(error))
        raise Exit(2) from None


def _moment(registry: str | None, before: Moment | None) -> Moment:
    try:
        found = look(registry)
    except MdispatchError:
        if before is None:
            raise
        found = []  # the registry that was asked for is gone
    # The moment before loses its own past: nothing reads that, and it would grow with every look.
    return Moment(found, time.monotonic(), time.time(), before and _alone(before))


def _alone(moment: Moment) -> Moment:
    return Moment(moment.registries, moment.at, moment.clock)


def _run(
    registry: str | None,
    interval: float,
    count: int | None,
    moment: Moment,
    shown: _Blocks | _Screen,
) -> None:
    begun, looks = moment.at, 1
    while True:
        shown.show(moment)
        if looks == count:
            return
        looks += 1
        # Looks happen at whole intervals; a look whose time has passed is left out.
        passed = time.monotonic() - begun
        if shown.pause(begun + (passed // interval + 1) * interval):
            return
        moment = _moment(registry, moment)


# --- writing --------------------------------------------------------------------------------


class _Blocks:
    """One text, or one line of JSON, after the other."""

    def __init__(self, output: TextIO, as_json: bool) -> None:
        self._output, self._as_json = output, as_json
        self._between = ""

    def show(self, moment: Moment) -> None:
        if self._as_json:
            self._output.write(moment.json() + "\n")
        else:
            self._output.write(self._between + text_for(moment, self._output))
            self._between = "\n"
        self._output.flush()

    def pause(self, until: float) -> bool:
        """Waits for that moment. Whether it is to end instead."""
        time.sleep(max(0.0, until - time.monotonic()))
        return False


class _Screen:
    """The last moment on a screen, as keys want it: sorted, filtered, scrolled."""

    def __init__(self, output: TextIO, keys: Keyboard | None) -> None:
        self._output, self._keys = output, keys
        self._moment: Moment | None = None
        self._view = View()
        self._first = 0  # the first line that is shown of those that scroll
        self._page = 1
        self._typing = False

    def show(self, moment: Moment) -> None:
        self._moment = moment
        self._draw()

    def _draw(self) -> None:
        if self._moment is None:
            return
        console = console_on(self._output)
        lines = text_for(Shown(self._moment, self._view), self._output).splitlines()
        # The headings stay where they are, if there is room for more than them.
        heading = next((i + 1 for i, line in enumerate(lines[:4]) if "\u2500" in line), 1)
        heading = min(heading, max(0, console.height - 2))
        has_end = self._keys is not None or len(lines) > console.height
        self._page = max(1, console.height - heading - has_end)
        rest = len(lines) - heading - self._page
        self._first = max(0, min(self._first, rest))
        there = lines[:heading] + lines[heading + self._first :][: self._page]
        below = max(0, rest - self._first)
        if self._keys is not None:
            there += [""] * (console.height - 1 - len(there))
            there.append(self._keys_line(below, console.width))
        elif has_end:
            there.append(f"... {below} more lines")
        _put(self._output, _frame(there))

    def _keys_line(self, below: int, width: int) -> str:
        if self._typing:
            return f"/{plain(self._view.text)}_  (Enter: done, Esc: all)"[:width]
        text = f" ({plain(self._view.text)})" * bool(self._view.text)
        told = [f"{below} more lines"] * (below > 0)
        told += ["q quit", f"s sort: {self._view.order}", f"/ filter{text}", "up/down scroll"]
        while len(line := ", ".join(told)) > width and len(told) > 1:
            del told[-1]
        return line

    def pause(self, until: float) -> bool:
        """Waits for that moment, and does what keys say. Whether one says to end."""
        while (left := until - time.monotonic()) > 0:
            if self._keys is None:
                time.sleep(left)
                return False
            try:
                pressed = self._keys.keys(left)
            except (EOFError, OSError):  # the terminal is gone, or was taken from us
                self._keys = None
                continue
            if any(self._press(key) for key in pressed):
                return True
            if pressed:
                self._draw()
        return False

    def _press(self, key: str) -> bool:
        if self._typing:
            self._type(key)
        elif key == "q":
            return True
        elif key == "s":
            self._view.sort_by_next()
        elif key == "/":
            self._typing = True
        elif key == "escape":
            self._view.text = ""
        else:
            self._first = self._scrolled(key)
        return False

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self._typing = False
            self._view.text *= key == "enter"
        elif key == "backspace":
            self._view.text = self._view.text[:-1]
        elif len(key) == 1 and key.isprintable():
            self._view.text += key
            self._first = 0

    def _scrolled(self, key: str) -> int:
        by = {"up": -1, "k": -1, "down": 1, "j": 1}
        by |= {"page up": -self._page, "page down": self._page, " ": self._page}
        if key == "home":
            return 0
        # Too far is put right when it is drawn.
        return sys.maxsize if key == "end" else self._first + by.get(key, 0)


def _is_screen(output: TextIO) -> bool:
    console = console_on(output)
    return console.is_terminal and not console.is_dumb_terminal


def _frame(lines: Sequence[str]) -> str:
    """The characters that replace what is on the screen by these lines."""
    return _HOME + "\n".join(line + _END_OF_LINE for line in lines) + _END


def _put(output: TextIO, text: str) -> None:
    """Writes without the file's buffer: a signal may come in the middle of a buffered write."""
    data = text.encode(output.encoding, "backslashreplace")
    while data:
        data = data[os.write(output.fileno(), data) :]


@contextmanager
def _closing(output: TextIO) -> Iterator[None]:
    """Closes the output. A reader that stops early (``head``) ends the command and is no error."""
    with suppress(BrokenPipeError), output:
        yield


@contextmanager
def _screen(output: TextIO, keys: Keyboard | None) -> Iterator[None]:
    """Takes a screen and the keyboard; gives them back at the end, however that comes, and while
    stopped (Ctrl-Z).
    """

    def enter() -> None:
        if keys is not None:
            keys.take()
        _put(output, _ENTER)

    def leave() -> None:
        if keys is not None:
            keys.release()
        _put(output, _LEAVE)

    def stop(number: int, frame: FrameType | None) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    before = signal.signal(signal.SIGTSTP, stop)
    try:
        with _ends_by_signal():
            try:
                enter()
                yield
            finally:
                with suppress(OSError):  # the terminal may be gone
                    leave()
    finally:
        signal.signal(signal.SIGTSTP, before)


@contextmanager
def _ends_by_signal() -> Iterator[None]:
    """Lets SIGTERM and SIGHUP raise an exception, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _EndedError(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- one moment -----------------------------------------------------------------------------------

_HEADINGS = (
    "registry",
    "state",
    "registrar",
    "members",
    "operators",
    "registered",
    "used",
    "free",
)
_FIGURES = ("changes/s", "waiting")
_MOST_WAITING = 8


@dataclass(frozen=True, slots=True)
class Moment:
    """The registries at a moment: ``at`` is its time on the monotonic clock, ``clock`` in seconds
    since 1970. ``before`` is the moment before.
    """

    registries: Sequence[Seen]
    at: float
    clock: float
    before: Moment | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.before is None else self.at - self.before.at

    def _earlier(self, seen: Seen) -> Seen | None:
        earlier = () if self.before is None else self.before.registries
        same = (other for other in earlier if other.identity == seen.identity)
        return next(same, None) if seen.readable else None

    def changes(self, seen: Seen) -> float | None:
        """Registrations and removals per second since the moment before."""
        earlier = self._earlier(seen)
        if earlier is None or not self.seconds:
            return None
        return max(0, seen.sequence - earlier.sequence) / self.seconds

    def recovered(self, seen: Seen) -> int | None:
        """How often a process cleaned up after a dead lock holder since the moment before."""
        earlier = self._earlier(seen)
        return None if earlier is None else seen.recoveries - earlier.recoveries

    # --- for machines

    def json(self) -> str:
        answer: answers.Top = {
            "format": 2,
            "time": round(self.clock, 3),
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "registries": [
                {
                    **seen_json(seen),
                    "changes_per_second": self.changes(seen),
                    "recovered": self.recovered(seen),
                }
                for seen in self.registries
            ],
        }
        return json.dumps(answer)

    # --- for people

    def show(self, console: Console) -> None:
        self.show_as(View(), console)

    def show_as(self, view: View, console: Console) -> None:
        fit(console, PAGE)
        say(console, self._head())
        shown = view.of(self)
        if shown:
            say(console)
            rows = [(self._cells(seen), _below(seen)) for seen in shown]
            say_figures(console, (*_HEADINGS, *_FIGURES), rows, left=2)

    def _head(self) -> Text:
        leftovers = sum(seen.is_leftover for seen in self.registries)
        number = len(self.registries) - leftovers
        text = styled(time.strftime("%H:%M:%S", time.localtime(self.clock)), style="bold")
        text.append(f"  {number} registr{'y' if number == 1 else 'ies'}", style="not bold")
        if leftovers:
            words = f", {leftovers} left over (mdispatch doctor --reap)"
            text.append(words, style="not bold yellow")
        return text

    def _cells(self, seen: Seen) -> tuple[Text, ...]:
        label = styled(plain(_short(seen)), style="bold")
        if not seen.readable:
            return (label, state_text(seen), *[styled("-", style="dim")] * 8)
        changes = self.changes(seen)
        rate = styled("-", style="dim") if changes is None else styled(f"{changes:.0f}")
        memory = _short_size(seen.used), _short_size(seen.free)
        figures = str(seen.operators), str(seen.facts), *memory
        waiting = styled(str(sum(member.threads for member in seen.waiting)))
        first = label, state_text(seen), main_text(seen), members_text(seen)
        return (*first, *map(styled, figures), rate, waiting)


class View:
    """Which registries are shown, and in which order: those that have this text, each order with
    what comes first in it.
    """

    _ORDERS = ("name", "changes", "wait", "members", "memory")

    def __init__(self) -> None:
        self.text = ""
        self.order = "name"

    def sort_by_next(self) -> None:
        orders = self._ORDERS
        self.order = orders[(orders.index(self.order) + 1) % len(orders)]

    def of(self, moment: Moment) -> list[Seen]:
        shown = [s for s in moment.registries if not s.is_leftover and self._has(s)]
        if self.order != "name":  # in which they come
            shown.sort(key=lambda seen: -self._figure(moment, seen))
        return shown

    def _has(self, seen: Seen) -> bool:
        words = [seen.label, *(str(member.pid) for member in seen.members)]
        words += [awaited(member) for member in seen.waiting]
        words += sections.words(seen)
        return any(self.text.casefold() in word.casefold() for word in words)

    def _figure(self, moment: Moment, seen: Seen) -> float:
        if self.order == "changes":
            return moment.changes(seen) or 0
        if self.order == "wait":
            return max((member.seconds for member in seen.waiting), default=-1)
        return len(seen.members) if self.order == "members" else seen.used


@dataclass(frozen=True, slots=True)
class Shown:
    """A moment as it is shown on a screen."""

    moment: Moment
    view: View

    def json(self) -> str:
        return self.moment.json()

    def show(self, console: Console) -> None:
        self.moment.show_as(self.view, console)


def _short(seen: Seen) -> str:
    """A label that fits into a column: an address without its last part, which makes it unique."""
    if seen.label.startswith("fd:"):
        return ":".join(seen.label.split(":")[:3])
    return seen.label


def _short_size(number: int) -> str:
    figure, _, unit = size(number).partition(" ")
    return f"{float(figure):.3g}{unit[0]}"


def _below(seen: Seen) -> list[tuple[str, Text]]:
    waiting = seen.waiting
    told = sections.lines(seen)
    told += [("waiting", waiting_text(member)) for member in waiting[:_MOST_WAITING]]
    if len(waiting) > _MOST_WAITING:
        told.append(("", styled(f"and {len(waiting) - _MOST_WAITING} more")))
    return told + [("!", alarm(sentence(text))) for text in problems(seen)]
