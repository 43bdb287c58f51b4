"""A member that dies before or after one of its calls of the registry."""

from __future__ import annotations

import subprocess

#: Lines for a member: it kills itself at the point of this number. A call has two, before it and
#: after it.
POINTS = """
import os, signal
from mdispatch.facts.shared import SharedRegistry

def dies(name):
    real = getattr(SharedRegistry, name)
    def call(self, *args, **more):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(self, *args, **more)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(SharedRegistry, name, call)

md.default_registry()
for name in ("register", "remove", "registrations", "await_change", "find"):
    dies(name)
left = {0}
"""


def ends_by_itself(process: subprocess.Popen[str]) -> bool:
    """Whether a member comes to the end of its lines. Waits for that, or for its death."""
    assert process.stdout
    return any(line == "done\n" for line in process.stdout)
