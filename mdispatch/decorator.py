"""One function, wanted everywhere, in one line."""

from __future__ import annotations

from . import errors
from ._arguments import checked_callable, key_or_none
from ._keys import DispatchKey
from ._nearest import shown
from ._schema_names import split_name
from .library import Library
from .registry import Registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["register_op"]


def register_op(
    schema: str, dispatch_key: DispatchKey | str = "", *, registry: Registry | None = None
) -> Callable[[F], F]:
    """A decorator that defines an operator and registers the function as its kernel, in one line::

        @mdispatch.register_op("shop::scale(Tensor x, float factor=2.0) -> Tensor", "CPU")
        def scale(x, factor=2.0): ...

    ``schema`` carries the namespace. Without ``dispatch_key`` the kernel serves every key
    (CompositeImplicitAutograd). In a worker it verifies, like every registration. Nothing stays
    registered when either part is refused.

    Raises InvalidNameError (no namespace), InvalidArgumentError (no schema, not callable), and what
    :meth:`Library.define` and :meth:`Library.impl` raise.
    """

    if not isinstance(schema, str):
        raise errors.InvalidArgumentError(
            f"a schema is a str, not {shown(schema)}; register_op takes one first"
        )
    key_or_none(dispatch_key)

    def decorate(function: F) -> F:
        checked_callable(function)  # impl() would take None for its use as a decorator
        name = split_name(schema)
        namespace, colons, _ = name.partition("::")
        if not colons:
            raise errors.InvalidNameError(f"name the namespace too: 'namespace::{name}(...)'", name)
        with Library(namespace, "FRAGMENT", registry=registry, _tag=name) as library:
            library.impl(library.define(schema), function, dispatch_key)
        return function

    return decorate
