"""The environment of commands that run in processes of their own."""

from __future__ import annotations

import os


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, without variables that change how a command shows its answer."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "MDISPATCH_REGISTRY")
    }
    return kept | changes
