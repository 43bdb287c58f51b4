"""The words of errors about what was given: how it is shown, and which name was probably meant.

Errors are rare and imports are not, so whoever needs this imports it in the branch that is about to
raise.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["nearest", "shown"]


def shown(value: object, limit: int = 80) -> str:
    """What was given, for an error's text: a plain name as it is, anything else as its repr.

    Neither is endless. What has no repr, as an int of too many digits, is told by its type.
    """
    plain = isinstance(value, str) and value.isascii() and value.isprintable() and value
    try:
        text = str(value) if plain else ascii(value)
    except Exception:
        return f"a {type(value).__qualname__}"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} letters)"


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """The candidates that differ from ``name`` by few typing errors, best first, at most ``limit``.

    Case is ignored. A third of the name may be wrong, and two letters in any name.
    """
    word = name.lower()
    allowed = max(2, len(word) // 3)
    found = []
    for candidate in candidates:
        distance = _distance(word, candidate.lower(), allowed)
        if distance <= allowed and distance < len(word):
            found.append((distance, candidate))
    return tuple(candidate for _, candidate in sorted(found)[:limit])


def _distance(a: str, b: str, allowed: int) -> int:
    """How many letters to insert, delete, replace or swap with their neighbour.

    When that is more than ``allowed``, the answer is only known to be more, too.
    """
    if abs(len(a) - len(b)) > allowed:
        return allowed + 1
    before: list[int] = []
    above = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > allowed:
            return allowed + 1
        before, above = above, row
    return above[-1]
