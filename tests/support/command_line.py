"""Runs the command line, for tests of what it says.

``mdispatch`` and ``on_terminal`` run a command in the tests' own process: what is asked are its
words, the width of its lines, its JSON and its exit status, and no Python needs to start for them.
With ``process`` they run it as users do, in a process of its own: where that is the point
(descriptor 1, signals, what is loaded, the command's own pid), and once for each command.

In the tests' process a command has real files as descriptors 0 to 2, and ``sys.stdin`` to
``sys.stderr`` on them. click's CliRunner cannot take this part: it gives a command a standard
output without a descriptor, where what a module prints could not be told from the answer, and no
terminal. All else that a command finds or changes is as in a new Python, and is put back:
see ``_new_start``.
"""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import importlib
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import IO, Any
from unittest import mock

from commands import environment
from known_types import types_as_before
from patience import limit
from tiers import only_with_keyword

import mdispatch as md
from mdispatch.__main__ import main
from mdispatch.dispatch.context import values
from mdispatch.dispatch.own_types import own_types
from mdispatch.facts.backing import BackingRegistry
from mdispatch.facts.opening import DEFAULT_CAPACITY, ENVIRONMENT
from mdispatch.registry import registry, type_facts

_COMMAND = [sys.executable, "-m", "mdispatch"]


@only_with_keyword
def mdispatch(
    *arguments: str,
    cwd: Path | None = None,
    stdout: IO[str] | None = None,
    process: bool = False,
    **changes: str,
) -> CompletedProcess[str]:
    """Runs ``mdispatch`` with these arguments in the folder ``cwd``. ``changes`` change the
    environment. With ``stdout`` the answer goes to that file.
    """
    if process:
        return subprocess.run(
            [*_COMMAND, *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout or subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**changes),
            timeout=limit(110),
        )
    with (
        open(os.devnull) as nothing,
        tempfile.TemporaryFile("w+") as answer,
        tempfile.TemporaryFile("w+") as complaints,
    ):
        with _new_start(cwd, changes), _descriptors(nothing, stdout or answer, complaints):
            status = _status(arguments)
        return CompletedProcess(arguments, status, _text(answer), _text(complaints))


@only_with_keyword
def on_terminal(
    *arguments: str,
    columns: int = 80,
    cwd: Path | None = None,
    apart: bool = False,
    process: bool = False,
    **changes: str,
) -> CompletedProcess[str]:
    """The same on a terminal of its own; ``stdout`` is what the terminal showed.

    With ``apart`` the command's errors are not shown on the terminal but are in ``stderr``.
    """
    changes = {"TERM": "xterm-256color", **changes}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown = bytearray()
    reader = threading.Thread(target=_read, args=(ours, shown))
    reader.start()
    with os.fdopen(theirs, "wb", 0) as terminal, tempfile.TemporaryFile("w+") as complaints:
        errors = complaints if apart else terminal
        if process:
            status = subprocess.run(
                [*_COMMAND, *arguments],
                cwd=cwd,
                stdin=terminal,
                stdout=terminal,
                stderr=errors,
                env=environment(**changes),
                timeout=limit(110),
            ).returncode
        else:
            with _new_start(cwd, changes), _descriptors(terminal, terminal, errors):
                status = _status(arguments)
        told = _text(complaints)
    reader.join()
    os.close(ours)
    return CompletedProcess(arguments, status, shown.decode().replace("\r\n", "\n"), told)


def without_style(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _read(terminal: int, shown: bytearray) -> None:
    with suppress(OSError):  # a terminal's answer when no process has it open any more
        while data := os.read(terminal, 65536):
            shown += data


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


# --- in this process ------------------------------------------------------------------------------


def _status(arguments: tuple[str, ...]) -> int:
    with mock.patch.object(sys, "argv", ["mdispatch", *arguments]):
        try:
            main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0


@contextmanager
def _descriptors(*files: IO[Any]) -> Iterator[None]:
    """Puts these three files in the place of standard input, output and error."""
    names = ("stdin", "stdout", "stderr")
    kept = [getattr(sys, name) for name in names]
    _flush()
    saved = [os.dup(number) for number in range(3)]
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
        yield
    finally:
        _flush()
        for name, stream in zip(names, kept, strict=True):
            getattr(sys, name).close()
            setattr(sys, name, stream)
        for number, copy in enumerate(saved):
            os.dup2(copy, number)
            os.close(copy)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


@contextmanager
def _new_start(cwd: Path | None, changes: dict[str, str]) -> Iterator[None]:
    """What a command finds, and what it may change: the folder, the environment, the modules and
    where they are searched for, the filters of warnings, the handlers of signals, the default
    registry, and the types of values. Afterwards all of it is as it was before.
    """
    folder = os.getcwd()
    modules, path = set(sys.modules), list(sys.path)
    handlers = {each: signal.getsignal(each) for each in _HANDLED}
    with (
        mock.patch.dict(os.environ, environment(**changes), clear=True),
        mock.patch.object(registry, "default", None),
        mock.patch.object(registry, "_is_asked_for", False),
        # Not Registry.default, which finds the one that a test may have opened in this process.
        mock.patch.object(registry, "_default_backing", _new_default),
        # Registries of the test do not hear of types that a command's modules register, and the
        # command does not hear of the test's.
        mock.patch.object(type_facts, "_in_use", []),
        types_as_before() as types,
        mock.patch.object(own_types, "each", _all_but(types)),
        mock.patch.object(faulthandler, "enable"),
        mock.patch.object(os, "_exit", side_effect=AssertionError("it ends the process: process=")),
        warnings.catch_warnings(),
    ):
        _usual_warnings()
        vars(md.ops).clear()
        os.chdir(cwd or folder)
        importlib.invalidate_caches()  # the folder may have new modules
        gc.freeze()  # the collection below is of what the command has made
        try:
            yield
        finally:
            if registry.default is not None:
                registry.default.close()
            vars(md.ops).clear()
            for name in set(sys.modules) - modules:
                if _is_of_folder(name, os.fspath(cwd or folder)):
                    del sys.modules[name]
            sys.path[:] = path
            for each, handler in handlers.items():
                signal.signal(each, handler)
            os.chdir(folder)
            # A command that ends early leaves its answer open, as a process may.
            gc.collect()


#: The signals that a command handles.
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)


def _all_but(known: Container[type]) -> Callable[[Callable[[type, Any], object]], None]:
    def each(tell: Callable[[type, Any], object]) -> None:
        values._types.each(lambda cls, oldest: cls in known or tell(cls, oldest))

    return each


def _new_default() -> BackingRegistry:
    registry = BackingRegistry.create(None, DEFAULT_CAPACITY)
    os.environ[ENVIRONMENT] = registry.label
    return registry


def _usual_warnings() -> None:
    """As in a Python without options, also for what is written about them."""

    def show(*warning: Any, **more: Any) -> None:
        sys.stderr.write(warnings.formatwarning(*warning[:4]))

    warnings.resetwarnings()
    for each in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", each)
    warnings.showwarning = show


def _is_of_folder(name: str, folder: str) -> bool:
    """Whether a module was found in this folder. mdispatch itself stays, whose sources may be
    there.
    """
    module = sys.modules[name]
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    base = os.path.join(folder, *name.split("."))
    return not f"{name}.".startswith("mdispatch.") and not {
        f"{base}.py",
        base,
        os.path.join(base, "__init__.py"),
    }.isdisjoint(places)
