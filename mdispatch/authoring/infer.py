"""Infers the schema of a function from its annotations.

The schema repeats the annotations: ``list[str]`` is ``str[]``, ``Mapping[str, int]`` stays that, a
class is its name. Where a parameter or a return is a Tensor, the types are those that PyTorch
infers, so that the operator can be PyTorch's, too: an int is a SymInt, a Sequence of numbers or
Tensors a list, and ``int | float | bool`` a Scalar. (torch_compat/infer.py has PyTorch's own rules,
which refuse all other types.)

Types are made as texts, argument by argument. Each text is parsed once in a process: see
schema/canonical.py. A function's code, defaults and annotations are read as they are, since most
operators are plain functions, and ``inspect`` takes longer than all the rest.
"""

from __future__ import annotations

import sys

from ..dispatch.annotations import is_tensor_class
from ..errors import InvalidArgumentError, SchemaSyntaxError
from ..errors.words import nearest, shown
from ..keys.names import is_identifier
from ..schema import parse_schema
from ..schema.canonical import assembled, is_argument
from ..schema.classes import STANDARD, name_of
from ..schema.names import OperatorName
from ..schema.types import Display, Type, constant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any, NoReturn, TypeAlias

    from ..schema import FunctionSchema

    #: A parameter: its name, the stars before it, whether it is given by keyword only, its
    #: annotation and its default.
    Parameter: TypeAlias = tuple[str, str, bool, object, object]

__all__ = ["Inferred", "infer_schema"]

#: In place of ``mutates_args``: none, if no argument is a Tensor.
NOT_SAID = object()
NO_WRITES = "custom_op() does not say to which of them it writes: mutates_args=() for none,"
_EMPTY = object()

_BY_HAND = "write the schema as text where annotations cannot say it"
_EVALUATED = (
    "annotations are evaluated among the function's globals: import what they name at the top of"
    " its module, not inside a function or under TYPE_CHECKING"
)
#: How deep annotations are read.
_DEEPEST = 16
#: The main script has one name, also in the processes that multiprocessing spawns.
_MAIN = {"__mp_main__": "__main__"}
_FUNCTION = type(lambda: None)
_UNION: Any = type(int | str)
_ALIAS: Any = type(list[int])
_ARGS, _KEYWORDS, _COROUTINE = 4, 8, 128  # flags of a code object: *args, **kwargs, async def

_NONE, _ANY = Type("NoneType"), Type("Any")
_NAMELESS = OperatorName("", "_")
#: The plain classes, and the texts of the types that annotations of them are.
_PLAIN: dict[object, Type] = {
    each: Type(each.__name__) for each in (int, float, bool, str, complex, object)
}
_PLAIN |= {None: _NONE, type(None): _NONE}
_EXACT = frozenset((int, str, bool, type(None)))
#: The items of the lists that PyTorch infers.
_IN_LISTS = frozenset(("Tensor", "Tensor?", "int", "float", "bool", "Scalar"))
_NUMBERS = frozenset(("int", "float", "bool"))


def infer_schema(
    prototype_function: Callable[..., object],
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    op_name: str | None = None,
) -> str:
    """The text of the schema that a function's annotations describe.

    For ``def split(text: str, by: str = " ") -> list[str]`` and ``op_name="shop::split"`` that is
    ``'shop::split(str text, str by=" ") -> str[]'``; without ``op_name`` it begins with the
    parenthesis. Any annotation is read; a parameter without one is Any. Annotations that are
    strings are evaluated among the function's globals. A class is written by its module and its
    name. Where an argument or a return is a Tensor, an int is a SymInt, as in PyTorch.

    ``mutates_args`` names the parameters that the function writes to, Tensors or lists of them;
    ``"unknown"`` stands for all Tensors. It is believed, not checked. Returns alias nothing.

    Raises InvalidArgumentError, with the signature and a remedy, for an object that is not a
    Python function, for annotations that are no types, for defaults that no schema can have, and
    for names in ``mutates_args`` that fit no parameter; InvalidNameError if ``op_name`` is not a
    name. (PyTorch: torch.library.infer_schema)
    """
    name = None if op_name is None else OperatorName.parse(op_name)
    text = str(Inferred(prototype_function, name, mutates_args).schema)
    return text if op_name is not None else text[text.index("(") :]


def _no_schema(function: object, signature: str, what: str, remedy: str) -> InvalidArgumentError:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    lines = [f"no schema can be inferred from {shown(name)}: {what}"]
    if signature:
        lines.append(signature)
    return InvalidArgumentError("\n".join([*lines, f"{remedy[0].upper()}{remedy[1:]}."]))


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {shown(str(error), 200)}"


def signature_of(function: Any) -> tuple[list[Parameter], object, dict[str, Any]]:
    """The parameters, the annotation of the return, and the function's globals."""
    if type(function) is not _FUNCTION or function.__dict__:
        return _inspected(function)
    try:
        annotations = _annotations(function)
    except Exception as error:  # they are code, which runs here from Python 3.14 on
        what = f"its annotations cannot be read, {_told(error)}"
        raise _no_schema(function, "", what, _EVALUATED) from None
    code = function.__code__
    names, most = code.co_varnames, code.co_argcount
    defaults = function.__defaults__ or ()
    first = most - len(defaults)
    found: list[Parameter] = [
        (
            name,
            "",
            False,
            annotations.get(name, _EMPTY),
            defaults[at - first] if at >= first else _EMPTY,
        )
        for at, name in enumerate(names[:most])
    ]
    end = most + code.co_kwonlyargcount
    if code.co_flags & _ARGS:
        found.append((names[end], "*", False, annotations.get(names[end], _EMPTY), _EMPTY))
        end += 1
    optional = function.__kwdefaults__ or {}
    for name in names[most : most + code.co_kwonlyargcount]:
        value = optional.get(name, _EMPTY)
        found.append((name, "", True, annotations.get(name, _EMPTY), value))
    if code.co_flags & _KEYWORDS:
        found.append((names[end], "**", True, annotations.get(names[end], _EMPTY), _EMPTY))
    return found, annotations.get("return", _EMPTY), function.__globals__


def _annotations(function: Any) -> Mapping[str, object]:
    found: Mapping[str, object]
    try:
        found = function.__annotations__
    except NameError:
        if sys.version_info >= (3, 14) and places_around(function):
            # Perhaps the name of the class around it, which `evaluated` knows.
            from annotationlib import Format, get_annotations

            found = get_annotations(function, format=Format.STRING)
        else:
            raise
    return found


def _inspected(function: Any) -> tuple[list[Parameter], object, dict[str, Any]]:
    import inspect

    try:
        inner = inspect.unwrap(function, stop=lambda each: hasattr(each, "__signature__"))
        scope = getattr(inner, "__globals__", None)
        signature = inspect.signature(function) if isinstance(scope, dict) else None
    except Exception as error:
        what = f"its signature cannot be read, {_told(error)}"
        raise _no_schema(function, "", what, _EVALUATED) from None
    if signature is None:
        raise _no_schema(
            function,
            "",
            f"{shown(function)} is not a function written in Python",
            "give the function itself, or wrap what you have in one with annotations",
        )
    stars: dict[object, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    empty = inspect.Parameter.empty
    found: list[Parameter] = [
        (
            name,
            stars.get(each.kind, ""),
            each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD),
            _EMPTY if each.annotation is empty else each.annotation,
            _EMPTY if each.default is empty else each.default,
        )
        for name, each in signature.parameters.items()
    ]
    returned = signature.return_annotation
    return found, _EMPTY if returned is empty else returned, scope  # type: ignore[return-value]


def defaults_of(function: Callable[..., object]) -> dict[str, object]:
    """The function's own defaults, by parameter."""
    try:
        parameters, _, _ = signature_of(function)
    except InvalidArgumentError:  # no function of Python's, or one that cannot be read
        return {}
    return _defaults(parameters)


def _defaults(parameters: list[Parameter]) -> dict[str, object]:
    return {name: value for name, _, _, _, value in parameters if value is not _EMPTY}


class Inferred:
    """The schema of one function. ``classes`` are those that it names, by their names, and
    ``defaults`` the function's own objects, by parameter. ``around`` are the names of the classes
    around a method that its annotations name: there is no such class before its body has ended.
    """

    schema: FunctionSchema

    def __init__(
        self,
        function: Callable[..., object],
        name: OperatorName | None,
        mutates_args: object = (),
    ) -> None:
        self.function = function
        self.classes: dict[str, type] = {}
        self.around: set[str] = set()
        parameters, returned, self.globals = signature_of(function)
        self.defaults = _defaults(parameters)
        types = [self.parameter(each) for each in parameters]
        returns = self.returned(returned)
        of_torch = any(each.holds_tensors for each in (*types, *(returns or ())))
        if of_torch:
            types = [*map(_as_in_torch, types)]
            returns = None if returns is None else [*map(_as_in_torch, returns)]
        names = [each[0] for each in parameters]
        mutated = self.mutated(mutates_args, dict(zip(names, types, strict=True)))
        pieces = [*self.pieces(parameters, types, mutated)]
        text = ", ".join(map(str, returns or ()))
        if returns is None or len(returns) != 1 or text.startswith("("):
            text = f"({text})"
        try:
            self.schema = assembled(name or _NAMELESS, pieces, text)
        except SchemaSyntaxError as error:  # too many parameters, or too long
            self.fail(error.reason, _BY_HAND)

    def fail(self, what: str, remedy: str) -> NoReturn:
        told = ""
        try:
            import inspect

            signature = inspect.signature(self.function)
            told = f"  parameters: {', '.join(signature.parameters)}"
            told = f"  signature: {shown(str(signature), 400)}"
        except Exception:  # a default's own repr may do anything
            pass
        raise _no_schema(self.function, told, what, remedy) from None

    # --- arguments --------------------------------------------------------------------------------

    def parameter(self, parameter: Parameter) -> Type:
        name, _, _, annotation, _ = parameter
        plain = _PLAIN.get(annotation) if type(annotation) is type else None
        return plain or self.read(annotation, f"parameter {shown(name)}")

    def mutated(self, mutates_args: object, types: dict[str, Type]) -> frozenset[str]:
        """The names of the parameters written to."""
        tensors = [name for name, type in types.items() if _is_tensors(type)]
        if mutates_args == () or (mutates_args is NOT_SAID and not tensors):
            return frozenset()
        if mutates_args is NOT_SAID:
            raise InvalidArgumentError(
                f"{shown(getattr(self.function, '__qualname__', ''))} takes Tensors ("
                f"{', '.join(tensors)}), and {NO_WRITES} mutates_args=({tensors[0]!r},) for "
                f"{tensors[0]}"
            )
        how = "give mutates_args as a list of parameters' names, or as 'unknown'"
        if isinstance(mutates_args, str):
            if mutates_args == "unknown":
                return frozenset(tensors)
            self.fail(f"mutates_args is the str {shown(mutates_args)}", how)
        try:
            names = list(mutates_args)  # type: ignore[call-overload]
        except TypeError:
            self.fail(f"mutates_args is {shown(mutates_args)}", how)
        for name in names:
            if not isinstance(name, str):
                self.fail(f"mutates_args has {shown(name)} in it", how)
            if name not in types:
                meant = nearest(name, types)
                hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
                self.fail(f"mutates_args names {shown(name)}, which is not a parameter{hint}", how)
            if name not in tensors:
                self.fail(
                    f"parameter {shown(name)} is in mutates_args and is a {types[name]}",
                    "only Tensors and lists of them are written to: take it out of mutates_args",
                )
        return frozenset(names)

    def pieces(
        self, parameters: list[Parameter], types: list[Type], mutated: frozenset[str]
    ) -> Iterator[str]:
        """The text of each argument."""
        by_position = True
        for index, (one, of) in enumerate(zip(parameters, types, strict=True)):
            name, stars, by_keyword, _, default = one
            if by_keyword and by_position and not stars:
                yield "*"
            by_position = by_position and not by_keyword and stars != "*"
            text = of.name if not of.elements else str(of)
            if name in mutated:
                text = f"Tensor(a{index}!){text.removeprefix('Tensor')}"
            text = f"{text} {stars}{name}"
            if type(default) in _EXACT:
                text += f"={constant(default)}"
            elif default is not _EMPTY:
                text += f"={self.default(default, of, f'parameter {shown(name)}')}"
            if not is_argument(text):
                try:
                    parse_schema(f"_({text}) -> ()")
                except SchemaSyntaxError as error:
                    self.fail(
                        f"parameter {shown(name)} would be {shown(text)}, and {error.reason}",
                        "give it a name and a default that a schema can have",
                    )
            yield text

    def default(self, value: object, type: Type, what: str) -> str:
        """The text of a default. Whether it fits its type is not checked here."""
        enum = sys.modules.get("enum")
        if enum is not None and isinstance(value, enum.Enum) and not _takes(type, value):
            name = f"{self.class_name(value.__class__, what)}.{value.name}"
            if value.name is not None and is_identifier(value.name):
                return name
        made = _displayed(value)
        if made is not None:
            return made
        if isinstance(value, _of_torch("device")):
            return constant(str(value))
        if isinstance(value, _of_torch("dtype")):
            return str(value).removeprefix("torch.")
        return self.fail(
            f"{what} has a default of type {value.__class__.__qualname__}, {shown(value)}",
            "a default is None, a number, str, bytes or member of an Enum, or a list, tuple or"
            " dict of these; for any other, use None as the default and put the value in inside the"
            " function",
        )

    # --- types ------------------------------------------------------------------------------------

    def read(self, annotation: Any, what: str, depth: int = 0) -> Type:
        """The schema's type for an annotation."""
        if annotation is _EMPTY:
            return _ANY
        if isinstance(annotation, type) and not hasattr(annotation, "__origin__"):
            return _PLAIN.get(annotation) or self.of_class(annotation, what)
        if annotation is None:
            return _NONE
        if depth == _DEEPEST:
            self.fail(f"{what} is annotated more than {_DEEPEST} levels deep", _BY_HAND)
        if isinstance(annotation, str):
            return self.read(self.evaluated(annotation, what), what, depth + 1)

        def inner(each: object) -> Type:
            return self.read(each, what, depth + 1)

        if type(annotation) is _UNION:
            return _union([inner(each) for each in annotation.__args__])
        if type(annotation) is _ALIAS and not is_tensor_class(annotation.__origin__):
            return self.of_generic(annotation.__origin__, annotation.__args__, what, inner)
        import typing

        if isinstance(annotation, typing.ForwardRef):
            return inner(self.evaluated(annotation.__forward_arg__, what))
        origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is None:
            special = self.of_typing(annotation)
            if special is _EMPTY:
                self.fail_type(what, annotation)
            return inner(special)
        if origin is typing.Annotated or origin in (typing.Final, typing.ClassVar):
            return inner(inside[0])
        if origin is typing.Literal:
            return self.literal(inside, what)
        if origin is typing.Union:
            return _union([inner(each) for each in inside])
        if type(origin).__name__ == "TypeAliasType":
            return inner(annotation.__value__)
        if getattr(typing, "TypeGuard", None) is origin or getattr(typing, "TypeIs", 0) is origin:
            return _PLAIN[bool]
        if not isinstance(origin, type):
            self.fail_type(what, annotation)
        if is_tensor_class(origin):
            return Type("Tensor")
        return self.of_generic(origin, inside, what, inner)

    def of_generic(
        self,
        origin: type,
        inside: tuple[Any, ...],
        what: str,
        inner: Callable[[object], Type],
    ) -> Type:
        """A class with types in brackets."""
        if origin is list:
            return Type(Type.LIST, (inner(inside[0]) if inside else _ANY,))
        if origin is dict:
            return Type("Dict", tuple(map(inner, inside)) or (_ANY, _ANY))
        if origin is tuple and inside and inside[-1] is not ...:
            return Type(Type.TUPLE, tuple(map(inner, inside)))
        parameters = []
        for each in inside:
            if each is ...:
                parameters.append(Type("..."))
            elif isinstance(each, list):
                parameters.append(Type(Type.GROUP, tuple(map(inner, each))))
            else:
                parameters.append(inner(each))
        return Type(self.class_name(origin, what), tuple(parameters))

    def of_class(self, cls: type, what: str) -> Type:
        if cls is list or cls is dict:
            return self.of_generic(cls, (), what, self.function)  # type: ignore[arg-type]
        if cls is _of_torch("dtype"):
            return Type("ScalarType")
        if cls is _of_torch("device"):
            return Type("Device")
        if cls is _of_torch("Generator"):
            return Type("Generator")
        if cls is _of_torch("GroupName", "torch.distributed.distributed_c10d"):
            return _PLAIN[str]
        if is_tensor_class(cls):
            return Type("Tensor")
        if cls.__module__ == "typing" and cls.__name__ == "Any":
            return _ANY
        return Type(self.class_name(cls, what))

    def of_typing(self, annotation: Any) -> object:
        """The annotation that an object of ``typing`` stands for; ``_EMPTY`` if it is no type."""
        import typing

        kind = type(annotation).__name__
        if annotation is typing.Self:
            return _AnyClass
        if annotation in (typing.NoReturn, typing.Never):
            return None
        if annotation is typing.LiteralString or annotation is str:
            return str
        if kind == "NewType":
            return annotation.__supertype__
        if kind == "TypeAliasType":
            return annotation.__value__
        if kind == "TypeVar":
            if annotation.__constraints__:
                return typing.Union[annotation.__constraints__]  # noqa: UP007
            return _AnyClass if annotation.__bound__ is None else annotation.__bound__
        if kind in ("ParamSpecArgs", "ParamSpecKwargs", "TypeVarTuple", "ParamSpec"):
            return _AnyClass
        return _EMPTY

    def literal(self, values: tuple[Any, ...], what: str) -> Type:
        texts = [self.default(each, _ANY, f"the Literal of {what}") for each in values]
        return Type("Literal", tuple(map(Type, dict.fromkeys(texts))))

    def class_name(self, cls: type, what: str) -> str:
        """The name of a class in schemas, which it has from now on."""
        name = name_of(cls)
        if name:
            return name
        if _is_standard(cls):
            return cls.__name__
        name = full_name(cls)
        if name in places_around(self.function):
            self.around.add(name)  # a class of an earlier run may have the name
            return name
        if not all(map(is_identifier, name.split("."))):
            self.fail(f"{what} is of the class {shown(name)}, whose name is none", _BY_HAND)
        self.classes[name] = _checked(cls)
        return name

    def evaluated(self, text: str, what: str) -> object:
        """The object that a quoted annotation stands for."""
        try:
            try:
                return eval(text, self.globals)
            except NameError:
                return eval(text, self.globals, _stand_ins(self.function))
        except Exception as error:
            self.fail(f"{what} has the annotation {shown(text)}: {_told(error)}", _EVALUATED)

    def returned(self, annotation: object) -> list[Type] | None:
        """The types of the returns; None where nothing is returned."""
        for _ in range(_DEEPEST):  # quoted once more where the module postpones annotations
            if isinstance(annotation, str):
                annotation = self.evaluated(annotation, "the return")
        type = self.read(annotation, "the return")
        code = getattr(self.function, "__code__", None)
        if code is not None and code.co_flags & _COROUTINE:
            return [Type("Coroutine", (_ANY, _ANY, type))]
        if type.name == Type.TUPLE and len(type.elements) > 1:
            return [*type.elements]
        return None if type is _NONE else [type]

    def fail_type(self, what: str, annotation: object) -> NoReturn:
        self.fail(f"{what} has the annotation {shown(annotation)}, which is no type", _BY_HAND)


class _AnyClass:
    """Stands for Any among classes."""


_PLAIN[_AnyClass] = _ANY


def places_around(function: object) -> dict[str, tuple[str, str]]:
    """The names of the classes around a method, from the outermost on, each with the module and
    the path at which it will be.
    """
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    outside, local, inside = path.rpartition("<locals>.")
    if "." not in inside or not isinstance(module, str):
        return {}
    module, found, parts = _MAIN.get(module, module), {}, inside.split(".")[:-1]
    for most in range(1, len(parts) + 1):
        path = outside + local + ".".join(parts[:most])
        found[f"{module}.{path.replace('<locals>.', '')}"] = module, path
    return found


def _stand_ins(function: object) -> dict[str, type]:
    """Classes in place of those around a method, for the annotations that name them."""
    made: type | None = None
    for module, path in reversed(places_around(function).values()):
        own = {"__module__": module, "__qualname__": path}
        made = type(path.rpartition(".")[2], (), own if made is None else own | _named(made))
    return {} if made is None else _named(made)


def _named(cls: type) -> dict[str, type]:
    return {cls.__name__: cls}


def _is_standard(cls: type) -> bool:
    """Whether it is known by its name alone."""
    return STANDARD.get(cls.__name__) == cls.__module__


def full_name(cls: type) -> str:
    """The name of a class: that of the nearest public module that has it, and its own."""
    module, name = cls.__module__, cls.__qualname__.replace("<locals>.", "")
    if module == "builtins" and getattr(sys.modules[module], name, None) is not cls:
        import types

        return next((f"types.{each}" for each in types.__all__ if vars(types)[each] is cls), name)
    home = module = _MAIN.get(module, module)
    while "_" in (part[:1] for part in home.split(".")) and home != "__main__":
        home = home.rpartition(".")[0] if "." in home else home[1:]
        if getattr(sys.modules.get(home), name, None) is cls:
            module = home
    return f"{module}.{name}"


def _checked(cls: type) -> type:
    """The class of which the values of such a type are."""
    if getattr(cls, "_is_protocol", False) and not getattr(cls, "_is_runtime_protocol", False):
        return object
    if cls.__module__ == "typing" and cls.__name__ in ("IO", "TextIO", "BinaryIO"):
        return object  # no file is of these
    is_typed_dict = issubclass(cls, dict) and hasattr(cls, "__total__")
    return dict if is_typed_dict else cls


def _union(members: list[Type]) -> Type:
    """A Union, or the one type that is left of it. Its members have one order, and each is there
    once.
    """
    flat: dict[str, Type] = {}
    optional = False
    for each in members:
        if each is _NONE:
            optional = True
        elif each.name == Type.OPTIONAL:
            optional = True
            flat[str(each.elements[0])] = each.elements[0]
        elif each.name == "Union":
            flat |= {str(one): one for one in each.elements}
        else:
            flat[str(each)] = each
    if not flat:
        return _NONE
    if "Any" in flat or "object" in flat:
        return _ANY
    inner = [flat[text] for text in sorted(flat)]
    type = inner[0] if len(inner) == 1 else Type("Union", tuple(inner))
    return Type(Type.OPTIONAL, (type,)) if optional else type


def _is_tensors(type: Type) -> bool:
    """Whether PyTorch may write to it: a Tensor, or a list of them."""
    return str(type) in ("Tensor", "Tensor?", "Tensor[]", "Tensor?[]")


def _as_in_torch(type: Type) -> Type:
    """The type that PyTorch infers where it infers one."""
    if type.name == "int":
        return Type("SymInt")
    if type.name == "Union" and {each.name for each in type.elements} == _NUMBERS:
        return Type("Scalar")
    if not type.elements or type.name == "Literal":
        return type
    if type.name == "Sequence" and _in_lists(type.elements[0]):
        return Type(Type.LIST, (_as_in_torch(type.elements[0]),))
    return Type(type.name, tuple(map(_as_in_torch, type.elements)), type.size)


def _in_lists(type: Type) -> bool:
    return str(type) in _IN_LISTS or str(_as_in_torch(type)) == "Scalar"


def _takes(type: Type, value: object) -> bool:
    """Whether a type takes the member of an Enum for the number or the text that it is, too."""
    while type.name in (Type.OPTIONAL, Type.LIST):
        type = type.elements[0]
    its = {"int": int, "SymInt": int, "float": float, "Scalar": (int, float), "str": str}
    return isinstance(value, its.get(type.name, ()))  # type: ignore[arg-type]


def _displayed(value: object) -> str | None:
    """The text of a default that is made of plain values; None for any other."""
    node = _node(value, 0)
    return None if node is _EMPTY else constant(node)


def _node(value: object, depth: int) -> Any:
    # Not by str(): that of an enum shows a name.
    if value is None or isinstance(value, (bool, bytes)):
        return value
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value) if value - value == 0 else _EMPTY
    if isinstance(value, complex):
        return complex(value) if value - value == 0 else _EMPTY
    if isinstance(value, str):
        return str.__str__(value)
    items: list[Any]
    if depth < _DEEPEST and type(value) in (list, tuple):
        items = [_node(each, depth + 1) for each in value]  # type: ignore[attr-defined]
        kind = Display.LIST if type(value) is list else Display.TUPLE
        return _EMPTY if _EMPTY in items else Display(kind, tuple(items))
    if depth < _DEEPEST and type(value) is dict:
        items = [(_node(key, depth + 1), _node(each, depth + 1)) for key, each in value.items()]
        is_plain = all(_EMPTY not in pair for pair in items)
        return Display(Display.DICT, tuple(items)) if is_plain else _EMPTY
    return _EMPTY


def _of_torch(name: str, module: str = "torch") -> Any:
    """The object of this name in torch, if torch is loaded; else a class without instances."""
    return getattr(sys.modules.get(module), name, _Absent)


class _Absent:
    """Stands for the classes of a library that is not there."""
