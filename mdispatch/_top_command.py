"""The command ``mdispatch top``: one look after the other, on a screen that it gives back."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ._asking import reason
from ._command import complain, standard_output, text_for
from ._doctor_command import Name, look
from ._top_show import Moment
from .errors import MdispatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import TextIO

__all__ = ["top"]

_DAY = 86400.0
# Another screen without a cursor, and back; the screen's beginning; what is left of a line, of it.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END = "\x1b[H", "\x1b[K", "\x1b[J"


class _EndedError(Exception):
    """A signal asks for the end."""


def _interval(value: float) -> float:
    if not 0.05 <= value <= _DAY:  # refuses NaN too
        raise typer.BadParameter(f"{value} is not a number of seconds from 0.05 to {_DAY:.0f}.")
    return value


def _count(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise typer.BadParameter(f"{value} is not a number from 1 on.")
    return value


def top(
    registry: Name = None,
    interval: Annotated[
        float, typer.Option(callback=_interval, help="Seconds between two looks.")
    ] = 1.0,
    count: Annotated[
        int | None, typer.Option(callback=_count, help="Looks; without it, until Ctrl-C.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines: keys in pydoc mdispatch._top_show.")
    ] = False,
) -> None:
    """Show the registries of this user live: who is alive, what is in them and how fast that
    changes, who waits for what.

    It looks from outside, as mdispatch doctor does, once a second: nothing in the registries is
    joined, locked or changed. On a terminal it redraws in place; elsewhere it prints one block
    after the other.

    \b
    Exit status:
      0    ended: by --count, by Ctrl-C, or because nobody reads on
      2    unusable arguments; no such registry
    """
    output = standard_output()
    try:
        before = _moment(registry, None)
        console = Console(file=output)
        on_screen = console.is_terminal and not console.is_dumb_terminal and not as_json
        with _closing(output), _screen(output) if on_screen else _ends_by_signal():
            _run(registry, interval, count, before, _writer(output, on_screen, as_json))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    except _EndedError as ended:
        raise typer.Exit(128 + ended.args[0]) from None
    except (MdispatchError, OSError) as error:
        complain(reason(error))
        raise typer.Exit(2) from None


def _moment(registry: str | None, before: Moment | None) -> Moment:
    try:
        found = look(registry)
    except MdispatchError:
        if before is None:
            raise
        found = []  # the one that was asked for is gone
    # Without its own past, which nobody asks for and which would grow with every look.
    return Moment(found, time.monotonic(), time.time(), before and _alone(before))


def _alone(moment: Moment) -> Moment:
    return Moment(moment.registries, moment.at, moment.clock)


def _run(
    registry: str | None,
    interval: float,
    count: int | None,
    moment: Moment,
    show: Callable[[Moment, bool], None],
) -> None:
    begun, looks = moment.at, 1
    while True:
        show(moment, looks == 1)
        if looks == count:
            return
        looks += 1
        # Looks come at whole intervals; those that it was too late for are left out.
        passed = time.monotonic() - begun
        time.sleep((passed // interval + 1) * interval - passed)
        moment = _moment(registry, moment)


# --- where it goes --------------------------------------------------------------------------------


def _writer(output: TextIO, on_screen: bool, as_json: bool) -> Callable[[Moment, bool], None]:
    def show(moment: Moment, first: bool) -> None:
        if as_json:
            output.write(moment.json() + "\n")
        elif on_screen:
            _put(output, _frame(text_for(moment, output), Console(file=output).height))
        else:
            output.write(("" if first else "\n") + text_for(moment, output))
        output.flush()

    return show


def _frame(text: str, height: int) -> str:
    """What puts a text in place of the one on the screen, as much of it as fits."""
    lines = text.splitlines()
    if len(lines) > height:
        lines[height - 1 :] = [f"... {len(lines) - height + 1} more lines"]
    return _HOME + "\n".join(line + _END_OF_LINE for line in lines) + _END


def _put(output: TextIO, text: str) -> None:
    """Writes past the file's buffer, which a signal may find in the middle of a write."""
    data = text.encode(output.encoding, "backslashreplace")
    while data:
        data = data[os.write(output.fileno(), data) :]


@contextmanager
def _closing(output: TextIO) -> Iterator[None]:
    """Who does not read on, as ``head``, ends it, and that is no error."""
    with suppress(BrokenPipeError), output:
        yield


@contextmanager
def _screen(output: TextIO) -> Iterator[None]:
    """A screen of our own, given back however it ends, and while we are stopped (Ctrl-Z)."""

    def stop(number: int, frame: FrameType | None) -> None:
        _put(output, _LEAVE)
        os.kill(os.getpid(), signal.SIGSTOP)
        _put(output, _ENTER)

    before = signal.signal(signal.SIGTSTP, stop)
    try:
        with _ends_by_signal():
            _put(output, _ENTER)
            try:
                yield
            finally:
                with suppress(OSError):  # the terminal may be gone
                    _put(output, _LEAVE)
    finally:
        signal.signal(signal.SIGTSTP, before)


@contextmanager
def _ends_by_signal() -> Iterator[None]:
    """SIGTERM and SIGHUP end it as Ctrl-C does: by an exception."""

    def end(number: int, frame: FrameType | None) -> None:
        raise _EndedError(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
