"""Warming up: import the operator modules, verify them, and tell everything that differs.

The same call is an initializer for thread pools, interpreter pools, process pools and bare
interpreters. In the main interpreter it just imports: there is nothing to verify.
"""

from __future__ import annotations

import importlib
import sys
from time import perf_counter

from . import _registry as facts
from . import errors
from ._differences import missing_in_worker
from ._nearest import shown
from ._roles import Audit
from .registry import Registry, given_or_default

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._registry import Registration

__all__ = ["WarmUp", "warm_up"]


class WarmUp:
    """What a warm-up did: ``operators`` and ``kernels`` verified (registered, in the main
    interpreter), the seconds that the ``import_seconds`` took and the ``longest_wait`` among them,
    and the ``differences`` found.
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
    modules: str | Iterable[str], *, timeout: float | None = 2.0, registry: Registry | None = None
) -> WarmUp:
    """Imports ``modules`` (a name or several) and verifies what they register against the main
    interpreter.

    All waits together take at most ``timeout`` seconds. Fits as ``initializer=mdispatch.warm_up,
    initargs=([...],)``.

    Raises WarmUpError with every difference found, each an exception of its own class; what the
    modules themselves raise passes through (ImportError and others).
    """
    result = examine(modules, timeout=timeout, registry=registry)
    if result.differences:
        count = len(result.differences)
        listed = "\n".join(
            f"{i}. {_indented(error)}" for i, error in enumerate(result.differences, 1)
        )
        raise errors.WarmUpError(
            f"{count} difference{'s' * (count > 1)} to the main interpreter:\n{listed}",
            result.differences,
        )
    return result


def _indented(error: BaseException) -> str:
    return str(error).replace("\n", "\n   ")


def examine(
    modules: str | Iterable[str], *, timeout: float | None = 2.0, registry: Registry | None = None
) -> WarmUp:
    """As :func:`warm_up`, but returns the differences instead of raising them."""
    try:
        names = [modules] if isinstance(modules, str) else list(modules)
    except TypeError:
        raise errors.InvalidArgumentError(
            f"modules are named by a str or several, not {shown(modules)}"
        ) from None
    for name in names:
        # The other things that import_module does not take, and would not say clearly.
        if not isinstance(name, str) or not name or name.startswith(".") or not name.isprintable():
            raise errors.InvalidArgumentError(
                f"modules are named by absolute names in str, not {shown(name)}"
            )
    timeout = facts.check_timeout(timeout)
    registry = given_or_default(registry)
    before = set(sys.modules)
    began = perf_counter()
    with Audit(timeout) as audit:
        try:
            for name in names:
                importlib.import_module(name)
        except BaseException as error:
            for difference in audit.differences:
                error.add_note(f"before that, while warming up: {difference}")
            raise
    took = perf_counter() - began
    new = [name for name in sys.modules if name not in before]
    _, _, there = registry._facts.registrations()
    if registry.is_main:
        files = _files_of([*names, *new])
        mine = [f for f in there if _file_of(f) in files]
        return WarmUp(_count(mine, facts.DEF), _count(mine, facts.IMPL), took, 0.0, ())
    found = [*audit.differences, *_missing_here(there, audit, _files_of(new))]
    return WarmUp(
        _count(audit.facts, facts.DEF),
        _count(audit.facts, facts.IMPL),
        took,
        audit.longest_wait,
        tuple(found),
    )


def _count(some: list[Registration], kind: int) -> int:
    return sum(f.kind == kind for f in some)


def _file_of(fact: Registration) -> str:
    return fact.where.rpartition(":")[0]


def _files_of(modules: list[str]) -> set[str]:
    found = (getattr(sys.modules.get(name), "__file__", None) for name in modules)
    return {file for file in found if file}


def _missing_here(
    there: list[Registration], audit: Audit, files: set[str]
) -> list[errors.VerificationError]:
    """What the main interpreter registered from the modules that were imported here just now, and
    this one did not. What was imported before was verified before.

    A registration comes from such a module when its file is one of theirs, or the one from which
    the main interpreter opened a library that was verified here (the same module may lie elsewhere
    in another process).
    """
    verified = {f.seq for f in audit.facts}
    told = {(error.kind, error.name, error.key) for error in audit.differences}
    sources = files | {_file_of(f) for f in audit.facts if f.kind == facts.LIBRARY}
    # Of several modules that an operator names, a worker compares with the newest.
    stubs = {f.name: f for f in there if f.kind == facts.PYSTUB}
    candidates = [f for f in there if f.kind != facts.PYSTUB] + list(stubs.values())
    left = [f for f in candidates if f.seq not in verified and _file_of(f) in sources]
    if not left:
        return []
    # Of several kernels at one key, as custom_op and then register_fake have them, each time the
    # newest is verified. That it was so once more stands for an earlier one.
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
        error = missing_in_worker(fact)
        if (error.kind, error.name, error.key) not in told:
            missing.append(error)
    return missing
