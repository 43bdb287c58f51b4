"""The command ``mdispatch doctor``: its arguments, what it does, and its exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ._asking import reason, registries_like
from ._command import complain, standard_output, write
from ._doctor import check, reap
from ._doctor_show import Diagnosis
from ._finding import find_one, find_registries, folder_error
from .errors import MdispatchError

if TYPE_CHECKING:
    from ._inspecting import Seen

__all__ = ["Name", "diagnose", "doctor", "look"]

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="REGISTRY",
        autocompletion=registries_like,
        help="Only this one: its name or address.",
    ),
]


def look(registry: str | None) -> list[Seen]:
    """All registries, or the one that was asked for."""
    return find_registries() if registry is None else [find_one(registry)]


def diagnose(registry: str | None = None, reaps: bool = False, checks: bool = False) -> Diagnosis:
    """Looks and, if that is wanted, reaps before and checks after."""
    found = look(registry)
    reaped = None
    if reaps:
        reaped = reap(found)
        gone = {each.name for each in reaped if each.removed}
        found = [seen for seen in found if not (seen.is_file and seen.name in gone)]
    checked = None
    if checks:
        asked = ((seen.address, check(seen)) for seen in found)
        checked = {address: result for address, result in asked if result is not None}
    return Diagnosis(found, checked, reaped, folder_error() if registry is None else None)


def doctor(
    registry: Name = None,
    reaps: Annotated[
        bool, typer.Option("--reap", help="Remove those that nobody uses any more.")
    ] = False,
    checks: Annotated[
        bool, typer.Option("--check", help="Recompute the invariants of those that live.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: keys in pydoc mdispatch._doctor_show.")
    ] = False,
) -> None:
    """List the registries of this user: who is alive, what is in them, who waits for what, and what
    is wrong.

    Looking joins nothing, takes no lock and changes nothing; a registry whose main process is dead
    or whose lock is held by a stopped one is shown all the same.

    --reap removes the files of registries whose processes are all dead. Whether somebody of a
    damaged one, or of one of another version, boot or PID namespace, is alive cannot be told by
    its members: it is removed only if no process has it open. What is no registry is left alone.

    --check takes each live registry's lock for a moment, as every registration does; it joins
    nothing, and waits at most 10 seconds for a lock.

    \b
    Exit status:
      0    nothing is wrong (after --reap: any more)
      1    something needs attention: a dead main member, others that died without leaving, a file
           left over, a stopped process, damage, a file that cannot be read; lines with ! say what
      2    unusable arguments; no such registry
      130  interrupted
    """
    output = standard_output()
    try:
        found_out = diagnose(registry, reaps, checks)
        write(found_out, output, as_json)
    except (MdispatchError, OSError) as error:
        complain(reason(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(1 if found_out.needs_attention else 0)
