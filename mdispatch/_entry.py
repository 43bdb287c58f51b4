"""One operator in one interpreter: the callables that are here, and the table computed from them
and the facts.

Table and definition are kept until the operator's version word says that they are out of date, and
then replaced together, as one object, never patched: a call in another thread sees the old ones or
the new ones. What a call needs and a registration does not (schemas, tables, values) is imported by
the first call, so that a worker that only verifies does not pay for it.

Locking: ``lock`` is held while callables are added or dropped and while a table is computed; calls
take no lock. The thread that has it can take it again: signal handlers and finalizers run at any
place, and may call or change the very operator. ``_changes`` counts what they do to the callables,
so that a table computed from what was there before is not kept. In the main interpreter a fact and
its callable come and go under one hold of it: no table has the fact without the callable.
"""

from __future__ import annotations

from _thread import RLock

from . import _registry as facts
from . import errors
from ._kernels import C_LABEL, FALLBACK_NAME, Fallbacks, LocalKernel, inherit
from ._native import unlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._bind import Binder
    from ._keys import DispatchKey
    from ._native._call import Cell, Shape
    from ._registry import Registration, RegistryProtocol, Struck
    from ._returns import Returns
    from ._rules import Rules
    from ._table import DispatchTable
    from .schema import FunctionSchema

__all__ = ["Entry", "Signature"]


class Signature:
    """A definition, and what calls need of it. The first call works that out; it never changes
    afterwards.

    ``generation`` is what handles compare: an operator that was closed and defined again is another
    one.
    """

    __slots__ = (
        "_binder",
        "_returns",
        "_schema",
        "_shape",
        "dispatch_keywords",
        "dispatch_positions",
        "fact",
        "generation",
    )

    def __init__(self, fact: Registration) -> None:
        self.fact = fact
        self.generation = fact.generation
        self._schema: FunctionSchema | None = None
        self._binder: Binder | None = None
        self._shape: Shape | None = None
        self._returns: Returns  # set with the binder
        self.dispatch_positions: tuple[int, ...] = ()
        self.dispatch_keywords: tuple[str, ...] = ()

    @property
    def schema(self) -> FunctionSchema:
        if self._schema is None:
            from .schema import parse_schema

            self._schema = parse_schema(self.fact.body)
        return self._schema

    @property
    def shape(self) -> Shape:
        """The schema for calls in C."""
        if self._shape is None:
            from ._call_shape import shape_of

            self._shape = shape_of(self.schema)
        return self._shape

    @property
    def binder(self) -> Binder:
        return self._binder or self._work_out()

    @property
    def returns(self) -> Returns:
        if self._binder is None:
            self._work_out()
        return self._returns

    def _work_out(self) -> Binder:
        from ._bind import Binder
        from ._placement import as_tensor
        from ._returns import Returns

        schema = self.schema
        binder = Binder(schema, as_tensor)
        self._returns = Returns(schema, as_tensor)
        dispatched = [schema.arguments[i] for i in schema.dispatch_arguments]
        self.dispatch_positions = tuple(
            i for i in schema.dispatch_arguments if not schema.arguments[i].kwarg_only
        )
        self.dispatch_keywords = tuple(a.name for a in dispatched if a.kwarg_only)
        self._binder = binder  # last: whoever sees it sees the others too
        return binder


# The room for backend fallbacks among the targets of a plan.
_FALLBACK_TARGETS = 4

# Most operators have none. Never changed: an entry puts a dict of its own in its place.
_NO_RULES: dict[int, Rules] = {}


class _State:
    """What the facts of one version give. Replaced as a whole."""

    __slots__ = ("fallbacks", "node", "signature", "table", "version")

    def __init__(
        self,
        version: int,
        node: int,
        fallbacks: int,
        table: DispatchTable,
        signature: Signature | None,
    ) -> None:
        self.version = version
        self.node = node
        self.fallbacks = fallbacks  # the count of their changes
        self.table = table
        self.signature = signature


class Entry:
    """One operator, by its name with overload: ``ns::name`` or ``ns::name.overload``."""

    __slots__ = (
        "_cell",
        "_changes",
        "_fallbacks",
        "_registry",
        "_rules",
        "_signature",
        "_state",
        "kernels",
        "load",
        "lock",
        "name",
    )

    def __init__(
        self,
        registry: RegistryProtocol,
        name: str,
        fallbacks: Fallbacks,
        load: Callable[[Registration], bool],
    ) -> None:
        self.name = name
        #: Imports what brings a kernel that is not here, if the user allows it; whether it did.
        self.load = load
        self.kernels: dict[DispatchKey, list[LocalKernel]] = {}
        self._state: _State | None = None
        self._signature: Signature | None = None
        self._cell: Cell | None = None
        self._registry = registry
        self._fallbacks = fallbacks
        self._changes = 0
        self._rules = _NO_RULES
        self.lock = RLock()

    def rules(self, generation: int) -> Rules:
        """What is registered in this interpreter only, for one generation of the operator."""
        rules = self._rules.get(generation)
        if rules is None:
            from ._rules import Rules

            with self.lock:
                rules = self._rules.get(generation) or Rules(self.name)
                if generation >= max(
                    self._rules, default=0
                ):  # else it is gone, and so are its rules
                    self._rules = {generation: rules}
        return rules

    def forked(self) -> None:
        """In the child of a fork; there is one thread then."""
        unlock(self)
        self.lock = RLock()
        self._changed()
        inherit(self.kernels)

    # --- changing what is here

    def add(self, kernel: LocalKernel, seq: int) -> None:
        """Main interpreter: the callable, under the hold of the lock in which its fact was made."""
        kernel.seq = seq
        self._keep(kernel)

    def remove(self, kernel: LocalKernel, fact: Struck) -> None:
        """Main interpreter: the fact, then the callable, under one hold of the lock."""
        with self.lock:
            self._registry.strike(fact)
            self._remove(kernel)

    def keep(self, kernel: LocalKernel) -> None:
        """Worker: the callable, its fact having been verified."""
        with self.lock:
            self._keep(kernel)

    def drop(self, kernel: LocalKernel) -> None:
        """Worker: the callable."""
        with self.lock:
            self._remove(kernel)

    def _keep(self, kernel: LocalKernel) -> None:
        here = self.kernels.get(kernel.key)
        if here is None:
            self.kernels[kernel.key] = [kernel]
        else:
            here.append(kernel)
        self._changed()

    def _remove(self, kernel: LocalKernel) -> None:
        here = self.kernels.get(kernel.key, [])
        if kernel in here:
            here.remove(kernel)
            if not here:
                del self.kernels[kernel.key]
        self._changed()

    def _changed(self) -> None:
        self._changes += 1
        self._state = None
        if self._cell is not None:
            self._cell.clear()

    # --- calls in C

    def cell(self) -> Cell:
        """Where they find their plan."""
        with self.lock:
            if self._cell is None:
                from ._native._call import Cell, changed

                self._fallbacks.when_changed = changed
                self._cell = Cell()
            return self._cell

    def renew(self, generation: int) -> None:
        """Makes a plan of the facts as they are now, where calls in C can be made: the registry has
        words that they can look at. Raises OperatorGoneError.
        """
        cell = self._cell
        assert cell is not None
        begun = cell.begin()  # before the facts are read: a plan of older ones is not kept
        state = self._current()
        signature = state.signature
        if signature is None or signature.generation != generation:
            raise self._gone(signature)
        view = self._registry.view()
        if view is not None:
            table = state.table
            cell.install(
                begun,
                view,
                state.node,
                state.version,
                generation,
                table.mask,
                table.backend_masks,
                signature.shape,
                table,
                signature,
                min(len(table.kernels) + _FALLBACK_TARGETS, 254),
            )

    # --- looking

    def fact(self, seq: int) -> Registration | None:
        """The registration of this number, as long as it is there."""
        _, _, there = self._registry.registrations(self.name)
        return next((fact for fact in there if fact.seq == seq), None)

    def _current(self) -> _State:
        state = self._state
        if (
            state is None
            or state.fallbacks != self._fallbacks.changes
            or self._registry.version(state.node) != state.version
        ):
            state = self._refresh()
        return state

    def current(self, generation: int) -> tuple[DispatchTable, Signature]:
        """The table and the definition of the facts as they are now.

        Raises OperatorGoneError when the definition of this generation has ended.
        """
        state = self._current()
        signature = state.signature
        if signature is None or signature.generation != generation:
            raise self._gone(signature)
        return state.table, signature

    def signature(self) -> Signature | None:
        """The definition as it is now; None without one."""
        return self._current().signature

    def current_table(self) -> DispatchTable:
        """The table of the facts as they are now."""
        return self._current().table

    def recompute(self) -> None:
        """Has the next call compute the table anew: the process has got a kernel in C."""
        with self.lock:
            self._changed()

    def _callables(self, there: list[Registration]) -> dict[DispatchKey, list[LocalKernel]]:
        """Those of this interpreter and, for facts of kernels in C, after them the process's."""
        if not any(fact.text.startswith(C_LABEL) for fact in there if fact.kind == facts.IMPL):
            return self.kernels
        from ._c_kernels import with_c_kernels

        return with_c_kernels(self._registry, there, self.kernels)

    def _refresh(self) -> _State:
        from ._pairing import table_of

        with self.lock:
            changes = self._changes
            # The version is read with the facts: a change after this makes the state stale, never
            # wrong for ever.
            version, node, there = self._registry.registrations(self.name)
            definitions = [f for f in there if f.kind == facts.DEF]
            if not definitions:
                self._signature = None
            elif self._signature is None or self._signature.fact != definitions[-1]:
                self._signature = Signature(definitions[-1])
            signature = self._signature
            with self._fallbacks.lock:
                fallbacks = self._fallbacks.changes
                _, _, fallbacks_there = self._registry.registrations(FALLBACK_NAME)
                table = table_of(
                    there,
                    self.kernels,
                    fallbacks_there,
                    self._fallbacks.kernels,
                    lambda: self._callables(there),
                )
            state = _State(version, node, fallbacks, table, signature)
            if node and changes == self._changes:
                self._state = state
            return state

    def _gone(self, signature: Signature | None) -> errors.OperatorGoneError:
        if signature is not None:
            return errors.OperatorGoneError(
                f"this operator {self.name} was closed; another one of its name was defined since\n"
                f"  defined at {signature.fact.where}: {signature.fact.body}\n"
                "Look it up again to use that one.",
                self.name,
            )
        _, _, there = self._registry.registrations(self.name)
        hint = (
            "it has kernels, but nobody defined its schema"
            if any(f.kind == facts.IMPL for f in there)
            else "its last registration was closed"
        )
        return errors.OperatorGoneError(
            f"operator {self.name} is not defined: {hint}\nOpen its library again and look the "
            "operator up again.",
            self.name,
        )

    # --- checking

    def broken_invariants(self) -> list[str]:
        """Where the facts, the callables and the table in use contradict each other, in words.

        The operator's facts and those of the fallbacks are read one after the other, and somebody
        else may change them in between. Who does so raises the operator's version before the
        registry's lock is free, which ``check`` takes: so what is found while the version stays
        the same until after that is a fault.
        """
        while True:
            version, node, found = self._broken()
            if found:
                self._registry.check()
            if not found or not node or self._registry.version(node) == version:
                return [f"{self.name}: {each}" for each in found]

    def _broken(self) -> tuple[int, int, list[str]]:
        """The version that was looked at, its node, and what is wrong if nothing has changed."""
        from ._invariants import faults_of_facts, faults_of_table

        with self.lock:
            version, node, there = self._registry.registrations(self.name)
            state = self._state
            with self._fallbacks.lock:
                now = (version, node, self._fallbacks.changes)
                current = state and (state.version, state.node, state.fallbacks) == now
                kept = state.table if state is not None and current else None
                _, _, fallbacks = self._registry.registrations(FALLBACK_NAME)
                found = [
                    *faults_of_facts(self.name, there, self.kernels, self._registry.role),
                    *faults_of_table(
                        kept, there, self._callables(there), fallbacks, self._fallbacks.kernels
                    ),
                ]
        return version, node, found
