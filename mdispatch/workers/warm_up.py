"""Warming up: import the operator modules, verify them, and report everything that differs.

The same call is an initializer for thread pools, interpreter pools, process pools and bare
interpreters. In the main interpreter it just imports: there is nothing to verify.

The registry keeps the differences of each module (``Registry.differing``), because a module is
imported only once: a later warm-up with the same module reports the same differences.
"""

from __future__ import annotations

import importlib
import os
import sys
from time import perf_counter

from .. import errors, facts
from .. import registry as registries
from ..errors.words import shown
from ..facts import interpreter_id
from ..facts.opening import ENVIRONMENT
from ..facts.waits import check_timeout
from ..registry import Registry, given_or_default
from ..registry.differences import missing_in_worker
from ..registry.roles import who
from ..registry.verify import Audit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..facts import Registration

__all__ = ["WarmUp", "warm_up"]


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
        differences: tuple[errors.VerificationError, ...],
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
    modules: str | Iterable[str],
    path: Iterable[str] = (),
    *,
    timeout: float | None = 2.0,
    registry: Registry | None = None,
) -> WarmUp:
    """Imports ``modules`` (a name or several) and verifies what they register against the main
    interpreter.

    All waits together take at most ``timeout`` seconds. ``path`` is put at the head of ``sys.path``
    first: fresh interpreters do not inherit the additions that their main interpreter made to its
    own. In a pool: ``initializer=mdispatch.warm_up, initargs=([...], sys.path)``. A second call
    reports the same differences again.

    Raises WarmUpError with every difference found, each an exception of its own class. Errors of
    the modules themselves pass through (ImportError and others). RegistryNotFoundError in a child
    process of multiprocessing that was started before its parent had a registry. If the function is
    itself the initializer of a multiprocessing.Pool, each task raises the error in its place: Pool
    would replace a worker whose initializer raises by another one, for ever.
    """
    try:
        return _warm_up(modules, path, timeout, registry)
    except Exception as error:
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__") == "multiprocessing.pool":
            from .pool_refusal import refuse_tasks

            refuse_tasks(frame, error)
        raise


def _warm_up(
    modules: str | Iterable[str],
    path: Iterable[str],
    timeout: float | None,
    registry: Registry | None,
) -> WarmUp:
    if registry is None:
        _check_not_alone()
    registry = given_or_default(registry)
    result = examine(modules, path, timeout=timeout, registry=registry)
    if result.differences:
        count = len(result.differences)
        listed = "\n".join(
            f"{i}. {_indented(error)}" for i, error in enumerate(result.differences, 1)
        )
        raise errors.WarmUpError(
            f"{count} difference{'s' * (count > 1)} from "
            f"{who(registry.dispatcher.facts)}:\n{listed}",
            result.differences,
        )
    return result


def _indented(error: BaseException) -> str:
    return str(error).replace("\n", "\n   ")


def _check_not_alone() -> None:
    """Refuses a child of multiprocessing that does not find its parent's registry in its
    environment: it would become a main interpreter of its own, and verify nothing.
    """
    process = sys.modules.get("multiprocessing.process")
    if process is None or interpreter_id != 0 or registries.opened_default() is not None:
        return
    parent = process.parent_process()
    if parent is not None and not os.environ.get(ENVIRONMENT):
        raise errors.RegistryNotFoundError(
            f"process {os.getpid()} is a worker of process {parent.pid}, and was started before "
            f"process {parent.pid} had a registry: it would verify nothing\nCall warm_up there "
            "before you start the pool or process (or the fork server that starts all later ones). "
            "If this process is to register for itself, call mdispatch.default_registry() in it "
            "first."
        )


def examine(
    modules: str | Iterable[str],
    path: Iterable[str] = (),
    *,
    timeout: float | None = 2.0,
    registry: Registry | None = None,
) -> WarmUp:
    """As :func:`warm_up`, but returns the differences instead of raising them."""
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
    timeout = check_timeout(timeout)
    registry = given_or_default(registry)
    _extend_path(path)
    before = set(sys.modules)
    known = [
        error for name in names if name in before for error in registry.differing.get(name, ())
    ]
    began = perf_counter()
    with Audit(timeout) as audit:
        try:
            for name in names:
                importlib.import_module(name)
        except BaseException as error:
            for difference in audit.differences:
                error.add_note(f"before that, while warming up: {difference}")
            if isinstance(error, ModuleNotFoundError) and error.name in names:
                error.add_note(_where_to_look(registry, error.name))
            _keep(registry, names, [*known, *audit.differences])
            raise
    took = perf_counter() - began
    new = [name for name in sys.modules if name not in before]
    _, _, there = registry.dispatcher.facts.registrations()
    if registry.is_main:
        files = _files_of([*names, *new])
        mine = [f for f in there if _file_of(f) in files]
        return WarmUp(_count(mine, facts.DEF), _count(mine, facts.IMPL), took, 0.0, ())
    missing = _missing_here(registry, there, audit, _files_of(new))
    found = _keep(registry, names, [*known, *audit.differences, *missing])
    return WarmUp(
        _count(audit.facts, facts.DEF),
        _count(audit.facts, facts.IMPL),
        took,
        audit.longest_wait,
        tuple(found),
    )


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
        importlib.invalidate_caches()


def _keep(
    registry: Registry, names: list[str], found: list[errors.VerificationError]
) -> list[errors.VerificationError]:
    """Keeps the differences with the modules that were imported, each difference once."""
    once = list({id(error): error for error in found}.values())
    for name in names:
        if once and name in sys.modules:
            registry.differing[name] = tuple(once)
        else:
            registry.differing.pop(name, None)
    return once


def _where_to_look(registry: Registry, name: str) -> str:
    """The note for a module that was not found: where the main interpreter has it from, if known,
    and where this one looked.
    """
    ending = f"{os.sep}{name.replace('.', os.sep)}"
    _, _, there = registry.dispatcher.facts.registrations()
    files = {_file_of(fact) for fact in there}
    main = next(
        (f for f in sorted(files) if f.endswith((f"{ending}.py", f"{ending}{os.sep}__init__.py"))),
        "",
    )
    has = (
        f"{who(registry.dispatcher.facts)} has it from {main}; "
        if main and not registry.is_main
        else ""
    )
    return (
        f"{has}this interpreter looked in {', '.join(map(repr, sys.path))}. Fresh interpreters do "
        "not inherit a sys.path: give them one, as in warm_up(modules, sys.path)."
    )


def _count(some: list[Registration], kind: int) -> int:
    return sum(f.kind == kind for f in some)


def _file_of(fact: Registration) -> str:
    return fact.where.rpartition(":")[0]


def _files_of(modules: list[str]) -> set[str]:
    found = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    return {file for file in found if file}


def _missing_here(
    registry: Registry, there: list[Registration], audit: Audit, files: set[str]
) -> list[errors.VerificationError]:
    """The registrations that the main interpreter made from the modules just imported here, and
    that this interpreter did not make. Modules that were imported earlier were verified then.

    A registration comes from such a module if its file is one of theirs, or the file from which the
    main interpreter opened a library that was verified here (the same module may lie elsewhere in
    another process).
    """
    verified = {f.seq for f in audit.facts}
    told = {(error.kind, error.name, error.key) for error in audit.differences}
    sources = files | {_file_of(f) for f in audit.facts if f.kind == facts.LIBRARY}
    # If an operator names several modules, a worker compares with the newest.
    stubs = {f.name: f for f in there if f.kind == facts.PYSTUB}
    others = [f for f in there if f.kind not in (facts.PYSTUB, facts.CLAIM)]
    candidates = others + list(stubs.values())
    left = [f for f in candidates if f.seq not in verified and _file_of(f) in sources]
    if not left:
        return []
    # There may be several kernels at one key, as custom_op and then register_fake make them. The
    # worker verifies the newest each time, so each verification beyond the first stands for an
    # earlier kernel.
    spare: dict[tuple[int, int, str], int] = {}
    for fact in audit.facts:
        what = (fact.kind, fact.key, fact.name)
        if fact.seq in verified:
            verified.remove(fact.seq)
        else:
            spare[what] = spare.get(what, 0) + 1
    missing: list[errors.VerificationError] = []
    for fact in left:
        what = (fact.kind, fact.key, fact.name)
        if spare.get(what):
            spare[what] -= 1
            continue
        error = missing_in_worker(registry.dispatcher.facts, fact)
        if (error.kind, error.name, error.key) not in told:
            missing.append(error)
    return missing
