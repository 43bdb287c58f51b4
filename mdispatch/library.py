"""Libraries: what a module registers, together, under one namespace, and can close together.

The same module runs everywhere. In the main interpreter its library registers; in every other one
it verifies that the main interpreter has registered the same, and keeps its own callables (see
_roles.py).
"""

from __future__ import annotations

from . import _registry as facts
from . import errors
from ._arguments import WILDCARD, checked_callable, key_or_none, operator_name
from ._kernels import FALLBACK_NAME, LocalKernel
from ._keys import DispatchKey, table_index
from ._nearest import shown
from ._place import caller, place_of
from ._roles import DEFAULT_TIMEOUT, claim, known
from ._schema_names import OperatorName, split_name
from .registry import Registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
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
        frame = caller()
        self.where = place_of(frame)
        self.closed = False
        self._undo: list[Callable[[], None]] = []
        # Only a DEF library, or one opened by a module's own top-level code, is the same one when
        # it is opened again; a function may open many from one place.
        self._identity = (namespace, kind, str(self.key), self.where, _tag)
        if kind == "DEF" or (frame is not None and frame.f_code.co_name == "<module>"):
            earlier = self.registry._libraries.get(self._identity)
            if earlier is not None:
                earlier.close()
            self.registry._libraries[self._identity] = self
        if kind == "DEF":
            try:
                self._claim(facts.LIBRARY, 0, namespace, "")
            except BaseException:
                self.registry._libraries.pop(self._identity, None)
                raise

    # --- registering

    def define(self, schema: str) -> str:
        """Defines an operator: ``"scale(Tensor x, float factor=2.0) -> Tensor"``. Returns its name
        with namespace.

        In a worker, waits until the main interpreter has defined it and compares the schemas.

        Raises SchemaSyntaxError, InvalidNameError, DuplicateRegistrationError, LibraryClosedError,
        RegistryFullError; in a worker SchemaMismatchError, NameMismatchError,
        MainNeverArrivedError. (c10: Library::_def, registerDef)
        """
        self._check_open()
        if self.kind == "IMPL":
            raise errors.InvalidArgumentError(
                f"an IMPL library defines no operators: define {shown(schema)} in the DEF or a "
                "FRAGMENT library of "
                f"{self.namespace!r}"
            )
        if not isinstance(schema, str):
            raise errors.InvalidArgumentError(f"a schema is a str, not {shown(schema)}")
        prefix = self.namespace + "::"
        written = schema if schema.startswith(prefix) else prefix + schema

        def body() -> str:
            from .schema import parse_schema

            # As written, too: where the same text comes again, nothing has to be parsed.
            canonical = str(parse_schema(schema, self.namespace))
            if written == canonical or len(written) > 1024:
                return canonical
            return f"{canonical}\n{written}"

        def difference(fact: Registration) -> str | None:
            from .schema import compare, parse_schema

            return compare(parse_schema(schema, self.namespace), parse_schema(fact.body))

        registry = self.registry
        name = written.partition("(")[0]
        verified = not registry.is_main and known(registry._facts, facts.DEF, 0, name, written)
        if not verified:
            name = split_name(schema, self.namespace)
            verified = self._claim(facts.DEF, 0, name, body, accept=difference) is not None
        base, _, overload = name.partition(".")
        if verified:
            registry.note_overload(base, overload)
            self._undo.append(lambda: registry.forget_overload(base, overload))
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
        ) -> Callable[[F], F]: ...
        @overload
        def impl(
            self,
            op: str | OpOverload,
            function: F,
            dispatch_key: DispatchKey | str = "",
            *,
            with_keyset: bool = False,
        ) -> F: ...

    def impl(
        self,
        op: str | OpOverload,
        function: Any = None,
        dispatch_key: DispatchKey | str = "",
        *,
        with_keyset: bool = False,
    ) -> Any:
        """Registers a kernel for an operator, at ``dispatch_key``, else the library's key, else as
        a catch-all.

        ``op`` is a name ("scale", "scale.out", "ns::scale") or an operator. Without ``function`` it
        is a decorator. The kernel gets every argument of the schema, defaults included,
        keyword-only ones by keyword; with ``with_keyset`` the DispatchKeySet comes first. The
        newest kernel of a key is in effect; the earlier one returns when it goes. Returns the
        function.

        Raises InvalidArgumentError (not callable, another namespace), InvalidKeyError,
        LibraryClosedError, RegistryFullError; in a worker KeyMismatchError, NameMismatchError,
        MainNeverArrivedError. (c10: Library::_impl)
        """
        if function is None:
            return lambda decorated: self.impl(
                op, checked_callable(decorated), dispatch_key, with_keyset=with_keyset
            )
        self._check_open()
        checked_callable(function)
        given: Any = op if isinstance(op, str) else getattr(op, "name", op)
        key = self._key(dispatch_key)
        if not self.registry.is_main and self._keep_known(given, key, function, with_keyset):
            return function
        name = operator_name(self.namespace, given)
        if not key.is_alias:
            table_index(key)  # a kernel without a slot would never run
        kernel = LocalKernel(key, function, with_keyset)
        entry = self.registry.entry(name)
        if self.registry.is_main:
            fact = entry.add(kernel, lambda: self._fact(facts.IMPL, key, name, kernel.label))
            # The fact goes first, see _entry.py.
            self._undo += [lambda: entry.drop(kernel), lambda: self._strike(fact)]
        else:
            # Kernels that came with a fork have facts of their own; those are not to be there
            # twice.
            at_least = sum(not k.seq for k in entry.kernels.get(key, [])) + 1
            if self._claim(facts.IMPL, key, name, kernel.label, at_least=at_least) is None:
                return function
            entry.keep(kernel)
            self._undo.append(lambda: entry.drop(kernel))
        return function

    def _keep_known(
        self, op: object, key: DispatchKey, function: Callable[..., Any], with_keyset: bool
    ) -> bool:
        """The short way of a worker: the first kernel at a key where the main one has one."""
        if not isinstance(op, str):
            return False
        prefix = self.namespace + "::"
        name = op if op.startswith(prefix) else prefix + op
        there = self.registry._entries.get(name)
        if there is not None and there.kernels.get(key):
            return False
        if not known(self.registry._facts, facts.IMPL, key, name):
            return False
        entry = self.registry.entry(name)
        kernel = LocalKernel(key, function, with_keyset)
        entry.keep(kernel)
        self._undo.append(lambda: entry.drop(kernel))
        return True

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
        key = self._key(dispatch_key)
        table_index(key)
        kernel = LocalKernel(key, function, with_keyset)
        if not self.registry.is_main:
            if self._claim(facts.FALLBACK, key, FALLBACK_NAME, kernel.label) is not None:
                self.registry.add_fallback(kernel)
                self._undo.append(lambda: self.registry.drop_fallback(kernel))
            return
        # The callable comes first and goes last: no table of another thread may find the fact
        # without it.
        self.registry.add_fallback(kernel)
        try:
            fact = self._fact(facts.FALLBACK, key, FALLBACK_NAME, kernel.label)
        except BaseException:
            self.registry.drop_fallback(kernel)
            raise
        kernel.seq = fact.seq
        self._undo += [lambda: self.registry.drop_fallback(kernel), lambda: self._strike(fact)]

    # --- ending

    def close(self) -> None:
        """Ends every registration of this library, newest first. Idempotent."""
        if self.closed:
            return
        self.closed = True
        if self.registry._libraries.get(self._identity) is self:
            del self.registry._libraries[self._identity]
        while self._undo:
            self._undo.pop()()

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

    def _key(self, dispatch_key: DispatchKey | str) -> DispatchKey:
        key = key_or_none(dispatch_key)
        if key is None:
            return self.key or DispatchKey.CompositeImplicitAutograd
        if self.key is not None and key is not self.key:
            raise errors.InvalidKeyError(
                f"this library is for {self.key.name}: open another one for {key.name}", key
            )
        return key

    def _fact(self, kind: int, key: int, name: str, body: str | Callable[[], str]) -> Registration:
        """Registers in the main interpreter; a refusal is told with both places."""
        try:
            fact = claim(self.registry._facts, kind, key, name, body, self._here)
        except errors.DuplicateRegistrationError as error:
            from ._differences import registered_twice

            raise registered_twice(error, key) from None
        assert fact is not None
        return fact

    def _claim(
        self,
        kind: int,
        key: int,
        name: str,
        body: str | Callable[[], str],
        *,
        at_least: int = 1,
        accept: Callable[[Registration], str | None] | None = None,
    ) -> Registration | None:
        if self.registry.is_main:
            fact = self._fact(kind, key, name, body)
            self._undo.append(lambda: self._strike(fact))
            return fact
        return claim(
            self.registry._facts,
            kind,
            key,
            name,
            body,
            self._here,
            at_least=at_least,
            timeout=self.timeout,
            accept=accept,
        )

    def _here(self) -> str:
        return place_of(caller())

    def _strike(self, fact: Registration) -> None:
        self.registry._facts.strike(fact)
