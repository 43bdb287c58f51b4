"""What the commands share: arguments, the import of operator modules, and where the answer goes.

Standard output gets the answer and nothing else. What modules print while they are imported, here,
in other interpreters or from C, goes to standard error: descriptor 1 is turned there meanwhile.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

import typer
from rich.console import Console

from ._columns import plain
from ._registry.shared import ENVIRONMENT
from .warming import examine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from .warming import WarmUp

__all__ = ["Answer", "complain", "import_in_main", "module_names", "progress", "replace_file"]
__all__ += ["standard_output", "text_for", "write", "write_text"]


class Answer(Protocol):
    """What a command has found out."""

    def json(self) -> str: ...
    def show(self, console: Console) -> None: ...


def standard_output() -> TextIO:
    """What standard output is now. From here on, descriptor 1 is standard error."""
    if sys.stdout is None:  # closed by whoever started us: nobody wants the answer
        return open(os.devnull, "w")
    sys.stdout.flush()
    answer = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="backslashreplace")
    os.dup2(2, 1)
    return answer


def write(answer: Answer, file: TextIO, as_json: bool) -> None:
    """The answer, for machines or for people, and the end of the file. Who does not read on, as
    ``head``, is no error.
    """
    write_text(answer.json() + "\n" if as_json else text_for(answer, file), file)


def write_text(text: str, file: TextIO) -> None:
    """The same of an answer that is a text already."""
    with suppress(BrokenPipeError), file:
        file.write(text)


def replace_file(path: str, text: str) -> None:
    """Puts a file in place in one step: who reads it meanwhile has the old one or the new one."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def text_for(answer: Answer, file: TextIO) -> str:
    """The text for people, as it fits where it goes."""
    console = Console(file=file, markup=False, emoji=False, highlight=False)
    with console.capture() as shown:
        answer.show(console)
    return shown.get()


def complain(message: str) -> None:
    """Tells on standard error why there is no answer, by texts from anywhere."""
    _tell(f"mdispatch: {message}\n")


def _tell(text: str) -> None:
    if sys.stderr is not None:  # closed by whoever started us
        sys.stderr.write("\n".join(map(plain, text.split("\n"))))


def module_names(names: list[str] | None) -> list[str]:
    """Checks names of modules; each once."""
    for name in names or ():
        if not all(part.isidentifier() for part in name.split(".")):
            hint = ""
            if name.endswith(".py"):
                stem = os.path.normpath(name.removesuffix(".py")).strip(os.sep)
                hint = f" Is it {stem.replace(os.sep, '.')!r}?"
            raise typer.BadParameter(f"{name!r} is not the name of a module.{hint}")
    return list(dict.fromkeys(names or ()))


def import_in_main(modules: Sequence[str], timeout: float | None = None) -> WarmUp:
    """Registers the modules in the default registry, which is this process's own. Ends the command
    where one is not there, or fails.
    """
    os.environ.pop(ENVIRONMENT, None)  # the registry of a parent is none of this command's
    here = _current_directory()
    if here and not sys.flags.safe_path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        return examine(modules, timeout=timeout)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and any(f"{name}.".startswith(f"{missing}.") for name in modules):
            message = f"{error}. Searched: the current directory ({here or 'gone'}) and sys.path."
        else:
            _print_traceback(error)
            message = f"{', '.join(modules)}: the import in the main interpreter failed."
    complain(message)
    raise typer.Exit(2)


def _current_directory() -> str:
    """Where we are; "" where that was removed."""
    with suppress(FileNotFoundError):
        return os.getcwd()
    return ""


def _print_traceback(error: BaseException) -> None:
    """Without the frames that lead from here to the module."""
    shown = traceback.TracebackException.from_exception(error)
    folders = (os.path.dirname(__file__), os.path.dirname(importlib.__file__), "<frozen importlib")
    while shown.stack and shown.stack[0].filename.startswith(folders):
        del shown.stack[0]
    _tell("".join(shown.format()))


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Shows how many workers are done, where someone may be looking. Yields what counts one."""
    console = Console(stderr=True)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
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
