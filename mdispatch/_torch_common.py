"""What the names of PyTorch's dispatcher have in common here: which registry they work on, how our
errors become theirs, and what may stand for a key or a name.
"""

from __future__ import annotations

from _thread import _local
from functools import wraps

from . import _registry as facts
from . import keys as _keys
from ._explain import found
from ._nearest import shown
from .errors import MdispatchError
from .keys import DispatchKey
from .registry import Registry, default_registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import ParamSpec, TypeVar

    from ._registry import Registration

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = [
    "_Local",
    "_chosen",
    "_debug_of",
    "_forget_frames",
    "_found",
    "_key",
    "_registry",
    "_text",
    "_theirs",
    "using",
]


def _theirs(function: Callable[P, R]) -> Callable[P, R]:
    """Where ours raises one of its own errors, theirs raises RuntimeError. One that is a
    NotImplementedError or RuntimeError already stays what it is.

    What a module object registered ends with it, so no error may keep one alive: the error that
    becomes another's cause gives up its frames.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MdispatchError as error:
            if isinstance(error, RuntimeError):
                raise
            _forget_frames(error)
            module = args[0] if args else None
            place = getattr(module, "_place", "")
            where = f"\n  in the library from {place}" if place and place not in str(error) else ""
            raise RuntimeError(f"{error}{where}") from error

    return wrapped


def _forget_frames(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = None
        _forget_frames(error.__context__ if error.__context__ is not error.__cause__ else None)
        error = error.__cause__


def _text(value: str) -> str:
    if not isinstance(value, str) or isinstance(value, DispatchKey):
        raise TypeError(f"this takes a str, not {shown(value)}")
    return value


class _Local(_local):
    registries: tuple[Registry, ...] = ()


_chosen = _Local()


class using:
    """While open, the functions of this module work on ``registry``, in this thread."""

    def __init__(self, registry: Registry) -> None:
        self.registry = given_or_default(registry)

    def __enter__(self) -> using:
        _chosen.registries = (*_chosen.registries, self.registry)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _chosen.registries = _chosen.registries[:-1]


def _registry() -> Registry:
    return _chosen.registries[-1] if _chosen.registries else default_registry()


def _key(key: DispatchKey | str) -> DispatchKey:
    """Strings convert, numbers do not."""
    if not isinstance(key, (str, DispatchKey)):
        raise TypeError(f"a dispatch key is a DispatchKey or its name, not {shown(key)}")
    return _keys.parse_key(key)


def _found(name: str) -> list[Registration]:
    return found(_registry(), _text(name))


def _debug_of(fact: Registration) -> str:
    """Kernels with a signature are called as they said, others by their place."""
    if fact.kind == facts.IMPL and fact.signature:
        return fact.body
    return f"registered at {fact.where}"
