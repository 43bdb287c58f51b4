"""The command ``mdispatch stubs``: where it looks, where its answer goes, and its exit status.

The JSON is one object; its keys are stable (new ones may come).

    format          1
    mdispatch       version
    registry        its address
    modules         names, as given
    operators       names, sorted
    file            as given to --output, or null
    stub            the text of the stub
"""

from __future__ import annotations

import json
import shlex
from typing import Annotated

import typer

from . import __version__
from ._asking import Attach, answering, opened
from ._command import complain, module_names, replace_file, standard_output, write_text
from ._stubs import stub_text

__all__ = ["EPILOG", "stubs"]

#: What the help ends with.
EPILOG = """\
Give your project a module ops.py of these two lines, and the stub beside it:

\b
  import MODULE
  from mdispatch import ops

\b
  mdispatch stubs MODULE -o ops.pyi

Code that says "from ops import ops" and calls ops.namespace.name(...) is then checked.

\b
Exit status:
  0    answered
  1    there are no operators
  2    unusable arguments; no such module, or one that fails; no such registry, or one whose main
       process is dead; the file could not be written
  130  interrupted
"""


def stubs(
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODULE", callback=module_names, help="Modules that register operators."
        ),
    ] = None,
    registry: Attach = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: keys in pydoc mdispatch._stubs_command.")
    ] = False,
) -> None:
    """Print a stub for type checkers: the operators of these modules, or of a registry in a process
    that is running, with the types of their schemas.
    """
    if bool(modules) == (registry is not None):
        raise typer.BadParameter(
            "give the modules that register the operators, which are imported here, or --registry "
            "NAME for those of a process that is running; not both."
        )
    answer = standard_output()
    command = shlex.join(
        ["mdispatch", "stubs", *(modules or ()), *(["--registry", registry] if registry else ())]
    )
    with answering():
        with opened(modules, registry) as source:
            names = sorted(source.operators())
            if not names:
                complain(
                    f"{', '.join(modules or ())}: no operators are defined there"
                    if modules
                    else f"registry {registry}: no operators are defined in it"
                )
                raise typer.Exit(1)
            text = stub_text(source, command, modules or ())
            address = source.address
        try:
            if output is not None:
                replace_file(output, text)
            if as_json:
                told = {
                    "format": 1,
                    "mdispatch": __version__,
                    "registry": address,
                    "modules": modules or [],
                    "operators": names,
                    "file": output,
                    "stub": text,
                }
                text = json.dumps(told, indent=2) + "\n"
            if as_json or output is None:
                write_text(text, answer)
        except OSError as error:
            complain(f"the stub could not be written: {error}")
            raise typer.Exit(2) from None
