"""One interpreter's side of one registry: its operators and their callables.

The registrations are shared. Everything in this file belongs to one interpreter. (c10: Dispatcher)
"""

from __future__ import annotations

from _weakref import ref

from .. import errors, facts
from ..facts.listeners import Listeners
from ..facts.logs import registry_log
from ..facts.native import c_kernels, unlock
from ..facts.registration import source_of
from ..forking import new_lock
from .entries import Entries
from .fallbacks import Fallbacks, inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Protocol, TypeVar

    from ..errors.runs import Run
    from ..facts import Registration
    from ..facts.abc import Facts
    from ..facts.modules import ImportPolicy
    from .abc import Peer
    from .entry import OperatorEntry
    from .plugs import Plug

    P = TypeVar("P", bound=Plug)

    class Holder(Protocol):
        """The Registry that holds a Dispatcher, as far as it is known here."""

        @property
        def ops(self) -> Any: ...

        def reduced(
            self, kind: str, name: str, *definitions: tuple[str, ...]
        ) -> tuple[object, ...]: ...


#: The locks that the operators of all registries share. With one for each operator, a third of what
#: the garbage collector visits for an operator would be its lock; with one for all, an operator's
#: first call would wait for a thread that registers another one. A thread that holds one of them
#: takes no second one, so two registries can share them.
_locks = [new_lock() for _ in range(16)]


class Dispatcher:
    """The operators of one registry in this interpreter.

    Functions that register take one. They write into the registry through its ``facts`` only.
    """

    def __init__(self, facts_: Facts, holder: Holder) -> None:
        self.facts = facts_
        #: Whether every registration is made by this interpreter. Set by registry/roles.py.
        self.registers_all = False
        #: The Registry that users hold.
        self.holder = holder
        self.entries = Entries()
        #: Called with ``ns::name`` when no overload of it is defined here any more.
        self.when_gone: Callable[[str], object] | None = None
        self.fallbacks = Fallbacks()
        #: The state of features for this registry: see plugs.py.
        self.plugs: dict[type[Plug], Any] = {}
        self.listeners = Listeners(facts_)
        #: Held while definitions come and go. It is the lock of the listeners, who are told in this
        #: order: with a second lock, two threads could wait for each other.
        self.definitions_lock = self.listeners.lock
        #: Which modules a call may import for a kernel that is not here.
        self.imports: ImportPolicy | None = None
        #: The docstrings that were given to define(), by the operator's name, each with the
        #: generation of the definition.
        self.docs: dict[str, tuple[int, str]] = {}
        #: The names with kernels that were registered here with a schema of their own.
        self.names_with_signatures: set[str] = set()
        #: The libraries that are open, by the identity under which a library that is opened again
        #: replaces an earlier one, and by the run of the module that opened them.
        self.libraries: dict[tuple[str, ...], dict[Run, dict[Any, None]]] = {}
        #: The locations of the libraries that are open, by namespace. Under ``claims_lock``. A list
        #: is never removed: a signal handler may open or close a library at any point.
        self.claims: dict[str, list[str]] = {}
        self.claims_lock = new_lock()
        # What this interpreter has verified and not ended since, as far as neither the listeners
        # nor the entries have it: an item for each time, by kind, key and name. An item is added or
        # removed in one step, so no lock is needed.
        self._verified: dict[tuple[int, int, str], set[object]] = {}
        #: The sources (``Registration.source``) from which other members opened the libraries that
        #: were verified here, by the source that opened them here.
        self.counterparts: dict[str, set[str]] = {}
        #: The choices that this interpreter has met, by operator, profile and environment: its
        #: candidate, its candidates, what reads the version of the choice's name, and the version.
        #: In a plug, a choice that is there would take 6 % more instructions.
        self.chosen: dict[tuple[object, ...], tuple[Any, Any, Callable[[], int], int]] = {}
        #: The modules that a child of fork has from a parent that registered.
        self.inherited: frozenset[str] = frozenset()
        #: The parents that have registered, and for each the number that the next registration had
        #: at the fork.
        self.parents: dict[int, int] = {}
        # For each name that had a named overload: the overloads that are defined here, in order.
        self._overloads: dict[str, list[str]] = {}
        self._listed: tuple[int, int, dict[str, list[str]]] = (0, 0, {})
        self._recoveries = 0  # how many were logged
        self._loader = self._load  # one bound method for all entries
        #: The operators that kernels in C have called.
        self._called: dict[str, Any] = {}
        self._finder = _finder(ref(self))
        self._entry_type: type[OperatorEntry] | None = None  # None until it is loaded
        #: Whether each operator with Tensors is one of PyTorch, too: set before the first entry
        self.is_torchs = False
        self._peer: Peer | None = None

    def of(self, feature: type[P]) -> P:
        """This registry's object of a plug, made when it is first asked for."""
        found: P | None = self.plugs.get(feature)
        return found or self.plugs.setdefault(feature, feature(self))

    def entry(self, name: str, is_kept: bool = False) -> OperatorEntry:
        """The entry of an operator in this interpreter, made when nobody has it. ``is_kept``: the
        caller adds something to a new one, or has it let go of itself.
        """
        return self.entries.get_or_put(name, self.new_entry, is_kept)

    def new_entry(self, name: str) -> OperatorEntry:
        if self._entry_type is None:
            from .entry import OperatorEntry

            self._entry_type = OperatorEntry
            if self.is_torchs:
                from .peers import WHEN_WANTED

                self._peer = WHEN_WANTED
        return self._entry_type(
            self.facts.for_entry(name),
            name,
            self.fallbacks,
            self._loader,
            self._finder,
            _locks[hash(name) % len(_locks)],
            self.entries,
            self._peer,
        )

    def _load(self, fact: Registration) -> bool:
        from .kernels import C_LABEL  # who calls has it already

        if fact.text.startswith(C_LABEL):
            from .c_kernels import is_here

            if fact.kind == facts.IMPL and is_here(self.facts, fact):
                self.entry(fact.name).recompute()  # it came after the table was computed
                return True
        return self.imports is not None and self.imports.load(self.facts, fact)

    def tell_of_recoveries(self) -> None:
        """Logs that a member has died while it held the registry's lock."""
        so_far = self.facts.stat()[6]
        if so_far > self._recoveries:
            self._recoveries = so_far
            text = "recovered %s from a member that died with its lock; recoveries so far: %d"
            registry_log.tell(text, self.facts.label, so_far)

    def check_may_call(self) -> None:
        """Raises the reason where this interpreter may call no operator."""
        refusal = self.fallbacks.refusal
        if refusal is not None:
            refusal()

    def note_counterpart(self, where: str, fact: Registration) -> None:
        """Notes that the code at a location here has opened the library that another member has."""
        self.counterparts.setdefault(source_of(where), set()).add(fact.source)

    def note_verified(self, kind: int, key: int, name: str) -> Callable[[], object]:
        """Notes that a registration was verified which leaves nothing else here. Returns what ends
        that."""
        here, token = self._verified.setdefault((kind, int(key), name), set()), object()
        here.add(token)
        return lambda: here.discard(token)

    def times_verified(self, kind: int, key: int, name: str, variant: str = "") -> int:
        """How often this interpreter has verified such a registration, and not ended that since.
        ``variant`` is that of a kernel.

        Definitions and kernels are not counted apart: there are tens of thousands.
        """
        times = len(self._verified.get((kind, key, name), ()))
        if kind == facts.DEF:
            times += self.listeners.is_defined(name)
        elif kind == facts.IMPL:
            entry = self.entries.get(name)
            if entry is not None:
                for each in entry.callables:
                    times += each.key == key and each.seq == 0 and each.variant == variant
        return times

    # Of the names that are defined in this interpreter. All of it under ``definitions_lock``.

    def defined(self, fact: Registration) -> None:
        """After the commit of a definition. The caller tells the listeners when it has released the
        lock.
        """
        self.listeners.note(fact)
        base, _, overload = fact.name.partition(".")
        known = self._overloads.get(base)
        if known is None and overload:
            first = [""] if self.listeners.is_defined(base) else []
            known = self._overloads.setdefault(base, first)
        if known is not None and overload not in known:
            known.append(overload)
        self.facts.touch()

    def end(self, fact: Registration) -> None:
        """Ends a definition that was made here, and tells the listeners."""
        name = fact.name
        base, _, overload = name.partition(".")
        with self.definitions_lock:
            if self.docs:
                self.docs.pop(name, None)
            known = self._overloads.get(base)
            if known and overload in known:
                known.remove(overload)
                if not known:
                    del self._overloads[base]
            self.facts.touch()
            self.facts.remove(fact)
            entry = self.entries.get(name) if name in self.entries.there else None
            if entry is not None:
                entry.drop_rules(fact)
            self.listeners.ended(fact)  # even where other members keep the registration
        self.listeners.tell()
        if self.when_gone is not None and base not in self._overloads:
            self.when_gone(base)

    def end_unheld(self, held: Iterable[Registration | None]) -> None:
        """Ends all that was published since ``forget_published``, unless some of it is held."""
        ours = self.facts.published
        if ours and {seq for _, seq in ours}.isdisjoint([fact.seq for fact in held if fact]):
            for ref, seq in reversed(ours):
                self.disown(ref, seq)

    def disown(self, ref: int, seq: int) -> None:
        """Ends a registration that was published here, with what it has here by now. Idempotent."""
        for definition in self.listeners.definitions():
            if definition.seq == seq:
                self.end(definition)
        for _, entry in self.entries.items():
            for kernel in entry.callables:
                if kernel.seq == seq:
                    entry.remove(kernel)
        for fallbacks in list(self.fallbacks.kernels.values()):
            for kernel in tuple(fallbacks):
                if kernel.seq == seq:
                    self.fallbacks.drop(kernel)
        self.facts.remove(facts.Registration(ref, seq, 0, 0, "", "", "", 0, 0))

    def overloads(self, base: str) -> list[str]:
        """The overloads of ``ns::name`` in the order of their definitions, whichever of them were
        imported here; "" is the one without a name.
        """
        if self.registers_all and not c_kernels.has_host():  # a host may have defined others
            known = self._overloads.get(base)
            if known:
                return list(known)
            if known is None and self.listeners.is_defined(base):
                return [""]
        return list(self._overloads_there().get(base, ()))

    def _overloads_there(self) -> dict[str, list[str]]:
        """The overloads of every name by the registrations, listed anew when these have changed."""
        # A change raises ``following``, then publishes a registration. (A local registry does both
        # at once.) It may have raised it before this read, and published after the registrations
        # were listed. Then ``count`` differs from the length of that list, and the next look lists
        # the registrations again.
        _, _, _, count, _, following, *_ = self.facts.stat()
        listed = self._listed
        if listed[:2] != (following, count):
            _, _, there = self.facts.registrations()
            found: dict[str, list[str]] = {}
            for fact in sorted(there, key=lambda fact: fact.seq):
                if fact.kind == facts.DEF:
                    base, _, overload = fact.name.partition(".")
                    found.setdefault(base, []).append(overload)
            self._listed = listed = (following, len(there), found)
        return listed[2]

    def look(self) -> None:
        """Calls ``look`` of all plugs, before a warm-up compares."""
        for plug in list(self.plugs.values()):
            plug.look()

    def let_go(self) -> None:
        """After the end of the registry: drops the callables and handles of all operators, which
        serve nobody any more. So the garbage collector does not visit them again and again at the
        end of the interpreter. Calls that other threads are in have their own references.
        """
        for plug in list(self.plugs.values()):
            plug.ended()
        ended, self.entries = self.entries, Entries()
        ended.end()
        self.chosen.clear()
        self._called.clear()
        for runs in list(self.libraries.values()):
            for opened in list(runs.values()):
                for library in list(opened):
                    library.registry_has_ended()

    def forked(self, is_heir: bool) -> None:
        """In the child of a fork. ``is_heir``: the registrations of what was registered here belong
        to the parent.
        """
        unlock(self, self.entries.there, self.claims, self.fallbacks)
        unlock(self._verified, *self._verified.values(), self.counterparts)
        if self.facts.differing is not None:
            self.facts.differing.forked()
        unlock(self.chosen, self._called, self.plugs)
        for plug in list(self.plugs.values()):
            plug.forked(is_heir)
        if is_heir:
            inherit(self.fallbacks.kernels)
        self.listeners.forked()
        for name, entry in self.entries.items():
            entry.forked(is_heir, self.listeners.definition(name))


def _finder(there: ref[Dispatcher]) -> Callable[[str], Any]:
    """What finds the operators that kernels in C call. Such a kernel keeps it, and the garbage
    collector does not look into it: so this keeps no dispatcher. A call under way does.
    """

    def find(name: str) -> Any:
        dispatcher = there()
        if dispatcher is None:
            raise errors.RegistryClosedError(f"the registry of {name} has ended")
        known = dispatcher._called
        operator = known.get(name)
        if operator is None or operator.is_gone:
            operator = known[name] = dispatcher.holder.ops.find(name)
        return operator

    return find
