"""Signal handlers that raise, again and again, at any moment of what the main thread does: as
Ctrl-C does, or a timeout of the user's own.
"""

from __future__ import annotations

import random
import signal
from _thread import RLock
from collections.abc import Callable

__all__ = ["Interrupt", "Storm", "with_forgets_its_exit"]


class Interrupt(BaseException):
    """What the handler raises."""


class Storm:
    """``run`` calls a function many times. In each time a signal comes after some microseconds, and
    in half of them another one soon after it, so that what gives back is interrupted, too.
    """

    def __init__(self, seed: int) -> None:
        self._numbers = random.Random(seed)
        self._is_on = False
        self._again = 0.0  # seconds until the next signal of the same call; 0 for none
        #: How many calls were interrupted.
        self.interrupts = 0
        signal.signal(signal.SIGALRM, self._handler)

    def _handler(self, *_: object) -> None:
        if self._is_on:
            again, self._again = self._again, 0.0
            signal.setitimer(signal.ITIMER_REAL, again)  # once: else nothing else might ever run
            raise Interrupt

    def run(self, work: Callable[[], object], rounds: int, longest: float) -> None:
        """``longest`` is how many seconds after its begin a call is interrupted at most."""
        for _ in range(rounds):
            first = self._numbers.uniform(2e-6, longest)
            self._again = self._numbers.choice([0.0, self._numbers.uniform(2e-6, 5e-5)])
            try:
                self._is_on = True
                signal.setitimer(signal.ITIMER_REAL, first)
                work()
                self._is_on = False
            except Interrupt:
                self._is_on = False
                self.interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0.0)


def with_forgets_its_exit() -> bool:
    """Whether this CPython lets a handler raise between ``__enter__`` of a `with` and its body, so
    that a lock stays taken whoever takes it: https://github.com/python/cpython/issues/148874. In
    3.14.10 every second interrupt of this loop does so, in 3.13.0 and 3.15.2 none.
    """
    lock = RLock()

    def take() -> None:
        for _ in range(2_000):
            with lock:
                pass

    storm, rounds = Storm(0), 20
    while rounds and not lock._is_owned():
        storm.run(take, 20, 3e-5)
        rounds -= 1
    is_taken = lock._is_owned()
    while lock._is_owned():
        lock.release()
    return is_taken
