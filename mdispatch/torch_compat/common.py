"""Shared parts of PyTorch's names: the registry that they work on, the change of our errors into
PyTorch's, and the reading of keys and names.
"""

from __future__ import annotations

from _thread import _local
from functools import wraps

from .. import facts, keys
from ..dispatch.explain import found
from ..errors import MdispatchError
from ..errors.words import shown
from ..keys import DispatchKey
from ..registry import Registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import ParamSpec, TypeVar

    from ..facts import Registration

    P = ParamSpec("P")
    R = TypeVar("R")


def _theirs(function: Callable[P, R]) -> Callable[P, R]:
    """Makes a function raise RuntimeError for each of mdispatch's own errors, as PyTorch's does. An
    error that is a RuntimeError already, NotImplementedError included, stays as it is.

    A module object ends its registrations when it dies, so no error may keep one alive: the error
    that becomes the cause of another gives up its frames.
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
            location = getattr(module, "_location", "")
            where = (
                f"\n  in the library from {location}"
                if location and location not in str(error)
                else ""
            )
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
    """While open, PyTorch's names work on ``registry`` in this thread."""

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
    return _chosen.registries[-1] if _chosen.registries else given_or_default(None)


def _key(key: DispatchKey | str) -> DispatchKey:
    """The key of a DispatchKey or a name. Numbers are refused."""
    if not isinstance(key, (str, DispatchKey)):
        raise TypeError(f"a dispatch key is a DispatchKey or its name, not {shown(key)}")
    return keys.parse_key(key)


def _found(name: str) -> list[Registration]:
    return found(_registry().dispatcher.facts, _text(name))


def _debug_of(fact: Registration) -> str:
    """The debug text of a registration: the label of a kernel with a signature, else the
    location."""
    if fact.kind == facts.IMPL and fact.signature:
        return fact.body
    return f"registered at {fact.where}"
