"""The object that users hold: a Registry has the shared registrations and this interpreter's
Dispatcher.

There is one default registry. It is made or found when it is first needed. A process without one
creates it, and puts its address into the environment, where child processes find it. The process's
sub-interpreters find it without the environment.
"""

from __future__ import annotations

import os
import sys

from .. import errors, facts, seam
from ..dispatch.dispatcher import Dispatcher
from ..facts.backing import backing, matched
from ..facts.logs import registry_log
from ..facts.native import interpreter_id, unlock
from ..facts.opening import DEFAULT_CAPACITY, ENVIRONMENT, without_braces
from ..forking import new_lock
from . import roles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..dispatch.by_type import Classes
    from ..dispatch.context.guards import Keys
    from ..dispatch.explain import Explanation, TableRow
    from ..dispatch.operators import OpOverload
    from ..facts import Registration
    from ..facts.abc import Facts
    from ..facts.listeners import ListenerHandle
    from .ops import Ops

__all__ = ["Registry", "default_registry", "given_or_default", "is_default_asked_for"]
__all__ += ["arrived", "opened_default", "operator_of", "registry_of"]


class Registry(facts.Handle):
    """A registry that interpreters and processes share. Make one with :meth:`create`, find one with
    :meth:`attach`.

    The default registry (:func:`default_registry`) needs neither. A registry is closed explicitly
    (``close``, ``with``) or at the interpreter's end; when the main interpreter closes it, it is
    closed for everyone.
    """

    def __init__(self, facts_: Facts) -> None:
        #: This interpreter's side, for the packages of mdispatch.
        self.dispatcher = Dispatcher(facts_, self)
        roles.joined(self.dispatcher)
        self._ops: Ops | None = None
        facts_.after_fork = self._forked
        facts_.after_close = self.dispatcher.let_go

    @classmethod
    def create(
        cls,
        name: str | None = None,
        *,
        capacity: int = DEFAULT_CAPACITY,
        match: str | None = None,
    ) -> Registry:
        """Creates a registry; this process's main interpreter registers in it, everybody else
        verifies.

        With a ``name`` (1 to 128 of ``A-Z a-z 0-9 _ - .``, or NAME@EDITION) other processes of
        this user can attach to it; without one it is known to this process, and by its
        :attr:`address`. ``capacity`` is its largest size in bytes; memory is used only as it fills.
        The name of a registry whose main process has died is taken over.

        Braces in a name are replaced: ``{env:NAME}`` by a variable of the environment,
        ``{dist:NAME}`` by the version of an installed distribution.

        ``match="compatible"`` lets members differ where the table of docs/diff.md says that two
        versions are compatible; each calls by its own then. ``"same"`` is the rule without it.
        MatchError where the registry has the other one.

        Raises InvalidNameError, EditionError (braces), InvalidArgumentError (capacity, match),
        RegistryExistsError, MatchError, TooManyEditionsError, RegistryOwnerError, RegistryFullError
        (64 registries open), SystemCallError. Where registries cannot be shared it is a
        :meth:`local` one, and NotSharedError with a name; so are :meth:`elect` and :meth:`attach`.
        """
        return _told(cls(matched(backing(match).create(name, capacity), match)))

    @classmethod
    def elect(
        cls,
        name: str | None = None,
        *,
        capacity: int = DEFAULT_CAPACITY,
        match: str | None = None,
    ) -> Registry:
        """Opens a registry whose namespaces have registrars of their own: creates it, or attaches
        to it when another process of the team was first. It lives as long as anybody has it open.

        In it each namespace has a registrar, the first interpreter that opened a library of it; all
        others verify. When the registrar closes its libraries, ends or dies, the next one in line
        goes on in its place; what is registered stays as long as any interpreter has a library of
        the namespace open, and goes with the last.

        ``name``, ``capacity`` and ``match`` are those of :meth:`create`; without a name a new
        registry is made for the interpreters of this process. The name of a registry whose
        processes all died, with a main one or without, is taken over.
        ``MDISPATCH_REGISTRY=elect:NAME`` in the environment makes it the default registry of every
        process that finds it there, and ``MDISPATCH_MATCH=compatible`` beside it asks for that
        match.

        Raises RegistryExistsError when a living registry with a registrar has the name; else as
        :meth:`create`.
        """
        return _told(cls(matched(backing(match).elect(name, capacity), match)))

    @classmethod
    def attach(cls, name: str, *, timeout: float | None = 2.0) -> Registry:
        """Attaches to the registry of this name or address, waiting up to ``timeout`` seconds for
        it to appear.

        Raises RegistryNotFoundError, RegistrarGoneError, RegistryClosedError,
        ForeignRegistryError (another host, boot or PID namespace), RegistryFormatError,
        RegistryOwnerError, RegistryAccessError, RegistryDamagedError, InvalidNameError,
        InvalidArgumentError (timeout), SystemCallError.
        """
        return _told(cls(backing().attach(name, timeout)))

    @classmethod
    def local(cls) -> Registry:
        """A registry of this interpreter alone, in plain Python: nobody can attach to it. It is all
        there is where registries cannot be shared, and the default one there.

        Its calls go through Python. Kernels in C raise NotSharedError. A child of a fork goes on
        with a copy of its own; where it registers, it gives one NotSharedWarning.
        """
        from ..facts.local import LocalRegistry

        return _told(cls(LocalRegistry()))

    @property
    def address(self) -> str:
        """What other processes of this user attach to; also the value for MDISPATCH_REGISTRY."""
        return self.dispatcher.facts.label

    @property
    def is_main(self) -> bool:
        """Whether this interpreter is the one that registers: never where each namespace has a
        registrar of its own (:meth:`elect`).
        """
        return roles.is_main(self.dispatcher)

    @property
    def is_worker(self) -> bool:
        """Whether this interpreter verifies what a main one registers."""
        return roles.is_worker(self.dispatcher)

    @property
    def elects(self) -> bool:
        """Whether each namespace has a registrar of its own; each namespace has a registrar then
        (:meth:`elect`)."""
        return roles.elects(self.dispatcher)

    def registers(self, namespace: str | None = None) -> bool:
        """Whether registrations in ``namespace`` are made by this interpreter, or would be by the
        library that it opens now; False where they are verified.

        Without a namespace: whether that is so of everything. Where each namespace has a registrar
        of its own (:meth:`elect`), True for an interpreter that is the registrar of each namespace
        of which it has a library open; before it opens its first, True as long as nobody else has
        one. (A process that has died just now may still count.)

        InvalidNameError; where the registry was closed, RegistryClosedError.
        """
        if namespace is not None:
            _check_namespace(namespace)
        return roles.registers(self.dispatcher, namespace)

    def registrar(self, namespace: str) -> Registration | None:
        """The claim of the interpreter that registers in ``namespace``, with its process and
        location; None when nobody has a library of it open, and where there is a registrar.

        A process that has died just now may still be named. InvalidNameError.
        """
        _check_namespace(namespace)
        _, _, there = self.dispatcher.facts.registrations(namespace)
        return next((fact for fact in there if fact.kind == facts.CLAIM), None)

    @property
    def ops(self) -> Ops:
        """The operators of this registry: ``registry.ops.namespace.name``."""
        if self._ops is None:
            from .ops import Ops

            self._ops = Ops(self.dispatcher)
        return self._ops

    # --- looking

    def operators(self) -> list[str]:
        """The names of all operators that are defined, ``ns::name`` or ``ns::name.overload``, in
        the order of their definitions, wherever these were made. (c10: getAllOpNames)
        """
        from ..dispatch import explain

        return explain.operators(self.dispatcher.facts)

    def namespaces(self) -> list[str]:
        """The namespaces in which operators are defined, sorted."""
        from ..dispatch import explain

        return explain.namespaces(self.dispatcher.facts)

    def dangling_implementations(self) -> list[str]:
        """The names that have kernels and no definition, sorted. (c10: findDanglingImpls)"""
        from ..dispatch import explain

        return explain.dangling(self.dispatcher.facts)

    def registrations(self, name: str) -> list[Registration]:
        """What is registered for an operator: definition, kernels and held names, oldest first. []
        when there is nothing. InvalidNameError.
        """
        from ..dispatch import explain

        return explain.found(self.dispatcher.facts, name)

    def dump(self, name: str) -> str:
        """The registrations of an operator as text, with their locations. OperatorNotFoundError,
        with the nearest names, when there are none. (c10: dumpState)
        """
        from ..dispatch import explain

        return explain.dump(self.dispatcher.facts, name)

    def table(self, name: str) -> list[TableRow]:
        """The computed dispatch table of an operator: one row per runtime key, with the kernel, the
        rule that put it there and its location. OperatorNotFoundError.
        """
        from ..dispatch import explain

        return explain.table_rows(self.dispatcher.facts, name)

    def dump_table(self, name: str) -> str:
        """The computed table as text, one line per key that has a kernel. OperatorNotFoundError.
        (c10: dumpComputedTable)
        """
        from ..dispatch import explain

        return explain.dump_table(self.dispatcher.facts, name)

    def why(self, name: str, keys: Keys = (), *, types: Classes | None = None) -> Explanation:
        """How a call whose arguments carry ``keys`` comes to its kernel: what this thread adds and
        excludes, what falls through, and the rules. Where the kernel is not in this interpreter, it
        also says which one serves it.

        ``types`` are the classes of its tensors: one for all, or one for each Tensor argument.
        Without Tensor arguments they are those of the values that choose.
        Without them, kernels that are chosen by type are told together.

        Raises OperatorNotFoundError, InvalidKeyError, InvalidArgumentError (``types``).
        """
        from ..dispatch import explain
        from ..dispatch.by_type import checked_types
        from ..keys import DispatchKeySet

        key_set = keys if isinstance(keys, DispatchKeySet) else DispatchKeySet(keys)
        dispatcher = self.dispatcher
        found = explain.why(
            dispatcher.facts,
            name,
            key_set,
            types=checked_types(types),
            preferences=dispatcher.fallbacks,
            entry=dispatcher.entries.get(name),
        )
        fact = found.row.registration
        way = seam.perhaps("the ways of a call")
        if found.error is None and fact is not None and way is not None:
            found.route, found.owners = way(dispatcher.entry(found.operator), found.key, fact.seq)
        return found

    def add_listener(self, listener: object, *, everywhere: bool = False) -> ListenerHandle:
        """Tells ``listener`` of every operator that is defined, now and from now on, and of every
        end of one, until the handle is closed.

        A listener has ``on_operator_registered(registration)``,
        ``on_operator_deregistered(registration)``, or both. It is told of the definitions of this
        interpreter (in a worker, those it has verified), in the order in which they were made,
        outside every lock: it may use the registry, also define, close and add listeners. What it
        raises goes to ``sys.unraisablehook`` and harms nobody.

        With ``everywhere`` it is told of the definitions of all interpreters and processes, by a
        thread of its own, which may miss a definition that came and went between two of its looks.
        When the main interpreter closes the registry or dies, ``on_registry_gone(error)`` is
        called, if there is one.

        Raises InvalidArgumentError, RegistryClosedError; with ``everywhere`` also
        WaitCancelledError (this interpreter shuts down) and RuntimeError (no thread can be had).
        (c10: addRegistrationListener)
        """
        return self.dispatcher.listeners.add(listener, everywhere)

    def check_invariants(self, name: str | None = None) -> None:
        """Recomputes the derived state (tables, masks, indexes) of one operator or, without a name,
        of the whole registry, and compares.

        Raises InvariantError, with every broken invariant in ``report``. (c10:
        OperatorEntry::checkInvariants, Dispatcher::checkInvariants)
        """
        if name is None:
            _, _, there = self.dispatcher.facts.registrations()
            names = [fact.name for fact in there if "::" in fact.name]
            found = [line for line in self.dispatcher.facts.check().split("\n") if line]
        else:
            from ..schema.names import OperatorName

            names, found = [str(OperatorName.parse(name))], []
        here = self.dispatcher.entries
        for each in dict.fromkeys([*names, *(here.keys() if name is None else ())]):
            entry = here.get(each) or self.dispatcher.new_entry(each)
            found += entry.broken_invariants(self.dispatcher.registers_all)
        if found:
            report = "\n".join(found)
            raise errors.InvariantError(
                "what mdispatch derived from the registrations differs from what they give\n  "
                + report.replace("\n", "\n  ")
                + "\nThis is a fault of mdispatch, or somebody wrote into its memory: please "
                "report it with this text.",
                report,
            )

    def allow_imports(self, *modules: str) -> None:
        """Lets calls of this interpreter import modules for kernels that are not loaded here: a
        call that needs such a kernel imports the module that brings it, and goes on. It imports
        only these modules, and modules of these packages.

        The module is the one that the operator names (``Library.set_python_module``), else that of
        the file which registered the kernel. Each is tried once; what the import raises, the call
        raises. Raises InvalidArgumentError for anything but the name of a module.
        """
        if self.dispatcher.imports is None:
            from ..facts.modules import ImportPolicy

            self.dispatcher.imports = ImportPolicy()
        self.dispatcher.imports.allow(modules)

    # --- ending

    def close(self) -> None:
        """Leaves the registry; whatever waits in this interpreter raises RegistryClosedError.
        Idempotent.
        """
        self.dispatcher.listeners.close()
        self.dispatcher.facts.close()
        # Nothing is loaded any more: who closes may have other rights than who opened. While
        # another thread imports the module, no registry is in use there.
        leave = getattr(sys.modules.get(f"{__package__}.type_facts"), "leave", None)
        if leave is not None:
            leave(self.dispatcher)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            "a Registry belongs to its interpreter and cannot be pickled: send its address, and "
            "use Registry.attach there; the default registry is found by itself"
        )

    def __repr__(self) -> str:
        return f"<mdispatch.Registry {self.address} {roles.role_name(self.dispatcher)}>"

    # --- for the packages of mdispatch

    def reduced(self, kind: str, name: str, *definitions: tuple[str, ...]) -> tuple[object, ...]:
        """The pickle of what has a name here: see registry/travel.py. TypeError unless this is the
        default registry: an unpickler could not find another one.
        """
        if self is not default:
            raise TypeError(
                f"{kind} {name} is of {self!r}; only what is of the default registry can be "
                "pickled: send its name"
            )
        return arrived, (kind, name, *definitions)

    def _forked(self) -> None:
        """In the child of a fork: other threads may have held the locks."""
        unlock(self)
        # A child that is a registrar has a copy of the registrations: they are its own.
        self.dispatcher.forked(not roles.is_main(self.dispatcher))
        roles.forked(self.dispatcher)


# Held while the default registry is opened. ``default`` is set once, by one store. A registry that
# another thread had opened and not stored yet at a fork stays open in the child too, unused; the
# end of the interpreter closes it like the others.
_lock = new_lock()
default: Registry | None = None
# Set once, and never back.
_is_asked_for = False
# Has an item until the log has a warning that the default registry cannot be joined.
_unwarned: list[None] = [None]


def default_registry() -> Registry:
    """The default registry of this interpreter, made or found at the first call.

    Raises RegistrarGoneError when the environment names the registry of a parent that is gone,
    RegistryNotFoundError when it names one that nobody has on this host, and what
    :meth:`Registry.create` and :meth:`Registry.attach` raise.
    """
    global _is_asked_for
    _is_asked_for = True
    return _opened_or_found()


def _opened_or_found() -> Registry:
    """At a moment when nobody would hear that it cannot be opened, this returns a registry that
    holds nothing, so that everything differs which is registered there. The next call tries again.
    """
    global default
    registry = default
    if registry is None:
        try:
            opened = None
            with _lock:
                if default is None:
                    opened = Registry(_default_backing())
                    opened.dispatcher.is_torchs = interpreter_id == 0
                    if default is None:
                        default = opened
                registry = default
            if opened is not None and opened is not registry:
                opened.close()  # a signal handler of this thread has opened it meanwhile
            elif opened is not None and interpreter_id == 0 and not _is_found_by_torch():
                sys.meta_path.insert(0, _UntilTorch)  # no other interpreter can import PyTorch
        except errors.MdispatchError as error:
            _warn(error)
            from .unheard import is_unheard

            if not isinstance(error, errors.RegistryError) or not is_unheard():
                raise
            from ..facts.unreachable import UnreachableRegistry

            return Registry(UnreachableRegistry(error))
        _told(registry)
    return registry


class _UntilTorch:
    """Stands first in ``sys.meta_path`` until PyTorch's class of namespaces is there. It finds no
    module.
    """

    @staticmethod
    def find_spec(name: str, path: object, target: object = None) -> None:
        _is_found_by_torch()


def _is_found_by_torch() -> bool:
    """Whether PyTorch is there. Then ``torch.ops`` finds the operators of the default registry from
    now on.
    """
    if not hasattr(sys.modules.get("torch._ops"), "_OpNamespace"):
        return False
    if _UntilTorch in sys.meta_path:
        sys.meta_path.remove(_UntilTorch)
    begin = seam.perhaps("torch.ops")
    if begin is not None:
        begin()
    return True


def _warn(error: errors.MdispatchError) -> None:
    """Leaves a warning in the log, the first time."""
    try:
        _unwarned.pop()
    except IndexError:
        return
    registry_log.warn("not joined: %s\nThis is told once.", str(error))


def _default_backing() -> Facts:
    """That which the environment names: as a member of a registry here, or as the leader or a
    worker of a cluster (docs/cluster.md).
    """
    address, match = os.environ.get(ENVIRONMENT, ""), os.environ.get("MDISPATCH_MATCH") or None
    if not address.startswith("cluster:"):
        return matched(backing(match).default(), match)
    address = without_braces(address)
    from ..facts.backing import check_shared

    check_shared("a cluster")
    registry: Facts = matched(seam.at("a registry at an address")(address), match)
    os.environ[ENVIRONMENT] = registry.label  # children are workers of this host
    return registry


def opened_default() -> Registry | None:
    """The default registry, if this interpreter has opened it already."""
    return default


def is_default_asked_for() -> bool:
    """Whether somebody has called :func:`default_registry` in this interpreter, or in one that it
    was forked from.
    """
    return _is_asked_for


def _told(registry: Registry) -> Registry:
    """Logs that a registry was joined. Called when no lock is held any more."""
    if registry_log.listens():
        role = roles.role_name(registry.dispatcher)
        registry_log.tell("joined %s as %s", registry.address, role)
    if registry.dispatcher.facts.observes:
        seam.at("a member that observes has joined")(registry)
    if "@" in registry.address:
        notice = seam.perhaps("a registry with an edition")
        if notice is not None:
            notice(registry)
    return registry


def operator_of(name: str) -> OpOverload:
    """The operator of the default registry with this name, overload included, as it is defined now.

    OperatorNotFoundError, with the nearest names.
    """
    return _opened_or_found().ops.find(name)


def arrived(kind: str, name: str, *definitions: tuple[str, str]) -> Any:
    """What a pickle holds by its name: see registry/travel.py."""
    from .travel import found_here  # few programs send any

    return found_here(default_registry, (arrived, (kind, name, *definitions)))


def _check_namespace(namespace: str) -> None:
    from ..dispatch.checks import check_namespace  # libraries need it, and not every start

    check_namespace(namespace, "FRAGMENT")


def registry_of(operator: OpOverload) -> Registry:
    """The registry that an operator is in."""
    found = operator.dispatcher.holder
    assert isinstance(found, Registry)
    return found


def given_or_default(registry: Registry | None) -> Registry:
    """The registry that the caller passed, else the default one. InvalidArgumentError for anything
    but a Registry.
    """
    if registry is None:
        return _opened_or_found()
    if not isinstance(registry, Registry):
        raise errors.InvalidArgumentError(
            f"registry= takes an mdispatch.Registry, not a {type(registry).__qualname__}"
        )
    return registry
