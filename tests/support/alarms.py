"""Alarms in tests, beside those of pytest-timeout."""

from __future__ import annotations

import signal

__all__ = ["end_alarms"]


def end_alarms() -> None:
    """Ends the alarms of a test, which have taken the place of pytest-timeout's.

    The last one may be on its way in another thread, and CPython runs its handler later. So this
    does not give pytest-timeout its handler back, which would take that alarm for its own and fail
    whatever runs then. pytest-timeout sets handler and timer for each test anew.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, lambda *ignored: None)
