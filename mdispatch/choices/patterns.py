"""Which parts of a value do not count, and which nobody may see: the patterns of paths that callers
of :func:`mdispatch.agree` give.

A pattern is a path, ``hosts[0].name``, and covers the part to which it leads with all that is in
it. In a name ``*`` stands for any letters and ``?`` for any letter, and ``[*]`` is any item.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from itertools import starmap

from ..errors import InvalidArgumentError
from .values import KEPT, LEFT_OUT, SECRET, segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .values import Node

__all__ = ["Rules"]

#: The last words of a key that names a secret, in small letters.
_SECRET = re.compile(
    r"(?:^|[^a-z])(?:pass(?:word|phrase|wd)s?|secrets?|token|keys?|credentials?)$"
    r"|(?:api|auth|access|refresh|bearer|private)[^a-z]?(?:keys?|tokens)$"
)
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ITEM = re.compile(r"\[[\d*?]+\]")
_STEP = re.compile(r"\.?([^.\[\]]+)|(\[[^\]]+\])")


class _Secrets(dict[object, int]):
    """Whether a key names a secret. It remembers its answers."""

    def __missing__(self, key: object) -> int:
        if not isinstance(key, str):
            return KEPT
        words = _WORD_BEGINS.sub("_", key[-80:]).lower()
        found = SECRET if _SECRET.search(words) else KEPT
        if len(self) < 4096:
            self[key] = found
        return found


class _NoSecrets(dict[object, int]):
    def __missing__(self, key: object) -> int:
        return KEPT


_secrets, _no_secrets = _Secrets(), _NoSecrets()


class Rules:
    """The patterns of one call. Without ``secret``, the keys that end with a word like password are
    secrets. ``sealed`` makes what stands for a secret. Raises InvalidArgumentError.
    """

    __slots__ = ("_ignore", "_only", "_secret", "_unmet", "by_key", "has_paths", "seal")

    def __init__(
        self,
        ignore: Iterable[str],
        only: Iterable[str],
        secret: Iterable[str] | None,
        sealed: Callable[[str], str],
    ) -> None:
        self._ignore = _parsed("ignore", ignore)
        self._only = _parsed("only", only)
        self._secret = _parsed("secret", () if secret is None else secret)
        self._unmet = set(self._only)
        self.by_key: dict[object, int] = _secrets if secret is None else _no_secrets
        self.has_paths = bool(self._ignore or self._only or self._secret)
        self.seal = sealed

    def node(self) -> Node:
        """The patterns in plain form: members compare them."""
        told = {"ignore": self._ignore, "only": self._only, "secret": self._secret}
        found: dict[str, list[str]] = {key: sorted(its) for key, its in told.items() if its}
        if self.by_key is _no_secrets:
            found["secret"] = sorted(self._secret)
        return found

    def of(self, path: Sequence[object]) -> int:
        steps = [*map(segment, path)]
        if any(len(its) == len(steps) and _fits(its, steps) for its in self._ignore.values()):
            return LEFT_OUT
        if self._only:
            near = [text for text, its in self._only.items() if _fits(its, steps)]
            self._unmet.difference_update(
                text for text in near if len(self._only[text]) <= len(steps)
            )
            if not near:
                return LEFT_OUT
        is_secret = any(
            len(its) == len(steps) and _fits(its, steps) for its in self._secret.values()
        )
        return SECRET if is_secret else KEPT

    def check(self) -> None:
        """After a value was made plain: InvalidArgumentError if a pattern of ``only`` is for
        nothing.
        """
        if self._unmet:
            raise InvalidArgumentError(
                f"only={min(self._unmet)!r}: the value has no such part, so nothing was compared"
            )


def _fits(pattern: Sequence[str], steps: Sequence[str]) -> bool:
    """Whether one of the two leads to the other, or into it."""
    return all(starmap(_is_step, zip(pattern, steps, strict=False)))


def _is_step(pattern: str, step: str) -> bool:
    if pattern[0] != "[" or step[0] != "[":
        return fnmatchcase(step, pattern) and step[0] != "["
    return fnmatchcase(step[1:-1], pattern[1:-1])


def _parsed(argument: str, patterns: Iterable[str]) -> dict[str, list[str]]:
    """The steps of each pattern."""
    found = {}
    if isinstance(patterns, str):
        raise InvalidArgumentError(f"{argument}= takes a list of patterns: [{patterns!r}]")
    for each in patterns:
        steps = [name or item for name, item in _STEP.findall(each)] if type(each) is str else []
        if (
            not steps
            or not re.fullmatch(f"(?:{_STEP.pattern})+", each)
            or _ITEM.fullmatch(steps[-1])
        ):
            raise InvalidArgumentError(
                f"{argument}={each!r}: a pattern is the path to a key or a field, like "
                "'node_rank', 'hosts.*' or 'layers[*].name'"
            )
        found[each] = steps
    return found
