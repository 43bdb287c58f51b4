"""Operators that each rank of the job imports. FLEET_VERSION=2 in the environment stands for a rank
that has another version of the file.
"""

from __future__ import annotations

import os

import mdispatch as md

by = 10 if os.environ.get("FLEET_VERSION") == "2" else 1
fleet = md.Library("fleet", "FRAGMENT", timeout=60)
fleet.define(f"advance(int step, int by={by}) -> int")


@fleet.impl("advance", dispatch_key="CompositeExplicitAutograd")
def advance(step: int, by: int = by) -> int:
    return step + by
