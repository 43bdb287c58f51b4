"""A registry as its users hold it: the shared facts, and what this interpreter keeps beside them.

There is one default registry, made or found when it is first needed: the process that has none
creates it and publishes its address in the environment, where child processes find it; the
process's sub-interpreters find it without.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock

from . import _registry as facts
from ._arguments import check_namespace
from ._kernels import C_LABEL, Fallbacks, inherit
from ._listeners import Listeners
from ._logs import registry_log
from ._native import c_kernels, unlock
from ._registry.shared import DEFAULT_CAPACITY, SharedRegistry
from ._schema_names import OperatorName
from .errors import InvalidArgumentError, InvariantError, LibraryClosedError, MdispatchError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from ._entry import Entry
    from ._explain import Explanation, TableRow
    from ._listeners import ListenerHandle
    from ._load_library import LoadedLibrary
    from ._loading import ImportPolicy
    from ._registry import Registration, RegistryProtocol
    from .errors import VerificationError
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
        # Of names that had an overload with a name: all that are defined here, in their order.
        self._overloads: dict[str, list[str]] = {}
        self._recoveries = 0  # that the log was told of
        self._listed: tuple[int, int, dict[str, list[str]]] = (0, 0, {})
        self._libraries: dict[tuple[str, ...], Library] = {}
        #: Those with kernels in C, by their number in this process.
        self._loaded_libraries: dict[int, LoadedLibrary] = {}
        # The places of the libraries that are open, by namespace. A list that was made stays:
        # signal handlers may open and close libraries at any place.
        self._claims: dict[str, list[str]] = {}
        self._lock = RLock()
        self.names_with_signatures: set[str] = set()
        #: What warm_up found to differ, by the modules that it had imported.
        self.differing: dict[str, tuple[VerificationError, ...]] = {}
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
        return _told(cls(SharedRegistry.create(name, capacity)))

    @classmethod
    def elect(cls, name: str | None = None, *, capacity: int = DEFAULT_CAPACITY) -> Registry:
        """Opens a registry without a main member: creates it, or attaches to it when another
        process of the team was first. It lives as long as anybody has it open.

        In it each namespace has a registrar, the first interpreter that opened a library of it; all
        others verify. When the registrar closes its libraries, ends or dies, the next one in line
        goes on in its place; what is registered stays as long as any interpreter has a library of
        the namespace open, and goes with the last.

        ``name`` and ``capacity`` are those of :meth:`create`; without a name a new registry is made
        for the interpreters of this process. The name of a registry whose processes all died, with
        a main one or without, is taken over. ``MDISPATCH_REGISTRY=elect:NAME`` in the environment
        makes it the default registry of every process that finds it there.

        Raises RegistryExistsError when a living registry with a main member has the name; else as
        :meth:`create`.
        """
        return _told(cls(SharedRegistry.elect(name, capacity)))

    @classmethod
    def attach(cls, name: str, *, timeout: float | None = 2.0) -> Registry:
        """Attaches to the registry of this name or address, waiting up to ``timeout`` seconds for
        it to appear.

        Raises RegistryNotFoundError, MainMemberGoneError, RegistryClosedError, RegistryFormatError,
        RegistryOwnerError, RegistryAccessError, RegistryDamagedError, InvalidNameError,
        InvalidArgumentError (timeout), SystemCallError.
        """
        return _told(cls(SharedRegistry.attach(name, timeout)))

    @property
    def address(self) -> str:
        """What other processes of this user attach to; also the value for MDISPATCH_REGISTRY."""
        return self._facts.label

    @property
    def is_main(self) -> bool:
        """Whether this interpreter is the one that registers: never where there is no main member
        (:meth:`elect`).
        """
        return self._facts.role == facts.MAIN

    @property
    def is_worker(self) -> bool:
        """Whether this interpreter verifies what a main one registers."""
        return self._facts.role == facts.WORKER

    @property
    def elects(self) -> bool:
        """Whether there is no main member; each namespace has a registrar then (:meth:`elect`)."""
        return self._facts.role == facts.PEER

    def registers(self, namespace: str) -> bool:
        """Whether registrations in ``namespace`` are made by this interpreter, or would be by the
        library that it opens now; False where they are verified.

        InvalidNameError; where the registry was closed, RegistryClosedError.
        """
        check_namespace(namespace, "FRAGMENT")
        if not self.elects:
            return self.is_main
        with self._lock:
            if self._claims.get(namespace):
                return self.claim(namespace)
        return self.registrar(namespace) is None

    def registrar(self, namespace: str) -> Registration | None:
        """The claim of the interpreter that registers in ``namespace``, with its process and place;
        None when nobody has a library of it open, and where there is a main member.

        A process that has died just now may still be named. InvalidNameError.
        """
        check_namespace(namespace, "FRAGMENT")
        _, _, there = self._facts.registrations(namespace)
        return next((fact for fact in there if fact.kind == facts.CLAIM), None)

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
        return f"<mdispatch.Registry {self.address} {facts.ROLE_NAMES[self._facts.role]}>"

    # --- for the modules above: the local side

    def entry(self, name: str) -> Entry:
        """The entry of an operator in this interpreter, made when it is asked for first."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries.setdefault(name, self._new_entry(name))
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
        if fact.text.startswith(C_LABEL):
            from ._c_kernels import is_here

            if fact.kind == facts.IMPL and is_here(self._facts, fact):
                self.entry(fact.name).recompute()  # it came after the table was computed
                return True
        return self._imports is not None and self._imports.load(self._facts, fact)

    @property
    def definitions_lock(self) -> RLock:
        """Held while definitions come and go. That of the listeners, who are told in this order; a
        second one could be waited for by two threads in two orders.
        """
        return self._listeners.lock

    def tell_of_recoveries(self) -> None:
        """For the log: that a member has died while it held the registry's lock."""
        if isinstance(self._facts, SharedRegistry):
            so_far = self._facts.stat()[6]
            if so_far > self._recoveries:
                self._recoveries = so_far
                text = "recovered %s from a member that died with its lock; recoveries so far: %d"
                registry_log.tell(text, self.address, so_far)

    def registered(self, commit: Callable[[], Registration]) -> Registration:
        """Commits a definition, and tells the listeners."""
        return self._listeners.registered(commit)

    def struck(self, fact: Registration, strike: Callable[[], bool]) -> None:
        """Ends a definition, and tells the listeners."""
        self._listeners.struck(fact, strike)

    def strike(self, fact: Registration) -> bool:
        """Ends any other registration."""
        return self._facts.strike(fact)

    # Of the names that are defined in this interpreter. All of it under ``definitions_lock``.

    def defined(self, fact: Registration) -> None:
        """After the commit of a definition, which is its first here; :meth:`tell` follows, when the
        lock has been let go.
        """
        self._listeners.note(fact)
        base, _, overload = fact.name.partition(".")
        known = self._overloads.get(base)
        if known is None and overload:
            first = [""] if self._listeners.is_defined(base) else []
            known = self._overloads.setdefault(base, first)
        if known is not None and overload not in known:
            known.append(overload)
        self._facts.touch()

    def tell(self) -> None:
        """Tells the listeners what was defined."""
        self._listeners.tell()

    def end(self, fact: Registration) -> None:
        """Ends a definition that was made here, and tells the listeners."""
        base, _, overload = fact.name.partition(".")

        def strike() -> bool:
            known = self._overloads.get(base)
            if known and overload in known:
                known.remove(overload)
            self._facts.touch()
            return self._facts.strike(fact) or self.elects

        self._listeners.struck(fact, strike)

    def overloads(self, base: str) -> list[str]:
        """The overloads of ``ns::name`` in the order of their definitions, whichever of them were
        imported here; "" is the one without a name.
        """
        if self.is_main and not c_kernels.has_host():  # which may have defined others
            known = self._overloads.get(base)
            if known:
                return list(known)
            if known is None and self._listeners.is_defined(base):
                return [""]
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

    def open_namespace(self, namespace: str, where: str) -> None:
        """One more library. Where there is no main member, the first one queues up to register."""
        if not self.elects:
            return
        with self._lock:
            self._claims.setdefault(namespace, []).append(where)
            try:
                self.claim(namespace)
            except BaseException:
                self.close_namespace(namespace)
                raise

    def close_namespace(self, namespace: str) -> None:
        """One library less, after what it has registered."""
        with self._lock:
            opened = self._claims.get(namespace)
            if opened:
                opened.pop()
                if not opened:
                    self._facts.release(namespace)

    def claim(self, namespace: str) -> bool:
        """Whether this interpreter is the registrar of a namespace of which it has a library open.

        LibraryClosedError when another thread has just closed the last one: what queued up now
        would stay in the queue for good.
        """
        with self._lock:
            opened = self._claims.get(namespace)
            if not opened:
                raise LibraryClosedError(
                    f"all libraries of {namespace!r} were closed meanwhile; open another",
                    namespace,
                )
            return self._facts.claim(namespace, opened[0])

    def _forked(self) -> None:
        """In the child of a fork: other threads may have held the locks."""
        from contextlib import suppress

        unlock(self, self._entries, self._claims, self._fallbacks)
        self._lock = RLock()
        self._fallbacks.lock = RLock()
        inherit(self._fallbacks.kernels)
        self._listeners.forked()
        for entry in self._entries.values():
            entry.forked()
        for namespace in [each for each, opened in self._claims.items() if opened]:
            # Where the registry is closed, or full, the next registration tries again and says so.
            with suppress(MdispatchError):
                self.claim(namespace)


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
        _told(registry)
    return registry


def _told(registry: Registry) -> Registry:
    """For the log, when no lock is held any more."""
    if registry_log.listens():
        role = facts.ROLE_NAMES[registry._facts.role]
        registry_log.tell("joined %s as %s", registry.address, role)
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
