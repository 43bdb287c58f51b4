"""A library for texts: twenty operators of plain Python."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import mdispatch as md


@md.custom_op("texts::upper")
def upper(text: str) -> str:
    return text.upper()


@md.custom_op("texts::words")
def words(text: str, *, longer_than: int = 0) -> list[str]:
    return [each for each in text.split() if len(each) > longer_than]


@md.custom_op("texts::join")
def join(*parts: str, by: str = " ") -> str:
    return by.join(parts)


@md.custom_op("texts::encoded")
def encoded(text: str, encoding: Literal["utf-8", "utf-16", "ascii"] = "utf-8") -> bytes:
    return text.encode(encoding)


@md.custom_op("texts::decoded")
def decoded(data: bytes | bytearray, encoding: str = "utf-8") -> str:
    return bytes(data).decode(encoding)


@md.custom_op("texts::counted")
def counted(text: str) -> dict[str, int]:
    return dict(Counter(text.split()))


@md.custom_op("texts::vocabulary")
def vocabulary(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in text.split()}


@md.custom_op("texts::replaced")
def replaced(text: str, by: Mapping[str, str]) -> str:
    for old, new in by.items():
        text = text.replace(old, new)
    return text


@md.custom_op("texts::lines")
def lines(text: str) -> Iterator[str]:
    return iter(text.splitlines())


@md.custom_op("texts::found")
def found(text: str, pattern: str | re.Pattern[str]) -> str | None:
    match = re.search(pattern, text)
    return None if match is None else match[0]


@md.custom_op("texts::split_at")
def split_at(text: str, at: int) -> tuple[str, str]:
    return text[:at], text[at:]


@md.custom_op("texts::ratio")
def ratio(text: str, letters: frozenset[str] | None = None) -> float:
    return sum(each in (letters or "aeiou") for each in text) / (len(text) or 1)


@md.custom_op("texts::longest")
def longest(texts: Sequence[str], key: Callable[[str], int] | None = None) -> str:
    return max(texts, key=key or len)


@md.custom_op("texts::is_blank")
def is_blank(text: str | None) -> bool:
    return not (text or "").strip()


@md.custom_op("texts::centred")
def centred(text: str, width: int, fill: str = " ") -> str:
    return text.center(width, fill)


@md.custom_op("texts::normal")
def normal(text: str, form: Literal["NFC", "NFD"] = "NFC") -> str:
    return unicodedata.normalize(form, text)


@md.custom_op("texts::slugs")
def slugs(texts: list[str]) -> list[str]:
    return [re.sub(r"\W+", "-", each.lower()).strip("-") for each in texts]


@md.custom_op("texts::grouped")
def grouped(texts: list[str], by: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for each in texts:
        groups.setdefault(by(each), []).append(each)
    return groups


@md.custom_op("texts::numbers")
def numbers(text: str) -> list[int | float]:
    found = re.findall(r"-?\d+(?:\.\d+)?", text)
    return [float(each) if "." in each else int(each) for each in found]


@md.custom_op("texts::say")
def say(text: str, **fields: str | int) -> str:
    return text.format(**fields)
