"""The part of a schema that a call in C checks by itself.

It follows the rules of dispatch/arguments.py and dispatch/results.py, and converts numbers as they
do. It leaves to them what it does not know, and every refusal.
"""

from __future__ import annotations

from ..facts.native import calls
from ..schema.classes import class_of
from ..schema.types import Type
from .arguments import repeated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..schema.types import Argument, FunctionSchema

    Take = tuple[int, type | None, bool, int, tuple[Any, ...]]

# The kinds of native/bind/call/state.h.
_OTHER, _ANYTHING, _SOMETHING, _EXACT, _NUMBER, _TENSOR, _LIST, _SIZE, _DICT, _TUPLE = range(10)

_CLASSES: dict[str, type] = {
    "int": int,
    "float": float,
    "bool": bool,
    "SymBool": bool,
    "complex": complex,
    "str": str,
    "NoneType": type(None),
}
_NOTHING: Take = (_OTHER, None, False, 0, ())
_MOST_ARGUMENTS = 48


def _take(wanted: Type) -> Take:
    """(kind, class, None fits too, how many items of a list one number stands for, the same of the
    items)
    """
    name = wanted.name
    inner = tuple(_take(element) for element in wanted.elements)
    if name == Type.OPTIONAL:
        kind, exact, _, size, items = inner[0]
        return kind, exact, kind != _OTHER, size, items
    if name == "Union" or any(kind == _OTHER for kind, *_ in inner):
        return _NOTHING
    if name == Type.LIST:
        return _LIST, None, False, repeated(wanted) or 0, inner
    if name in (Type.TUPLE, "Dict"):
        return _TUPLE if name == Type.TUPLE else _DICT, None, False, 0, inner
    if name == "SymInt":
        return _SIZE, int, False, 0, ()
    if name in _CLASSES:
        return _EXACT, _CLASSES[name], False, 0, ()
    if wanted.is_class:
        cls = class_of(name)
        return _NOTHING if cls is None else (_EXACT, cls, False, 0, ())
    plain = {"Tensor": _TENSOR, "Scalar": _NUMBER, "Any": _ANYTHING}
    return plain.get(name, _SOMETHING), None, False, 0, ()


def _argument(argument: Argument, dispatches: bool) -> tuple[object, ...]:
    take = _take(argument.type)
    if argument.has_default and argument.default is None and take[0] != _OTHER:
        take = (*take[:2], True, *take[3:])
    default = argument.default if argument.has_default else None
    is_list = isinstance(default, tuple)
    return argument.name, take, dispatches, argument.has_default, default, is_list


# Shapes, by the schema without the name, which many operators share. A full cache starts anew.
_shapes: dict[str, calls.Shape] = {}
_MOST_SHAPES = 8192


def shape_of(schema: FunctionSchema) -> calls.Shape:
    """The shape of a schema. If every call has to be bound in Python, no call fits the shape."""
    text = str(schema)
    rest = text[text.index("(") :]
    shape = _shapes.get(rest)
    if shape is None:
        if len(_shapes) >= _MOST_SHAPES:
            _shapes.clear()
        shape = _made(schema)
        # A name can come to mean another class.
        if not any(each.type.names_classes for each in (*schema.arguments, *schema.returns)):
            _shapes[rest] = shape
    return shape


def _made(schema: FunctionSchema) -> calls.Shape:
    if schema.is_vararg or schema.is_varret or len(schema.arguments) > _MOST_ARGUMENTS:
        return calls.Shape((), -1, ())
    arguments = [
        (argument.kwarg_only, _argument(argument, position in schema.dispatch_arguments))
        for position, argument in enumerate(schema.arguments)
    ]
    positional = tuple(each for kwarg_only, each in arguments if not kwarg_only)
    keyword_only = tuple(each for kwarg_only, each in arguments if kwarg_only)
    results = tuple(_take(each.type) for each in schema.returns)
    return calls.Shape((*positional, *keyword_only), len(positional), results)
