"""Sealing: the leader of a cluster says that it has registered what its warm-up registers."""

from __future__ import annotations

from ..registry.registry import Registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def seal(timeout: float | None = 30.0, *, registry: Registry | None = None) -> bool:
    """Tells all hosts of a cluster that what this process registers at its start is registered.

    From then on a worker whose import registers something else is told at once and not after its
    timeout; what an earlier leader had registered and this one has not is removed. More can be
    registered later. Waits up to ``timeout`` seconds until the engine has stored it.

    Returns True in the leader. In any other process, and without a cluster, it does nothing and
    returns False, so that one program serves both. Raises FencedError, EngineUnreachableError,
    InvalidArgumentError (timeout).
    """
    from ..facts.waits import check_timeout

    seconds = check_timeout(timeout)
    publish: Callable[[float | None], bool] | None = getattr(
        given_or_default(registry).dispatcher.facts, "seal", None
    )
    return publish is not None and publish(seconds)
