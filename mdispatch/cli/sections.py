"""The sections of ``doctor`` and ``top``: each shows a feature's part of a registry, and is a
module of its own. A section is left out with the folder of its feature.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, Protocol

    from rich.text import Text

    from ..facts.outside import Seen

    class Section(Protocol):
        """The functions of such a module."""

        def lines(self, seen: Seen) -> Sequence[tuple[str, Text]]:
            """The lines under a registry's row: a word, and the text behind it."""

        def problems(self, seen: Seen) -> Iterator[str]:
            """One sentence for each thing that needs attention."""

        def words(self, seen: Seen) -> Sequence[str]:
            """Further words by which ``top`` finds the registry."""

        def json(self, seen: Seen) -> Mapping[str, object]:
            """Fields of the registry's JSON: those of answers.Inside."""


_NAMES = ("editions", "standing", "serving", "roll_calls")
_loaded: list[Section] = []


def sections() -> Sequence[Section]:
    """Those of the features that are installed, in their order on the page."""
    if not _loaded:
        for name in _NAMES:
            try:
                _loaded.append(import_module(f".{name}", __package__))
            except ModuleNotFoundError as error:
                if not (error.name or "").startswith(f"{__package__.partition('.')[0]}."):
                    raise
    return _loaded


def lines(seen: Seen) -> list[tuple[str, Text]]:
    return [line for section in sections() for line in section.lines(seen)]


def problems(seen: Seen) -> Iterator[str]:
    for section in sections():
        yield from section.problems(seen)


def words(seen: Seen) -> list[str]:
    return [word for section in sections() for word in section.words(seen)]


def fields(seen: Seen) -> dict[str, Any]:
    found: dict[str, Any] = {"edition": None, "cluster": None, "serving": [], "roll_calls": []}
    for section in sections():
        found.update(section.json(seen))
    return found
