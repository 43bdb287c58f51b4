"""The commands ``mdispatch table``, ``show`` and ``why``: which registry they look into, and their
exit status.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from . import _explain
from . import _registry as facts
from ._command import complain, import_in_main, module_names, standard_output, write
from ._explain_show import Registrations, Slots, Way
from ._explain_subject import Subject
from ._explanation import listed
from ._keys import TABLE_INDEX, parse_key
from ._nearest import shown
from ._registry.shared import ENVIRONMENT
from ._schema_names import OperatorName
from .errors import InvalidKeyError, MdispatchError, OperatorNotFoundError
from .guards import DEFAULT_EXCLUDED, DEFAULT_INCLUDED
from .keys import DispatchKeySet, functionality_to_backend_keys, runtime_keys
from .registry import Registry, default_registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ._command import Answer
    from ._keys import DispatchKey

__all__ = ["EPILOG", "show", "table", "why"]

_PATIENCE = 0.5  # seconds in which a registry has to appear

#: What the help of each of these commands ends with.
EPILOG = """\
Say where the operator is registered: with --import, by modules that are imported here for it (the
current directory is searched, as by python -m); with --registry, in a process that is running;
without either, in the process that MDISPATCH_REGISTRY in the environment names, as it does for what
a process with a registry starts.

\b
Exit status:
  0    answered
  1    there is no such operator: the nearest names are told
  2    unusable arguments, also a key that does not exist; no such module, or one that fails;
       no such registry, or one whose main process is dead
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
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="MODULE", callback=module_names, help="Import this module (repeatable)."
    ),
]
Attach = Annotated[
    str | None,
    typer.Option("--registry", metavar="NAME", help="Look into this registry: name or address."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON: keys in pydoc mdispatch._explain_show.")
]


def table(
    op: Op,
    modules: Imports = None,
    registry: Attach = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Only this key (repeatable).")
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
        list[str] | None, typer.Argument(metavar="KEY", help="Keys that arguments carry.")
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
    try:
        with _opened(modules, registry) as source:
            there = _explain.existing(source, op)
            stub = source._facts.find(facts.PYSTUB, 0, there[0].name)
            found = answer(source, Subject(source.address, there, stub))
        try:
            write(found, output, as_json)
        except OSError as error:
            complain(f"the answer could not be written: {error}")
            raise typer.Exit(2) from None
    except OperatorNotFoundError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    except MdispatchError as error:
        complain(str(error))
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def _opened(modules: list[str] | None, registry: str | None) -> AbstractContextManager[Registry]:
    """The registry to look into: this process's own, or one that is left afterwards."""
    if modules and registry is not None:
        raise typer.BadParameter(
            "give --import or --registry, not both: each means another registry."
        )
    if modules:
        import_in_main(modules)
        return nullcontext(default_registry())
    named = os.environ.get(ENVIRONMENT, "") if registry is None else registry
    if registry is None and not named:
        raise typer.BadParameter(
            "say where to look: --import MODULE for operators of modules, which are imported here, "
            "or --registry NAME for those of a process that is running."
        )
    try:
        return Registry.attach(named, timeout=_PATIENCE)
    except MdispatchError as error:
        if registry is None:
            error.args = (f"{error}\n{ENVIRONMENT}={shown(named)} in the environment names it.",)
        raise
