"""The tokens of schemas: words, numbers, strings, and the blanks and comments between them.

Every fault of a text ends in ``fail``, which raises a SchemaSyntaxError that shows the location.
"""

from __future__ import annotations

from ..errors import SchemaSyntaxError
from ..keys.names import MAX_NAME, is_identifier
from .types import ESCAPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: Bytes of a schema: its definition must fit into one record of the registry.
MAX_TEXT = 1 << 16

#: What is meant by letters that Python's annotations have and schemas have not.
_HINTS = {
    "|": ": write str? for a str or None, Union(int, str) for any of several types",
    ":": ": the type comes before the name, without a colon",
}

_BLANK = " \t\r\f\v"
_DEPTH = {"(": 1, "[": 1, ")": -1, "]": -1}
_DIGITS = frozenset("0123456789")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_WORD = _LETTERS | _DIGITS
_UNESCAPED = {escape: letter for letter, escape in ESCAPES.items()}


class Scanner:
    """A text and a position in it.

    Blanks may stand between tokens. Line ends may, too, but only inside brackets: two schemas on
    two lines must never read as one.
    """

    __slots__ = ("depth", "pos", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.depth = 0
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            self.fail("this is half a character (a lone surrogate)", error.start)
        if size > MAX_TEXT:
            self.fail(f"the schema has {size} bytes, more than {MAX_TEXT}", 0)

    def fail(self, reason: str, position: int | None = None) -> NoReturn:
        raise SchemaSyntaxError(reason, self.text, self.pos if position is None else position)

    def fail_expecting(self, what: str) -> NoReturn:
        start = self.skip()
        found = self.word() or self.text[start : start + 1]
        hint = _HINTS.get(found, "")
        self.fail(f"expected {what}, found {f'{found!r:.60}' if found else 'the end'}{hint}", start)

    def skip(self) -> int:
        """Pass over blanks and comments; return the position after them."""
        text, pos = self.text, self.pos
        while pos < len(text):
            letter = text[pos]
            if letter == "#":
                line_end = text.find("\n", pos)
                pos = len(text) if line_end < 0 else line_end
            elif letter in _BLANK or (letter == "\n" and self.depth):
                pos += 1
            else:
                break
        self.pos = pos
        return pos

    def at(self, token: str) -> bool:
        return self.text.startswith(token, self.skip())

    def accept(self, token: str) -> bool:
        if not self.at(token):
            return False
        self.pos += len(token)
        self.depth += _DEPTH.get(token, 0)
        return True

    def expect(self, token: str) -> None:
        if not self.accept(token):
            self.fail_expecting(repr(token))

    def _run(self, letters: frozenset[str]) -> str:
        start = end = self.pos
        text = self.text
        while end < len(text) and text[end] in letters:
            end += 1
        self.pos = end
        return text[start:end]

    def word(self) -> str:
        """The letters and digits that come next; "" if they do not start with a letter."""
        return self._run(_WORD) if self.at_word() else ""

    def at_word(self) -> bool:
        return self.text[self.skip() : self.pos + 1] in _LETTERS

    def identifier(self, what: str) -> str:
        start = self.skip()
        word = self.word()
        if not word:
            self.fail_expecting(what)
        if not is_identifier(word):
            self.fail(f"{word!r:.60} is a reserved word and cannot be {what}", start)
        if len(word) > MAX_NAME:
            self.fail(f"{what} has more than {MAX_NAME} letters", start)
        return word

    def size(self, most: int) -> int:
        """A number from 1 to ``most``."""
        start = self.skip()
        digits = self._run(_DIGITS)
        if not digits:
            self.fail_expecting("a number or ']'")
        if len(digits) > len(str(most)) or not 1 <= int(digits) <= most:
            self.fail(f"a list has a size from 1 to {most}", start)
        return int(digits)

    def number(self) -> int | float | complex:
        """An int of 64 bits, a float, or a complex, which is written as ``1.5j`` or ``0.+1.5j``."""
        start = self.skip()
        value = self._real_or_imaginary()
        if not isinstance(value, complex) and (self.at("+") or self.at("-")):
            self.accept("+")
            other = self._real_or_imaginary()
            if not isinstance(other, complex):
                self.fail("a sum has an imaginary second part: 1.+2.j", start)
            return complex(value, other.imag)
        return value

    def _real_or_imaginary(self) -> int | float | complex:
        sign = -1 if self.accept("-") else 1
        start = self.skip()
        whole = self._run(_DIGITS)
        exact = True
        if self.text.startswith(".", self.pos):
            exact = False
            self.pos += 1
            whole += self._run(_DIGITS)
        if not whole:
            self.pos = start
            self.fail_expecting("a number")
        if self.text.startswith(("e", "E"), self.pos):
            exact = False
            self.pos += 1
            if self.text.startswith(("+", "-"), self.pos):
                self.pos += 1
            if not self._run(_DIGITS):
                self.fail("this number lacks its exponent", start)
        digits = self.text[start : self.pos]
        imaginary = self.text.startswith("j", self.pos)
        self.pos += imaginary
        if self.text[self.pos : self.pos + 1] in _WORD:
            self.fail("numbers are decimal, and end where a letter follows", start)
        if exact and not imaginary:
            # The length is checked first because int() refuses very long texts.
            value = sign * int(digits) if len(digits.lstrip("0")) < 20 else 1 << 64
            if not -(1 << 63) <= value < 1 << 63:
                self.fail("this number does not fit into 64 bits", start)
            return value
        real = sign * float(digits)
        if real in (float("inf"), float("-inf")):
            self.fail("this number is too large", start)
        return complex(0.0, real) if imaginary else real

    def string(self) -> str:
        """A string in single or double quotes, with ESCAPES and escapes of three octal digits."""
        start = self.skip()
        text = self.text
        quote = text[start]
        letters = []
        self.pos += 1
        while (letter := text[self.pos : self.pos + 1]) != quote:
            if letter == "\\":
                letter = self._escaped()
            elif not letter:
                self.fail("this string does not end", start)
            elif letter < " ":
                self.fail("a control character in a string is written as an escape")
            else:
                self.pos += 1
            letters.append(letter)
        self.pos += 1
        return "".join(letters)

    def _escaped(self) -> str:
        octal = self.text[self.pos + 1 : self.pos + 4]
        if octal[:1] in _UNESCAPED:
            self.pos += 2
            return _UNESCAPED[octal[0]]
        if len(octal) < 3 or not all("0" <= digit <= "7" for digit in octal) or octal > "377":
            self.fail("there is no such escape in a string")
        self.pos += 4
        return chr(int(octal, 8))
