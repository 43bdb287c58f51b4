"""What people hand to a library, checked before anything is done with it."""

from __future__ import annotations

from . import errors
from ._keys import DispatchKey, parse_key
from ._nearest import shown
from ._schema_names import OperatorName

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["WILDCARD", "attributes_of", "checked_callable", "key_or_none", "operator_name"]

#: The namespace that stands for all.
WILDCARD = "_"


def operator_name(namespace: str, name: str) -> str:
    """The full name of what a library of ``namespace`` calls ``name``."""
    if not isinstance(name, str):
        raise errors.InvalidNameError(
            f"an operator is named by a str or an OpOverload, not {shown(name)}", name
        )
    if namespace == WILDCARD:
        raise errors.InvalidNameError(
            f"library '_' takes fallbacks only: register {shown(name)} in a library of its own "
            "namespace",
            name,
        )
    name = name.strip(" \t\n")
    full = str(OperatorName.parse(name if "::" in name else f"{namespace}::{name}"))
    if namespace != full.partition("::")[0]:
        raise errors.InvalidArgumentError(
            f"{full} is not in namespace {namespace!r}: register it in a library of "
            "its own namespace"
        )
    return full


_ALIAS_ANALYSES = ("FROM_SCHEMA", "CONSERVATIVE", "PURE_FUNCTION")


def attributes_of(alias_analysis: str, tags: str | Iterable[str]) -> str:
    """The attributes of a definition as the registry keeps them, see ``def_text``."""
    if not alias_analysis and not tags:
        return ""
    if alias_analysis and alias_analysis not in _ALIAS_ANALYSES:
        raise errors.InvalidArgumentError(
            f"alias_analysis={shown(alias_analysis)}: it is {', '.join(_ALIAS_ANALYSES)} or ''"
        )
    try:
        names = sorted({tags} if isinstance(tags, str) else set(tags))
    except TypeError:
        names = [tags]  # type: ignore[list-item]  # refused below, with what it is
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise errors.InvalidArgumentError(
                f"{shown(name)} is not an identifier: it cannot be a tag"
            )
    kind = "" if alias_analysis == "FROM_SCHEMA" else alias_analysis
    return kind + "".join(f" {name}" for name in names)


def checked_callable(function: Any) -> Any:
    if not callable(function):
        raise errors.InvalidArgumentError(f"a kernel must be callable; {shown(function)} is not")
    return function


def key_or_none(dispatch_key: DispatchKey | str) -> DispatchKey | None:
    """None for "" and Undefined, which stand for no key of one's own."""
    if isinstance(dispatch_key, str) and not dispatch_key:
        return None
    return parse_key(dispatch_key) or None
