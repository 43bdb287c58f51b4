"""PyTorch's other names for registering, from torch/library.py."""

from __future__ import annotations

import warnings

from .. import fake
from ..authoring import functions
from ..registry.library import Library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "define",
    "impl",
    "impl_abstract",
]


def define(what: str | Library, schema: str, alias_analysis: str = "", **options: Any) -> Any:
    """:func:`mdispatch.define`. With a library in place of the name, a decorator: it defines the
    operator in it, and registers the function as its kernel. Errors as those of ``Library``.
    """
    if not isinstance(what, Library):
        return functions.define(what, schema, alias_analysis=alias_analysis, **options)
    library = what

    def decorate(function: F) -> F:
        library.impl(library.define(schema, alias_analysis=alias_analysis), function)
        return function

    return decorate


def impl(what: Any, name: Any, function: Any = None, **options: Any) -> Any:
    """:func:`mdispatch.impl`. With a library first, a decorator: ``impl(lib, name, key="")``
    registers the function as ``lib.impl`` does. Errors likewise.
    """
    if not isinstance(what, Library):
        return functions.impl(what, name, function, **options)
    library, key = what, options.pop("dispatch_key", function or "")

    def decorate(given: F) -> F:
        library.impl(name, given, key, **options)
        return given

    return decorate


def impl_abstract(qualname: Any, func: Any = None, *, lib: Library | None = None) -> Any:
    """The name that :func:`mdispatch.register_fake` had. Warns (FutureWarning)."""
    warnings.warn(
        "impl_abstract is PyTorch's old name: call register_fake", FutureWarning, stacklevel=2
    )
    return fake.register_fake(qualname, func, lib=lib)
