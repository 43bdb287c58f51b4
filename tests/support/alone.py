"""Programs where registries belong to one process, as on systems that share none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from patience import limit

__all__ = ["program", "ran"]


def ran(*words: object, status: int = 0, **environment: str) -> str:
    """What a process prints, on a system without shared registries."""
    env = {k: v for k, v in os.environ.items() if k not in ("MDISPATCH_REGISTRY", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**env, "MDISPATCH_BINDING": "none", **environment},
        capture_output=True,
        text=True,
        timeout=limit(60),
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def program(text: str, *words: object, **environment: str) -> str:
    return ran("-c", "import mdispatch as md\n" + textwrap.dedent(text), *words, **environment)
