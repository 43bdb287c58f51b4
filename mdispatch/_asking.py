"""What the commands share that look into one registry: which one it is, and what is told where
there is none.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from ._command import complain, import_in_main, module_names
from ._finding import named_like, named_registries
from ._keys import RUNTIME_KEYS
from ._nearest import shown
from ._registry.shared import ENVIRONMENT
from .errors import MdispatchError, OperatorNotFoundError, RegistryNotFoundError
from .registry import Registry, default_registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = ["WHERE", "Attach", "Imports", "answering", "keys_like", "opened", "reason"]
__all__ += ["registries_like"]

_PATIENCE = 0.5  # seconds in which a registry has to appear

#: What the help of each of these commands says of the first question.
WHERE = """\
Say where operators are registered: with --import, by modules that are imported here for it (the
current directory is searched, as by python -m); with --registry, in a process that is running;
without either, in the process that MDISPATCH_REGISTRY in the environment names, as it does for what
a process with a registry starts.
"""


# --- what a shell may complete --------------------------------------------------------------------


def registries_like(incomplete: str) -> list[str]:
    """The named registries of this user that begin so."""
    return [name for name in named_registries() if name.startswith(incomplete)]


def keys_like(incomplete: str) -> list[str]:
    """The runtime keys that begin so."""
    return [key.name for key in RUNTIME_KEYS if key.name.startswith(incomplete)]


Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="MODULE", callback=module_names, help="Import this module (repeatable)."
    ),
]
Attach = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="NAME",
        autocompletion=registries_like,
        help="Look into this registry: name or address.",
    ),
]


# --- which registry -------------------------------------------------------------------------------


def opened(modules: list[str] | None, registry: str | None) -> AbstractContextManager[Registry]:
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


# --- where there is no answer ---------------------------------------------------------------------


def reason(error: BaseException) -> str:
    """What is told of an error; of a registry that is not there, also which one is."""
    if not isinstance(error, RegistryNotFoundError) or not error.registry:
        return str(error)
    near = named_like(error.registry.removeprefix("shm:"))
    meant = f"Did you mean {', '.join(near)}? " if near else ""
    return f"{error}\n{meant}mdispatch doctor lists the registries that are there."


@contextmanager
def answering() -> Iterator[None]:
    """Around the answer: errors end the command, in words and with the status that they have."""
    try:
        yield
    except OperatorNotFoundError as error:
        complain(str(error))
        raise typer.Exit(1) from None
    except MdispatchError as error:
        complain(reason(error))
        raise typer.Exit(2) from None
    except OSError as error:
        complain(f"the answer could not be written: {error}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
