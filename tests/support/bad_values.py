"""For the tests of bad input: values that public functions cannot use, and the state to compare
after they were refused.
"""

from __future__ import annotations

import math
import sys

from mdispatch import errors

KERNEL = len
LONG = "x" * 100_000


class Array:
    __dispatch_keys__ = "CPU"


class Unprintable:
    """Even its repr raises."""

    def __repr__(self):
        raise RuntimeError("no repr")


class Empty:
    pass


TEXTS = {
    "empty": "",
    "blank": " ",
    "two words": "a b",
    "control": "a\x01b",
    "escape": "\x1b[31mred",
    "line end": "a\nb",
    "NUL": "a\0b",
    "not ASCII": "über",
    "surrogate": "a\udc80",
    "100 kB": LONG,
    "100 kB qualified": f"s::{LONG}",
    "dots": "a..b",
    "colons": "a::b::c",
    "one colon": "a:b",
    "dash": "a-b",
    "dollar": "s::$f",
    "reserved": "s::if",
    "brackets": "f()",
    "path": "../../etc/passwd",
}
OTHERS = {
    "None": None,
    "0": 0,
    "5": 5,
    "-1": -1,
    "1.5": 1.5,
    "NaN": math.nan,
    "True": True,
    "False": False,
    "bytes": b"CPU",
    "huge": 10**5000,
    "list": ["s::f"],
    "empty list": [],
    "dict": {},
    "tuple": (1, 2),
    "object": object(),
    "unprintable": Unprintable(),
    "class": Empty,
    "function": KERNEL,
    "module": sys,
}
VALUES = TEXTS | OTHERS


def everything(registry):
    _, _, there = registry.dispatcher.facts.registrations()
    return there, {f.name: registry.dispatcher.facts.registrations(f.name)[:2] for f in there}


def assert_clear(error):
    """The error has a documented class and a text that can be shown anywhere."""
    assert type(error).__name__ in errors.__all__, repr(error)
    text = str(error)
    text.encode()
    assert all(letter.isprintable() or letter == "\n" for letter in text), repr(text)
    assert 10 < len(text) < 1500, (len(text), text[:300])


# The names of values that many arguments accept.
NUMBERS = {"0", "5", "1.5", "huge"}
CALLABLES = {"class", "function"}
