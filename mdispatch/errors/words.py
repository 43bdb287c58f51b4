"""Words for errors about a given value: how to show it, and which name was probably meant.

Errors are rare and imports are not, so a caller imports this in the branch that is about to raise.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import EntryPoint

#: How many candidates one search compares at most. A registry may have 200,000 names, and a caller
#: that had 10 ms waits for the words of the error, too: 500 names take some 10 ms.
_COMPARED = 500


def shown(value: object, limit: int = 80) -> str:
    """A given value for an error's text: a plain name as it is, anything else as its repr.

    Long texts are cut. A value without a repr, such as an int of too many digits, is shown by its
    type.
    """
    plain = isinstance(value, str) and value.isascii() and value.isprintable() and value
    try:
        text = str(value) if plain else ascii(value)
    except Exception:
        return f"a {type(value).__qualname__}"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} letters)"


def nearest(name: str, candidates: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """The candidates that were probably meant by ``name``, best first, at most ``limit``.

    Case is ignored. Two thirds of the letters must be the same, and three quarters where ``name``
    has a namespace, because that is often right. Fewer wrong letters come first, and equally good
    names in alphabetical order. Only the likeliest of many candidates are compared.
    """
    # Not get_close_matches(): it counts a letter too many less than a wrong one (for "adm" it puts
    # "addmm" before "add"), and orders equally good names from z to a (XPU before CPU).
    from difflib import SequenceMatcher

    word = name.lower()
    alike = 3 / 4 if "::" in word else 2 / 3
    matcher = SequenceMatcher(autojunk=False)  # a letter that comes often is no junk in a name
    matcher.set_seq2(word)
    found = []
    for candidate in _likeliest(word, candidates):
        matcher.set_seq1(candidate.lower())
        if matcher.real_quick_ratio() < alike or matcher.quick_ratio() < alike:
            continue  # both are upper bounds, and cheaper
        if matcher.ratio() >= alike:
            same = sum(block.size for block in matcher.get_matching_blocks())
            found.append((max(len(word), len(candidate)) - same, candidate))
    return tuple(candidate for _, candidate in sorted(found)[:limit])


def _likeliest(word: str, candidates: Iterable[str]) -> list[str]:
    """The candidates worth comparing: of about the same length, and not too many.

    Of more, one half are those that begin like the word, the other half those that end like it: a
    typing error leaves the letters before it or those after it.
    """
    allowed = max(2, len(word) // 3)
    most = _COMPARED // (1 + len(word) // 50)  # twice as long takes more than twice the time
    alike = [each for each in candidates if abs(len(each) - len(word)) <= allowed]
    if len(alike) <= most:
        return alike
    alike.sort(key=lambda each: abs(len(each) - len(word)))
    start = word.rfind(":") + 1
    beginning = _sharing(word, alike, most // 2, lambda text, length: text[: start + length])
    end = _sharing(word, alike, most // 2, lambda text, length: text[-length:])
    return list(dict.fromkeys((*beginning, *end)))


def _sharing(word: str, names: list[str], most: int, part: Callable[[str, int], str]) -> list[str]:
    """At most so many names. The first are those that share the longest ``part`` with the word."""
    closest: list[str] = []
    # By halves: more than ``most`` names share ``low`` letters with the word, and fewer ``high``.
    low, high = 0, len(word) + 1
    while high - low > 1:
        length = (low + high) // 2
        wanted = part(word, length)
        closer = [each for each in names if part(each, length).lower() == wanted]
        if len(closer) > most:
            names, low = closer, length
        else:
            closest, high = closer, length
    return list(dict.fromkeys((*closest, *names)))[:most]


def entry_point(entry: EntryPoint) -> str:
    """A plug-in of a distribution, for the note of an error that it brings."""
    its = "" if entry.dist is None else f", which {entry.dist.name} {entry.dist.version} declares"
    return f"for the entry point '{entry.name} = {entry.value}' of the group {entry.group}{its}"
