"""The names of operators, what can be a name, and the base of all values of schemas."""

from __future__ import annotations

from .errors import InvalidNameError, SchemaSyntaxError

__all__ = ["MAX_NAME", "OperatorName", "Value", "is_identifier", "is_plain_name", "split_name"]

_BLANKS = " \t\r\n"
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
        if overload == "default":
            raise _invalid(overload, "is what the overload without a name is called")
        if overload.startswith("__"):
            raise _invalid(overload, "starts as Python's own attributes: it cannot be an overload")
        self.namespace = namespace
        self.name = name
        self.overload = overload

    @classmethod
    def parse(cls, text: str) -> OperatorName:
        """The name in a text such as "ns::add.out". Blanks around it and its colons are nothing.
        InvalidNameError.
        """
        if not isinstance(text, str):
            raise _invalid(text, "is no str: it cannot be the name of an operator")
        namespace, colons, rest = text.strip(_BLANKS).rpartition("::")
        namespace, rest = namespace.rstrip(_BLANKS), rest.lstrip(_BLANKS)
        name, dot, overload = rest.partition(".")
        if (colons and not namespace) or (dot and not overload):
            raise _invalid(text, "lacks a part of a name")
        return cls(namespace, name, overload)

    def within(self, namespace: str | None) -> OperatorName:
        """The name for a library of this namespace; None leaves it as it is.

        InvalidNameError when it names another one.
        """
        if namespace is None or namespace == self.namespace:
            return self
        if self.namespace:
            raise _invalid(
                str(self),
                f"is not in the namespace {namespace!r:.60} of its library: define it in another"
                " library, or leave the namespace out",
            )
        return OperatorName(namespace, self.name, self.overload)

    @property
    def qualified(self) -> str:
        """The name without the overload: what all overloads share."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.qualified}.{self.overload}" if self.overload else self.qualified


_A = {"namespace": "a namespace", "name": "a name", "overload": "an overload"}


def _check_part(what: str, part: str) -> None:
    if part in _RESERVED:
        raise _invalid(part, f"is a reserved word: it cannot be {_A[what]}")
    if not is_identifier(part):
        raise _invalid(part, f"is not an identifier: it cannot be {_A[what]}")
    if len(part) > MAX_NAME:
        raise _invalid(part, f"has more than {MAX_NAME} letters: it cannot be {_A[what]}")


def _invalid(name: object, fault: str) -> InvalidNameError:
    from ._nearest import shown

    return InvalidNameError(f"{shown(name)} {fault}", name)


def is_plain_name(text: str) -> bool:
    """Whether it is a name as nearly all are: one word, without namespace and overload."""
    return (  # as is_identifier, without a call of its own: every registration asks
        text.isascii() and text.isidentifier() and text not in _RESERVED and len(text) <= MAX_NAME
    )


def split_name(text: str, namespace: str | None = None) -> str:
    """The full name of the operator that a schema declares, without parsing the rest of it.

    ``namespace`` is that of the library, as for parse_schema. SchemaSyntaxError for a text without
    arguments; InvalidNameError if what stands before them is no name, or one of another namespace.
    """
    head, parenthesis, _ = text.partition("(")
    if not parenthesis:
        raise SchemaSyntaxError("a schema has '(' after the name", text, len(text))
    if namespace and is_plain_name(head) and is_plain_name(namespace):
        return f"{namespace}::{head}"
    return str(OperatorName.parse(head).within(namespace))
