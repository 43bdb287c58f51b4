"""The command ``mdispatch report``: which registry, what is looked at, and where the page goes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

from ._asking import WHERE, Attach, Imports, answering, opened
from ._catalogue import catalogue
from ._command import complain, replace_file, standard_output, write_text
from ._inspecting import look_at
from ._report import Report
from ._report_page import page

if TYPE_CHECKING:
    from ._inspecting import Seen

__all__ = ["EPILOG", "report"]

#: What the help ends with.
EPILOG = f"""\
{WHERE}
\b
Exit status:
  0    written
  2    unusable arguments; no such module, or one that fails; no such registry, or one whose main
       process is dead; the page could not be written
  130  interrupted
"""


def report(
    file: Annotated[
        str | None, typer.Argument(metavar="FILE", help="The page, as report.html.")
    ] = None,
    modules: Imports = None,
    registry: Attach = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print JSON, with or without a page: keys in pydoc mdispatch._report."
        ),
    ] = False,
) -> None:
    """Write a registry as one page: operators with their schemas, kernels and dispatch tables, the
    reason of each entry, who registered what and where, and the members.

    The page is one file that needs nothing else: no network, and JavaScript for the search only. It
    is put in place when it is whole.
    """
    if file is None and not as_json:
        raise typer.BadParameter("say where the page goes, as report.html, or ask for --json.")
    if file is not None and not os.path.isdir(os.path.dirname(file) or "."):
        raise typer.BadParameter(f"there is no folder {os.path.dirname(file)!r} for the page.")
    output = standard_output()
    with answering():
        with opened(modules, registry) as source:
            found = catalogue(source)
            seen = _seen(found.registry, registry)
        made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        told = Report(found, seen, made, modules or (), 0 if modules else os.getpid())
        if file is not None:
            _write(file, page(told))
        if as_json:
            write_text(told.json(file) + "\n", output)


def _seen(address: str, asked: str | None) -> Seen | None:
    """How the registry looks from outside, if that can be had."""
    name = address.removeprefix("shm:") if address.startswith("shm:") else None
    seen = look_at(address, name)
    return seen if seen.readable else None


def _write(file: str, text: str) -> None:
    try:
        replace_file(file, text)
    except OSError as error:
        complain(f"the page could not be written: {error}")
        raise typer.Exit(2) from None
