"""Who holds the lock of the folder of named registries. Whoever makes, elects or removes a
registry takes it for a moment; a process that is stopped meanwhile keeps all others from it.
"""

from __future__ import annotations

import os
from contextlib import suppress

from .native import native


def folder_holder() -> int | None:
    """The process that holds the lock; None when nobody does, 0 when it cannot be seen from here
    (in another PID namespace), or has ended and left the lock to a child.
    """
    status, path = native.folder()
    if status:
        return None
    with suppress(OSError):
        at = os.stat(os.fsdecode(path))
        file = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                # 7: FLOCK  ADVISORY  WRITE 4711 00:1b:42 0 EOF; with "->" it waits for the lock.
                words = line.split()
                if words[1] != "FLOCK" or words[5] != file:
                    continue
                pid = int(words[4])
                return pid if os.path.exists(f"/proc/{pid}") else 0
    return None


def busy_text() -> str:
    """Why no named registry can be made, and what to do about it."""
    _, path = native.folder()
    pid = folder_holder()
    who = f"process {pid}" if pid else "a process"
    do = f"continue it (kill -CONT {pid}) or end it" if pid else "continue or end that process"
    folder = os.path.normpath(os.fsdecode(path))
    return (
        f"the folder of named registries, {folder}, is locked by {who}, which makes no progress "
        f"(is it stopped?): {do}. Until then no named registry of this user can be created, "
        "elected or removed"
    )
