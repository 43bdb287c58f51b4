"""How long tests wait for what ought to come at once, and would otherwise wait for ever.

On a machine with much else to do, set MDISPATCH_TEST_PATIENCE: 10 makes each such limit ten times
as long. It changes no timeout that is what a test is about.
"""

from __future__ import annotations

import os

__all__ = ["PATIENCE", "limit"]

PATIENCE = float(os.environ.get("MDISPATCH_TEST_PATIENCE") or 1)


def limit(seconds: float) -> float:
    """So many seconds on a machine that has little else to do."""
    return seconds * PATIENCE
