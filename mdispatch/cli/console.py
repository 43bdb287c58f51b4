"""What the commands share: arguments, the import of operator modules, and writing the answer.

Standard output gets the answer and nothing else. Modules may print while they are imported, here,
in other interpreters or from C. Their output goes to standard error, because descriptor 1 is
redirected there until the answer is written.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import click
from click.exceptions import Exit

from ..facts.opening import ENVIRONMENT
from ..workers.warm_up import examine
from .columns import plain, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, TextIO, TypeVar

    from rich.console import Console

    from ..workers.warm_up import WarmUp

    F = TypeVar("F", bound=Callable[..., Any])


class Answer(Protocol):
    """The result of a command, which it can print in two ways."""

    def json(self) -> str: ...
    def show(self, console: Console) -> None: ...


def standard_output() -> TextIO:
    """Takes standard output for the answer. From here on, descriptor 1 is standard error."""
    if sys.stdout is None:  # the parent closed it: nobody wants the answer
        return open(os.devnull, "w")
    sys.stdout.flush()
    answer = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    os.dup2(2, 1)
    return answer


def write(answer: Answer, file: TextIO, as_json: bool) -> None:
    """Writes the answer as text or JSON and closes the file. A reader that stops early (``head``)
    is not an error.
    """
    write_text(answer.json() + "\n" if as_json else text_for(answer, file), file)


def write_text(text: str, file: TextIO) -> None:
    """The same for an answer that is a text already."""
    with suppress(BrokenPipeError), file:
        file.write(text)


def replace_file(path: str, text: str) -> None:
    """Replaces a file in one step: a process that reads it sees the old file or the new one. Errors
    name this file, and not the one beside it into which the text is written first.
    """
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, path) from None
        raise


def text_for(answer: Answer, file: TextIO) -> str:
    """The text for people, as wide as the file's terminal. No line ends in blanks."""
    console = console_on(file)
    with console.capture() as shown:
        answer.show(console)
    return re.sub(r" +(\x1b\[0m)? *$", r"\1", shown.get(), flags=re.M)


def console_on(file: TextIO) -> Console:
    """A console that prints to this file. rich is imported here, since JSON does not need it."""
    from rich.console import Console

    return Console(file=file, markup=False, emoji=False, highlight=False)


def json_option(command: str, what: str = "JSON") -> Callable[[F], F]:
    """The option ``--json`` of a command; the documentation lists its keys under that name."""
    told = f"Print {what}: docs/command-line.md lists the keys, under 'JSON of {command}'."
    return click.option("as_json", "--json", is_flag=True, help=told)


def tell_written(path: str, what: str = "") -> None:
    """Tells on standard error that a file was written: what is in it, and its size."""
    with suppress(OSError):  # a pipe may be gone already
        told = [what] if what else []
        _tell(f"wrote {path}: {', '.join([*told, size(os.stat(path).st_size)])}\n")


def complain(message: str) -> None:
    """Prints on standard error why there is no answer. The message may hold any characters."""
    _tell(f"mdispatch: {message}\n")


def _tell(text: str) -> None:
    if sys.stderr is not None:  # the parent closed it
        sys.stderr.write("\n".join(map(plain, text.split("\n"))))


def module_names(
    context: click.Context, parameter: click.Parameter, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Checks the names of modules, and keeps each name once."""
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            hint = ""
            if name.endswith(".py"):
                stem = os.path.normpath(name.removesuffix(".py")).strip(os.sep)
                hint = f" Is it {stem.replace(os.sep, '.')!r}?"
            raise click.BadParameter(f"{name!r} is not the name of a module.{hint}")
    return tuple(dict.fromkeys(names))


def import_in_main(
    modules: Sequence[str],
    timeout: float | None = None,
    first: Callable[[], object] | None = None,
    groups: Sequence[str] = (),
) -> WarmUp:
    """Imports the modules, and those of the groups of entry points, which register in this
    process's default registry, after ``first``. Ends the command when a module does not exist or
    fails.
    """
    os.environ.pop(ENVIRONMENT, None)  # this command does not join its parent's registry
    here = search_here()
    try:
        if first is not None:
            first()
        return examine(modules, entry_points=groups, timeout=timeout)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and any(f"{name}.".startswith(f"{missing}.") for name in modules):
            message = f"{error}. Searched: the current directory ({here or 'gone'}) and sys.path."
        else:
            _print_traceback(error)
            message = (
                f"{', '.join((*modules, *groups))}: the import in the main interpreter failed."
            )
    complain(message)
    raise Exit(2)


def search_here() -> str:
    """Has modules searched for in the current directory, as by python -m. Returns it; "" when it
    was removed.
    """
    here = ""
    with suppress(FileNotFoundError):
        here = os.getcwd()
    if here and not sys.flags.safe_path and here not in sys.path:
        sys.path.insert(0, here)
    return here


def _print_traceback(error: BaseException) -> None:
    """Prints a traceback that begins in the module: the frames that lead there are left out."""
    shown = traceback.TracebackException.from_exception(error)
    folders = (
        os.path.dirname(os.path.dirname(__file__)),
        os.path.dirname(importlib.__file__),
        "<frozen importlib",
    )
    while shown.stack and shown.stack[0].filename.startswith(folders):
        del shown.stack[0]
    _tell("".join(shown.format()))


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows on a terminal how many workers are done. Yields a function that counts one more."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_dumb_terminal:
        yield lambda: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda: shown.advance(task)
