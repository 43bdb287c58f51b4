"""The rank of this process among those that a launcher has started, as its environment tells."""

from __future__ import annotations

import os

__all__ = ["rank"]

# Of torchrun, Slurm, Open MPI, MPICH and Intel MPI, and an indexed job of Kubernetes.
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX")
_LONGEST = 9


def rank() -> int | None:
    """None where no launcher tells."""
    for name in _RANKS:
        text = os.environ.get(name, "")
        if text.isdecimal() and text.isascii() and len(text) <= _LONGEST:
            return int(text)
    return None
