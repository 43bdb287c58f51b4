"""Runs commands on a terminal of their own, for tests of what people see there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

from commands import environment


def on_terminal(
    *arguments: str,
    columns: int = 80,
    cwd: Path | None = None,
    apart: bool = False,
    **changes: str,
) -> subprocess.CompletedProcess[str]:
    """Runs ``mdispatch`` with these arguments; ``stdout`` is what the terminal showed.

    With ``apart`` the command's errors are not shown on the terminal but are in ``stderr``.
    ``changes`` change the environment.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "mdispatch", *arguments],
        cwd=cwd,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE if apart else theirs,
        env=environment(TERM="xterm-256color", **changes),
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:
            pass  # a terminal's answer when no process has it open any more
        os.close(ours)
        complaints = process.stderr.read() if process.stderr else b""
    text = shown.decode().replace("\r\n", "\n")
    return subprocess.CompletedProcess(arguments, process.returncode, text, complaints.decode())


def without_style(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
