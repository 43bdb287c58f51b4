"""What every registration has: a handle that ends it, and words for its refusal."""

from __future__ import annotations

from . import errors
from ._roles import audits, note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ._entry import Entry
    from ._kernels import LocalKernel
    from ._registry import Registration
    from .registry import Registry

    Place = Callable[[], str]

__all__ = ["DefinitionHandle", "KernelHandle", "RegistrationHandle", "claim", "verified"]


class RegistrationHandle:
    """One registration of this interpreter. ``close`` ends it.

    ``registration`` is its fact in the main interpreter; in others the main one's, where it was
    needed to verify, else None. (c10: RegistrationHandleRAII)
    """

    __slots__ = ("_ends", "registration")

    def __init__(self, registration: Registration | None, *ends: Callable[[], object]) -> None:
        self.registration = registration
        self._ends = ends

    def close(self) -> None:
        """Ends the registration. Idempotent; does nothing once the registry is closed."""
        ends, self._ends = self._ends, ()
        for end in ends:
            end()


class DefinitionHandle(RegistrationHandle):
    """A definition of the main interpreter, or of a registrar."""

    __slots__ = ("_named", "_registry")
    registration: Registration

    def __init__(self, registry: Registry, named: Registration | None) -> None:
        self._registry: Registry | None = registry
        self._named = named  # the module with its fake kernel

    def close(self) -> None:
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.end(self.registration)
            if self._named is not None:
                registry.strike(self._named)


class KernelHandle(RegistrationHandle):
    """A kernel of the main interpreter, or of a registrar. There are more of them than of anything
    else, so that it keeps of the fact what ends it, and no more.
    """

    __slots__ = ("_entry", "_kernel", "ref", "seq")

    def __init__(self, entry: Entry, kernel: LocalKernel) -> None:
        self._entry = entry
        self._kernel: LocalKernel | None = kernel
        self.ref = self.seq = 0  # until it is registered

    @property
    def registration(self) -> Registration | None:  # type: ignore[override]
        """Its fact, as long as that is there."""
        return self._entry.fact(self.seq)

    def close(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            self._entry.remove(kernel, self)


def verified(
    registry: Registry, fact: Registration | None, *ends: Callable[[], object]
) -> RegistrationHandle:
    """The handle of what was verified. Its end leaves the fact to the main member; where there is
    none, the last one to have it takes it along.
    """
    if fact is not None and registry.elects:
        return RegistrationHandle(fact, lambda: registry.strike(fact), *ends)
    return RegistrationHandle(fact, *ends)


def claim(
    registry: Registry, kind: int, key: int, name: str, text: str, where: str
) -> Registration:
    """Registers in the main interpreter; a refusal is told with both places."""
    try:
        fact = registry._facts.register(kind, key, name, text, where)
        if audits:
            note(registry._facts, fact)
        return fact
    except errors.DuplicateRegistrationError as error:
        from ._differences import registered_twice

        raise registered_twice(error, key) from None
