"""The rank of this process among those that a launcher has started, and how many they are, as the
environment tells.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["rank", "sizes"]

# Of torchrun, Slurm, Open MPI, MPICH and Intel MPI, and an indexed job of Kubernetes.
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX")
# And how many they are: in all, or on this host.
_SIZES = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LONGEST = 9


def rank() -> int | None:
    """None where no launcher tells."""
    return next(_numbers(_RANKS), None)


def sizes() -> set[int]:
    """How many processes a launcher has started, in all and on this host."""
    return {*_numbers(_SIZES)}


def _numbers(names: Iterable[str]) -> Iterator[int]:
    for name in names:
        if name not in os.environ:  # which costs a third of a get() that finds nothing
            continue
        text = os.environ.get(name, "")
        if text.isdecimal() and text.isascii() and len(text) <= _LONGEST:
            yield int(text)
