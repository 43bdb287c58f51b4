"""The classes in C for the packages above. Calls of ``custom_op`` pass through one of them
(native/bind/call/custom.c says how), lookups of operators by attribute through ``Names``.
"""

from __future__ import annotations

from ..facts.native.calls import Forward, Names, Unshared
from ..facts.native.calls import callable as called_by_c

__all__ = ["Forward", "Names", "Unshared", "called_by_c"]
