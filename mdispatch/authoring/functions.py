"""Registering without a library at hand: one function per kind of registration.

Each function takes the operator by its full name ("ns::name" or "ns::name.overload"), as an
operator, or as the object that ``custom_op`` made. With ``lib``, the registration ends with that
library. Without it, the function opens a library of its own and never closes it: nothing ends
because an object is garbage-collected. When a module is imported again, or a cell of a notebook run
again, that replaces what it registered before. ``register_op`` takes a schema, which carries the
name, and also defines the operator. ``registry`` is the operator's registry if that is not the
default one.

In a worker all functions verify, as a library does, and raise what a library raises.
"""

from __future__ import annotations

from .. import errors, seam
from ..dispatch.checks import attributes_of, checked_callable, key_or_none
from ..errors.words import shown
from ..keys import DispatchKeySet
from ..keys.numbers import DispatchKey
from ..registry.library import Library, given_provider, type_alternatives
from ..registry.register import RegistrationHandle
from ..registry.verify import DEFAULT_TIMEOUT
from ..schema.names import split_name
from .targets import autocast_key, keys_of, library_for, target_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Any, TypeVar, overload

    from ..dispatch.by_type import Classes
    from ..dispatch.operators import OpOverload
    from ..registry import Registry
    from ..registry.register import Held
    from .computed_kernel import ComputedKernel
    from .targets import Op, Types

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "ScopedLibrary",
    "define",
    "get_kernel",
    "impl",
    "register_autocast",
    "register_dispatch_rule",
    "register_kernel",
    "register_op",
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
    doc: str = "",
    forward: bool = False,
    registry: Registry | None = None,
) -> str:
    """Defines an operator: ``define("shop::scale", "(Tensor x, float factor=2.0) -> Tensor")``.
    Returns its name.

    ``schema`` is written without a name. ``tags``, ``alias_analysis``, ``doc`` and ``forward`` are
    as in ``Library.define``.

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
        return lib.define_with_attributes(name + schema.lstrip(), attributes, doc, forward=forward)
    with library_for(name, registry, "define") as own:
        return own.define_with_attributes(name + schema.lstrip(), attributes, doc, forward=forward)


def register_op(
    schema: str, dispatch_key: DispatchKey | str = "", *, registry: Registry | None = None
) -> Callable[[F], F]:
    """A decorator that defines an operator and registers the function as its kernel, in one line::

        @mdispatch.register_op("shop::scale(Tensor x, float factor=2.0) -> Tensor", "CPU")
        def scale(x, factor=2.0): ...

    The function itself is given back, as it was: to call it is to pass by the dispatcher, and
    ``ops.shop.scale(...)`` calls the operator. (:func:`custom_op` gives back the operator.)

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
        provider: str | None = None,
        order: int = 0,
        supports: Callable[..., object] | None = None,
        available: Callable[[], object] | bool | None = None,
        required: bool = True,
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
        provider: str | None = None,
        order: int = 0,
        supports: Callable[..., object] | None = None,
        available: Callable[[], object] | bool | None = None,
        required: bool = True,
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
    provider: str | None = None,
    order: int = 0,
    supports: Callable[..., object] | None = None,
    available: Callable[[], object] | bool | None = None,
    required: bool = True,
) -> Any:
    """Registers a kernel for devices or at keys: at all of them or, if one is refused, at none.
    Without ``function`` it is a decorator. Returns the function.

    ``types`` is a device ("cpu", "cuda:0", a name given by rename_privateuse_backend), "default"
    (every device: CompositeExplicitAutograd), a key or its name, or several of these. The other
    arguments and the errors are those of ``Library.impl``; for kernels by type use that, or
    :func:`register_kernel`. (torch: torch.library.impl)
    """
    named = (provider, order, supports, available, required)
    keys = keys_of(types)
    return _impl(op, keys, function, lib, registry, with_keyset, allow_override, named=named)


#: What is said of a kernel without the name of a provider.
_UNNAMED = (None, 0, None, None, True)


def _impl(
    op: Op,
    keys: Sequence[DispatchKey],
    function: Any,
    lib: Library | None,
    registry: Registry | None,
    with_keyset: bool = False,
    allow_override: bool = True,
    types: Classes | None = None,
    named: tuple[Any, ...] = _UNNAMED,
) -> Any:
    name, registry = target_of(op, lib, registry)

    def register(given: F) -> F:
        provider = given_provider(given, registry, *named)
        kernel = provider.stands_in if isinstance(given, str) and provider is not None else given
        checked_callable(kernel)
        labels = " ".join(key.name for key in keys)
        library = library_for(name, registry, f"impl {labels}") if lib is None else lib
        handles: list[Held | None] = []
        try:
            for key in keys:
                for each in type_alternatives(types):
                    handles.append(
                        library.register_kernel(
                            name, kernel, key, with_keyset, "", allow_override, each, provider
                        )
                    )
        except BaseException:
            library.let_go(handles)
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
        types: Classes | None = None,
        provider: str | None = None,
        order: int = 0,
        supports: Callable[..., object] | None = None,
        available: Callable[[], object] | bool | None = None,
        required: bool = True,
        lib: Library | None = None,
        registry: Registry | None = None,
    ) -> Callable[[F], F]: ...
    @overload
    def register_kernel(
        op: Op,
        device_types: Types | None,
        function: F,
        *,
        types: Classes | None = None,
        provider: str | None = None,
        order: int = 0,
        supports: Callable[..., object] | None = None,
        available: Callable[[], object] | bool | None = None,
        required: bool = True,
        lib: Library | None = None,
        registry: Registry | None = None,
    ) -> F: ...


def register_kernel(
    op: Op,
    device_types: Types | None,
    function: Any = None,
    *,
    types: Classes | None = None,
    provider: str | None = None,
    order: int = 0,
    supports: Callable[..., object] | None = None,
    available: Callable[[], object] | bool | None = None,
    required: bool = True,
    lib: Library | None = None,
    registry: Registry | None = None,
) -> Any:
    """Registers a kernel for one or several devices, None for every device. Without ``function`` it
    is a decorator. Returns the function. ``types`` are the classes of the tensors that it is for,
    as for ``Library.impl``, and so are the arguments about a provider.

    For an operator that ``custom_op`` made, this calls its own ``register_kernel``, unless ``lib``
    is given. Otherwise it is the same as :func:`impl`. (torch: torch.library.register_kernel)
    """
    own = getattr(type(op), "register_kernel", None)
    if own is not None and lib is None:
        return own(
            op,
            device_types,
            function,
            types=types,
            provider=provider,
            order=order,
            supports=supports,
            available=available,
            required=required,
        )
    named = (provider, order, supports, available, required)
    keys = keys_of("default" if device_types is None else device_types)
    return _impl(op, keys, function, lib, registry, types=types, named=named)


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
    """Registers the kernel for batched values: those that carry the key FuncTorchBatched. Without
    ``function`` it is a decorator. Returns the function.

    The function is a kernel like any other: it gets the arguments of the schema, batched values
    included, and with ``with_keyset`` the key set first. The type of a batched value knows which
    dimension is the batch and how large it is. So nothing is unpacked here. To run the operator on
    the values inside, call it with them: they do not carry the key.

    A function whose first parameters are ``info`` and ``in_dims`` is a rule of PyTorch's form, for
    tensors of PyTorch under ``torch.vmap``.

    Raises what :func:`impl` raises. (torch: torch.library.register_vmap)
    """
    key = DispatchKey.FuncTorchBatched

    def register(given: F) -> F:
        code = getattr(given, "__code__", None)
        is_torchs = code is not None and code.co_varnames[:2] == ("info", "in_dims")
        kernel = seam.at("a rule of PyTorch's vmap")(given) if is_torchs else given
        impl(op, key, kernel, lib=lib, registry=registry, with_keyset=with_keyset)
        return given

    return register if function is None else register(function)


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
    AutocastCPU, AutocastCUDA, ... of ``device_type`` takes part in a call. By default none does,
    because every thread excludes these keys until it is told otherwise.

    The kernel casts the arguments, and elements of lists, that dispatch to that device. It calls
    ``cast(value, cast_inputs)`` if that is given. Otherwise it calls ``astype`` or ``to`` of a
    value whose ``dtype`` is a floating-point type, but not the one of 64 bits. Then it calls the
    operator again with that key excluded.

    Raises InvalidKeyError for a device without such a key, InvalidArgumentError for a ``cast``
    that cannot be called, and what :func:`impl` raises. (torch: torch.library.register_autocast)
    """
    key, autocast = autocast_key(device_type)
    if cast is not None:
        checked_callable(cast)
    name, registry = target_of(op, lib, registry)
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
    """Registers a function that replaces ``__md_dispatch__`` of ``cls`` when a call of the operator
    comes to a mode or value of that class. It gets the same arguments: ``function(mode_or_class,
    op, types, args, kwargs)``.

    Returns a handle whose ``close`` ends the rule. Without ``function`` it is a decorator that
    returns the function. The rule ends at the latest when the definition of the operator does, and
    with ``lib`` if that is given. Classes are local objects: the rule holds in this interpreter
    only, and workers do not verify it.

    Raises InvalidArgumentError (no class to which calls come, not callable),
    OperatorNotFoundError, DuplicateRegistrationError (a second rule of the same class),
    LibraryClosedError. (torch: torch.library.register_torch_dispatch)
    """
    name, registry = target_of(op, lib, registry)

    def register(given: Callable[..., Any]) -> RegistrationHandle:
        if lib is not None:
            lib.check_open()
        rule = registry.ops.find(name).rules.add_class(cls, given, full=True)
        handle = RegistrationHandle(None, rule.close)
        if lib is not None:
            lib.hold(handle)
        return handle

    def decorate(given: F) -> F:
        register(given)
        return given

    return decorate if function is None else register(function)


def get_kernel(
    op: Op, key: DispatchKey | str, *, registry: Registry | None = None
) -> ComputedKernel:
    """The kernel that runs for a call whose highest key is ``key``, as the operator's table has it,
    whichever rule put it there. A kernel that takes its place for some calls can call it for the
    others::

        original = get_kernel("shop::scale", "CPU")
        impl("shop::scale", "CPU", lambda x, f: x if f == 1 else original(x, f))

    The result stays that kernel while others come and go. :class:`ComputedKernel` says when it
    ends.

    Raises MissingKernelError (also where the key falls through, or the kernel's module is not
    imported here), InvalidKeyError (an alias key), OperatorNotFoundError. (torch:
    torch.library.get_kernel)
    """
    # Not at the top: a worker that only verifies never calls an operator.
    from .computed_kernel import computed_kernel

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


# --- the kernel that register_autocast registers --------------------------------------------------


#: Prefixes of the names of the element types that are cast, and the names among them that are not:
#: a caller that uses 64 bits asked for them on purpose.
_FLOATING = ("float", "bfloat", "half")
_KEPT = ("float64", "double")


class AutocastKernel:
    """Casts the tensors of one device to one element type, and calls the operator again below."""

    def __init__(
        self,
        registry: Registry,
        name: str,
        device: DispatchKey,
        key: DispatchKey,
        dtype: Any,
        cast: Callable[[Any, Any], Any] | None,
    ) -> None:
        # Not at the top: these load as much as a first call does; see get_kernel.
        from ..dispatch.context.guards import ExcludeDispatchKeyGuard
        from ..dispatch.context.values import raw_of
        from ..dispatch.operators import OpOverload

        self._excluding = ExcludeDispatchKeyGuard
        self._raw_of = raw_of
        self._make_operator = OpOverload
        self.__module__ = "mdispatch"
        self.__qualname__ = f"autocast to {_name_of(dtype)}"
        self._registry = registry
        self._name = name
        self._device = device
        self._key = key
        self._dtype = dtype
        self._cast = _cast if cast is None else cast
        self._operator: OpOverload | None = None

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        operator = self._operator
        if operator is None or operator.is_gone:  # a kernel outlives definitions
            operator = self._operator = self._make_operator(self._registry.dispatcher, self._name)
        args = tuple(map(self._lowered, args))
        kwargs = {name: self._lowered(value) for name, value in kwargs.items()}
        with self._excluding(self._key):
            return operator(*args, **kwargs)

    def _lowered(self, value: Any) -> Any:
        raw = self._raw_of(value)
        if raw is not None:
            on_device = DispatchKeySet.from_raw(raw).has(self._device)
            return self._cast(value, self._dtype) if on_device else value
        if type(value) is list:
            return [self._lowered(each) for each in value]
        return value

    def __repr__(self) -> str:
        return f"<{self.__qualname__} of {self._name}>"


def _name_of(dtype: Any) -> str:
    """The name of an element type: "float32" of numpy's, of PyTorch's, of "<f4"."""
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    return name if isinstance(name, str) else str(dtype).rpartition(".")[2]


def _cast(value: Any, dtype: Any) -> Any:
    name = _name_of(getattr(value, "dtype", ""))
    if not name.startswith(_FLOATING) or name in _KEPT:
        return value
    for method in ("astype", "to"):
        convert = getattr(value, method, None)
        if convert is not None:
            return convert(dtype)
    return value
