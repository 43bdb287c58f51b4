"""The rules for names of operators, arguments and devices."""

from __future__ import annotations

#: The most letters that a namespace, operator, overload or device can have.
MAX_NAME = 255

#: Words that PyTorch's lexer reserves.
RESERVED = frozenset(
    (
        *("def", "if", "else", "for", "in", "is", "and", "or", "not", "None", "True", "False"),
        *("import", "class", "with", "as", "del", "pass", "global", "raise", "assert", "break"),
        *("continue", "return", "while", "Ellipsis", "NoneType"),
    )
)


def is_identifier(text: str) -> bool:
    """Whether the text can name something in a schema: letters of ASCII, digits and underscores."""
    return text.isascii() and text.isidentifier() and text not in RESERVED
