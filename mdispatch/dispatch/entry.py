"""One operator in one interpreter: its callables, and the table computed from them and the
registrations.

Table and definition are kept until the operator's version word shows that they are out of date.
Then one object with both replaces the old one; it is never patched, so a call in another thread
sees the old pair or the new pair. The first call imports what only calls need (schemas, tables,
values), so that a worker that only verifies does not pay for it.

Locking: ``lock`` is held while callables are added or removed and while a table is computed; calls
take no lock. Some entries share one. The lock is reentrant: signal handlers and finalizers run at
any point, and may call or change this very operator. ``_changes`` counts changes of the callables,
so that a table is not kept if such code changed them while it was computed. The interpreter that
registers a kernel publishes its registration and adds its callable under one hold of the lock, and
ends both under one hold: no table has the registration without the callable.
"""

from __future__ import annotations

from .. import errors, facts, seam
from ..facts.native import unlock
from .fallbacks import Fallbacks, inherit
from .kernels import C_LABEL, FALLBACK_NAME, METHOD_LABEL, UNDECIDED, LocalKernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import RLock
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..facts import Registration
    from ..facts.abc import Facts
    from ..facts.native.calls import Cell, Shape
    from ..keys.numbers import DispatchKey
    from ..schema import FunctionSchema
    from .abc import Chooser, EntryTable, Peer
    from .arguments import Binder
    from .by_type import Given
    from .overrides import Rules
    from .results import Returns
    from .table import DispatchTable


class Signature:
    """A definition, and what calls derive from it. The first call derives it; it never changes
    afterwards.

    Handles of an operator compare the ``generation``: an operator that was closed and defined again
    is another operator.
    """

    __slots__ = (
        "_binder",
        "_returns",
        "_schema",
        "_shape",
        "dispatch_keywords",
        "dispatch_positions",
        "plain_positions",
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
        #: Of an operator without Tensor arguments: those whose classes choose among kernels.
        self.plain_positions: tuple[int, ...] = ()
        self.dispatch_keywords: tuple[str, ...] = ()

    @property
    def schema(self) -> FunctionSchema:
        if self._schema is None:
            from ..schema.canonical import schema_of

            self._schema = schema_of(self.fact.body)
        return self._schema

    @property
    def shape(self) -> Shape:
        """The schema for calls in C."""
        if self._shape is None:
            from .shape import shape_of

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
        from .arguments import Binder
        from .placement import as_tensor
        from .results import Returns

        schema = self.schema
        binder = Binder(schema, as_tensor)
        self._returns = Returns(schema, as_tensor)
        dispatched = [schema.arguments[i] for i in schema.dispatch_arguments]
        self.dispatch_positions = tuple(
            i for i in schema.dispatch_arguments if not schema.arguments[i].kwarg_only
        )
        self.dispatch_keywords = tuple(a.name for a in dispatched if a.kwarg_only)
        self.plain_positions = () if dispatched else schema.type_arguments
        self._binder = binder  # last: a thread that sees it sees the others too
        return binder


# How many targets of a plan are for backend fallbacks.
_FALLBACK_TARGETS = 4


def most_targets(table: DispatchTable) -> int:
    """How many targets a plan for calls in C has room for."""
    return min(len(table.kernels) + _FALLBACK_TARGETS, 254)


# Most operators have none. Never changed: an entry puts a dict of its own in its place.
_NO_RULES: dict[int, Rules] = {}
_NO_LABELS: dict[tuple[int, str], list[Registration | None]] = {}


class _State:
    """The table and the definition that the registrations of one version give. Replaced as a
    whole."""

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
        self.fallbacks = fallbacks  # how many changes of the fallbacks it includes
        self.table = table
        self.signature = signature


class OperatorEntry:
    """One operator, by its name with overload: ``ns::name`` or ``ns::name.overload``."""

    __slots__ = (
        "__weakref__",
        "_cell",
        "_changes",
        "_entries",
        "_fallbacks",
        "_labelled",
        "callables",
        "facts",
        "find",
        "_rules",
        "_signature",
        "_state",
        "load",
        "lock",
        "name",
        "peer",
        "is_undecided",
        "_first_peer",
    )

    def __init__(
        self,
        registry: Facts,
        name: str,
        fallbacks: Fallbacks,
        load: Callable[[Registration], bool],
        find: Callable[[str], Any],
        lock: RLock,
        entries: EntryTable,
        peer: Peer | None,
    ) -> None:
        self.name = name
        self._entries = entries
        #: Imports the module that brings a kernel, if the user allows it. Returns whether it did.
        self.load = load
        #: Finds another operator of the registry, for a kernel in C that calls it.
        self.find = find
        #: The callables of all keys, oldest first. Never changed: another one is put in its place.
        self.callables: tuple[LocalKernel, ...] = ()
        self._state: _State | None = None
        self._signature: Signature | None = None
        self._cell: Cell | None = None
        self.facts = registry
        self._fallbacks = fallbacks
        self._changes = 0
        self._rules = _NO_RULES
        self._labelled = _NO_LABELS
        self.lock = lock
        #: The operator in PyTorch, if it is exported. Under ``lock``; calls read it.
        self.peer: Peer | None = peer
        self._first_peer = peer
        #: Whether its plan was made before PyTorch was there.
        self.is_undecided = False

    def rules(self, generation: int) -> Rules:
        """The operator's rules in this interpreter, for one generation of the operator."""
        rules = self._rules.get(generation)
        if rules is None:
            from .overrides import Rules

            with self.lock:
                rules = self._rules.get(generation) or self._rules_before(generation)
                rules = rules or Rules(self.name, self.cell().ruled, self._fact(generation))
                if generation >= max(
                    self._rules, default=0
                ):  # else it is gone, and so are its rules
                    self._rules = {generation: rules}
                    self._note()
        return rules

    def _fact(self, generation: int) -> Registration | None:
        signature = self.signature()
        is_it = signature is not None and signature.generation == generation
        return signature.fact if signature is not None and is_it else None

    def _rules_before(self, generation: int) -> Rules | None:
        """The rules of the definition before, where that had the same text, and has not ended here:
        another member has defined it again, which is no change.
        """
        if not self._rules or max(self._rules) > generation:
            return None
        rules, now = self._rules[max(self._rules)], self._fact(generation)
        if now is None or rules.definition is None:
            return None
        same = (rules.definition.body, rules.definition.attributes) == (now.body, now.attributes)
        return rules if same else None

    def drop_rules(self, ended: Registration) -> None:
        """Drops the rules of a definition that has ended, and of those before it."""
        if not self._rules:  # as with nearly all: its generation need not be read
            return
        with self.lock:
            if max(self._rules, default=ended.generation + 1) <= ended.generation:
                self._rules = _NO_RULES
                self._note()

    def _note(self) -> None:
        """Stays while there is something here, whoever refers to it. The caller holds the lock."""
        if self.callables or self._rules or self._labelled:
            self._entries.there[self.name] = self
        else:
            self._entries.let_go(self)

    def let_go(self) -> None:
        """After a registration that was refused: it may have nothing to stay for."""
        with self.lock:
            self._note()

    def forked(self, is_heir: bool, definition: Registration | None) -> None:
        """In the child of a fork; there is one thread then. ``is_heir``: the registrations of the
        callables belong to the parent. ``definition`` is the one that the parent had made, or
        verified.
        """
        unlock(self)
        self._changed()
        if is_heir:
            inherit(self.kernels)
            self.bind(definition)

    # --- changing the callables

    def add(self, kernel: LocalKernel) -> None:
        """Adds a callable. The caller holds the lock; if it registers the kernel, it publishes the
        registration under the same hold.
        """
        kernel.entry = self
        self.callables += (kernel,)
        self._entries.there[self.name] = self  # as _note does
        self._changed()

    def keep(self, kernel: LocalKernel) -> None:
        """Adds the callable of a registration that was verified."""
        with self.lock:
            self.add(kernel)

    def keep_label(
        self, key: int, label: str, definition: Registration | None
    ) -> Callable[[], None]:
        """Notes for which definition a kernel was verified that is made by its label: one in C, or
        a method. Returns what ends that.
        """
        place, its = (key, label), [definition]

        def end() -> None:
            with self.lock:
                if self._labelled.get(place) is its:
                    left = dict(self._labelled)
                    del left[place]
                    self._labelled = left
                    self._note()
                    self._changed()

        with self.lock:
            self._labelled = {**self._labelled, place: its}
            self._note()
            self._changed()
        return end

    @property
    def labels(self) -> tuple[tuple[int, str], ...]:
        """The keys and labels of the kernels that were verified and are made by their labels."""
        return tuple(self._labelled)

    def leave_peer(self) -> None:
        """Takes the operator out of PyTorch."""
        with self.lock:
            there = self.peer
            if there is not None and there.is_made:
                self.peer = self._first_peer
                self._changed()  # first: calls in C know its operator
                there.close()

    def bind(self, definition: Registration | None) -> None:
        """The callables that were verified before their definition, or came with a fork, belong to
        this one from now on. See Note [Kernels and definitions] in dispatch/pairing.py.
        """
        with self.lock:
            if definition is not None and self._bind(definition):
                self._changed()

    def _bind(self, definition: Registration) -> bool:
        is_changed = False
        for kernel in self.callables:
            if kernel.seq <= 0 and kernel.definition is None:
                kernel.definition = definition
                is_changed = True
        for (key, label), its in self._labelled.items() if self._labelled else ():
            if its[0] is None:
                its[0] = definition
                is_changed = True
                if label.startswith(C_LABEL):
                    from .c_kernels import note_definition

                    note_definition(self.facts, key, label, definition)
        return is_changed

    def remove(self, kernel: LocalKernel) -> None:
        """Ends the registration, if that is this interpreter's to end, then the callable, under one
        hold of the lock.
        """
        fact = kernel.registration
        with self.lock:
            if fact is not None:
                self.facts.remove(fact)
            here = self.callables
            is_last = here == (kernel,)
            self.callables = () if is_last else tuple(k for k in here if k is not kernel)
            if is_last and not (self._rules or self._labelled):  # as _note does
                self._entries.let_go(self)
            self._changed()

    def _changed(self) -> None:
        self._changes += 1
        self._state = None
        if self._cell is not None:
            self._cell.clear()

    # --- calls in C

    def plan_anew(self) -> None:
        """Has the next call in C ask for its targets again: a call has found the way to a kernel
        that is not here.
        """
        with self.lock:
            if self._cell is not None:
                self._cell.clear()

    def cell(self) -> Cell:
        """The object in which calls in C find their plan."""
        with self.lock:
            if self._cell is None:
                from ..facts.native.calls import Cell, changed

                self._fallbacks.when_changed = changed
                self._cell = Cell()
            return self._cell

    def renew(self, generation: int) -> None:
        """Makes a plan for calls in C from the registrations as they are now. It needs a registry
        whose version words C can read; for another registry it does nothing. Raises
        OperatorGoneError.
        """
        cell = self._cell
        assert cell is not None
        refusal = self._fallbacks.refusal
        if refusal is not None:
            refusal()
        begun = (
            cell.begin()
        )  # before the registrations are read: if they change, the plan is not kept
        state = self._current()
        signature = state.signature
        if signature is None or signature.generation != generation:
            raise self._gone(signature)
        view = self.facts.view()
        if view is not None:
            table = state.table
            gate, written, its = 0, 0, None
            if self.peer is not None:
                if self.peer.is_made and not signature.schema.dispatch_arguments:
                    return  # calls in C ask it about tensors only
                gate, written, its = self.peer.in_c(signature.schema, table)
                self.is_undecided = gate == UNDECIDED
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
                most_targets(table),
                gate,
                written,
                table.is_by_type,
                its,
            )

    # --- looking

    @property
    def kernels(self) -> dict[DispatchKey, list[LocalKernel]]:
        """The callables of this interpreter by key, oldest first. The dict is the caller's."""
        found: dict[DispatchKey, list[LocalKernel]] = {}
        for kernel in self.callables:
            found.setdefault(kernel.key, []).append(kernel)
        return found

    def fact(self, seq: int) -> Registration | None:
        """The registration of this number, as long as it is there."""
        _, _, there = self.facts.registrations(self.name)
        return next((fact for fact in there if fact.seq == seq), None)

    def _current(self) -> _State:
        state = self._state
        if (
            state is None
            or state.fallbacks != self._fallbacks.changes
            or self.facts.version(state.node) != state.version
        ):
            state = self._refresh()
        return state

    def current(self, generation: int) -> tuple[DispatchTable, Signature]:
        """The table and the definition of the registrations as they are now.

        Raises OperatorGoneError when the definition of this generation has ended, and the reason
        where this interpreter may call no operator.
        """
        refusal = self._fallbacks.refusal
        if refusal is not None:
            refusal()
        state = self._current()
        signature = state.signature
        if signature is None or signature.generation != generation:
            raise self._gone(signature)
        return state.table, signature

    def signature(self) -> Signature | None:
        """The definition as it is now; None without one."""
        return self._current().signature

    def defined(self) -> tuple[Callable[[], int], int, Signature | None]:
        """The definition as it is now, None without one; before it what reads the version of the
        operator's registrations, and what that was.
        """
        state = self._current()
        return self.facts.reader(state.node), state.version, state.signature

    def current_table(self) -> DispatchTable:
        """The table of the registrations as they are now."""
        return self._current().table

    def recompute(self) -> None:
        """Has the next call compute the table anew: the process has got a kernel, or knows that it
        gets none.
        """
        with self.lock:
            self._changed()

    def _callables(self, there: list[Registration]) -> dict[DispatchKey, list[LocalKernel]]:
        """The callables of this interpreter; if there are registrations of kernels in C or of
        methods, followed by those that are made by their labels.
        """
        labels = [fact.text for fact in there if fact.kind == facts.IMPL]
        found = self.kernels
        if any(label.startswith(C_LABEL) for label in labels):
            from .c_kernels import with_c_kernels

            found = with_c_kernels(self.facts, there, found, self.find)
        if any(label.startswith(METHOD_LABEL) for label in labels):
            found = seam.at("kernels of methods")(there, found)
        for (key, label), (definition,) in self._labelled.items():
            for kernel in found.get(key, ()):  # type: ignore[call-overload]
                if kernel.label == label:
                    kernel.definition = definition
        return found

    def chooser(self) -> Chooser:
        """A new Chooser for this operator, by the priorities of this interpreter."""
        made: Chooser = seam.at("a choice among kernels")(self.facts, self.name, self._fallbacks)
        return made

    def after_provider(self, kernel: Any, name: str, given: Given) -> LocalKernel:
        """The kernel after the provider of this name, for a call that leads to ``kernel``."""
        there = self.facts.registrations(self.name)[2]
        found: LocalKernel = self.chooser().after(
            kernel, name, lambda key: self.at(key, there), given
        )
        return found

    def all_providers(self, kernel: Any, given: Given) -> Sequence[tuple[Any, LocalKernel]]:
        """The kernels of all providers that may run, for a call that leads to ``kernel``, each with
        a function of the arguments that says whether it takes them.
        """
        there = self.facts.registrations(self.name)[2]
        found: Sequence[tuple[Any, LocalKernel]] = self.chooser().every(
            kernel, lambda key: self.at(key, there), given
        )
        return found

    def at(self, key: DispatchKey, there: list[Registration]) -> list[Any]:
        """The kernels of these registrations at one key, of each variant the active one, oldest
        first."""
        from .pairing import definition_in, variants_at

        its = [fact for fact in there if fact.kind == facts.IMPL and fact.key == key]
        with self.lock:
            here = self._callables(there).get(key, [])
            return variants_at(its, here, definition_in(there))

    def _refresh(self) -> _State:
        from .pairing import definition_in, table_of

        with self.lock:
            changes = self._changes
            # The version is read with the registrations. If they change after this, the state is
            # out of date, and the next call sees that.
            version, node, there = self.facts.registrations(self.name)
            definition = definition_in(there)
            if definition is None:
                self._signature = None
            elif self._signature is None or self._signature.fact != definition:
                self._signature = Signature(definition)
            signature = self._signature
            if signature is not None:
                self._bind(signature.fact)
            with self._fallbacks.lock:
                fallbacks = self._fallbacks.changes
                _, _, fallbacks_there = self.facts.registrations(FALLBACK_NAME)
                table = table_of(
                    there,
                    self.kernels,
                    fallbacks_there,
                    self._fallbacks.kernels,
                    lambda: self._callables(there),
                    self.chooser,
                )
            state = _State(version, node, fallbacks, table, signature)
            if node and changes == self._changes:
                self._state = state
            return state

    def _gone(self, signature: Signature | None) -> errors.OperatorGoneError:
        if signature is not None:
            return errors.OperatorGoneError(
                f"operator {self.name} was closed, and another operator has since been defined "
                f"under its name\n  defined at {signature.fact.where}: {signature.fact.body}\nLook "
                "the name up again to use the new operator.",
                self.name,
            )
        _, _, there = self.facts.registrations(self.name)
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

    def broken_invariants(self, registers_all: bool) -> list[str]:
        """The contradictions between the registrations, the callables and the table in use, in
        words.

        This reads the operator's registrations, then those of the fallbacks. Another member may
        change them in between. It raises the operator's version before it releases the registry's
        lock, and ``check`` takes that lock. So if the version is the same after ``check``, nobody
        changed anything, and a contradiction is a fault.
        """
        while True:
            version, node, found = self._broken(registers_all)
            if found:
                self.facts.check()
            if not found or not node or self.facts.version(node) == version:
                return [f"{self.name}: {each}" for each in found]

    def _broken(self, registers_all: bool) -> tuple[int, int, list[str]]:
        """The version of the registrations, their node, and the contradictions if they did not
        change."""
        from .invariants import faults_of_facts, faults_of_table

        with self.lock:
            version, node, there = self.facts.registrations(self.name)
            state = self._state
            with self._fallbacks.lock:
                now = (version, node, self._fallbacks.changes)
                current = state and (state.version, state.node, state.fallbacks) == now
                kept = state.table if state is not None and current else None
                _, _, fallbacks = self.facts.registrations(FALLBACK_NAME)
                found = [
                    *faults_of_facts(self.name, there, self.kernels, registers_all),
                    *faults_of_table(
                        kept,
                        there,
                        self._callables(there),
                        fallbacks,
                        self._fallbacks.kernels,
                        self.chooser,
                    ),
                ]
        return version, node, found
