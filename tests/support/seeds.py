"""What tests choose by chance: the same each time, and something else in each long form.

A test prints its seed, which pytest shows where the test fails. MDISPATCH_TEST_SEED replays it.
"""

from __future__ import annotations

import os
import secrets

__all__ = ["seed_of"]


def seed_of(long_form: bool) -> int:
    given = os.environ.get("MDISPATCH_TEST_SEED")
    seed = int(given) if given else secrets.randbits(32) if long_form else 1
    print(f"MDISPATCH_TEST_SEED={seed}")
    return seed
