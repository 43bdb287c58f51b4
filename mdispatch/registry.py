"""A registry as its users hold it: the shared facts, and what this interpreter keeps beside them.

There is one default registry, made or found when it is first needed: the process that has none
creates it and publishes its address in the environment, where child processes find it; the
process's sub-interpreters find it without.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock

from . import _registry as facts
from ._kernels import Fallbacks, inherit
from ._listeners import Listeners
from ._registry.shared import DEFAULT_CAPACITY, SharedRegistry
from ._schema_names import OperatorName
from .errors import InvalidArgumentError, InvariantError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ._entry import Entry
    from ._explain import Explanation, TableRow
    from ._kernels import LocalKernel
    from ._listeners import ListenerHandle
    from ._loading import ImportPolicy
    from ._registry import Registration, RegistryProtocol
    from .guards import Keys
    from .library import Library
    from .operators import OpOverload, Ops

__all__ = ["Registry", "default_registry", "given_or_default", "operator_of"]


class Registry:
    """A registry that interpreters and processes share. Make one with :meth:`create`, find one with
    :meth:`attach`.

    The default registry (:func:`default_registry`) needs neither. A registry is closed explicitly
    (``close``, ``with``) or at the interpreter's end; when the main interpreter closes it, it is
    closed for everyone.
    """

    def __init__(self, registry: RegistryProtocol) -> None:
        self._facts = registry
        self._entries: dict[str, Entry] = {}
        self._fallbacks = Fallbacks()
        self._overloads: dict[str, list[str]] = {}
        self._listed: tuple[int, int, dict[str, list[str]]] = (0, 0, {})
        self._libraries: dict[tuple[str, ...], Library] = {}
        self._lock = RLock()
        self.names_with_signatures: set[str] = set()
        self._listeners = Listeners(registry)
        self._ops: Ops | None = None
        self._imports: ImportPolicy | None = None
        self._loader = self._load  # one for all entries
        self._entry_type: type[Entry] | None = None  # once it is loaded
        if isinstance(registry, SharedRegistry):
            registry.after_fork = self._forked

    @classmethod
    def create(cls, name: str | None = None, *, capacity: int = DEFAULT_CAPACITY) -> Registry:
        """Creates a registry; this process's main interpreter registers in it, everybody else
        verifies.

        With a ``name`` (1 to 128 of ``A-Z a-z 0-9 _ - .``) other processes of this user can attach
        to it; without one it is known to this process, and by its :attr:`address`. ``capacity`` is
        its largest size in bytes; memory is used only as it fills. The name of a registry whose
        main process has died is taken over.

        Raises InvalidNameError, InvalidArgumentError (capacity), RegistryExistsError,
        RegistryOwnerError, RegistryFullError (64 registries open), SystemCallError.
        """
        return cls(SharedRegistry.create(name, capacity))

    @classmethod
    def attach(cls, name: str, *, timeout: float | None = 2.0) -> Registry:
        """Attaches to the registry of this name or address, waiting up to ``timeout`` seconds for
        it to appear.

        Raises RegistryNotFoundError, MainMemberGoneError, RegistryClosedError, RegistryFormatError,
        RegistryOwnerError, RegistryAccessError, RegistryDamagedError, InvalidNameError,
        InvalidArgumentError (timeout), SystemCallError.
        """
        return cls(SharedRegistry.attach(name, timeout))

    @property
    def address(self) -> str:
        """What other processes of this user attach to; also the value for MDISPATCH_REGISTRY."""
        return self._facts.label

    @property
    def is_main(self) -> bool:
        """Whether this interpreter is the one that registers."""
        return self._facts.role == facts.MAIN

    @property
    def ops(self) -> Ops:
        """The operators of this registry: ``registry.ops.namespace.name``."""
        if self._ops is None:
            from .operators import Ops

            self._ops = Ops(self)
        return self._ops

    # --- looking

    def operators(self) -> list[str]:
        """The names of all operators that are defined, ``ns::name`` or ``ns::name.overload``, in
        the order of their definitions, wherever these were made. (c10: getAllOpNames)
        """
        from . import _explain

        return _explain.operators(self)

    def namespaces(self) -> list[str]:
        """The namespaces in which operators are defined, sorted."""
        return sorted({name.partition("::")[0] for name in self.operators()})

    def dangling_implementations(self) -> list[str]:
        """The names that have kernels and no definition, sorted. (c10: findDanglingImpls)"""
        from . import _explain

        return _explain.dangling(self)

    def registrations(self, name: str) -> list[Registration]:
        """What is registered for an operator: definition, kernels and held names, oldest first. []
        when there is nothing. InvalidNameError.
        """
        from . import _explain

        return _explain.found(self, name)

    def dump(self, name: str) -> str:
        """The registrations of an operator as text, with their places. OperatorNotFoundError, with
        the nearest names, when there are none. (c10: dumpState)
        """
        from . import _explain

        return _explain.dump(self, name)

    def table(self, name: str) -> list[TableRow]:
        """The computed dispatch table of an operator: one row per runtime key, with the kernel, the
        rule that put it there and its place. OperatorNotFoundError.
        """
        from . import _explain

        return _explain.table_rows(self, name)

    def dump_table(self, name: str) -> str:
        """The computed table as text, one line per key that has a kernel. OperatorNotFoundError.
        (c10: dumpComputedTable)
        """
        from . import _explain

        return _explain.dump_table(self, name)

    def why(self, name: str, keys: Keys = ()) -> Explanation:
        """How a call whose arguments carry ``keys`` comes to its kernel: what this thread adds and
        excludes, what falls through, and the rules. OperatorNotFoundError, InvalidKeyError.
        """
        from . import _explain
        from .keys import DispatchKeySet

        key_set = keys if isinstance(keys, DispatchKeySet) else DispatchKeySet(keys)
        return _explain.why(self, name, key_set)

    def add_listener(self, listener: object, *, everywhere: bool = False) -> ListenerHandle:
        """Tells ``listener`` of every operator that is defined, now and from now on, and of every
        end of one, until the handle is closed.

        A listener has ``on_operator_registered(registration)``,
        ``on_operator_deregistered(registration)``, or both. It is told of the definitions of this
        interpreter (in a worker, those it has verified), in the order in which they were made,
        outside every lock: it may use the registry, also define, close and add listeners. What it
        raises goes to ``sys.unraisablehook`` and harms nobody.

        With ``everywhere`` it is told of the definitions of all interpreters and processes, by a
        thread of its own; of what came and went between two looks of that thread it may not hear.
        When the main interpreter closes the registry or dies, ``on_registry_gone(error)`` is
        called, if there is one.

        Raises InvalidArgumentError, RegistryClosedError; with ``everywhere`` also
        WaitCancelledError (this interpreter shuts down) and RuntimeError (no thread can be had).
        (c10: addRegistrationListener)
        """
        return self._listeners.add(listener, everywhere)

    def check_invariants(self, name: str | None = None) -> None:
        """Recomputes what is derived (tables, masks, indexes) for one operator or, without a name,
        for the whole registry, and compares.

        Raises InvariantError, with every broken invariant in ``report``. (c10:
        OperatorEntry::checkInvariants, Dispatcher::checkInvariants)
        """
        if name is None:
            _, _, there = self._facts.registrations()
            names = [fact.name for fact in there if "::" in fact.name]
            found = [line for line in self._facts.check().split("\n") if line]
        else:
            names, found = [str(OperatorName.parse(name))], []
        for each in dict.fromkeys([*names, *(self._entries if name is None else ())]):
            found += (self._entries.get(each) or self._new_entry(each)).broken_invariants()
        if found:
            report = "\n".join(found)
            raise InvariantError(
                "what is derived from the registrations is not what they give\n  "
                + report.replace("\n", "\n  ")
                + "\nThis is a fault of mdispatch, or somebody wrote into its memory: please "
                "report it with this text.",
                report,
            )

    def allow_imports(self, *modules: str) -> None:
        """Lets calls of this interpreter import what they need: where the registry has a kernel
        that is not loaded here, and a module of this list, or of a package in it, brings it, the
        module is imported and the call goes on.

        The module is the one that the operator names (``Library.set_python_module``), else that of
        the file which registered it. Each is tried once; what the import raises, the call raises.
        Raises InvalidArgumentError for what is no module's name.
        """
        if self._imports is None:
            from ._loading import ImportPolicy

            self._imports = ImportPolicy()
        self._imports.allow(modules)

    # --- ending

    def close(self) -> None:
        """Leaves the registry; whatever waits in this interpreter raises RegistryClosedError.
        Idempotent.
        """
        self._listeners.close()
        self._facts.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mdispatch.Registry {self.address} {'main' if self.is_main else 'worker'}>"

    # --- for the modules above: the local side

    def entry(self, name: str) -> Entry:
        """The entry of an operator in this interpreter, made when it is asked for first."""
        entry = self._entries.get(name)
        if entry is None:
            made = self._new_entry(name)
            with self._lock:
                entry = self._entries.setdefault(name, made)
        return entry

    def _new_entry(self, name: str) -> Entry:
        if self._entry_type is None:
            from ._entry import Entry

            self._entry_type = Entry
        return self._entry_type(self._facts, name, self._fallbacks, self._loader)

    def reduced_operator(self, name: str) -> tuple[object, ...]:
        """What a pickle of an operator holds. TypeError for a registry that is not found by it."""
        if self is not _default:
            raise TypeError(
                f"operator {name} is of {self!r}; only those of the default registry can be "
                "pickled: send its name"
            )
        return operator_of, (name,)

    def _load(self, fact: Registration) -> bool:
        return self._imports is not None and self._imports.load(self._facts, fact)

    @property
    def definitions_lock(self) -> RLock:
        """Held while definitions come and go. That of the listeners, who are told in this order; a
        second one could be waited for by two threads in two orders.
        """
        return self._listeners.lock

    def registered(self, commit: Callable[[], Registration]) -> Registration:
        """Commits a definition, and tells the listeners."""
        return self._listeners.registered(commit)

    def struck(self, fact: Registration, strike: Callable[[], bool]) -> None:
        """Ends a definition, and tells the listeners."""
        self._listeners.struck(fact, strike)

    def strike(self, fact: Registration) -> bool:
        """Ends any other registration."""
        return self._facts.strike(fact)

    def note_overload(self, base: str, overload: str) -> None:
        """Main interpreter: remembers in which order it defined the overloads of a name."""
        with self._lock:
            known = self._overloads.setdefault(base, [])
            if overload not in known:
                known.append(overload)

    def forget_overload(self, base: str, overload: str) -> None:
        with self._lock:
            known = self._overloads.get(base, [])
            if overload in known:
                known.remove(overload)

    def overloads(self, base: str) -> list[str]:
        """The overloads of ``ns::name`` in the order of their definitions, whichever of them were
        imported here; "" is the one without a name.
        """
        known = self._overloads.get(base)
        if known and self.is_main:
            return list(known)
        return list(self._overloads_there().get(base, ()))

    def _overloads_there(self) -> dict[str, list[str]]:
        """The overloads of every name by the facts, listed anew when these have changed."""
        count = following = 0
        if isinstance(self._facts, SharedRegistry):
            # Every change raises ``following``. One that had done so before it was read here, and
            # was published after the facts were listed, is told by ``count``: not that of the list.
            _, _, _, count, _, following, *_ = self._facts.stat()
        listed = self._listed
        if not following or listed[:2] != (following, count):
            _, _, there = self._facts.registrations()
            found: dict[str, list[str]] = {}
            for fact in sorted(there, key=lambda fact: fact.seq):
                if fact.kind == facts.DEF:
                    base, _, overload = fact.name.partition(".")
                    found.setdefault(base, []).append(overload)
            self._listed = listed = (following, len(there), found)
        return listed[2]

    def add_fallback(self, kernel: LocalKernel) -> None:
        self._fallbacks.add(kernel)

    def drop_fallback(self, kernel: LocalKernel) -> None:
        self._fallbacks.drop(kernel)

    def _forked(self) -> None:
        """In the child of a fork: other threads may have held the locks."""
        self._lock = RLock()
        self._fallbacks.lock = RLock()
        inherit(self._fallbacks.kernels)
        self._listeners.forked()
        for entry in self._entries.values():
            entry.forked()


_lock = allocate_lock()
_default: Registry | None = None


def default_registry() -> Registry:
    """The default registry of this interpreter, made or found at the first call.

    Raises MainMemberGoneError when the environment names the registry of a parent that is gone, and
    what :meth:`Registry.create` and :meth:`Registry.attach` raise.
    """
    global _default
    registry = _default
    if registry is None:
        with _lock:
            if _default is None:
                _default = Registry(SharedRegistry.default())
            registry = _default
    return registry


def operator_of(name: str) -> OpOverload:
    """The operator of the default registry with this name, overload included, as it is defined now.

    OperatorNotFoundError, with the nearest names.
    """
    return default_registry().ops.find(name)


def given_or_default(registry: Registry | None) -> Registry:
    """The registry that a caller handed in, else the default one. InvalidArgumentError for anything
    else.
    """
    if registry is None:
        return default_registry()
    if not isinstance(registry, Registry):
        raise InvalidArgumentError(
            f"registry= takes an mdispatch.Registry, not a {type(registry).__qualname__}"
        )
    return registry
