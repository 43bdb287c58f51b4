"""The names of operators, the base class of all values of schemas, and that of what has a name."""

from __future__ import annotations

from ..errors import InvalidNameError, SchemaSyntaxError
from ..keys.names import MAX_NAME, RESERVED, is_identifier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_BLANKS = " \t\r\n"


#: For constructors: what is made is not yet anybody's, and has nothing that could be overwritten.
set_once = object.__setattr__


class Value:
    """Base of the values of schemas: equal by content, hashable, immutable.

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
        """The value that equality and hash go by."""
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


class Named:
    """Base of objects that stand for a name: operators, packets, namespaces. A copy is the object
    itself; a pickle holds the name (see registry/travel.py).
    """

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


class OperatorName(Value):
    """``namespace::name.overload``; namespace and overload may be empty.

    InvalidNameError for a part that is no identifier or too long. An overload must not be
    "default", which elsewhere means the empty one, and must not start with two underscores, which
    would hide Python attributes.
    """

    __slots__ = __match_args__ = ("namespace", "name", "overload")
    namespace: str
    name: str
    overload: str

    def __init__(self, namespace: str, name: str, overload: str = "") -> None:
        if namespace != "" and not is_plain_name(namespace):
            _check_part("namespace", namespace)
        if not is_plain_name(name):
            _check_part("name", name)
        if overload != "":
            if not is_plain_name(overload):
                _check_part("overload", overload)
            if overload == "default":
                raise _invalid(
                    overload, "cannot name an overload: the overload without a name is called that"
                )
            if overload.startswith("__"):
                raise _invalid(
                    overload, "starts like Python's own attributes: it cannot be an overload"
                )
        set_once(self, "namespace", namespace)
        set_once(self, "name", name)
        set_once(self, "overload", overload)

    @classmethod
    def parse(cls, text: str) -> OperatorName:
        """The name in a text such as "ns::add.out". Blanks around it and around its colons are
        ignored. InvalidNameError.
        """
        if not isinstance(text, str):
            raise _invalid(text, "is not a str: it cannot be the name of an operator")
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
        """The name without the overload, which all overloads share."""
        return f"{self.namespace}::{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.qualified}.{self.overload}" if self.overload else self.qualified


_A = {"namespace": "a namespace", "name": "a name", "overload": "an overload"}


def _check_part(what: str, part: str) -> None:
    if part in RESERVED:
        raise _invalid(part, f"is a reserved word: it cannot be {_A[what]}")
    if not is_identifier(part):
        raise _invalid(part, f"is not an identifier: it cannot be {_A[what]}")
    if len(part) > MAX_NAME:
        raise _invalid(part, f"has more than {MAX_NAME} letters: it cannot be {_A[what]}")


def _invalid(name: object, fault: str) -> InvalidNameError:
    from ..errors.words import shown

    return InvalidNameError(f"{shown(name)} {fault}", name)


def is_plain_name(text: str) -> bool:
    """Whether the text is one word, without namespace and overload. Nearly all names are."""
    return (  # is_identifier() written out, to save a call: every registration asks this
        text.isascii() and text.isidentifier() and text not in RESERVED and len(text) <= MAX_NAME
    )


def split_name(text: str, namespace: str | None = None) -> str:
    """The full name of the operator that a schema declares, without parsing the rest of it.

    ``namespace`` is that of the library, as for parse_schema. SchemaSyntaxError for a text without
    arguments; InvalidNameError if the text before them is no name, or one of another namespace.
    """
    head, parenthesis, _ = text.partition("(")
    if not parenthesis:
        raise SchemaSyntaxError("a schema has '(' after the name", text, len(text))
    if namespace and is_plain_name(head) and is_plain_name(namespace):
        return f"{namespace}::{head}"
    return str(OperatorName.parse(head).within(namespace))
