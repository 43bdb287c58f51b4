"""The other editions of a registry's name that are alive, for people and as JSON: a section, see
sections.py.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..editions.joining import edition_of, name_of
from ..editions.living import ago, others, seconds_since
from ..errors import InvalidArgumentError
from ..errors.words import shown
from .columns import plain, styled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from ..editions.living import Edition
    from ..facts.outside import Seen
    from . import answers

#: The environment variable with the seconds for which two editions may be alive side by side.
VARIABLE = "MDISPATCH_OVERLAP"
_OVERLAP = 600.0


def lines(seen: Seen) -> list[tuple[str, Text]]:
    there = _beside(seen)
    if not there and not _edition(seen):
        return []
    told = f"made {ago(seen.made)}"
    if there:
        told += f"; beside it {', '.join(map(str, there))}"
    return [("edition", styled(plain(told), style="dim"))]


def problems(seen: Seen) -> Iterator[str]:
    newer = [each for each in _beside(seen) if each.made > seen.made]  # told of the older ones
    if newer and seconds_since(newer[0].made) > overlap():
        yield (
            f"{newer[0].name} was made {ago(newer[0].made)}, and this edition is still alive: "
            f"nothing compares the two. End one, or compare them: mdispatch diff {seen.name} "
            f"{newer[0].name}"
        )


def words(seen: Seen) -> list[str]:
    return []


def json(seen: Seen) -> dict[str, answers.Edition | None]:
    there = _beside(seen)
    if not there and not _edition(seen):
        return {"edition": None}
    its: answers.Edition = {
        "of": name_of(seen.name or ""),
        "edition": _edition(seen) or None,
        "seconds": round(seconds_since(seen.made), 3),
        "beside": [each.name for each in there],
    }
    return {"edition": its}


def overlap() -> float:
    """The seconds for which two editions may be alive side by side. InvalidArgumentError."""
    text = os.environ.get(VARIABLE) or str(_OVERLAP)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidArgumentError(
            f"{VARIABLE}={shown(text)} in the environment: give seconds, as 600 for ten minutes"
        )
    return seconds


def _edition(seen: Seen) -> str:
    return edition_of(seen.name or "")


def _beside(seen: Seen) -> list[Edition]:
    is_alive = seen.name is not None and not seen.deleted and seen.state == "open" and seen.alive
    return others(seen.name or "") if is_alive else []
