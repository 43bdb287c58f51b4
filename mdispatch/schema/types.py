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

from .names import OperatorName, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    #: The type of a default; a tuple stands for a list.
    Literal = None | bool | int | float | complex | str | tuple["Literal", ...]

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


class Type(Value):
    """A type: a plain one by its name ("Tensor", "int", "Any"), a registered class by its name
    ("shop.Tokenizer"), or one made of others.

    ``name`` is then LIST, OPTIONAL, TUPLE, "Dict", "Union", "Future", "Await" or "RRef", and
    ``elements`` are the types inside. ``size`` is the N of ``int[N]``, else None.
    """

    __slots__ = __match_args__ = ("name", "elements", "size")

    LIST = "[]"
    OPTIONAL = "?"
    TUPLE = "()"

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
        """Whether it is the name of a registered class, "shop.Tokenizer"."""
        return "." in self.name

    @property
    def names_classes(self) -> bool:
        """Whether it is one, or has one inside."""
        return self.is_class or any(element.names_classes for element in self.elements)

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
            return self.name + own
        contained = (alias.contained if alias else ()) or (None,) * len(self.elements)
        inner = [e.annotated(a) for e, a in zip(self.elements, contained, strict=True)]
        if self.name == Type.LIST:
            return f"{inner[0]}[{'' if self.size is None else self.size}]{own}"
        return f"{'' if self.name == Type.TUPLE else self.name}({', '.join(inner)}){own}"


class Argument(Value):
    """An argument of a schema, or a return. ``default`` counts only if ``has_default``."""

    __slots__ = __match_args__ = (
        "name",
        "type",
        "default",
        "has_default",
        "kwarg_only",
        "alias_info",
    )

    def __init__(
        self,
        name: str,
        type: Type,
        default: Literal = None,
        has_default: bool = False,
        kwarg_only: bool = False,
        alias_info: AliasInfo | None = None,
    ) -> None:
        self.name = name
        self.type = type
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
            text += " " + self.name
        if self.has_default:
            text += "=" + _written(self.default, self.type)
        return text


class FunctionSchema(Value):
    """An operator's name, arguments and returns; ``str`` of it is the canonical text.

    ``is_vararg`` and ``is_varret`` say that "..." ends the arguments or the returns. Made by
    ``parse_schema``, which checks what this takes for granted.
    """

    __match_args__ = ("name", "arguments", "returns", "is_vararg", "is_varret")
    __slots__ = (*__match_args__, "_text")

    def __init__(
        self,
        name: OperatorName,
        arguments: tuple[Argument, ...],
        returns: tuple[Argument, ...],
        is_vararg: bool = False,
        is_varret: bool = False,
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.returns = returns
        self.is_vararg = is_vararg
        self.is_varret = is_varret
        self._text = f"{name}({', '.join(self._items())}) -> {self._returned()}"

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

    def _items(self) -> Iterator[str]:
        positional = True
        for argument in self.arguments:
            if argument.kwarg_only and positional:
                positional = False
                yield "*"
            yield str(argument)
        if self.is_vararg:
            yield "..."

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
    if isinstance(value, complex):
        sign = "-" if value.imag < 0 else "+"
        return f"{_written(value.real, type)}{sign}{_written(abs(value.imag), type)}j"
    if isinstance(value, str):
        return '"' + "".join(map(_escaped, value)) + '"'
    return str(value)


def _escaped(letter: str) -> str:
    if letter in ESCAPES:
        return "\\" + ESCAPES[letter]
    return letter if letter.isprintable() or ord(letter) > 0o377 else f"\\{ord(letter):03o}"
