"""Knows which answers were possible when, from what registrars and callers have written down: see
Changes and Caller in answers.py.

All times are of one clock. What a registrar had when it was killed, or left, is so for ever for
those who are still attached to its registry: their calls go on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from answers import CALL, ORDERS, PATHS, PROVIDERS, notes_of

EVER = 1 << 62


def calls(file: Path) -> Iterator[tuple[int, ...]]:
    """What a Caller has written."""
    data = file.read_bytes()
    return CALL.iter_unpack(data[: len(data) // CALL.size * CALL.size])


def notes(file: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    for line in notes_of(file).read_text().splitlines():
        what, *numbers = line.split()
        yield what, tuple(map(int, numbers))


@dataclass(slots=True)
class Life:
    """Of a definition, or a priority. It is in effect for sure from ``whole`` to ``ending``, and
    all kernels of a definition are there.
    """

    began: int
    ended: int = EVER
    whole: int = EVER
    ending: int = EVER


@dataclass
class Past:
    """What one registrar has done."""

    texts: dict[tuple[int, int], list[Life]] = field(default_factory=lambda: defaultdict(list))
    orders: list[tuple[int, Life]] = field(default_factory=list)

    @classmethod
    def read(cls, history: Path) -> Past:
        past, current = cls(), {}
        for line in history.read_text().splitlines():
            what, *numbers = line.split()
            which, *more, at = map(int, numbers)
            if what == "define":
                current[which] = Life(at)
                past.texts[which, more[0]].append(current[which])
            elif what == "defined":
                current[which].whole = at
            elif what == "close":
                current[which].ending = at
            elif what == "closed":
                current[which].ended = at
            elif what == "order":
                past.orders.append((which, Life(at)))
            elif what == "ordered":
                past.orders[-1][1].whole = at
            else:  # a priority ends when the next one is there
                next(life for _, life in past.orders[-2:] if life.ended == EVER).ended = at
        return past

    def life(self, name: int, text: int, began: int, returned: int) -> Life | None:
        """The last one of this text that was there at some moment of a call."""
        lives = self.texts.get((name, text), [])
        at = bisect_right(lives, returned, key=lambda life: life.began) - 1
        return lives[at] if at >= 0 and lives[at].ended >= began else None

    def comes_first(self, provider: int, began: int, returned: int) -> bool:
        """Whether a priority was in effect at some moment of the call that has it first, or none:
        until the first one is, and after the last.
        """
        orders = self.orders
        if not orders or began < orders[0][1].whole or returned > orders[-1][1].ended:
            return True
        at = bisect_left(orders, began, key=lambda each: each[1].ended)  # one after the other
        while at < len(orders) and orders[at][1].began <= returned:
            if ORDERS[orders[at][0]][0] == PROVIDERS[provider]:
                return True
            at += 1
        return False


class Judge:
    """``histories`` has a file of each registrar, whose name is its pid; ``reigns``, when each
    was there: from before its start until after its end.
    """

    def __init__(
        self, histories: Path, files: list[Path], reigns: dict[int, tuple[int, int]]
    ) -> None:
        self.pasts = {int(file.name): Past.read(file) for file in histories.iterdir()}
        self.reigns = reigns
        #: Of a registrar, a profile and a value: when it was decided, and withdrawn.
        self.decided: dict[tuple[int, ...], list[int]] = defaultdict(list)
        self.withdrawn: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
        for file in files:
            for what, (main, *numbers) in notes(file):
                if what == "decided":
                    self.decided[main, *numbers[:2]].append(numbers[2])
                elif what == "withdrawn":
                    self.withdrawn[main, *numbers[:2]].append((numbers[2], numbers[3]))
        for times in (*self.decided.values(), *self.withdrawn.values()):
            times.sort()

    def impossible(self, call: tuple[int, ...]) -> str:
        """Why this answer of a call was impossible; "" if it was not."""
        main, name, path, began, returned, x, by, text, provider, got_x, got_by = call
        how, past = PATHS[path], self.pasts[main]
        life = past.life(name, text, began, returned)
        if life is None:
            return f"f{name} by {how} was answered by text {text}, which was not in effect"
        if how == "default":
            by = 7
        if how == "position" and text == 1:
            x, by = by, x
        if (got_x, got_by) != (x, by):
            return f"f{name} by {how}: the kernel got x={got_x}, by={got_by}, not x={x}, by={by}"
        # While the registrar registers, or closes, some of its kernels may not be there.
        is_whole = life.whole <= began and returned <= life.ending
        if is_whole and not past.comes_first(provider, began, returned):
            return f"f{name} by {how} was answered by {PROVIDERS[provider]!r}, which came second"
        return ""

    def impossible_note(self, what: str, main: int, *numbers: int) -> str:
        """The same for the other answers: a choice, and to whom a caller was attached."""
        *which, began, returned = numbers
        if what == "attached":
            start, end = self.reigns[main]
            if not (start <= returned and began <= end):
                return f"attached to the registrar {main}, which was not there"
        if what == "chosen" and not self._was_chosen((main, *which), began, returned):
            return f"{which[1]} was chosen for the profile {which[0]}, and not in effect"
        return ""

    def _was_chosen(self, which: tuple[int, ...], began: int, returned: int) -> bool:
        """Whether the value was decided before the end, and not withdrawn before the begin. What
        withdraws a choice has found it before, and so begins after it was decided; what has
        withdrawn the one before began earlier.
        """
        decided, withdrawn = self.decided[which], self.withdrawn[which]
        at = bisect_right(decided, returned) - 1
        if at < 0:
            return False
        end = bisect_right(withdrawn, (decided[at], EVER))
        return end == len(withdrawn) or withdrawn[end][1] >= began
