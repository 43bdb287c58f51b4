"""The initializer of a pool's workers: what a warm-up finds is told to the callers of the tasks."""

from __future__ import annotations

import os
import sys
from functools import partial

from .. import errors
from .. import registry as registries
from ..facts.opening import ENVIRONMENT
from ..facts.waits import check_timeout
from ..registry.unheard import initializing_worker
from .entry_points import group_names
from .warm_up import module_names, namespaces, warm_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any


def initializer(
    modules: str | Iterable[str] = (),
    *,
    entry_points: str | Iterable[str] = (),
    timeout: float | None = 2.0,
    freeze: bool = False,
    complete: str | Iterable[str] = (),
) -> Callable[[], None]:
    """An initializer for the workers of any pool: ``initializer=mdispatch.initializer("my_ops")``.

    In each worker it does what :func:`warm_up` does with ``modules``, ``entry_points``, ``timeout``
    (seconds, for all waits together), ``freeze`` and ``complete``, and finds this process's default
    registry and its ``sys.path``. It can be pickled.

    Where the warm-up fails, the callers of the tasks hear of it. In process pools each task raises
    the error, see :func:`warm_up`. In other workers, where an error would reach standard error
    only, the initializer returns, and each call of an operator raises a WarmUpError. In the main
    interpreter it raises: the pool is broken.

    Raises InvalidArgumentError, and what opening the default registry raises.
    """
    names, timeout = module_names(modules), check_timeout(timeout)
    address = registries.default_registry().address
    options = {
        "entry_points": group_names(entry_points),
        "timeout": timeout,
        "freeze": freeze,
        "complete": namespaces(complete),
    }
    begin = partial(_begin, names, list(sys.path), address, options)
    vars(begin)["__name__"] = "initializer"  # Ray tells it of its hook
    return begin


def _begin(modules: list[str], path: list[str], address: str, options: dict[str, Any]) -> None:
    if registries.opened_default() is None and not os.environ.get(ENVIRONMENT):
        os.environ[ENVIRONMENT] = address
    try:
        warm_up(modules, path, **options)
    except Exception as error:
        registry = registries.opened_default()
        if initializing_worker() is not None or (registry is not None and registry.is_main):
            raise
        # Where there is no registry, it could not be opened: each call tries, and says why.
        if registry is not None:
            text, differences = str(error), getattr(error, "differences", (error,))
            if not isinstance(error, errors.WarmUpError):
                notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
                text = f"the warm-up failed: {type(error).__name__}: {text}{notes}"

            def refuse() -> None:
                raise errors.WarmUpError(text, differences=differences)

            registry.dispatcher.fallbacks.refuse(refuse)
