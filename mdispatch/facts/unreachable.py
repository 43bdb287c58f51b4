"""The registrations of a worker that could not open its registry, at a moment when nobody would
hear so.

See registry/unheard.py. Nothing is in there, and every wait raises why.
"""

from __future__ import annotations

import copy

from .local import LocalRegistry
from .registration import WORKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..errors import RegistryError
    from .registration import Registration
    from .waits import Waited


class UnreachableRegistry(LocalRegistry):
    """A worker's view of a registry that cannot be opened, because of ``error``."""

    alone = ""  # it would be shared

    def __init__(self, error: RegistryError) -> None:
        super().__init__(WORKER)
        self.label = str(error.registry)
        self._error = error

    def await_fact(
        self,
        kind: int,
        key: int,
        name: str,
        at_least: int,
        timeout: float | None,
        ticket: int = 0,
        or_elect: bool = False,
    ) -> tuple[Registration | None, Waited]:
        raise copy.copy(self._error)

    def claim(self, namespace: str, where: str) -> bool:
        raise copy.copy(self._error)
