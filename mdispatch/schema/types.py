"""The parts of a schema (types, alias annotations, arguments) and how each is written.

The text that they print is canonical: equal schemas print alike, and the text parses back to an
equal schema. The registry stores and compares only this text, so printing is part of the shared
format. The spellings are PyTorch's, except where PyTorch's own print does not parse back:

- a Device default is written in quotes, as it must be given;
- ``Tensor!`` prints so, and not with an invented alias name;
- the names of an alias set are sorted, and so are the members of a Union, without repetition;
- ``x=1`` for [1, 1] is written only where the type has a size, which gives the number of elements;
- alias annotations inside tuples, dicts and unions are written, too;
- a float is always written with a dot or an exponent, so that a Scalar keeps its type;
- a string keeps its letters, except that control characters are escaped.
"""

from __future__ import annotations

from .classes import STANDARD, class_of
from .names import OperatorName, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

    #: The type of a default; a tuple stands for a list.
    Literal: TypeAlias = (
        "bool | int | float | complex | str | bytes | Display | tuple[Literal, ...] | None"
    )

#: By letter of a string that must be escaped: the letter after the backslash.
ESCAPES = dict(zip("\\'\"\a\b\f\n\r\t\v", "\\'\"abfnrtv", strict=True))


class AliasInfo(Value):
    """The memory that a value shares, and whether the operator writes to it.

    Written ``(a!)``, ``(a! -> b)`` or just ``!``. ``before`` and ``after`` are the sorted alias
    sets before and after the call, ("*",) being the wildcard; both are empty for a bare ``!``.
    ``contained`` holds the annotations of the types inside, one for each or none at all.
    """

    __slots__ = __match_args__ = ("before", "after", "is_write", "contained")

    def __init__(
        self,
        before: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        is_write: bool = False,
        contained: tuple[AliasInfo | None, ...] = (),
    ) -> None:
        self.before = before
        self.after = after
        self.is_write = is_write
        self.contained = contained

    @property
    def writes(self) -> bool:
        """Whether anything here is written to, contained types included."""
        return self.is_write or any(inner is not None and inner.writes for inner in self.contained)

    def __str__(self) -> str:
        if not self.before:
            return "!" if self.is_write else ""
        after = f" -> {'|'.join(self.after)}" if self.after != self.before else ""
        return f"({'|'.join(self.before)}{'!' * self.is_write}{after})"


class Display(Value):
    """A default that is made of others, or the member of an Enum by its name.

    ``kind`` is LIST, TUPLE, DICT (``items`` are pairs) or NAME (``items`` is the name alone, as
    "shop.Color.RED").
    """

    __slots__ = __match_args__ = ("kind", "items")

    LIST, TUPLE, DICT, NAME = "[]", "()", "{}", ""

    def __init__(self, kind: str, items: tuple[Any, ...]) -> None:
        self.kind = kind
        self.items = items

    def _key(self) -> object:
        return str(self)  # since 1, 1.0 and True are equal

    def made(self) -> Any:
        """A new object. LookupError for the member of a class that is not known here."""
        if self.kind == Display.NAME:
            name, _, member = self.items[0].rpartition(".")
            return class_of(name)[member]  # type: ignore[index]  # TypeError where there is none
        if self.kind == Display.DICT:
            return {made(key): made(value) for key, value in self.items}
        items = [made(each) for each in self.items]
        return items if self.kind == Display.LIST else tuple(items)

    def __str__(self) -> str:
        if self.kind == Display.NAME:
            return str(self.items[0])
        if self.kind == Display.DICT:
            inside = ", ".join(f"{constant(key)}: {constant(each)}" for key, each in self.items)
        else:
            inside = ", ".join(map(constant, self.items))
            inside += "," * (self.kind == Display.TUPLE and len(self.items) == 1)
        return f"{self.kind[0]}{inside}{self.kind[1]}"


def made(value: Any) -> Any:
    """The object that a default stands for, a new one if it can be changed."""
    return value.made() if isinstance(value, Display) else value


class Type(Value):
    """A type: a plain one by its name ("Tensor", "int", "Any"), a class by its name ("set",
    "shop.Tokenizer"), or one made of others.

    ``name`` is then LIST, OPTIONAL, TUPLE, "Dict", "Union", "Future", "Await" or "RRef", and
    ``elements`` are the types inside. ``size`` is the N of ``int[N]``, else None. A class may have
    parameters, ``set[int]``, which are its ``elements``; among these may be "..." and a GROUP, as
    in ``Callable[[int], str]``. The elements of "Literal" have the texts of its values as names.
    """

    __slots__ = __match_args__ = ("name", "elements", "size")

    LIST = "[]"
    OPTIONAL = "?"
    TUPLE = "()"
    GROUP = "[,]"

    def __init__(self, name: str, elements: tuple[Type, ...] = (), size: int | None = None) -> None:
        self.name = name
        self.elements = elements
        self.size = size

    @property
    def is_list(self) -> bool:
        """Whether its values are lists, or None."""
        inner = self.elements[0] if self.name == Type.OPTIONAL else self
        return inner.name == Type.LIST

    @property
    def is_class(self) -> bool:
        """Whether it is a class by its name, "shop.Tokenizer", with parameters or without."""
        return ("." in self.name and self.name != "...") or self.name in STANDARD

    @property
    def is_open(self) -> bool:
        """Whether its values are of several classes, and stay as they are in a call."""
        return self.name in ("Any", "object", "Union", "Scalar", Type.OPTIONAL) or self.is_class

    @property
    def names_classes(self) -> bool:
        """Whether it is a class whose name can come to mean another one, or has one inside."""
        if "." in self.name:
            return self.name != "..."
        return bool(self.elements) and any(element.names_classes for element in self.elements)

    @property
    def holds_tensors(self) -> bool:
        """Whether values of this type are or hold Tensors."""
        return self.name == "Tensor" or any(element.holds_tensors for element in self.elements)

    @property
    def is_dispatched(self) -> bool:
        """Whether values of this type contribute their keys to a call's key set."""
        item = self.elements[0] if self.name == Type.LIST else self
        item = item.elements[0] if item.name == Type.OPTIONAL else item
        return item.name == "Tensor"

    def __str__(self) -> str:
        return self.annotated(None)

    def annotated(self, alias: AliasInfo | None) -> str:
        """The type as it is written with this annotation."""
        own = "" if alias is None else str(alias)
        if self.name == Type.OPTIONAL:
            return self.elements[0].annotated(alias) + "?"
        if not self.elements:
            return ("[]" if self.name == Type.GROUP else self.name) + own
        if self.is_class or self.name in ("Literal", Type.GROUP):
            name = self.name.removesuffix(Type.GROUP)
            return f"{name}[{', '.join(map(str, self.elements))}]{own}"
        contained = (alias.contained if alias else ()) or (None,) * len(self.elements)
        inner = [e.annotated(a) for e, a in zip(self.elements, contained, strict=True)]
        if self.name == Type.LIST:
            return f"{inner[0]}[{'' if self.size is None else self.size}]{own}"
        return f"{'' if self.name == Type.TUPLE else self.name}({', '.join(inner)}){own}"


class Argument(Value):
    """An argument of a schema, or a return. ``default`` counts only if ``has_default``. ``stars``
    are those before the name of one that takes all further arguments: "*", "**".
    """

    __slots__ = __match_args__ = (
        "name",
        "type",
        "default",
        "has_default",
        "kwarg_only",
        "alias_info",
        "stars",
    )

    def __init__(
        self,
        name: str,
        type: Type,
        default: Literal = None,
        has_default: bool = False,
        kwarg_only: bool = False,
        alias_info: AliasInfo | None = None,
        stars: str = "",
    ) -> None:
        self.name = name
        self.type = type
        self.stars = stars
        self.default = default
        self.has_default = has_default
        self.kwarg_only = kwarg_only
        self.alias_info = alias_info

    def _key(self) -> object:
        # By the text, because 1, 1.0 and True are equal and not the same default.
        return str(self), self.kwarg_only

    def __str__(self) -> str:
        text = self.type.annotated(self.alias_info)
        if self.name:
            text += f" {self.stars}{self.name}"
        if self.has_default:
            text += "=" + _written(self.default, self.type)
        return text


class FunctionSchema(Value):
    """An operator's name, arguments and returns; ``str`` of it is the canonical text.

    ``is_vararg`` and ``is_varret`` say that "..." ends the arguments or the returns. ``rest`` is
    the argument that takes all further values by position (``int *rest``), ``others`` the one that
    takes those by keyword (``int **others``); they are not among ``arguments``, and with ``rest``
    the schema ``is_vararg``, too. Made by ``parse_schema``, which checks what this takes for
    granted.
    """

    __match_args__ = ("name", "arguments", "returns", "is_vararg", "is_varret", "rest", "others")
    __slots__ = (*__match_args__[:5], "_starred", "_text")

    def __init__(
        self,
        name: OperatorName,
        arguments: tuple[Argument, ...],
        returns: tuple[Argument, ...],
        is_vararg: bool = False,
        is_varret: bool = False,
        rest: Argument | None = None,
        others: Argument | None = None,
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.returns = returns
        self.is_vararg = is_vararg or rest is not None
        self.is_varret = is_varret
        self._starred = rest, others
        self._text = f"{name}({', '.join(self._items())}) -> {self._returned()}"

    @property
    def rest(self) -> Argument | None:
        """The argument that takes all further values by position."""
        return self._starred[0]

    @property
    def others(self) -> Argument | None:
        """The argument that takes all further values by keyword."""
        return self._starred[1]

    @property
    def is_open(self) -> bool:
        """Whether calls may have more arguments than it names."""
        return self.is_vararg or self.others is not None

    @property
    def stars(self) -> tuple[str, ...]:
        """The texts of the arguments that take all further ones."""
        return tuple(str(each) for each in (self.rest, self.others) if each is not None)

    @property
    def is_mutable(self) -> bool:
        """Whether an argument is written to."""
        return any(a.alias_info is not None and a.alias_info.writes for a in self.arguments)

    @property
    def dispatch_arguments(self) -> tuple[int, ...]:
        """The positions of the arguments whose keys decide: Tensor, Tensor?, Tensor[], Tensor?[].

        (c10: DispatchKeyExtractor::makeBitsetForDispatchArgs)
        """
        return tuple(
            index for index, argument in enumerate(self.arguments) if argument.type.is_dispatched
        )

    @property
    def type_arguments(self) -> tuple[int, ...]:
        """The positions of the arguments whose classes choose among kernels for types: the Tensor
        arguments. Without any, those by position of which a call takes values of several classes.
        """
        tensors = self.dispatch_arguments
        if tensors or any(each.type.holds_tensors for each in self.arguments):
            return tensors
        return tuple(
            index
            for index, argument in enumerate(self.arguments)
            if not argument.kwarg_only and argument.type.is_open
        )

    def _items(self) -> Iterator[str]:
        positional = True
        for argument in self.arguments:
            if argument.kwarg_only and positional:
                positional = False
                yield "*" if self.rest is None else str(self.rest)
            yield str(argument)
        if self.rest is not None and positional:
            yield str(self.rest)
        if self.is_vararg and self.rest is None:
            yield "..."
        if self.others is not None:
            yield str(self.others)

    def _returned(self) -> str:
        items = [str(item) for item in self.returns] + ["..."] * self.is_varret
        # A single one goes without parentheses, unless they would be taken for those of the list.
        if len(items) == 1 and not items[0].startswith("("):
            return items[0]
        return f"({', '.join(items)})"

    def _key(self) -> object:
        return self._text

    def __str__(self) -> str:
        return self._text


def _written(value: Literal, type: Type) -> str:
    """A default as it is written for an argument of this type."""
    if isinstance(value, tuple):
        optional = type.name == Type.OPTIONAL
        listed = type.elements[0] if optional else type
        element = listed.elements[0]
        same = listed.size == len(value) > 1 and value.count(value[0]) == len(value)
        # An optional list can only be given by its one number. Of the others PyTorch shortens ints.
        if optional or (same and element.name == "int"):
            return _written(value[0], element)
        return f"[{', '.join(_written(item, element) for item in value)}]"
    if isinstance(value, float):
        text = format(value, ".17g")
        return text if "." in text or "e" in text else text + "."
    if isinstance(value, (bytes, Display)):
        return constant(value)
    if isinstance(value, complex):
        sign = "-" if value.imag < 0 else "+"
        return f"{_written(value.real, type)}{sign}{_written(abs(value.imag), type)}j"
    if isinstance(value, str):
        return '"' + "".join(map(_escaped, value)) + '"'
    return str(value)


_ANY = Type("Any")


def constant(value: Any) -> str:
    """A value in a default of any type."""
    if isinstance(value, bytes):
        return "b" + _written(value.decode("latin-1"), _ANY)
    return str(value) if isinstance(value, Display) else _written(value, _ANY)


def _escaped(letter: str) -> str:
    if letter in ESCAPES:
        return "\\" + ESCAPES[letter]
    return letter if letter.isprintable() or ord(letter) > 0o377 else f"\\{ord(letter):03o}"
