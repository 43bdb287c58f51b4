"""Keys of a terminal, one by one: ``mdispatch top`` reads them between two looks."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: By what a terminal sends: the names of the keys that are not characters.
_NAMES = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
}
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.S)


def keyboard() -> Keyboard | None:
    """The keyboard of this process; None if its standard input is no terminal, or belongs to
    another job of the shell.
    """
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    descriptor = sys.stdin.fileno()
    # Not our controlling terminal: no shell shares it among jobs.
    with suppress(OSError):
        # To change the terminal's mode from the background would stop this process.
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return None
    return Keyboard(descriptor)


class Keyboard:
    """A terminal that gives each key at once and does not show it, from ``take`` to ``release``.
    Ctrl-C and Ctrl-Z stay signals.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[Any] | None = None

    def take(self) -> None:
        with suppress(termios.error):  # the terminal may be gone
            self._before = termios.tcgetattr(self._descriptor)
            mode = termios.tcgetattr(self._descriptor)
            mode[3] &= ~(termios.ICANON | termios.ECHO)
            termios.tcsetattr(self._descriptor, termios.TCSANOW, mode)

    def release(self) -> None:
        if self._before is not None:
            with suppress(termios.error):
                # Not after what was written has gone out: nobody may read it any more.
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._before)
            self._before = None

    def keys(self, seconds: float) -> list[str]:
        """The keys that were pressed, once there are some; [] when there were none so long. A key
        is a character or one of the names above.
        """
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return []
        data = os.read(self._descriptor, 1024)
        if not data:
            raise EOFError("the terminal is gone")
        text = data.decode("utf-8", "ignore")
        return [_NAMES.get(key, key) for key in _KEY.findall(text)]
