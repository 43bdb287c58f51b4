"""Libraries: what a module registers, together, under one namespace, and can close together.

The same module runs everywhere. In the main interpreter its library registers; in every other one
it verifies that the main interpreter has registered the same, and keeps its own callables (see
_registering.py).
"""

from __future__ import annotations

from . import _registry as facts
from . import errors
from ._arguments import (
    WILDCARD,
    attributes_of,
    checked_callable,
    key_or_none,
    name_of,
    operator_name,
    stub_of,
)
from ._kernels import LocalKernel
from ._keys import TABLE_INDEX, DispatchKey, table_index
from ._library import OpenLibrary
from ._nearest import shown
from ._registering import (
    RegistrationHandle,
    define,
    define_here,
    fall_back,
    hold_name,
    implement,
    implement_here,
    implement_known,
    name_module,
)
from ._registering_c import implement_in_c

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar, overload

    from .operators import OpOverload

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Library"]

_META = DispatchKey.Meta


class Library(OpenLibrary):
    """Registers operators and kernels under one namespace.

    ``kind`` is "DEF" (the one library that owns the namespace), "FRAGMENT" (adds definitions and
    kernels to it) or "IMPL" (adds kernels, or with namespace "_" fallbacks). ``dispatch_key`` is
    the key of kernels registered without one. ``timeout`` is how many seconds each verification
    waits for the main interpreter, None for ever.

    Opened again from the same place (a module imported again, a notebook cell run again), a library
    replaces the earlier one; so a loop of a module's own top-level code should open its library
    once, before it begins. A library that nobody holds any more keeps its registrations;
    ``close`` ends them.

    Raises InvalidArgumentError, InvalidNameError, InvalidKeyError; DuplicateRegistrationError when
    the namespace has a DEF library from another place; in a worker MainNeverArrivedError.
    (torch.library.Library, c10: registerLibrary)
    """

    def define(
        self, schema: str, *, alias_analysis: str = "", tags: str | Iterable[str] = ()
    ) -> str:
        """Defines an operator: ``"scale(Tensor x, float factor=2.0) -> Tensor"``. Returns its name
        with namespace.

        ``alias_analysis`` says what optimizers may assume: FROM_SCHEMA (also ""), that only the
        marked arguments are written to or returned; CONSERVATIVE, that anything may be;
        PURE_FUNCTION, that nothing is. ``tags`` are identifiers of the user's own. Both are kept
        with the schema and compared like it.

        In a worker, waits until the main interpreter has defined the operator and compares.

        Raises SchemaSyntaxError, InvalidNameError, InvalidArgumentError,
        DuplicateRegistrationError, SignatureMismatchError, LibraryClosedError, RegistryFullError;
        in a worker SchemaMismatchError, NameMismatchError, MainNeverArrivedError. (c10:
        Library::_def, registerDef)
        """
        return self._define(schema, attributes_of(alias_analysis, tags))

    @property
    def python_module(self) -> str | None:
        """What :meth:`set_python_module` has named last, or None."""
        return self._stub.partition("\n")[0] or None

    def set_python_module(self, module: str | None, context: str = "") -> None:
        """Names the Python module that has the fake kernels of what this library defines from now
        on; what it has defined before keeps what it has. None for no module.

        ``context`` is for people: it is added where an error asks to import the module. The two
        are kept in the registry and end with the definition; they serve every interpreter.

        In a worker every later ``define`` compares.

        Raises InvalidArgumentError (no full name of a module, more than 65536 bytes, an IMPL
        library), LibraryClosedError. (c10: Library::set_python_module)
        """
        self._check_open()
        stub = "" if module is None else stub_of(module, context)
        if self.kind == "IMPL":
            raise errors.InvalidArgumentError(
                "an IMPL library defines no operators, and the module goes with the definition: "
                f"name {shown(module)} in the DEF or a FRAGMENT library of {self.namespace!r}"
            )
        self._stub = stub

    def register_python_module(self, op: str | OpOverload, module: str, context: str = "") -> None:
        """Names the Python module that has the fake kernel of one operator, whoever defines it.

        Where another module, or context, is named already, PystubOverrideWarning tells both, with
        their places; the newest is in effect, and the earlier one returns when it is closed.

        In a worker, waits until the main interpreter has done the same and compares.

        Raises InvalidNameError, InvalidArgumentError, LibraryClosedError, RegistryFullError; in a
        worker PystubMismatchError, NameMismatchError, MainNeverArrivedError. (c10:
        registerPythonModule)
        """
        self._check_open()
        name = operator_name(self.namespace, name_of(op))
        stub = stub_of(module, context)
        self._hold(name_module(self.registry, name, stub, self._here, self.timeout))

    def _define(self, schema: str, attributes: str) -> str:
        self._check_open()
        if self.kind == "IMPL":
            raise errors.InvalidArgumentError(
                f"an IMPL library defines no operators: define {shown(schema)} in the DEF or a "
                "FRAGMENT library of "
                f"{self.namespace!r}"
            )
        if not isinstance(schema, str):
            raise errors.InvalidArgumentError(f"a schema is a str, not {shown(schema)}")
        registry, namespace = self.registry, self.namespace
        handle: RegistrationHandle | None
        if registry.is_main:
            name, handle = define_here(
                registry,
                schema,
                namespace,
                self._here(),
                attributes=attributes,
                stub=self._stub,
                replaced=self._replaced,
            )
        else:
            name, handle = define(
                registry,
                schema,
                namespace,
                self._here,
                self.timeout,
                attributes=attributes,
                stub=self._stub,
                replaced=self._replaced,
            )
        self._hold(handle)
        return name

    if TYPE_CHECKING:

        @overload
        def impl(
            self,
            op: str | OpOverload,
            function: None = None,
            dispatch_key: DispatchKey | str = "",
            *,
            with_keyset: bool = False,
            signature: str = "",
            allow_override: bool = True,
        ) -> Callable[[F], F]: ...
        @overload
        def impl(
            self,
            op: str | OpOverload,
            function: F,
            dispatch_key: DispatchKey | str = "",
            *,
            with_keyset: bool = False,
            signature: str = "",
            allow_override: bool = True,
        ) -> F: ...

    def impl(
        self,
        op: str | OpOverload,
        function: Any = None,
        dispatch_key: DispatchKey | str = "",
        *,
        with_keyset: bool = False,
        signature: str = "",
        allow_override: bool = True,
    ) -> Any:
        """Registers a kernel for an operator, at ``dispatch_key``, else the library's key, else as
        a catch-all.

        ``op`` is a name ("scale", "scale.out", "ns::scale") or an operator. Without ``function`` it
        is a decorator. The kernel gets every argument of the schema, defaults included,
        keyword-only ones by keyword; with ``with_keyset`` the DispatchKeySet comes first. The
        newest kernel of a key is in effect; the earlier one returns when it goes. Without
        ``allow_override`` a key takes one kernel, whoever registered it. Returns the function.

        At Meta an operator with a CompositeImplicitAutograd kernel takes none: that one serves
        meta values by what it calls.

        ``signature`` is the kernel's own schema without a name, ``"(Tensor x) -> Tensor"``: where
        it does not fit the operator's (number and types of arguments and returns), the kernel or
        the definition that comes second is refused.

        Raises InvalidArgumentError (not callable, another namespace), InvalidKeyError,
        SignatureMismatchError, DuplicateRegistrationError (``allow_override``), LibraryClosedError,
        RegistryFullError; in a worker KeyMismatchError, NameMismatchError, MainNeverArrivedError.
        (c10: Library::_impl, registerImpl)
        """
        if function is None:
            return lambda decorated: self.impl(
                op,
                checked_callable(decorated),
                dispatch_key,
                with_keyset=with_keyset,
                signature=signature,
                allow_override=allow_override,
            )
        self._register_kernel(op, function, dispatch_key, with_keyset, signature, allow_override)
        return function

    def _register_kernel(
        self,
        op: str | OpOverload,
        function: Callable[..., Any],
        dispatch_key: DispatchKey | str,
        with_keyset: bool,
        signature: str,
        allow_override: bool,
    ) -> RegistrationHandle | None:
        self._check_open()
        checked_callable(function)
        key = self._key(dispatch_key, op)
        if type(function).__module__ == "_cffi_backend":
            from ._cdata import kernel_address, plain_kernel

            address = kernel_address(function, with_keyset or bool(signature))
            if address:
                name = operator_name(self.namespace, name_of(op))
                handle = implement_in_c(
                    self.registry, name, key, *address, self._here, self.timeout, allow_override
                )
                self._hold(handle)
                return handle
            kernel = plain_kernel(key, function, with_keyset, signature)
            return self._impl(op, kernel, allow_override)
        if key not in TABLE_INDEX and not key.is_alias:
            table_index(key)  # refused: a kernel without a slot would never run
        if key is _META:
            self._check_meta(op)
        return self._impl(op, LocalKernel(key, function, with_keyset, signature), allow_override)

    def _impl(
        self, op: str | OpOverload, kernel: LocalKernel, allow_override: bool = True
    ) -> RegistrationHandle | None:
        handle: RegistrationHandle | None = None
        if self.registry.is_main:
            name = operator_name(self.namespace, name_of(op))
            handle = implement_here(self.registry, name, kernel, self._here(), allow_override)
        elif isinstance(op, str) and not kernel.signature and self.registry.is_worker:
            prefix = self.namespace + "::"
            full = op if op.startswith(prefix) else prefix + op
            handle = implement_known(self.registry, full, kernel)
        if handle is None:
            name = operator_name(self.namespace, name_of(op))
            handle = implement(
                self.registry,
                name,
                kernel,
                self._here,
                self.timeout,
                allow_override=allow_override,
            )
        self._hold(handle)
        return handle

    def _check_meta(self, op: str | OpOverload) -> None:
        name = operator_name(self.namespace, name_of(op))
        implicit = DispatchKey.CompositeImplicitAutograd
        if self.registry.is_main:
            refused = self.registry._facts.has(facts.IMPL, implicit, name)
        else:  # the main one's may have come after its own kernel at Meta
            entry = self.registry._entries.get(name)
            refused = entry is not None and bool(entry.kernels.get(implicit))
        if refused:
            raise errors.InvalidKeyError(
                f"{name} has a kernel at {implicit.name}, which serves meta values by what it "
                "calls: one at Meta would run in its place, and could say something else\n"
                "Register fake kernels for the operators that it calls, or its own kernel at "
                "CompositeExplicitAutograd.",
                DispatchKey.Meta,
            )

    if TYPE_CHECKING:

        @overload
        def register_fake(
            self, op: str | OpOverload, function: None = None, *, allow_override: bool = True
        ) -> Callable[[F], F]: ...
        @overload
        def register_fake(
            self, op: str | OpOverload, function: F, *, allow_override: bool = True
        ) -> F: ...

    def register_fake(
        self, op: str | OpOverload, function: Any = None, *, allow_override: bool = True
    ) -> Any:
        """Registers a fake kernel, which runs for meta values. Ends with this library.

        As :func:`mdispatch.register_fake`. (PyTorch: torch.library.Library._register_fake)
        """
        from ._fakes import register_fake_in  # many libraries register none

        if function is None:
            return lambda decorated: self.register_fake(
                op, checked_callable(decorated), allow_override=allow_override
            )
        return register_fake_in(self, op, function, allow_override)

    def fallback(
        self,
        function: Callable[..., Any],
        dispatch_key: DispatchKey | str = "",
        *,
        with_keyset: bool = False,
    ) -> None:
        """Registers what runs at a key for every operator that has no kernel there: ``function(op,
        *args, **kwargs)``.

        Only in an IMPL library of namespace "_". :func:`fallthrough_kernel` makes calls pass the
        key by.

        Raises InvalidArgumentError, InvalidKeyError (an alias key), DuplicateRegistrationError,
        LibraryClosedError; in a worker NotRegisteredError. (c10: Library::_fallback,
        registerFallback)
        """
        self._check_open()
        if self.namespace != WILDCARD:
            raise errors.InvalidArgumentError(
                "a fallback serves the operators of all namespaces: register it with "
                "Library('_', 'IMPL'), "
                f"not in {self.namespace!r}"
            )
        checked_callable(function)
        if key_or_none(dispatch_key) is None and self.key is None:
            raise errors.InvalidKeyError(
                "a fallback needs a dispatch key, here or in its library", dispatch_key
            )
        kernel = LocalKernel(self._key(dispatch_key, "the fallback"), function, with_keyset)
        self._hold(fall_back(self.registry, kernel, self._here, self.timeout))

    def register_name(self, op: str | OpOverload) -> str:
        """Keeps a name in the registry, with neither a schema nor a kernel: for those who look it
        up before either is there. Returns it with its namespace. Any number of times.

        In a worker, waits until the main interpreter has done the same.

        Raises InvalidNameError, InvalidArgumentError (another namespace), LibraryClosedError,
        RegistryFullError; in a worker NameMismatchError, MainNeverArrivedError. (c10: registerName)
        """
        self._check_open()
        name = operator_name(self.namespace, name_of(op))
        self._hold(hold_name(self.registry, name, self._here, self.timeout))
        return name
