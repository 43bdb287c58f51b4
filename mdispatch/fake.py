"""Fake kernels, for callers: ``register_fake`` and what such a kernel can ask for.

A fake kernel says what an operator's result looks like, from what its arguments look like: it takes
and returns meta values (see meta.py)::

    @register_fake("shop::scale")
    def _(x, factor):
        return empty_like(x)
"""

from __future__ import annotations

from ._arguments import checked_callable
from ._fakes import FakeContext, get_ctx, register_fake_in
from ._sizes import DynamicSize
from ._targets import library_for, target_of
from .errors import InvalidArgumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar, overload

    from ._targets import Op
    from .library import Library
    from .registry import Registry

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["DynamicSize", "FakeContext", "get_ctx", "register_fake"]

if TYPE_CHECKING:

    @overload
    def register_fake(
        op: Op,
        function: None = None,
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
        allow_override: bool = True,
    ) -> Callable[[F], F]: ...
    @overload
    def register_fake(
        op: Op,
        function: F,
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
        allow_override: bool = True,
    ) -> F: ...


def register_fake(
    op: Op,
    function: Any = None,
    *,
    lib: Library | None = None,
    registry: Registry | None = None,
    allow_override: bool = True,
) -> Any:
    """Registers what runs when an operator is called with meta values: its kernel at Meta. Without
    ``function`` it is a decorator. Returns the function.

    ``op`` is "ns::name" or "ns::name.overload", an operator, or one of ``custom_op``; with ``lib``
    the namespace goes without saying. The kernel stays until ``lib`` is closed; without one, it
    stays. The newest is in effect, and the earlier one returns when it goes; with
    ``allow_override=False`` a second one is refused. ``registry`` is that of the operator, where it
    is not the default one.

    While the function runs, :func:`get_ctx` gives it sizes that depend on data. At its first run,
    the module that registered it is compared with the one that the operator names
    (``Library.set_python_module``): WrongModuleError when they differ. Code of a script, which no
    other module can import, is not asked.

    In a worker it verifies, like every registration.

    Raises InvalidArgumentError (not callable; an operator of another registry), InvalidKeyError (a
    CompositeImplicitAutograd kernel is there, which serves meta values already), InvalidNameError,
    DuplicateRegistrationError (``allow_override``), LibraryClosedError, RegistryFullError; in a
    worker KeyMismatchError, NameMismatchError, MainNeverArrivedError.
    (torch.library.register_fake)
    """
    if function is None:
        return lambda decorated: register_fake(
            op,
            checked_callable(decorated),
            lib=lib,
            registry=registry,
            allow_override=allow_override,
        )
    checked_callable(function)
    name, its = target_of(op, lib, registry)
    if lib is not None:
        return register_fake_in(lib, name, function, allow_override)
    own = getattr(type(op), "register_fake", None)
    if own is not None:
        if not allow_override:
            raise InvalidArgumentError(
                f"{name} is of custom_op, which puts each new fake kernel in the place of the one "
                "before; leave allow_override out, or give a lib="
            )
        own(op, function)
        return function
    with library_for(name, its, "fake") as library:
        return register_fake_in(library, name, function, allow_override)
