"""The part of a schema that a call in C checks by itself.

It follows the rules of dispatch/arguments.py and dispatch/results.py, and converts numbers as they
do. It leaves to them what it does not know, and every refusal.
"""

from __future__ import annotations

from ..facts.native import calls
from ..schema.classes import class_of, is_registered
from ..schema.types import Display, Type, made
from .arguments import is_deep, repeated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..schema.types import Argument, FunctionSchema

    Take = tuple[int, type | tuple[Any, ...] | None, bool, int, tuple[Any, ...]]

# The kinds of native/bind/call/state.h.
_OTHER, _ANYTHING, _SOMETHING, _EXACT, _NUMBER, _TENSOR, _LIST, _SIZE, _DICT, _TUPLE = range(10)
_CLASS, _LITERAL, _ONE_OF = 10, 11, 12
_COMPOSED = (_LIST, _DICT, _TUPLE)

_EXACT_CLASSES = {
    **{each.__name__: each for each in (int, float, bool, complex, str, type(None))},
    "SymBool": bool,
}
_KINDS = {"Tensor": _TENSOR, "Scalar": _NUMBER, "Any": _ANYTHING, "object": _ANYTHING}
_PLAIN: dict[str, Take] = {
    **{name: (_EXACT, cls, False, 0, ()) for name, cls in _EXACT_CLASSES.items()},
    **{name: (kind, None, False, 0, ()) for name, kind in _KINDS.items()},
    "SymInt": (_SIZE, int, False, 0, ()),
}
_NOTHING: Take = (_OTHER, None, False, 0, ())
_MOST_ARGUMENTS = 48


def _take(wanted: Type) -> Take:
    """(kind, class or values, None fits too, how many items of a list one number stands for, the
    same of the items)
    """
    name = wanted.name
    plain = _PLAIN.get(name)
    if plain is not None:
        return plain
    if name == "Literal":
        return _of_literal(wanted)
    if wanted.is_class:
        cls = class_of(name)
        if cls is None or (wanted.elements and is_deep()):
            return _NOTHING
        # The kernels of methods are for objects of just the registered class.
        return _EXACT if is_registered(name) else _CLASS, cls, False, 0, ()
    inner = tuple(_take(element) for element in wanted.elements)
    if name == Type.OPTIONAL:
        kind, exact, _, size, items = inner[0]
        return kind, exact, kind != _OTHER, size, items
    if any(kind == _OTHER for kind, *_ in inner):
        return _NOTHING
    if name == "Union":
        is_plain = not any(kind in _COMPOSED or kind == _TENSOR for kind, *_ in inner)
        return (_ONE_OF, None, False, 0, inner) if is_plain else _NOTHING
    if name == Type.LIST:
        return _LIST, None, False, repeated(wanted) or 0, inner
    if name in (Type.TUPLE, "Dict"):
        return _TUPLE if name == Type.TUPLE else _DICT, None, False, 0, inner
    return _SOMETHING, None, False, 0, ()


def _of_literal(wanted: Type) -> Take:
    from ..schema.schemas import literals  # few schemas have any

    try:
        values = tuple(made(each) for each in literals(wanted))
    except (LookupError, TypeError):  # the member of a class that is not here
        return _NOTHING
    return _LITERAL, values, None in values, 0, ()


def _argument(argument: Argument, dispatches: bool) -> tuple[object, ...]:
    take = _take(argument.type)
    if argument.has_default and argument.default is None and take[0] != _OTHER:
        take = (*take[:2], True, *take[3:])
    default: object = argument.default if argument.has_default else None
    is_list = isinstance(default, tuple)
    if isinstance(default, Display):
        is_list = default.kind == Display.LIST
        default = _display(default)
    return argument.name, take, dispatches, argument.has_default, default, is_list


class _Inconstant(Exception):
    """A default has to be made anew for each call, or cannot be made here."""


def _display(default: Display) -> object:
    """The value of a default, a tuple for that of a list."""
    if any(isinstance(each, Display) for each in default.items) or default.kind == Display.DICT:
        raise _Inconstant
    if default.kind != Display.NAME:
        return default.items
    try:
        return default.made()
    except (LookupError, TypeError):  # Python says so to the call
        raise _Inconstant from None


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
    if schema.is_open or schema.is_varret or len(schema.arguments) > _MOST_ARGUMENTS:
        return calls.Shape((), -1, ())
    try:
        arguments = [
            (argument.kwarg_only, _argument(argument, position in schema.type_arguments))
            for position, argument in enumerate(schema.arguments)
        ]
    except _Inconstant:
        return calls.Shape((), -1, ())
    positional = tuple(each for kwarg_only, each in arguments if not kwarg_only)
    keyword_only = tuple(each for kwarg_only, each in arguments if kwarg_only)
    results = tuple(_take(each.type) for each in schema.returns)
    return calls.Shape((*positional, *keyword_only), len(positional), results)
