"""Operators in pickles: a pickle holds a name and what was defined under it. Where it is loaded,
the name is looked up in the default registry, and the definitions are compared.

A load does not fail because of what is registered there: multiprocessing.Pool loses a task that it
cannot load, and its caller waits for ever. In place of the operator there is then an
:class:`Unavailable`, and whatever uses that raises the reason: in a pool the task, so that the
caller gets it.
"""

from __future__ import annotations

from ..errors import MdispatchError
from .differences import travelled_otherwise
from .registry import default_registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from ..dispatch.operators import OpOverload
    from .ops import Ops

__all__ = ["Unavailable", "arrived"]


class Unavailable:
    """An operator that was pickled elsewhere and cannot be had here. A call, and the look-up of an
    attribute, raise the reason. Pickled again, it is the operator wherever that can be had.
    """

    __slots__ = ("_error", "_reduced")

    def __init__(self, error: BaseException, reduced: tuple[object, ...]) -> None:
        self._error = error
        self._reduced = reduced

    def _fail(self) -> NoReturn:
        raise self._error.with_traceback(None)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        self._fail()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._fail()

    def __reduce__(self) -> tuple[object, ...]:
        return self._reduced

    def __repr__(self) -> str:
        kind, name, *_ = self._reduced[1]  # type: ignore[misc]  # arrived() made it
        return f"<mdispatch {kind} {name}, which cannot be had here: {self._error}>"


def arrived(kind: str, name: str, *definitions: tuple[str, str]) -> Any:
    """What a pickle holds by name: an "operator", a "packet", a "namespace" or the "ops" of the
    default registry. ``definitions`` are the schemas of the operators and their places, where it
    was pickled.

    In place of an operator that is not defined here, or has another schema, an
    :class:`Unavailable`.
    """
    try:
        ops = default_registry().ops
        if kind == "ops":
            return ops
        if kind == "namespace":
            return getattr(ops, name)
        found = [_verified(ops, body, where) for body, where in definitions]
        return found[0] if kind == "operator" else found[0].overloadpacket
    except MdispatchError as error:
        return Unavailable(error, (arrived, (kind, name, *definitions)))


def _verified(ops: Ops, body: str, where: str) -> OpOverload:
    """The operator that has this definition here, too."""
    operator = ops.find(body.partition("(")[0])
    fact = operator.entry.current(operator.generation)[1].fact
    if fact.body != body:
        raise travelled_otherwise(fact, body, where)
    return operator
