"""What people hand to a library, checked before anything is done with it."""

from __future__ import annotations

from . import errors
from ._keys import DispatchKey, parse_key
from ._nearest import shown
from ._schema_names import OperatorName, is_plain_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = [
    "KINDS",
    "WILDCARD",
    "attributes_of",
    "check_namespace",
    "check_reserved",
    "checked_callable",
    "key_or_none",
    "name_of",
    "operator_name",
    "stub_of",
]

#: The namespace that stands for all.
WILDCARD = "_"

#: The kinds of libraries.
KINDS = ("DEF", "FRAGMENT", "IMPL")

# PyTorch keeps "prim" for its interpreter; the others are attributes of ``ops`` that are no
# namespaces, so that nobody would find what is defined there.
_RESERVED = frozenset(("prim", "higher_order", "import_module", "load_library", "loaded_libraries"))


def check_namespace(namespace: str, kind: str) -> None:
    """What is no kind of a library, or no namespace for one of this kind, is refused."""
    if kind not in KINDS:
        raise errors.InvalidArgumentError(
            f"kind={shown(kind)}: a library is 'DEF', 'FRAGMENT' or 'IMPL'"
        )
    if namespace == WILDCARD:
        if kind != "IMPL":
            raise errors.InvalidNameError(
                "namespace '_' stands for all operators and takes fallbacks only: open it "
                f"as 'IMPL', not {kind!r}",
                namespace,
            )
    elif not isinstance(namespace, str):
        raise errors.InvalidNameError(f"a namespace is a str, not {shown(namespace)}", namespace)
    else:
        OperatorName(namespace or " ", "_")


def check_reserved(namespace: str, kind: str) -> None:
    """Nobody's library defines in a namespace that has another meaning."""
    if kind != "IMPL" and namespace in _RESERVED:
        raise errors.InvalidNameError(
            f"namespace {namespace!r} is reserved and takes no definitions: choose another name",
            namespace,
        )


def operator_name(namespace: str, name: str) -> str:
    """The full name of what a library of ``namespace`` calls ``name``."""
    if type(name) is str and namespace != WILDCARD:
        prefix = namespace + "::"
        word = name.removeprefix(prefix)
        if is_plain_name(word):
            return prefix + word
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


def name_of(op: Any) -> Any:
    """The name of an operator, from what stands for one; what stands for none is as it was."""
    return op if isinstance(op, str) else getattr(op, "name", op)


_ALIAS_ANALYSES = ("FROM_SCHEMA", "CONSERVATIVE", "PURE_FUNCTION")


def attributes_of(alias_analysis: str, tags: str | Iterable[str]) -> str:
    """The attributes of a definition as the registry keeps them, see ``def_text``."""
    if alias_analysis == "" and tags in ((), ""):
        return ""
    if alias_analysis not in ("", *_ALIAS_ANALYSES):
        raise errors.InvalidArgumentError(
            f"alias_analysis={shown(alias_analysis)}: it is {', '.join(_ALIAS_ANALYSES)} or ''"
        )
    try:
        names = sorted({tags} - {""} if isinstance(tags, str) else set(tags))
    except TypeError:
        names = [tags]  # type: ignore[list-item]  # refused below, with what it is
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise errors.InvalidArgumentError(
                f"{shown(name)} is not an identifier: it cannot be a tag"
            )
    kind = "" if alias_analysis == "FROM_SCHEMA" else alias_analysis
    return kind + "".join(f" {name}" for name in names)


#: The longest text of a registration, in bytes. (mdispatch.h, MD_MAX_BODY)
_LONGEST = 65536


def stub_of(module: str, context: str) -> str:
    """What the registry keeps of an operator's Python module: its name, then the context."""
    if not isinstance(module, str) or not module or not module.isprintable():
        raise errors.InvalidArgumentError(
            f"a Python module is named by its full name in a str, not {shown(module)}"
        )
    if not all(part.isidentifier() for part in module.lstrip(".").split(".")):
        raise errors.InvalidArgumentError(
            f"{shown(module)} is no name of a module that could be imported: give its full name, "
            "as 'package.module'"
        )
    if module.startswith("."):
        raise errors.InvalidArgumentError(
            f"{shown(module)} is relative: give the full name, by which every interpreter can "
            "import the module"
        )
    if not isinstance(context, str):
        raise errors.InvalidArgumentError(
            f"the context is a str for people to read, not {shown(context)}"
        )
    written = f"{module}\n{context}".encode("utf-8", "backslashreplace")
    if len(written) > _LONGEST:
        raise errors.InvalidArgumentError(
            f"the module's name and the context have {len(written)} bytes, the registry takes "
            f"{_LONGEST}: shorten the context"
        )
    return written.decode()


def checked_callable(function: Any) -> Any:
    if not callable(function):
        raise errors.InvalidArgumentError(f"a kernel must be callable; {shown(function)} is not")
    return function


def key_or_none(dispatch_key: DispatchKey | str) -> DispatchKey | None:
    """None for "" and Undefined, which stand for no key of one's own."""
    if isinstance(dispatch_key, str) and not dispatch_key:
        return None
    return parse_key(dispatch_key) or None
