"""The command line: the commands together. Each is in a module of its own."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from . import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["app_for"]

#: Of each command the module, in the order of the help.
MODULES = {
    "verify": "_verify_command",
    "ls": "_ls_command",
    "table": "_explain_command",
    "show": "_explain_command",
    "why": "_explain_command",
    "stubs": "_stubs_command",
    "report": "_report_command",
    "doctor": "_doctor_command",
    "top": "_top_command",
    "bench": "_bench_command",
    "stress": "_stress_command",
}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mdispatch {__version__}")
        raise typer.Exit


def _mdispatch(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """An operator registry and dispatcher for threads, sub-interpreters and processes."""


def app_for(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line; where the arguments begin with a command's name, of that command alone.
    Most answer in less time than it takes to import the others.
    """
    app = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_mdispatch)
    first = arguments[0] if arguments else ""
    for name in [first] if first in MODULES else MODULES:
        module = import_module(f".{MODULES[name]}", __package__)
        app.command(epilog=getattr(module, "EPILOG", None))(getattr(module, name))
    return app
