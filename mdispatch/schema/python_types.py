"""A schema as Python says it: the parameters of a call and what it returns, with the types of
annotations, as ``ast`` has them. For stubs, and for what operators tell of themselves.
"""

from __future__ import annotations

import ast
import keyword
from functools import reduce

from .types import Type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .types import Argument, FunctionSchema

_PLAIN = {
    "Tensor": "Tensor",
    "SymInt": "int",
    "SymBool": "bool",
    "Scalar": "int | float | complex",
    "NoneType": "None",
    "Any": "Any",
    **{name: name for name in ("int", "float", "complex", "bool", "str")},
}
#: The names that annotations use.
NAMES = frozenset(
    ("int", "float", "complex", "bool", "str", "list", "tuple", "dict", "object", "Any")
).union(("Sequence", "Tensor"))
_NONE = ast.Constant(None)
# One number may stand for a list of these.
_REPEATED = ("int", "SymInt", "float", "complex", "bool")
#: The types whose default is only the number, or the name, of an object that some library has.
BY_NUMBER = ("ScalarType", "Layout", "MemoryFormat", "QScheme", "Device")

#: How a parameter is given.
POSITIONAL, EITHER, KEYWORD = "by position", "by position or keyword", "by keyword"


class Parameter:
    """One parameter: ``how`` it is given, its type, and the ``argument`` of the schema."""

    __slots__ = ("annotation", "argument", "how", "name")

    def __init__(self, name: str, how: str, annotation: ast.expr, argument: Argument) -> None:
        self.name = name
        self.how = how
        self.annotation = annotation
        self.argument = argument


def parameters(schema: FunctionSchema) -> tuple[list[Parameter], str, str]:
    """The parameters of a call, and the names of ``*args`` and ``**kwargs``, each "" if there is
    none. An argument whose name is not allowed in Python can be given by position only; if it is
    keyword-only, ``**kwargs`` takes it.
    """
    names = [argument.name for argument in schema.arguments]
    positional = [a for a in schema.arguments if not a.kwarg_only]
    keywords = [a for a in schema.arguments if a.kwarg_only]
    only = max((i for i, a in enumerate(positional, 1) if not _can_be_named(a)), default=0)
    found = []
    for index, argument in enumerate(positional):
        can = _can_be_named(argument)
        name = argument.name if can else own_name(f"_{index}", names)
        how = POSITIONAL if index < only else EITHER
        found.append(Parameter(name, how, _annotation(argument), argument))
    named = [a for a in keywords if _can_be_named(a)]
    found += [Parameter(a.name, KEYWORD, _annotation(a), a) for a in named]
    args = own_name("args", names) if schema.is_vararg else ""
    return found, args, own_name("kwargs", names) if len(named) < len(keywords) else ""


def _can_be_named(argument: Argument) -> bool:
    """Type checkers take a name that begins with two underscores for positional only."""
    return not (keyword.iskeyword(argument.name) or argument.name.startswith("__"))


def own_name(wanted: str, names: list[str]) -> str:
    """A name that no argument has."""
    while wanted in names:
        wanted = f"_{wanted}"
    return wanted


def _annotation(argument: Argument) -> ast.expr:
    type = _taken(argument.type)
    if argument.has_default and argument.default is None and argument.type.name != Type.OPTIONAL:
        return _or(type, _NONE)
    return type


def _taken(type: Type) -> ast.expr:
    """The type that is accepted for an argument."""
    inner = [_taken(element) for element in type.elements]
    if type.name == Type.OPTIONAL:
        return _or(inner[0], _NONE)
    if type.name == Type.LIST:
        sequence = _of("Sequence", inner[0])
        repeated = type.size is not None and type.elements[0].name in _REPEATED
        return _or(sequence, inner[0]) if repeated else sequence
    return _made_of(type, inner) or _plain(type, "object")


def _given(type: Type) -> ast.expr:
    """The type of a return value."""
    inner = [_given(element) for element in type.elements]
    if type.name == Type.OPTIONAL:
        return _or(inner[0], _NONE)
    if type.name == Type.LIST:
        return _of("list", inner[0])
    return _made_of(type, inner) or _plain(type, "Any")


def returned(schema: FunctionSchema) -> ast.expr:
    """The type of what a call returns."""
    types = [_given(each.type) for each in schema.returns]
    if schema.is_varret:
        return _of("tuple", ast.Name("Any"), ast.Constant(...))
    if len(types) == 1:
        return types[0]
    return _of("tuple", *types) if types else _NONE


def _made_of(type: Type, inner: list[ast.expr]) -> ast.expr | None:
    if type.name == Type.TUPLE:
        return _of("tuple", *inner)
    if type.name == "Dict":
        return _of("dict", *inner)
    return _or(*inner) if type.name == "Union" else None


def _plain(type: Type, otherwise: str) -> ast.expr:
    return ast.parse(_PLAIN.get(type.name, otherwise), mode="eval").body


def _of(name: str, *inner: ast.expr) -> ast.expr:
    """A type with others in brackets."""
    return ast.Subscript(ast.Name(name), inner[0] if len(inner) == 1 else ast.Tuple([*inner]))


def _or(*types: ast.expr) -> ast.expr:
    """A union with each member once: Union(int, SymInt) is an int."""
    members = {ast.unparse(member): member for type in types for member in _members(type)}
    return reduce(lambda one, other: ast.BinOp(one, ast.BitOr(), other), members.values())


def _members(type: ast.expr) -> Iterator[ast.expr]:
    if isinstance(type, ast.BinOp):
        yield from _members(type.left)
        yield from _members(type.right)
    else:
        yield type
