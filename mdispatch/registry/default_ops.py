"""``mdispatch.ops``: the operators of the default registry, opened at the first look."""

from __future__ import annotations

from ..facts.native import calls
from ..schema.names import Named
from .registry import Registry, given_or_default, opened_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from .ops import Namespace


def _make_ops(registry: Registry) -> None:
    """PyTorch's compiler runs this and does not trace it: it can trace a look-up, but not how what
    is looked at is made.
    """
    _ = registry.ops


_make_ops._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _DefaultOps(calls.Names, Named):
    """The operators of the default registry, which is made or found at the first look."""

    __module__ = "mdispatch"  # what its pickle names

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Namespace: ...

    def __missing__(self, name: str) -> Namespace:
        registry = given_or_default(None)
        _make_ops(registry)
        namespace: Namespace = getattr(registry.ops, name)
        if registry is opened_default():  # else it is not the one that the next call will find
            setattr(self, name, namespace)
        return namespace

    def __dir__(self) -> list[str]:
        return dir(given_or_default(None).ops)

    def __iter__(self) -> Iterator[str]:
        return iter(given_or_default(None).ops)

    def __reduce__(self) -> str:
        return "ops"  # of this module, in every interpreter

    def __repr__(self) -> str:
        return "<mdispatch.ops>"


ops = _DefaultOps()
