"""The command ``mdispatch ls``: what it is asked, and which operators that means."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from ._asking import WHERE, Attach, Imports, answering, keys_like, opened
from ._catalogue import catalogue
from ._command import complain, standard_output, write
from ._keys import parse_key
from ._ls_show import Listing
from ._nearest import nearest, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ._catalogue import Catalogue, Operator

__all__ = ["EPILOG", "chosen", "ls"]

#: What the help ends with.
EPILOG = f"""\
{WHERE}
\b
Exit status:
  0    answered
  1    there is no such operator: the nearest names are told; or none at all
  2    unusable arguments, also a key that does not exist; no such module, or one that fails;
       no such registry, or one whose main process is dead; the answer could not be written
  130  interrupted
"""


def ls(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN",
            help="Only these: a namespace, a name with or without one, or with * ? [...].",
        ),
    ] = None,
    modules: Imports = None,
    registry: Attach = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            metavar="KEY",
            autocompletion=keys_like,
            help="Only those with a kernel at just this key (repeatable: at any of them).",
        ),
    ] = None,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Only those with this tag (repeatable: any)."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TEXT", help="Only those with a registration whose place has this text."
        ),
    ] = None,
    dangling: Annotated[
        bool, typer.Option("--dangling", help="Only those with kernels and no definition.")
    ] = False,
    schemas: Annotated[
        bool, typer.Option("--schemas", help="Print schemas in place of the names.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: keys in pydoc mdispatch._ls_show.")
    ] = False,
) -> None:
    """List operators: the name and the overload of each, the keys at which it has kernels, and
    where it is defined. A number after a key says how many there are.
    """
    output = standard_output()
    with answering():
        wanted = {parse_key(key).name for key in keys or ()}
        with opened(modules, registry) as source:
            found = catalogue(source)
        unknown = [each for each in patterns or () if not chosen(found, [each])]
        listed = chosen(found, patterns or ("*",), wanted, tags or (), at, dangling)
        if unknown or not listed:
            complain(_nothing(found, unknown, modules or ()))
            raise typer.Exit(1)
        write(Listing(found.registry, listed, found.fallbacks, schemas), output, as_json)


def chosen(
    found: Catalogue,
    patterns: Iterable[str],
    keys: Collection[str] = (),
    tags: Collection[str] = (),
    at: str | None = None,
    dangling: bool = False,
) -> list[Operator]:
    """The operators that fit one of the patterns, have one of the keys and one of the tags, where
    there are any, and a place with this text.
    """
    return [
        each
        for each in found.operators
        if any(fnmatchcase(name, pattern) for name in _names(each) for pattern in patterns)
        and (not keys or any(kernel.key in keys for kernel in each.kernels))
        and (not tags or any(tag in tags for tag in _tags(each)))
        and (at is None or any(at in fact.where for fact in each.there))
        and (each.dangling or not dangling)
    ]


def _tags(operator: Operator) -> tuple[str, ...]:
    return () if operator.definition is None else operator.definition.tags


def _names(operator: Operator) -> tuple[str, ...]:
    """What an operator may be called."""
    short = operator.name.partition("::")[2]
    base = short.partition(".")[0]
    return operator.name, operator.base, short, base, operator.namespace


def _nothing(found: Catalogue, unknown: Sequence[str], modules: Sequence[str]) -> str:
    """Why there is nothing to list, or not all that was asked for."""
    if not found.operators:
        whose = ", ".join(modules) or f"registry {found.registry}"
        return f"{whose}: there are no operators"
    if not unknown:
        return (
            f"none of {len(found.operators)} operators has all that was asked for: leave out an "
            "option"
        )
    names = {name: _names(each)[0] for each in found.operators for name in _names(each)[:-1]}
    names |= {space: space for space in found.namespaces}
    near = [names[name] for pattern in unknown for name in nearest(pattern, names)]
    if near:
        hint = f"did you mean {', '.join(dict.fromkeys(near))}?"
    else:
        hint = f"there are operators in {', '.join(found.namespaces[:8])}"
    return f"no operator fits {', '.join(map(shown, unknown))}; {hint}"
