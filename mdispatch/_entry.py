"""One operator in one interpreter: the callables that are here, and the table computed from them and the facts.

The table is kept until the operator's version word says that it is out of date, and then replaced as a whole, never
patched: a call in another thread sees the old one or the new one. What a call needs and a registration does not
(schemas, tables, values) is imported by the first call, so that a worker that only verifies does not pay for it.

Locking: ``_lock`` is held while callables are added or dropped and while a table is computed; calls take no lock. In the
main interpreter a fact and its callable are added under one hold of it: no table has the one without the other.
"""

from __future__ import annotations

from _thread import allocate_lock

from . import _registry as facts
from . import errors
from ._kernels import FALLBACK_NAME, LocalKernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._bind import Binder
    from ._keys import DispatchKey
    from ._registry import Registration, RegistryProtocol
    from ._table import DispatchTable
    from .schema import FunctionSchema

__all__ = ["Entry"]


class Entry:
    """One operator, by its name with overload: ``ns::name`` or ``ns::name.overload``."""

    def __init__(
        self, registry: RegistryProtocol, name: str, fallbacks: dict[DispatchKey, list[LocalKernel]]
    ) -> None:
        self.name = name
        self.kernels: dict[DispatchKey, list[LocalKernel]] = {}
        self.version = -1
        self.node = 0
        self.table: DispatchTable | None = None
        self.definition: Registration | None = None
        self._schema: FunctionSchema | None = None
        self._binder: Binder | None = None
        self.dispatch_positions: tuple[int, ...] = ()
        self.dispatch_keywords: tuple[str, ...] = ()
        self._registry = registry
        self._fallbacks = fallbacks
        self._lock = allocate_lock()

    # --- changing what is here

    def add(self, kernel: LocalKernel, claim: Callable[[], Registration]) -> Registration:
        """Main interpreter: the fact and the callable, under one hold of the lock."""
        with self._lock:
            fact = claim()
            kernel.seq = fact.seq
            self.kernels.setdefault(kernel.key, []).append(kernel)
            self.version = -1
        return fact

    def keep(self, kernel: LocalKernel) -> None:
        """Worker: the callable, its fact having been verified."""
        with self._lock:
            self.kernels.setdefault(kernel.key, []).append(kernel)
            self.version = -1

    def drop(self, kernel: LocalKernel) -> None:
        with self._lock:
            here = self.kernels.get(kernel.key, [])
            if kernel in here:
                here.remove(kernel)
            self.version = -1

    def make_stale(self) -> None:
        self.version = -1

    # --- looking

    def is_current(self) -> bool:
        return self.version >= 0 and self._registry.version(self.node) == self.version

    def current_table(self) -> DispatchTable:
        """The table of the facts as they are now."""
        if not self.is_current() or self.table is None:
            return self._refresh()
        return self.table

    def _refresh(self) -> DispatchTable:
        from ._pairing import table_of

        with self._lock:
            # The version is read with the facts: a change after this makes the table stale, never wrong for ever.
            version, node, there = self._registry.registrations(self.name)
            _, _, fallbacks = self._registry.registrations(FALLBACK_NAME)
            definitions = [f for f in there if f.kind == facts.DEF]
            definition = definitions[-1] if definitions else None
            if definition is None or self.definition is None or definition.body != self.definition.body:
                self._schema = self._binder = None
            self.definition = definition
            table = table_of(there, self.kernels, fallbacks, self._fallbacks)
            self.table = table
            self.node = node
            self.version = version if node else -1
            return table

    @property
    def schema(self) -> FunctionSchema:
        """Raises OperatorGoneError when the operator is not defined (any more)."""
        self.current_table()
        if self._schema is None:
            from .schema import parse_schema

            self._schema = parse_schema(self._defined().body)
        return self._schema

    @property
    def binder(self) -> Binder:
        binder = self._binder
        if binder is None:
            from ._bind import Binder
            from .values import is_tensor

            schema = self.schema
            binder = Binder(schema, is_tensor)
            dispatched = [schema.arguments[i] for i in schema.dispatch_arguments]
            self.dispatch_positions = tuple(
                i for i in schema.dispatch_arguments if not schema.arguments[i].kwarg_only
            )
            self.dispatch_keywords = tuple(a.name for a in dispatched if a.kwarg_only)
            self._binder = binder
        return binder

    def _defined(self) -> Registration:
        definition = self.definition
        if definition is None:
            _, _, there = self._registry.registrations(self.name)
            hint = (
                "it has kernels, but nobody defined its schema"
                if any(f.kind == facts.IMPL for f in there)
                else "its last registration was closed"
            )
            raise errors.OperatorGoneError(f"operator {self.name} is not defined: {hint}", self.name)
        return definition
