"""Checks of the arguments that users give to a library, before anything is done with them."""

from __future__ import annotations

import sys

from .. import errors
from ..errors.words import shown
from ..facts.native.constants import MD_MAX_BODY
from ..keys.numbers import DispatchKey, parse_key
from ..schema.names import OperatorName, is_plain_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import FunctionType
    from typing import Any, TypeAlias

    #: The names of the arguments that come by position, and of those that come by keyword; and
    #: whether there may be more.
    Asked: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], bool]

#: The namespace that stands for all.
WILDCARD = "_"

#: The kinds of libraries.
KINDS = ("DEF", "FRAGMENT", "IMPL")

# PyTorch keeps "prim" for its interpreter. The others are attributes of ``ops``, which would hide
# operators of these namespaces.
_RESERVED = frozenset(("prim", "higher_order", "import_module", "load_library", "loaded_libraries"))


def check_namespace(namespace: str, kind: str) -> None:
    """Refuses an unknown kind of library, and a namespace that a library of this kind cannot
    have.
    """
    if kind not in KINDS:
        raise errors.InvalidArgumentError(
            f"kind={shown(kind)}: it must be 'DEF', 'FRAGMENT' or 'IMPL'"
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
    """Refuses a library that would define operators in a namespace with another meaning."""
    if kind != "IMPL" and namespace in _RESERVED:
        raise errors.InvalidNameError(
            f"namespace {namespace!r} is reserved and takes no definitions: choose another name",
            namespace,
        )


def operator_name(namespace: str, op: Any) -> str:
    """The full name of an operator, which a library of ``namespace`` names by a str or an
    OpOverload.
    """
    if type(op) is str and namespace != WILDCARD:
        prefix = namespace + "::"
        word = op.removeprefix(prefix)
        if is_plain_name(word):
            return prefix + word
    name = op if isinstance(op, str) else getattr(op, "name", op)
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
    if alias_analysis not in ("", *_ALIAS_ANALYSES):
        raise errors.InvalidArgumentError(
            f"alias_analysis={shown(alias_analysis)}: it must be {', '.join(_ALIAS_ANALYSES)} or ''"
        )
    given = {tags} - {""} if isinstance(tags, str) else tags
    try:
        names = sorted(set(map(_tag_name, given)))
    except TypeError:
        names = [_tag_name(tags)]  # refused below, by its value
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or not name.isascii():
            raise errors.InvalidArgumentError(
                f"{shown(name)} is not an identifier: it cannot be a tag"
            )
    kind = "" if alias_analysis == "FROM_SCHEMA" else alias_analysis
    return kind + "".join(f" {name}" for name in names)


def _tag_name(tag: Any) -> str:
    """A tag's name; also that of one of PyTorch's own (torch.Tag)."""
    kind = getattr(sys.modules.get("torch"), "Tag", None)
    return tag.name if kind is not None and type(tag) is kind else tag  # type: ignore[no-any-return]


def stub_of(module: str, context: str) -> str:
    """What the registry keeps of an operator's Python module: its name, then the context."""
    if not isinstance(module, str) or not module or not module.isprintable():
        raise errors.InvalidArgumentError(
            f"a Python module is named by its full name in a str, not {shown(module)}"
        )
    if not all(part.isidentifier() for part in module.lstrip(".").split(".")):
        raise errors.InvalidArgumentError(
            f"{shown(module)} cannot be the name of a module: give the full name, such as "
            "'package.module'"
        )
    if module.startswith("."):
        raise errors.InvalidArgumentError(
            f"{shown(module)} is a relative name: give the full name, so that every interpreter "
            "can import the module"
        )
    if not isinstance(context, str):
        raise errors.InvalidArgumentError(
            f"the context must be a str for people to read, not {shown(context)}"
        )
    written = f"{module}\n{context}".encode("utf-8", "backslashreplace")
    if len(written) > MD_MAX_BODY:
        raise errors.InvalidArgumentError(
            f"the module's name and the context have {len(written)} bytes, and the registry takes "
            f"at most {MD_MAX_BODY}: shorten the context"
        )
    return written.decode()


def checked_callable(function: Any) -> Any:
    if not callable(function):
        text = f"a kernel must be callable; {shown(function)} is not"
        if isinstance(function, (str, DispatchKey)):
            text += (
                ": Library.impl takes the operator, the function and the key, mdispatch.impl the "
                "operator, the devices or keys, and the function"
            )
        raise errors.InvalidArgumentError(text)
    return function


def key_or_none(dispatch_key: DispatchKey | str) -> DispatchKey | None:
    """The key; None for "" and Undefined, which mean that no key was given."""
    if isinstance(dispatch_key, str) and not dispatch_key:
        return None
    return parse_key(dispatch_key) or None


# --- whether a function takes a schema's arguments ------------------------------------------------

_FUNCTION, _METHOD = type(checked_callable), type(errors.MdispatchError("").__reduce__)
_ARGS, _KWARGS = 4, 8  # of a code object's flags: *args, **kwargs

#: What a schema asks of a kernel, by the schema without the operator's name. Thousands of operators
#: have few such texts.
_asked: dict[str, Asked] = {}
_MOST_ASKED = 8192


def misfit(schema: str, function: Any, with_keyset: bool) -> str | None:
    """Why a kernel cannot be called with the arguments of a schema, in words. None if it can, or if
    it is neither a function of Python's nor an object whose class has such a ``__call__``.

    ``schema`` is canonical and without the operator's name: "(Tensor x) -> Tensor".
    """
    asked = _asked.get(schema) or _ask(schema)
    bound = 0
    if type(function) is not _FUNCTION:
        bound = 1  # its own object comes first
        is_method = type(function) is _METHOD
        function = function.__func__ if is_method else type(function).__call__
        if type(function) is not _FUNCTION:
            return None
    code = function.__code__
    positional, named, is_open = asked
    exactly = code.co_argcount == len(positional) + with_keyset + bound
    if is_open or (exactly and not named and not code.co_kwonlyargcount):
        return None
    return _misfit(function, bound + with_keyset, bound, positional, named)  # type: ignore[arg-type]


def _misfit(
    function: FunctionType, first: int, bound: int, positional: Sequence[str], named: Sequence[str]
) -> str | None:
    """``first`` counts what comes before the arguments of the schema; ``bound`` of it is the
    object of a method, of which people do not think as an argument.
    """
    code = function.__code__
    names, most, given = code.co_varnames, code.co_argcount, first + len(positional)
    if given > most and not code.co_flags & _ARGS:
        what = ", ".join((*("the key set",) * (first - bound), *positional))
        return f"it takes {most - bound} by position, and gets {given - bound} ({what})"
    only_by_name = names[most : most + code.co_kwonlyargcount]
    by_name = (*names[max(given, code.co_posonlyargcount) : most], *only_by_name)
    for name in named:
        if name not in by_name and not code.co_flags & _KWARGS:
            return f"it gets {name} by keyword, and does not take that"
    optional = function.__kwdefaults__ or {}
    needed = names[given : most - len(function.__defaults__ or ())]
    for name in (*needed, *(each for each in only_by_name if each not in optional)):
        if name not in named or name not in by_name:
            return f"it needs a value for {name}, and gets none"
    return None


def _ask(text: str) -> Asked:
    written = text[1:].partition(") -> ")[0]
    pieces = written.split(", ") if written else []
    if (
        '"' in written or any(" *" in each for each in pieces) or not all(map(_is_whole, pieces))
    ):  # a comma may be inside of an argument
        from ..schema.canonical import schema_of

        schema = schema_of("_" + text)
        names = [each.name for each in schema.arguments]
        by_keyword = sum(each.kwarg_only for each in schema.arguments)
        count, is_open = len(names) - by_keyword, schema.is_open
    else:
        is_open = "..." in pieces
        names = [each.partition("=")[0].rpartition(" ")[2] for each in pieces]
        count = names.index("*") if "*" in names else len(names)
        names = [each for each in names if each not in ("*", "...")]
    if len(_asked) >= _MOST_ASKED:
        _asked.clear()
    asked = _asked[text] = tuple(names[:count]), tuple(names[count:]), is_open
    return asked


def _is_whole(piece: str) -> bool:
    return all(piece.count(one) == piece.count(other) for one, other in ("()", "[]", "{}"))
