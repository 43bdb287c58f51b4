"""What calls of ``custom_op`` pass through in C: native/bind/call/custom.c says how."""

from __future__ import annotations

from ..facts.native.calls import Forward, Unshared
from ..facts.native.calls import callable as called_by_c

__all__ = ["Forward", "Unshared", "called_by_c"]
