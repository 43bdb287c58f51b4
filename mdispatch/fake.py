"""Registering fake kernels: ``register_fake``, and what a fake kernel can ask for.

A fake kernel says what an operator's result looks like, from what its arguments look like: it takes
and returns meta values (see meta.py)::

    @register_fake("shop::scale")
    def _(x, factor):
        return empty_like(x)

An operator can name the Python module that registers its fake kernel, with
``Library.set_python_module``. ``python_module`` reads that name, ``require_python_modules`` makes
it obligatory; facts/modules.py says what the name is used for.
"""

from __future__ import annotations

from .authoring.targets import library_for, target_of
from .dispatch.checks import checked_callable
from .errors import InvalidArgumentError
from .errors.words import shown
from .facts.modules import read_stub, stub_policy
from .registry.fake_kernels import FakeContext, get_ctx
from .schema.sizes import DynamicSize

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar, overload

    from .authoring.targets import Op
    from .registry import Registry
    from .registry.library import Library

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["DynamicSize", "FakeContext", "get_ctx", "python_module", "register_fake"]
__all__ += ["require_python_modules"]

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
    """Registers an operator's fake kernel: its kernel at Meta, which runs for meta values. Without
    ``function`` it is a decorator. Returns the function.

    ``op`` is "ns::name" or "ns::name.overload", an operator, or one of ``custom_op``; with ``lib``
    the name needs no namespace. The kernel stays until ``lib`` is closed; without ``lib`` it stays
    for good. The newest is in effect, and the one before returns when it goes. With
    ``allow_override=False`` a second one is refused. ``registry`` is the operator's registry if
    that is not the default one.

    While the function runs, :func:`get_ctx` gives it sizes that depend on data. Its first run
    compares the module that registered it with the module that the operator names
    (``Library.set_python_module``), and raises WrongModuleError if they differ. Code of a script is
    not compared, because no other module can import it.

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
        lib.register_fake(name, function, allow_override=allow_override)
        return function
    own = getattr(type(op), "register_fake", None)
    if own is not None:
        if not allow_override:
            raise InvalidArgumentError(
                f"{name} was made by custom_op, which replaces the fake kernel with each new one; "
                "leave allow_override out, or give a lib="
            )
        own(op, function)
        return function
    with library_for(name, its, "fake") as library:
        library.register_fake(name, function, allow_override=allow_override)
        return function


# --- the module that an operator names for its fake kernel ----------------------------------------


def python_module(op: Op, *, registry: Registry | None = None) -> tuple[str, str] | None:
    """The module and the context that ``Library.set_python_module`` named for an operator; None if
    it named none. If several are named, the newest that was not closed counts.

    ``op`` is "ns::name" or "ns::name.overload", an operator, or one of ``custom_op``. Another
    process may have defined it; its modules need not be imported here. ``registry`` says where to
    look for a name, if not in the default registry.

    Raises InvalidNameError, InvalidArgumentError, RegistryClosedError. (c10: Dispatcher::getPyStub;
    torch._C._dispatch_pystub)
    """
    name, its = target_of(op, None, registry)
    stub = read_stub(its.dispatcher.facts, name)
    return None if stub is None else stub[:2]


def require_python_modules(required: bool) -> bool:
    """Sets whether a fake kernel in another file than its operator needs a module named by
    ``Library.set_python_module``, so that an error can tell users of the operator what to import.
    Holds in this interpreter; False at the start. Returns the setting before.

    The setting counts when a fake kernel runs for the first time: if no module is named, that run
    raises WrongModuleError. Raises InvalidArgumentError if ``required`` is not a bool. (torch:
    torch._utils_internal.REQUIRES_SET_PYTHON_MODULE)
    """
    if not isinstance(required, bool):
        raise InvalidArgumentError(f"required={shown(required)}: it must be True or False")
    before, stub_policy.is_strict = stub_policy.is_strict, required
    return before
