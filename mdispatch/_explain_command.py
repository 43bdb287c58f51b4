"""The commands ``mdispatch table``, ``show`` and ``why``: what each is asked, and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import _explain
from . import _registry as facts
from ._asking import WHERE, Attach, Imports, answering, keys_like, opened
from ._command import standard_output, write
from ._explain_show import Registrations, Slots, Way
from ._explain_subject import Subject
from ._explanation import listed
from ._keys import TABLE_INDEX, parse_key
from ._schema_names import OperatorName
from .errors import InvalidKeyError, MdispatchError
from .guards import DEFAULT_EXCLUDED, DEFAULT_INCLUDED
from .keys import DispatchKeySet, functionality_to_backend_keys, runtime_keys

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._command import Answer
    from ._keys import DispatchKey
    from .registry import Registry

__all__ = ["EPILOG", "show", "table", "why"]

#: What the help of each of these commands ends with.
EPILOG = f"""\
{WHERE}
\b
Exit status:
  0    answered
  1    there is no such operator: the nearest names are told
  2    unusable arguments, also a key that does not exist; no such module, or one that fails;
       no such registry, or one whose main process is dead; the answer could not be written
  130  interrupted
"""


def _operator(text: str) -> str:
    """The operator's full name. The overload without a name may be called default, as in ops."""
    try:
        return str(OperatorName.parse(text.removesuffix(".default")))
    except MdispatchError as error:
        raise typer.BadParameter(f"{error}.") from None


Op = Annotated[
    str, typer.Argument(metavar="OP", callback=_operator, help="ns::name or ns::name.overload.")
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON: keys in pydoc mdispatch._explain_show.")
]


def table(
    op: Op,
    modules: Imports = None,
    registry: Attach = None,
    keys: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="KEY", autocompletion=keys_like, help="Only this key (repeatable)."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also the keys that have nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the dispatch table of an operator: what runs at each key, by which rule, and where that
    was registered.
    """

    def answer(source: Registry, subject: Subject) -> Answer:
        wanted = [_slot(key) for key in keys or ()]
        return Slots(subject, _explain.table_rows(source, op), wanted, everything)

    _run(op, modules, registry, as_json, answer)


def show(op: Op, modules: Imports = None, registry: Attach = None, as_json: Json = False) -> None:
    """Print what is registered for an operator: its definition, its kernels at keys and alias keys,
    and the place of each.
    """

    def answer(source: Registry, subject: Subject) -> Answer:
        base = OperatorName.parse(op).qualified
        names = [OperatorName.parse(name) for name in source.operators()]
        return Registrations(subject, [str(name) for name in names if name.qualified == base])

    _run(op, modules, registry, as_json, answer)


def why(
    op: Op,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY", autocompletion=keys_like, help="Keys that arguments carry."),
    ] = None,
    modules: Imports = None,
    registry: Attach = None,
    as_json: Json = False,
) -> None:
    """Print how a call whose arguments carry these keys, or none, comes to its kernel.

    What a thread adds to the keys and takes away is taken as it is when a thread begins.
    """

    def answer(source: Registry, subject: Subject) -> Answer:
        asked = [_carried(key) for key in keys or ()]
        found = _explain.why(
            source,
            op,
            DispatchKeySet(asked),
            included=DEFAULT_INCLUDED,
            excluded=DEFAULT_EXCLUDED,
        )
        return Way(subject, asked, found)

    _run(op, modules, registry, as_json, answer)


def _slot(text: str) -> DispatchKey:
    key = parse_key(text)
    if key not in TABLE_INDEX:
        keys = runtime_keys(key) if key.is_alias else functionality_to_backend_keys(key)
        raise InvalidKeyError(
            f"{key} stands for other keys and has no slot in a table\n  it stands for: "
            f"{listed(keys)}",
            key,
        )
    return key


def _carried(text: str) -> DispatchKey:
    key = parse_key(text)
    if key.is_alias:
        raise InvalidKeyError(f"{key} stands for other keys: no argument carries it", key)
    return key


def _run(
    op: str,
    modules: list[str] | None,
    registry: str | None,
    as_json: bool,
    answer: Callable[[Registry, Subject], Answer],
) -> None:
    output = standard_output()
    with answering():
        with opened(modules, registry) as source:
            there = _explain.existing(source, op)
            stub = source._facts.find(facts.PYSTUB, 0, there[0].name)
            found = answer(source, Subject(source.address, there, stub))
        write(found, output, as_json)
