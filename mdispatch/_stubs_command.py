"""The command ``mdispatch stubs``: where it looks, where its answer goes, and its exit status."""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from ._command import complain, import_in_main, module_names, standard_output
from ._stubs import stub_text
from .errors import MdispatchError
from .registry import Registry, default_registry

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TextIO

__all__ = ["EPILOG", "stubs"]

_PATIENCE = 0.5  # seconds in which a registry has to appear

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
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry", metavar="NAME", help="Look into this registry: name or address."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout."),
    ] = None,
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
    try:
        with _opened(modules, registry) as source:
            if not source.operators():
                complain(
                    f"{', '.join(modules or ())}: no operators are defined there"
                    if modules
                    else f"registry {registry}: no operators are defined in it"
                )
                raise typer.Exit(1)
            text = stub_text(source, command, modules or ())
        _write(text, answer, output)
    except MdispatchError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    except OSError as error:
        complain(f"the stub could not be written: {error}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _opened(modules: list[str] | None, registry: str | None) -> AbstractContextManager[Registry]:
    """The registry to look into: this process's own, or one that is left afterwards."""
    if registry is not None:
        return Registry.attach(registry, timeout=_PATIENCE)
    import_in_main(modules or ())
    return nullcontext(default_registry())


def _write(text: str, answer: TextIO, output: str | None) -> None:
    """To the file in one step: a type checker that looks meanwhile sees the old one or the new one.
    Who does not read standard output to its end, as ``head``, is no error.
    """
    if output is None:
        with suppress(BrokenPipeError), answer:
            answer.write(text)
        return
    part = f"{output}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, output)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
