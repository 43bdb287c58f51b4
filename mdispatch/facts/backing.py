"""Which registry serves here: the shared one or, where registries belong to one process, the
local one. Both are opened in the same ways.
"""

from __future__ import annotations

from .native import alone_because, which

TYPE_CHECKING = False
if TYPE_CHECKING or which != "none":
    from .shared import SharedRegistry as BackingRegistry
else:
    from .local import LocalRegistry as BackingRegistry

__all__ = ["BackingRegistry", "alone_because", "check_shared"]


def check_shared(what: str) -> None:
    """Raises NotSharedError where registries belong to one process. Its text begins with ``what``,
    which needs a shared one.
    """
    if alone_because:
        from .native.alone import not_shared

        raise not_shared(what, alone_because)
