"""Registering without a library at hand: one function per kind of registration.

Each takes the operator by its name with namespace, "ns::name" or "ns::name.overload", as an
operator, or as what ``custom_op`` made. Where ``lib`` is given, what is registered ends with it.
Else a library of its own is opened for it, and it stays: nothing ends because an object is
garbage-collected. A module that is imported again replaces what its top-level code registered.
``registry`` is that of the operator where it is not the default one.

In a worker all of them verify, as a library does, and raise what a library raises.
"""

from __future__ import annotations

from . import errors
from ._arguments import attributes_of, checked_callable
from ._keys import DispatchKey
from ._nearest import shown
from ._registering import RegistrationHandle
from ._roles import DEFAULT_TIMEOUT
from ._targets import autocast_key, keys_of, library_for, target_of
from .library import Library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, TypeVar, overload

    from ._computed_kernel import ComputedKernel
    from ._targets import Op, Types
    from .registry import Registry

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "ScopedLibrary",
    "define",
    "get_kernel",
    "impl",
    "register_autocast",
    "register_dispatch_rule",
    "register_kernel",
    "register_vmap",
    "scoped_library",
]


def define(
    qualname: str,
    schema: str,
    *,
    lib: Library | None = None,
    tags: str | Iterable[str] = (),
    alias_analysis: str = "",
    registry: Registry | None = None,
) -> str:
    """Defines an operator: ``define("shop::scale", "(Tensor x, float factor=2.0) -> Tensor")``.
    Returns its name.

    ``schema`` has no name of its own. ``tags`` and ``alias_analysis`` as in ``Library.define``.

    Raises InvalidNameError (no namespace), SchemaSyntaxError, InvalidArgumentError,
    DuplicateRegistrationError, SignatureMismatchError, LibraryClosedError, RegistryFullError; in a
    worker SchemaMismatchError, NameMismatchError, MainNeverArrivedError. (torch:
    torch.library.define)
    """
    name, registry = target_of(qualname, lib, registry)
    if not isinstance(schema, str) or not schema.lstrip().startswith("("):
        raise errors.InvalidArgumentError(
            f"the schema of {name} is {shown(schema)}: write it without a name, as "
            "'(Tensor x) -> Tensor'"
        )
    attributes = attributes_of(alias_analysis, tags)
    if lib is not None:
        return lib._define(name + schema.lstrip(), attributes)
    with library_for(name, registry, "define") as own:
        return own._define(name + schema.lstrip(), attributes)


if TYPE_CHECKING:

    @overload
    def impl(
        op: Op,
        types: Types,
        function: None = None,
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
        with_keyset: bool = False,
        allow_override: bool = True,
    ) -> Callable[[F], F]: ...
    @overload
    def impl(
        op: Op,
        types: Types,
        function: F,
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
        with_keyset: bool = False,
        allow_override: bool = True,
    ) -> F: ...


def impl(
    op: Op,
    types: Types,
    function: Any = None,
    *,
    lib: Library | None = None,
    registry: Registry | None = None,
    with_keyset: bool = False,
    allow_override: bool = True,
) -> Any:
    """Registers a kernel for devices or at keys: at all of them or, if one is refused, at none.
    Without ``function`` it is a decorator. Returns the function.

    ``types`` is a device ("cpu", "cuda:0", a name given by rename_privateuse_backend), "default"
    (every device: CompositeExplicitAutograd), a key or its name, or several of these. The rest is
    as in ``Library.impl``, and so are the errors. (torch: torch.library.impl)
    """
    keys = keys_of(types)
    name, registry = target_of(op, lib, registry)

    def register(given: F) -> F:
        checked_callable(given)
        labels = " ".join(key.name for key in keys)
        library = library_for(name, registry, f"impl {labels}") if lib is None else lib
        handles: list[RegistrationHandle | None] = []
        try:
            for key in keys:
                handles.append(
                    library._register_kernel(name, given, key, with_keyset, "", allow_override)
                )
        except BaseException:
            library._let_go(handles)
            if lib is None:
                library.close()
            raise
        return given

    return register if function is None else register(function)


if TYPE_CHECKING:

    @overload
    def register_kernel(
        op: Op,
        device_types: Types | None,
        function: None = None,
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
    ) -> Callable[[F], F]: ...
    @overload
    def register_kernel(
        op: Op,
        device_types: Types | None,
        function: F,
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
    ) -> F: ...


def register_kernel(
    op: Op,
    device_types: Types | None,
    function: Any = None,
    *,
    lib: Library | None = None,
    registry: Registry | None = None,
) -> Any:
    """Registers a kernel for one or several devices, None for every device. Without ``function`` it
    is a decorator. Returns the function.

    For what ``custom_op`` made this is its ``register_kernel``, unless ``lib`` is given. Else as
    :func:`impl`. (torch: torch.library.register_kernel)
    """
    own = getattr(type(op), "register_kernel", None)
    if own is not None and lib is None:
        return own(op, device_types, function)
    types = "default" if device_types is None else device_types
    return impl(op, types, function, lib=lib, registry=registry)


if TYPE_CHECKING:

    @overload
    def register_vmap(
        op: Op,
        function: None = None,
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
        with_keyset: bool = False,
    ) -> Callable[[F], F]: ...
    @overload
    def register_vmap(
        op: Op,
        function: F,
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
        with_keyset: bool = False,
    ) -> F: ...


def register_vmap(
    op: Op,
    function: Any = None,
    *,
    lib: Library | None = None,
    registry: Registry | None = None,
    with_keyset: bool = False,
) -> Any:
    """Registers what runs for batched values: those that carry the key FuncTorchBatched. Without
    ``function`` it is a decorator. Returns the function.

    The function is a kernel like any other: it gets the arguments of the schema, the batched values
    themselves among them, and with ``with_keyset`` the key set first. Which of a value's
    dimensions is the batch, and how large it is, its type knows; so nothing is unpacked here, and
    there is no ``info`` or ``in_dims``, which PyTorch takes from functorch's own wrapper of
    tensors. To run the operator on what the values hold, call it with that, which does not carry
    the key.

    Raises what :func:`impl` raises. (torch: torch.library.register_vmap)
    """
    key = DispatchKey.FuncTorchBatched
    return impl(op, key, function, lib=lib, registry=registry, with_keyset=with_keyset)


def register_autocast(
    op: Op,
    device_type: str,
    cast_inputs: Any,
    *,
    cast: Callable[[Any, Any], Any] | None = None,
    lib: Library | None = None,
    registry: Registry | None = None,
) -> None:
    """Makes the operator cast its tensors to the element type ``cast_inputs`` wherever the key
    AutocastCPU, AutocastCUDA, ... of ``device_type`` takes part in a call; it does not by default,
    because every thread excludes these keys until it is told otherwise.

    Cast are the arguments, and elements of lists, that dispatch to that device: by ``cast(value,
    cast_inputs)`` if it is given, else by their ``astype`` or ``to``, where their ``dtype`` is one
    of floating numbers, but not of 64 bits. The operator is then called again with that key
    excluded.

    Raises InvalidKeyError for a device without such a key, InvalidArgumentError for a ``cast``
    that cannot be called, and what :func:`impl` raises. (torch: torch.library.register_autocast)
    """
    key, autocast = autocast_key(device_type)
    if cast is not None:
        checked_callable(cast)
    name, registry = target_of(op, lib, registry)
    from ._autocasting import AutocastKernel  # as much as a first call loads; see get_kernel

    kernel = AutocastKernel(registry, name, key, autocast, cast_inputs, cast)
    impl(name, autocast, kernel, lib=lib, registry=registry)


if TYPE_CHECKING:

    @overload
    def register_dispatch_rule(
        op: Op,
        cls: type,
        function: None = None,
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
    ) -> Callable[[F], F]: ...
    @overload
    def register_dispatch_rule(
        op: Op,
        cls: type,
        function: Callable[..., Any],
        *,
        lib: Library | None = None,
        registry: Registry | None = None,
    ) -> RegistrationHandle: ...


def register_dispatch_rule(
    op: Op,
    cls: type,
    function: Any = None,
    *,
    lib: Library | None = None,
    registry: Registry | None = None,
) -> Any:
    """Registers what runs when a call of the operator comes to a mode or value of ``cls``, in place
    of its ``__md_dispatch__`` and with the same arguments: ``function(mode_or_class, op, types,
    args, kwargs)``.

    Returns a handle, of which ``close`` ends the rule; without ``function`` it is a decorator that
    returns the function. The rule ends with the definition of the operator at the latest, and with
    ``lib`` if that is given. Classes are local objects: the rule holds for this interpreter, and
    nothing of it is verified.

    Raises InvalidArgumentError (no class to which calls come, not callable),
    OperatorNotFoundError, DuplicateRegistrationError (a rule of the same class from another place),
    LibraryClosedError. (torch: torch.library.register_torch_dispatch)
    """
    name, registry = target_of(op, lib, registry)

    def register(given: Callable[..., Any]) -> RegistrationHandle:
        if lib is not None:
            lib._check_open()
        rule = registry.ops.find(name).rules.add_class(cls, given, full=True)
        handle = RegistrationHandle(None, rule.close)
        if lib is not None:
            lib._hold(handle)
        return handle

    def decorate(given: F) -> F:
        register(given)
        return given

    return decorate if function is None else register(function)


def get_kernel(
    op: Op, key: DispatchKey | str, *, registry: Registry | None = None
) -> ComputedKernel:
    """The kernel that a call runs whose highest key is ``key``: by the operator's table, whichever
    rule put it there. To be called by a kernel that takes its place for some calls only::

        original = get_kernel("shop::scale", "CPU")
        impl("shop::scale", "CPU", lambda x, f: x if f == 1 else original(x, f))

    It stays that kernel while others come and go; see :class:`ComputedKernel` for its end.

    Raises MissingKernelError (also where the key falls through, or the kernel's module is not
    imported here), InvalidKeyError (an alias key), OperatorNotFoundError. (torch:
    torch.library.get_kernel)
    """
    # Not at the top: a worker that only verifies never calls an operator.
    from ._computed_kernel import computed_kernel

    name, registry = target_of(op, None, registry)
    return computed_kernel(registry.ops.find(name), key)


class ScopedLibrary(Library):
    """A library whose ``with`` block ends it, however the block ends."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the library."""
        self.close()


def scoped_library(
    namespace: str,
    kind: str,
    dispatch_key: DispatchKey | str = "",
    *,
    registry: Registry | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> ScopedLibrary:
    """A library for one ``with`` block: what is registered in it ends with the block. Arguments and
    errors are those of :class:`mdispatch.Library`. (torch: torch.library._scoped_library)
    """
    return ScopedLibrary(namespace, kind, dispatch_key, registry=registry, timeout=timeout)
