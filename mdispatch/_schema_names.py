"""The names of operators, what can be a name, and the base of all values of schemas."""

from __future__ import annotations

from .errors import InvalidNameError

__all__ = ["MAX_NAME", "OperatorName", "Value", "is_identifier"]

#: More letters than this no namespace, operator or overload has.
MAX_NAME = 255

# Words that PyTorch's lexer takes for its own.
_RESERVED = frozenset(
    (
        *("def", "if", "else", "for", "in", "is", "and", "or", "not", "None", "True", "False"),
        *("import", "class", "with", "as", "del", "pass", "global", "raise", "assert", "break"),
        *("continue", "return", "while", "Ellipsis", "NoneType"),
    )
)


def is_identifier(text: str) -> bool:
    """Whether the text can name something in a schema: letters of ASCII, digits and underscores."""
    return text.isascii() and text.isidentifier() and text not in _RESERVED


class Value:
    """Base of the values here: equal by content, hashable, and never changed once made.

    A subclass names its fields, in the order of its constructor, in ``__slots__ = __match_args__``.
    """

    __slots__ = ()
    __match_args__: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: object) -> None:
        if hasattr(self, name):
            raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted")

    def _fields(self) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in self.__match_args__])

    def _key(self) -> object:
        """What is compared."""
        return self._fields()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Value) and type(other) is type(self) and other._key() == self._key()
        )

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), self._fields()


class OperatorName(Value):
    """``namespace::name.overload``; namespace and overload may be empty.

    InvalidNameError for a part that is no identifier or too long, and for an overload that is
    "default", which means the empty one elsewhere, or starts with two underscores, which would hide
    Python attributes.
    """

    __slots__ = __match_args__ = ("namespace", "name", "overload")

    def __init__(self, namespace: str, name: str, overload: str = "") -> None:
        for what, part in (("namespace", namespace), ("name", name), ("overload", overload)):
            if part or what == "name":
                _check_part(what, part)
        if overload == "default" or overload.startswith("__"):
            raise InvalidNameError(f"{overload!r} cannot be the name of an overload", overload)
        self.namespace = namespace
        self.name = name
        self.overload = overload

    @classmethod
    def parse(cls, text: str) -> OperatorName:
        """The name in a text such as "ns::add.out"; blanks around it do not matter."""
        if not isinstance(text, str):
            raise InvalidNameError(f"an operator's name is a str, not {text!r}", text)
        namespace, colons, rest = text.strip(" \t\r\n").rpartition("::")
        name, dot, overload = rest.partition(".")
        if (colons and not namespace) or (dot and not overload):
            raise InvalidNameError(f"{text!r} lacks a part of a name", text)
        return cls(namespace, name, overload)

    def within(self, namespace: str | None) -> OperatorName:
        """The name for a library of this namespace; None leaves it as it is.

        InvalidNameError when it names another one.
        """
        if namespace is None or namespace == self.namespace:
            return self
        if self.namespace:
            raise InvalidNameError(
                f"{self} is not in the namespace {namespace!r} of its library: define it in another"
                " library, or leave the namespace out",
                str(self),
            )
        return OperatorName(namespace, self.name, self.overload)

    @property
    def qualified(self) -> str:
        """The name without the overload: what all overloads share."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.qualified}.{self.overload}" if self.overload else self.qualified


def _check_part(what: str, part: str) -> None:
    if not is_identifier(part):
        reason = "is a reserved word" if part in _RESERVED else "is not an identifier"
        raise InvalidNameError(f"{part[:MAX_NAME]!r} {reason}: it cannot be a {what}", part)
    if len(part) > MAX_NAME:
        raise InvalidNameError(f"the {what} {part[:20]}... is longer than {MAX_NAME} letters", part)
