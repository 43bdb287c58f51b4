"""Operators that are defined otherwise again and again, and the answers that callers get meanwhile.

Every answer says which kernel gave it, and what that kernel got for ``x`` and ``by``. So the judge
looks at answers and not at registrations: it knows from the main member's history which of them
were possible at the time of a call.
"""

from __future__ import annotations

import pickle
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import Dice

import mdispatch as md

#: The texts that a name has in turn. By name, ``x`` and ``by`` mean the same in each of them.
TEXTS = (
    "(int x, int by) -> int[]",
    "(int by, int x) -> int[]",
    "(int x, int by=7) -> int[]",
    "(float x, int by) -> int[]",
)
NAMES = 4
PROVIDERS = ("left", "right")
#: The providers that come first, in turn.
ORDERS = (("left", "right"), ("right", "left"))

#: A call: its name, door, begin, end, x and by; the text, provider, x and by of its answer.
CALL = struct.Struct("<BBQQhhbbhh")
DOORS = ("position", "name", "default", "handle", "packet", "pickle", "route")


def kernel(text: int, provider: int) -> Callable[..., list[int]]:
    """A kernel for one of the texts, in whose order it gets its arguments."""
    if text == 1:
        return lambda by, x: [text, provider, int(x), by]
    return lambda x, by: [text, provider, int(x), by]


def register(library: md.Library, name: str, text: int, serve: bool | str = False) -> None:
    """What a module does for a name, in the version that has this text."""
    library.define(f"{name}{TEXTS[text]}")
    for number, provider in enumerate(PROVIDERS):
        library.impl(name, kernel(text, number), provider=provider, serve=serve)


class Changes:
    """The main member's part: a thread that defines each name otherwise for ever. It writes down
    what was possible, and from when to when: ``text NAME TEXT BEGAN WHOLE ENDING ENDED``, where all
    kernels were there from WHOLE to ENDING, and ``order NUMBER BEGAN ENDED``.
    """

    def __init__(
        self, registry: md.Registry, namespace: str, seed: int, pause_ms: int, history: str
    ) -> None:
        self.registry, self.namespace = registry, namespace
        self.dice, self.pause_ms = Dice(seed), pause_ms
        self.counts = {"rounds": 0, "definitions": 0}
        self.failed = ""
        self._stop = threading.Event()
        self._lines: list[str] = []
        self._history = Path(history)
        self.thread = threading.Thread(target=self._run, name=f"changes {namespace}")
        self.thread.start()

    def _run(self) -> None:
        try:
            self._go_on()
            self._history.write_text("\n".join(self._lines))
        except BaseException:
            self.failed = traceback.format_exc()

    def _go_on(self) -> None:
        there: dict[int, tuple[md.Library, int, int, int]] = {}
        order: tuple[md.PriorityHandle, int, int] | None = None
        while not self._stop.is_set():
            name = self.dice.below(NAMES)
            if name in there:
                self._end(name, *there.pop(name))
            text, began = self.dice.below(len(TEXTS)), time.monotonic_ns()
            library = md.Library(self.namespace, "FRAGMENT", registry=self.registry)
            register(library, f"f{name}", text, serve="host")
            there[name] = library, text, began, time.monotonic_ns()
            self.counts["definitions"] += 1
            if not self.dice.below(4):
                before, order = order, self._ordered()
                if before is not None:
                    before[0].close()
                    self._note("order", *before[1:])
            self._stop.wait(self.dice.below(self.pause_ms * 1000 + 1) / 1e6)
            self.counts["rounds"] += 1
        for name, its in there.items():
            self._end(name, *its)
        if order is not None:
            order[0].close()
            self._note("order", *order[1:])

    def _ordered(self) -> tuple[md.PriorityHandle, int, int]:
        number, began = self.dice.below(len(ORDERS)), time.monotonic_ns()
        pattern = f"{self.namespace}::*"
        return md.set_priority(pattern, ORDERS[number], registry=self.registry), number, began

    def _end(self, name: int, library: md.Library, text: int, began: int, whole: int) -> None:
        ending = time.monotonic_ns()
        library.close()
        self._note("text", name, text, began, whole, ending)

    def _note(self, *words: object) -> None:
        self._lines.append(" ".join(map(str, (*words, time.monotonic_ns()))))

    def end(self) -> None:
        self._stop.set()
        self.thread.join()


class Caller:
    """A member that calls all names through all doors until ``until``, registers what is there by
    now from time to time, and writes down each answer.
    """

    def __init__(self, registry: md.Registry, namespace: str, seed: int, until: int, file: Path):
        self.registry, self.namespace = registry, namespace
        self.dice, self.until = Dice(seed), until
        self.log = file.open("wb")
        self.counts = {"answers": 0, "refused": 0, "verified": 0}
        self.libraries: dict[int, md.Library] = {}
        #: What it holds since some time: the older, the more can have changed.
        self.held: dict[tuple[int, str], object] = {}

    def run(self, *, registers: bool, pickles: bool) -> dict[str, int]:
        """Without ``registers`` it has no kernels, and asks those who have."""
        doors = [each for each in DOORS if (each != "pickle" or pickles) and each != "route"]
        if not registers:
            doors = ["route"]
        with self.log:
            while time.monotonic_ns() < self.until:
                name = self.dice.below(NAMES)
                if registers and not self.dice.below(8):
                    self._register(name)
                for door in self.dice.shuffled(list(doors)):
                    self._call(name, door)
        return self.counts

    def _register(self, name: int) -> None:
        """As a module that is imported again in the version that the main member has."""
        text = self._text_there(name)
        if text is None:
            return
        if name in self.libraries:
            self.libraries.pop(name).close()
        library = md.Library(self.namespace, "FRAGMENT", registry=self.registry, timeout=0.0)
        try:
            register(library, f"f{name}", text)
        except md.errors.VerificationError:
            library.close()  # it has changed meanwhile
            return
        self.libraries[name] = library
        self.counts["verified"] += 1

    def _text_there(self, name: int) -> int | None:
        full = f"{self.namespace}::f{name}"
        for fact in self.registry.registrations(full):
            signature = fact.body.removeprefix(full)
            if signature in TEXTS:
                return TEXTS.index(signature)
        return None

    def _found(self, name: int, door: str) -> object:
        """The operator by this door, mostly one that was found before."""
        if door in ("handle", "packet", "pickle") and self.dice.below(50):
            held = self.held.get((name, door))
            if held is not None:
                return pickle.loads(held) if door == "pickle" else held  # type: ignore[arg-type]
        packet = getattr(getattr(self.registry.ops, self.namespace), f"f{name}")
        found = packet.default if door in ("handle", "pickle") else packet
        if door in ("handle", "packet", "pickle"):
            self.held[name, door] = pickle.dumps(found) if door == "pickle" else found
        return found

    def _call(self, name: int, door: str) -> None:
        x, by = self.dice.below(100), self.dice.below(100)
        for _ in range(1 + self.dice.below(20)):
            began = time.monotonic_ns()
            try:
                found = self._found(name, door)
                if door == "position":
                    answer = found(x, by)  # type: ignore[operator]
                elif door == "default":
                    answer = found(x=x)  # type: ignore[operator]
                elif door == "route":
                    with md.routing(self.namespace):
                        answer = found(x=x, by=by)  # type: ignore[operator]
                else:
                    answer = found(by=by, x=x)  # type: ignore[operator]
            except md.MdispatchError:
                self.counts["refused"] += 1
                self.held.pop((name, door), None)
                return
            returned = time.monotonic_ns()
            number = DOORS.index(door)
            self.log.write(CALL.pack(name, number, began, returned, x, by, *answer))
            self.counts["answers"] += 1


def calls(file: Path) -> Iterator[tuple[int, ...]]:
    """What a Caller has written."""
    data = file.read_bytes()
    return CALL.iter_unpack(data[: len(data) // CALL.size * CALL.size])


class Judge:
    """Knows from the main member's history what was possible when."""

    def __init__(self, history: Path) -> None:
        self.texts: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
        self.orders: list[tuple[int, int, int]] = []
        for line in history.read_text().splitlines():
            what, *numbers = line.split()
            if what == "text":
                name, text, began, whole, ending, ended = map(int, numbers)
                self.texts.setdefault((name, text), []).append((began, ended, whole, ending))
            else:
                number, began, ended = map(int, numbers)
                self.orders.append((number, began, ended))
        for lives in self.texts.values():
            lives.sort()

    def impossible(self, call: tuple[int, ...]) -> str:
        """Why this answer was impossible; "" if it was not."""
        from bisect import bisect_right

        name, door, began, returned, x, by, text, provider, got_x, got_by = call
        how = DOORS[door]
        lives = self.texts.get((name, text), ())
        at = bisect_right(lives, (returned, 1 << 62, 0, 0)) - 1
        if at < 0 or lives[at][1] < began:
            return f"f{name} by {how} was answered by text {text}, which was not in effect"
        if how == "default":
            by = 7
        if how == "position" and text == 1:
            x, by = by, x
        if (got_x, got_by) != (x, by):
            return f"f{name} by {how}: the kernel got x={got_x}, by={got_by}, not x={x}, by={by}"
        # While the main member registers, or closes, some of its kernels may not be there.
        is_whole = lives[at][2] <= began and returned <= lives[at][3]
        if is_whole and not self._comes_first(provider, began, returned):
            return f"f{name} by {how} was answered by {PROVIDERS[provider]!r}, which came second"
        return ""

    def _comes_first(self, provider: int, began: int, returned: int) -> bool:
        """Whether a priority was in effect at some moment of the call that has it first."""
        if self._free(began, returned):
            return True
        there = [number for number, since, until in self._near(began, returned)]
        return any(ORDERS[number][0] == PROVIDERS[provider] for number in there)

    def _near(self, began: int, returned: int) -> list[tuple[int, int, int]]:
        """The priorities that were in effect during a call; they come one after the other."""
        from bisect import bisect_left

        at = bisect_left(self.orders, began, key=lambda each: each[2])  # by their ends
        found = []
        while at < len(self.orders) and self.orders[at][1] <= returned:
            found.append(self.orders[at])
            at += 1
        return found

    def _free(self, began: int, returned: int) -> bool:
        """Whether there may have been none: before the first, and after the last."""
        return not self.orders or began < self.orders[0][1] or returned > self.orders[-1][2]
