"""Operators in pickles: a pickle holds a name and what was defined under it. Where it is loaded,
the name is looked up in the default registry, and the definitions are compared.

A load does not fail because of what is registered there: multiprocessing.Pool loses a task that it
cannot load, and its caller waits for ever. In place of the operator there is then an
:class:`Unavailable`, and whatever uses that raises the reason: in a pool the task, so that the
caller gets it.
"""

from __future__ import annotations

from .. import seam
from ..errors import MdispatchError
from .differences import travelled_otherwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn, TypeAlias

    from ..dispatch.operators import OpOverload
    from .ops import Ops

    Reduced: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]


class Unavailable:
    """An operator that was pickled elsewhere and cannot be had here. A call, and the look-up of an
    attribute, raise the reason. Pickled again, it is the operator wherever that can be had.
    """

    __slots__ = ("_error", "_reduced")

    def __init__(self, error: BaseException, reduced: Reduced) -> None:
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

    def __reduce__(self) -> Reduced:
        return self._reduced

    def __repr__(self) -> str:
        _, (kind, name, *_) = self._reduced
        return f"<mdispatch {kind} {name}, which cannot be had here: {self._error}>"


def found_here(default: Callable[[], Any], reduced: Reduced) -> Any:
    """What a pickle holds by its name: an "operator", a "packet", a "namespace" or the "ops" of the
    default registry. ``reduced`` is the pickle: its function, what kind this is, the name, and the
    schemas of the operators with their locations where it was pickled, and their attributes.

    In place of an operator that is not defined here, or has another schema, an
    :class:`Unavailable`.
    """
    _, (kind, name, *definitions) = reduced
    try:
        ops = default().ops
        if kind == "ops":
            return ops
        if kind == "namespace":
            return getattr(ops, name)
        found = [_verified(ops, *definition) for definition in definitions]
        return found[0] if kind == "operator" else found[0].overloadpacket
    except MdispatchError as error:
        return Unavailable(error, reduced)


def _verified(ops: Ops, body: str, where: str, attributes: str) -> OpOverload:
    """The operator that has this definition here, too."""
    operator = ops.find(body.partition("(")[0])
    fact, its = operator.entry.current(operator.generation)[1].fact, operator.dispatcher.facts
    is_same = (fact.body, fact.attributes) == (body, attributes)
    if not is_same and its.keeps_own:
        is_same = seam.at("a pickle of another version")(its, body, attributes, fact)
    if not is_same:
        raise travelled_otherwise(fact, body, where, attributes)
    return operator
