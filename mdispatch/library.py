"""Libraries: what a module registers, together, under one namespace, and can close together.

The same module runs everywhere. In the main interpreter its library registers; in every other one
it verifies that the main interpreter has registered the same, and keeps its own callables (see
_registering.py).
"""

from __future__ import annotations

from _thread import RLock

from . import _registry as facts
from . import errors
from ._arguments import WILDCARD, attributes_of, checked_callable, key_or_none, operator_name
from ._kernels import LocalKernel
from ._keys import DispatchKey, table_index
from ._nearest import shown
from ._place import caller, place_of
from ._registering import (
    RegistrationHandle,
    define,
    fall_back,
    hold_name,
    implement,
    implement_known,
    open_namespace,
)
from ._roles import DEFAULT_TIMEOUT
from ._schema_names import OperatorName
from .registry import Registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType
    from typing import Any, TypeVar, overload

    from ._registry import Registration
    from .operators import OpOverload

    F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["Library"]

KINDS = ("DEF", "FRAGMENT", "IMPL")


class Library:
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

    def __init__(
        self,
        namespace: str,
        kind: str,
        dispatch_key: DispatchKey | str = "",
        *,
        registry: Registry | None = None,
        timeout: float | None = DEFAULT_TIMEOUT,
        _tag: str = "",
        _place: str = "",
    ) -> None:
        if kind not in KINDS:
            raise errors.InvalidArgumentError(
                f"kind={shown(kind)}: a library is 'DEF', 'FRAGMENT' or 'IMPL'"
            )
        if namespace == WILDCARD:
            if kind != "IMPL":
                raise errors.InvalidNameError(
                    "namespace '_' stands for all operators and takes fallbacks only: open it "
                    f"as 'IMPL', not {kind!r}",
                    namespace,
                )
        elif not isinstance(namespace, str):
            raise errors.InvalidNameError(
                f"a namespace is a str, not {shown(namespace)}", namespace
            )
        else:
            OperatorName(namespace or " ", "_")
        self.key = key_or_none(dispatch_key)
        if self.key is not None and kind != "IMPL":
            raise errors.InvalidArgumentError(
                f"a {kind} library serves all keys; give dispatch_key to an IMPL library, or "
                "to impl()"
            )
        self.namespace = namespace
        self.kind = kind
        self.timeout = facts.check_timeout(timeout)
        self.registry = given_or_default(registry)
        frame = None if _place else caller()
        self._place = _place
        self.where = _place or place_of(frame)
        self.closed = False
        self._handles: list[RegistrationHandle] = []
        self._lock = RLock()  # over _handles and closed
        self._replaced: dict[str, Registration] = {}
        # Only a DEF library, or one opened by a module's own top-level code, is the same one when
        # it is opened again; a function may open many from one place. Never one whose place was
        # made up.
        self._identity = (namespace, kind, str(self.key), self.where, _tag)
        is_module = frame is not None and frame.f_code.co_name == "<module>"
        if is_module or (kind == "DEF" and not _place):
            earlier = self.registry._libraries.get(self._identity)
            if earlier is not None:
                self._replaced = earlier._definitions()
                earlier.close()
            self.registry._libraries[self._identity] = self
        if kind == "DEF":
            try:
                self._hold(open_namespace(self.registry, namespace, self._here, self.timeout))
            except BaseException:
                self.registry._libraries.pop(self._identity, None)
                raise

    # --- registering

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
        name, handle = define(
            self.registry,
            schema,
            self.namespace,
            self._here,
            self.timeout,
            attributes=attributes,
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
        ) -> F: ...

    def impl(
        self,
        op: str | OpOverload,
        function: Any = None,
        dispatch_key: DispatchKey | str = "",
        *,
        with_keyset: bool = False,
        signature: str = "",
    ) -> Any:
        """Registers a kernel for an operator, at ``dispatch_key``, else the library's key, else as
        a catch-all.

        ``op`` is a name ("scale", "scale.out", "ns::scale") or an operator. Without ``function`` it
        is a decorator. The kernel gets every argument of the schema, defaults included,
        keyword-only ones by keyword; with ``with_keyset`` the DispatchKeySet comes first. The
        newest kernel of a key is in effect; the earlier one returns when it goes. Returns the
        function.

        ``signature`` is the kernel's own schema without a name, ``"(Tensor x) -> Tensor"``: where
        it does not fit the operator's (number and types of arguments and returns), the kernel or
        the definition that comes second is refused.

        Raises InvalidArgumentError (not callable, another namespace), InvalidKeyError,
        SignatureMismatchError, LibraryClosedError, RegistryFullError; in a worker KeyMismatchError,
        NameMismatchError, MainNeverArrivedError. (c10: Library::_impl, registerImpl)
        """
        if function is None:
            return lambda decorated: self.impl(
                op,
                checked_callable(decorated),
                dispatch_key,
                with_keyset=with_keyset,
                signature=signature,
            )
        self._check_open()
        checked_callable(function)
        key = self._key(dispatch_key, op)
        if not key.is_alias:
            table_index(key)  # a kernel without a slot would never run
        self._impl(op, LocalKernel(key, function, with_keyset, signature))
        return function

    def _impl(self, op: str | OpOverload, kernel: LocalKernel) -> None:
        given: Any = op if isinstance(op, str) else getattr(op, "name", op)
        handle = None
        if isinstance(op, str) and not kernel.signature and not self.registry.is_main:
            prefix = self.namespace + "::"
            full = op if op.startswith(prefix) else prefix + op
            handle = implement_known(self.registry, full, kernel)
        if handle is None:
            name = operator_name(self.namespace, given)
            handle = implement(self.registry, name, kernel, self._here, self.timeout)
        self._hold(handle)

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

    def register_name(self, op: str) -> str:
        """Keeps a name in the registry, with neither a schema nor a kernel: for those who look it
        up before either is there. Returns it with its namespace. Any number of times.

        In a worker, waits until the main interpreter has done the same.

        Raises InvalidNameError, InvalidArgumentError (another namespace), LibraryClosedError,
        RegistryFullError; in a worker NameMismatchError, MainNeverArrivedError. (c10: registerName)
        """
        self._check_open()
        name = operator_name(self.namespace, op)
        self._hold(hold_name(self.registry, name, self._here, self.timeout))
        return name

    # --- ending

    def close(self) -> None:
        """Ends every registration of this library, newest first. Idempotent."""
        with self._lock:
            self.closed = True
            handles, self._handles = self._handles, []
        if self.registry._libraries.get(self._identity) is self:
            self.registry._libraries.pop(self._identity, None)
        for handle in reversed(handles):
            handle.close()

    def __enter__(self) -> Library:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """A block that raises leaves nothing registered; a block that ends well keeps
        everything.
        """
        if exc_type is not None:
            self.close()

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<mdispatch.Library {self.kind} {self.namespace!r} from {self.where}{state}>"

    # --- helpers

    def _check_open(self) -> None:
        if self.closed:
            raise errors.LibraryClosedError(
                f"library {self.namespace!r} from {self.where} is closed; open another",
                self.namespace,
            )

    def _key(self, dispatch_key: DispatchKey | str, what: object) -> DispatchKey:
        key = key_or_none(dispatch_key)
        if key is None:
            return self.key or DispatchKey.CompositeImplicitAutograd
        if self.key is not None and key is not self.key:
            raise errors.InvalidKeyError(
                f"this library is for {self.key.name}: register {shown(what)} at {key.name} in "
                "another one",
                key,
            )
        return key

    def _hold(self, handle: RegistrationHandle | None) -> None:
        """Keeps a handle until the library is closed. LibraryClosedError when that came first."""
        with self._lock:
            if handle is not None and not self.closed:
                self._handles.append(handle)
                return
        if handle is not None:
            handle.close()
        self._check_open()

    def _definitions(self) -> dict[str, Registration]:
        """What this library has defined, by name."""
        found = (handle.registration for handle in self._handles)
        return {fact.name: fact for fact in found if fact is not None and fact.kind == facts.DEF}

    def _here(self) -> str:
        return self._place or place_of(caller())
