"""Choosing the registry that a command looks into, and the errors when there is none."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from ..errors import MdispatchError, OperatorNotFoundError, RegistryNotFoundError
from ..errors.words import shown
from ..facts.opening import ENVIRONMENT, named_registries
from ..facts.outside import named_like
from ..keys.numbers import RUNTIME_KEYS
from ..registry import Registry, default_registry
from .console import complain, import_in_main, module_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

_PATIENCE = 0.5  # seconds until a registry that does not appear is an error

#: How these commands are told where to look; part of their help.
WHERE = """\
Say where operators are registered: with --import, by modules that are imported here for it (the
current directory is searched, as by python -m); with --registry, in a process that is running;
without either, in the process that MDISPATCH_REGISTRY in the environment names, as it does for what
a process with a registry starts.
"""


# --- completion in a shell --------------------------------------------------------------------


def registries_like(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """The named registries of this user that begin with this text."""
    return [name for name in named_registries() if name.startswith(incomplete)]


def keys_like(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The runtime keys that begin with this text."""
    return [key.name for key in RUNTIME_KEYS if key.name.startswith(incomplete)]


imports = click.option(
    "modules",
    "--import",
    metavar="MODULE",
    multiple=True,
    callback=module_names,
    help="Import this module (repeatable).",
)
attach = click.option(
    "registry",
    "--registry",
    metavar="NAME",
    shell_complete=registries_like,
    help="Look into this registry: name or address.",
)


# --- which registry -------------------------------------------------------------------------------


def opened(modules: Sequence[str], registry: str | None) -> AbstractContextManager[Registry]:
    """Opens the registry to look into: this process's own, or another until the end of with."""
    if modules and registry is not None:
        raise click.BadParameter(
            "give --import or --registry, not both: each means another registry."
        )
    if modules:
        import_in_main(modules)
        return nullcontext(default_registry())
    named = os.environ.get(ENVIRONMENT, "") if registry is None else registry
    if registry is None and not named:
        raise click.BadParameter(
            "say where to look: --import MODULE for operators of modules, which are imported here, "
            "or --registry NAME for those of a process that is running."
        )
    try:
        return Registry.attach(named, timeout=_PATIENCE)
    except MdispatchError as error:
        if registry is None:
            error.args = (f"{error}\n{ENVIRONMENT}={shown(named)} in the environment names it.",)
        raise


# --- errors ---------------------------------------------------------------------


def reason(error: BaseException) -> str:
    """The message of an error. For a registry that does not exist it names similar ones that do."""
    if not isinstance(error, RegistryNotFoundError) or not error.registry:
        return str(error)
    near = named_like(error.registry.removeprefix("shm:"))
    meant = f"Did you mean {', '.join(near)}? " if near else ""
    return f"{error}\n{meant}mdispatch doctor lists the registries that are there."


@contextmanager
def answering() -> Iterator[None]:
    """Turns an error inside it into a complaint and the exit status for that error."""
    try:
        yield
    except OperatorNotFoundError as error:
        complain(str(error))
        raise Exit(1) from None
    except MdispatchError as error:
        complain(reason(error))
        raise Exit(2) from None
    except OSError as error:
        complain(f"the answer could not be written: {error}")
        raise Exit(2) from None
    except KeyboardInterrupt:
        raise Exit(130) from None
