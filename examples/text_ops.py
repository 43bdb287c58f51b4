"""Operators on text, for every kind of interpreter: a class of one's own as the dispatched type.

``Text`` wraps a str. Its type is registered with a dispatch key, so operators take it where their
schemas say Tensor; what comes out can be anything that a schema can name.

    mdispatch verify examples.text_ops
    python examples/text_ops.py
"""

from __future__ import annotations

from pathlib import Path

import mdispatch as md

DATA = Path(__file__).parent / "data"


class Text:
    """A text that operators work on."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Text({self.value!r})"


md.register_type(Text, "CPU")

library = md.Library("text", "DEF")
library.define("normalize(Tensor text) -> Tensor")
library.define("tokenize(Tensor text) -> str[]")
library.define("count(Tensor text, int most=10) -> Dict(str, int)")
library.define("ngrams(Tensor text, int n=2) -> Dict(str, int)")
library.define("edit_distance(Tensor first, Tensor second) -> int")
library.define("similarity(Tensor first, Tensor second) -> float")


@library.impl("normalize", dispatch_key="CPU")
def normalize(text: Text) -> Text:
    """Lower case, letters and digits only, one space between words."""
    letters = (
        c if c.isalnum() else "" if c in "'\N{RIGHT SINGLE QUOTATION MARK}" else " "
        for c in text.value.casefold()
    )
    return Text(" ".join("".join(letters).split()))


@library.impl("tokenize", dispatch_key="CompositeImplicitAutograd")
def tokenize(text: Text) -> list[str]:
    """The words of the normalized text."""
    words: list[str] = md.ops.text.normalize(text).value.split()
    return words


@library.impl("count", dispatch_key="CompositeImplicitAutograd")
def count(text: Text, most: int) -> dict[str, int]:
    """The most frequent words, equally frequent ones in the order of the alphabet."""
    counts: dict[str, int] = {}
    for word in md.ops.text.tokenize(text):
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items(), key=_by_frequency)[:most])


def _by_frequency(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


@library.impl("ngrams", dispatch_key="CompositeImplicitAutograd")
def ngrams(text: Text, n: int) -> dict[str, int]:
    """How often each sequence of ``n`` words occurs."""
    if n < 1:
        raise ValueError(f"n-grams have at least one word, not {n}")
    words = md.ops.text.tokenize(text)
    found: dict[str, int] = {}
    for i in range(len(words) - n + 1):
        gram = " ".join(words[i : i + n])
        found[gram] = found.get(gram, 0) + 1
    return found


@library.impl("edit_distance", dispatch_key="CPU")
def edit_distance(first: Text, second: Text) -> int:
    """How many letters must be put in, left out or replaced. (Levenshtein)"""
    above = list(range(len(second.value) + 1))
    for i, letter in enumerate(first.value, 1):
        row = [i]
        for j, other in enumerate(second.value, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (letter != other)))
        above = row
    return above[-1]


@library.impl("similarity", dispatch_key="CompositeImplicitAutograd")
def similarity(first: Text, second: Text) -> float:
    """1 for texts that are equal once normalized, 0 for those without a letter in common."""
    one, other = md.ops.text.normalize(first), md.ops.text.normalize(second)
    longest = max(len(one.value), len(other.value))
    return 1 - md.ops.text.edit_distance(one, other) / longest if longest else 1.0


def load(name: str = "harbour.txt") -> Text:
    return Text((DATA / name).read_text(encoding="utf-8"))


def job() -> str:
    """Counts words and pairs of words, and finds the two sentences that are most alike."""
    text = md.ops.text
    story = load()
    words = ", ".join(f"{word} {n}" for word, n in text.count(story, 5).items())
    pair, times = min(text.ngrams(story).items(), key=_by_frequency)
    sentences = [Text(part) for part in story.value.split(". ")]
    alike, first, second = max(
        (text.similarity(one, other), one.value, other.value)
        for i, one in enumerate(sentences)
        for other in sentences[i + 1 :]
    )
    return (
        f"{len(text.tokenize(story))} words: {words}\n"
        f"most frequent pair: {pair} ({times})\n"
        f"most alike ({alike:.0%}): {first!r} and {second!r}"
    )


if __name__ == "__main__":
    from everywhere import run_everywhere

    run_everywhere("text_ops")
