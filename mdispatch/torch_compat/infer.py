"""Infers the schema of a function from its annotations, as torch.library.infer_schema does.

An annotation is turned into the text of a schema's type piece by piece. The whole is then looked up
in the list of types that PyTorch infers. (:func:`mdispatch.infer_schema` infers many more.)
``parse_schema`` reads each result back.

It differs where PyTorch's writes text that its own parser misreads or refuses:

- a default in quotes is escaped;
- the default of an enum that is also an int, float or str is that value;
- defaults that the schema's type cannot have, and names that cannot be in schemas, are refused;
- ``Tuple`` without types inside is not a return type; there it means that nothing is returned;

and it reads more spellings of the same types: quotes inside other annotations, and any class of
arrays for Tensor, with or without parameters (``NDArray[float]``).
"""

from __future__ import annotations

import sys

from ..dispatch.annotations import is_tensor_class
from ..errors import InvalidArgumentError, SchemaSyntaxError
from ..errors.words import nearest, shown
from ..schema import parse_schema
from ..schema.classes import name_of
from ..schema.names import OperatorName
from ..schema.types import Argument, Type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from inspect import Parameter, Signature
    from typing import Any, NoReturn

__all__ = ["infer_schema"]

# The types of parameters that PyTorch infers, and those of returns, alone or in a tuple.
_PARAMETERS = frozenset(
    base + form
    for bases, forms in (
        (("Tensor",), ("", "?", "[]", "?[]")),
        (("SymInt", "float", "bool"), ("", "?", "[]", "[]?")),
        (("Scalar",), ("", "?", "[]")),
        (("str", "ScalarType", "Device"), ("", "?")),
    )
    for base in bases
    for form in forms
)
_RETURNS = frozenset(("Tensor", "Tensor[]", "SymInt", "float", "bool", "Scalar"))

_PARAMETERS_ARE = (
    "a parameter is a Tensor, int, float, bool, str, int | float | bool, torch.dtype or"
    " torch.device; any of these | None; a list or Sequence of Tensor, Tensor | None, int, float,"
    " bool or int | float | bool; and | None again where that is a list of int, float or bool"
)
_RETURNS_ARE = (
    "a function returns None, a Tensor, a list of Tensor, int, float, bool, int | float | bool, or"
    " a tuple[...] of these"
)
_BY_HAND = "write the schema as text where annotations cannot say it"
_EVALUATED = (
    "annotations are evaluated among the function's globals: import what they name at the top of"
    " its module, not inside a function or under TYPE_CHECKING"
)

#: How deep annotations are read. No type that is inferred is as deep.
_DEEPEST = 6


def infer_schema(
    prototype_function: Callable[..., object],
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    op_name: str | None = None,
) -> str:
    """The text of the schema that a function's annotations describe.

    For ``def scale(x: Tensor, factor: float = 2.0) -> Tensor`` and ``op_name="shop::scale"`` that
    is ``"shop::scale(Tensor x, float factor=2.0) -> Tensor"``; without ``op_name`` it begins with
    the parenthesis. Annotations that are strings are evaluated among the function's globals.

    ``mutates_args`` names the parameters that the function writes to, Tensors or lists of them;
    ``"unknown"`` stands for all Tensors. It is believed, not checked. Returns alias nothing.

    Raises InvalidArgumentError, with the signature and a remedy, for an object that is not a
    Python function, for parameters without annotation, positional-only or with stars, for types and
    defaults that no schema is inferred from, and for names in ``mutates_args`` that fit no
    parameter; InvalidNameError if ``op_name`` is not a name. (PyTorch: torch.library.infer_schema)
    """
    name = "" if op_name is None else str(OperatorName.parse(op_name))
    signature, scope = _signature_of(prototype_function)
    inference = _Inference(prototype_function, signature, scope)
    text = name + inference.schema(inference.mutated(mutates_args))
    try:
        parse_schema(text if name else "f" + text)
    except SchemaSyntaxError as error:  # too many parameters, or too long
        inference.fail(error.reason, _BY_HAND)
    return text


def _signature_of(function: Callable[..., object]) -> tuple[Signature, dict[str, Any]]:
    """A function's signature and its globals."""
    import inspect

    try:
        inner = inspect.unwrap(function, stop=lambda each: hasattr(each, "__signature__"))
        scope = getattr(inner, "__globals__", None)
        if isinstance(scope, dict):
            return inspect.signature(function), scope
    except Exception as error:  # annotations are code, which runs here from Python 3.14 on
        what = f"its signature cannot be read, {_told(error)}"
        raise _no_schema(function, None, what, _EVALUATED) from None
    raise _no_schema(
        function,
        None,
        f"{shown(function)} is not a function written in Python",
        "give the function itself, or wrap what you have in one with annotations",
    )


def _no_schema(
    function: object, signature: Signature | None, what: str, remedy: str
) -> InvalidArgumentError:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    lines = [f"no schema can be inferred from {shown(name)}: {what}"]
    if signature is not None:
        try:
            lines.append(f"  signature: {shown(str(signature), 400)}")
        except Exception:  # a default's own repr may do anything
            lines.append(f"  parameters: {', '.join(signature.parameters)}")
    return InvalidArgumentError("\n".join([*lines, f"{remedy[0].upper()}{remedy[1:]}."]))


class _Inference:
    """One function, while its schema is made."""

    def __init__(
        self, function: Callable[..., object], signature: Signature, scope: dict[str, Any]
    ) -> None:
        self.function = function
        self.signature = signature
        self.parameters = signature.parameters
        self.globals = scope

    def fail(self, what: str, remedy: str) -> NoReturn:
        raise _no_schema(self.function, self.signature, what, remedy) from None

    def mutated(self, mutates_args: str | Iterable[str]) -> frozenset[str] | None:
        """The names of the parameters written to, None for "unknown"."""
        how = "give mutates_args as a list of parameters' names, or as 'unknown'"
        if isinstance(mutates_args, str):
            if mutates_args == "unknown":
                return None
            self.fail(f"mutates_args is the str {shown(mutates_args)}", how)
        try:
            names = list(mutates_args)
        except TypeError:
            self.fail(f"mutates_args is {shown(mutates_args)}", how)
        for name in names:
            if not isinstance(name, str):
                self.fail(f"mutates_args has {shown(name)} in it", how)
            if name not in self.parameters:
                meant = nearest(name, self.parameters)
                hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
                self.fail(f"mutates_args names {shown(name)}, which is not a parameter{hint}", how)
        return frozenset(names)

    def schema(self, mutated: frozenset[str] | None) -> str:
        items: list[str] = []
        for index, (name, parameter) in enumerate(self.parameters.items()):
            if parameter.kind is parameter.KEYWORD_ONLY and "*" not in items:
                items.append("*")
            items.append(self.item(index, name, parameter, mutated))
        return f"({', '.join(items)}) -> {self.returned()}"

    # --- parameters -------------------------------------------------------------------------------

    def item(
        self, index: int, name: str, parameter: Parameter, mutated: frozenset[str] | None
    ) -> str:
        """The text of one argument."""
        import collections.abc

        what = f"parameter {shown(name)}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            self.fail(
                f"{what} is {parameter.kind.description}",
                "an operator's arguments have names and can be given by them: drop '/', and name"
                " each parameter instead of *args and **kwargs",
            )
        if parameter.annotation is parameter.empty:
            self.fail(f"{what} has no annotation", f"annotate it; {_PARAMETERS_ARE}")
        type = self.read(parameter.annotation, what, (list, collections.abc.Sequence))
        if type not in _PARAMETERS and not _is_of_class(type, ("", "?")):
            self.fail_type(what, parameter.annotation, type, _PARAMETERS_ARE)
        is_tensor = type.startswith("Tensor")
        if mutated is None or name in mutated:
            if is_tensor:
                type = f"Tensor(a{index}!){type.removeprefix('Tensor')}"
            elif mutated is not None:
                self.fail(
                    f"{what} is in mutates_args and is a {type}",
                    "only Tensors and lists of them are written to: take it out of mutates_args",
                )
        text = f"{type} {name}"
        if parameter.default is not parameter.empty:
            text += "=" + self.default(parameter.default, what)
        try:
            parse_schema(f"f({text}) -> ()")
        except SchemaSyntaxError as error:
            self.fail(
                f"{what} would be {shown(text)}, and {error.reason}",
                "give it a name and a default that a schema can have",
            )
        return text

    def default(self, value: object, what: str) -> str:
        """The text of a default. Whether it fits its type is not checked here."""
        if value is None or isinstance(value, bool):
            return str(value)
        # Not by str(): that of an enum shows a name.
        if isinstance(value, int):
            return int.__repr__(value)
        if isinstance(value, float):
            return float.__repr__(value)
        if isinstance(value, str):
            return _quoted(str.__str__(value))
        if isinstance(value, _of_torch("device")):
            return _quoted(str(value))
        if isinstance(value, _of_torch("dtype")):
            return str(value).removeprefix("torch.")
        return self.fail(
            f"{what} has a default of type {type(value).__qualname__}, {shown(value)}",
            "a default is None, an int, float, bool, str, torch.dtype or torch.device; for any "
            "other, use None as the default and put the value in inside the function",
        )

    # --- types ------------------------------------------------------------------------------------

    def read(self, annotation: Any, what: str, lists: tuple[type, ...], depth: int = 0) -> str:
        """The schema's type for an annotation; "" if there is none."""
        import types
        import typing

        def inner(each: object) -> str:
            return self.read(each, what, lists, depth + 1) if depth < _DEEPEST else ""

        if isinstance(annotation, (str, typing.ForwardRef)):
            return inner(self.evaluate(annotation, what))
        origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is None or is_tensor_class(origin):
            return _plain(origin or annotation)
        if origin in lists and len(inside) == 1:
            item = inner(inside[0])
            return item and item + "[]"
        if origin not in (typing.Union, types.UnionType):
            return ""
        members = [inner(each) for each in inside if each is not types.NoneType]
        optional = "?" * (len(members) < len(inside))
        if len(members) == 3 and set(members) == {"SymInt", "float", "bool"}:
            return "Scalar" + optional
        if len(members) == 1 or set(members) == {"Tensor"}:
            return members[0] and members[0] + optional
        return ""

    def evaluate(self, annotation: Any, what: str) -> object:
        """The object that a quoted annotation stands for."""
        text = getattr(annotation, "__forward_arg__", annotation)
        try:
            return eval(text, self.globals)
        except Exception as error:
            self.fail(f"{what} has the annotation {shown(text)}: {_told(error)}", _EVALUATED)

    def returned(self) -> str:
        """The text after the schema's arrow."""
        import typing

        annotation = self.signature.return_annotation
        if annotation is self.signature.empty:
            self.fail("it has no annotation for what it returns", f"add one; {_RETURNS_ARE}")
        for _ in range(_DEEPEST):  # quoted once more where the module postpones annotations
            if isinstance(annotation, str):
                annotation = self.evaluate(annotation, "the return")
        if annotation is None:
            return "()"
        # A bare typing.Tuple has the same origin as tuple[()], and as little inside.
        if typing.get_origin(annotation) is tuple and hasattr(annotation, "__args__"):
            items = [
                self.return_item(each, f"item {number} of the returned tuple")
                for number, each in enumerate(typing.get_args(annotation), 1)
            ]
            # A second pair of parentheses tells a tuple of one from a value alone.
            return f"(({items[0]}))" if len(items) == 1 else f"({', '.join(items)})"
        return self.return_item(annotation, "the return")

    def return_item(self, annotation: object, what: str) -> str:
        type = self.read(annotation, what, (list,))
        if type not in _RETURNS and not _is_of_class(type, ("",)):
            self.fail_type(what, annotation, type, _RETURNS_ARE)
        return type

    def fail_type(self, what: str, annotation: object, type: str, possible: str) -> NoReturn:
        import inspect

        as_schema = f" ({type} in schemas)" if type else ""
        text = shown(inspect.formatannotation(annotation))
        self.fail(
            f"{what} has the annotation {text}{as_schema}, which is not supported",
            f"{possible}; {_BY_HAND}",
        )


def _is_of_class(type: str, forms: tuple[str, ...]) -> bool:
    """Whether it is a registered class in one of these forms."""
    return "." in type and any(type.rstrip("?[]") + form == type for form in forms)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {shown(str(error), 200)}"


def _plain(annotation: object) -> str:
    """The schema's type for an annotation that is not made of others; "" for anything else."""
    if annotation is int:
        return "SymInt"
    if annotation is float or annotation is bool or annotation is str:
        return annotation.__name__
    if annotation is _of_torch("dtype"):
        return "ScalarType"
    if annotation is _of_torch("device"):
        return "Device"
    if annotation is _of_torch("GroupName", "torch.distributed.distributed_c10d"):
        return "str"
    if is_tensor_class(annotation):
        return "Tensor"
    return name_of(annotation) if isinstance(annotation, type) else ""


def _of_torch(name: str, module: str = "torch") -> Any:
    """The object of this name in torch, if torch is loaded; else a class without instances."""
    return getattr(sys.modules.get(module), name, _Absent)


class _Absent:
    """Stands for the classes of a library that is not there."""


def _quoted(text: str) -> str:
    """The text in quotes, with the escapes that schemas need."""
    printed = str(Argument("", Type("str"), text, has_default=True)).removeprefix("str=")
    return printed.replace("\\'", "'")  # Argument also escapes ' needlessly
