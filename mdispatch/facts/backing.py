"""Which registry serves here: the shared one or, where registries belong to one process, the
local one. Both are opened in the same ways.
"""

from __future__ import annotations

import os

from .. import seam
from .native import alone_because, which

TYPE_CHECKING = False
if TYPE_CHECKING or which != "none":
    from .shared import SharedRegistry as BackingRegistry
else:
    from .local import LocalRegistry as BackingRegistry

if TYPE_CHECKING:
    from .abc import Facts

__all__ = ["alone_because", "backing", "check_shared", "matched"]


def backing(match: str | None = None) -> type[BackingRegistry]:
    """The class of a registry's registrations in this interpreter, by the environment and by
    ``match`` (:meth:`Registry.create`).
    """
    on_difference = os.environ.get("MDISPATCH_ON_DIFFERENCE", "raise")
    if match is None and on_difference in ("", "raise"):
        return BackingRegistry
    chosen: type[BackingRegistry] = seam.at("the registrations of a member")(BackingRegistry, match)
    return chosen


def matched(facts: Facts, match: str | None) -> Facts:
    """The registrations of a registry that was opened, and has this match. Where it has the other
    one they are closed, and MatchError.
    """
    if match is not None:
        try:
            seam.at("the match of a registry")(facts, match)
        except BaseException:
            facts.close()
            raise
    return facts


def check_shared(what: str) -> None:
    """Raises NotSharedError where registries belong to one process. Its text begins with ``what``,
    which needs a shared one.
    """
    if alone_because:
        from .native.alone import not_shared

        raise not_shared(what, alone_because)
