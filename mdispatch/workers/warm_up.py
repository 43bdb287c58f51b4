"""Warming up: import the operator modules, verify them, and report everything that differs.

The same call is an initializer for thread pools, interpreter pools, process pools and bare
interpreters. In the main interpreter it just imports: there is nothing to verify.

The registry keeps the differences of each module (facts/differing.py), because a module is
imported only once: a later warm-up with the same module reports the same differences. It also
reports those that were raised before, which somebody may have caught.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from time import perf_counter

from .. import errors, facts, seam
from .. import registry as registries
from ..errors.locations import file_of
from ..errors.words import shown
from ..facts.backing import alone_because
from ..facts.modules import sources_of_modules
from ..facts.opening import ENVIRONMENT
from ..facts.registration import source_of
from ..facts.waits import check_timeout
from ..registry import Registry, given_or_default
from ..registry.differences import all_that_differs
from ..registry.known_classes import unmet
from ..registry.roles import who
from ..registry.type_facts import compare_types, keep_up
from ..registry.unheard import child_that_initializes, parent_process
from ..registry.verified import Verified
from ..registry.verify import Audit, agree, all_kept, compare_kernels, keep_missing, warn
from .entry_points import PROVIDERS, agree_on, find, group_names, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..dispatch.dispatcher import Dispatcher
    from ..facts import Registration

__all__ = ["WarmUp", "counts", "warm_up"]


# Priorities of the main interpreter hold here by themselves. One that is set here, too, is compared
# where it is set.


class WarmUp:
    """The result of a warm-up.

    ``operators`` and ``kernels`` count those that were verified (registered, in the main
    interpreter). ``import_seconds`` is the time that the imports took, ``longest_wait`` the longest
    wait among them, in seconds. ``differences`` holds the differences found.
    """

    __slots__ = ("operators", "kernels", "import_seconds", "longest_wait", "differences")

    def __init__(
        self,
        operators: int,
        kernels: int,
        import_seconds: float,
        longest_wait: float,
        differences: tuple[errors.MdispatchError, ...],
    ) -> None:
        self.operators = operators
        self.kernels = kernels
        self.import_seconds = import_seconds
        self.longest_wait = longest_wait
        self.differences = differences

    def __repr__(self) -> str:
        return (
            f"WarmUp(operators={self.operators}, kernels={self.kernels}, "
            f"import_seconds={self.import_seconds:.6f}, "
            f"longest_wait={self.longest_wait:.6f}, differences={len(self.differences)})"
        )


def warm_up(
    modules: str | Iterable[str] = (),
    path: Iterable[str] = (),
    *,
    entry_points: str | Iterable[str] = (),
    timeout: float | None = 2.0,
    registry: Registry | None = None,
    freeze: bool = False,
    complete: str | Iterable[str] = (),
) -> WarmUp:
    """Imports ``modules`` (a name or several) and verifies what they register against the main
    interpreter. What the main interpreter has from one of the modules and this one lacks is a
    difference, too. A module is known by its name, wherever its file lies.

    ``entry_points`` names groups of entry points, one or several: the plug-ins that are installed.
    Their modules are imported after ``modules``, in the order of the entry points' names; an object
    that one names there is looked up, not called. A group whose entry points are other ones than in
    another member of this host is a difference. Those of "mdispatch.providers" are kernels, which
    are registered here and imported when a call first comes to them: see docs/choosing-kernels.md.

    ``complete`` names namespaces, one or several. Whatever the main interpreter has in them has to
    be here, also what a module registers there that was not imported here at all.

    All waits together take at most ``timeout`` seconds. ``path`` is put at the head of ``sys.path``
    first: fresh interpreters do not inherit the additions that their main interpreter made to its
    own. In a pool: ``initializer=mdispatch.warm_up, initargs=([...], sys.path)``. A second call
    reports the same differences again. A call also reports what has differed before, in whatever
    module, where the error was caught and the name was not registered well since.

    ``freeze`` is for interpreters that keep what they import until they end. The garbage collector
    of the interpreter rests during the warm-up, and looks at nothing that is there by then
    (``gc.freeze``) until the interpreter ends. Garbage in cycles that is there by then stays.

    Raises WarmUpError with every difference found, each an exception of its own class. Errors of
    the modules themselves pass through (ImportError and others). RegistrarGoneError when the main
    process has ended. RegistryNotFoundError in a child process of multiprocessing that was started
    before its parent had a registry.

    Where the error leaves the initializer of a multiprocessing.Pool, a ProcessPoolExecutor or a
    joblib worker, the worker stays, and each of its tasks raises the error.
    """
    try:
        if registry is None:
            _check_not_alone()
        registry = given_or_default(registry)
        look = _frozen if freeze else examine
        result = look(
            modules,
            path,
            entry_points=entry_points,
            timeout=timeout,
            registry=registry,
            complete=complete,
        )
        if result.differences and registry.dispatcher.facts.observes:
            seam.at("the differences of a warm-up")(registry.dispatcher, result.differences)
        elif result.differences:
            differs = all_that_differs(registry.dispatcher.facts, result.differences)
            warn(registry.dispatcher, differs)
            raise differs
    except Exception as error:
        worker = child_that_initializes()
        if worker is not None:
            from ..pool.refusal import answer_tasks_if_unhandled

            answer_tasks_if_unhandled(worker, error)
        raise
    agree(registry.dispatcher)
    if "@" in registry.address:
        compare = seam.perhaps("the end of a warm-up")
        if compare is not None:
            compare(registry)
    return result


def _frozen(modules: str | Iterable[str], path: Iterable[str], **options: Any) -> WarmUp:
    """As :func:`examine`; the collector rests meanwhile, and does not look at what is there
    afterwards.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        result = examine(modules, path, **options)
        # The end of the interpreter collects, so that what is in cycles is finalized there. Before
        # that, the end of the registry drops most of what there is (Dispatcher.let_go).
        atexit.unregister(gc.unfreeze)
        atexit.register(gc.unfreeze)
        gc.freeze()
    finally:
        if collects:
            gc.enable()
    return result


def _check_not_alone() -> None:
    """Refuses a child of multiprocessing that does not find its parent's registry in its
    environment: it would become a main interpreter of its own, or has just become one, and verify
    nothing. Where registries are never shared, each process is one, and has nothing to find.
    """
    if alone_because:
        return
    registry, parent = registries.opened_default(), parent_process()
    if registry is not None and (registries.is_default_asked_for() or not registry.is_main):
        return
    if parent is not None and (registry is not None or not os.environ.get(ENVIRONMENT)):
        raise errors.RegistryNotFoundError(
            f"process {os.getpid()} is a worker of process {parent.pid}, and was started before "
            f"process {parent.pid} had a registry: it would verify nothing\nCall warm_up there "
            "before you start the pool or process (or the fork server that starts all later ones). "
            "If this process is to register for itself, call mdispatch.default_registry() in it "
            "first."
        )


def module_names(modules: str | Iterable[str]) -> list[str]:
    """The names as a list. InvalidArgumentError for what cannot be the name of a module."""
    try:
        names = [modules] if isinstance(modules, str) else list(modules)
    except TypeError:
        raise errors.InvalidArgumentError(
            f"name modules by a str, or by several of them, not by {shown(modules)}"
        ) from None
    for name in names:
        # import_module would refuse these too, but would not say clearly why.
        if not isinstance(name, str) or not name or name.startswith(".") or not name.isprintable():
            raise errors.InvalidArgumentError(
                f"name each module by its absolute name, a str, not by {shown(name)}"
            )
    return names


def namespaces(complete: str | Iterable[str]) -> frozenset[str]:
    """The namespaces by name. InvalidArgumentError for what cannot be one."""
    names: list[object]
    try:
        names = [complete] if isinstance(complete, str) else list(complete)
    except TypeError:
        names = [complete]
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise errors.InvalidArgumentError(
                f"complete names namespaces, one or several, not {shown(name)}"
            )
    return frozenset(map(str, names))


def examine(
    modules: str | Iterable[str],
    path: Iterable[str] = (),
    *,
    entry_points: str | Iterable[str] = (),
    timeout: float | None = 2.0,
    registry: Registry | None = None,
    complete: str | Iterable[str] = (),
) -> WarmUp:
    """As :func:`warm_up`, but returns the differences instead of raising them."""
    names, spaces = module_names(modules), namespaces(complete)
    groups, timeout = group_names(entry_points), check_timeout(timeout)
    registry = given_or_default(registry)
    _extend_path(path)
    dispatcher = registry.dispatcher
    before = set(sys.modules)
    kept = all_kept(dispatcher)
    began = perf_counter()
    plugged = {group: find(group) for group in groups}
    unlike = [agree_on(registry, group, found) for group, found in plugged.items()]
    with Audit(timeout) as audit:
        try:
            for name in names:
                __import__(name)
            for group, found in plugged.items():
                take = seam.at("entry points of providers") if group == PROVIDERS else load
                take(registry, found)
            keep_up(dispatcher)
            dispatcher.look()
        except BaseException as error:
            for difference in audit.differences:
                error.add_note(f"before that, while warming up: {difference}")
            if isinstance(error, ModuleNotFoundError) and error.name in names:
                error.add_note(_where_to_look(registry, error.name))
            raise
    took = perf_counter() - began
    new = [name for name in list(sys.modules) if name not in before]
    _forget(dispatcher, kept, sources_of_modules(new))
    compare_types(dispatcher)
    plug_ins = [each.module for group in groups if group != PROVIDERS for each in plugged[group]]
    looked_at = {*names, *plug_ins, *new}
    _, _, there = dispatcher.facts.registrations()
    if registry.is_main:
        sources = sources_of_modules(_packages(looked_at))
        # As a worker counts what it has verified.
        during = {f.seq for f in audit.facts}
        mine = [f for f in there if f.seq in during or _is_from(f, sources)]
        # Of registrations, types, where another member had them first.
        differing = _differences(dispatcher, unlike)
        return WarmUp(*counts(mine), took, 0.0, differing)
    sequence, _ = dispatcher.facts.await_change(0, 0.0)
    dispatcher.facts.await_change(sequence, 0.0)  # raises where the registrar is gone
    compared = there
    if dispatcher.facts.keeps_own:  # under a name apart nothing is compared
        compared = [fact for fact in there if not dispatcher.facts.is_apart(fact.name)]
        there = seam.at("all that is registered")(dispatcher)
    comparison = _Comparison(registry, compared, looked_at, spaces)
    verified, lacking = comparison.verified_and_lacking(audit.facts)
    if dispatcher.facts.keeps_own:
        lacking = seam.at("what a member lacks")(dispatcher, lacking)
        compared = [fact for fact in compared if not dispatcher.facts.is_apart(fact.name)]
    compare_kernels(dispatcher, compared)
    keep_missing(dispatcher, there, lacking)
    return WarmUp(*counts(verified), took, audit.longest_wait, _differences(dispatcher, unlike))


def _differences(
    dispatcher: Dispatcher, unlike: list[errors.DisagreementError | None]
) -> tuple[errors.MdispatchError, ...]:
    """The differences of this interpreter, those of entry points, and the classes that schemas
    named with ``forward=True``, if they never came.
    """
    never_came = [
        errors.ClassNotFoundError(
            f"there is no class {name} here, which the schema of {operator} names\n"
            "Import the module that registers it (register_class).",
            name,
            operator,
        )
        for name, operator in unmet(dispatcher.facts).items()
    ]
    return (*all_kept(dispatcher), *filter(None, unlike), *never_came)


def _extend_path(path: Iterable[str]) -> None:
    """Puts the folders at the head of ``sys.path``, in their order."""
    try:
        wanted = [] if isinstance(path, str) else list(dict.fromkeys(path))
    except TypeError:
        wanted = None
    folders = [each for each in wanted or () if isinstance(each, str)]
    if isinstance(path, str) or folders != wanted:
        raise errors.InvalidArgumentError(
            f"path must be a list of folders, like sys.path, not {shown(path)}"
        )
    if sys.path[: len(folders)] != folders:
        sys.path[:] = [*folders, *(each for each in sys.path if each not in folders)]
        import importlib

        importlib.invalidate_caches()


def _forget(dispatcher: Dispatcher, kept: list[errors.MdispatchError], sources: set[str]) -> None:
    """Drops what differed in modules that have just been imported anew."""
    for error in kept:
        if isinstance(error, errors.VerificationError) and source_of(error.here) in sources:
            assert dispatcher.facts.differing is not None
            dispatcher.facts.differing.drop(error)


def _where_to_look(registry: Registry, name: str) -> str:
    """The note for a module that was not found: where the main interpreter has it from, if known,
    and where this one looked.
    """
    _, _, there = registry.dispatcher.facts.registrations()
    main = next((file_of(fact.where) for fact in there if fact.module == name), "")
    has = (
        f"{who(registry.dispatcher.facts)} has it from {main}; "
        if main and not registry.is_main
        else ""
    )
    return (
        f"{has}this interpreter looked in {', '.join(map(repr, sys.path))}. Fresh interpreters do "
        "not inherit a sys.path: give them one, as in warm_up(modules, sys.path)."
    )


def counts(some: list[Registration]) -> tuple[int, int]:
    """How many operators and how many kernels there are among them, PyTorch's too."""
    numbers = [fact.kind for fact in some]  # tens of thousands
    adds: list[tuple[int, int]] = []
    for number in set(numbers):
        kind = facts.kind_of(number)
        if kind.adds_to is None:
            count = numbers.count(number)
            adds.append((count * kind.adds[0], count * kind.adds[1]))
        else:
            adds += [kind.adds_to(fact.name) for fact in some if fact.kind == number]
    return sum(each[0] for each in adds), sum(each[1] for each in adds)


def _is_from(fact: Registration, sources: set[str]) -> bool:
    """Whether the code that registered it is of one of these sources: modules and files."""
    location, _, module = fact.origin.partition("\n")
    return module in sources or file_of(location) in sources


class _Comparison:
    """What this interpreter has of the registrations that are expected of it.

    A registration comes from a module if it has the module's name or file, or the name or file of
    the module that opened a library there which the module has opened here. What a child of fork
    has inherited is no other than its parent's. What a library in C++ has registered with PyTorch
    is expected of whoever has its namespace.
    """

    def __init__(
        self,
        registry: Registry,
        there: list[Registration],
        modules: set[str],
        spaces: frozenset[str],
    ) -> None:
        self.dispatcher = dispatcher = registry.dispatcher
        self.spaces = spaces
        self.elects = registry.elects
        self.modules = modules
        self.here = _sources(dispatcher, set(sys.modules) - dispatcher.inherited)
        self.near = _sources(dispatcher, _packages(modules))
        self.there = there
        self.kinds = {number: facts.kind_of(number) for number in {fact.kind for fact in there}}
        # If an operator names several modules, a worker compares with the newest.
        self.stubs = {f.name: f.seq for f in there if f.kind == facts.PYSTUB}
        self.verified = Verified(dispatcher)

    def has(self, fact: Registration) -> bool | None:
        """Whether this interpreter has verified it; None where it is not expected here."""
        if fact.kind == facts.PYSTUB and fact.seq != self.stubs[fact.name]:
            return None
        kind = self.kinds[fact.kind]
        if kind.by_any:
            return None
        if kind.is_here is not None:
            return kind.is_here(fact, self)
        if self.elects and self.is_mine(fact):
            return True
        if _is_from(fact, self.here) or _is_in(fact, self.spaces):
            return self.verified.has(fact)
        return None

    def is_mine(self, fact: Registration) -> bool:
        """Whether this interpreter has registered it, in a registry that has no main one."""
        return self.elects and self.dispatcher.facts.is_mine(fact)

    def is_from_here(self, fact: Registration) -> bool:
        """Whether a module that is loaded here registers it."""
        return _is_from(fact, self.here)

    def is_in_spaces(self, fact: Registration) -> bool:
        """Whether it is in one of the namespaces that the warm-up names."""
        return _is_in(fact, self.spaces)

    def verified_and_lacking(
        self, during: Iterable[Registration]
    ) -> tuple[list[Registration], list[Registration]]:
        """What of the modules was verified, and what of them, or of the namespaces, is lacking.
        ``during`` are those that were verified while they were imported.
        """
        verified: list[Registration] = []
        lacking: list[Registration] = []
        for fact in self.there:  # tens of thousands
            has = self.has(fact)
            if has is False:
                lacking.append(fact)
            elif has and _is_from(fact, self.near):
                verified.append(fact)
        verified += {f.seq: f for f in during if not _is_from(f, self.near)}.values()
        if lacking:
            near = self.near | _sources(self.dispatcher, _reached(_packages(self.modules)))
            lacking = [fact for fact in lacking if self._is_asked_for(fact, near)]
        return verified, lacking

    def _is_asked_for(self, fact: Registration, near: set[str]) -> bool:
        return (
            _is_from(fact, near)
            or _is_in(fact, self.spaces)
            or facts.kind_of(fact.kind).is_covered(fact, self.dispatcher)
        )


def _is_in(fact: Registration, spaces: frozenset[str]) -> bool:
    """Whether it is in one of these namespaces. Fallbacks are in none."""
    if not spaces:
        return False
    name = facts.kind_of(fact.kind).called(fact.name)[0]
    return name.partition("::")[0].partition(".")[0] in spaces


def _sources(dispatcher: Dispatcher, modules: Iterable[str]) -> set[str]:
    """The names and files of modules, and of those from which other members opened the libraries
    that they have opened here.
    """
    sources = sources_of_modules(modules)
    return sources.union(*(dispatcher.counterparts.get(each, ()) for each in sources))


def _packages(modules: Iterable[str]) -> set[str]:
    """The modules, and those of their packages."""
    within = tuple(f"{name}." for name in modules)
    # Other threads import meanwhile.
    return {*modules, *(name for name in list(sys.modules) if name.startswith(within))}


def _reached(modules: Iterable[str]) -> set[str]:
    """The modules, and those that they have imported, as far as their names say so. For a module
    that was imported before the warm-up nothing else tells which modules it has brought.
    """
    module_type, function_type = type(sys), type(_reached)
    found: set[str] = set()
    left = list(modules)
    while left:
        name = left.pop()
        module = sys.modules.get(name)
        if module is None or name in found:
            continue
        found.add(name)
        left.append(name.rpartition(".")[0])
        for value in list(vars(module).values()):
            cls = type(value)  # what __class__ says may be code of the object
            origin = value.__name__ if issubclass(cls, module_type) else None
            if issubclass(cls, (function_type, type)):
                origin = value.__module__
            # A program imports its operators, not they it.
            if origin is not None and origin not in ("__main__", "__mp_main__"):
                left.append(origin)
    return found
