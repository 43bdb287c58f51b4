"""Binds the arguments of a call to a schema: a kernel gets all of them, in place, of their types.

A kernel gets every argument, with defaults filled in: positional ones by position, keyword-only
ones by keyword. So it need not repeat the defaults. (PyTorch's Python kernels must: it drops
arguments that equal their default.)

This file does not know what a Tensor is. The code that makes a Binder does: its ``as_tensor``
returns the tensor that a value is, or raises Unfit. A tensor is no number, but for one of PyTorch
with a single value.
"""

from __future__ import annotations

import sys
from _operator import index

from ..errors import ArgumentError, DataDependentError, InvalidArgumentError
from ..schema.classes import class_of
from ..schema.types import Display, Type, made

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, NoReturn

    from ..schema.types import Argument, FunctionSchema

    Convert = Callable[[Any], Any]
    AsTensor = Callable[[Any], Any]


VARIABLE = "MDISPATCH_CHECK"


def is_deep() -> bool:
    """Whether the elements of sets, mappings and other collections are looked at in each call,
    which Python makes then. Those of lists, tuples and dicts always are.
    """
    from os import environ  # few operators have such types

    wanted = environ.get(VARIABLE, "")
    if wanted not in ("", "deep"):
        raise InvalidArgumentError(
            f"{VARIABLE}={wanted!a} in the environment: it is deep, or not there"
        )
    return bool(wanted)


class Unfit(Exception):
    """A value does not fit a type. The caller knows the value and the type; ``element`` is the part
    of a collection that does not fit.
    """

    element: tuple[object] | None = None


class _Slot:
    """How one argument is taken: a value of class ``exact`` as it is, another by ``convert``."""

    __slots__ = ("argument", "convert", "default", "exact", "has_default", "is_list", "name")

    def __init__(self, argument: Argument, as_tensor: AsTensor) -> None:
        self.argument = argument
        self.name = argument.name
        self.exact, self.convert = converter(argument.type, as_tensor)
        self.has_default = argument.has_default
        self.default = argument.default
        # A kernel may change the list it gets, so it gets its own.
        self.is_list = isinstance(argument.default, (tuple, Display))
        if argument.has_default and argument.default is None:
            self.convert = _or_none(self.convert)


class Binder:
    """Binds calls to one schema. Made once for a schema."""

    __slots__ = ("_keyword_only", "_others", "_positional", "_rest", "schema")

    def __init__(self, schema: FunctionSchema, as_tensor: AsTensor) -> None:
        slots = [_Slot(argument, as_tensor) for argument in schema.arguments]
        self.schema = schema
        self._rest = None if schema.rest is None else _Slot(schema.rest, as_tensor)
        self._others = None if schema.others is None else _Slot(schema.others, as_tensor)
        self._positional = tuple(slot for slot in slots if not slot.argument.kwarg_only)
        self._keyword_only = tuple(slot for slot in slots if slot.argument.kwarg_only)

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional arguments and the keyword-only ones that a kernel gets.

        ArgumentError when the call does not fit the schema. An int is taken for a float, a bool for
        an int and an int for a bool; a float is never taken for an int. One number is taken for a
        list with a size, and repeated. A tuple is taken for a list; a kernel always gets a list of
        its own. None is taken only where the type or the default allows it.
        """
        slots = self._positional
        given = len(args)
        values: list[Any] = []
        try:
            for value, slot in zip(args, slots, strict=False):
                values.append(value if type(value) is slot.exact else slot.convert(value))
            if given == len(slots) and not kwargs and not self._keyword_only:
                return tuple(values), {}
            if given > len(slots):
                if not self.schema.is_vararg:
                    self._fail_too_many(given)
                slot = self._rest  # type: ignore[assignment]
                for value in args[len(slots) :]:
                    values.append(value if slot is None else slot.convert(value))
            named = {}
            for slot in (*slots[given:], *self._keyword_only):
                if slot.name in kwargs:
                    value = kwargs[slot.name]
                    value = value if type(value) is slot.exact else slot.convert(value)
                    named[slot.name] = value
            more = {}
            if self._others is not None and len(named) < len(kwargs):
                slot = self._others
                early = {each.name for each in slots[:given]}
                for name in kwargs.keys() - named.keys() - early:
                    value = kwargs[name]
                    more[name] = slot.convert(value)
                more = {name: more[name] for name in kwargs if name in more}
        except Unfit as error:
            self._fail_unfit(slot, value, error)
        if len(named) + len(more) < len(kwargs):
            self._fail_keyword(kwargs, named | more)
        values += [
            named[slot.name] if slot.name in named else self._default(slot)
            for slot in slots[given:]
        ]
        keywords = {
            slot.name: named[slot.name] if slot.name in named else self._default(slot)
            for slot in self._keyword_only
        }
        return tuple(values), keywords | more

    def _default(self, slot: _Slot) -> Any:
        if not slot.has_default:
            self._fail(f"needs a value for {slot.name!r}")
        if not slot.is_list:
            return slot.default
        default: Any = slot.default
        return default.made() if isinstance(default, Display) else list(default)

    def _fail(self, what: str, advice: str = "") -> NoReturn:
        name = str(self.schema.name)
        raise ArgumentError(
            f"{name}() {what}\n  declared as {self.schema}{advice}", name, self.schema
        ) from None

    def _fail_too_many(self, given: int) -> NoReturn:
        most = len(self._positional)
        by_keyword = ", ".join(slot.name for slot in self._keyword_only)
        hint = f"; {by_keyword} must be given by keyword" if by_keyword else ""
        self._fail(f"takes {most} positional argument{'s' * (most != 1)}, not {given}{hint}")

    def _fail_unfit(self, slot: _Slot, value: Any, error: Unfit) -> NoReturn:
        which = ", not"
        if error.element is not None:
            which, value = "; an element is", error.element[0]
        if type(value) in (list, tuple) and slot.argument.type.is_list:
            for index, item in enumerate(value):
                try:
                    slot.convert([item])
                except Unfit:
                    which, value = f"; element {index} is", item
                    break
        from ..errors.words import shown

        # The repr of any other object may take long, or have effects.
        plain = type(value) in (int, float, complex, bool, str)
        what = f"{type(value).__qualname__}{f' ({shown(value)})' if plain else ''}"
        type_, cls = str(slot.argument.type), type(value)
        way_in = _way_in(cls) if "Tensor" in type_ else ""
        name = f"{cls.__module__}.{cls.__qualname__}".replace("<locals>.", "")
        if name in type_ and class_of(name) not in (cls, None):
            way_in = (
                "\nThe class of this object has been defined again since, and the schema means the "
                "newest class of that name: make the object anew."
            )
        self._fail(f"takes {type_} for {slot.name!r}{which} {what}", way_in)

    def _fail_keyword(self, kwargs: Mapping[str, Any], named: Mapping[str, Any]) -> NoReturn:
        name = next(name for name in kwargs if name not in named)
        names = [argument.name for argument in self.schema.arguments]
        if name in names:
            self._fail(f"got {name!r} twice, by position and by keyword")
        from ..errors.words import nearest, shown

        meant = nearest(name, names)
        hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
        self._fail(f"has no argument {shown(name)}{hint}")


def _way_in(cls: type) -> str:
    """How values of the class can be Tensors, where it seems to be one of arrays or tables."""
    attributes = ("shape", "__array__", "__dataframe__", "__arrow_c_array__", "__arrow_c_stream__")
    if not any(hasattr(cls, each) for each in attributes):
        return ""
    # Of jax's classes of tracers this one is public.
    is_tracer = any((b.__module__[:4], b.__name__) == ("jax.", "Tracer") for b in cls.__mro__)
    name = "jax.core.Tracer" if is_tracer else f"{cls.__module__}.{cls.__qualname__}"
    array = "" if is_tracer else ", or hand over a NumPy array" * hasattr(cls, "__array__")
    return (
        f"\nRegister its class with the key whose kernels take it: mdispatch.register_type({name}, "
        f'"CPU"){array}.'
    )


# --- conversions ----------------------------------------------------------------------------------


def converter(wanted: Type, as_tensor: AsTensor) -> tuple[type | None, Convert]:
    """The class whose instances fit as they are, if any, and the function that converts or refuses
    other values.
    """
    name = wanted.name
    if name == "Tensor":
        return None, as_tensor
    if name in _NUMBERS:
        return _EXACT.get(name), _number(*_NUMBERS[name], as_tensor)
    if name in _PLAIN:
        return _EXACT.get(name), _PLAIN[name]
    if wanted.is_class:
        if wanted.elements and is_deep():
            return None, _collection(wanted, as_tensor)
        return class_of(name), _object(name)
    if name == "Literal":
        return None, _literal(wanted)
    inner = [converter(element, as_tensor) for element in wanted.elements]
    if name == Type.OPTIONAL:
        return inner[0][0], _or_none(inner[0][1])
    if name == Type.LIST:
        return None, _list(*inner[0], wanted)
    if name == Type.TUPLE:
        return None, _tuple([convert for _, convert in inner])
    if name == "Dict":
        return None, _dict(inner[0][1], inner[1][1])
    if name == "Union":
        return None, _union([convert for _, convert in inner])
    return None, _something


def _object(name: str) -> Convert:
    """An object of a registered class, or a handle of one: at home it is taken for the object."""

    def convert_object(value: Any) -> Any:
        cls = class_of(name)
        if cls is not None and isinstance(value, cls):
            return value
        as_object = getattr(type(value), "__md_object__", None)
        found = None if as_object is None else as_object(value, name)
        if found is None or (found is not value and cls and not isinstance(found, cls)):
            raise Unfit
        return found

    return convert_object


def _collection(wanted: Type, as_tensor: AsTensor) -> Convert:
    """An object of a class with parameters. The elements of a collection, or the keys and values of
    a mapping, are looked at; they stay as they are. An iterator would be used up by that.
    """
    from collections.abc import Collection, Mapping

    convert = _object(wanted.name)
    inner = [
        converter(element, as_tensor)[1] for element in wanted.elements if element.name != "..."
    ]

    def convert_collection(value: Any) -> Any:
        found = convert(value)
        if isinstance(found, Mapping) and len(inner) == 2:
            pairs = found.items()
            parts = [part for pair in pairs for part in zip(inner, pair, strict=True)]
        elif isinstance(found, Collection) and len(inner) == 1:
            parts = [(inner[0], item) for item in found]
        else:
            return found
        for each, item in parts:
            try:
                each(item)
            except Unfit as error:
                error.element = error.element or (item,)
                raise
        return found

    return convert_collection


def literal_check(wanted: Type) -> Callable[[Any], bool]:
    """Whether a value is one of a Literal's, of just that class."""
    from ..schema.schemas import literals

    values = [made(each) for each in literals(wanted)]
    kinds = [*map(type, values)]

    def is_one(value: Any) -> bool:
        kind = type(value)
        return any(kind is one and value == each for one, each in zip(kinds, values, strict=True))

    return is_one


def _literal(wanted: Type) -> Convert:
    is_one = literal_check(wanted)

    def convert_literal(value: Any) -> Any:
        if is_one(value):
            return value
        raise Unfit

    return convert_literal


def _or_none(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _is_tensor(value: Any, as_tensor: AsTensor) -> bool:
    try:
        as_tensor(value)
    except Unfit:
        return False
    return True


def _is_single(value: Any) -> bool:
    """Whether it is a tensor of PyTorch that may stand for a number: one value, of which no
    gradient is wanted. (PyTorch: FunctionParameter::check)
    """
    if "torch" not in sys.modules:
        return False
    from .context.values import is_torch_tensor

    return is_torch_tensor(value) and value.dim() == 0 and not value.requires_grad


def _number(
    classes: tuple[type, ...], protocol: str, make: Callable[[Any], Any], as_tensor: AsTensor
) -> Convert:
    """Calls ``make`` for instances of ``classes``, and for other values that have the protocol."""

    def number(value: Any) -> Any:
        if _is_single(value):
            value = value.item()
        if isinstance(value, classes) or (
            hasattr(type(value), protocol) and not _is_tensor(value, as_tensor)
        ):
            try:
                return make(value)
            except (TypeError, ValueError, OverflowError, DataDependentError):
                pass
        raise Unfit

    return number


def _size(value: Any) -> Any:
    """A SymInt: an int, or a DynamicSize (see schema/sizes.py) as it is."""
    return value if getattr(value, "is_dynamic_size", False) else index(value)


def _bool(value: Any) -> bool:
    if isinstance(value, int):
        return bool(value)
    raise Unfit


def _complex(value: Any) -> complex:
    if isinstance(value, (int, float, complex)):
        return complex(value)
    raise Unfit


def _str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Unfit


def _nothing(value: Any) -> None:
    if value is not None:
        raise Unfit


def _something(value: Any) -> Any:
    """For types that this file does not know (Device, Generator): anything but None."""
    if value is None:
        raise Unfit
    return value


def repeated(wanted: Type) -> int | None:
    """How many items of a list one number stands for; None if a number is no such list."""
    return wanted.size if wanted.elements[0].name in _REPEATED else None


def _list(exact: type | None, convert: Convert, wanted: Type) -> Convert:
    size = repeated(wanted)

    def convert_list(value: Any) -> list[Any]:
        if isinstance(value, (list, tuple)):
            return [item if type(item) is exact else convert(item) for item in value]
        if size is not None:
            return [convert(value)] * size
        raise Unfit

    return convert_list


def _tuple(converts: list[Convert]) -> Convert:
    def convert_tuple(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple) or len(value) != len(converts):
            raise Unfit
        return tuple(convert(item) for convert, item in zip(converts, value, strict=True))

    return convert_tuple


def _dict(convert_key: Convert, convert_value: Convert) -> Convert:
    def convert_dict(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise Unfit
        return {convert_key(key): convert_value(item) for key, item in value.items()}

    return convert_dict


def _union(converts: list[Convert]) -> Convert:
    """The first member that takes the value as it is, else the first that converts it."""

    def convert_union(value: Any) -> Any:
        converted = []
        for convert in converts:
            try:
                result = convert(value)
            except Unfit:
                continue
            if result is value:
                return value
            converted.append(result)
        if not converted:
            raise Unfit
        return converted[0]

    return convert_union


_EXACT = {"int": int, "SymInt": int, "float": float, "bool": bool, "SymBool": bool, "str": str}
_NUMBERS: dict[str, tuple[tuple[type, ...], str, Callable[[Any], Any]]] = {
    "int": ((int,), "__index__", index),
    "SymInt": ((int,), "__index__", _size),
    "float": ((int, float), "__float__", float),
    "Scalar": ((int, float, complex), "__float__", lambda value: value),
}
_PLAIN: dict[str, Convert] = {
    "bool": _bool,
    "SymBool": _bool,
    "complex": _complex,
    "str": _str,
    "NoneType": _nothing,
    "Any": lambda value: value,
    "object": lambda value: value,
}
# Lists of these can be given by one number.
_REPEATED = ("int", "SymInt", "float", "complex", "bool")
