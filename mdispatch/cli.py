"""The command line: the commands together. Each is in a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from . import __version__
from ._explain_command import EPILOG, show, table, why
from ._stubs_command import EPILOG as STUBS_EPILOG
from ._stubs_command import stubs
from ._verify_command import verify

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(verify)
for _command in (table, show, why):
    app.command(epilog=EPILOG)(_command)
app.command(epilog=STUBS_EPILOG)(stubs)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mdispatch {__version__}")
        raise typer.Exit


@app.callback()
def _mdispatch(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """An operator registry and dispatcher for threads, sub-interpreters and processes."""
