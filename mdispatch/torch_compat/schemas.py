"""PyTorch's own language of schemas, in which a part of ours is missing, and its names for the
parts of a schema.

A view differs from PyTorch's object in three ways:

- a write that is declared inside a Dict, a tuple or a Future is a write, and so is one inside a
  list with an annotation of its own: PyTorch loses these;
- a bare ``Tensor!`` has no alias sets: PyTorch invents a name;
- a type is a Type of :mod:`mdispatch.schema`, which prints as in schemas: ``Tensor[]``.
"""

from __future__ import annotations

from .. import schema as ours
from ..errors import InvalidArgumentError, SchemaSyntaxError
from ..errors.words import shown
from ..schema.classes import STANDARD
from ..schema.parser import Parser
from ..schema.types import Display, Type, made
from .common import _theirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..schema import Argument as OurArgument

__all__ = ["Argument", "FunctionSchema", "parse_schema"]


class AliasInfo:
    """The memory that an argument or a return shares, by PyTorch's names."""

    __slots__ = ("_info",)

    def __init__(self, info: ours.AliasInfo) -> None:
        self._info = info

    @property
    def is_write(self) -> bool:
        """Whether it is written to, or an element of it is: True for ``Tensor(a!)[]``."""
        return self._info.writes

    @property
    def before_set(self) -> set[str]:
        """Its own alias sets before the call, without those of a list's elements."""
        return set(self._info.before)

    @property
    def after_set(self) -> set[str]:
        """Its own alias sets after the call."""
        return set(self._info.after)

    def __repr__(self) -> str:
        return f"<AliasInfo {self._info}>"


class Argument:
    """An argument of a schema, or a return, by PyTorch's names. (torch.Argument)"""

    __slots__ = ("_argument",)

    def __init__(self, argument: OurArgument) -> None:
        self._argument = argument

    @property
    def name(self) -> str:
        """Its name, "" for a return without one."""
        return self._argument.name

    @property
    def type(self) -> Type:
        """Its type, in our own class."""
        return self._argument.type

    @property
    def N(self) -> int | None:
        """The number of elements that a list's type gives, as 2 of ``int[2]``."""
        return self._argument.type.size

    @property
    def kwarg_only(self) -> bool:
        """Whether it is given by keyword only."""
        return self._argument.kwarg_only

    @property
    def default_value(self) -> object:
        """The default, a new list if it is a list; None if there is none."""
        default = self._argument.default
        return list(default) if isinstance(default, tuple) else made(default)

    def has_default_value(self) -> bool:
        """Whether a call may leave it out."""
        return self._argument.has_default

    @property
    def alias_info(self) -> AliasInfo | None:
        """The memory that it shares, None if its type has no annotation."""
        info = self._argument.alias_info
        return None if info is None else AliasInfo(info)

    @property
    def is_write(self) -> bool:
        """Whether it is written to, or an element of it is."""
        info = self._argument.alias_info
        return info is not None and info.writes

    @property
    def is_out(self) -> bool:
        """Whether it is written to and given by keyword only."""
        return self.kwarg_only and self.is_write

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Argument):
            return NotImplemented
        return self._argument == other._argument

    def __hash__(self) -> int:
        return hash(self._argument)

    def __repr__(self) -> str:
        return f"<Argument {self._argument}>"


class FunctionSchema:
    """A schema by PyTorch's names; ``str`` of it is the canonical text. (torch.FunctionSchema)"""

    __slots__ = ("_schema",)

    def __init__(self, schema: ours.FunctionSchema) -> None:
        self._schema = schema

    @property
    def name(self) -> str:
        """The operator's name without the overload, "ns::add"."""
        return self._schema.name.qualified

    @property
    def overload_name(self) -> str:
        """The part of the operator's name after the dot, or ""."""
        return self._schema.name.overload

    @property
    def arguments(self) -> list[Argument]:
        """Its arguments; a new list."""
        return list(map(Argument, self._schema.arguments))

    @property
    def returns(self) -> list[Argument]:
        """Its returns; a new list."""
        return list(map(Argument, self._schema.returns))

    @property
    def is_mutable(self) -> bool:
        """Whether an argument is written to."""
        return self._schema.is_mutable

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionSchema):
            return NotImplemented
        return self._schema == other._schema

    def __hash__(self) -> int:
        return hash(self._schema)

    def __str__(self) -> str:
        return str(self._schema)

    def __repr__(self) -> str:
        return f"<FunctionSchema {self._schema}>"


# --- the language ---------------------------------------------------------------------------------


@_theirs
def parse_schema(schema: str, allow_typevars: bool = False) -> FunctionSchema:
    """The schema that a text declares. ``__torch__.torch.classes.shop.Tokenizer`` is the class
    ``shop.Tokenizer``. With ``allow_typevars`` unknown types that start in lower case are type
    variables.

    RuntimeError where PyTorch refuses it: for our types that it does not have (``set[int]``), for
    keys of a Dict that it does not have, and for defaults of types that have none there.
    """
    return FunctionSchema(parsed(schema, allow_typevars=allow_typevars))


def parsed(
    text: str, namespace: str | None = None, *, allow_typevars: bool = False
) -> ours.FunctionSchema:
    """The schema that a text declares in PyTorch's language. SchemaSyntaxError for one that is only
    ours.
    """
    if not isinstance(text, str):
        raise InvalidArgumentError(f"a schema is a str, not {shown(text)}")
    schema = Parser(text, allow_typevars, of_torch=True).declaration(namespace)
    for argument in (*schema.arguments, *schema.returns):
        if _is_ours(argument.type):
            raise SchemaSyntaxError(f"PyTorch has no type {argument.type}", text, 0)
        key = _foreign_key(argument.type)
        if key is not None:
            raise SchemaSyntaxError(
                f"in PyTorch a Dict has no keys of type {key}; the key is "
                f"{', '.join(sorted(_KEYS - _INTS))} or int",
                text,
                0,
            )
        if _has_our_default(argument):
            raise SchemaSyntaxError(
                f"in PyTorch an argument of type {argument.type} has no such default", text, 0
            )
    if schema.stars:
        raise SchemaSyntaxError(f"PyTorch has no argument '{schema.stars[0]}'", text, 0)
    return schema


def _is_ours(type: Type) -> bool:
    is_ours = type.name in STANDARD or type.name in ("object", "Literal")
    return is_ours or (type.is_class and bool(type.elements)) or any(map(_is_ours, type.elements))


# The types that are ints in PyTorch, and those that the keys of a Dict may have. (DictType::create)
_INTS = frozenset(
    ("int", "SymInt", "ScalarType", "Layout", "MemoryFormat", "DeviceIndex", "ConstQuantizerPtr")
)
_KEYS = _INTS | {"str", "float", "bool", "complex", "Tensor", "Device", "Any"}


def _foreign_key(type: Type) -> Type | None:
    """A type of keys, here or inside, that PyTorch's Dict does not have."""
    if type.name == "Dict" and type.elements[0].name not in _KEYS:
        return type.elements[0]
    return next(filter(None, map(_foreign_key, type.elements)), None)


_WITHOUT = ("Any", "Dict", "Union", Type.TUPLE)


def _has_our_default(argument: OurArgument) -> bool:
    its = argument.type
    while its.name == Type.OPTIONAL:
        its = its.elements[0]
    if not argument.has_default or (argument.default is None and its is not argument.type):
        return False
    return its.name in _WITHOUT or its.is_class or isinstance(argument.default, (Display, bytes))
