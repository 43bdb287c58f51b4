"""The remedy where a module registers something else in two members: it depends on why, and so this
looks as far as that can be seen from here. Loaded only for an error.
"""

from __future__ import annotations

import os
import time

from ..errors.locations import file_of, origin

_DEPLOY = (
    "Where a new version is to take the place of an old one (a deploy), end the old processes "
    "first, or make the new ones an edition: MDISPATCH_REGISTRY=elect:NAME@{env:RELEASE} "
    "(docs/servers.md)."
)
#: Seconds by which the clocks of files and of processes may be apart.
_APART = 0.02


def remedy(here: str, there: str, pid: int) -> str:
    """What to do about a registration that has another text ``here`` than ``there``, which are its
    locations. ``pid`` has registered the one there.
    """
    mine, its = file_of(here), file_of(there)
    if not (os.path.isabs(mine) and os.path.isabs(its)) or origin(here) or origin(there):
        return "Make both import the same version of the module."  # nothing else is to be seen
    if os.path.basename(mine) != os.path.basename(its):
        return "They come from two files: register it in one module, and import that in both."
    if mine != its:
        return (
            "They come from two files: make both import the same version of the module. " + _DEPLOY
        )
    return was_changed(its, pid) or (
        "Both come from one file: does it look at something that differs between the two, such as "
        "the environment, or what is installed? It must register the same in each."
    )


def was_changed(file: str, pid: int) -> str:
    """The remedy where a file was changed after a process had started; "" where it was not, or
    where that cannot be seen.
    """
    try:
        of_file = os.stat(file)
        with open(f"/proc/{pid}/stat", "rb") as stat:
            ticks = int(stat.read().rpartition(b") ")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return ""
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started = booted + ticks / os.sysconf("SC_CLK_TCK")
    # A file that is moved to the location of another one may have kept its own time.
    if max(of_file.st_mtime, of_file.st_ctime) < started + _APART:
        return ""
    if pid == os.getpid():
        return (
            f"The file {file} was changed after this process had started, so one of the two may "
            "have an older version: import it anew in both."
        )
    return (
        f"The file {file} was changed after process {pid} had started, which may have an older "
        f"version. {_DEPLOY}"
    )
