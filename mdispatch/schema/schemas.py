"""Schemas of operators: parse, print, compare.

A schema is the text ``ns::add.out(Tensor a, *, Tensor(a!) out) -> Tensor(a!)``, the language of
PyTorch's operators. schema/types.py has the values and the rules of printing, schema/parser.py has
the grammar.
"""

from __future__ import annotations

from ..errors import InvalidArgumentError
from .names import OperatorName, split_name
from .types import AliasInfo, Argument, FunctionSchema, Type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .types import Literal

__all__ = [
    "AliasInfo",
    "Argument",
    "FunctionSchema",
    "OperatorName",
    "Type",
    "compare",
    "compare_signature",
    "parse_schema",
    "split_name",
]


def parse_schema(
    text: str, namespace: str | None = None, *, allow_typevars: bool = False
) -> FunctionSchema:
    """The schema that a text declares.

    ``namespace`` is that of the library which defines it: the text may leave it out, and must not
    name another. With ``allow_typevars`` it reads all that PyTorch's own schemas have, and what no
    operator here can be defined with: unknown types that start in lower case are type variables,
    the default of a list may have more elements than the list's size, and the class
    ``__torch__.torch.classes.shop.Tokenizer`` is ``shop.Tokenizer``.

    SchemaSyntaxError, showing the location, for a text that is no schema; InvalidNameError for
    another namespace. (c10: parseSchema)
    """
    # Not at the top: a worker that only looks up names never parses.
    from .parser import Parser

    if not isinstance(text, str):
        raise InvalidArgumentError(f"a schema is a str, not {type(text).__name__}")
    return Parser(text, allow_typevars, allow_typevars).declaration(namespace)


def literals(type: Type) -> list[Literal]:
    """The values of a Literal type."""
    from .parser import Parser

    return [Parser(each.name).display(0) for each in type.elements]


def compare(
    first: FunctionSchema,
    second: FunctionSchema,
    where: tuple[str, str] = ("in the first", "in the second"),
) -> str | None:
    """The first difference of two schemas in words; None when they are equal. ``where`` says of
    each schema where it is, as ``("here", "there")``.
    """
    if first == second:
        return None
    one, other = where
    if first.name != second.name:
        return f"the name is {first.name} {one}, {second.name} {other}"
    arguments = _compare_lists("argument", first.arguments, second.arguments, where)
    if arguments:
        return arguments
    if first.stars != second.stars:
        words = [" and ".join(map(repr, each.stars)) or "none" for each in (first, second)]
        return f"the arguments with stars are {words[0]} {one}, {words[1]} {other}"
    if first.is_vararg != second.is_vararg:
        return f"only {one if first.is_vararg else other} it takes more arguments ('...')"
    returns = _compare_lists("return", first.returns, second.returns, where)
    return returns or f"only {one if first.is_varret else other} it has more returns ('...')"


def compare_signature(schema: FunctionSchema, signature: FunctionSchema) -> str | None:
    """Why a kernel with this signature cannot serve the schema, in words; None when it can.

    Counts and types are compared; names, defaults and alias annotations are not. (c10:
    findSchemaDifferences)
    """
    for what, ours, theirs in (
        ("argument", schema.arguments, signature.arguments),
        ("return", schema.returns, signature.returns),
    ):
        if len(ours) != len(theirs):
            return f"the schema has {len(ours)} {what}(s), the kernel {len(theirs)}"
        for position, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
            if one.type != other.type:
                return f"{what} {position} is {one.type} in the schema, {other.type} in the kernel"
    return None


def _compare_lists(
    what: str,
    first: tuple[Argument, ...],
    second: tuple[Argument, ...],
    where: tuple[str, str],
) -> str | None:
    for position, (one, other) in enumerate(zip(first, second, strict=False), 1):
        if one.kwarg_only != other.kwarg_only:
            its = where[other.kwarg_only]
            return f"{what} {position}, '{one}', is keyword-only {its}"
        if one != other:
            named = _compare_argument(one, other, where) if what == "argument" else None
            return named or f"{what} {position} is '{one}' {where[0]}, '{other}' {where[1]}"
    if len(first) != len(second):
        longer, its = (first, where[0]) if len(first) > len(second) else (second, where[1])
        position = min(len(first), len(second))
        return f"{what} {position + 1}, '{longer[position]}', is only {its}"
    return None


def _compare_argument(one: Argument, other: Argument, where: tuple[str, str]) -> str | None:
    """The difference of two arguments of one name, if it is that of their types or defaults."""
    if one.name != other.name or one.alias_info != other.alias_info:
        return None
    if one.type != other.type:
        words = f"the type of '{one.name}' is {one.type} {where[0]}, {other.type} {where[1]}"
        if str(one.type).replace("SymInt", "int") == str(other.type).replace("SymInt", "int"):
            words += " (custom_op writes SymInt for int where an argument or a return is a Tensor)"
        return words
    texts = [_default_in_words(each) for each in (one, other)]
    if all(texts):
        return f"the default of '{one.name}' is {texts[0]} {where[0]}, {texts[1]} {where[1]}"
    has = [f"the default {text}" if text else "no default" for text in texts]
    return f"'{one.name}' has {has[0]} {where[0]}, {has[1]} {where[1]}"


def _default_in_words(argument: Argument) -> str:
    """ "" without one. The canonical text of a float has more digits than people read."""
    if isinstance(argument.default, float):
        return repr(argument.default)
    return str(argument).partition(f" {argument.name}=")[2]
