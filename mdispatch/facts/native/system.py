"""Whether this system can share a registry. setup.py runs this file too, so it imports nothing of
ours.
"""

from __future__ import annotations

import os
import sys


def problem() -> str:
    """Why processes cannot share a registry on this system, for the middle of a sentence; "" where
    they can: on Linux with the GNU C library.
    """
    needs = "registries are shared on Linux with the GNU C library only, and this is"
    if sys.platform != "linux":
        return f"{needs} {sys.platform}"
    try:
        if os.confstr("CS_GNU_LIBC_VERSION"):
            return ""
    except (AttributeError, OSError, ValueError):  # the words of other libraries
        pass
    return f"{needs} Linux with another one (musl?)"
