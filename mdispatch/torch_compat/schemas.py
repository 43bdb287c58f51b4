"""PyTorch's own language of schemas, in which a part of ours is missing."""

from __future__ import annotations

from ..errors import SchemaSyntaxError
from ..schema import schemas as ours
from ..schema.classes import STANDARD
from ..schema.types import Argument, Display, Type
from .common import _theirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..schema import FunctionSchema

__all__ = ["parse_schema"]


@_theirs
def parse_schema(text: str) -> FunctionSchema:
    """The schema that a text declares.

    RuntimeError where PyTorch refuses it: for our types that it does not have (``set[int]``), and
    for defaults of types that have none there.
    """
    return checked(ours.parse_schema(text), text)


def checked(schema: FunctionSchema, text: str) -> FunctionSchema:
    """The schema, which this text declares. SchemaSyntaxError if PyTorch has no such schema."""
    for argument in (*schema.arguments, *schema.returns):
        if _is_ours(argument.type):
            raise SchemaSyntaxError(f"PyTorch has no type {argument.type}", text, 0)
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


_WITHOUT = ("Any", "Dict", "Union", Type.TUPLE)


def _has_our_default(argument: Argument) -> bool:
    its = argument.type
    while its.name == Type.OPTIONAL:
        its = its.elements[0]
    if not argument.has_default or (argument.default is None and its is not argument.type):
        return False
    return its.name in _WITHOUT or its.is_class or isinstance(argument.default, (Display, bytes))
